"""Which law holds of which implementation, and the program of each violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from pymllm.conformance.documents import AdapterRow, LawRow, ProblemRow, VerifyDocument, ViolationRow
from pymllm.history.operations import KINDS
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import Block, Card, Fact, Section, Text, Tile, anchor_of
from pymllm.report.loading import Run, documents_of
from pymllm.report.picture import picture_of
from pymllm.report.quantities import show_time
from pymllm.report.tables import BAD, GOOD, QUIET, UNKNOWN, Cell, Column, Table, make_table

_TONES = {
    Verdict.HOLDS: GOOD,
    Verdict.VIOLATED: BAD,
    Verdict.UNKNOWN: UNKNOWN,
    Verdict.NOT_CLAIMED: QUIET,
}


@dataclass(frozen=True, slots=True)
class Searched:
    """An implementation and the run that looked at it last."""

    adapter: AdapterRow
    document: VerifyDocument
    run: Run

    @property
    def name(self) -> str:
        """Of the implementation."""
        return self.adapter.name

    def law(self, id: str) -> LawRow | None:
        """Return what was found of a law; ``None`` where it is about another kind."""
        return next((law for law in self.adapter.laws if law.id == id), None)


def newest_searches(runs: Sequence[Run]) -> list[Searched]:
    """Return each implementation with its newest search, wrong on purpose last."""
    found = {
        adapter.name: Searched(adapter, document, run)
        for document, run in documents_of(runs, VerifyDocument)
        for adapter in document.adapters
    }
    return sorted(found.values(), key=lambda it: it.name.startswith("faulty-"))


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
    blocks += [_problem(it, problem) for it in searches for problem in it.adapter.problems]
    cards = [_card(it, violation) for it in searches for violation in it.adapter.violations]
    if cards:
        blocks.append(Text("Each violation, with the smallest program that was found for it:"))
    return Section(
        "laws",
        "Laws by implementation",
        "A row is a law, a column an implementation, as its newest run found it. A law holds where programs "
        "tested it and none broke it; the number says how many tests that were. Unknown: it applies, and "
        "nothing tested it. Not claimed: the implementation says that it does not offer what the law is "
        "about. Not about it: the law is about another kind of implementation.",
        [*blocks, *cards],
        list(_tiles(searches)),
    )


def _tiles(searches: Sequence[Searched]) -> Iterator[Tile]:
    counts = Counter(law.verdict for it in searches for law in it.adapter.laws)
    yield Tile(f"{counts[Verdict.HOLDS]:,}", "laws hold", GOOD)
    for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN):
        if counts[verdict]:
            yield Tile(f"{counts[verdict]:,}", f"laws {verdict.value}", _TONES[verdict])


def _table(kind: str, searches: Sequence[Searched]) -> Table:
    sentences = {law.id: law.sentence for it in searches for law in it.adapter.laws}
    laws = sorted(sentences.items(), key=lambda item: _order(item[0]))
    count = "1 implementation" if len(searches) == 1 else f"{len(searches)} implementations"
    columns = [
        Column("law", lambda law: law[0]),
        Column("demands that", lambda law: law[1]),
        *map(_column, searches),
    ]
    return make_table(f"{kind}: {len(laws)} laws, {count}", laws, columns)


def _order(law: str) -> tuple[str, int]:
    return law[0], int(law[1:]) if law[1:].isdigit() else 0


def _column(it: Searched) -> Column:
    versions = ", ".join(f"{name} {version}" for name, version in it.document.versions.items())
    drawn = f"seed {it.document.seed}, profile {it.document.profile}"
    hint = f"{show_time(it.run.time)} UTC, {drawn}; {versions}"
    return Column(it.name, lambda law: _cell(it, law[0]), is_number=True, hint=hint)


def _cell(it: Searched, id: str) -> Cell:
    law = it.law(id)
    if law is None:
        return Cell("not about it", QUIET)
    tone = _TONES[law.verdict]
    if law.verdict is Verdict.VIOLATED:
        return Cell("✗ violated", tone, f"#{anchor_of('violation', it.name, law.id)}")
    if law.verdict is Verdict.HOLDS:
        hint = f"holds: {law.tests:,} tests, {law.walks:,} walks from inside"
        return Cell(f"✓ {law.tests:,}", tone, hint=hint)
    return Cell("? unknown" if law.verdict is Verdict.UNKNOWN else law.verdict.value, tone)


def _problem(it: Searched, problem: ProblemRow) -> Text:
    where = "" if problem.file is None else f" The program until there: {problem.file}."
    return Text(f"{it.name} could not be examined to the end: {problem.message}.{where}", UNKNOWN)


def _card(it: Searched, violation: ViolationRow) -> Card:
    law = it.law(violation.law)
    lines = it.run.programs.get(violation.file or "", ())
    size = "the smallest found"
    if not violation.smallest:
        size = "perhaps not the smallest: the search was cut short"
    where = f"step {violation.step} of {violation.steps} ({config_words(violation.config)}); {size}"
    return Card(
        anchor_of("violation", it.name, violation.law),
        f"{violation.law} violated by {it.name}: {law.sentence if law else violation.message}",
        BAD,
        [
            *seen_facts(violation.message, violation.expected, violation.observed),
            Fact("at", where),
            *(Fact("again", command, is_code=True) for command in _again(it, violation)),
            Fact("found", f"{show_time(it.run.time)} UTC, in {it.run.source}"),
        ],
        violation.program,
        (violation.file or "").rsplit("/", 1)[-1] if lines else "",
        lines,
        picture_of(lines),
    )


def seen_facts(message: str, expected: str | None, observed: str | None) -> Iterator[Fact]:
    """Say what was looked at, and of what is known what was expected and observed."""
    for name, value in (("looked at", message), ("expected", expected), ("observed", observed)):
        if value is not None:
            yield Fact(name, value)


def config_words(config: dict[str, Any]) -> str:
    """Write a configuration down."""
    return ", ".join(f"{key} {value}" for key, value in config.items()) or "no configuration"


def _again(it: Searched, violation: ViolationRow) -> Iterator[str]:
    name = quote(it.name)
    if violation.file is not None and violation.rerun_shows_it:
        yield f"pymllm rerun {quote(violation.file)} --adapter {name}"
    if violation.file is not None and violation.judge_shows_it:
        yield f"pymllm judge {quote(violation.file)}"
    if not violation.rerun_shows_it:
        yield f"pymllm verify --adapter {name} --law {quote(violation.law)} --seed {it.document.seed}"
