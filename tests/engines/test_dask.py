"""A campaign on Dask: processes of this machine that die in the middle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.campaigns import LOST, PLAYED, SHARDS, SHORT, Campaign, environment, taken_over

pytest.importorskip("distributed", reason="needs distributed; tox -e engines has it")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two workers, in whose place others come when they die."""
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
            yield cluster


@pytest.mark.slow
def test_workers_that_are_killed_cost_no_verdict(cluster: Any, tmp_path: Path, whole: bytes) -> None:
    """Dask gives each of three shards to another worker, which goes on with what was played."""
    lose_and_end(cluster, tmp_path, PLAYED, SHARDS, LOST, whole)


def test_a_worker_that_is_killed_costs_no_verdict(cluster: Any, tmp_path: Path, whole_short: bytes) -> None:
    """One of three shards: short enough for every change."""
    lose_and_end(cluster, tmp_path, SHORT, 3, 1, whole_short)


def lose_and_end(
    cluster: Any, folder: Path, played: tuple[str, ...], shards: int, lost: int, whole: bytes
) -> None:
    """Play a campaign, of which some shards lose their worker."""

    def is_worker(process: psutil.Process) -> bool:
        return process.pid in [nanny.pid for nanny in cluster.workers.values()]

    engine = ("--executor", f"dask:{cluster.scheduler_address},shards={shards}")
    with Campaign(folder, *played, *engine) as campaign:
        for _ in range(lost):
            campaign.lose(is_worker)
        errors = campaign.end_well(whole)
    assert len(campaign.lost) == lost
    assert taken_over(errors) > 0
