"""The sections of laws by implementation, and of coverage goals reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from shlex import quote
from types import MappingProxyType

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.runs import GoalsDocument
from pymllm.documents.searches import AdapterRow, LawRow, VerifyDocument, ViolationRow
from pymllm.errors import InvariantViolation
from pymllm.history.operations import KINDS
from pymllm.instrument.openmetrics import Family, Sample
from pymllm.oracle.coverage import GOALS
from pymllm.oracle.laws.goal import CoverageGoal
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    GOOD,
    PAGE,
    QUIET,
    TERMINAL,
    UNKNOWN,
    Card,
    Cell,
    Column,
    Fact,
    Part,
    Table,
    Text,
    Tile,
    anchor_of,
    make_table,
    number,
    or_quiet,
)
from pymllm.report.changes import Since, find_since
from pymllm.report.findings import TONES, deviation_table, limit_words, mistake_facts, violation_facts
from pymllm.report.loading import Run, documents_of
from pymllm.report.outcomes import Case, Outcome, Suite, counted
from pymllm.report.picture import picture_of
from pymllm.report.quantities import count_of, show_count, show_time
from pymllm.text_file import cut

# -- laws ----------------------------------------------------------------------------------------------------


_LIMIT, _BUT, _ENDED = " ^", " *", " ~"
_MARKS = {
    _LIMIT: "operations that the law tests, of which steps were not done",
    _BUT: "but for known deviations",
    _ENDED: "not searched to its end, since the violation of another law ended a search",
}
"""The marks behind a verdict, with the hint for each."""


@dataclass(frozen=True, slots=True)
class Searched:
    """An implementation with its newest search."""

    adapter: AdapterRow
    document: VerifyDocument
    run: Run

    @property
    def name(self) -> str:
        """The name of the implementation."""
        return self.adapter.name

    @property
    def profile(self) -> str:
        """The length of the search: a profile, or a number of examples."""
        examples = self.document.examples
        return f"profile {self.document.profile}" if examples is None else f"{examples:,} examples"

    @property
    def cut_short(self) -> str:
        """The share of promised programs that time cut off; empty where all were played."""
        played = sum(machine.programs for machine in self.adapter.machines)
        promised = sum(machine.promised for machine in self.adapter.machines)
        return f"{played:,} of {promised:,} programs" if played < promised else ""

    def why_unknown(self) -> list[str]:
        """Return the reason why laws are unknown, or all reasons."""
        untested = [law.id for law in self.adapter.laws if law.verdict is Verdict.UNKNOWN]
        reasons = [problem.message for problem in self.adapter.problems]
        if untested and not reasons:
            reasons = [f"no program tested {', '.join(untested)}"]
        if self.cut_short:
            reasons.append(f"cut short: time was up after {self.cut_short}")
        return reasons


def newest_searches(runs: Sequence[Run]) -> list[Searched]:
    """Return each implementation with its newest search, intentionally wrong ones last."""
    found = {
        adapter.name: Searched(adapter, document, run)
        for document, run in documents_of(runs, VerifyDocument)
        for adapter in document.adapters
    }
    return sorted(found.values(), key=lambda it: it.name.startswith("faulty-"))


def make_laws_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of violations, unknown results and laws, a table for each kind of implementation."""
    searches = newest_searches(runs)
    since = find_since(runs)
    yield from search_cards(searches, since)
    for it in searches:
        for limit in it.adapter.limits:
            yield Text(f"{it.name}: {limit_words(limit)}", UNKNOWN)
        if it.cut_short:
            yield Text(f"The search of {it.name} was cut short: time was up after {it.cut_short}.", UNKNOWN)
    deviations = {(row.name, row.law): row for it in searches for row in it.document.deviations}
    if deviations:
        yield deviation_table(deviations.values())
    yield from law_tables(searches)
    if searches:
        yield from _tiles(searches)


def search_cards(searches: Sequence[Searched], since: Mapping[tuple[str, str], Since]) -> Iterator[Card]:
    """Yield a card for each violation, then for each problem with an implementation."""
    for it in searches:
        yield from (_card(it, row, since.get((it.name, row.law))) for row in it.adapter.violations)
    for it in searches:
        for place, problem in enumerate(it.adapter.problems):
            told = {
                "verdict": problem.ended,
                "because": problem.message,
                "program": problem.file,
                "last said": problem.conversation,
            }
            facts = [Fact(name, value) for name, value in told.items() if value is not None]
            id = anchor_of("problem", it.name, str(place))
            yield Card(id, f"{it.name}  could not be examined to the end", UNKNOWN, facts)


def law_tables(searches: Sequence[Searched], heads: Mapping[str, str] = MappingProxyType({})) -> list[Table]:
    """Return a table for each kind of implementation, those with broken laws first.

    A caption ends with the laws that none of the implementations claims; they have no row.
    Columns have the names of implementations, or their ``heads``.
    """
    by_kind = {kind: [it for it in searches if it.adapter.kind == kind and it.adapter.laws] for kind in KINDS}
    tables = (_table(kind, of_kind, heads) for kind, of_kind in by_kind.items() if of_kind)
    return sorted(tables, key=lambda table: table.folded)


def _tiles(searches: Sequence[Searched]) -> Iterator[Tile]:
    """Return tiles that count laws, with a law of several implementations under its worst verdict."""
    worst: dict[str, Verdict] = {}
    for verdict in (Verdict.HOLDS, Verdict.UNKNOWN, Verdict.VIOLATED):
        worst |= {law.id: verdict for it in searches for law in it.adapter.laws if law.verdict is verdict}
    counts = Counter(worst.values())
    yield Tile(f"{counts[Verdict.HOLDS]:,} of {len(worst):,}", "laws hold wherever claimed", GOOD)
    for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN):
        if counts[verdict]:
            yield Tile(f"{counts[verdict]:,}", f"laws {verdict.value}", TONES[verdict])


def _table(kind: str, searches: Sequence[Searched], heads: Mapping[str, str]) -> Table:
    sentences = {law.id: law.sentence for it in searches for law in it.adapter.laws}
    broken = {law.id for it in searches for law in it.adapter.laws if law.verdict is Verdict.VIOLATED}
    unclaimed = set(sentences) - {
        law.id for it in searches for law in it.adapter.laws if law.verdict is not Verdict.NOT_CLAIMED
    }
    laws = sorted(
        ((id, sentence) for id, sentence in sentences.items() if id not in unclaimed),
        key=lambda item: (item[0] not in broken, *_order(item[0])),
    )
    count = "1 implementation" if len(searches) == 1 else f"{len(searches)} implementations"
    columns = [
        Column("law", lambda law: law[0]),
        Column("demands that", lambda law: law[1]),
        *(_column(it, heads.get(it.name, it.name)) for it in searches),
    ]
    alarming = any(
        law.verdict in (Verdict.VIOLATED, Verdict.UNKNOWN) for it in searches for law in it.adapter.laws
    )
    caption = f"{kind}: {count_of(len(laws), 'law')}, {count}"
    if unclaimed:
        caption += f"; not claimed: {name_laws(sorted(unclaimed, key=_order))}"
    return make_table(caption, laws, columns, folded=not alarming)


def name_laws(ids: Sequence[str]) -> str:
    """Return laws by their ids, with consecutive ids as a range: ``A7, S1-S7``."""
    runs: list[list[str]] = []
    for id in ids:
        is_next = runs and id == f"{runs[-1][-1][0]}{int(runs[-1][-1][1:]) + 1}"
        runs = [*runs[:-1], [*runs[-1], id]] if is_next else [*runs, [id]]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _order(law: str) -> tuple[str, int]:
    return law[0], int(law[1:]) if law[1:].isdigit() else 0


def _column(it: Searched, head: str) -> Column:
    versions = ", ".join(f"{name} {version}" for name, version in it.document.versions.items())
    hint = f"{show_time(it.run.time)} UTC, seed {it.document.seed}, {it.profile}; {versions}"
    laws = {law.id: law for law in it.adapter.laws}
    known = {row.law for row in it.document.deviations if it.name in row.adapters}
    return Column(head, lambda law: _cell(it.name, laws.get(law[0]), known), is_number=True, hint=hint)


def marks_of(law: LawRow, is_known: bool) -> str:
    """Return the marks behind a verdict: of undone steps, known deviations, or an early end."""
    holds = law.verdict is Verdict.HOLDS
    limit = _LIMIT if law.limits and holds else ""
    return f"{limit}{_BUT if is_known else ''}{_ENDED if law.unfinished else ''}"


def _cell(name: str, law: LawRow | None, known: Collection[str]) -> Cell:
    if law is None:
        return Cell("not about it", QUIET)
    tone, marks = TONES[law.verdict], marks_of(law, law.id in known)
    if law.verdict is Verdict.VIOLATED:
        return Cell("✗ violated", tone, f"#{anchor_of('violation', name, law.id)}")
    if law.verdict is not Verdict.HOLDS:
        return Cell(f"{'? unknown' if law.verdict is Verdict.UNKNOWN else law.verdict.value}{marks}", tone)
    meant = "".join(f"; {meaning}" for mark, meaning in _MARKS.items() if mark in marks)
    hint = f"holds: {law.tests:,} tests, {law.walks:,} walks from inside{meant}"
    return Cell(f"✓ {law.tests:,}{marks}", tone, hint=hint)


def _card(it: Searched, violation: ViolationRow, since: Since | None) -> Card:
    row = next((law for law in it.adapter.laws if law.id == violation.law), None)
    tests = f"{row.broken:,} of {row.broken + row.tests:,} broke the law" if row and row.broken else ""
    facts = [
        *violation_facts(
            *(violation.message, violation.expected, violation.observed),
            *(violation.config, violation.step, violation.steps),
        ),
        *([Fact("or", f"the adapter {violation.doubt}")] if violation.doubt else []),
        Fact("file", violation.file or "could not be written", only=TERMINAL),
        *([Fact("tests", tests)] if tests else []),
        *mistake_facts(violation.mistakes),
        *_again_facts(violation, it.name, it.document.seed),
        Fact("since", str(since), only=PAGE),
        Fact("found in", f"{it.run.hint}, {it.profile}", only=PAGE),
    ]
    id = anchor_of("violation", it.name, violation.law)
    title = f"{violation.law}  VIOLATED by {it.name}: {violation.message if row is None else row.sentence}"
    card = program_card(id, title, BAD, facts, it.run, violation.file, violation.program)
    return card if violation.smallest else replace(card, note=_UNFINISHED)


_UNFINISHED = "perhaps not the smallest: the search for smaller ones was cut short"


def _again_facts(it: ViolationRow, adapter: str, seed: int) -> Iterator[Fact]:
    """Yield the commands that reproduce a violation, and one that shrinks its program."""
    commands = list(commands_again(it, adapter, seed))
    shrink = None if it.file is None else f"pymllm shrink {quote(it.file)} --adapter {quote(adapter)}"
    if not it.rerun_shows_it:
        commands[-1] += "  (the operations of the program alone do not break the law)"
        if shrink and it.played_again:
            commands.append(f"{shrink}  (repeats what drove the engine)")
    yield from (Fact("again", command, is_code=True) for command in commands)
    if shrink and not it.smallest:
        yield Fact("smaller", shrink, is_code=True)


def program_card(
    id: str,
    title: str,
    tone: str,
    facts: Sequence[Fact],
    run: Run | None,
    file: str | None,
    program: str = "",
) -> Card:
    """Return a card with a program's picture and file, if the run includes them."""
    lines = () if run is None else run.programs.get(file or "", ())
    name = (file or "").rsplit("/", 1)[-1] if lines else ""
    return Card(id, title, tone, facts, program, name, lines, picture_of(lines))


def commands_again(it: ViolationRow, adapter: str, seed: int) -> Iterator[str]:
    """Yield those commands that would reproduce a violation."""
    if it.file is not None and it.rerun_shows_it:
        yield f"pymllm rerun {quote(it.file)} --adapter {quote(adapter)}"
    if it.file is not None and it.judge_shows_it:
        yield f"pymllm judge {quote(it.file)}"
    if not it.rerun_shows_it:
        yield f"pymllm verify --adapter {quote(adapter)} --law {quote(it.law)} --seed {seed}"


# -- their outcome -------------------------------------------------------------------------------------------

_VERDICTS = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS, Verdict.NOT_CLAIMED)


def tell_searches(runs: Sequence[Run]) -> Outcome:
    """Return the outcome of the newest search of each implementation; one that failed to start is unknown."""
    searches = newest_searches(runs)
    counts = Counter(law.verdict for it in searches for law in it.adapter.laws)
    counts[Verdict.UNKNOWN] += sum(not it.adapter.laws for it in searches)
    short = counted(sum(bool(it.cut_short) for it in searches), "search", "searches")
    return Outcome(
        bad=counted(counts[Verdict.VIOLATED], "violation of a law", "violations of laws"),
        unknown="".join(f"{it} unknown" for it in counted(counts[Verdict.UNKNOWN], "verdict", "verdicts")),
        good="all laws that apply hold" if counts[Verdict.HOLDS] else "",
        short="".join(f"{it} cut short" for it in short),
        parts=[*_summary(searches, find_since(runs))],
        suites=[suite_of(it.adapter) for it in searches],
        families=[*_families(searches)],
    )


def _summary(searches: Sequence[Searched], since: Mapping[tuple[str, str], Since]) -> Iterator[Table]:
    violations = [(who, it) for who in searches for it in who.adapter.violations]
    columns = [
        Column("law", lambda it: it[1].law, is_word=True),
        Column("implementation", lambda it: it[0].name),
        Column("looked at", lambda it: it[1].message),
        Column("expected", lambda it: it[1].expected or ""),
        Column("observed", lambda it: it[1].observed or ""),
        Column("first seen", lambda it: str(since.get((it[0].name, it[1].law), ""))),
        Column("again", lambda it: next(commands_again(it[1], it[0].name, it[0].document.seed), "")),
    ]
    yield make_table("Violations", violations, columns)
    unknown = [(it.name, "; ".join(why)) for it in searches if (why := it.why_unknown())]
    yield make_table(
        "Unknown", unknown, [Column("implementation", lambda it: it[0]), Column("why", lambda it: it[1])]
    )
    rows = sorted(
        searches, key=lambda it: (_counted(it, Verdict.VIOLATED) == "0", _counted(it, Verdict.UNKNOWN) == "0")
    )
    columns = [
        Column("implementation", lambda it: it.name),
        *(number(word.value, partial(_counted, verdict=word)) for word in _VERDICTS),
        number("tests", lambda it: show_count(sum(law.tests for law in it.adapter.laws))),
        Column("searched with", lambda it: it.profile),
    ]
    yield make_table("Laws by implementation", rows, columns)


def _counted(it: Searched, verdict: Verdict) -> str:
    """Return the numbers of an implementation's laws by verdict; without laws it is unknown."""
    if not it.adapter.laws and verdict is Verdict.UNKNOWN:
        return "all"
    return show_count(sum(law.verdict is verdict for law in it.adapter.laws))


def suite_of(adapter: AdapterRow) -> Suite:
    """Return the test suite of an implementation, with a case for each law."""
    why = adapter.problems[0].message if adapter.problems else "no program tested it"
    broken = {it.law: it for it in reversed(adapter.violations)}
    cases = [_case(adapter, law, broken.get(law.id), why) for law in adapter.laws]
    cases = cases or [Case(adapter.name, "smoke test", "error", why)]
    return Suite(adapter.name, sum(machine.seconds for machine in adapter.machines), cases)


def _case(adapter: AdapterRow, law: LawRow, it: ViolationRow | None, why: str) -> Case:
    said: tuple[str, ...] = ()
    if law.verdict is Verdict.VIOLATED and it is None:
        said = ("failure", "violated")
    elif law.verdict is Verdict.VIOLATED and it is not None:
        message = str(InvariantViolation(it.law, it.message, expected=it.expected, observed=it.observed))
        said = ("failure", message, f"{message}\n\n{it.program}")
    elif law.verdict is Verdict.UNKNOWN:
        said = ("error", why)
    elif law.verdict is Verdict.NOT_CLAIMED:
        said = ("skipped", "not claimed")
    return Case(adapter.name, f"{law.id} {law.sentence}", *said)


def _families(searches: Sequence[Searched]) -> Iterator[Family]:
    counts = tuple(
        Sample(
            sum(law.verdict is verdict for law in it.adapter.laws),
            {"adapter": it.name, "verdict": verdict.value.replace(" ", "_")},
        )
        for it in searches
        for verdict in Verdict
    )
    yield Family("pymllm_laws", "gauge", "", "Laws of each implementation by verdict.", counts)
    broken = tuple(
        Sample(1, {"adapter": it.name, "law": law.id})
        for it in searches
        for law in it.adapter.laws
        if law.verdict is Verdict.VIOLATED
    )
    yield Family("pymllm_law_violated", "gauge", "", "Laws that are violated.", broken)
    # An implementation that could not be loaded has no law, and would otherwise be a row of zeros.
    problems = {
        (it.name, cut(problem.message, 200)): it for it in searches for problem in it.adapter.problems
    }
    told = tuple(Sample(1, {"adapter": name, "reason": reason}) for name, reason in problems)
    yield Family("pymllm_problem", "gauge", "", "Why implementations could not be examined to the end.", told)


# -- coverage goals ------------------------------------------------------------------------------------------


_Key = tuple[str, str]
"""The kind and name of a coverage goal, since goals of several kinds share names."""


@dataclass(slots=True)
class _Counted:
    """The number of times that coverage goals were reached, and the machines that missed expected ones."""

    searched: Counter[_Key] = field(default_factory=Counter)
    soaked: Counter[_Key] = field(default_factory=Counter)
    unmet: dict[_Key, set[str]] = field(default_factory=dict)
    listed: set[_Key] = field(default_factory=set)

    def times(self, it: CoverageGoal) -> int:
        """Return how often a coverage goal was reached."""
        return self.searched[it.kind, it.name] + self.soaked[it.kind, it.name]

    def asked(self) -> list[CoverageGoal]:
        """Return the expected coverage goals in the registry's order."""
        asked = {*self.searched, *self.soaked, *self.unmet, *self.listed}
        # One of pools and one of engines may have the same name: then the two are counted as one.
        return list({key: it for it in GOALS if (key := (it.kind, it.name)) in asked}.values())


def _count(runs: Sequence[Run]) -> _Counted:
    counted = _Counted()
    for verify, _ in documents_of(runs, VerifyDocument):
        kinds = {it.name: adapter.kind for adapter in verify.adapters for it in adapter.machines}
        for row in verify.goals:
            key = kinds.get(row.machine) or "", row.name
            counted.searched[key] += row.times
            counted.unmet.setdefault(key, set()).update(row.unmet)
    for soak, _ in documents_of(runs, SoakDocument):
        for it in soak.adapters:
            counted.soaked.update({(it.kind, name): times for name, times in it.goals.items()})
            for name in it.missing_goals:
                counted.unmet.setdefault((it.kind, name), set()).add(it.name)
    for listing, _ in documents_of(runs, GoalsDocument):
        counted.listed.update((it.kind, it.name) for it in listing.goals)
    return counted


def make_goals_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of coverage goals over all runs, expected but unreached ones first."""
    counted = _count(runs)
    asked = counted.asked()
    never = [it for it in asked if not counted.times(it) and counted.unmet.get((it.kind, it.name))]
    if never:
        yield _never(never, counted)
    for kind in KINDS:
        of_kind = [it for it in asked if it.kind == kind]
        if of_kind:
            yield _goal_table(kind, of_kind, counted)
    if asked:
        reached = f"{sum(counted.times(it) > 0 for it in asked):,} of {len(asked):,}"
        yield Tile(reached, "coverage goals reached", UNKNOWN if never else GOOD)


def _never(goals: Sequence[CoverageGoal], counted: _Counted) -> Table:
    columns = [
        Column("coverage goal", lambda it: it.name),
        Column("kind", lambda it: it.kind),
        Column("laws at stake", lambda it: ", ".join(it.laws)),
        Column("expected of", lambda it: Cell(", ".join(sorted(counted.unmet[it.kind, it.name])), UNKNOWN)),
    ]
    return make_table("Expected, and never reached", goals, columns)


def _goal_table(kind: str, goals: Sequence[CoverageGoal], counted: _Counted) -> Table:
    def times(it: CoverageGoal, of: Counter[_Key]) -> Cell:
        return Cell(f"{of[it.kind, it.name]:,}", None if counted.times(it) else UNKNOWN)

    columns = [
        Column("coverage goal", lambda it: it.name),
        number("in searches", lambda it: times(it, counted.searched)),
        number("in soaks", lambda it: times(it, counted.soaked)),
        Column("laws at stake", lambda it: ", ".join(it.laws)),
        Column("bugs found in it", lambda it: or_quiet(", ".join(it.bugs) or None, missing="none known")),
    ]
    reached = sum(counted.times(it) > 0 for it in goals)
    caption = f"{kind}: {reached} of {len(goals)} reached"
    return make_table(caption, goals, columns, folded=True)
