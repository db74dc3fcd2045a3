"""Durations by operation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_slots import TokenSlots
from pymllm.adapters.registry import make_adapter
from pymllm.errors import ProgramError
from pymllm.history.operations import Alloc, Free, Operation, Span
from pymllm.history.outcomes import Result
from pymllm.instrument.timing import Timing


def ticking(step_ns: int) -> Iterator[int]:
    now = 0
    while True:
        yield now
        now += step_ns


def test_each_operation_has_its_histogram() -> None:
    """Count and time go to the operation that took it."""
    clock = ticking(250)
    timing = Timing(make_adapter("token-slots"), clock=lambda: next(clock))
    timing.apply(1, Alloc(1))
    timing.apply(2, Alloc(1))
    timing.apply(3, Free((Span(1, 0, 1),)))
    assert {key: it.count for key, it in timing.histograms.items()} == {("alloc", True): 2, ("free", True): 1}
    assert timing.histograms["alloc", True].total_ns == 500
    assert timing.histograms["free", True].max_ns == 250


def test_refusals_are_kept_apart() -> None:
    """A quick no does not make the quantiles of the work look good."""
    timing = Timing(make_adapter("token-slots"))
    timing.apply(1, Alloc(1))
    timing.apply(2, Alloc(-1))
    assert set(timing.histograms) == {("alloc", True), ("alloc", False)}
    assert "alloc (refused)" in str(timing)
    assert "p99 us" in str(timing).splitlines()[0]


def test_what_was_not_carried_out_is_not_counted() -> None:
    """Neither what an adapter does not support nor a program without sense has a duration."""

    class Shy(TokenSlots):
        def do_alloc(self, step: int, operation: Operation) -> Result:
            raise UnsupportedError("no")

    timing = Timing(Shy("shy", Shy.CONFIGURATIONS[0]))
    timing.apply(1, Alloc(1))
    with pytest.raises(ProgramError):
        timing.apply(2, Free((Span(1, 0, 1),)))
    assert not timing.histograms


def test_the_device_is_waited_for_before_and_within() -> None:
    """Earlier work on the device is not in a duration, and that of the operation is."""
    told: list[str] = []
    clock = ticking(1)

    def read() -> int:
        told.append("clock")
        return next(clock)

    Timing(make_adapter("token-slots"), settle=lambda: told.append("settle"), clock=read).apply(1, Alloc(1))
    assert told == ["settle", "clock", "settle", "clock"]
