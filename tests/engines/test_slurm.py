"""A campaign as jobs of submitit, whose local executor stands in for a Slurm cluster."""

from __future__ import annotations

import os
import signal
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest

from pymllm.errors import UsageError
from tests.engines.campaigns import Campaign, retried, single, taken_over

pytest.importorskip("submitit", reason="needs submitit; tox -e engines has it")


@pytest.mark.slow
def test_a_job_that_is_killed_costs_a_retry_and_no_verdict(tmp_path: Path) -> None:
    """Its shard goes on in another job."""
    engine = "tests.engines.local_jobs:make"
    with Campaign(tmp_path, "--executor", engine, "--shards", 3) as campaign:
        shard = campaign.wait_for_play(lambda it: True)
        job = shard.parent()
        assert job is not None
        assert "submitit.core._submit" in job.cmdline()
        os.kill(job.pid, signal.SIGKILL)
        assert psutil.wait_procs([shard], timeout=20)[1] == []
        status, output, errors = campaign.end()
    assert (status, retried(errors)) == (0, 1), output + errors
    assert taken_over(errors) > 0
    assert campaign.ledger() == single(tmp_path / "single")


def test_calls_are_jobs_of_one_array(tmp_path: Path) -> None:
    """Results and errors come back; what was cancelled before it began is not carried out."""
    from pymllm.campaign.slurm_executor import SlurmExecutor

    executor = SlurmExecutor(tmp_path, cluster="local")
    kept, bad, cancelled = (executor.submit(int, text) for text in ("12", "no", "13"))
    assert cancelled.cancel()
    assert kept.result(60) == 12
    with pytest.raises(Exception, match="invalid literal for int"):
        bad.result(60)
    with pytest.raises(CancelledError):
        cancelled.result()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(int, "1")


def test_a_machine_without_slurm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a job is written."""
    from pymllm.campaign.slurm_executor import SlurmExecutor

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no srun here"):
        SlurmExecutor(tmp_path / "jobs")
    assert [*tmp_path.iterdir()] == []
