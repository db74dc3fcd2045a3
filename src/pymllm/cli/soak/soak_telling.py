"""The storage and printing of campaign results, with the options for both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.soak.soak_options import LEDGER
from pymllm.cli.store import keep_run, refuse_run_or_program, save_text
from pymllm.cli.tables import tell

if TYPE_CHECKING:
    from pymllm.soak.results import SoakReport


def _free_page(context: click.Context, param: click.Parameter, page: Path | None) -> Path | None:
    """Refuse a page that would overwrite a file that a campaign keeps."""
    refuse_run_or_program("--page", page)
    if page is not None and os.path.basename(os.path.realpath(page)) == LEDGER:
        raise click.UsageError(f"--page {page}: this is the name of a campaign's ledger; name another file.")
    return page


_TOLD = (
    click.option(
        "--strict",
        is_flag=True,
        help="Also fail if a coverage goal was never reached, if memory grows, or if a listed deviation is "
        "gone.",
    ),
    options.json,
    options.store,
    click.option(
        "--page",
        type=options.OUTPUT_FILE,
        callback=_free_page,
        help="Also write the summary to FILE, as Markdown.",
    ),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Also list the coverage goals that were not reached, and explain the words.",
    ),
    options.progress,
)


def telling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for judging, storing and printing results to a command."""
    for option in reversed(_TOLD):
        command = option(command)
    return command


def corpus_option(help: str) -> Callable[[Any], Any]:
    """Return the option that names the folder of a corpus."""
    return click.option("--corpus", type=options.OUTPUT_FOLDER, metavar="FOLDER", help=help)


def tell_campaigns(
    report: SoakReport,
    folders: Sequence[Path],
    *,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    verbose: bool,
) -> int:
    """Store and print the results of campaigns; return the exit status."""
    document = report.document(strict=strict)
    if store is not None:  # with the course of the memory, and the programs of the failures
        from pymllm.report.documents import read_ledger_file
        from pymllm.report.program_files import files_of
        from pymllm.soak.merged_campaigns import find_ledgers

        ledgers = find_ledgers(folders)
        curves = read_ledger_file(*ledgers).curves if ledgers else ()
        beside = [*(it.parent for it in ledgers), *([] if report.folder is None else [report.folder])]
        keep_run(store, document, curves, files_of(document), beside, report.headers[0].versions)
    from pymllm.cli.soak.soak_table import make_text

    if page is not None:
        text = make_text(report, strict=strict, verbose=True)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))  # a name may have some
        save_text(f"# Soak\n\n{fence}text\n{text}{fence}\n", page, "--page")
    make_shown = partial(make_text, report, strict=strict, verbose=verbose, fits_terminal=True)
    return tell(document, lambda _: make_shown(), as_json, report.interruption)
