"""The section of changes between two runs: laws, findings, figures, coverage goals and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pymllm.documents.runs import DiffDocument, FigureChange, FindingChange, LawChange
from pymllm.report.blocks import (
    BAD,
    ENDING,
    GOOD,
    PAGE,
    TERMINAL,
    UNKNOWN,
    Cell,
    Column,
    Part,
    Text,
    Tile,
    make_table,
    number,
)
from pymllm.report.changes import is_fixed, newest_changes, word_of
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.outcomes import Outcome
from pymllm.report.quantities import count_of, show, show_count, show_time

_MOST_NAMES = 12


_Compared = tuple[DiffDocument, Run, Run]


def make_changes_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return a section with a table for each kind of change between two runs, as in `pymllm diff`."""
    diffs: list[_Compared] = [(it, run, run) for it, run in documents_of(runs, DiffDocument)]
    compared = diffs or list(newest_changes(runs))
    if not compared:
        return
    for it, _, _ in compared:
        yield Text(f"before  {it.before}", only=TERMINAL)
        yield Text(f"after   {it.after}", only=TERMINAL)
    laws = [(it.kind, law) for it, _, _ in compared for law in it.laws]
    findings = [(it.kind, finding) for it, _, _ in compared for finding in it.findings]
    figures = [(it.kind, figure) for it, _, _ in compared for figure in it.figures]
    judged = [(kind, figure) for kind, figure in figures if figure.verdict]
    lost = [
        (it.kind, name, "coverage goal no longer reached") for it, _, _ in compared for name in it.goals_lost
    ]
    lost += [(it.kind, id, "fault no longer caught") for it, _, _ in compared for id in it.faults_missed]
    yield make_table("Runs compared", compared, _RUNS, only=PAGE)
    if laws:
        yield make_table("Laws with another verdict", laws, _LAWS)
    if findings:
        yield make_table("Findings of one run alone", findings, _FINDINGS)
    for shown, place in ((judged, PAGE), (figures, TERMINAL)):
        if shown:
            yield make_table(
                "Figures beyond noise" if place == PAGE else "Figures", shown, _FIGURES, only=place
            )
    if lost:
        yield make_table("No longer reached or caught", lost, _LOST, folded=True, only=PAGE)
    for it, _, _ in compared:
        yield from (Text(line, only=TERMINAL) for line in _lines(it))
        yield Text(_sum_up(it), ENDING, only=TERMINAL)
    verdicts = Counter(map(_verdict, (law for _, law in laws)))
    for cell in (_VIOLATED, _UNTESTED, _FIXED):
        if verdicts[cell]:
            yield Tile(show_count(verdicts[cell]), f"{cell.text} since the run before", cell.tone)


def tell_changes(runs: Sequence[Run]) -> Outcome:
    """Return an outcome of laws that were fixed, and of figures that changed beyond their noise."""
    changes = list(newest_changes(runs))
    fixed = [(law, *found) for it, *found in changes for law in it.laws if is_fixed(law)]
    columns = [
        Column("law", lambda it: it[0].law, is_word=True),
        Column("implementation", lambda it: it[0].subject),
        Column("violated in", lambda it: it[1].hint),
        Column("holds in", lambda it: it[2].hint),
    ]
    moved = [(it.kind, figure) for it, _, _ in changes for figure in it.figures if figure.verdict]
    moved.sort(key=lambda it: it[1].verdict != "worse")
    verdict = Column("verdict", lambda it: it[1].verdict, is_word=True)
    figures = [*(it for it in _FIGURES if it.name not in (_KIND.name, verdict.name)), verdict]
    return Outcome(
        parts=[make_table("Fixed", fixed, columns), make_table("Figures beyond noise", moved, figures)]
    )


def _lines(it: DiffDocument) -> Iterator[str]:
    """Return lines for facts that only one run has; of many coverage goals in a place, only the first."""
    for label, names in (
        ("no longer caught", it.faults_missed),
        ("now caught", it.faults_caught),
        ("only before", it.only_before),
        ("only after", it.only_after),
    ):
        if names:
            yield f"{label}: {'; '.join(names)}"
    goals = (lost.removesuffix(")").rpartition(" (") for lost in it.goals_lost)
    for place, lost in grouped(goals, lambda parts: parts[2]).items():
        shown = [name for name, _, _ in lost[:_MOST_NAMES]]
        shown += [f"and {len(lost) - len(shown)} more, which --json lists"] * (len(lost) > len(shown))
        yield f"no longer reached by {place}: {count_of(len(lost), 'coverage goal')}: {'; '.join(shown)}"


def _sum_up(it: DiffDocument) -> str:
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


def _run(run: Run) -> Cell:
    return Cell(f"{show_time(run.time)}{f', {run.commit_words}' if run.commit else ''}", hint=run.source)


def _count(count: int, tone: str) -> Cell:
    return Cell(show_count(count), tone if count else None)


_VIOLATED = Cell("newly violated", BAD)
_UNTESTED = Cell("no longer tested", UNKNOWN)
_FIXED = Cell("fixed", GOOD)


def _verdict(it: LawChange) -> Cell:
    word = word_of(it)
    named = {cell.text: cell for cell in (_VIOLATED, _UNTESTED, _FIXED)}
    return named.get(word, Cell(word, GOOD if word == "better" else None))


def _found(it: FindingChange) -> Cell:
    return Cell("new", BAD if it.law else UNKNOWN) if it.new else Cell("gone")


def _by(it: FigureChange) -> str:
    return f"{(it.after - it.before) / abs(it.before):+.1%}" if it.before else "from zero"


def _judged(it: FigureChange) -> Cell:
    return Cell(it.test if it.verdict is None else f"{it.verdict}: {it.test}", _TONES.get(it.verdict or ""))


_KIND = Column("kind of run", lambda it: it[0], only=PAGE)
_RUNS = (
    Column("kind of run", lambda it: it[0].kind),
    Column("before", lambda it: _run(it[1]), is_word=True),
    Column("after", lambda it: _run(it[2]), is_word=True),
    number("laws worse", lambda it: _count(sum(law.worse for law in it[0].laws), UNKNOWN)),
    number("laws fixed", lambda it: _count(sum(map(is_fixed, it[0].laws)), GOOD)),
    number("new findings", lambda it: _count(sum(finding.new for finding in it[0].findings), BAD)),
    number("figures changed", lambda it: show_count(len(it[0].figures))),
    number("of them beyond noise", lambda it: show_count(sum(bool(one.verdict) for one in it[0].figures))),
)
_LAWS = (
    Column("law", lambda it: it[1].law),
    Column("implementation", lambda it: it[1].subject),
    _KIND,
    Column("before", lambda it: it[1].before.value),
    Column("after", lambda it: it[1].after.value),
    Column("change", lambda it: _verdict(it[1])),
)
_FINDINGS = (
    Column("finding", lambda it: it[1].law or "problem"),
    Column("implementation", lambda it: it[1].subject),
    _KIND,
    Column("looked at", lambda it: it[1].message),
    Column("change", lambda it: _found(it[1])),
)
_TONES = {"worse": BAD, "better": GOOD}
_FIGURES = (
    Column("figure", lambda it: it[1].name),
    _KIND,
    number("before", lambda it: show(it[1].before, it[1].unit)),
    number("after", lambda it: show(it[1].after, it[1].unit)),
    number("change", lambda it: _by(it[1])),
    Column("verdict", lambda it: _judged(it[1])),
)
_LOST = (Column("what", lambda it: it[1]), _KIND, Column("change", lambda it: Cell(it[2], UNKNOWN)))
