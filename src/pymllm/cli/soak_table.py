"""What a soak came to, as text: plain ASCII, facts only, every number with its unit."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from shlex import quote

from rich.table import Table
from rich.text import Text

from pymllm.cli.drawn_tables import table_console
from pymllm.cli.program import escaped
from pymllm.cli.violation_text import explain, mistake_lines
from pymllm.conformance.program_text import write_program
from pymllm.conformance.soak.campaign import SoakReport
from pymllm.conformance.soak.drift import Drift
from pymllm.conformance.soak.records import CampaignHeader, RunRecord
from pymllm.conformance.soak.schedule import seed_of
from pymllm.conformance.soak.totals import AdapterTotals
from pymllm.oracle.laws import find_law

__all__ = ["amount_of_bytes", "make_page", "make_text", "sum_up", "time_of"]

_PROGRAM_LINES_MAX = 40
_UNFINISHED = "    a small one; time was up (pymllm shrink goes on from it)"


def make_text(report: SoakReport, *, strict: bool = False, width: int | None = None) -> str:
    """Lay a report out as text.

    Parameters
    ----------
    report : SoakReport
        Of the campaign.
    strict : bool
        Whether a situation at zero fails.
    width : int, optional
        Columns of the terminal; ``None`` for as many as the tables need.

    Returns
    -------
    str
        Lines, the last one ended.
    """
    console = table_console(width)
    with console.capture() as captured:
        console.print(Text(_heading(report)), soft_wrap=True)
        console.print(_adapter_table(report))
        console.print()
        console.print(_drift_table(report.drifts))
        for line in _notes(report, strict):
            console.print(Text(escaped(line)), soft_wrap=True)  # a ledger may be anybody's
        console.print(Text(f"\n{sum_up(report, strict=strict)}"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def make_page(report: SoakReport, *, strict: bool = False) -> str:
    """Return the same as a page of Markdown."""
    return f"# Soak\n\n```text\n{make_text(report, strict=strict)}```\n"


def sum_up(report: SoakReport, *, strict: bool = False) -> str:
    """Say in one line how it ended."""
    totals = report.totals
    adapters = totals.adapters.values()
    laws = set[str]().union(*(it.exercised for it in adapters))
    expected, missing = (sum(len(part) for part in parts) for parts in _situations(report))
    broken = sum(1 for it in adapters for law in it.failures if law)
    problems = sum(1 for it in adapters for law in it.failures if not law) + len(report.refused)
    words = [
        f"{totals.operations:,} operations in {totals.runs:,} runs",
        f"{time_of(totals.cpu)} of CPU time",
        f"{len(laws)} laws tested, {broken} broken",
        f"{expected - missing} of {expected} situations reached",
    ]
    words += [f"{problems} problems"] if problems else []
    words += [f"{len(report.conflicts)} conflicts"] if report.conflicts else []
    words += [*_strictly(report)] if strict else []
    return f"{report.verdict(strict=strict).value}: " + "; ".join(words)


def _strictly(report: SoakReport) -> Iterator[str]:
    """Say what a strict campaign fails for besides laws."""
    missing = sum(map(len, report.missing.values()))
    if missing:
        yield f"failed by --strict: {missing} situations left at zero"
    if report.growing:
        yield f"failed by --strict: memory grows ({', '.join(drift.measure for drift in report.growing)})"


def time_of(seconds: float) -> str:
    """Write a time as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def amount_of_bytes(count: float) -> str:
    """Write a number of bytes in MiB."""
    return f"{count / (1 << 20):,.1f} MiB"


def _heading(report: SoakReport) -> str:
    lines = []
    for header in report.headers:
        versions = escaped("  ".join(f"{name} {version}" for name, version in header.versions.items()))
        amount = "" if header.operations is None else f", {header.operations:,} operations"
        audit = _rate(header.audit)
        lines.append(
            f"{versions}\nsource {escaped(header.version)}, seed {header.seed}{amount}, audit {audit}"
        )
    if report.seconds:
        processes = "1 process" if report.jobs == 1 else f"{report.jobs} processes"
        lines.append(f"{time_of(report.seconds)} in {processes}, ledger in {report.folder}")
    return "\n".join(lines) + "\n"


def _rate(audit: int) -> str:
    return {0: "off", 1: "every"}.get(audit, f"1/{audit}")


def _adapter_table(report: SoakReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("adapter", header_style="")
    columns = ("places", "runs", "operations", "ops/CPU s", "adapter", "judge", "walks", "again", "driver")
    for column in (*columns, "laws", "situations", "failures"):
        table.add_column(column, justify="right", header_style="")
    for it in report.totals.adapters.values():
        table.add_row(
            escaped(it.name),
            f"{len(it.played)}/{it.places}",
            f"{it.runs:,}",
            f"{it.operations:,}",
            f"{it.operations_per_second:,.0f}",
            *(f"{share:.0%}" for share in it.shares.values()),
            f"{len(it.laws) - len(it.untested)}/{len(it.laws)}",
            f"{len(it.expected) - len(it.missing)}/{len(it.expected)}",
            f"{sum(failure.runs for failure in it.failures.values()):,}",
        )
    return table


def _drift_table(drifts: tuple[Drift, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("memory", "per million operations"):
        table.add_column(column, header_style="")
    for column in ("95 % from", "to", "bound", "samples"):
        table.add_column(column, justify="right", header_style="")
    table.add_column("verdict", header_style="")
    for drift in drifts:
        slope, low, high = (_growth(it, drift.unit) for it in (drift.slope, drift.low, drift.high))
        bound = _growth(drift.bound, drift.unit)
        table.add_row(drift.measure, slope, low, high, bound, f"{drift.samples:,}", drift.verdict.value)
    return table


def _growth(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return amount_of_bytes(value) if unit == "bytes" else f"{value:,.0f} {unit}"


def _notes(report: SoakReport, strict: bool) -> Iterator[str]:
    for smoke in report.refused:
        yield from ("", f"{smoke.name}  could not be examined", f"    because    {smoke.message}")
    for conflict in report.conflicts:
        yield from ("", "X3  VIOLATED: the same run did something else", f"    {conflict}")
    for adapter in report.totals.adapters.values():
        yield from _failures(report, adapter)
    for name, missing in report.missing.items():
        mark = "NEVER REACHED" if strict else "not reached"
        yield from ("", f"{name}: {len(missing)} situations {mark}: {'; '.join(missing)}")


def _failures(report: SoakReport, adapter: AdapterTotals) -> Iterator[str]:
    for law, failure in adapter.failures.items():
        record = failure.first
        runs = "1 run" if failure.runs == 1 else f"{failure.runs:,} runs"
        if law:
            yield from ("", f"{law}  VIOLATED by {adapter.name} in {runs}: {_sentence(law)}")
        else:
            yield from ("", f"{adapter.name}  could not be asked to the end, in {runs}")
        yield from _explain(report, adapter, law, record)


def _sentence(law: str) -> str:
    """Say what a law demands; a ledger may be of another version, or anybody's."""
    try:
        return find_law(law).sentence
    except ValueError:
        return "a law that this version does not know"


def _explain(report: SoakReport, adapter: AdapterTotals, law: str, record: RunRecord) -> Iterator[str]:
    assert record.failure is not None  # it is counted as one
    finding = (report.findings or {}).get((adapter.name, law))
    if finding is not None:
        yield from explain(finding.violation, finding.history)
        yield from mistake_lines(finding.mistakes)
    else:
        yield f"    looked at  {record.failure.message}"
    config = json.dumps(record.config)
    yield f"    found      {record.version}, {config}, seed {record.seed}, step {record.failure.step}"
    command = f"pymllm soak --adapter {quote(adapter.name)} --config {quote(config)} --run {record.seed}"
    rate = _rate(_header_of(report, record).audit)
    rest = f"--operations {record.limit} --machine {quote(record.machine)} --audit {rate}"
    yield f"    the run    {command} {rest}"
    for word, file in (("again", record.short), ("as played", record.file)):
        if file is not None:
            path = _place_of(report, file)
            # What an engine does wrong, its operations do not show, run again: the acts in the file do.
            command = "rerun" if finding is None or finding.is_rerun else "shrink"
            yield f"    {word:11}pymllm {command} {quote(path)} --adapter {quote(adapter.name)}"
    if finding is not None:
        yield f"    program{_UNFINISHED if finding.is_unfinished else ''}"
        yield from (f"        {line}".rstrip() for line in _cut(write_program(finding.history).splitlines()))


def _cut(lines: list[str]) -> Iterator[str]:
    """Leave out what is too long to be read."""
    yield from lines[:_PROGRAM_LINES_MAX]
    rest = len(lines) - _PROGRAM_LINES_MAX
    if rest > 0:
        yield f"... and {rest:,} line{'s' * (rest > 1)} more"


def _header_of(report: SoakReport, record: RunRecord) -> CampaignHeader:
    """Return the header of the campaign that a run is of: its seed follows from that."""
    return next((it for it in report.headers if seed_of(it, record.number) == record.seed), report.headers[0])


def _place_of(report: SoakReport, file: str) -> str:
    """Return the path of a program: those of merged campaigns stay where they are."""
    folders = [folder for folder in (report.folder, *report.parts) if folder is not None]
    found = (folder / file for folder in folders if (folder / file).exists())
    return str(next(found, folders[0] / file if folders else file))


def _situations(report: SoakReport) -> tuple[list[Collection[str]], list[Collection[str]]]:
    """Return the situations that each adapter must reach, and those that it has not."""
    adapters = report.totals.adapters.values()
    return [it.expected for it in adapters], [it.missing for it in adapters]
