"""Runs that are interrupted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.engine_report import CutShort
from pymllm.workloads.serial import SerialConfig, replay_serially
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import make_requests

REQUESTS = make_requests("chat", 20, seed=0, capacity=40_000)


def interrupt_at(done: int) -> None:
    if done >= 5:
        raise KeyboardInterrupt("enough")


def test_an_engine_that_is_interrupted_reports_what_it_did() -> None:
    """It is an interrupt all the same, and the first one is its cause."""
    engine = Engine(EngineConfig("radix", capacity=40_000), TraceSource(REQUESTS), progress=interrupt_at)
    with pytest.raises(KeyboardInterrupt) as caught:
        engine.run()
    assert isinstance(caught.value, CutShort)
    assert str(caught.value.interruption) == "enough"
    assert 5 <= caught.value.report.finished < 20
    assert caught.value.report.requests >= caught.value.report.finished


def test_a_serial_replay_that_is_interrupted_reports_what_it_did() -> None:
    """Five requests, each whole."""
    with pytest.raises(CutShort) as caught:
        replay_serially(REQUESTS, SerialConfig("radix", 1, 100_000), progress=interrupt_at)
    assert caught.value.report.requests + caught.value.report.skipped == 5
    assert caught.value.report.wall_seconds > 0

    def broken() -> Iterator[object]:
        raise ValueError("no trace")
        yield

    with pytest.raises(ValueError, match="no trace"):
        replay_serially(broken(), SerialConfig("radix", 1, 100_000))  # type: ignore[arg-type]
