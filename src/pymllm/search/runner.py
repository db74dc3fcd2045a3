"""All steps of ``pymllm verify``: smoke tests, searches, second searches, and shrinking."""

from __future__ import annotations

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pymllm import __version__
from pymllm.adapters.entry import AdapterEntry
from pymllm.errors import UsageError
from pymllm.machines.smoke import SmokeFailure, SmokeReport, try_adapter
from pymllm.search.results import (
    AdapterResult,
    SearchedConfiguration,
    VerifyReport,
    find_missing,
    judge_adapter,
    leave_unknown,
)
from pymllm.search.search import Crash, SearchResult
from pymllm.search.shrinker import Finding
from pymllm.search.tasks import (
    SearchTask,
    VerifyPlan,
    plan_searches,
    plan_shrinking,
    plan_targeted_runs,
    price_of,
    run_search,
    shrink_findings,
)
from pymllm.work.carrying import Carrier, Progress, unseen
from pymllm.work.kept import KeptResults
from pymllm.work.workers import Lost, Workers


class SearchCarrier(Carrier):
    """A runner of searches, among other tasks."""

    def search(self, label: str, tasks: Sequence[SearchTask]) -> list[SearchResult | Lost]:
        """Carry out searches, the longest first, so that no process works alone on a long one at the end."""
        order = sorted(range(len(tasks)), key=lambda place: -price_of(tasks[place]))
        answers = self.carry_out(label, run_search, [tasks[place] for place in order])
        by_place = dict(zip(order, answers, strict=True))
        return [by_place[place] for place in range(len(tasks))]


def begin(
    plan: VerifyPlan, carrier: SearchCarrier
) -> tuple[list[SmokeReport | SmokeFailure | Lost], list[SearchTask]]:
    """Smoke-test every adapter, and plan the first searches of those that pass; raises errors as `verify`."""
    with carrier.show("smoke tests", len(plan.adapters)) as done:
        smokes = carrier.workers.map(try_adapter, plan.adapters, done)
    for smoke in smokes:
        if isinstance(smoke, SmokeFailure):
            smoke.refuse_missing()
    sane = sane_of(smokes)
    tasks = plan_searches(sane, plan)
    if sane and not tasks:
        reasons = dict.fromkeys(reason for smoke in sane for reason in find_missing(smoke, plan.laws))
        refused = f"none of the adapters can test {', '.join(law.id for law in plan.laws)}"
        raise UsageError("; ".join([refused, *reasons]))
    return smokes, tasks


def sane_of(smokes: Iterable[SmokeReport | SmokeFailure | Lost]) -> list[SmokeReport]:
    """Return the reports of adapters that passed the smoke test."""
    return [smoke for smoke in smokes if isinstance(smoke, SmokeReport)]


def verify(
    plan: VerifyPlan, progress: Progress = unseen, kept: KeptResults[Any, Any] | None = None
) -> VerifyReport:
    """Search every configuration of the adapters for programs that break a law.

    The report is the same, times aside, for every number of jobs, unless a search was cut short. It takes as
    long as the programs that the profile promises take. Each search has a limit of its own, many times as
    long, so that there is an end on any machine; what it left out is in the report. What ``kept`` has is not
    done again (`pymllm.search.kept_searches`).

    `UsageError`: no adapter is about any of the laws asked for, there is no such class as ``module:Class``
    names, or ``kept`` takes no more. `KeyboardInterrupt`: it came before any search was done; later it ends
    the work, and the report has what there is.
    """
    start = time.monotonic()
    with Workers(plan.jobs, plan.timeout) as workers:
        carrier = SearchCarrier(workers, progress, kept)
        smokes, tasks = begin(plan, carrier)
        searches = _search_all("searches", tasks, carrier)
        if workers.interruption is not None and not any(found.result.programs for found in searches):
            raise workers.interruption
        searches += _look_again(sane_of(smokes), searches, plan, carrier)
        shrunk = _shrink_all(searches, plan, carrier)
    results = tuple(
        _sum_up(entry, smoke, searches, shrunk[entry.name], plan)
        for entry, smoke in zip(plan.adapters, smokes, strict=True)
    )
    spent = time.monotonic() - start
    return VerifyReport(
        plan.profile.name,
        plan.seed,
        plan.examples,
        plan.jobs,
        plan.profile.steps,
        versions(plan.adapters),
        results,
        spent,
        workers.interruption,
        plan.is_strict,
        plan.deviations,
        carrier.taken,
    )


def _search_all(
    label: str, tasks: Sequence[SearchTask], carrier: SearchCarrier
) -> list[SearchedConfiguration]:
    return [
        SearchedConfiguration(task.adapter, task.config, task.capabilities, task.machine, _as_result(answer))
        for task, answer in zip(tasks, carrier.search(label, tasks), strict=True)
    ]


def _look_again(
    smokes: Sequence[SmokeReport],
    searches: Sequence[SearchedConfiguration],
    plan: VerifyPlan,
    carrier: SearchCarrier,
) -> list[SearchedConfiguration]:
    """Search again for untested laws and unreached goals, one machine at a time, while any can help."""
    again: list[SearchedConfiguration] = []
    turn = 0
    while not carrier.workers.interruption and (
        runs := plan_targeted_runs(smokes, searches, plan, again, turn)
    ):
        again += _search_all("second searches", runs, carrier)
        turn += 1
    return again


def _shrink_all(
    searches: Sequence[SearchedConfiguration], plan: VerifyPlan, carrier: SearchCarrier
) -> dict[str, list[Finding]]:
    """Shrink the programs that searches found, and return the findings by adapter."""
    shrunk: dict[str, list[Finding]] = defaultdict(list)
    tasks = plan_shrinking(searches, plan)
    for task, findings in zip(
        tasks, carrier.carry_out("smaller programs", shrink_findings, tasks), strict=True
    ):
        shrunk[task.adapter] += () if isinstance(findings, Lost) else findings
    return shrunk


def _as_result(answer: SearchResult | Lost) -> SearchResult:
    if isinstance(answer, SearchResult):
        return answer
    crash = Crash(answer.message, answer.history)
    return SearchResult(0, 0, 0.0, Counter(), Counter(), Counter(), (), crash)


def _sum_up(
    entry: AdapterEntry,
    smoke: SmokeReport | SmokeFailure | Lost,
    searches: Sequence[SearchedConfiguration],
    shrunk: Sequence[Finding],
    plan: VerifyPlan,
) -> AdapterResult:
    if isinstance(smoke, SmokeReport):
        own = [found for found in searches if found.adapter == entry.name]
        return judge_adapter(smoke, own, plan.laws, shrunk)
    if isinstance(smoke, Lost):
        smoke = SmokeFailure(entry.name, None, smoke.message)
    return leave_unknown(smoke, plan.laws)


def versions(adapters: Iterable[AdapterEntry] = ()) -> dict[str, str]:
    """Return the installed versions of all packages that a search of these adapters uses."""
    found = {"pymllm": __version__, "python": platform.python_version()}
    others = dict.fromkeys(entry.released_as for entry in adapters if entry.released_as)
    for package in ("hypothesis", "torch", "numpy", *others):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
