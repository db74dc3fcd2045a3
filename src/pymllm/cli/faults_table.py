"""The table of faults as text: who was caught, by whom, after how much."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from pymllm.cli.drawn_tables import table_console
from pymllm.conformance.detection import FaultResult
from pymllm.conformance.faults_run import FaultsReport

__all__ = ["cells_of", "make_text", "sum_up"]


def make_text(report: FaultsReport, width: int | None = None) -> str:
    """Lay a report out as text: first what was not caught as it should be.

    Parameters
    ----------
    report : FaultsReport
        Of a run.
    width : int, optional
        Columns of the terminal; ``None`` for as many as the table needs.
    """
    table = Table(box=None, pad_edge=False)
    columns = ["id", "fault", "caught", "law", "by the", "operations", "seconds"]
    columns += ["program"] if report.plan.shrinks else []
    for name in columns:
        table.add_column(name, justify="right" if name in ("operations", "seconds", "program") else "left")
    for result in sorted(report.results, key=lambda result: result.is_caught):
        table.add_row(*cells_of(result)[: len(columns)])
    console = table_console(width)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    for result in report.missed:
        lines += ["", *_explain(result)]
    return "\n".join([*lines, "", sum_up(report)]) + "\n"


def cells_of(result: FaultResult) -> list[str]:
    """Return a row of the table."""
    found = bool(result.detections)
    return [
        result.fault.id,
        result.fault.title,
        "yes" if result.is_caught else "BY ANOTHER LAW" if found and not result.problems else "NO",
        ", ".join(result.laws),
        ", ".join(result.searchers),
        f"{result.operations:,.0f}" if found else "",
        f"{result.seconds_to_detection:.2f}" if found else "",
        "" if result.program is None else str(result.program),
    ]


def _explain(result: FaultResult) -> list[str]:
    lines = [f"{result.fault.id} {result.fault.title}", *(f"  {problem}" for problem in result.problems)]
    lines += [
        f"  seed {it.seed}: {it.law} by the {it.searcher} on {it.adapter}: {it.message}; its laws are "
        f"{', '.join(result.fault.laws)}"
        for it in result.detections
        if it.law in result.unlisted
    ]
    return lines


def sum_up(report: FaultsReport) -> str:
    """Say in one line how it ended."""
    seen = Counter(result.searchers[0] for result in report.results if result.searchers)
    by = ", ".join(f"{count} by the {name}" for name, count in seen.most_common())
    caught = len(report.results) - len(report.missed)
    found = f" ({by})" if by else ""
    total = len(report.results)
    kept = f" without {report.kept} that were known" if report.kept else ""
    return f"{caught} of {total} faults caught by a law of their list{found}; {report.seconds:.1f} s{kept}"
