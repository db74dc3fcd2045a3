"""The command ``pymllm bisect``: the release of a package that changed a program's verdict."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from pymllm.adapters.entry import AdapterEntry
from pymllm.cli import options
from pymllm.cli.output import escaped
from pymllm.cli.program import status_of
from pymllm.cli.store import refuse_unwritable
from pymllm.cli.tables import draw, make_table, progress_bar, tell
from pymllm.documents.programs import BisectDocument, ReleaseChange, ReleaseRow
from pymllm.errors import UsageError
from pymllm.history.files import History
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict
from pymllm.report.quantities import count_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pymllm.search.releases import Bisection


_NO_MODULE = "No module named"
_NAMED = 5  # packages that a line has room for


def _read_bound(context: click.Context, param: click.Parameter, version: str | None) -> str | None:
    """Refuse a bound that is no version, before pip runs."""
    if version is not None:
        from pymllm.search.releases import read_version  # loads adapters; --help does without

        with options.refusing(param.opts[0]):
            read_version(version)
    return version


@click.command("bisect", short_help="Find the release of a package in which a program's verdict changed.")
@click.argument("file", type=click.Path())
@click.option("--package", metavar="NAME", required=True, help="The package, as pip calls it.")
@options.adapter
@click.option(
    "--first",
    metavar="VERSION",
    callback=_read_bound,
    show_default="the oldest",
    help="Oldest release to search.",
)
@click.option(
    "--last",
    metavar="VERSION",
    callback=_read_bound,
    show_default="the newest",
    help="Newest release to search.",
)
@click.option("--pre", is_flag=True, help="Search prereleases, too.")
@click.option("--all", "tries_all", is_flag=True, help="Try every release, to find every change.")
@click.option(
    "--packages",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    default="runs/packages",
    help="Folder for the releases that pip unpacks; those already there are not fetched again.",
)
@options.timeout
@options.json
@options.progress
def bisect_command(
    file: str,
    package: str,
    adapter: str | None,
    first: str | None,
    last: str | None,
    pre: bool,
    tries_all: bool,
    packages: Path,
    timeout: float,
    as_json: bool,
    progress: str,
) -> int:
    """Run the program in FILE on releases of a package, and say in which of them its verdict changed.

    FILE has it as JSON lines, as `pymllm verify` writes it. pip unpacks each release that is tried,
    without its dependencies; those of this environment serve. The adapter is asked to take releases that it
    was not tried with. One that it cannot load, or on which the program has no verdict, is passed over, and
    the answer may then be several releases. Where the verdict changed more than once, one change is found,
    most often the newest; --all finds every one.

    Exit status, by the newest release that was judged: 0 if it breaks no law, 1 if it does; 2 for bad input;
    3 if no release could be judged.
    """
    history = options.read_program(file)
    named = options.adapter_of_file(file, history.header.adapter, adapter)
    entry = options.find_adapter_or_refuse(named, is_run=False)
    _refuse_unreleased(entry, package)
    refuse_unwritable("--packages", packages)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Not at the top: --help and a mistyped option can do without.
    from pymllm.search.releases import (
        Bisection,
        Trial,
        list_releases,
        missing_requirements,
        read_version,
        unpack,
        within,
    )

    if first is not None and last is not None and read_version(first) > read_version(last):
        raise click.UsageError(
            f"--first {first} is newer than --last {last}; write them the other way round."
        )

    def judge(release: str) -> ReleaseRow:
        begun = monotonic()
        try:
            place = unpack(package, release, packages)
        except UsageError as error:  # others may be there
            return ReleaseRow(release, Verdict.UNKNOWN, None, str(error), round(monotonic() - begun, 3))
        row = Trial(history, entry.name, place).judge(release, timeout)
        if not bisection.rows and _NO_MODULE in row.because and (missing := missing_requirements(place)):
            # The others would end alike, each after as long.
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise UsageError(
                f"{package} {release} cannot be judged: {row.because}; this environment lacks "
                f"{', '.join(missing[:_NAMED])}{more}, which it requires, and pip unpacks a release alone: "
                "install its dependencies, or give --last an older release"
            )
        return row

    begun = monotonic()
    with options.refusing():
        releases = within(list_releases(package, prereleases=pre), first, last)
        bisection = Bisection(releases, judge)
        interruption = _run(bisection, progress, tries_all=tries_all)
    document = make_document(file, package, entry.name, history, bisection, monotonic() - begun, interruption)
    return tell(document, make_text, as_json, interruption)


def _refuse_unreleased(entry: AdapterEntry, package: str) -> None:
    """Refuse an adapter whose implementation is in no release of a package."""
    if entry.checkout is not None:
        what = f"reads the checkout that {entry.checkout.variable} names"
    elif entry.place.startswith("pymllm."):
        what = "is about a class of pymllm itself"
    else:
        return
    raise click.UsageError(
        f"{entry.name} {what}, and no release of {package} changes that; name another one."
    )


def _run(bisection: Bisection, progress: str, *, tries_all: bool) -> KeyboardInterrupt | None:
    """Try releases; after an interrupt, keep the results so far."""
    total = len(bisection.releases)
    with progress_bar(progress, "bisecting", total, "releases settled") as show:
        try:
            for _ in bisection.search_all() if tries_all else bisection.search():
                if show is not None:
                    show(bisection.settled)
        except KeyboardInterrupt as interruption:
            return interruption
    return None


def make_document(
    file: str,
    package: str,
    adapter: str,
    history: History,
    bisection: Bisection,
    seconds: float,
    interruption: KeyboardInterrupt | None,
) -> BisectDocument:
    """Return the document of a search over releases."""
    rows = tuple(row for _, row in sorted(bisection.rows.items()))
    judged = [row.verdict for row in rows if row.verdict is not Verdict.UNKNOWN]
    verdict = judged[-1] if judged else Verdict.UNKNOWN
    return BisectDocument(
        package=package,
        adapter=adapter,
        file=file,
        kind=history.header.kind,
        config=history.header.config,
        first=bisection.releases[0],
        last=bisection.releases[-1],
        releases=len(bisection.releases),
        rows=rows,
        changes=bisection.changes,
        verdict=verdict,
        exit_status=verdict.exit_status if interruption is None else status_of(interruption),
        seconds=round(seconds, 3),
        interrupted=interruption is not None,
    )


# -- how it is shown ---------------------------------------------------------------------------------------


def make_text(document: BisectDocument) -> str:
    """Return lines of text: the changes, and a row for each release tried."""
    table = make_table("release", "verdict", "seconds", "because", right=("seconds",), gap=2)
    for row in document.rows:
        style = {Verdict.VIOLATED: "red", Verdict.UNKNOWN: "dim"}.get(row.verdict, "")
        shown = f"{row.verdict.value} {row.law or ''}"
        table.add_row(row.release, shown, f"{row.seconds:.1f}", escaped(row.because), style=style)
    parts: list[RenderableType | tuple[str, str]] = [("\n".join(_answer(document)), "bold")]
    parts += ["\n".join(_details(document)), "", table, "", _sum_up(document)]
    return draw(*parts, fits_terminal=True)


def _answer(document: BisectDocument) -> Iterator[str]:
    yield from (_change_line(document.package, change) for change in document.changes)
    if document.changes:
        return
    judged = sum(row.verdict is not Verdict.UNKNOWN for row in document.rows)
    if judged:
        yield f"unchanged  {document.verdict.value} in each of {count_of(judged, 'release')} judged"
    else:
        yield f"unknown  none of {count_of(len(document.rows), 'release')} tried could be judged"


def _change_line(package: str, change: ReleaseChange) -> str:
    how = f"{change.was} in {change.before}, {change.now} in {change.after}"
    if not change.between:
        return f"changed  in {package} {change.after}: {how}"
    return f"changed  in {package} {', '.join(change.between)} or {change.after}: {how}, the others unknown"


def _details(document: BisectDocument) -> Iterator[str]:
    yield f"    program    {escaped(document.file)}"
    yield f"    adapter    {escaped(document.adapter)}"
    for law in dict.fromkeys(row.law for row in document.rows if row.law is not None):
        yield f"    {law:10} {find_law(law).sentence}"


def _sum_up(document: BisectDocument) -> str:
    tried = f"{len(document.rows)} of {count_of(document.releases, 'release')} tried"
    more = "" if len(document.rows) == document.releases else "; --all tries every one"
    end = "; interrupted" if document.interrupted else ""
    return f"{document.first} to {document.last}: {tried} in {document.seconds:.1f} s{end}{more}"
