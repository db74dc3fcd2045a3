"""How long a program may take for one answer: set by whoever limits the calls of all adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

SHARE = 0.9
"""Of the limit of a call: a program that hangs is found, and what it said is kept, before the alarm rings."""

_DEFAULT = 30.0


class _Limit:
    """There is one in a process, as there is one alarm."""

    seconds = _DEFAULT


@contextmanager
def answer_limit(seconds: float) -> Iterator[None]:
    """Let no call of an adapter take longer than this, of which an answer may take `SHARE`.

    Parameters
    ----------
    seconds : float
        0 for no limit.
    """
    before, _Limit.seconds = _Limit.seconds, seconds
    try:
        yield
    finally:
        _Limit.seconds = before


def seconds_per_answer() -> float | None:
    """Return the time for one answer; ``None`` without a limit."""
    return _Limit.seconds * SHARE or None
