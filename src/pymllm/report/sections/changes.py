"""The newest run of each kind beside the one before: laws, findings, figures, coverage goals and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pymllm.documents.runs import FigureChange, FindingChange, LawChange
from pymllm.report.blocks import BAD, GOOD, UNKNOWN, Cell, Column, Part, Tile, make_table, number
from pymllm.report.changes import is_fixed, newest_changes, word_of
from pymllm.report.loading import Run
from pymllm.report.quantities import show, show_count, show_time


def make_changes_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Lay out what changed, a table for each kind of change; all as `pymllm diff` finds it."""
    compared = list(newest_changes(runs))
    if not compared:
        return
    laws = [(it.kind, law) for it, _, _ in compared for law in it.laws]
    findings = [(it.kind, finding) for it, _, _ in compared for finding in it.findings]
    figures = [(it.kind, figure) for it, _, _ in compared for figure in it.figures if figure.verdict]
    lost = [
        (it.kind, name, "coverage goal no longer reached") for it, _, _ in compared for name in it.goals_lost
    ]
    lost += [(it.kind, id, "fault no longer caught") for it, _, _ in compared for id in it.faults_missed]
    yield make_table("Runs compared", compared, _RUNS)
    if laws:
        yield make_table("Laws with another verdict", laws, _LAWS)
    if findings:
        yield make_table("Findings of one run alone", findings, _FINDINGS)
    if figures:
        yield make_table("Figures beyond noise", figures, _FIGURES)
    if lost:
        yield make_table("No longer reached or caught", lost, _LOST, folded=True)
    verdicts = Counter(map(_verdict, (law for _, law in laws)))
    for cell in (_VIOLATED, _UNTESTED, _FIXED):
        if verdicts[cell]:
            yield Tile(show_count(verdicts[cell]), f"{cell.text} since the run before", cell.tone)


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


_KIND = Column("kind of run", lambda it: it[0])
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
    Column("verdict", lambda it: Cell(it[1].verdict, _TONES.get(it[1].verdict))),
)
_LOST = (Column("what", lambda it: it[1]), _KIND, Column("change", lambda it: Cell(it[2], UNKNOWN)))
