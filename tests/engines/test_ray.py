"""A campaign on Ray: two nodes on this machine, of which one dies in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.campaigns import Campaign, environment, is_below, retried, single

pytest.importorskip("ray", reason="needs ray; tox -e engines has it")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with a processor each; every process of them is ended with the test."""
    place = tempfile.mkdtemp(prefix="ray-")  # its sockets have short names
    for name, value in {**environment(tmp_path), "RAY_TMPDIR": place}.items():
        monkeypatch.setenv(name, value)
    before = {it.pid for it in psutil.process_iter()}
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
            for process in psutil.process_iter(["cmdline"]):
                if process.pid not in before and any("ray" in it for it in process.info["cmdline"] or ()):
                    process.kill()
            shutil.rmtree(place, ignore_errors=True)


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
def test_a_node_that_is_killed_costs_a_retry_and_no_verdict(cluster: Any, tmp_path: Path) -> None:
    """The ledger has the bytes of a campaign in one process, and no shard outlives its node."""
    node = next(it for it in cluster.list_all_nodes() if not it.head)
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    with Campaign(tmp_path, "--executor", f"ray:{cluster.address}", "--shards", 4) as campaign:
        shard = campaign.wait_for_play(lambda it: is_below(it, raylet.pid))
        for process in (raylet, *raylet.children()):
            os.kill(process.pid, signal.SIGKILL)
        assert psutil.wait_procs([shard], timeout=20)[1] == []
        status, output, errors = campaign.end()
    assert (status, retried(errors)) == (0, 1), output + errors
    assert "NodeDiedError" in errors
    assert campaign.ledger() == single(tmp_path / "single")


@pytest.mark.slow
def test_what_is_cancelled_ends_on_every_node(cluster: Any, tmp_path: Path) -> None:
    """Ctrl-C: shards that are played end, and the campaign goes on later."""
    with Campaign(tmp_path, "--executor", f"ray:{cluster.address}", "--shards", 4) as campaign:
        shard = campaign.wait_for_play(lambda it: True)
        campaign.process.send_signal(signal.SIGINT)
        status, output, errors = campaign.end()
        assert status == 130, output + errors
        assert psutil.wait_procs([shard], timeout=20)[1] == []
    again = f"pymllm soak --resume {campaign.folder} --executor ray:{cluster.address}"
    assert f"continue with: {again}" in errors
    with Campaign(tmp_path, words=again.split()[1:]) as resumed:
        status, output, errors = resumed.end()
    assert status == 0, output + errors
    assert resumed.ledger() == single(tmp_path / "single")
