"""The verdicts on each law, for each adapter and overall, from the results of searches.

For one law of one adapter: violated where a program broke it; else unknown where a search that could
have tested it ended with an error; else holds where the oracle tested it, in however few configurations; else
unknown, or not claimed where no configuration has what the law is about. What holds or is unknown is
unfinished where such a search ended at a violation of another law. Over several adapters the heavier verdict
prevails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymllm.documents.searches import (
    AdapterRow,
    CompareDocument,
    CoverageRow,
    DeviationRow,
    InvariantRow,
    LawRow,
    LimitRow,
    MachineRow,
    MatrixCell,
    MatrixRow,
    ProblemRow,
    VerifyDocument,
    ViolationRow,
    merge_laws,
)
from pymllm.history.codec import name_of
from pymllm.history.files import Config, Deviation, History
from pymllm.machines.registry import MachineEntry, why_untested
from pymllm.machines.smoke import SmokeFailure, SmokeReport
from pymllm.oracle.answers import limits_of
from pymllm.oracle.coverage import GOALS, expected_names
from pymllm.oracle.judge import operations_testing
from pymllm.oracle.laws import INVARIANTS, LAWS, Law, laws_of
from pymllm.oracle.verdicts import Verdict, merge_verdicts
from pymllm.search.deviations import GONE, tell_deviations
from pymllm.search.doubts import find_doubt
from pymllm.search.program import write_program
from pymllm.search.search import Crash, SearchResult
from pymllm.search.shrinker import Finding, pick_smallest


@dataclass(frozen=True, slots=True)
class SearchedConfiguration:
    """One machine on one configuration of an adapter, with the result of its search."""

    adapter: str
    config: Config
    capabilities: frozenset[str]
    machine: MachineEntry
    result: SearchResult

    def could_test(self, law: Law) -> bool:
        """Tell whether the search could test a law."""
        applies = law.applies_to(self.config, self.capabilities, self.machine.kind)
        return applies and self.machine.exercises(law)

    @property
    def expected(self) -> frozenset[str]:
        """Coverage goals that the search must reach before its finding of no violation means anything."""
        kind, has_engine = self.machine.kind, self.machine.has_engine
        if kind is None:
            return frozenset()
        return expected_names(kind, self.config, self.capabilities, of_engine=has_engine)


def law_row(
    law: Law,
    verdict: Verdict,
    tests: int = 0,
    walks: int = 0,
    broken: int = 0,
    limits: tuple[str, ...] = (),
    unfinished: bool = False,
) -> LawRow:
    """Return a document's row for the results of a law."""
    return LawRow(law.id, law.sentence, law.source, verdict, tests, walks, broken, limits, unfinished)


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """The files of programs that were written."""

    programs: dict[tuple[str, str], str] = field(default_factory=dict)  # file by adapter and law
    # crashes, conversations: by adapter and place among its problems: the program, and the last lines that it
    # said
    crashes: dict[tuple[str, int], str] = field(default_factory=dict)
    conversations: dict[tuple[str, int], str] = field(default_factory=dict)
    earlier: list[str] = field(default_factory=list)  # files of other searches that lie beside them


@dataclass(frozen=True, slots=True)
class MachineResult:
    """The work of one machine on all configurations of an adapter, with its goals and unplayed programs.

    Missing are programs that were promised and not played, because a search took much too long.
    """

    name: str
    configurations: int
    programs: int
    steps: int
    seconds: float
    reached: dict[str, int]
    expected: frozenset[str] = frozenset()
    missing: int = 0

    @property
    def promised(self) -> int:
        """The number of programs that would have been played without the time limit."""
        return self.programs + self.missing

    @property
    def steps_per_second(self) -> float:
        """Steps per second, including shrinking and checks; 0 if nothing ran."""
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def unmet(self) -> tuple[str, ...]:
        """The expected coverage goals that were never reached."""
        return tuple(sorted(self.expected - self.reached.keys()))

    def row(self) -> MachineRow:
        """Return the machine's row in a document."""
        return MachineRow(
            name=self.name,
            configurations=self.configurations,
            programs=self.programs,
            steps=self.steps,
            seconds=round(self.seconds, 3),
            steps_per_second=round(self.steps_per_second, 1),
            goals=self.reached,
            unmet=self.unmet,
            promised=self.promised,
        )


@dataclass(frozen=True, slots=True)
class AdapterResult:
    """The results of the verification of one adapter."""

    name: str  # as it was asked for
    kind: str | None  # ``None`` where it could not be loaded
    # why something is unknown: the adapter could not be examined, or a search ended early
    problems: tuple[Crash, ...]
    laws: tuple[LawRow, ...]  # in the specification's order; empty where the kind is not known
    machines: tuple[MachineResult, ...]  # what was done
    findings: tuple[Finding, ...]  # the smallest program for each broken law, the smallest of all first
    # known, passed_over: programs that met a deviation, by its name, or broke a law that nobody asked for
    known: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)
    limits: tuple[LimitRow, ...] = ()  # steps that were not done

    @property
    def tested(self) -> frozenset[str]:
        """Ids of the laws that apply to the adapter."""
        return frozenset(law.id for law in self.laws if law.verdict is not Verdict.NOT_CLAIMED)

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict on any law of the adapter; at least unknown if there are problems."""
        own = merge_verdicts(result.verdict for result in self.laws)
        return merge_verdicts([own, Verdict.UNKNOWN]) if self.problems else own

    def row(self, files: SavedFiles) -> AdapterRow:
        """Return the adapter's row in a document."""
        broken = {found.law for found in self.findings}
        violations = tuple(
            ViolationRow(
                found.law,
                found.violation.message,
                found.violation.expected,
                found.violation.observed,
                found.history.header.config,
                found.step,
                len(found.history),
                write_program(found.history),
                files.programs.get((self.name, found.law)),
                found.is_rerun,
                found.is_judged,
                not found.is_unfinished,
                found.history.header.scenario is not None,
                found.mistakes,
                name_of(type(found.history.steps[-1].operation)) if found.history.steps else "",
                find_doubt(found.history, found.violation, broken),
            )
            for found in self.findings
        )
        problems = tuple(
            ProblemRow(
                problem.message,
                files.crashes.get((self.name, place)),
                None if problem.conversation is None else problem.conversation.verdict,
                files.conversations.get((self.name, place)),
            )
            for place, problem in enumerate(self.problems)
        )
        return AdapterRow(
            self.name,
            self.kind,
            self.verdict,
            self.laws,
            tuple(machine.row() for machine in self.machines),
            violations,
            problems,
            self.limits,
        )


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The results of a run of ``pymllm verify``."""

    profile: str  # name of the profile
    seed: int  # where all choices came from
    examples: int | None  # programs per machine and configuration; ``None`` where time decided
    jobs: int  # processes
    steps: int  # most acts of a program
    versions: dict[str, str]  # of whatever the result depends on, by name
    adapters: tuple[AdapterResult, ...]  # in the order asked for
    seconds: float  # the whole run took
    interruption: KeyboardInterrupt | None = None  # what ended it early
    # whether a coverage goal that was never reached counts as a failure, and a search that was cut short
    is_strict: bool = False
    known: tuple[Deviation, ...] = ()
    kept: int = 0  # results of searches that are an earlier run's

    @property
    def deviations(self) -> tuple[DeviationRow, ...]:
        """A row for each known deviation, with its status and the number of programs that showed it."""
        searched = [it for it in self.adapters if it.machines]
        return tell_deviations(self.known, {it.name: (it.tested, it.known) for it in searched})

    @property
    def laws(self) -> tuple[LawRow, ...]:
        """A row for each law, over all adapters."""
        return merge_laws(self.adapters)

    @property
    def invariants(self) -> tuple[InvariantRow, ...]:
        """The verdict on each invariant that users ask for by name, as far as its laws have rows."""
        rows = {row.id: row.verdict for row in self.laws}
        return tuple(
            InvariantRow(name, known, merge_verdicts(rows[law] for law in known))
            for name, laws in INVARIANTS.items()
            if (known := tuple(law for law in laws if law in rows))
        )

    @property
    def goals(self) -> tuple[CoverageRow, ...]:
        """A row for each coverage goal, over all adapters."""
        return merge_goals(self.adapters)

    @property
    def programs(self) -> int:
        """Number of programs played."""
        return sum(machine.programs for adapter in self.adapters for machine in adapter.machines)

    @property
    def promised(self) -> int:
        """The number of programs that would have been played without the time limit."""
        return sum(machine.promised for adapter in self.adapters for machine in adapter.machines)

    @property
    def is_cut_short(self) -> bool:
        """Whether fewer programs were played than the profile promises, so that laws were tested less."""
        return self.programs < self.promised

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict on any adapter."""
        return merge_verdicts(adapter.verdict for adapter in self.adapters)

    @property
    def exit_status(self) -> int:
        """The exit status of the verdict; ``strict`` gives 1 also for a cut search or a missed goal."""
        gone = any(row.status == GONE for row in self.deviations)
        if self.is_strict and (gone or self.is_cut_short or any(row.unmet for row in self.goals)):
            return Verdict.VIOLATED.exit_status
        return self.verdict.exit_status

    def document(self, files: SavedFiles | None = None) -> VerifyDocument:
        """Return the report's document, with the files of its programs."""
        return VerifyDocument(**self._fields(files))

    def comparison(self, files: SavedFiles | None = None) -> CompareDocument:
        """Return the document with a matrix of laws by adapters."""
        rows = []
        for law in self.laws:
            own = ((it.name, row) for it in self.adapters for row in it.laws if row.id == law.id)
            cells = (
                MatrixCell(name, it.verdict, it.tests, it.walks, it.limits, it.unfinished) for name, it in own
            )
            rows.append(MatrixRow(law.id, law.sentence, tuple(cells)))
        return CompareDocument(**self._fields(files), matrix=tuple(rows))

    def _fields(self, files: SavedFiles | None) -> dict[str, Any]:
        return {
            "versions": self.versions,
            "profile": self.profile,
            "seed": self.seed,
            "examples": self.examples,
            "acts_max": self.steps,
            "jobs": self.jobs,
            "seconds": round(self.seconds, 3),
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "interrupted": self.interruption is not None,
            "strict": self.is_strict,
            "laws": self.laws,
            "invariants": self.invariants,
            "goals": self.goals,
            "adapters": tuple(adapter.row(files or SavedFiles()) for adapter in self.adapters),
            "programs": self.programs,
            "promised": self.promised,
            "deviations": self.deviations,
            "passed_over": dict(sum((it.passed_over for it in self.adapters), Counter())),
            "kept": self.kept,
        }


def judge_adapter(
    smoke: SmokeReport,
    searches: Sequence[SearchedConfiguration],
    wanted: Collection[Law] = (),
    shrunk: Iterable[Finding] = (),
) -> AdapterResult:
    """Combine the findings of all searches of one adapter.

    With ``wanted`` laws, rows of these alone, and of broken ones; ``shrunk`` has smaller programs for these.
    """
    found = [finding for search in searches for finding in search.result.found]
    findings = pick_smallest([*shrunk, *found])
    broken = {finding.law for finding in findings}
    about = {law.id for law in laws_of(smoke.kind) if not wanted or law in wanted}
    limits = _find_limits(searches)
    laws = tuple(
        _judge_law(law, smoke, searches, law.id in broken, limits) for law in LAWS if law.id in about | broken
    )
    problems = tuple(search.result.crash for search in searches if search.result.crash is not None)
    problems += tuple(Crash(reason, None) for reason in find_missing(smoke, wanted))
    known, passed_over = Counter[str](), Counter[str]()
    for search in searches:
        known.update(search.result.known)
        passed_over.update(search.result.passed_over)
    machines = _sum_machines(searches)
    return AdapterResult(
        smoke.name, smoke.kind, problems, laws, machines, findings, known, passed_over, limits
    )


def _find_limits(searches: Sequence[SearchedConfiguration]) -> tuple[LimitRow, ...]:
    """Return each kind of step that was not done in an adapter's searches, with its shortest program."""
    not_done, done = Counter[str](), Counter[str]()
    shown: dict[str, History] = {}
    for search in searches:
        not_done.update(search.result.not_done)
        done.update(search.result.done)
        for told, history in search.result.undone.items():
            if told not in shown or len(history) < len(shown[told]):
                shown[told] = history
    return tuple(
        LimitRow(
            it.operation,
            it.reason,
            it.steps,
            it.done,
            shown[it.told].steps[-1].number,
            shown[it.told].header.config,
            write_program(shown[it.told]),
        )
        for it in limits_of(not_done, done)
    )


def find_missing(smoke: SmokeReport, wanted: Collection[Law] = ()) -> tuple[str, ...]:
    """Return the reasons why laws of an adapter cannot be tested here; ``wanted`` as of `judge_adapter`."""
    reasons = [
        reason
        for config, claims in smoke.configurations
        for reason in why_untested(
            smoke.kind,
            claims,
            [
                law
                for law in laws_of(smoke.kind)
                if (not wanted or law in wanted) and law.applies_to(config, claims, smoke.kind)
            ],
        )
    ]
    return tuple(dict.fromkeys(reasons))


def leave_unknown(smoke: SmokeFailure, wanted: Collection[Law] = ()) -> AdapterResult:
    """Return the result, all laws unknown, of an adapter that cannot be searched."""
    applicable = laws_of(smoke.kind) if smoke.kind is not None else ()
    laws = tuple(law_row(law, Verdict.UNKNOWN) for law in applicable if not wanted or law in wanted)
    return AdapterResult(
        smoke.name, smoke.kind, (Crash(smoke.message, None, smoke.conversation),), laws, (), ()
    )


def _judge_law(
    law: Law,
    smoke: SmokeReport,
    searches: Sequence[SearchedConfiguration],
    is_broken: bool,
    limits: Sequence[LimitRow],
) -> LawRow:
    able = [search for search in searches if search.could_test(law)]
    exercised = sum(search.result.exercised[law.id] for search in searches)
    audited = sum(search.result.audited[law.id] for search in searches)
    own = [it for it in limits if it.operation in operations_testing(law, smoke.kind)]
    # A smaller program may have broken it where no search did.
    broken = max(int(is_broken), sum(search.result.broken[law.id] for search in searches))
    if is_broken:
        verdict = Verdict.VIOLATED
    elif not any(law.applies_to(config, claims, smoke.kind) for config, claims in smoke.configurations):
        verdict = Verdict.NOT_CLAIMED
    elif any(it.done == 0 for it in own):
        verdict = Verdict.UNKNOWN  # what it tests was never done
    elif exercised and not any(search.result.crash for search in able):
        verdict = Verdict.HOLDS
    elif _is_left_out_everywhere(law, able):
        verdict = Verdict.NOT_CLAIMED
    else:
        verdict = Verdict.UNKNOWN
    is_open = verdict in (Verdict.HOLDS, Verdict.UNKNOWN)
    unfinished = is_open and any(search.result.found for search in able)
    limited = tuple(dict.fromkeys(it.operation for it in own))
    return law_row(law, verdict, exercised, audited, broken, limited, unfinished)


def _is_left_out_everywhere(law: Law, able: Sequence[SearchedConfiguration]) -> bool:
    """Tell whether on each configuration a machine found that results needed by a law are not reported.

    Not each machine: one that never looks inside cannot meet it.
    """
    left_out = [search.config for search in able if law.id in search.result.left_out]
    return bool(able) and all(search.config in left_out and not search.result.crash for search in able)


def _sum_machines(searches: Sequence[SearchedConfiguration]) -> tuple[MachineResult, ...]:
    summed = []
    for name in dict.fromkeys(search.machine.name for search in searches):
        results = [search.result for search in searches if search.machine.name == name]
        configs = {tuple(search.config.items()) for search in searches if search.machine.name == name}
        reached: Counter[str] = Counter()
        for result in results:
            reached.update(result.reached)
        expected = [search.expected for search in searches if search.machine.name == name]
        summed.append(
            MachineResult(
                name,
                len(configs),
                sum(result.programs for result in results),
                sum(result.steps for result in results),
                sum(result.seconds for result in results),
                dict(sorted(reached.items())),
                frozenset().union(*expected),
                sum(result.missing for result in results),
            )
        )
    return tuple(summed)


def merge_goals(adapters: Iterable[AdapterResult]) -> tuple[CoverageRow, ...]:
    """Merge the results of each expected coverage goal over all adapters.

    Machines come in the order of the adapters, coverage goals in that of the registry.
    """
    known = list(adapters)
    merged = []
    for machine in dict.fromkeys(machine.name for adapter in known for machine in adapter.machines):
        own = [(adapter, each) for adapter in known for each in adapter.machines if each.name == machine]
        for name in dict.fromkeys(goal.name for goal in GOALS):
            able = [(adapter, each) for adapter, each in own if name in each.expected]
            if able:
                times = sum(each.reached.get(name, 0) for _, each in able)
                unmet = tuple(adapter.name for adapter, each in able if name in each.unmet)
                merged.append(CoverageRow(name, machine, times, unmet))
    return tuple(merged)
