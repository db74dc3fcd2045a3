"""``pymllm goals``: states worth reaching, and what is at stake in each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pymllm.cli import options
from pymllm.cli.store import save_text
from pymllm.cli.tables import draw, make_legend, make_table, tell
from pymllm.documents.runs import GoalsDocument, WorthReaching
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import GOALS
from pymllm.oracle.laws.goal import CoverageGoal

_HEAD = """\
# Coverage goals

A search that never filled its pool says nothing of full pools. A coverage goal is a state in which something
is at stake: the *laws* say what a wrong implementation breaks in it, the *bugs* (ids as in
[faults.md](faults.md)) what went wrong in it before. Judges count goals by name while a program runs;
`pymllm verify` tells which were reached, and with `--strict` one that never was is a failure.

It is expected where the adapter has the capabilities and the configuration is as told under *needs*. A long
run of each such configuration of our own classes reaches it, which the tests show. {count} coverage goals.

This page is written by `pymllm goals --page docs/coverage-goals.md`.
"""
_TITLES = {
    "slots": "Slot allocators",
    "rows": "Request rows",
    "buffers": "KV buffers",
    "states": "Recurrent states",
    "hashes": "Keys and hashes",
    "prefix": "Prefix caches",
    "blocks": "Blocks and their state slots",
    "requests": "Whole requests",
    "index": "Indexes of who has which blocks",
}


@click.command("goals", short_help="List the coverage goals that a search must reach.")
@click.option("--kind", type=click.Choice(KINDS), help="List only those of one kind of implementation.")
@options.json
@click.option("--page", type=options.OUTPUT_FILE, help="Also write all of them to FILE, as Markdown.")
def goals_command(kind: str | None, as_json: bool, page: Path | None) -> None:
    """List coverage goals: states in which implementations go wrong, with the laws that they break then.

    pymllm verify counts how often its programs reach each, and fails with --strict if one is never reached.
    docs/coverage-goals.md has the whole table.
    """
    chosen = [one for one in GOALS if kind in (None, one.kind)]
    if page is not None:
        save_text(make_page(GOALS), page, "--page")
    tell(make_document(chosen), lambda _: _make_text(chosen), as_json)


def _make_text(chosen: Sequence[CoverageGoal]) -> str:
    table = make_table("kind", "laws", "coverage goal", gap=2)
    for one in chosen:
        kind = f"{one.kind}, engine" if one.of_engine else one.kind
        table.add_row(kind, ", ".join(one.laws), one.name)
    legend = {
        "kind": "of implementation; engine: inside a simulated serving engine",
        "laws": "those that a wrong implementation breaks in this state",
    }
    return draw(table, "", make_legend(legend), fits_terminal=True)


def make_document(goals: Sequence[CoverageGoal]) -> GoalsDocument:
    """Return the record of some coverage goals."""
    return GoalsDocument(
        goals=tuple(
            WorthReaching(
                name=one.name,
                kind=one.kind,
                of_engine=one.of_engine,
                laws=one.laws,
                bugs=one.bugs,
                capabilities=(*sorted(one.needs), *(f"not {name}" for name in sorted(one.unless))),
                configuration=tuple(condition.text for condition in one.when),
            )
            for one in goals
        )
    )


def make_page(goals: Sequence[CoverageGoal]) -> str:
    """Lay coverage goals out as the page docs/coverage-goals.md."""
    parts = [_HEAD.format(count=len(goals))]
    for kind, of_engine in dict.fromkeys((one.kind, one.of_engine) for one in goals):
        title = f"{_TITLES[kind]} in an engine" if of_engine else _TITLES[kind]
        own = [one for one in goals if (one.kind, one.of_engine) == (kind, of_engine)]
        lines = ["| coverage goal | laws | bugs | needs |", "| --- | --- | --- | --- |", *map(_row, own)]
        parts.append(f"\n## {title}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _row(one: CoverageGoal) -> str:
    needs = [f"`{name}`" for name in sorted(one.needs)] + [condition.text for condition in one.when]
    needs += [f"not `{name}`" for name in sorted(one.unless)]
    cells = one.name, ", ".join(one.laws), ", ".join(one.bugs), ", ".join(needs)
    return f"| {' | '.join(cells)} |"
