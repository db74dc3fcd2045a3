"""Coverage goals of cache events, shared by every kind of implementation that emits events."""

from __future__ import annotations

from typing import Any

from pymllm.history.operations import TakeEvents
from pymllm.oracle.laws.goal import CACHING, Met, make_goals
from pymllm.oracle.models.told_events import SeenEvents

_REMOVED = ("events tell of removed blocks", "X10")
_RESET = ("events tell of a reset with blocks cached", "X10 X7")

GOALS = (
    *make_goals("prefix", _REMOVED, _RESET, needs="events"),
    *make_goals("blocks", _REMOVED, _RESET, needs="events", when=(CACHING,)),
    *make_goals("requests", _REMOVED, _RESET, needs="events", when=(CACHING,)),
)


def met_by_events(before: Any, operation: TakeEvents, seen: SeenEvents) -> Met:
    """Return the coverage goals that some events reach, given the model of any kind that emits events."""
    kinds = {event.kind for event in seen.events}
    return {_REMOVED[0]: "removed" in kinds, _RESET[0]: "cleared" in kinds and before.events.told}
