"""A campaign as jobs of submitit, whose local executor stands in for a Slurm cluster."""

from __future__ import annotations

from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest

from pymllm.errors import UsageError
from tests.engines.campaigns import LOST, PLAYED, SHARDS, Campaign, taken_over, tried_again

pytest.importorskip("submitit", reason="needs submitit; tox -e engines has it")


@pytest.mark.slow
def test_jobs_that_are_killed_cost_retries_and_no_verdict(tmp_path: Path, whole: bytes) -> None:
    """Three of nine; each goes on in another job."""
    engine = ("--executor", f"tests.engines.local_engines:jobs,shards={SHARDS}")
    with Campaign(tmp_path, *PLAYED, *engine) as campaign:
        for _ in range(LOST):
            campaign.lose(is_a_job)
        errors = campaign.end_well(whole)
    assert len(campaign.lost) == LOST
    assert tried_again(errors) >= {*campaign.lost}
    assert taken_over(errors) >= sum(campaign.lost.values())


def is_a_job(worker: psutil.Process) -> bool:
    """Tell whether it is the process of a job, as submitit names it."""
    return "submitit.core._submit" in worker.cmdline()


def test_calls_are_jobs_of_one_array(tmp_path: Path) -> None:
    """Results and errors come back; what was cancelled before it began is not carried out."""
    from pymllm.work.spread.slurm_executor import SlurmExecutor

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


def test_no_job_is_read_that_lay_in_the_folder_before(tmp_path: Path) -> None:
    """Results are pickles, and reading one may run anything: each executor begins with a new folder."""
    from pymllm.work.spread.slurm_executor import SlurmExecutor

    folders = set[Path]()
    for _ in range(2):
        executor = SlurmExecutor(tmp_path, cluster="local")
        assert executor.submit(int, "12").result(60) == 12
        executor.shutdown()
        (new,) = {file.parent for file in tmp_path.rglob("*_submitted.pkl")} - folders
        folders.add(new)
    assert tmp_path not in folders


def test_a_machine_without_slurm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a job is written."""
    from pymllm.work.spread.slurm_executor import SlurmExecutor

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no srun here"):
        SlurmExecutor(tmp_path / "jobs")
    assert [*tmp_path.iterdir()] == []
