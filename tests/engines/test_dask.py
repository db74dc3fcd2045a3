"""A campaign on Dask: two processes on this machine, of which one dies in the middle."""

from __future__ import annotations

import warnings
from pathlib import Path

import psutil
import pytest

from tests.engines.campaigns import Campaign, environment, is_below, single, taken_over

pytest.importorskip("distributed", reason="needs distributed; tox -e engines has it")


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_a_retry_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask gives the shard to the other worker, which goes on with what was played."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(action="ignore"):
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            memory_limit=0,
        ) as cluster:
            worker = psutil.Process(next(iter(cluster.workers.values())).pid)
            address = cluster.scheduler_address
            with Campaign(tmp_path, "--executor", f"dask:{address}", "--shards", 4) as campaign:
                shard = campaign.wait_for_play(lambda it: is_below(it, worker.pid))
                worker.kill()
                assert psutil.wait_procs([shard], timeout=20)[1] == []
                status, output, errors = campaign.end()
    assert status == 0, output + errors
    assert taken_over(errors) > 0
    assert campaign.ledger() == single(tmp_path / "single")
