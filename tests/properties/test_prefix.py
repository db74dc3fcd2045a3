"""Prefix caches against the oracle: every configuration of each class of ours, inside and out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.own_caches import Chunk, Mamba, Radix, RankedRadix, WindowedRadix
from pymllm.history.files import Config
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix import PrefixMachine
from pymllm.oracle.coverage import expected_goals
from pymllm.oracle.laws import find_law

CLASSES = {
    "radix": Radix,
    "radix-window": WindowedRadix,
    "radix-policy": RankedRadix,
    "mamba": Mamba,
    "chunk": Chunk,
}
CONFIGURATIONS: list[tuple[str, Config]] = [
    *((name, config) for name, kind in CLASSES.items() for config in kind.CONFIGURATIONS),
    *(("mamba", {**Mamba.CONFIGURATIONS[0], "policy": policy}) for policy in ("lfu", "mru", "priority")),
]

each_configuration = pytest.mark.parametrize(
    ("adapter", "config"),
    CONFIGURATIONS,
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)


@each_configuration
def test_cache_agrees_with_the_oracle(adapter: str, config: Config) -> None:
    """All of R, S, X, A and E1: Hypothesis finds no program after which cache, pool and oracle differ.

    There are forty of them, so each gets a quarter of a profile's programs.
    """
    machine = make_machine(PrefixMachine, adapter, config)
    programs = settings.default.max_examples // 4
    run_state_machine_as_test(machine, settings=settings(machine.TestCase.settings, max_examples=programs))


def test_short_runs_meet_every_goal() -> None:
    """All of R, S and X: runs from fixed seeds agree, and together they meet everything that is listed.

    Equal seeds would play equal acts on every configuration, and meet less.
    """
    met: Counter[str] = Counter()
    expected: set[str] = set()
    for seed, (adapter, config) in enumerate(8 * [*CONFIGURATIONS], 7):
        if seed >= 7 + len(CONFIGURATIONS) and not expected - set(met):
            break
        examiner = drive(make_machine(PrefixMachine, adapter, config), seed, steps=400).examiner
        met += examiner.judge.evidence.reached
        expected |= expected_goals(examiner.history.header)
    assert expected - set(met) == set()


class Modest(WindowedRadix):
    """The same cache, with fewer claims."""

    dropped: frozenset[str] = frozenset()

    def claim(self) -> frozenset[str]:
        return super().claim() - self.dropped


@settings(max_examples=20, deadline=None)
@given(
    # Without exact_windows a window is followed, which orders and faults cannot be: no judge would be made.
    dropped=st.frozensets(st.sampled_from(sorted(CAPABILITIES.keys() - {"pool", "swa", "exact_windows"}))),
    config=st.sampled_from([*Radix.CONFIGURATIONS, *WindowedRadix.CONFIGURATIONS]),
    seed=st.integers(0, 2**16),
)
def test_fewer_claims_change_no_verdict(dropped: frozenset[str], config: Config, seed: int) -> None:
    """All of R, S and X: what is not claimed is not tested, and the rest is judged as rightly without it."""
    adapter_class = type("Fewer", (Modest,), {"dropped": dropped})
    machine = make_machine(PrefixMachine, "modest", config)
    machine.make_adapter = classmethod(lambda cls: adapter_class("modest", config))
    examiner = drive(machine, seed, steps=100).examiner
    exercised = {find_law(law) for law in examiner.judge.evidence.exercised}
    assert all(law.is_claimed_by(examiner.adapter.capabilities) for law in exercised)


@pytest.mark.slow
@each_configuration
def test_long_run_finds_nothing_and_meets_every_goal(adapter: str, config: Config) -> None:
    """All of R, S and X: 20,000 acts agree, and each configuration meets all that it can."""
    met: Counter[str] = Counter()
    for seed in range(10):
        examiner = drive(make_machine(PrefixMachine, adapter, config), seed, steps=2_000).examiner
        met += examiner.judge.evidence.reached
    assert expected_goals(examiner.history.header) - set(met) == set()
