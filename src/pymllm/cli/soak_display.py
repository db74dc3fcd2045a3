"""What a soak shows while it runs: a table that is redrawn on a terminal, and lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pymllm.cli.soak_table import amount_of_bytes, time_of
from pymllm.conformance.soak.drift import Drift
from pymllm.conformance.soak.totals import Totals

__all__ = ["describe_drifts", "describe_progress", "progress_table", "soak_display"]

_SECONDS_BETWEEN_DRAWS = 0.5
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_ESTIMATES = 30.0


@contextmanager
def soak_display(mode: str) -> Iterator[Callable[[Totals], None] | None]:
    """Show how far a campaign is.

    Parameters
    ----------
    mode : str
        ``"auto"``: a table where standard error is a terminal. ``"on"``: elsewhere a line every ten seconds,
        too. ``"off"``. Off where it is closed.

    Yields
    ------
    callable or None
        Takes the totals so far; ``None`` where nothing is shown.

    Notes
    -----
    No thread draws: it would take the processor from what is being played.
    """
    # There is no standard error at all where it was closed, and rich would draw on the other one.
    if mode == "off" or sys.stderr is None or (mode == "auto" and not sys.stderr.isatty()):
        yield None
        return
    if not sys.stderr.isatty():
        yield _now_and_then(
            _SECONDS_BETWEEN_LINES, lambda *known: click.echo(describe_progress(*known), err=True)
        )
        return
    with Live(console=Console(file=sys.stderr), auto_refresh=False, transient=True) as live:
        yield _now_and_then(
            _SECONDS_BETWEEN_DRAWS, lambda *known: live.update(progress_table(*known), refresh=True)
        )


def _now_and_then(pause: float, tell: Callable[[Totals, float, str], None]) -> Callable[[Totals], None]:
    """Return a function that passes totals on, with the seconds so far and what is known of memory."""
    start = told = time.monotonic()
    memory = _MemoryWords()

    def look(totals: Totals) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= pause:
            tell(totals, now - start, memory.at(now - start, totals))
            told = now

    return look


class _MemoryWords:
    """What is known of how memory grows, looked at now and then: an estimate takes tenths of a second."""

    def __init__(self) -> None:
        self._words, self._due = "", 0.0

    def at(self, seconds: float, totals: Totals) -> str:
        """Return it, after so many seconds."""
        if seconds >= self._due:
            self._due = seconds + _SECONDS_BETWEEN_ESTIMATES
            self._words = describe_drifts(totals.memory.estimate())
        return self._words


def describe_drifts(drifts: Sequence[Drift]) -> str:
    """Say in a few words what each measure of memory does; one verdict for all of them once."""
    verdicts = {drift.verdict.value for drift in drifts}
    if len(verdicts) == 1:
        return verdicts.pop()
    return ", ".join(f"{drift.measure} {drift.verdict.value}" for drift in drifts)


def describe_progress(totals: Totals, seconds: float, memory: str = "") -> str:
    """Say in one line how far a campaign is.

    Parameters
    ----------
    totals : Totals
        So far.
    seconds : float
        Since the start.
    memory : str
        What is known of how memory grows, as `describe_drifts` says it.
    """
    laws = set[str]().union(*(it.exercised for it in totals.adapters.values()))
    failures = sum(len(it.failures) for it in totals.adapters.values())
    return (
        f"{time_of(seconds)}  {totals.operations:,} operations  {_rate(totals.operations, seconds)}  "
        f"{len(laws)} laws tested  situations {_situations(totals)}  "
        f"memory {amount_of_bytes(totals.memory.peak)}{memory and f' ({memory})'}  {failures} failures"
    )


def progress_table(totals: Totals, seconds: float, memory: str = "") -> Table:
    """Lay out what there is so far; arguments as of `describe_progress`."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 3, 0, 0), caption=describe_progress(totals, seconds, memory)
    )
    table.add_column("adapter", header_style="")
    for column in ("runs", "operations", "per CPU second", "laws", "situations", "failures"):
        table.add_column(column, justify="right", header_style="")
    for it in totals.adapters.values():
        table.add_row(
            it.name,
            f"{it.runs:,}",
            f"{it.operations:,}",
            f"{it.operations_per_second:,.0f}",
            f"{len(it.laws) - len(it.untested)} of {len(it.laws)}",
            f"{len(it.expected) - len(it.missing)} of {len(it.expected)}",
            f"{len(it.failures)}",
        )
    return table


def _situations(totals: Totals) -> str:
    expected = sum(len(it.expected) for it in totals.adapters.values())
    missing = sum(len(it.missing) for it in totals.adapters.values())
    return f"{expected - missing} of {expected}"


def _rate(operations: int, seconds: float) -> str:
    return f"{operations / seconds:,.0f}/s" if seconds else "-"
