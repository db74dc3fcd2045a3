"""``pymllm diff``: what changed from one run to another, of any kind that a report reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from pymllm.cli import options
from pymllm.cli.output import escaped
from pymllm.cli.tables import draw, make_table, tell
from pymllm.documents.programs import JudgementDocument
from pymllm.documents.runs import FAIL_ON, DiffDocument, read_as
from pymllm.errors import TraceError
from pymllm.report.quantities import count_of
from pymllm.text_file import NotJSONError, read_json, read_text_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pymllm.report.changes import Facts

_MOST_NAMES = 12


@click.command("diff", short_help="Say what changed from one run to another.")
@click.argument("before", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.argument("after", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    multiple=True,
    help="End with 1 where a law has a worse verdict, a finding is new or a fault is missed, or a figure is "
    "worse by more than its noise; any: for each of these, and for a goal that is no longer reached.",
)
@options.json
def diff_command(before: Path, after: Path, fail_on: tuple[str, ...], as_json: bool) -> int:
    """Say what changed from the first RUN to the second: laws, findings, figures, coverage goals, faults.

    A RUN is a file that --store or --json wrote, a folder with one such file or with the ledger of a soak, or
    a file of pytest-benchmark. Figures are judged on one machine and one code only, and only where each has a
    spread of its own samples: a change is more than noise where the two spreads are apart.

    Ends with 0, with 1 for what --fail-on names, with 2 for bad input, such as runs of two kinds, and with 3
    where the runs share nothing that could be compared.
    """
    from pymllm.report.changes import compare_runs

    with options.refusing():
        document = compare_runs(read_facts(before), read_facts(after), fail_on)
    return tell(document, make_text, as_json)


def read_facts(path: Path) -> Facts:
    """Read a run, or refuse what is none: `TraceError` says which line, and why."""
    facts = _of_document(path) if path.is_file() else None
    if facts is not None:
        return facts
    from pymllm.report.changes import facts_of
    from pymllm.report.loading import load_runs

    with options.refusing_unreadable():
        loaded = load_runs([path])
    if len(loaded.runs) != 1:
        named = ", ".join(run.source for run in loaded.runs[:3]) or "none that can be read"
        raise click.UsageError(f"{path}: has {len(loaded.runs)} runs ({named}); name one of them.")
    return facts_of(loaded.runs[0])


def _of_document(path: Path) -> Facts | None:
    """Read a document that no report shows, such as that of a judgement."""
    from pymllm.report.changes import Facts

    try:
        plain = read_json(read_text_file(path, errors="replace"))
        if not isinstance(plain, dict) or plain.get("schema") != "pymllm.judgement":
            return None
        facts = Facts(str(path), "judgement")
        facts.take(read_as(JudgementDocument, plain))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}.") from None
    except NotJSONError:
        return None  # lines, which are read one by one
    except ValueError as error:
        raise TraceError(str(path), None, str(error)) from None
    return facts


# -- as text -----------------------------------------------------------------------------------------------


def make_text(document: DiffDocument) -> str:
    """Lay a comparison out as text: what is worse comes first, and one line at the end sums up."""
    from pymllm.report.changes import word_of
    from pymllm.report.quantities import show

    it = document
    parts: list[RenderableType | tuple[str, str]] = [escaped(f"before  {it.before}")]
    parts.append(escaped(f"after   {it.after}"))
    if it.laws:
        table = make_table("law", "of", "before", "after", "")
        for law in it.laws:
            word = "WORSE" if law.worse else word_of(law)
            table.add_row(law.law, escaped(law.subject), law.before.value, law.after.value, word)
        parts += ["", table]
    parts += _lines(it)
    if it.figures:
        table = make_table("figure", "before", "after", "change", "", right=("before", "after", "change"))
        for row in it.figures:
            ratio = f"{(row.after - row.before) / abs(row.before):+.1%}" if row.before else ""
            word = row.test if row.verdict is None else f"{row.verdict.upper()}: {row.test}"
            values = show(row.before, row.unit), show(row.after, row.unit)
            table.add_row(escaped(row.name), *values, ratio, word)
        parts += ["", table]
    return draw(*parts, "", _sum_up(it), fits_terminal=True)


def _lines(it: DiffDocument) -> Iterator[str]:
    for finding in it.findings:
        word = "new" if finding.new else "gone"
        yield escaped(f"{word}: {finding.law or 'problem'} of {finding.subject}: {finding.message}")
    for label, names in (
        ("no longer caught", it.faults_missed),
        ("now caught", it.faults_caught),
        ("only before", it.only_before),
        ("only after", it.only_after),
    ):
        if names:
            yield escaped(f"{label}: {'; '.join(names)}")
    yield from _lost(it)


def _lost(it: DiffDocument) -> Iterator[str]:
    """Say which coverage goals are no longer reached, a paragraph for each place that reached them."""
    by_place: dict[str, list[str]] = {}
    for lost in it.goals_lost:
        name, _, place = lost.removesuffix(")").rpartition(" (")
        by_place.setdefault(place, []).append(name)
    for place, names in by_place.items():
        shown = names[:_MOST_NAMES]
        shown += [f"and {len(names) - len(shown)} more, which --json lists"] * (len(names) > len(shown))
        yield escaped(f"no longer reached by {place}: {count_of(len(names), 'coverage goal')}")
        yield from wrap(escaped("; ".join(shown)), 100, initial_indent="    ", subsequent_indent="    ")


def _sum_up(it: DiffDocument) -> str:
    from pymllm.report.changes import word_of

    failed = f"; failed on {', '.join(it.failed_on)}" if it.failed_on else ""
    if not it.compared:
        return f"{it.kind}: nothing to compare: the runs share no law, figure, fault or coverage goal{failed}"
    worse = sum(law.worse for law in it.laws)
    better = sum(word_of(law) in ("fixed", "better") for law in it.laws if not law.worse)
    left = len(it.laws) - worse - better
    new = sum(finding.new for finding in it.findings)
    judged = [row.verdict for row in it.figures if row.verdict is not None]
    words = [
        f"laws: {worse} worse, {better} better" + (f", {left} no longer tested" if left else ""),
        f"findings: {new} new, {len(it.findings) - new} gone",
        f"figures: {judged.count('worse')} worse and {judged.count('better')} better beyond noise of "
        f"{len(it.figures)} that changed",
        f"{count_of(len(it.goals_lost), 'coverage goal')} lost, "
        f"{count_of(len(it.faults_missed), 'fault')} no longer caught",
    ]
    return f"{it.kind}: {it.compared:,} compared; {'; '.join(words)}{failed}"
