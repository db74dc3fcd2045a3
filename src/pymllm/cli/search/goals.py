"""The command ``pymllm goals``: coverage goals, and the laws or bugs that each is about."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pymllm.cli import options
from pymllm.cli.tables import draw, make_legend, make_table, tell
from pymllm.documents.runs import GoalsDocument, WorthReaching
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import GOALS
from pymllm.oracle.laws.goal import CoverageGoal


@click.command("goals", short_help="List the coverage goals that a search must reach.")
@click.option("--kind", type=click.Choice(KINDS), help="List only those of one kind of implementation.")
@options.json
def goals_command(kind: str | None, as_json: bool) -> None:
    """List coverage goals: states in which implementations go wrong, with the laws that they break then.

    pymllm verify counts how often its programs reach each, and fails with --strict if one is never reached.
    --json also has the bugs that showed each, and the claims that it needs.
    """
    chosen = [one for one in GOALS if kind in (None, one.kind)]
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
    """Return the document of some coverage goals."""
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
