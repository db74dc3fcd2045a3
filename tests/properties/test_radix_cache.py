"""`RadixCache` against its model: sixteen configurations, everything compared after every operation."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis.stateful import run_state_machine_as_test
from radix_caller import RadixConfig
from radix_machine import CONFIGURATIONS, drive, radix_machine
from radix_situations import expected_situations

each_configuration = pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: config.name)


@each_configuration
def test_cache_agrees_with_its_model(config: RadixConfig) -> None:
    """All of R, S and X: Hypothesis finds no program after which cache, pool and model differ."""
    run_state_machine_as_test(radix_machine(config))


def test_short_runs_meet_every_situation() -> None:
    """All of R, S and X: runs from fixed seeds agree, and together they meet everything that is listed."""
    met: Counter[str] = Counter()
    for config in CONFIGURATIONS:
        met += drive(radix_machine(config), seed=1, steps=400).examiner.reached
    expected = frozenset().union(*map(expected_situations, CONFIGURATIONS))
    assert set(met) == expected


@pytest.mark.slow
@each_configuration
def test_long_run_finds_nothing_and_meets_every_situation(config: RadixConfig) -> None:
    """All of R, S and X: 20,000 steps agree, and each configuration meets all that it can."""
    met: Counter[str] = Counter()
    for seed in range(10):
        met += drive(radix_machine(config), seed, steps=2_000).examiner.reached
    assert set(met) == expected_situations(config)


def test_seeded_run_is_the_same_twice() -> None:
    """X3: two runs of one seed agree to the last node id."""
    runs = [drive(radix_machine(CONFIGURATIONS[-1]), seed=5, steps=300).examiner for _ in range(2)]
    assert runs[0].reached == runs[1].reached
    assert runs[0].cache.root_node.id == runs[1].cache.root_node.id
