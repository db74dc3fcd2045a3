"""The report is plain data."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.request import Request


def test_report_survives_json(engine_of: Callable[..., Engine], ask: Callable[..., Request]) -> None:
    """Whatever a run reports can be written and read again, unchanged."""
    report = engine_of([ask(0, 5, 3), ask(1, 6, 2)], sliding_window_size=4).run()
    assert msgspec.json.decode(msgspec.json.encode(report), type=EngineReport) == report
