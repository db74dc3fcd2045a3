"""The display of a campaign: a redrawn table or lines while it runs, and plain ASCII at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pymllm.cli.output import complain
from pymllm.cli.soak.soak_failures import failure_cards_of
from pymllm.cli.tables import BETWEEN_LINES, draw_document, make_table, narrow, paced, shows_progress
from pymllm.report.quantities import count_of, show_duration
from pymllm.soak.drift import Drift
from pymllm.soak.results import SoakReport
from pymllm.soak.totals import AdapterTotals, Totals

# -- while it runs -----------------------------------------------------------------------------------------

_BETWEEN_TABLES, _BETWEEN_ESTIMATES = 0.5, 30.0  # seconds


@contextmanager
def soak_display(
    mode: str, clock: Callable[[], float] = monotonic
) -> Iterator[Callable[[Totals], None] | None]:
    """Show the progress of a campaign without a thread, which would compete for processor time."""
    if not shows_progress(mode):
        yield None
        return
    begun = clock()
    memory, due = "", 0.0

    def known(totals: Totals) -> tuple[Totals, float, str]:
        nonlocal memory, due
        seconds = clock() - begun
        if seconds >= due:  # an estimate takes tenths of a second
            memory, due = describe_drifts(totals.memory.estimate()), seconds + _BETWEEN_ESTIMATES
        return totals, seconds, memory

    if not sys.stderr.isatty():
        yield paced(lambda totals: complain(describe_progress(*known(totals))), BETWEEN_LINES, clock)
        return
    console = Console(file=sys.stderr)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw_now(totals: Totals) -> None:
            table = progress_table(*known(totals))
            narrow(table, console.width)
            live.update(table, refresh=True)

        yield paced(draw_now, _BETWEEN_TABLES, clock)


def describe_drifts(drifts: Sequence[Drift]) -> str:
    """Return a few words on each memory measure's growth, with a common verdict only once."""
    verdicts = {drift.verdict.value for drift in drifts}
    if len(verdicts) == 1:
        return verdicts.pop()
    return ", ".join(f"{drift.measure} {drift.verdict.value}" for drift in drifts)


def describe_progress(totals: Totals, seconds: float, memory: str = "") -> str:
    """Return a line on the progress of a campaign."""
    failures = sum(len(it.failures) for it in totals.adapters.values())
    rate = f"{totals.operations / seconds:,.0f}/s" if seconds else "-"
    return (
        f"{show_duration(seconds)}  {totals.operations:,} operations  {rate}  "
        f"{_laws(totals)} laws tested  coverage goals {_goals(totals)}  "
        f"memory {totals.memory.peak / (1 << 20):,.1f} MiB{memory and f' ({memory})'}  "
        f"{count_of(failures, 'failure')}"
    )


def progress_table(totals: Totals, seconds: float, memory: str = "") -> Table:
    """Return a table of the totals so far; arguments are those of `describe_progress`."""
    figures = ("runs", "operations", "ops/CPU s", "laws", "goals", "failures")
    rows = (
        (it.name, *_played(it), f"{it.operations_per_second:,.0f}", *_reached(it), f"{len(it.failures)}")
        for it in totals.adapters.values()
    )
    table = make_table("adapter", *figures, right=figures, gap=2, rows=rows)
    table.caption = describe_progress(totals, seconds, memory)
    return table


def _played(it: AdapterTotals) -> tuple[str, str]:
    return f"{it.runs:,}", f"{it.operations:,}"


def _reached(it: AdapterTotals) -> tuple[str, str]:
    """Return words for the numbers of laws tested and coverage goals reached."""
    laws, expected = len(it.laws), len(it.expected)
    return f"{laws - len(it.untested)} of {laws}", f"{expected - len(it.missing)} of {expected}"


def _laws(totals: Totals) -> int:
    return len(set[str]().union(*(it.exercised for it in totals.adapters.values())))


def _goals(totals: Totals) -> str:
    expected = sum(len(it.expected) for it in totals.adapters.values())
    missing = sum(len(it.missing) for it in totals.adapters.values())
    return f"{expected - missing} of {expected}"


# -- at its end --------------------------------------------------------------------------------------------


def make_text(
    report: SoakReport, *, strict: bool = False, verbose: bool = False, fits_terminal: bool = False
) -> str:
    """Return a report as text; ``verbose`` and ``strict`` list unreached coverage goals."""
    document, cards = report.document(strict=strict), failure_cards_of(report)
    notes = _lost_shards(report)
    return draw_document(document, *notes, cards=cards, verbose=verbose, fits_terminal=fits_terminal)


def _lost_shards(report: SoakReport, most: int = 20) -> Iterator[str]:
    """Return words for the shards that no ledger contains."""
    for it in report.missing_runs:
        if it.shards:
            named = ", ".join(map(str, it.shards[:most])) + (", ..." if len(it.shards) > most else "")
            yield f"seed {it.header.seed}: no ledger of {count_of(len(it.shards), 'shard')}: {named}"
