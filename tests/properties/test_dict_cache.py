"""The judge of prefix caches accepts a correct cache that is no tree: it judges behaviour, not structure."""

from __future__ import annotations

from collections import Counter

import pytest
from dict_cache import AnyOrderCache, DictCache

from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.prefix_machine import PrefixMachine
from pymllm.oracle.laws import laws_of

PAGE_BY_PAGE = {
    "a tombstone is revived under a hold",
    "a tombstone goes with its last child",
    "an insert is refused whole",
    "a locked page is tombstoned",
    "an eviction takes a parent after its last child",
    "two holds share an edge",
    "a wrong token is refused",
}


@pytest.mark.parametrize("cache", [DictCache, AnyOrderCache], ids=lambda cache: cache.__name__)
def test_a_flat_cache_is_accepted(cache: type[DictCache]) -> None:
    """All of R and S: long random programs accuse no correct cache, whatever it is made of."""
    met: Counter[str] = Counter()
    tested: Counter[str] = Counter()
    for config in cache.CONFIGURATIONS:
        machine = make_machine(PrefixMachine, f"dict_cache:{cache.__name__}", dict(config))
        examiner = drive(machine, seed=3, steps=400).examiner
        claimed = {law.id for law in laws_of("prefix") if law.is_claimed_by(examiner.adapter.capabilities)}
        assert set(examiner.judge.evidence.exercised) <= claimed
        met += examiner.judge.evidence.reached
        tested += examiner.judge.evidence.exercised
    assert set(met) >= PAGE_BY_PAGE
    assert {"R2", "R3", "R4", "R5", "R6", "R7", "S1", "S3", "S4", "S5", "S6", "S7", "E1"} <= set(tested)
