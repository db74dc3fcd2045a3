"""Prefix caches against the oracle: every configuration of each class of ours, inside and out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.own_chunk import Chunk
from pymllm.adapters.own_radix import Radix, WindowedRadix
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.prefix_machine import PrefixMachine
from pymllm.oracle.history import Config
from pymllm.oracle.prefix_situations import expected_situations

CLASSES = {"radix": Radix, "radix-window": WindowedRadix, "chunk": Chunk}
CONFIGURATIONS = [(name, config) for name, kind in CLASSES.items() for config in kind.CONFIGURATIONS]

each_configuration = pytest.mark.parametrize(
    ("adapter", "config"),
    CONFIGURATIONS,
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)


@each_configuration
def test_cache_agrees_with_the_oracle(adapter: str, config: Config) -> None:
    """All of R, S, X, A and E1: Hypothesis finds no program after which cache, pool and oracle differ."""
    run_state_machine_as_test(make_machine(PrefixMachine, adapter, config))


def test_short_runs_meet_every_situation() -> None:
    """All of R, S and X: runs from fixed seeds agree, and together they meet everything that is listed."""
    met: Counter[str] = Counter()
    expected: set[str] = set()
    for adapter, config in CONFIGURATIONS:
        examiner = drive(make_machine(PrefixMachine, adapter, config), seed=1, steps=400).examiner
        met += examiner.judge.evidence.reached
        expected |= expected_situations(examiner.history.header)
    assert expected - set(met) == set()


@pytest.mark.slow
@each_configuration
def test_long_run_finds_nothing_and_meets_every_situation(adapter: str, config: Config) -> None:
    """All of R, S and X: 20,000 acts agree, and each configuration meets all that it can."""
    met: Counter[str] = Counter()
    for seed in range(10):
        examiner = drive(make_machine(PrefixMachine, adapter, config), seed, steps=2_000).examiner
        met += examiner.judge.evidence.reached
    assert expected_situations(examiner.history.header) - set(met) == set()
