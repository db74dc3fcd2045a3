"""What a verification has to search, and how many programs each search plays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pymllm.adapters.registry import AdapterEntry
from pymllm.conformance.machines import MachineEntry, Profile, machines_for
from pymllm.conformance.results import AdapterResult, SearchedConfiguration, judge_adapter
from pymllm.conformance.search import SearchPlan
from pymllm.conformance.smoke import SmokeReport
from pymllm.history.files import Config
from pymllm.oracle.laws import Law
from pymllm.oracle.verdicts import Verdict

_FULL_PRICE = 12  # configurations of one adapter; more than that share the time of so many
_HALF = 0.5  # of the time is for Hypothesis, half for driven programs
_PATIENCE = (
    8  # A search may take so many times as long as on a quiet machine, on which it is our own class's,
)
_PATIENCE_LEAST = 10.0  # and so many seconds at least, before it is cut short.
_BURST_ACTS = 400
# An engine's act is many operations: 80 test every law that 400 do, in a quarter of the time (0.1 to 0.6 s).
_BURST_ACTS_OF_AN_ENGINE = 80
_BURST_ACTS_IN_ALL = 16_000  # at most, in all programs: it ends once the law was tested
_BURST_ACTS_IN_ALL_OF_AN_ENGINE = 2_000  # some seconds, either of them
_BURST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """What to verify, and how thoroughly."""

    adapters: tuple[AdapterEntry, ...]  # in the order of the report
    laws: tuple[Law, ...]  # only what can test one of them, and only their rows; empty for all
    profile: Profile  # length of programs, time, and how much to shrink
    seed: int  # of all choices
    # programs of Hypothesis per machine and configuration instead of what the profile promises
    examples: int | None
    jobs: int  # processes; with 0 everything is done in this one, as of `pymllm.conformance.workers.Workers`
    timeout: float = 0.0  # most seconds for one call of an adapter; 0 for no limit
    is_strict: bool = False  # whether every situation has to be reached


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One machine on one configuration; with ``laws`` or ``situations``, a burst until all were met."""

    adapter: str
    config: Config
    capabilities: frozenset[str]
    machine: MachineEntry
    plan: SearchPlan
    laws: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()


def plan_searches(smokes: Sequence[SmokeReport], plan: VerifyPlan) -> list[SearchTask]:
    """Plan a search for every machine and configuration that can test a law asked for.

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
    """Give a search the programs that its machine plays in so much time of a quiet core."""
    examples = max(1, round(_HALF * seconds * task.machine.pace))
    driven = max(1, round(_HALF * seconds * task.machine.driven_pace))
    most = max(_PATIENCE * seconds, _PATIENCE_LEAST)
    return replace(task, plan=replace(task.plan, examples=examples, driven=driven, seconds=most))


def _plan_adapter(smoke: SmokeReport, plan: VerifyPlan) -> list[SearchTask]:
    wanted = [law for law in plan.laws if smoke.kind in law.kinds]
    return [
        SearchTask(smoke.name, config, capabilities, machine, _search_plan(plan))
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
    """Plan to find, and to leave it at that: `pymllm.conformance.runner` makes small what was found."""
    return SearchPlan(plan.seed, plan.profile.steps, plan.examples or 1, shrinks=0)


def plan_bursts(
    smokes: Sequence[SmokeReport],
    searches: Sequence[SearchedConfiguration],
    plan: VerifyPlan,
    earlier: Sequence[SearchedConfiguration] = (),
    turn: int = 0,
) -> list[SearchTask]:
    """Plan another search for laws that nothing has tested, on two configurations of one machine.

    Where the plan is strict, situations that were never reached are looked for in the first turn, too. There
    is none where a number of programs was asked for: that many are played, and no more. An adapter that broke
    a law or met a problem is left alone. ``turn`` says which of the machines that may test a law looks for
    it, from 0, after what ``earlier`` turns came to. Not every machine that may does it, and one that cannot
    plays all of its programs: a second one is asked only for what the first left.
    """
    bursts: list[SearchTask] = []
    for smoke in smokes if plan.examples is None else ():
        own = [found for found in searches if found.adapter == smoke.name]
        again = [found for found in earlier if found.adapter == smoke.name]
        if any(found.result.crash is not None for found in [*own, *again]):
            continue
        result = judge_adapter(smoke, [*own, *again], plan.laws)
        if result.findings:
            continue
        laws, situations = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
        for law in (row.law for row in result.laws if row.verdict is Verdict.UNKNOWN):
            for place in _pick_places(own, [found.could_test(law) for found in own], turn):
                laws[place].append(law.id)
        for machine, name in _unmet(result) if plan.is_strict and turn == 0 else ():
            able = [found.machine.name == machine and name in found.expected for found in own]
            for place in _pick_places(own, able, 0):
                situations[place].append(name)
        bursts += [
            _burst(own[place], laws[place], situations[place], plan)
            for place in sorted(laws.keys() | situations.keys())
        ]
    return bursts


def _unmet(result: AdapterResult) -> list[tuple[str, str]]:
    return [(machine.name, name) for machine in result.machines for name in machine.unmet]


def _pick_places(own: Sequence[SearchedConfiguration], able: Sequence[bool], turn: int) -> set[int]:
    """Pick the first and the last able configuration of a machine; of none where it is nobody's turn."""
    places: dict[MachineEntry, list[int]] = defaultdict(list)
    for place, (found, is_able) in enumerate(zip(own, able, strict=True)):
        if is_able:
            places[found.machine].append(place)
    chosen = list(places.values())[turn : turn + 1]
    return {place for able in chosen for place in (able[0], able[-1])}


def _burst(
    found: SearchedConfiguration, laws: Sequence[str], situations: Sequence[str], plan: VerifyPlan
) -> SearchTask:
    is_short = found.machine.has_engine and not situations  # some of which come only late
    acts = _BURST_ACTS_OF_AN_ENGINE if is_short else _BURST_ACTS
    most = _BURST_ACTS_IN_ALL_OF_AN_ENGINE if found.machine.has_engine else _BURST_ACTS_IN_ALL
    return SearchTask(
        found.adapter,
        found.config,
        found.capabilities,
        found.machine,
        replace(_search_plan(plan), steps=acts, examples=most // acts, seconds=_BURST_SECONDS),
        tuple(laws),
        tuple(situations),
    )
