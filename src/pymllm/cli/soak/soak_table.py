"""The display of a soak: a table that is redrawn, or lines, while it runs, and plain ASCII at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pymllm.cli.output import complain, escaped
from pymllm.cli.soak.soak_failures import failure_lines
from pymllm.cli.tables import (
    BETWEEN_LINES,
    deviation_lines,
    document_parts,
    draw,
    make_table,
    narrow,
    paced,
    shows_progress,
    time_of,
)
from pymllm.report.findings import audit_rate, undone_steps
from pymllm.report.quantities import count_of
from pymllm.soak.drift import Drift
from pymllm.soak.merging import Missing
from pymllm.soak.results import SoakReport
from pymllm.soak.totals import AdapterTotals, Totals

# -- while it runs -----------------------------------------------------------------------------------------

_BETWEEN_TABLES, _BETWEEN_ESTIMATES = 0.5, 30.0  # seconds


@contextmanager
def soak_display(
    mode: str, clock: Callable[[], float] = monotonic
) -> Iterator[Callable[[Totals], None] | None]:
    """Show the progress of a campaign, without a thread, which would take processor time from the play."""
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
    """Describe the drift of each measure of memory in a few words; say a common verdict once."""
    verdicts = {drift.verdict.value for drift in drifts}
    if len(verdicts) == 1:
        return verdicts.pop()
    return ", ".join(f"{drift.measure} {drift.verdict.value}" for drift in drifts)


def describe_progress(totals: Totals, seconds: float, memory: str = "") -> str:
    """Say in one line how far a campaign is."""
    failures = sum(len(it.failures) for it in totals.adapters.values())
    rate = f"{totals.operations / seconds:,.0f}/s" if seconds else "-"
    return (
        f"{time_of(seconds)}  {totals.operations:,} operations  {rate}  "
        f"{_laws(totals)} laws tested  coverage goals {_goals(totals)}  "
        f"memory {amount_of_bytes(totals.memory.peak)}{memory and f' ({memory})'}  "
        f"{count_of(failures, 'failure')}"
    )


def progress_table(totals: Totals, seconds: float, memory: str = "") -> Table:
    """Lay out the totals so far; the arguments are those of `describe_progress`."""
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
    """Count laws that were tested, and coverage goals that were reached."""
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
    """Lay a report out as text; ``verbose`` and ``strict`` name the coverage goals that were not reached."""
    notes = [escaped(line) for line in _notes(report, strict, verbose)]  # a ledger may be anybody's
    end = f"\n{_sum_up(report, strict=strict)}"
    tables = document_parts(report.document(strict=strict)) if report.totals.adapters else []
    head = _heading(report), *notes[1:], *notes[:1]
    return draw(*head, *deviation_lines(report.deviations), *tables, end, fits_terminal=fits_terminal)


def _sum_up(report: SoakReport, *, strict: bool = False) -> str:
    """Say in one line how it ended."""
    totals = report.totals
    adapters = totals.adapters.values()
    broken = len({law for it in adapters for law in it.failures if law})
    problems = sum(1 for it in adapters for law in it.failures if not law) + len(report.refused)
    lost = len(report.given_up)
    words = [
        f"{totals.operations:,} operations in {totals.runs:,} runs",
        f"{time_of(totals.cpu)} of CPU time",
        f"{_laws(totals)} laws tested, {broken} broken{_but_for(report)}",
        f"{_goals(totals)} coverage goals reached, counted for each adapter",
    ]
    words += [f"{count_of(problems, 'error')} of adapters"] if problems else []
    words += [f"{count_of(lost, 'shard')} given up"] if lost else []
    words += [f"{count_of(report.differing, 'run')} that differed when repeated"] if report.differing else []
    lacking = sum(it.count for it in report.missing_runs)
    words += [f"{count_of(lacking, 'run')} missing"] if lacking else []
    if report.has_baseline:
        words.append(f"{count_of(sum(it.new for it in report.kinds), 'finding')} not in the baseline")
    words += [*_strictly(report)] if strict else []
    return f"{report.verdict(strict=strict).value}: " + "; ".join(words)


def _but_for(report: SoakReport) -> str:
    met = sum(bool(row.programs) for row in report.deviations)
    return f" but for {count_of(met, 'known deviation')}" if met else ""


def _strictly(report: SoakReport) -> Iterator[str]:
    """Name the reasons for which a strict campaign fails besides laws."""
    missing = sum(map(len, report.missing.values()))
    if missing:
        yield f"failed by --strict: {count_of(missing, 'coverage goal')} never reached"
    gone = sum(row.status == "gone" for row in report.deviations)
    if gone:
        yield f"failed by --strict: {count_of(gone, 'known deviation')} met by no program"
    if report.growing:
        yield f"failed by --strict: memory grows ({', '.join(drift.measure for drift in report.growing)})"


def amount_of_bytes(count: float) -> str:
    """Write a number of bytes in MiB."""
    return f"{count / (1 << 20):,.1f} MiB"


def _heading(report: SoakReport) -> str:
    lines = []
    for header in report.headers:
        versions = escaped("  ".join(f"{name} {version}" for name, version in header.versions.items()))
        amount = "" if header.operations is None else f", {header.operations:,} operations"
        amount += "" if header.shard is None else f", shard {header.shard[0]}/{header.shard[1]}"
        audit = audit_rate(header.audit)
        lines.append(
            f"{versions}\nsource {escaped(header.version)}, seed {header.seed}{amount}, audit {audit}"
        )
    if report.seconds:
        processes = count_of(report.jobs, "process", "processes")
        lines.append(f"{time_of(report.seconds)} in {processes}, ledger in {report.folder}")
    return "\n".join(lines) + "\n"


def _notes(report: SoakReport, strict: bool, verbose: bool) -> Iterator[str]:
    for smoke in report.refused:
        yield from ("", f"{smoke.name}  could not be examined", f"    because    {smoke.message}")
    yield from _given_up(report.given_up)
    for folder in report.without_ledger:
        yield from ("", f"{folder}: no ledger; what it was to have counts as missing")
    versions = {(it.seed, it.version) for it in report.headers}
    for lack in report.missing_runs:
        seed, version = lack.header.seed, lack.header.version
        is_one = len([it for it in versions if it[0] == seed]) == 1
        yield from ("", f"seed {seed}{'' if is_one else f' of {version}'}: {_missing(lack)}")
        if lack.shards:
            shown = _shown([str(it) for it in lack.shards])
            yield f"    no ledger of {count_of(len(lack.shards), 'shard')}: {shown}"
    for adapter in report.totals.adapters.values():
        yield from failure_lines(report, adapter)
        for it in adapter.limits:
            steps = undone_steps(it.not_done, it.done)
            run = f"run {it.seed} of {it.limit:,} operations of the {it.machine}"
            yield from ("", f"{adapter.name} {it.operation}: {steps} ({it.reason}); {run} has one")
    yield from _conflicts(report)
    yield from _kinds(report)
    for name, missing in report.missing.items():
        mark = "NEVER REACHED" if strict else "not reached"
        named = f": {'; '.join(missing)}" if strict or verbose else "; --verbose names them"
        yield from ("", f"{name}: {count_of(len(missing), 'coverage goal')} {mark}{named}")


def _given_up(shards: Mapping[str, str], most: int = 20) -> Iterator[str]:
    """List the shards that were given up."""
    if shards:
        yield from ("", f"given up: {count_of(len(shards), 'shard')}, whose runs are missing")
    for shard, reason in list(shards.items())[:most]:
        yield f"    {shard:10} {reason}"
    if len(shards) > most:
        yield f"    ... and {len(shards) - most:,} more; --json lists all"


def _conflicts(report: SoakReport, most: int = 20) -> Iterator[str]:
    """List the runs that gave other results."""
    if report.conflicts:
        yield from ("", f"the same run gave other results (X3): {count_of(report.differing, 'run')}")
    yield from (f"    {conflict}" for conflict in report.conflicts[:most])
    if len(report.conflicts) > most:
        yield f"    ... and {len(report.conflicts) - most:,} more; --json lists {len(report.conflicts):,}"


def _kinds(report: SoakReport, most: int = 50) -> Iterator[str]:
    """List the kinds of findings, new kinds first, after a merge that compared them with known kinds."""
    if not report.has_baseline:
        return
    yield ""
    for row in report.kinds[:most]:
        word = "NEW" if row.new else "known" if row.runs else "not seen"
        size = (
            "not made small" if row.operations is None else f"program of {count_of(row.operations, 'step')}"
        )
        since = f"since {row.first_seen}" if row.runs else f"last seen in {row.last_seen}"
        runs = f", {count_of(row.runs, 'run')}" if row.runs else ""
        yield f"{word:8}  {row.law} of {', '.join(row.adapters)}, {size}{runs}, {since}: {row.message}"
    if len(report.kinds) > most:
        yield f"... and {len(report.kinds) - most:,} more; --json lists all"


def _missing(missing: Missing) -> str:
    ranges = [f"{first}-{last}" if last > first else f"{first}" for first, last in missing.ranges]
    told = sum(last - first + 1 for first, last in missing.ranges)
    rest = "" if told == missing.count else ", ..."
    return f"{missing.count:,} of {missing.header.runs:,} runs are missing: {_shown(ranges)}{rest}"


def _shown(items: Sequence[str], most: int = 20) -> str:
    return ", ".join(items[:most]) + (", ..." if len(items) > most else "")
