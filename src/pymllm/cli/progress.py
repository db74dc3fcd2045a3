"""A progress bar on standard error, drawn only between two of what is counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar"]

_SECONDS_BETWEEN_DRAWS = 0.1


@contextmanager
def progress_bar(
    mode: str, label: str, total: int, unit: str = "requests"
) -> Iterator[Callable[[int], None] | None]:
    """Show how far a run is, and remove the bar at its end.

    Parameters
    ----------
    mode : str
        ``"on"``, ``"off"``, or ``"auto"``: on where standard error is a terminal. Off where it is closed.
    label : str
        What runs.
    total : int
        How many in all.
    unit : str
        Of what.

    Yields
    ------
    callable or None
        Takes the number done; ``None`` where no bar is shown.

    Notes
    -----
    No thread redraws the bar: it would take the processor from what is being timed. It is drawn once at
    the start and then by the calls themselves, at most ten times a second.
    """
    # There is no standard error at all where it was closed, and rich would draw on the other one.
    if mode == "off" or sys.stderr is None or (mode == "auto" and not sys.stderr.isatty()):
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr, force_terminal=True if mode == "on" else None)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(label, total=total)
        progress.refresh()
        drawn = monotonic()

        def show(done: int) -> None:
            nonlocal drawn
            now = monotonic()
            if now - drawn >= _SECONDS_BETWEEN_DRAWS or done == total:
                progress.update(task, completed=done)
                progress.refresh()
                drawn = now

        yield show
