"""Where the time of a run goes."""

from __future__ import annotations

import time

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.soak.player import EVERY, Clocks
from pymllm.history.operations import AllocRows, ReadRows


def test_one_operation_in_some_is_timed() -> None:
    """The first is, so that a short run has its share, too."""
    clocks = Clocks()
    samples = [clocks.is_sample() for _ in range(2 * EVERY + 1)]
    assert [at for at, it in enumerate(samples) if it] == [0, EVERY, 2 * EVERY]


def test_parts_are_told_apart_and_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that each look moves on by a second, and adapter and judge looked at once each."""
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "process_time", lambda: float(next(ticks)))
    clocks = Clocks()
    examiner = Examiner(make_adapter("rows"))
    adapter, judge = examiner.adapter, examiner.judge
    assert clocks.is_sample()
    with clocks.operation(examiner):
        examiner.do(AllocRows(1))
    assert (examiner.adapter, examiner.judge) == (adapter, judge)
    with clocks.part("walks"):
        pass
    with clocks.part("again"):
        pass
    _, cpu, shares = clocks.stop()
    assert (shares.adapter, shares.judge, shares.walks, shares.again) == (1.0, 1.0, 1.0, 1.0)
    assert cpu == shares.adapter + shares.judge + shares.walks + shares.again + shares.driver


def test_operations_of_the_end_are_not_counted_twice() -> None:
    """What an end takes beside its operations is at least nothing, and shares are at most the whole."""
    clocks = Clocks()
    examiner = Examiner(make_adapter("rows"))
    with clocks.part("again"):
        for _ in range(40):
            if clocks.is_sample():
                with clocks.operation(examiner):
                    examiner.do(ReadRows())
    _, cpu, shares = clocks.stop()
    assert shares.again >= 0
    parts = (shares.adapter, shares.judge, shares.walks, shares.again, shares.driver)
    assert sum(parts) == pytest.approx(cpu, abs=1e-4)
    assert shares.adapter > 0
