"""The table of laws of a verification, and what is said of a broken one: plain ASCII, facts only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from pymllm.cli.drawn_tables import table_console
from pymllm.cli.program import escaped
from pymllm.cli.verify_files import SavedFiles
from pymllm.cli.violation_text import again_lines, explain, problem_lines
from pymllm.conformance.finding import Finding
from pymllm.conformance.program_text import write_program
from pymllm.conformance.results import (
    AdapterResult,
    InvariantResult,
    LawResult,
    SituationResult,
    VerifyReport,
)
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict

__all__ = ["cut_short", "make_text", "sum_up"]

_WORDS = {
    Verdict.UNKNOWN: "UNKNOWN",
    Verdict.VIOLATED: "VIOLATED",
    Verdict.HOLDS: "holds",
    Verdict.NOT_CLAIMED: "not claimed",
}
"""In the order of the table: first what somebody has to look at."""

_UNFINISHED = "    a small one; the search for smaller ones was cut short (--profile deep goes on longer)"


def make_text(
    report: VerifyReport,
    files: SavedFiles,
    *,
    verbose: bool = False,
    width: int | None = None,
    styled: bool = False,
) -> str:
    """Lay a report out as text.

    Parameters
    ----------
    report : VerifyReport
        Of the verification.
    files : SavedFiles
        Where its programs are.
    verbose : bool
        Every situation, a table of laws for each adapter, and every machine.
    width : int, optional
        Columns of the terminal; ``None`` for as many as the tables need.
    styled : bool
        Mark with the terminal's bold what somebody has to look at.

    Returns
    -------
    str
        Lines, the last one ended.
    """
    console = table_console(width, styled=styled)
    with console.capture() as captured:
        console.print(Text(_heading(report)), soft_wrap=True)
        console.print(_law_table(report.laws, report.adapters))
        if report.invariants:
            console.print()
            console.print(_invariant_table(report.invariants))
        if report.situations:
            console.print()
            console.print(_situation_table(report.situations))
            for line in _never_reached(report.situations):
                console.print(Text(line, style="bold" if report.is_strict else ""), soft_wrap=True)
        if verbose:
            console.print()
            console.print(_count_table(report.situations))
            for adapter in report.adapters:
                console.print(Text(f"\n{adapter.name}", style="bold"))
                console.print(_law_table(adapter.laws, [adapter]))
            console.print()
            console.print(_machine_table(report))
        for adapter in report.adapters:
            for line in problem_lines(adapter, files):
                console.print(Text(line), soft_wrap=True)
        for adapter in report.adapters:
            for finding in adapter.findings:
                is_first = finding is adapter.findings[0]
                console.print(Text(_violation(adapter, finding, files, report, is_first)), soft_wrap=True)
        console.print(Text(f"\n{sum_up(report)}", style="bold" if styled else ""), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def sum_up(report: VerifyReport) -> str:
    """Say in one line how it ended."""
    counts = Counter(result.verdict for result in report.laws)
    spelled = ", ".join(
        f"{counts[verdict]} {word}"
        for verdict, word in (
            (Verdict.UNKNOWN, "unknown"),
            (Verdict.VIOLATED, "violated"),
            (Verdict.HOLDS, "hold"),
            (Verdict.NOT_CLAIMED, "not claimed"),
        )
    )
    machines = [machine for adapter in report.adapters for machine in adapter.machines]
    steps = sum(it.steps for it in machines)
    played = f"{spelled}; {report.programs:,} programs, {steps:,} steps, {report.seconds:.1f} s"
    return played + cut_short(report)


def cut_short(report: VerifyReport) -> str:
    """Say how much less was played than promised, if it was."""
    if not report.is_cut_short:
        return ""
    failed = "failed by --strict: " if report.is_strict else ""
    played = f"played {report.programs:,} of {report.promised:,} promised programs"
    return f"; {failed}CUT SHORT: time was up, {played}"


def _heading(report: VerifyReport) -> str:
    versions = "  ".join(f"{name} {version}" for name, version in report.versions.items())
    amount = "" if report.examples is None else f", {report.examples:,} per machine and configuration"
    processes = "1 process" if report.jobs == 1 else f"{report.jobs} processes"
    return (
        f"{versions}\nprofile {report.profile}: programs of up to {report.steps} acts{amount}, "
        f"seed {report.seed}, {processes}\n"
    )


def _law_table(laws: Iterable[LawResult], adapters: Iterable[AdapterResult]) -> Table:
    adapters = list(adapters)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("law", "demands that", "verdict"):
        table.add_column(column, header_style="")
    table.add_column("tests", justify="right", header_style="")
    table.add_column("walks", justify="right", header_style="")
    table.add_column("adapters", header_style="")
    order = list(_WORDS)
    for result in sorted(laws, key=lambda result: order.index(result.verdict)):
        table.add_row(
            result.law.id,
            result.law.sentence,
            _WORDS[result.verdict],
            f"{result.exercised:,}",
            f"{result.audited:,}" if result.audited else "-",
            _whose(result, adapters),
            style="bold" if result.verdict in (Verdict.UNKNOWN, Verdict.VIOLATED) else "",
        )
    return table


def _invariant_table(invariants: Iterable[InvariantResult]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("invariant", "verdict", "by laws"):
        table.add_column(column, header_style="")
    for invariant in invariants:
        table.add_row(invariant.name, _WORDS[invariant.verdict], ", ".join(invariant.laws))
    return table


def _situation_table(situations: Iterable[SituationResult]) -> Table:
    """Count for each machine the situations that it had to reach, and those that it did reach."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("situations of the", header_style="")
    for column in ("reached", "of"):
        table.add_column(column, justify="right", header_style="")
    rows = list(situations)
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        table.add_row(machine, f"{sum(not row.unmet for row in own):,}", f"{len(own):,}")
    return table


def _never_reached(situations: Iterable[SituationResult]) -> Iterator[str]:
    """Name what was never reached, machine by machine, and with which adapters."""
    unmet = [row for row in situations if row.unmet]
    for machine in dict.fromkeys(row.machine for row in unmet):
        names = "; ".join(f"{row.name} ({', '.join(row.unmet)})" for row in unmet if row.machine == machine)
        yield f"never reached by the {machine}: {escaped(names)}"


def _count_table(situations: Iterable[SituationResult]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("machine", "situation"):
        table.add_column(column, header_style="")
    table.add_column("times", justify="right", header_style="")
    table.add_column("never reached with", header_style="")
    for row in situations:
        table.add_row(row.machine, row.name, f"{row.times:,}", ", ".join(row.unmet) or "-")
    return table


def _whose(result: LawResult, adapters: list[AdapterResult]) -> str:
    """Name the adapters that gave a row its verdict, or count those of which it holds."""
    same = [
        adapter.name
        for adapter in adapters
        for own in adapter.laws
        if own.law == result.law and own.verdict is result.verdict
    ]
    if result.verdict in (Verdict.UNKNOWN, Verdict.VIOLATED):
        return ", ".join(same)
    return str(len(same))


def _machine_table(report: VerifyReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("adapter", "machine"):
        table.add_column(column, header_style="")
    for column in ("configurations", "programs", "promised", "steps", "time", "steps/s", "situations"):
        table.add_column(column, justify="right", header_style="")
    for adapter in report.adapters:
        for machine in adapter.machines:
            table.add_row(
                adapter.name,
                machine.name,
                f"{machine.configurations:,}",
                f"{machine.programs:,}",
                f"{machine.promised:,}",
                f"{machine.steps:,}",
                f"{machine.seconds:.1f} s",
                f"{machine.steps_per_second:,.0f}",
                f"{len(machine.reached):,}",
            )
    return table


def _violation(
    adapter: AdapterResult, finding: Finding, files: SavedFiles, report: VerifyReport, is_first: bool
) -> str:
    path = files.programs.get((adapter.name, finding.law))
    lines = [
        f"\n{finding.law}  VIOLATED by {adapter.name}: {find_law(finding.law).sentence}",
        *explain(finding.violation, finding.history),
        f"    file       {path or 'could not be written'}",
        *again_lines(finding, adapter.name, path, report.seed),
    ]
    if is_first:
        lines.append(f"    program{_UNFINISHED if finding.is_unfinished else ''}")
        lines += [f"        {line}".rstrip() for line in write_program(finding.history).splitlines()]
    return "\n".join(lines)
