"""The section that a terminal shows for a search: verdicts, their evidence, tables, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from shlex import quote

from pymllm.documents.searches import (
    AdapterRow,
    LawRow,
    VerifyDocument,
    merge_laws,
)
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    BRIEF,
    ENDING,
    UNKNOWN,
    VERBOSE,
    Cell,
    Column,
    Part,
    Table,
    Text,
    make_table,
    number,
)
from pymllm.report.findings import TONES, deviation_table, known_texts, limit_words
from pymllm.report.loading import Run, grouped
from pymllm.report.outcomes import Case, Suite
from pymllm.report.quantities import count_of, kept_words, show_count
from pymllm.report.sections.searches import (
    law_tables,
    marks_of,
    name_laws,
    newest_searches,
    search_cards,
    suite_of,
)

WORDS = {
    Verdict.VIOLATED: "VIOLATED",
    Verdict.UNKNOWN: "UNKNOWN",
    Verdict.HOLDS: "holds",
    Verdict.NOT_CLAIMED: "not claimed",
}
"""Words for verdicts in the order of the table, those that need attention first."""
_LOUD = {Verdict.VIOLATED: BAD, Verdict.UNKNOWN: UNKNOWN}


def make_verify_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of a search: each law once over all adapters, and the coverage goals reached."""
    (it,) = runs[0].documents
    laws = judged_laws(it)
    yield from _settings(it, f", {count_of(it.jobs or 1, 'process', 'processes')}")
    yield from _verdicts(it, laws)
    yield from search_cards(newest_searches(runs), {})
    if it.deviations:
        yield deviation_table(it.deviations)
    claimed = [law for law in laws if law.verdict is not Verdict.NOT_CLAIMED]
    if laws:
        yield _law_table(claimed, it.adapters, {row.law for row in it.deviations if row.programs})
    yield from _unclaimed(laws)
    if laws and it.invariants:
        yield _invariants(it)
    if it.goals:
        yield from _goals(it)
    for adapter in (adapter for adapter in it.adapters if adapter.machines):
        yield replace(_law_table(adapter.laws, [adapter]), caption=adapter.name, only=VERBOSE)
        yield _machines(adapter)
    if laws:
        yield Text("--verbose explains the words of these tables", only=BRIEF)
    counts = ", ".join(_counted(laws))
    yield Text(f"{f'laws: {counts}' if laws else 'no law was judged'}; {_ended(it)}", ENDING)


def make_compare_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of a comparison: a table for each kind, with a column for each implementation."""
    (it,) = runs[0].documents
    searches = newest_searches(runs)
    yield from _settings(it)
    numbers = {adapter.name: str(number) for number, adapter in enumerate(it.adapters, 1)}
    for adapter in it.adapters:
        kind = adapter.kind or "could not be loaded"
        yield Text(f"{numbers[adapter.name]:>3}  {quote(adapter.name)} ({kind})")
    yield Text("")
    yield from _verdicts(it, judged_laws(it))
    yield from (replace(card, program="") for card in search_cards(searches, {}))
    if it.deviations:
        yield deviation_table(it.deviations)
    tables = law_tables([it for it in searches if it.adapter.machines], numbers)
    if len(tables) == 1:  # a terminal shows captions only of several tables
        yield Text(tables[0].caption)
    yield from tables
    counts = ", ".join(_counted(law for adapter in it.adapters if adapter.machines for law in adapter.laws))
    yield Text(f"pairs of law and implementation: {counts}; {_ended(it)}", ENDING)


def judged_laws(document: VerifyDocument) -> tuple[LawRow, ...]:
    """Return the results of each law over all adapters that could be examined."""
    return merge_laws(adapter for adapter in document.adapters if adapter.machines)


def _settings(it: VerifyDocument, jobs: str = "") -> Iterator[Text]:
    """Yield the settings of a search, with the length of its programs."""
    named = it.versions | ({} if it.release is None else {it.release.package: it.release.version})
    versions = "  ".join(f"{name} {version}" for name, version in named.items())
    amount = "" if it.examples is None else f", {it.examples:,} per machine and configuration"
    yield Text(versions)
    depth = f"programs of up to {it.acts_max} acts{amount}"
    yield Text(f"profile {it.profile}: {depth}, seed {it.seed}{jobs}")
    yield Text("")


def _verdicts(document: VerifyDocument, merged: Sequence[LawRow]) -> Iterator[Text]:
    """Yield the verdicts, worst first: violated laws, then unknown ones; or that all hold."""
    judged = [adapter for adapter in document.adapters if adapter.machines]
    laws = [law for law in merged if law.verdict is not Verdict.NOT_CLAIMED]
    is_fine = len(judged) == len(document.adapters)
    for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN):
        found = [law.id for law in laws if law.verdict is verdict]
        if found and len(judged) > 1:
            own = {(it.name, row.id) for it in judged for row in it.laws if row.verdict is verdict}
            found = [f"{id} ({', '.join(it.name for it in judged if (it.name, id) in own)})" for id in found]
        if found:
            yield _said(verdict, f"{len(found)} of {len(laws)} laws that apply: {', '.join(found)}")
            is_fine = False
    for adapter in document.adapters:
        if adapter not in judged:
            name = adapter.name
            yield _said(Verdict.UNKNOWN, f"{name} could not be examined, so none of its laws was judged")
    yield from known_texts(document.deviations)
    yield from passed_over(document)
    limits = [f"{adapter.name} {limit_words(it)}" for adapter in judged for it in adapter.limits]
    yield from (Text(f"limits    {limit}", UNKNOWN) for limit in limits)
    if is_fine and document.verdict is Verdict.UNKNOWN:
        yield _said(Verdict.UNKNOWN, "the search did not get to its end")
    elif is_fine and laws:
        but = ", but for the limits above" if limits else ""
        yield _said(Verdict.HOLDS, f"all {count_of(len(laws), 'law')} that apply{but}")
    elif is_fine:
        yield _said(Verdict.NOT_CLAIMED, "no law applies")


def passed_over(document: VerifyDocument) -> Iterator[Text]:
    """Return words for the broken laws that the search was not about."""
    if found := document.passed_over:
        laws = ", ".join(f"{law} in {count_of(count, 'program')}" for law, count in found.items())
        yield Text(f"beside    not asked for, and broken: {laws}", UNKNOWN)


def _said(verdict: Verdict, text: str) -> Text:
    return Text(f"{WORDS[verdict]:8}  {text}", TONES[verdict])


def _counted(laws: Iterable[LawRow]) -> Iterator[str]:
    counts = Counter(law.verdict for law in laws)
    for verdict in WORDS:
        yield f"{counts[verdict]} {'hold' if verdict is Verdict.HOLDS else verdict.value}"


def _ended(it: VerifyDocument) -> str:
    """Return words for the amount played, and any shortfall from the amount promised."""
    steps = sum(machine.steps for adapter in it.adapters for machine in adapter.machines)
    amount = f"{count_of(it.programs, 'program')}, {count_of(steps, 'step')}"
    short = cut_short(it)
    return f"{amount}, {it.seconds:.1f} s{kept_words(it.kept)}{short and f'; {short}'}"


def cut_short(document: VerifyDocument) -> str:
    """Return words for a shortfall from the amount promised, or an empty text."""
    if document.programs >= document.promised:
        return ""
    failed = "failed by --strict: " if document.strict else ""
    amount = f"played {document.programs:,} of {document.promised:,} promised programs"
    return f"{failed}CUT SHORT: time was up, {amount}"


def _law_table(laws: Iterable[LawRow], adapters: Sequence[AdapterRow], known: Collection[str] = ()) -> Table:
    same = Counter((law.id, law.verdict) for adapter in adapters if adapter.machines for law in adapter.laws)

    def verdict(law: LawRow) -> Cell:
        return Cell(f"{WORDS[law.verdict]}{marks_of(law, law.id in known)}", _LOUD.get(law.verdict))

    columns = [
        Column("law", lambda law: law.id),
        Column("demands that", lambda law: law.sentence),
        Column("verdict", verdict),
        number("tests", _tests),
        number("walks", lambda law: show_count(law.walks) if law.walks else "-"),
        number("adapters", lambda law: str(same[law.id, law.verdict])),
    ]
    order = list(WORDS)
    return make_table("Laws", sorted(laws, key=lambda law: order.index(law.verdict)), columns)


def _tests(law: LawRow) -> str:
    tests = show_count(law.tests + law.broken)
    return f"{law.broken:,} of {tests}" if law.broken else tests


def _unclaimed(laws: Iterable[LawRow]) -> Iterator[Text]:
    """Yield one line with the number and names of laws that no adapter claims, if any."""
    ids = [law.id for law in laws if law.verdict is Verdict.NOT_CLAIMED]
    if ids:
        told = f"not claimed: {count_of(len(ids), 'law')}, {name_laws(ids)}"
        yield Text(told, only=VERBOSE)
        yield Text(f"{told} (--verbose lists them)", only=BRIEF)


def _invariants(document: VerifyDocument) -> Table:
    columns = [
        Column("invariant", lambda it: it.name),
        Column("verdict", lambda it: Cell(WORDS[it.verdict], _LOUD.get(it.verdict))),
        Column("laws", lambda it: ", ".join(it.laws)),
    ]
    return make_table("Invariants", document.invariants, columns)


def _goals(document: VerifyDocument) -> Iterator[Part]:
    """Yield the expected and reached coverage goals of each machine, with the missed ones by name."""
    machines = grouped(document.goals, lambda it: it.machine)
    reached = [
        Column("machine", lambda it: it[0]),
        number("coverage goals reached", lambda it: f"{sum(not row.unmet for row in it[1])} of {len(it[1])}"),
    ]
    yield make_table("Coverage goals", machines.items(), reached)
    unmet = [row for row in document.goals if row.unmet]
    for machine, rows in grouped(unmet, lambda it: it.machine).items():
        names = "; ".join(f"{row.name} ({', '.join(row.unmet)})" for row in rows)
        told = f"never reached by the {machine}: {names}"
        yield Text(told, BAD) if document.strict else Text(told, only=VERBOSE)
    if unmet and not document.strict:
        names = "one" if len(unmet) == 1 else str(len(unmet))
        yield Text(f"--verbose names the {names} that no program reached", only=BRIEF)
    counts = [
        Column("machine", lambda it: it.machine),
        Column("coverage goal", lambda it: it.name),
        number("times", lambda it: show_count(it.times)),
        Column("never reached with", lambda it: ", ".join(it.unmet) or "-"),
    ]
    yield make_table("Coverage goals, each", document.goals, counts, only=VERBOSE)


def _machines(adapter: AdapterRow) -> Table:
    columns = [
        Column("machine", lambda it: it.name),
        *map(_count_column, ("configurations", "programs", "promised", "steps")),
        number("time", lambda it: f"{it.seconds:.1f} s"),
        number("steps/s", lambda it: f"{it.steps_per_second:,.0f}"),
    ]
    return make_table(f"{adapter.name}: machines", adapter.machines, columns, only=VERBOSE)


def _count_column(name: str) -> Column:
    return number(name, lambda it: show_count(getattr(it, name)))


def suites_of(document: VerifyDocument) -> Iterator[Suite]:
    """Yield test suites: for each adapter, the goals of a strict search, and known deviations."""
    yield from map(suite_of, document.adapters)
    if document.strict and document.goals:
        told = [
            (it, f"never reached with {', '.join(it.unmet)}" if it.unmet else "") for it in document.goals
        ]
        cases = [Case(it.machine, it.name, "failure" if why else None, why) for it, why in told]
        yield Suite("coverage goals", 0.0, cases)
    if document.deviations:
        outcome = {"gone": "failure" if document.strict else "skipped"}
        yield Suite(
            "known deviations",
            0.0,
            [
                Case(it.law, it.name, outcome.get(it.status), "no program met it")
                for it in document.deviations
            ],
        )
