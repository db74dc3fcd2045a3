"""The overhead of an engine is measured: a short slice of `benchmarks.engine_overhead` with its clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import engine_overhead


@pytest.mark.slow
@pytest.mark.parametrize("engine", engine_overhead.NEEDS)
def test_a_cluster_is_started_and_ended_and_counted_apart(engine: str, tmp_path: Path) -> None:
    """And nothing of it is left."""
    pytest.importorskip(engine_overhead.NEEDS[engine], reason="tox -e engines has it")
    path = tmp_path / "rounds.json"
    words = ["--engine", engine, "--runs", "1", "--shards", "2", "--rounds", "1", "--json", str(path)]
    assert engine_overhead.main(words) == 0
    (it,) = (engine_overhead.Round(**it) for it in json.loads(path.read_text(encoding="utf-8"))["rounds"])
    assert 0 < it.shard_cpu < it.cpu
    assert min(it.start_wall, it.start_cpu, it.end_wall) > 0
    assert it.whole_cpu > it.cpu
