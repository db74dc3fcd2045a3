"""``pymllm situations``: states worth reaching, and what is at stake in each."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pymllm.cli.options import json_option
from pymllm.cli.program import say
from pymllm.cli.run_store import refuse_missing_folder
from pymllm.cli.situations_document import make_document
from pymllm.cli.situations_page import make_page
from pymllm.history.operations import KINDS
from pymllm.oracle.situations import SITUATIONS
from pymllm.text_file import write_text_file

__all__ = ["situations_command"]


@click.command("situations", short_help="List the states that a search must reach.")
@click.option("--kind", type=click.Choice(KINDS), help="Only those of one kind of implementation.")
@json_option
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all of them as Markdown, too.",
)
def situations_command(kind: str | None, as_json: bool, page: Path | None) -> None:
    """List situations: states worth reaching, with the laws that are at stake in each.

    Judges count them while programs run; pymllm verify tells which were reached, and --strict demands it.
    docs/situations.md has the whole table.
    """
    refuse_missing_folder("--page", page)
    chosen = [one for one in SITUATIONS if kind in (None, one.kind)]
    if page is not None:
        write_text_file(page, make_page(SITUATIONS))
    if as_json:
        say(json.dumps(make_document(chosen), indent=2))
        return
    kinds = [f"{one.kind}, engine" if one.of_engine else one.kind for one in chosen]
    laws = [", ".join(one.laws) for one in chosen]
    widths = max(map(len, kinds)), max(map(len, laws))
    rows = zip(kinds, laws, chosen, strict=True)
    say("\n".join(f"{kind:{widths[0]}}  {ids:{widths[1]}}  {one.name}" for kind, ids, one in rows))
