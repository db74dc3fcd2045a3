"""``pymllm situations``: states worth reaching, and what is at stake in each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pymllm.cli import options
from pymllm.cli.tables import draw, make_legend, make_table, tell
from pymllm.conformance.documents import SituationsDocument, WorthReaching
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import SITUATIONS
from pymllm.oracle.laws.situation import Situation
from pymllm.text_file import write_text_file

_HEAD = """\
# Situations

A search that never filled its pool says nothing of full pools. A situation is a state in which something
is at stake: the *laws* say what a wrong implementation breaks in it, the *bugs* (ids as in
[faults.md](faults.md)) what went wrong in it before. Judges count situations by name while a program runs;
`pymllm verify` tells which were reached, and with `--strict` one that never was is a failure.

It is expected where the adapter has the capabilities and the configuration is as told under *needs*. A long
run of each such configuration of our own classes reaches it, which the tests show. {count} situations.

This page is written by `pymllm situations --page docs/situations.md`.
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
}


@click.command("situations", short_help="List the situations that a search must reach.")
@click.option("--kind", type=click.Choice(KINDS), help="List only those of one kind of implementation.")
@options.json
@click.option("--page", type=options.OUTPUT_FILE, help="Also write all of them to FILE, as Markdown.")
def situations_command(kind: str | None, as_json: bool, page: Path | None) -> None:
    """List situations: states in which implementations go wrong, with the laws that they break then.

    pymllm verify counts how often its programs reach each, and fails with --strict if one is never reached.
    docs/situations.md has the whole table.
    """
    chosen = [one for one in SITUATIONS if kind in (None, one.kind)]
    if page is not None:
        write_text_file(page, make_page(SITUATIONS))
    tell(make_document(chosen), lambda _: _make_text(chosen), as_json)


def _make_text(chosen: Sequence[Situation]) -> str:
    table = make_table("kind", "laws", "situation", gap=2)
    for one in chosen:
        kind = f"{one.kind}, engine" if one.of_engine else one.kind
        table.add_row(kind, ", ".join(one.laws), one.name)
    legend = {
        "kind": "of implementation; engine: inside a simulated serving engine",
        "laws": "those that a wrong implementation breaks in this situation",
    }
    return draw(table, "", make_legend(legend), fits_terminal=True)


def make_document(situations: Sequence[Situation]) -> SituationsDocument:
    """Return the record of some situations."""
    return SituationsDocument(
        situations=tuple(
            WorthReaching(
                name=one.name,
                kind=one.kind,
                of_engine=one.of_engine,
                laws=one.laws,
                bugs=one.bugs,
                capabilities=tuple(sorted(one.needs)),
                configuration=tuple(condition.text for condition in one.when),
            )
            for one in situations
        )
    )


def make_page(situations: Sequence[Situation]) -> str:
    """Lay situations out as the page docs/situations.md."""
    parts = [_HEAD.format(count=len(situations))]
    for kind, of_engine in dict.fromkeys((one.kind, one.of_engine) for one in situations):
        title = f"{_TITLES[kind]} in an engine" if of_engine else _TITLES[kind]
        own = [one for one in situations if (one.kind, one.of_engine) == (kind, of_engine)]
        lines = ["| situation | laws | bugs | needs |", "| --- | --- | --- | --- |", *map(_row, own)]
        parts.append(f"\n## {title}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _row(one: Situation) -> str:
    needs = [f"`{name}`" for name in sorted(one.needs)] + [condition.text for condition in one.when]
    cells = one.name, ", ".join(one.laws), ", ".join(one.bugs), ", ".join(needs)
    return f"| {' | '.join(cells)} |"
