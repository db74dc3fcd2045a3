"""A campaign on Ray: two nodes on this machine, of which some die in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.campaigns import (
    LOST,
    PLAYED,
    SHARDS,
    SHORT,
    Campaign,
    environment,
    is_below,
    taken_over,
    tried_again,
)

pytest.importorskip("ray", reason="needs ray; tox -e engines has it")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with a processor each; every process of them is ended with the test."""
    place = tempfile.mkdtemp(prefix="ray-")  # its sockets have short names
    for name, value in {**environment(tmp_path), "RAY_TMPDIR": place}.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(action="ignore"):
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            for _ in range(2):
                add_node(cluster)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()
            for process in [it for it in psutil.process_iter() if is_of_cluster(it, place)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            shutil.rmtree(place, ignore_errors=True)


def is_of_cluster(process: psutil.Process, place: str) -> bool:
    """Tell it from those of others by its environment, which a worker of Ray overwrites, and its folder."""
    if process.pid == os.getpid():
        return False
    try:
        return process.environ().get("RAY_TMPDIR") == place or any(place in it for it in process.cmdline())
    except psutil.Error:
        return False


def add_node(cluster: Any) -> None:
    """Start a node; one that is not up in half a minute, as where others take the processors, once more."""
    for attempt in range(3):
        try:
            cluster.add_node(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
            return
        except Exception as error:  # Ray has no class for it
            if attempt == 2 or "timed out during startup" not in str(error):
                raise


@pytest.mark.slow
def test_nodes_that_are_killed_cost_retries_and_no_verdict(
    cluster: Any, tmp_path: Path, whole: bytes
) -> None:
    """Two whole nodes and a worker, with a shard of nine each; a new node comes for each that is gone."""
    engine = ("--executor", f"ray:{cluster.address},shards={SHARDS}")
    with Campaign(tmp_path, *PLAYED, *engine) as campaign:
        for is_whole in (True, False, True):
            node = next(it for it in cluster.list_all_nodes() if not it.head)
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            by = partial(is_below, ancestor=raylet.pid)
            if is_whole:
                campaign.lose(by, lambda worker, node=raylet: kill_node(node))
                cluster.remove_node(node, allow_graceful=False)
                add_node(cluster)
            else:
                campaign.lose(by)
        errors = campaign.end_well(whole)
    assert len(campaign.lost) == LOST
    assert tried_again(errors) >= {*campaign.lost}
    assert "NodeDiedError" in errors
    assert taken_over(errors) >= sum(campaign.lost.values())


def kill_node(raylet: psutil.Process) -> None:
    """Kill a raylet and its children at once, as a pulled plug does; their shards have no parent left."""
    for process in (raylet, *raylet.children()):
        process.kill()


@pytest.mark.slow
def test_what_is_cancelled_ends_on_every_node(cluster: Any, tmp_path: Path, whole_short: bytes) -> None:
    """Ctrl-C: shards that are played end, and the campaign goes on later."""
    engine = ("--executor", f"ray:{cluster.address}")
    with Campaign(tmp_path, *SHORT, engine[0], f"{engine[1]},shards=3") as campaign:
        _, shard, _ = campaign.wait_for_play(lambda worker: True)
        campaign.process.send_signal(signal.SIGINT)
        status, output, errors = campaign.end()
        assert status == 130, output + errors
        assert psutil.wait_procs([shard], timeout=20)[1] == []
    again = f"pymllm resume {campaign.folder} {' '.join(engine)}"
    assert f"continue with: {again}" in errors
    with Campaign(tmp_path, words=again.split()[1:]) as resumed:
        resumed.end_well(whole_short)
