"""Does an operation visit more nodes, or call torch more often, than it did?

The one gate here that can fail on any machine: counts are the same everywhere. `benchmarks/counters.json` has
those that were accepted; `python -m benchmarks.counters > benchmarks/counters.json` accepts others, and the
commit says why. The time of a count is of no interest; `extra_info` has the counts.
"""

from __future__ import annotations

import json

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.counters import COUNTED, LEDGER

ACCEPTED: dict[str, dict[str, int]] = json.loads(LEDGER.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COUNTED)
def test_no_operation_does_more_than_it_did(benchmark: BenchmarkFixture, name: str) -> None:
    """Fewer is fine, and worth accepting."""
    counted = benchmark.pedantic(COUNTED[name], rounds=1).as_entry()
    benchmark.extra_info.update(counted)
    assert {key: count for key, count in counted.items() if count > ACCEPTED[name][key]} == {}


def test_the_accepted_counts_are_of_these_operations() -> None:
    """None is forgotten, and none is left over."""
    assert list(ACCEPTED) == list(COUNTED)


def test_an_eviction_visits_the_same_nodes_among_many() -> None:
    """R5, R8: an eviction visits the same nodes beside few and beside many cached leaves."""
    assert ACCEPTED["evict 1 of 1,000 leaves"] == ACCEPTED["evict 1 of 4,000 leaves"]
