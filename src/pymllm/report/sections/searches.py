"""Which law holds of which implementation, and which states worth reaching were reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from pymllm.conformance.documents import (
    AdapterRow,
    LawRow,
    ProblemRow,
    SituationsDocument,
    SoakDocument,
    VerifyDocument,
    ViolationRow,
)
from pymllm.history.operations import KINDS
from pymllm.oracle.coverage import SITUATIONS
from pymllm.oracle.coverage.situation import Situation
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import Block, Card, Fact, Section, Text, Tile, anchor_of
from pymllm.report.loading import Run, documents_of
from pymllm.report.picture import picture_of
from pymllm.report.quantities import show_time
from pymllm.report.tables import BAD, GOOD, QUIET, UNKNOWN, Cell, Column, Table, make_table, number

# -- laws ----------------------------------------------------------------------------------------------------


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
    cards: list[Block] = [_card(it, violation) for it in searches for violation in it.adapter.violations]
    problems = [_problem(it, problem) for it in searches for problem in it.adapter.problems]
    tables = []
    for kind in KINDS:
        of_kind = [it for it in searches if it.adapter.kind == kind and it.adapter.laws]
        if of_kind:
            tables.append(_table(kind, of_kind))
    tables.sort(key=lambda table: table.folded)
    return Section(
        "laws",
        "Laws by implementation",
        "First each violation, with the smallest program that the search found. Then a table for each kind: "
        "a row is a law, a column an implementation, as its newest run found it. ✓ holds: programs tested "
        "the law and none broke it; the number counts the tests. Unknown: the law applies, and no program "
        "tested it. Not claimed: the implementation does not offer what the law is about. Not about it: the "
        "law is about another kind of implementation. A table is folded if nothing in it is violated or "
        "unknown.",
        [*cards, *problems, *tables],
        list(_tiles(searches)),
    )


def _tiles(searches: Sequence[Searched]) -> Iterator[Tile]:
    """Count laws: one that several implementations have counts once, as the worst of them found it."""
    worst: dict[str, Verdict] = {}
    for verdict in (Verdict.HOLDS, Verdict.UNKNOWN, Verdict.VIOLATED):
        worst |= {law.id: verdict for it in searches for law in it.adapter.laws if law.verdict is verdict}
    counts = Counter(worst.values())
    yield Tile(f"{counts[Verdict.HOLDS]:,} of {len(worst):,}", "laws hold wherever claimed", GOOD)
    for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN):
        if count := counts[verdict]:
            yield Tile(f"{count:,}", f"law{'s' * (count > 1)} {verdict.value}", _TONES[verdict])


def _table(kind: str, searches: Sequence[Searched]) -> Table:
    sentences = {law.id: law.sentence for it in searches for law in it.adapter.laws}
    laws = sorted(sentences.items(), key=lambda item: _order(item[0]))
    count = "1 implementation" if len(searches) == 1 else f"{len(searches)} implementations"
    columns = [
        Column("law", lambda law: law[0]),
        Column("demands that", lambda law: law[1]),
        *map(_column, searches),
    ]
    alarming = any(
        law.verdict in (Verdict.VIOLATED, Verdict.UNKNOWN) for it in searches for law in it.adapter.laws
    )
    return make_table(f"{kind}: {len(laws)} laws, {count}", laws, columns, folded=not alarming)


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
            *(Fact("again", command, is_code=True) for command in commands_again(it, violation)),
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


def commands_again(it: Searched, violation: ViolationRow) -> Iterator[str]:
    """Yield the commands that show a violation again, those only that do."""
    name = quote(it.name)
    if violation.file is not None and violation.rerun_shows_it:
        yield f"pymllm rerun {quote(violation.file)} --adapter {name}"
    if violation.file is not None and violation.judge_shows_it:
        yield f"pymllm judge {quote(violation.file)}"
    if not violation.rerun_shows_it:
        yield f"pymllm verify --adapter {name} --law {quote(violation.law)} --seed {it.document.seed}"


# -- situations ----------------------------------------------------------------------------------------------


_Key = tuple[str, str]
"""Kind and name: situations of several kinds have the same name."""


@dataclass(slots=True)
class _Counted:
    """How often each situation was met, and who should have met it and did not."""

    searched: Counter[_Key] = field(default_factory=Counter)
    soaked: Counter[_Key] = field(default_factory=Counter)
    unmet: dict[_Key, set[str]] = field(default_factory=dict)
    listed: set[_Key] = field(default_factory=set)

    def times(self, it: Situation) -> int:
        """Return how often a situation was met at all."""
        return self.searched[it.kind, it.name] + self.soaked[it.kind, it.name]

    def asked(self) -> list[Situation]:
        """Return the situations that were asked for, as the registry has them, in its order."""
        asked = {*self.searched, *self.soaked, *self.unmet, *self.listed}
        # One of pools and one of engines may have the same name: then the two are counted as one.
        return list({key: it for it in SITUATIONS if (key := (it.kind, it.name)) in asked}.values())


def _count(runs: Sequence[Run]) -> _Counted:
    counted = _Counted()
    for verify, _ in documents_of(runs, VerifyDocument):
        kinds = {it.name: adapter.kind for adapter in verify.adapters for it in adapter.machines}
        for row in verify.situations:
            key = kinds.get(row.machine) or "", row.name
            counted.searched[key] += row.times
            counted.unmet.setdefault(key, set()).update(row.unmet)
    for soak, _ in documents_of(runs, SoakDocument):
        for it in soak.adapters:
            counted.soaked.update({(it.kind, name): times for name, times in it.situations.items()})
            for name in it.missing_situations:
                counted.unmet.setdefault((it.kind, name), set()).add(it.name)
    for listing, _ in documents_of(runs, SituationsDocument):
        counted.listed.update((it.kind, it.name) for it in listing.situations)
    return counted


def make_situations_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the situations over all runs; ``None`` where nobody counted them."""
    counted = _count(runs)
    asked = counted.asked()
    if not asked:
        return None
    never = [it for it in asked if not counted.times(it) and counted.unmet.get((it.kind, it.name))]
    blocks: list[Block] = [_never(never, counted)] if never else []
    for kind in KINDS:
        of_kind = [it for it in asked if it.kind == kind]
        if of_kind:
            blocks.append(_situation_table(kind, of_kind, counted))
    reached = f"{sum(counted.times(it) > 0 for it in asked)} of {len(asked)}"
    return Section(
        "situations",
        "Situations",
        "A law that was tested only in easy states was hardly tested. Situations are states in which "
        "something is at stake; the numbers say how often all runs of this report met each. Until one was "
        "reached, silence about it means nothing.",
        blocks,
        [Tile(reached, "situations reached", UNKNOWN if never else GOOD)],
    )


def _never(situations: Sequence[Situation], counted: _Counted) -> Table:
    columns = [
        Column("situation", lambda it: it.name),
        Column("kind", lambda it: it.kind),
        Column("laws at stake", lambda it: ", ".join(it.laws)),
        Column("expected of", lambda it: Cell(", ".join(sorted(counted.unmet[it.kind, it.name])), UNKNOWN)),
    ]
    return make_table("Expected, and never reached", situations, columns)


def _situation_table(kind: str, situations: Sequence[Situation], counted: _Counted) -> Table:
    def times(it: Situation, of: Counter[_Key]) -> Cell:
        return Cell(f"{of[it.kind, it.name]:,}", None if counted.times(it) else UNKNOWN)

    columns = [
        Column("situation", lambda it: it.name),
        number("in searches", lambda it: times(it, counted.searched)),
        number("in soaks", lambda it: times(it, counted.soaked)),
        Column("laws at stake", lambda it: ", ".join(it.laws)),
        Column(
            "bugs that lived in it",
            lambda it: Cell(", ".join(it.bugs) or "none known", None if it.bugs else QUIET),
        ),
    ]
    reached = sum(counted.times(it) > 0 for it in situations)
    caption = f"{kind}: {reached} of {len(situations)} reached"
    return make_table(caption, situations, columns, folded=True)
