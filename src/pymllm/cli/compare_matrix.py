"""The matrix of a comparison: laws by implementation, as a table and as a JSON document.

The document is that of ``pymllm verify`` with the matrix in it; its fields are promised likewise, and
docs/schemas/compare.schema.json has them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from shlex import quote
from typing import Any

from rich.table import Table

from pymllm.cli.drawn_tables import table_console
from pymllm.cli.program import escaped
from pymllm.cli.verify_document import make_document as make_verify_document
from pymllm.cli.verify_document import verify_schema
from pymllm.cli.verify_files import SavedFiles
from pymllm.cli.verify_table import cut_short
from pymllm.cli.violation_text import again_lines, explain, problem_lines
from pymllm.conformance.results import AdapterResult, LawResult, VerifyReport
from pymllm.history.records import encode, schema_of
from pymllm.oracle.laws import Law, find_law
from pymllm.oracle.verdicts import Verdict

__all__ = ["SCHEMA", "VERSION", "compare_schema", "make_document", "make_text"]

SCHEMA = "pymllm.compare"
VERSION = 1


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """What is known of a law of one implementation; no cell where the law is about another kind."""

    adapter: str
    verdict: str
    tests: int
    walks: int


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One law, and a cell for each implementation that it is about."""

    id: str
    sentence: str
    cells: tuple[MatrixCell, ...]


def make_document(report: VerifyReport, files: SavedFiles) -> dict[str, Any]:
    """Put a report into plain data.

    Parameters
    ----------
    report : VerifyReport
        Of the search.
    files : SavedFiles
        Where its programs are.

    Returns
    -------
    dict
        Valid under `compare_schema`.
    """
    document = make_verify_document(report, files)
    rows = [
        MatrixRow(
            law.id,
            law.sentence,
            tuple(
                MatrixCell(adapter.name, cell.verdict.value, cell.exercised, cell.audited)
                for adapter in report.adapters
                if (cell := _cell(adapter, law)) is not None
            ),
        )
        for law in _laws(report)
    ]
    return {**document, "schema": SCHEMA, "version": VERSION, "matrix": encode(tuple(rows))}


def compare_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    schema = verify_schema()
    row = schema_of(MatrixRow)
    row["properties"]["cells"]["items"]["properties"]["verdict"] = {"enum": [it.value for it in Verdict]}
    properties = {
        **schema["properties"],
        "schema": {"const": SCHEMA},
        "version": {"const": VERSION},
        "matrix": {"type": "array", "items": row},
    }
    required = [*schema["required"], "matrix"]
    return {**schema, "title": "pymllm compare", "properties": properties, "required": required}


def make_text(report: VerifyReport, files: SavedFiles) -> str:
    """Lay a report out as text, plain ASCII.

    Parameters
    ----------
    report : VerifyReport
        Of the search.
    files : SavedFiles
        Where its programs are.

    Returns
    -------
    str
        Lines, the last one ended.
    """
    console = table_console()
    with console.capture() as captured:
        console.print(_matrix(report))
    lines = [_heading(report), *(line.rstrip() for line in captured.get().splitlines())]
    for adapter in report.adapters:
        lines += problem_lines(adapter, files)
    for adapter in report.adapters:
        lines += _findings(adapter, files, report.seed)
    lines += ["", _sum_up(report)]
    return "".join(f"{line}\n" for line in lines)


def _heading(report: VerifyReport) -> str:
    versions = "  ".join(f"{name} {version}" for name, version in report.versions.items())
    amount = "" if report.examples is None else f", {report.examples:,} per machine and configuration"
    numbered = "".join(
        f"\n{number:3}  {escaped(quote(adapter.name))} ({adapter.kind or 'could not be loaded'})"
        for number, adapter in enumerate(report.adapters, 1)
    )
    programs = f"profile {report.profile}: programs of up to {report.steps} acts{amount}, seed {report.seed}"
    return f"{versions}\n{programs}\n{numbered}\n"


def _matrix(report: VerifyReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("law", header_style="")
    for number, _ in enumerate(report.adapters, 1):
        table.add_column(str(number), justify="right", header_style="")
    table.add_column("demands that", header_style="")
    for law in _laws(report):
        table.add_row(law.id, *(_shown(_cell(adapter, law)) for adapter in report.adapters), law.sentence)
    return table


def _shown(cell: LawResult | None) -> str:
    if cell is None:
        return ""
    if cell.verdict is Verdict.HOLDS:
        return f"holds {cell.exercised:,}"
    return "not claimed" if cell.verdict is Verdict.NOT_CLAIMED else cell.verdict.name


def _cell(adapter: AdapterResult, law: Law) -> LawResult | None:
    return next((row for row in adapter.laws if row.law == law), None)


def _laws(report: VerifyReport) -> list[Law]:
    return [row.law for row in report.laws]


def _findings(adapter: AdapterResult, files: SavedFiles, seed: int) -> list[str]:
    lines: list[str] = []
    for finding in adapter.findings:
        path = files.programs.get((adapter.name, finding.law))
        lines += [
            "",
            f"{finding.law}  VIOLATED by {adapter.name}: {find_law(finding.law).sentence}",
            *explain(finding.violation, finding.history),
            f"    file       {path or 'could not be written'}",
            *again_lines(finding, adapter.name, path, seed),
        ]
    return lines


def _sum_up(report: VerifyReport) -> str:
    counts = Counter(row.verdict for adapter in report.adapters for row in adapter.laws)
    order = (Verdict.UNKNOWN, Verdict.VIOLATED, Verdict.HOLDS, Verdict.NOT_CLAIMED)
    cells = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in order)
    machines = [machine for adapter in report.adapters for machine in adapter.machines]
    steps = sum(it.steps for it in machines)
    played = f"{report.programs:,} programs, {steps:,} steps, {report.seconds:.1f} s"
    return f"cells: {cells}; {played}{cut_short(report)}"
