"""Which law holds of which implementation, and the program of each violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote

from pymllm.history.operations import KINDS
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    GOOD,
    QUIET,
    UNKNOWN,
    Block,
    Card,
    Cell,
    Column,
    Fact,
    Section,
    Table,
    Text,
    Tile,
    anchor_of,
)
from pymllm.report.loading import Run
from pymllm.report.quantities import show_time
from pymllm.report.search_documents import LawRow, ProblemRow, SearchedAdapter, VerifyDocument, ViolationRow

__all__ = ["LAWS", "Searched", "make_laws_section", "newest_searches"]

LAWS = "laws"
"""Id of the section."""

_TONES = {
    Verdict.HOLDS.value: GOOD,
    Verdict.VIOLATED.value: BAD,
    Verdict.UNKNOWN.value: UNKNOWN,
    Verdict.NOT_CLAIMED.value: QUIET,
}
_ORDER = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS, Verdict.NOT_CLAIMED)


@dataclass(frozen=True, slots=True)
class Searched:
    """An implementation and the run that looked at it last."""

    adapter: SearchedAdapter
    document: VerifyDocument
    run: Run


def newest_searches(runs: Sequence[Run]) -> list[Searched]:
    """Return each implementation with its newest search, wrong on purpose last."""
    found: dict[str, Searched] = {}
    for run in runs:
        for document in run.documents:
            if isinstance(document, VerifyDocument):
                for adapter in document.adapters:
                    found[adapter.name] = Searched(adapter, document, run)
    return sorted(found.values(), key=lambda it: it.adapter.name.startswith("faulty-"))


def make_laws_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the laws, one table for each kind of implementation; ``None`` where nothing was searched."""
    searches = newest_searches(runs)
    if not searches:
        return None
    blocks: list[Block] = []
    for kind in KINDS:
        of_kind = [it for it in searches if it.adapter.kind == kind and it.adapter.laws]
        if of_kind:
            blocks.append(_table(kind, of_kind))
    for it in searches:
        blocks += [_problem(it, problem) for problem in it.adapter.problems]
    cards = [_card(it, violation) for it in searches for violation in it.adapter.violations]
    if cards:
        blocks.append(Text("Each violation, with the smallest program that was found for it:"))
    return Section(
        LAWS,
        "Laws by implementation",
        "A row is a law, a column an implementation, as its newest run found it. A law holds where programs "
        "tested it and none broke it; the number says how many tests that were. Unknown: it applies, and "
        "nothing tested it. Not claimed: the implementation says that it does not offer what the law is "
        "about. Not about it: the law is about another kind of implementation.",
        [*blocks, *cards],
        tuple(_tiles(searches)),
    )


def _tiles(searches: Sequence[Searched]) -> Iterator[Tile]:
    counts = Counter(law.verdict for it in searches for law in it.adapter.laws)
    yield Tile(f"{counts['holds']:,}", "laws hold", GOOD, f"#{LAWS}")
    for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN):
        if counts[verdict.value]:
            name = "laws violated" if verdict is Verdict.VIOLATED else "laws unknown"
            yield Tile(f"{counts[verdict.value]:,}", name, _TONES[verdict.value], f"#{LAWS}")


def _table(kind: str, searches: Sequence[Searched]) -> Table:
    sentences = {law.id: law.sentence for it in searches for law in it.adapter.laws}
    columns = [Column("law"), Column("demands that")]
    columns += [Column(it.adapter.name, is_number=True, hint=_where(it)) for it in searches]
    rows = []
    for law, sentence in sorted(sentences.items(), key=lambda item: _law_order(item[0])):
        cells = [_cell(it, next((row for row in it.adapter.laws if row.id == law), None)) for it in searches]
        rows.append((Cell(law), Cell(sentence), *cells))
    count = "1 implementation" if len(searches) == 1 else f"{len(searches)} implementations"
    return Table(f"{kind}: {len(sentences)} laws, {count}", tuple(columns), tuple(rows))


def _law_order(law: str) -> tuple[str, int]:
    return law[0], int(law[1:]) if law[1:].isdigit() else 0


def _where(it: Searched) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in it.document.versions.items())
    return f"{show_time(it.run.time)} UTC, seed {it.document.seed}, profile {it.document.profile}; {versions}"


def _cell(it: Searched, law: LawRow | None) -> Cell:
    if law is None:
        return Cell("not about it", QUIET)
    tone = _TONES.get(law.verdict)
    if law.verdict == Verdict.VIOLATED.value:
        return Cell("✗ violated", tone, f"#{anchor_of('violation', it.adapter.name, law.id)}")
    if law.verdict == Verdict.HOLDS.value:
        return Cell(
            f"✓ {law.tests:,}", tone, hint=f"holds: {law.tests:,} tests, {law.walks:,} walks from inside"
        )
    return Cell("? unknown" if law.verdict == Verdict.UNKNOWN.value else law.verdict, tone)


def _problem(it: Searched, problem: ProblemRow) -> Text:
    where = "" if problem.file is None else f" The program until there: {problem.file}."
    return Text(f"{it.adapter.name} could not be examined to the end: {problem.message}.{where}", UNKNOWN)


def _card(it: Searched, violation: ViolationRow) -> Card:
    law = next((row for row in it.adapter.laws if row.id == violation.law), None)
    lines = it.run.programs.get(violation.file or "", ())
    facts = [Fact("looked at", violation.message)]
    for name, value in (("expected", violation.expected), ("observed", violation.observed)):
        if value is not None:
            facts.append(Fact(name, value))
    config = ", ".join(f"{key} {value}" for key, value in violation.config.items()) or "no configuration"
    size = (
        "the smallest found" if violation.smallest else "perhaps not the smallest: the search was cut short"
    )
    facts.append(Fact("at", f"step {violation.step} of {violation.steps} ({config}); {size}"))
    facts += [Fact("again", command, is_code=True) for command in _again(it, violation)]
    facts.append(Fact("found", f"{show_time(it.run.time)} UTC, in {it.run.source}"))
    return Card(
        anchor_of("violation", it.adapter.name, violation.law),
        f"{violation.law} violated by {it.adapter.name}: {law.sentence if law else violation.message}",
        BAD,
        tuple(facts),
        violation.program,
        (violation.file or "").rsplit("/", 1)[-1] if lines else "",
        lines,
    )


def _again(it: Searched, violation: ViolationRow) -> Iterator[str]:
    name = quote(it.adapter.name)
    if violation.file is not None and violation.rerun_shows_it:
        yield f"pymllm rerun {quote(violation.file)} --adapter {name}"
    if violation.file is not None and violation.judge_shows_it:
        yield f"pymllm judge {quote(violation.file)}"
    if not violation.rerun_shows_it:
        yield f"pymllm verify --adapter {name} --law {quote(violation.law)} --seed {it.document.seed}"
