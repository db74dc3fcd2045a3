"""The whole of ``pymllm verify``: smoke tests, searches, second searches for what is still unknown."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from pymllm import __version__
from pymllm.adapters.registry import AdapterEntry
from pymllm.conformance.acting import make_machine
from pymllm.conformance.machines import MachineEntry, load_machine, machines_for
from pymllm.conformance.profiles import Profile
from pymllm.conformance.results import (
    AdapterResult,
    SearchedConfiguration,
    VerifyReport,
    judge_adapter,
    leave_unknown,
)
from pymllm.conformance.search import Crash, SearchPlan, SearchResult, burst, search
from pymllm.conformance.smoke import SmokeFailure, SmokeReport, try_adapter
from pymllm.conformance.workers import Workers
from pymllm.errors import UsageError
from pymllm.oracle.history import Config
from pymllm.oracle.laws import Law
from pymllm.oracle.verdicts import Verdict

__all__ = ["VerifyPlan", "verify"]

_FULL_PRICE = 12  # configurations of one adapter; more than that share the time of so many
_BURST_SECONDS = 2.0
_BURST_PROGRAMS = 5
_DIED = "the process that ran it died; run it alone with --jobs 1 to see how"

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""Takes what is about to be done and how often; gives what to call with the number done."""


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """What to verify, and how thoroughly.

    Parameters
    ----------
    adapters : tuple of AdapterEntry
        In the order of the report.
    laws : tuple of Law
        Only what can test one of them, and only their rows; empty for all.
    profile : Profile
        Length of programs, time, and time to shrink.
    seed : int
        Of all choices.
    examples : int or None
        Programs per machine and configuration instead of the profile's time; the same on every machine.
    jobs : int
        Processes.
    """

    adapters: tuple[AdapterEntry, ...]
    laws: tuple[Law, ...]
    profile: Profile
    seed: int
    examples: int | None
    jobs: int


@dataclass(frozen=True, slots=True)
class _Task:
    """One machine on one configuration; with ``laws``, a burst until they were tested."""

    adapter: str
    config: Config
    capabilities: frozenset[str]
    machine: MachineEntry
    plan: SearchPlan
    laws: tuple[str, ...] = ()


def verify(plan: VerifyPlan, progress: Progress | None = None) -> VerifyReport:
    """Search every configuration of some adapters for programs that break a law.

    Parameters
    ----------
    plan : VerifyPlan
        What to do.
    progress : callable, optional
        As `Progress`.

    Returns
    -------
    VerifyReport
        The same, times aside, for every number of jobs where ``examples`` is given.

    Raises
    ------
    UsageError
        No adapter is about any of the laws asked for.

    Notes
    -----
    Time: about the profile's seconds times the weights of all machines and configurations, shared by the
    jobs, with a cap for each adapter; more where a violation is made smaller.
    """
    start = time.monotonic()
    show = progress or (lambda label, total: nullcontext())
    with Workers(plan.jobs) as workers:
        with show("smoke tests", len(plan.adapters)) as done:
            smokes = workers.map(try_adapter, plan.adapters, done)
        sane = [smoke for smoke in smokes if isinstance(smoke, SmokeReport)]
        tasks = [task for smoke in sane for task in _plan_searches(smoke, plan)]
        if sane and not tasks:
            raise UsageError(f"no adapter asked for can test {', '.join(law.id for law in plan.laws)}")
        with show("searches", len(tasks)) as done:
            searches = _search_all(tasks, workers, done)
        bursts = _plan_bursts(sane, searches, plan)
        if bursts:
            with show("laws not tested yet", len(bursts)) as done:
                searches += _search_all(bursts, workers, done)
    results = tuple(
        _sum_up(entry, smoke, searches, plan) for entry, smoke in zip(plan.adapters, smokes, strict=True)
    )
    spent = time.monotonic() - start
    return VerifyReport(
        plan.profile.name,
        plan.seed,
        plan.examples,
        plan.jobs,
        plan.profile.steps,
        _versions(),
        results,
        spent,
    )


def _plan_searches(smoke: SmokeReport, plan: VerifyPlan) -> list[_Task]:
    pairs = [
        (config, capabilities, machine)
        for config, capabilities in smoke.configurations
        for machine in machines_for(smoke.kind, capabilities, plan.laws)
        if not plan.laws or any(law.applies_to(config, capabilities) for law in _about(smoke, plan))
    ]
    sharing = Counter(machine.name for _, _, machine in pairs)
    return [
        _Task(
            smoke.name,
            config,
            capabilities,
            machine,
            _search_plan(plan, plan.profile.seconds * _share(machine, sharing[machine.name])),
        )
        for config, capabilities, machine in pairs
    ]


def _share(machine: MachineEntry, configurations: int) -> float:
    return machine.weight * min(1.0, _FULL_PRICE / configurations)


def _about(smoke: SmokeReport, plan: VerifyPlan) -> list[Law]:
    return [law for law in plan.laws if smoke.kind in law.kinds]


def _search_plan(plan: VerifyPlan, seconds: float) -> SearchPlan:
    return SearchPlan(plan.seed, plan.profile.steps, plan.examples, seconds, plan.profile.shrinks)


def _plan_bursts(
    smokes: Sequence[SmokeReport], searches: Sequence[SearchedConfiguration], plan: VerifyPlan
) -> list[_Task]:
    """Plan another search, on every configuration that can test them, for laws that nothing has tested."""
    bursts = []
    for smoke in smokes:
        own = [found for found in searches if found.adapter == smoke.name]
        result = judge_adapter(smoke, own, plan.laws)
        if result.findings or result.problems:
            continue
        untested = [row.law for row in result.laws if row.verdict is Verdict.UNKNOWN]
        able = [(found, [law.id for law in untested if found.could_test(law)]) for found in own]
        able = [(found, laws) for found, laws in able if laws]
        for found, laws in able:
            search_plan = replace(
                _search_plan(plan, _BURST_SECONDS / len(able)),
                examples=None if plan.examples is None else _BURST_PROGRAMS,
            )
            bursts.append(
                _Task(
                    found.adapter, found.config, found.capabilities, found.machine, search_plan, tuple(laws)
                )
            )
    return bursts


def _search_all(
    tasks: Sequence[_Task], workers: Workers, done: Callable[[int], None] | None
) -> list[SearchedConfiguration]:
    # The longest first, so that no process is left alone with one at the end.
    order = sorted(range(len(tasks)), key=lambda place: -tasks[place].plan.seconds)
    answers = workers.map(_run_task, [tasks[place] for place in order], done)
    by_place = dict(zip(order, answers, strict=True))
    return [
        SearchedConfiguration(
            task.adapter, task.config, task.capabilities, task.machine, by_place[place] or _died()
        )
        for place, task in enumerate(tasks)
    ]


def _run_task(task: _Task) -> SearchResult:
    machine = make_machine(load_machine(task.machine), task.adapter, task.config, seed=task.plan.seed)
    if task.laws:
        return burst(machine, task.plan, task.laws)
    return search(machine, task.plan)


def _died() -> SearchResult:
    return SearchResult(0, 0, 0.0, Counter(), Counter(), Counter(), (), Crash(_DIED, None))


def _sum_up(
    entry: AdapterEntry,
    smoke: SmokeReport | SmokeFailure | None,
    searches: Sequence[SearchedConfiguration],
    plan: VerifyPlan,
) -> AdapterResult:
    if isinstance(smoke, SmokeReport):
        return judge_adapter(smoke, [found for found in searches if found.adapter == entry.name], plan.laws)
    return leave_unknown(smoke or SmokeFailure(entry.name, None, _DIED), plan.laws)


def _versions() -> dict[str, str]:
    found = {"pymllm": __version__, "python": platform.python_version()}
    for package in ("hypothesis", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
