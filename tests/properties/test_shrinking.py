"""Small programs out of what machines find: the law is kept, nothing grows, the same comes of the same."""

from __future__ import annotations

import functools

import pytest

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.machines.acting import FoundViolation, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.prefix import PrefixMachine
from pymllm.machines.rows import RowMachine
from pymllm.search.program import rerun_history
from pymllm.search.reduction import Program, weigh
from pymllm.search.shrinker import shrink
from tests.unit.finding import found_by

MACHINES = {
    "faulty-dirty-rows": RowMachine,
    "faulty-greedy-eviction": PrefixMachine,
    "faulty-low-boundaries": PrefixMachine,
    "faulty-copied-states": PrefixMachine,
    "faulty-releases-once": BlockMachine,
}
PLAYS = 250


@functools.cache
def found(adapter: str) -> FoundViolation:
    config = dict(load_adapter(find_adapter(adapter)).CONFIGURATIONS[-1])
    return found_by(make_machine(MACHINES[adapter], adapter, config, seed=0), 60)


@functools.cache
def small(adapter: str) -> FoundViolation:
    return shrink(found(adapter), plays=PLAYS)


def program_of(found: FoundViolation) -> Program:
    steps = found.history.steps
    return Program(found.history.header.config, tuple(step.operation for step in steps))


@pytest.mark.parametrize("adapter", MACHINES)
def test_a_small_program_breaks_the_same_law_when_it_is_run_again(adapter: str) -> None:
    """A rerun of the small program breaks the same law, and repeats every outcome."""
    again = rerun_history(small(adapter).history, adapter)
    assert again.violation is not None
    assert again.violation.law == found(adapter).violation.law == small(adapter).violation.law
    assert again.differences == ()
    assert len(again.history) == len(small(adapter).history)


@pytest.mark.parametrize("adapter", MACHINES)
def test_nothing_grows(adapter: str) -> None:
    """Operations first, then what they refer to, tokens, pools."""
    assert weigh(program_of(small(adapter))) <= weigh(program_of(found(adapter)))
    assert len(small(adapter).history) <= 12


@pytest.mark.parametrize("adapter", MACHINES)
def test_the_same_comes_of_the_same(adapter: str) -> None:
    """A number of programs, and not a time, bounds the search."""
    again = shrink(found(adapter), plays=PLAYS)
    assert program_of(again) == program_of(small(adapter))
    assert again.is_unfinished == small(adapter).is_unfinished


@pytest.mark.parametrize("adapter", MACHINES)
def test_what_is_small_stays(adapter: str) -> None:
    """Once nothing can go, nothing goes."""
    smallest = shrink(small(adapter), plays=4 * PLAYS)
    if not smallest.is_unfinished:
        again = shrink(smallest, plays=4 * PLAYS)
        assert program_of(again) == program_of(smallest)
        assert not again.is_unfinished
    assert weigh(program_of(smallest)) <= weigh(program_of(small(adapter)))
