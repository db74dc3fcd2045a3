"""The whole of ``pymllm verify``: smoke tests, searches, second searches, and what was found made small."""

from __future__ import annotations

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from pymllm import __version__
from pymllm.adapters.registry import AdapterEntry
from pymllm.conformance.acting import FoundViolation, find_scenario, make_machine
from pymllm.conformance.finding import Finding, make_finding, pick_smallest
from pymllm.conformance.machines import MachineEntry, load_machine
from pymllm.conformance.results import (
    AdapterResult,
    SearchedConfiguration,
    VerifyReport,
    find_missing,
    judge_adapter,
    leave_unknown,
)
from pymllm.conformance.search import Crash, SearchPlan, SearchResult, burst, search
from pymllm.conformance.search_tasks import SearchTask, VerifyPlan, plan_bursts, plan_searches
from pymllm.conformance.shrinker import shrink
from pymllm.conformance.smoke import SmokeFailure, SmokeReport, try_adapter
from pymllm.conformance.worker_process import Lost
from pymllm.conformance.workers import Workers
from pymllm.errors import UsageError
from pymllm.history.files import Config


@dataclass(frozen=True, slots=True)
class RefineTask:
    """One finding to make smaller; with a plan, by the search that found it, too."""

    adapter: str  # adapter, config, machine: what it was found with
    config: Config
    machine: MachineEntry
    finding: Finding
    plays: int  # most programs to play while steps are dropped
    plan: SearchPlan | None  # finds it again and shrinks it; ``None`` drops steps only


def plan_refining(searches: Sequence[SearchedConfiguration], plan: VerifyPlan) -> list[RefineTask]:
    """Choose what to make smaller: for each adapter the smallest program of each law that it breaks.

    Hypothesis shrinks the smallest of all only, which is the one that is printed.
    """
    tasks: list[RefineTask] = []
    for adapter in dict.fromkeys(done.adapter for done in searches):
        sources = {id(finding): done for done in searches for finding in done.result.found}
        found = [finding for done in searches if done.adapter == adapter for finding in done.result.found]
        smallest = pick_smallest(found)
        for finding in smallest:
            source = sources[id(finding)]
            again = _search_again(source, plan) if finding is smallest[0] else None
            tasks.append(
                RefineTask(adapter, source.config, source.machine, finding, plan.profile.shrinks, again)
            )
    return tasks


def _search_again(source: SearchedConfiguration, plan: VerifyPlan) -> SearchPlan | None:
    again = source.result.again
    # None: driven, by a search or by a burst; Hypothesis had no part in it.
    return None if again is None else replace(again, shrinks=plan.profile.shrinks)


def refine(task: RefineTask) -> tuple[Finding, ...]:
    """Make a finding smaller; other laws that smaller programs broke on the way come with it.

    The smallest of an adapter is made smaller twice, by `shrink` and by Hypothesis, since neither does for
    the other. Of 38 faults of the cabinet Hypothesis had fewer operations in two (11 for 23, 4 for 5) and
    more in one (20 for 18); in seven it met other laws on its way, of which the table would say that they
    hold. It takes 2.1 s of processor time in the mean, `shrink` 0.3 s: once for each adapter that is broken.
    """
    history = task.finding.history
    found = FoundViolation(history, task.finding.violation, scenario=find_scenario(history.header))
    findings = [make_finding(shrink(found, seconds=None, plays=task.plays))]
    if task.plan is not None:
        machine = make_machine(load_machine(task.machine), task.adapter, task.config, seed=task.plan.seed)
        again = search(machine, task.plan).found
        # Where Hypothesis was cut short, dropping steps may have ended, and numbers could still be smaller.
        is_unfinished = any(finding.is_unfinished for finding in again)
        findings = [
            *(replace(it, is_unfinished=it.is_unfinished or is_unfinished) for it in findings),
            *again,
        ]
    return pick_smallest(findings)


Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""Takes what is about to be done and how often; gives what to call with the number done."""


def verify(plan: VerifyPlan, progress: Progress | None = None) -> VerifyReport:
    """Search every configuration of some adapters for programs that break a law.

    The report is the same, times aside, for every number of jobs, unless a search was cut short. It takes as
    long as the programs that the profile promises take. Each search has a limit of its own, many times as
    long, so that there is an end on any machine; what it left out is in the report.

    `UsageError`: no adapter is about any of the laws asked for, or there is no such class as ``module:Class``
    names. `KeyboardInterrupt`: it came before any search was done; later it ends the work, and the report has
    what there is.
    """
    start = time.monotonic()
    show = progress or (lambda label, total: nullcontext())
    with Workers(plan.jobs, plan.timeout) as workers:
        with show("smoke tests", len(plan.adapters)) as done:
            smokes = workers.map(try_adapter, plan.adapters, done)
        _refuse_missing(smokes)
        sane = [smoke for smoke in smokes if isinstance(smoke, SmokeReport)]
        tasks = plan_searches(sane, plan)
        if sane and not tasks:
            reasons = dict.fromkeys(reason for smoke in sane for reason in find_missing(smoke, plan.laws))
            refused = f"no adapter asked for can test {', '.join(law.id for law in plan.laws)}"
            raise UsageError("; ".join([refused, *reasons]))
        with show("searches", len(tasks)) as done:
            searches = _search_all(tasks, workers, done)
        if workers.interruption is not None and not any(found.result.programs for found in searches):
            raise workers.interruption
        searches += _look_again(sane, searches, plan, workers, show)
        refined = _refine_all(searches, plan, workers, show)
    results = tuple(
        _sum_up(entry, smoke, searches, refined[entry.name], plan)
        for entry, smoke in zip(plan.adapters, smokes, strict=True)
    )
    spent = time.monotonic() - start
    return VerifyReport(
        plan.profile.name,
        plan.seed,
        plan.examples,
        plan.jobs,
        plan.profile.steps,
        versions(),
        results,
        spent,
        workers.interruption,
        plan.is_strict,
    )


def _refuse_missing(smokes: Sequence[SmokeReport | SmokeFailure | Lost]) -> None:
    for smoke in smokes:
        if isinstance(smoke, SmokeFailure) and smoke.is_missing and ":" in smoke.name:
            raise UsageError(f"adapter {smoke.name}: {smoke.message}")


def _search_all(
    tasks: Sequence[SearchTask], workers: Workers, done: Callable[[int], None] | None
) -> list[SearchedConfiguration]:
    # The longest first, so that no process is left alone with one at the end.
    order = sorted(range(len(tasks)), key=lambda place: -_price(tasks[place]))
    answers = workers.map(_run_task, [tasks[place] for place in order], done)
    by_place = dict(zip(order, answers, strict=True))
    return [
        SearchedConfiguration(
            task.adapter, task.config, task.capabilities, task.machine, _as_result(by_place[place])
        )
        for place, task in enumerate(tasks)
    ]


def _price(task: SearchTask) -> float:
    """Estimate how long a search takes, in no unit."""
    plan, machine = task.plan, task.machine
    return plan.steps * (plan.examples / machine.pace + plan.driven / machine.driven_pace)


def _look_again(
    smokes: Sequence[SmokeReport],
    searches: Sequence[SearchedConfiguration],
    plan: VerifyPlan,
    workers: Workers,
    show: Progress,
) -> list[SearchedConfiguration]:
    """Look for what was not met, one machine after the other, until none is left that might meet it."""
    again: list[SearchedConfiguration] = []
    turn = 0
    while not workers.interruption and (bursts := plan_bursts(smokes, searches, plan, again, turn)):
        with show("what was not met yet", len(bursts)) as done:
            again += _search_all(bursts, workers, done)
        turn += 1
    return again


def _refine_all(
    searches: Sequence[SearchedConfiguration], plan: VerifyPlan, workers: Workers, show: Progress
) -> dict[str, list[Finding]]:
    """Make programs smaller; findings by adapter."""
    refined: dict[str, list[Finding]] = defaultdict(list)
    tasks = plan_refining(searches, plan)
    if tasks:
        with show("smaller programs", len(tasks)) as done:
            for task, findings in zip(tasks, workers.map(refine, tasks, done), strict=True):
                refined[task.adapter] += () if isinstance(findings, Lost) else findings
    return refined


def _run_task(task: SearchTask) -> SearchResult:
    machine = make_machine(load_machine(task.machine), task.adapter, task.config, seed=task.plan.seed)
    if task.laws or task.situations:
        return burst(machine, task.plan, task.laws, task.situations)
    return search(machine, task.plan)


def _as_result(answer: SearchResult | Lost) -> SearchResult:
    if isinstance(answer, SearchResult):
        return answer
    crash = Crash(answer.message, answer.history)
    return SearchResult(0, 0, 0.0, Counter(), Counter(), Counter(), (), crash)


def _sum_up(
    entry: AdapterEntry,
    smoke: SmokeReport | SmokeFailure | Lost,
    searches: Sequence[SearchedConfiguration],
    refined: Sequence[Finding],
    plan: VerifyPlan,
) -> AdapterResult:
    if isinstance(smoke, SmokeReport):
        own = [found for found in searches if found.adapter == entry.name]
        return judge_adapter(smoke, own, plan.laws, refined)
    if isinstance(smoke, Lost):
        smoke = SmokeFailure(entry.name, None, smoke.message)
    return leave_unknown(smoke, plan.laws)


def versions() -> dict[str, str]:
    """Return the versions of what takes part in a search, as far as it is installed."""
    found = {"pymllm": __version__, "python": platform.python_version()}
    for package in ("hypothesis", "torch", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
