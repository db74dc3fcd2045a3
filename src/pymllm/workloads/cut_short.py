"""An interrupt in the middle of a run, with what the run came to by then."""

from __future__ import annotations

from typing import Any

__all__ = ["CutShort"]


class CutShort(KeyboardInterrupt):
    """Leaves a run that somebody interrupted.

    Parameters
    ----------
    report : EngineReport or SerialReport
        Counts and times up to the interrupt. What was under way then may be half counted, and nothing was
        checked at the end.
    interruption : KeyboardInterrupt
        What came.
    """

    def __init__(self, report: Any, interruption: KeyboardInterrupt) -> None:
        super().__init__("the run was cut short")
        self.report = report
        self.interruption = interruption
