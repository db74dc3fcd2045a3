"""The results of a search, laid out: as text, as lines beside a JSON document, as JUnit XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pymllm.cli.output import complain, escaped
from pymllm.cli.search.search_files import earlier_lines
from pymllm.cli.tables import (
    card_lines,
    cards_of,
    deviation_lines,
    draw,
    make_legend,
    make_table,
    problem_lines,
)
from pymllm.documents.searches import AdapterRow, CoverageRow, LawRow, VerifyDocument
from pymllm.oracle.verdicts import Verdict
from pymllm.report.findings import deviation_table, limit_words
from pymllm.report.quantities import count_of, kept_words

if TYPE_CHECKING:
    from rich.table import Table

    from pymllm.cli.tables import Drawn

WORDS = {
    Verdict.VIOLATED: "VIOLATED",
    Verdict.UNKNOWN: "UNKNOWN",
    Verdict.HOLDS: "holds",
    Verdict.NOT_CLAIMED: "not claimed",
}
"""In the order of the table: first what somebody has to look at."""
COUNTED = {**{verdict: verdict.value for verdict in WORDS}, Verdict.HOLDS: "hold"}
MEANINGS = {
    Verdict.VIOLATED: "a program broke the law",
    Verdict.UNKNOWN: "the law applies, but no program tested it, or the search ended with an error",
    Verdict.HOLDS: "programs tested the law, and none broke it",
    Verdict.NOT_CLAIMED: "the law is about something that the adapter does not claim to do",
}
_COLOURS = {Verdict.VIOLATED: "red", Verdict.UNKNOWN: "yellow", Verdict.HOLDS: "green"}

LIMIT, LIMITED = " ^", "operations that the law tests, of which steps were not done, as is told above"
BUT, BUT_FOR = " *", "but for deviations that are listed above"
ENDED = " ~"
ENDED_BY = "not searched to its end, since the violation of another law ended a search: mend that first"


def make_text(document: VerifyDocument, *, verbose: bool = False, earlier: Sequence[str] = ()) -> str:
    """Lay a verification out as text; ``verbose`` has every coverage goal, adapter and machine, too.

    ``earlier`` are files of other searches that lie beside those of this one.
    """
    it, laws = document, judged_laws(document)
    parts: list[Drawn] = [
        f"{heading(it)}, {count_of(it.jobs or 1, 'process', 'processes')}\n",
        *verdict_lines(it),
    ]
    for card in cards_of(it):
        parts += card_lines(card)
    parts += [*problem_lines(it.adapters), *earlier_lines(earlier)]
    if it.deviations:
        parts += ["", deviation_table(it.deviations)]
    if laws:
        claimed = [law for law in laws if law.verdict is not Verdict.NOT_CLAIMED]
        parts += ["", _law_table(claimed, it.adapters, {row.law for row in it.deviations if row.programs})]
        parts += _unclaimed_lines(laws, verbose=verbose)
    if laws and it.invariants:
        parts += ["", _invariant_table(it)]
    if it.goals:
        parts += ["", _goal_table(it.goals)]
        unmet = sum(bool(row.unmet) for row in it.goals)
        if verbose or it.strict:
            parts += [(line, "bold" if it.strict else "") for line in _never_reached(it.goals)]
        elif unmet:
            parts.append(f"--verbose names the {'one' if unmet == 1 else unmet} that no program reached")
    if laws:
        parts += ["", make_legend(_legend(it, laws, verbose=verbose))]
    if verbose:
        parts += ["", _count_table(it.goals)]
        for adapter in (adapter for adapter in it.adapters if adapter.machines):
            parts += [(f"\n{adapter.name}", "bold"), _law_table(adapter.laws, [adapter])]
            parts += ["", _machine_table(adapter)]
    return draw(*parts, (f"\n{_sum_up(it, laws)}", "bold"), fits_terminal=True)


def judged_laws(document: VerifyDocument) -> tuple[LawRow, ...]:
    """Return the results of each law over the adapters that could be examined at all."""
    from pymllm.search.results import merge_laws  # which loads Hypothesis; --help does without

    return merge_laws(adapter for adapter in document.adapters if adapter.machines)


def verdict_lines(document: VerifyDocument) -> Iterator[tuple[str, str]]:
    """Say the worst first, with a style: laws that are violated, then what is unknown; or that all hold."""
    judged = [adapter for adapter in document.adapters if adapter.machines]
    laws = [law for law in judged_laws(document) if law.verdict is not Verdict.NOT_CLAIMED]
    is_fine = True
    for verdict in (Verdict.VIOLATED, Verdict.UNKNOWN):
        found = [law.id for law in laws if law.verdict is verdict]
        if found and len(judged) > 1:
            own = {(it.name, row.id) for it in judged for row in it.laws if row.verdict is verdict}
            found = [f"{id} ({', '.join(it.name for it in judged if (it.name, id) in own)})" for id in found]
        if found:
            yield _toned(verdict, f"{len(found)} of {len(laws)} laws that apply: {', '.join(found)}")
            is_fine = False
    for adapter in document.adapters:
        if adapter not in judged:
            yield _toned(
                Verdict.UNKNOWN, f"{adapter.name} could not be examined, so none of its laws was judged"
            )
            is_fine = False
    yield from known_lines(document)
    for adapter in judged:
        for limit in adapter.limits:
            yield f"limits    {escaped(f'{adapter.name} {limit_words(limit)}')}", "yellow"
    if is_fine and document.verdict is Verdict.UNKNOWN:
        yield _toned(Verdict.UNKNOWN, "the search did not get to its end")
    elif is_fine:
        none = Verdict.NOT_CLAIMED, "no law applies"
        but = ", but for the limits above" if any(adapter.limits for adapter in judged) else ""
        yield _toned(*(Verdict.HOLDS, f"all {count_of(len(laws), 'law')} that apply{but}") if laws else none)


def known_lines(document: VerifyDocument) -> Iterator[tuple[str, str]]:
    """Name the listed deviations that no longer show, and the broken laws that were not asked for."""
    yield from deviation_lines(document.deviations)
    if document.passed_over:
        laws = ", ".join(
            f"{law} in {count_of(count, 'program')}" for law, count in document.passed_over.items()
        )
        yield f"beside    not asked for, and broken: {laws}", "yellow"


def _toned(verdict: Verdict, text: str) -> tuple[str, str]:
    return f"{WORDS[verdict]:8}  {escaped(text)}", style_of(verdict)


def style_of(verdict: Verdict) -> str:
    """Return the style of a verdict in a terminal, for verdicts that need attention."""
    return f"bold {_COLOURS.get(verdict, '')}".rstrip()


def _sum_up(document: VerifyDocument, laws: Sequence[LawRow]) -> str:
    """Say in one line how it ended."""
    counts = Counter(law.verdict for law in laws)
    spelled = ", ".join(f"{counts[verdict]} {word}" for verdict, word in COUNTED.items())
    judged = f"laws: {spelled}" if laws else "no law was judged"
    return f"{judged}; {played(document)}{cut_short(document)}"


def played(document: VerifyDocument) -> str:
    """Say how much was played."""
    steps = sum(machine.steps for adapter in document.adapters for machine in adapter.machines)
    amount = f"{count_of(document.programs, 'program')}, {count_of(steps, 'step')}"
    return f"{amount}, {document.seconds:.1f} s{kept_words(document.kept)}"


def cut_short(document: VerifyDocument) -> str:
    """Say how much less was played than promised, if it was."""
    if document.programs >= document.promised:
        return ""
    failed = "failed by --strict: " if document.strict else ""
    amount = f"played {document.programs:,} of {document.promised:,} promised programs"
    return f"; {failed}CUT SHORT: time was up, {amount}"


def heading(document: VerifyDocument) -> str:
    """Name the settings of the search, and the length of its programs."""
    named = document.versions | (
        {} if document.release is None else {document.release.package: document.release.version}
    )
    versions = "  ".join(f"{name} {number}" for name, number in named.items())
    amount = "" if document.examples is None else f", {document.examples:,} per machine and configuration"
    programs = f"programs of up to {document.acts_max} acts{amount}, seed {document.seed}"
    return f"{versions}\nprofile {document.profile}: {programs}"


def limits_of_law(law: LawRow) -> str:
    """Name the operations that a law tests and of which steps were not done; beside no other verdict."""
    return f" (limits: {', '.join(law.limits)})" if law.limits and law.verdict is Verdict.HOLDS else ""


def _law_table(
    laws: Iterable[LawRow], adapters: Sequence[AdapterRow], deviating: Collection[str] = ()
) -> Table:
    columns = ("law", "demands that", "verdict", "tests", "walks", "adapters")
    table = make_table(*columns, right=("tests", "walks", "adapters"), gap=2)
    order = list(WORDS)
    same = Counter((law.id, law.verdict) for adapter in adapters if adapter.machines for law in adapter.laws)
    for law in sorted(laws, key=lambda law: order.index(law.verdict)):
        is_bad = law.verdict in (Verdict.UNKNOWN, Verdict.VIOLATED)
        tests = f"{law.tests + law.broken:,}"
        table.add_row(
            law.id,
            law.sentence,
            WORDS[law.verdict]
            + limits_of_law(law)
            + (BUT if law.id in deviating else "")
            + (ENDED if law.unfinished else ""),
            f"{law.broken:,} of {tests}" if law.broken else tests,
            f"{law.walks:,}" if law.walks else "-",
            str(same[law.id, law.verdict]),
            style=style_of(law.verdict) if is_bad else "",
        )
    return table


def _unclaimed_lines(laws: Iterable[LawRow], *, verbose: bool) -> Iterator[str]:
    """Count and name the laws that no adapter claims, in one line if there are any."""
    ids = [law.id for law in laws if law.verdict is Verdict.NOT_CLAIMED]
    if ids:
        hint = "" if verbose else " (--verbose lists them)"
        yield f"\n{WORDS[Verdict.NOT_CLAIMED]}: {count_of(len(ids), 'law')}, {name_laws(ids)}{hint}"


def name_laws(ids: Sequence[str]) -> str:
    """Name laws by their ids, consecutive laws as one: ``A7, S1-S7``."""
    runs: list[list[str]] = []
    for id in ids:
        is_next = runs and id == f"{runs[-1][-1][0]}{int(runs[-1][-1][1:]) + 1}"
        runs = [*runs[:-1], [*runs[-1], id]] if is_next else [*runs, [id]]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _legend(document: VerifyDocument, laws: Sequence[LawRow], *, verbose: bool) -> dict[str, str]:
    """Explain the words that the tables have."""
    looked = [law.id for law in laws if verbose and law.verdict is Verdict.NOT_CLAIMED and law.walks]
    only_broken = (
        f"; {name_laws(looked)}, not claimed: a walk can break it, and proves nothing" if looked else ""
    )
    verdicts = {law.verdict for law in laws}
    broke = "; 3 of 800: 3 tests of 800 broke the law" if Verdict.VIOLATED in verdicts else ""
    return {
        **{WORDS[verdict]: meaning for verdict, meaning in MEANINGS.items() if verdict in verdicts},
        "tests": f"how often a program tested the law{broke}",
        "walks": f"how often the adapter checked the law on its own data; - for never{only_broken}",
        "adapters": "how many have this verdict",
        **({"limits: ...": LIMITED} if any(law.limits for law in laws) else {}),
        **({BUT.strip(): BUT_FOR} if document.deviations else {}),
        **({ENDED.strip(): ENDED_BY} if any(law.unfinished for law in laws) else {}),
        **({"invariant": "has the worst verdict of its laws"} if document.invariants else {}),
        "coverage goal": "a state in which implementations go wrong; `pymllm goals` lists all",
    }


def _invariant_table(document: VerifyDocument) -> Table:
    rows = ((it.name, WORDS[it.verdict], ", ".join(it.laws)) for it in document.invariants)
    return make_table("invariant", "verdict", "laws", gap=2, rows=rows)


def _goal_table(rows: Sequence[CoverageRow]) -> Table:
    """Count for each machine the coverage goals to reach, and the coverage goals reached."""
    table = make_table("machine", "coverage goals reached", right=("coverage goals reached",), gap=2)
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        table.add_row(machine, f"{sum(not row.unmet for row in own):,} of {len(own):,}")
    return table


def _never_reached(goals: Iterable[CoverageRow]) -> Iterable[str]:
    """Name the coverage goals never reached, machine by machine, and the adapters."""
    unmet = [row for row in goals if row.unmet]
    for machine in dict.fromkeys(row.machine for row in unmet):
        names = "; ".join(f"{row.name} ({', '.join(row.unmet)})" for row in unmet if row.machine == machine)
        yield f"never reached by the {machine}: {escaped(names)}"


def _count_table(goals: Iterable[CoverageRow]) -> Table:
    columns = ("machine", "coverage goal", "times", "never reached with")
    rows = ((it.machine, it.name, f"{it.times:,}", ", ".join(it.unmet) or "-") for it in goals)
    return make_table(*columns, right=("times",), gap=2, rows=rows)


def _machine_table(adapter: AdapterRow) -> Table:
    figures = ("configurations", "programs", "promised", "steps", "time", "steps/s")
    table = make_table("machine", *figures, right=figures, gap=2)
    for it in adapter.machines:
        counts = (f"{count:,}" for count in (it.configurations, it.programs, it.promised, it.steps))
        table.add_row(it.name, *counts, f"{it.seconds:.1f} s", f"{it.steps_per_second:,.0f}")
    return table


def complain_of(document: VerifyDocument) -> None:
    """Name in one line each, beside a JSON document, the points for its reader to look at."""
    for adapter in document.adapters:
        for it in adapter.violations:
            complain(f"{adapter.name} violates {it.law}: {it.message}")
        for problem in adapter.problems:
            complain(f"{adapter.name} could not be examined to the end: {problem.message}")
    if cut_short(document):
        complain(cut_short(document).removeprefix("; "))
    for line, style in known_lines(document):
        if style:
            complain(line.partition(" ")[2].strip())
    for row in document.goals if document.strict else ():
        if row.unmet:
            complain(f"{row.machine} never reached: {row.name} ({', '.join(row.unmet)})")


# -- as JUnit XML ------------------------------------------------------------------------------------------


def make_junit(document: VerifyDocument) -> str:
    """Write the verdicts as JUnit XML: a suite for each adapter, and the goals of a strict search as one."""
    from pymllm.report.feeds import add_search, add_suite, make_case, make_xml

    root = ElementTree.Element("testsuites", name="pymllm verify", time=f"{document.seconds:.3f}")
    for adapter in document.adapters:
        add_search(root, adapter)
    if document.strict and document.goals:
        cases = [
            make_case(
                it.machine,
                it.name,
                "failure" if it.unmet else None,
                f"never reached with {', '.join(it.unmet)}",
            )
            for it in document.goals
        ]
        add_suite(root, "coverage goals", 0.0, cases)
    if document.deviations:
        gone = "failure" if document.strict else "skipped"
        cases = [
            make_case(it.law, it.name, gone if it.status == "gone" else None, "no program met it")
            for it in document.deviations
        ]
        add_suite(root, "known deviations", 0.0, cases)
    return make_xml(root)
