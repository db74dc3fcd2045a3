"""The tasks of a verification: searches, second searches, and findings to shrink.

Each follows from what is to be searched and from what was found before, not from the number of processes, nor
from time; each is carried out alone, wherever that is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pymllm.adapters.entry import AdapterEntry
from pymllm.history.files import Config, Deviation
from pymllm.machines.acting import ActingMachine, FoundViolation, Unwanted, make_machine
from pymllm.machines.registry import MachineEntry, Profile, find_scenario, load_machine, machines_for
from pymllm.machines.smoke import SmokeReport
from pymllm.oracle.laws import Law, find_law
from pymllm.oracle.verdicts import Verdict
from pymllm.search.deviations import is_of_version
from pymllm.search.results import SearchedConfiguration, judge_adapter
from pymllm.search.search import SearchPlan, SearchResult, search, targeted_run
from pymllm.search.shrinker import Finding, make_finding, pick_smallest, plays_after, shrink

_FULL_PRICE = 12  # configurations of one adapter; more than that share the time of so many
_HALF = 0.5  # of the time is for Hypothesis, half for driven programs
_PATIENCE = (
    8  # A search may take so many times as long as on a quiet machine, on which it is our own class's,
)
_PATIENCE_LEAST = 10.0  # and so many seconds at least, before it is cut short.
_TARGETED_ACTS = 400
_SLOW_PACE = 2.0  # driven programs in a second. An act of a machine that plays no more is many operations:
# 80 test every law that 400 do, in a quarter to a half of the time (0.1 to 0.6 s).
_TARGETED_ACTS_OF_AN_ENGINE = 80
_TARGETED_ACTS_IN_ALL = 16_000  # at most, in all programs: it ends once the law was tested
_TARGETED_ACTS_IN_ALL_OF_AN_ENGINE = 2_000  # some seconds, either of them
_TARGETED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """The plan of a verification: its adapters, its laws, and the thoroughness of the search."""

    adapters: tuple[AdapterEntry, ...]  # in the order of the report
    laws: tuple[Law, ...]  # only what can test one of them, and only their rows; empty for all
    profile: Profile  # length of programs, time, and how much to shrink
    seed: int  # of all choices
    # programs of Hypothesis per machine and configuration instead of what the profile promises
    examples: int | None
    jobs: int  # processes; with 0 everything is done in this one, as of `pymllm.work.workers.Workers`
    timeout: float = 0.0  # most seconds for one call of an adapter; 0 for no limit
    is_strict: bool = False  # whether every coverage goal has to be reached
    deviations: tuple[Deviation, ...] = ()  # what is known, and is passed over

    @property
    def unwanted(self) -> Unwanted:
        """The violations to ignore: deviations of the installed versions, and laws outside the plan."""
        known = tuple(filter(is_of_version, self.deviations))
        return Unwanted(known, tuple(law.id for law in self.laws))


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A search of one machine on one configuration; with ``laws`` or ``goals`` it ends when they are met."""

    adapter: str
    config: Config
    capabilities: frozenset[str]
    machine: MachineEntry
    plan: SearchPlan
    unwanted: Unwanted = field(default_factory=Unwanted)
    laws: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()


def plan_searches(smokes: Sequence[SmokeReport], plan: VerifyPlan) -> list[SearchTask]:
    """Plan a search for every machine and configuration that can test a requested law.

    Each gets its part of what the profile promises. It follows from what is to be searched alone: not from
    the number of jobs, nor from time.
    """
    tasks = [task for smoke in smokes for task in _plan_adapter(smoke, plan)]
    weights = _weigh(tasks)
    profile = plan.profile
    unit = min(profile.seconds_max, profile.seconds / max(sum(weights), 1e-9))
    return [
        task if plan.examples is not None else _promise(task, unit * weight)
        for task, weight in zip(tasks, weights, strict=True)
    ]


def _promise(task: SearchTask, seconds: float) -> SearchTask:
    """Give a search the number of programs that its machine plays in some seconds on an idle core."""
    examples = max(1, round(_HALF * seconds * task.machine.pace))
    driven = max(1, round(_HALF * seconds * task.machine.driven_pace))
    most = max(_PATIENCE * seconds, _PATIENCE_LEAST)
    return replace(task, plan=replace(task.plan, examples=examples, driven=driven, seconds=most))


def _plan_adapter(smoke: SmokeReport, plan: VerifyPlan) -> list[SearchTask]:
    wanted = [law for law in plan.laws if smoke.kind in law.kinds]
    return [
        SearchTask(smoke.name, config, capabilities, machine, _search_plan(plan), plan.unwanted)
        for config, capabilities in smoke.configurations
        for machine in machines_for(smoke.kind, capabilities, plan.laws)
        if not plan.laws or any(law.applies_to(config, capabilities, smoke.kind) for law in wanted)
    ]


def _weigh(tasks: Sequence[SearchTask]) -> list[float]:
    sharing = Counter((task.adapter, task.machine) for task in tasks)
    return [
        task.machine.weight * min(1.0, _FULL_PRICE / sharing[task.adapter, task.machine]) for task in tasks
    ]


def _search_plan(plan: VerifyPlan) -> SearchPlan:
    """Return the plan of a search that does not shrink, since a `ShrinkTask` shrinks its findings."""
    return SearchPlan(plan.seed, plan.profile.steps, plan.examples or 1, shrinks=0)


def plan_targeted_runs(
    smokes: Sequence[SmokeReport],
    searches: Sequence[SearchedConfiguration],
    plan: VerifyPlan,
    earlier: Sequence[SearchedConfiguration] = (),
    turn: int = 0,
) -> list[SearchTask]:
    """Plan another search for untested laws, on two configurations of one machine.

    Where the plan is strict, goals that were never reached are looked for in the first turn, too. There
    is none where a number of programs was asked for: that many are played, and no more. An adapter that broke
    a law or met a problem is left alone. ``turn`` says which of the machines that may test a law looks for
    it, from 0, after what ``earlier`` turns found. Not every machine that may does it, and one that cannot
    plays all of its programs: a second one is asked only for what the first left.
    """
    runs: list[SearchTask] = []
    for smoke in smokes if plan.examples is None else ():
        own = [found for found in searches if found.adapter == smoke.name]
        again = [found for found in earlier if found.adapter == smoke.name]
        if any(found.result.crash is not None for found in [*own, *again]):
            continue
        result = judge_adapter(smoke, [*own, *again], plan.laws)
        if result.findings:
            continue
        laws, goals = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
        for law in (find_law(row.id) for row in result.laws if row.verdict is Verdict.UNKNOWN):
            for place in _pick_places(own, [found.could_test(law) for found in own], turn):
                laws[place].append(law.id)
        unmet = ((machine.name, name) for machine in result.machines for name in machine.unmet)
        for machine, name in unmet if plan.is_strict and turn == 0 else ():
            able = [found.machine.name == machine and name in found.expected for found in own]
            for place in _pick_places(own, able, 0):
                goals[place].append(name)
        runs += [
            _targeted_run(own[place], laws[place], goals[place], plan)
            for place in sorted(laws.keys() | goals.keys())
        ]
    return runs


def _pick_places(own: Sequence[SearchedConfiguration], able: Sequence[bool], turn: int) -> set[int]:
    """Return the first and last configuration that a machine can search; nothing once all had a turn."""
    places: dict[MachineEntry, list[int]] = defaultdict(list)
    for place, (found, is_able) in enumerate(zip(own, able, strict=True)):
        if is_able:
            places[found.machine].append(place)
    chosen = list(places.values())[turn : turn + 1]
    return {place for able in chosen for place in (able[0], able[-1])}


def _targeted_run(
    found: SearchedConfiguration, laws: Sequence[str], goals: Sequence[str], plan: VerifyPlan
) -> SearchTask:
    is_short = found.machine.driven_pace <= _SLOW_PACE and not goals  # some of which come only late
    acts = _TARGETED_ACTS_OF_AN_ENGINE if is_short else _TARGETED_ACTS
    most = _TARGETED_ACTS_IN_ALL_OF_AN_ENGINE if found.machine.has_engine else _TARGETED_ACTS_IN_ALL
    return SearchTask(
        found.adapter,
        found.config,
        found.capabilities,
        found.machine,
        replace(_search_plan(plan), steps=acts, examples=most // acts, seconds=_TARGETED_SECONDS),
        plan.unwanted,
        tuple(laws),
        tuple(goals),
    )


def price_of(task: SearchTask) -> float:
    """Return an estimate of a search's duration, without a unit."""
    plan, machine = task.plan, task.machine
    return plan.steps * (plan.examples / machine.pace + plan.driven / machine.driven_pace)


def run_search(task: SearchTask) -> SearchResult:
    """Carry out a first or a second search."""
    machine = _make_machine(task, task.plan.seed)
    if task.laws or task.goals:
        return targeted_run(machine, task.plan, task.laws, task.goals)
    return search(machine, task.plan)


def is_cut_short(task: SearchTask, result: SearchResult) -> bool:
    """Tell whether the time limit ended a search, so that a repeat on an idle machine may find more."""
    if result.found or result.crash is not None:
        return False
    untested = not all(result.exercised[law] for law in task.laws)
    unmet = not all(result.reached[name] for name in task.goals)
    return result.missing > 0 or ((untested or unmet) and result.programs < task.plan.examples)


@dataclass(frozen=True, slots=True)
class ShrinkTask:
    """One finding to shrink; with a plan, the search that found it shrinks it, too."""

    adapter: str  # adapter, config, machine: what it was found with
    config: Config
    machine: MachineEntry
    finding: Finding
    shrinks: int  # as of `SearchPlan`
    plan: SearchPlan | None  # finds it again and shrinks it; ``None`` drops steps only
    unwanted: Unwanted = field(default_factory=Unwanted)  # meanwhile


def plan_shrinking(searches: Sequence[SearchedConfiguration], plan: VerifyPlan) -> list[ShrinkTask]:
    """Choose the findings to shrink: the smallest program of each law that an adapter breaks.

    Hypothesis shrinks the smallest of all only, which is the one that is printed.
    """
    tasks: list[ShrinkTask] = []
    for adapter in dict.fromkeys(done.adapter for done in searches):
        sources = {id(finding): done for done in searches for finding in done.result.found}
        found = [finding for done in searches if done.adapter == adapter for finding in done.result.found]
        smallest = pick_smallest(found)
        for finding in smallest:
            source = sources[id(finding)]
            again = source.result.again if finding is smallest[0] else None
            if again is not None:  # or it was driven, and Hypothesis had no part in it
                again = replace(again, shrinks=plan.profile.shrinks)
            tasks.append(
                ShrinkTask(
                    adapter,
                    source.config,
                    source.machine,
                    finding,
                    plan.profile.shrinks,
                    again,
                    plan.unwanted,
                )
            )
    return tasks


def shrink_findings(task: ShrinkTask) -> tuple[Finding, ...]:
    """Shrink a finding; also return other laws that smaller programs broke on the way.

    The smallest of an adapter is made smaller twice, by `shrink` and by Hypothesis, since neither does for
    the other. Of 38 faults of the cabinet Hypothesis had fewer operations in two (11 for 23, 4 for 5) and
    more in one (20 for 18); in seven it met other laws on its way, of which the table would say that they
    hold. It takes 2.1 s of processor time in the mean, `shrink` 0.3 s: once for each adapter that is broken.
    """
    history = task.finding.history
    found = FoundViolation(history, task.finding.violation, scenario=find_scenario(history.header))
    findings = [make_finding(shrink(found, plays=plays_after(task.shrinks)))]
    if task.plan is not None:
        findings += search(_make_machine(task, task.plan.seed), task.plan).found
    return pick_smallest(findings)


def _make_machine(task: SearchTask | ShrinkTask, seed: int) -> type[ActingMachine]:
    machine = load_machine(task.machine)
    return make_machine(machine, task.adapter, task.config, seed=seed, unwanted=task.unwanted)
