"""``pymllm compare``: several implementations under one search, and a matrix of laws by implementation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from shlex import quote
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.program import escaped
from pymllm.cli.store import keep_run
from pymllm.cli.tables import draw, make_table, problem_lines, tell, violation_lines
from pymllm.cli.verify import cut_short, heading, plan_search, played, save_programs, search, verify_command
from pymllm.conformance.documents import CompareDocument, MatrixCell
from pymllm.oracle.verdicts import Verdict
from pymllm.text_file import cut

_FEWEST = 2
_SHARED = {"laws", "profile", "seed", "examples", "jobs", "timeout", "output", "store", "as_json", "progress"}
"""Options that mean here what they mean to ``pymllm verify``."""


@click.command("compare", short_help="Put several implementations under the same search.")
@click.argument("names", metavar="NAME NAME...", nargs=-1)
@options.command(multiple=True)
def compare_command(
    names: tuple[str, ...],
    commands: tuple[str, ...],
    output: Path,
    store: Path | None,
    as_json: bool,
    progress: str,
    **chosen: Any,
) -> int:
    """Search several implementations from the same seed, and lay out which law holds of which.

    NAME is a name of `pymllm adapters`, module:Class or 'command:PROGRAM ARGS'. A cell says how often the
    law was tested and held, that it is violated, unknown or not claimed; it is empty where the law is
    about another kind of thing.
    The smallest program for each violation is written to a file, for `pymllm rerun` on any of them.

    Ends like `pymllm verify`: with 1 where a law is violated, with 3 where something is unknown. With
    --examples N all of them play N programs per machine and configuration, however fast they are.
    """
    names = options.names_of(names, commands)
    if len(set(names)) < _FEWEST:
        got = f"{cut(names[0])} was named {len(names)} times" if len(names) > 1 else f"got {len(names)}"
        raise click.UsageError(f"compares {_FEWEST} different implementations or more; {got}.")
    report = search(plan_search(names, **chosen), progress)
    files = save_programs(report, output)
    document = report.comparison(files)
    keep_run(store, document, programs=files.programs.values())
    return tell(document, make_text, as_json, report.interruption)


compare_command.params += [option for option in verify_command.params if option.name in _SHARED]


def make_text(document: CompareDocument) -> str:
    """Lay a comparison out as text, plain ASCII."""
    numbers = [str(number) for number, _ in enumerate(document.adapters, 1)]
    table = make_table("law", *numbers, "demands that", right=numbers, gap=2)
    for row in document.matrix:
        cells = {cell.adapter: cell for cell in row.cells}
        shown = (_shown(cells.get(adapter.name)) for adapter in document.adapters)
        table.add_row(row.id, *shown, row.sentence)
    found = [text for _, text in violation_lines(document)]
    return draw(_heading(document), table, *problem_lines(document.adapters), *found, "", _sum_up(document))


def _heading(document: CompareDocument) -> str:
    numbered = "".join(
        f"\n{number:3}  {escaped(quote(adapter.name))} ({adapter.kind or 'could not be loaded'})"
        for number, adapter in enumerate(document.adapters, 1)
    )
    return f"{heading(document)}\n{numbered}\n"


def _shown(cell: MatrixCell | None) -> str:
    if cell is None:
        return ""
    if cell.verdict is Verdict.HOLDS:
        return f"holds {cell.tests:,}"
    return "not claimed" if cell.verdict is Verdict.NOT_CLAIMED else cell.verdict.name


def _sum_up(document: CompareDocument) -> str:
    counts = Counter(law.verdict for adapter in document.adapters for law in adapter.laws)
    order = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS, Verdict.NOT_CLAIMED)
    cells = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in order)
    return f"cells: {cells}; {played(document)}{cut_short(document)}"
