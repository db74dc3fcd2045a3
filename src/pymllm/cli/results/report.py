"""The command ``pymllm report``: a page or a feed made from runs by `pymllm.report`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli import options
from pymllm.cli.output import complain, say
from pymllm.cli.store import refuse_own_input, refuse_run_or_program
from pymllm.report.quantities import count_of
from pymllm.text_file import write_text_file

if TYPE_CHECKING:
    from pymllm.report.loading import LoadedRuns, Run

FORMATS = (
    *("html", "summary", "github-action-benchmark", "bencher", "openmetrics", "junit", "badge"),
    "vectors-badge",
)


_NOTHING: dict[str, tuple[Callable[[str], bool], str]] = {
    "github-action-benchmark": (lambda text: text == "[]", "figure of which {better} is better"),
    "bencher": (lambda text: text == "{}", "figure"),
    "junit": (lambda text: "<testcase" not in text, "search, campaign or planted faults"),
    "badge": (lambda text: '"not searched"' in text, "law that was searched"),
    "vectors-badge": (lambda text: '"not played"' in text, "vectors"),
}
"""Valid but empty feeds, with the kind of result that is missing in each."""


@click.command("report", short_help="Make a page or a feed of the results of runs.")
@click.argument(
    "runs", metavar="RUNS...", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True
)
@click.option(
    "-o",
    "--output",
    type=options.OUTPUT_FILE,
    show_default="report.html for the page, standard output for a feed",
    help="File to write.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="html", help="Form of the output.")
@click.option(
    "--better",
    type=click.Choice(("smaller", "bigger")),
    default="smaller",
    help="For github-action-benchmark: take figures where smaller, or where bigger, is better.",
)
@click.option("--trend", metavar="NAME", help="Print the figures over time whose name contains NAME.")
@click.option("--title", metavar="TEXT", default="pymllm", help="Title of the page.")
def report_command(
    runs: tuple[Path, ...], output: Path | None, form: str, better: str, trend: str | None, title: str
) -> None:
    """Make a page or a feed of the results of RUNS.

    RUNS are files, and folders to search for files: stores that --store writes, documents that --json prints,
    ledgers of soaks, logs of pytest --gpu-memory-log, and the files of pytest-benchmark.

    The page is one file that opens offline. It shows figures of different machines, and of a benchmark whose
    code changed, side by side without comparing them. docs/report.md explains store, page and feeds.
    """
    if output is None and form == "html" and trend is None:
        output = Path("report.html")
    refuse_own_input("--output", output, *runs)
    refuse_run_or_program("--output", output)
    from pymllm.report.loading import load_runs

    with options.refusing_unreadable():
        loaded = load_runs(runs)
    refuse_own_input("--output", output, *(it.source for it in loaded.skipped))
    _tell_of_gaps(loaded)
    with options.refusing():
        text = _make(loaded, form, better, title) if trend is None else _trend(loaded, trend)
    is_empty, missing = _NOTHING.get(form, (None, ""))
    if trend is None and is_empty is not None and is_empty(text):
        complain(f"--format {form}: these runs have no {missing.format(better=better)}, so the feed is empty")
    if output is None or trend is not None:
        say(text)
        return
    try:
        write_text_file(output, text)
    except OSError as error:
        raise click.UsageError(f"{output}: {error.strerror}.") from None
    say(f"{output}: {count_of(len(loaded.runs), 'run')}, {len(text.encode()):,} bytes")


def _make(loaded: LoadedRuns, form: str, better: str, title: str) -> str:
    if form == "html":
        from pymllm.report.page import make_page

        return make_page(loaded, title)
    from pymllm.report import feeds
    from pymllm.report.summary import make_summary

    make: dict[str, Callable[[Sequence[Run]], str]] = {
        "summary": make_summary,
        "github-action-benchmark": partial(feeds.make_action_feed, better=better),
        "bencher": feeds.make_bencher_feed,
        "openmetrics": feeds.make_openmetrics,
        "junit": feeds.make_junit,
        "badge": feeds.make_badge,
        "vectors-badge": feeds.make_vectors_badge,
    }
    return make[form](loaded.runs)


def _tell_of_gaps(loaded: LoadedRuns) -> None:
    """Report runs that were left out, which a feed cannot show."""
    for it in loaded.skipped:
        complain(f"left out: {it.source}: {it.reason}")
    for run in loaded.runs:
        for reason in run.unread:
            complain(f"left out of {run.source}: {reason}")


def _trend(loaded: LoadedRuns, name: str) -> str:
    from pymllm.report.trends import make_text

    return make_text(loaded.runs, name)
