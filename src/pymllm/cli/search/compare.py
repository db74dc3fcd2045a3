"""``pymllm compare``: several implementations under one search, and a matrix of laws by implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import escaped
from pymllm.cli.search.search_files import earlier_lines, save_programs
from pymllm.cli.search.verify import plan_search, search, verify_command
from pymllm.cli.search.verify_table import (
    BUT,
    BUT_FOR,
    COUNTED,
    ENDED,
    ENDED_BY,
    LIMIT,
    LIMITED,
    MEANINGS,
    WORDS,
    cut_short,
    heading,
    judged_laws,
    played,
    style_of,
    verdict_lines,
)
from pymllm.cli.shard_table import (
    demand_file,
    open_kept,
    refuse_beside_shard,
    search_shard,
    spread_searches,
)
from pymllm.cli.spread import Executor, demand_keep, shard_beside
from pymllm.cli.store import keep_run
from pymllm.cli.tables import (
    card_lines,
    cards_of,
    draw,
    make_legend,
    make_table,
    problem_lines,
    tell,
    terminal_width,
)
from pymllm.documents.searches import CompareDocument, MatrixCell
from pymllm.oracle.verdicts import Verdict, merge_verdicts
from pymllm.report.findings import deviation_table
from pymllm.text_file import cut

if TYPE_CHECKING:
    from pymllm.cli.tables import Drawn
    from pymllm.work.shards import Shard

_FEWEST = 2
_SENTENCE, _CELL = 34, 10  # columns of a terminal for a law with its sentence, and for one implementation


@click.command("compare", short_help="Search several implementations, and print verdicts side by side.")
@click.argument("names", metavar="NAME NAME...", nargs=-1, shell_complete=options.complete_adapter)
@options.command(multiple=True)
@options.of(verify_command, "laws", "deviations", "profile", "seed", "examples", "shard", "jobs", "timeout")
@options.of(verify_command, "output", "as_json", "store", "keep", "executor", "progress")
def compare_command(
    names: tuple[str, ...],
    commands: tuple[str, ...],
    output: Path,
    store: Path | None,
    shard: Shard | None,
    keep: Path | None,
    as_json: bool,
    progress: str,
    executor: Executor | None,
    **chosen: Any,
) -> int:
    """Search several implementations from the same seed, and print which law holds for which of them.

    NAME is a name of `pymllm adapters`, module:Class or 'command:PROGRAM ARGS'. The smallest program for
    each violation is written to a file, which `pymllm rerun` runs on any of them. A table has a row for each
    law and a column for each implementation.

    Exit status: as of `pymllm verify`, 1 if a law is violated, 3 if something is unknown. With --examples N
    each of them runs N programs per machine and configuration, however fast it is. --shard and --keep are
    those of `pymllm verify`.
    """
    names = options.names_of(names, commands)
    if len(set(names)) < _FEWEST:
        got = f"{cut(names[0])} was named {len(names)} times" if len(names) > 1 else f"got {len(names)}"
        raise click.UsageError(f"give {_FEWEST} different implementations or more to compare; {got}.")
    demand_keep(executor, keep)
    shard = shard_beside(executor, shard)
    demand_file(shard, keep)
    if shard is not None:
        refuse_beside_shard(shard, "output", "store")
    plan = plan_search(names, **chosen)
    if executor is not None and keep is not None:
        spread_searches(executor, plan, keep, chosen["seed"], progress)
    kept = open_kept(keep, plan, chosen["seed"])
    if shard is not None and kept is not None:
        return search_shard(plan, shard, kept, "compare", progress, as_json)
    report = search(plan, progress, kept)
    files = save_programs(report, output)
    document = report.comparison(files)
    keep_run(store, document, programs=files.programs.values())
    return tell(document, partial(make_text, earlier=files.earlier), as_json, report.interruption)


def make_text(document: CompareDocument, earlier: Sequence[str] = ()) -> str:
    """Lay a comparison out as text: what is violated or unknown, then the matrix, for a few adapters each.

    ``earlier`` are files of other searches that lie beside those of this one.
    """
    found = [line for card in cards_of(document) for line in card_lines(replace(card, program=""))]
    parts: list[Drawn] = [_heading(document), *verdict_lines(document)]
    parts += [*found, *problem_lines(document.adapters), *earlier_lines(earlier), ""]
    if document.deviations:
        parts += [deviation_table(document.deviations), ""]
    if judged_laws(document):
        parts += [*_matrices(document), make_legend(_legend(document))]
    return draw(*parts, "", (_sum_up(document), "bold"), fits_terminal=True)


def _heading(document: CompareDocument) -> str:
    numbered = "".join(
        f"\n{number:3}  {escaped(quote(adapter.name))} ({adapter.kind or 'could not be loaded'})"
        for number, adapter in enumerate(document.adapters, 1)
    )
    return f"{heading(document)}\n{numbered}\n"


def _matrices(document: CompareDocument) -> Iterator[Drawn]:
    """Yield the matrix, cut between adapters where a terminal has no room for all of them."""
    numbered = [(number, it) for number, it in enumerate(document.adapters, 1) if it.machines]
    known = {(name, it.law) for it in document.deviations for name in it.adapters}
    together = max(1, ((terminal_width() or 10_000) - _SENTENCE) // _CELL)
    for begin in range(0, len(numbered), together):
        some = numbered[begin : begin + together]
        numbers = [str(number) for number, _ in some]
        table = make_table("law", *numbers, "demands that", right=numbers, gap=2)
        for row in document.matrix:
            cells = {cell.adapter: cell for cell in row.cells}
            shown = [_shown(cells.get(it.name), (it.name, row.id) in known) for _, it in some]
            if any(shown):
                worst = merge_verdicts(cells[it.name].verdict for _, it in some if it.name in cells)
                is_bad = worst in (Verdict.VIOLATED, Verdict.UNKNOWN)
                table.add_row(row.id, *shown, row.sentence, style=style_of(worst) if is_bad else "")
        yield from (table, "")


def _shown(cell: MatrixCell | None, is_known: bool) -> str:
    if cell is None:
        return ""
    ended = ENDED if cell.unfinished else ""
    if cell.verdict is Verdict.HOLDS:
        return f"{cell.tests:,}{LIMIT if cell.limits else ''}{BUT if is_known else ''}{ended}"
    return "-" if cell.verdict is Verdict.NOT_CLAIMED else f"{cell.verdict.name}{ended}"


def _legend(document: CompareDocument) -> dict[str, str]:
    """Explain the words that the matrix has."""
    known = {cell.verdict for row in document.matrix for cell in row.cells}
    is_blank = any(len(row.cells) < len(document.adapters) for row in document.matrix)
    is_ended = any(cell.unfinished for row in document.matrix for cell in row.cells)
    holds = "the law holds: so many tests, and none broke it"
    return {
        "1, 2, ...": "the implementations above",
        **{WORDS[it]: MEANINGS[it] for it in (Verdict.VIOLATED, Verdict.UNKNOWN) if it in known},
        **({"a number": holds} if Verdict.HOLDS in known else {}),
        **(
            {LIMIT.strip(): LIMITED}
            if any(cell.limits for row in document.matrix for cell in row.cells)
            else {}
        ),
        **({BUT.strip(): BUT_FOR} if document.deviations else {}),
        **({ENDED.strip(): ENDED_BY} if is_ended else {}),
        **({"-": f"not claimed: {MEANINGS[Verdict.NOT_CLAIMED]}"} if Verdict.NOT_CLAIMED in known else {}),
        **({"nothing": "the law is about another kind of implementation"} if is_blank else {}),
    }


def _sum_up(document: CompareDocument) -> str:
    judged = [adapter for adapter in document.adapters if adapter.machines]
    counts = Counter(law.verdict for adapter in judged for law in adapter.laws)
    pairs = ", ".join(f"{counts[verdict]} {word}" for verdict, word in COUNTED.items())
    return f"pairs of law and implementation: {pairs}; {played(document)}{cut_short(document)}"
