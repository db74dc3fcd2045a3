"""The whole of ``pymllm faults``: every fault put in place and looked for, several at a time in processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pymllm.adapters.cabinet.fault import Fault
from pymllm.conformance.detection import FaultResult, HuntPlan, HuntTask, hunt
from pymllm.conformance.documents import FaultsDocument
from pymllm.conformance.kept_results import KeptResults
from pymllm.conformance.runner import Progress, versions
from pymllm.conformance.worker_process import Lost
from pymllm.conformance.workers import Workers


@dataclass(frozen=True, slots=True)
class FaultsReport:
    """What became of all of them."""

    plan: HuntPlan  # how they were looked for
    jobs: int  # in how many processes
    versions: dict[str, str]  # of what took part
    results: tuple[FaultResult, ...]  # in the order of the faults
    seconds: float  # for everything
    # what ended the search early; what was not looked for until then is not caught
    interruption: KeyboardInterrupt | None = None
    kept: int = 0  # how many results are of an earlier run; ``seconds`` are without them

    @property
    def missed(self) -> tuple[FaultResult, ...]:
        """Those not caught by a law of their list."""
        return tuple(result for result in self.results if not result.is_caught)

    @property
    def exit_status(self) -> int:
        """0 where every fault was caught by a law of its list, else 1."""
        return 1 if self.missed else 0

    def document(self) -> FaultsDocument:
        """Return the record of it."""
        return FaultsDocument(
            versions=self.versions,
            seeds=self.plan.seeds,
            jobs=self.jobs,
            seconds=round(self.seconds, 3),
            kept=self.kept,
            caught=len(self.results) - len(self.missed),
            missed=len(self.missed),
            exit_status=self.exit_status,
            faults=tuple(result.row() for result in self.results),
        )


def look_for_faults(
    faults: Sequence[Fault],
    plan: HuntPlan,
    jobs: int,
    progress: Progress | None = None,
    kept: KeptResults | None = None,
    hunter: Callable[[HuntTask], FaultResult] | None = None,
) -> FaultsReport:
    """Put each fault in place and look for it with ``hunter``, by default `hunt`, in other processes.

    The report is the same, times aside, for every number of jobs. What ``kept`` has is not looked for again,
    and what is found is kept there at once. `KeyboardInterrupt`: it came before anything was known.
    """
    start = time.monotonic()
    show = progress or (lambda label, total: nullcontext())
    tasks = [HuntTask(fault, plan) for fault in faults]
    known = {task.fault.id: kept.find(task) for task in tasks} if kept is not None else {}
    found = {id: result for id, result in known.items() if result is not None}
    before = len(found)
    left = [task for task in tasks if task.fault.id not in found]
    with Workers(jobs) as workers, show("faults", len(tasks)) as done:
        try:
            for task, answer in workers.stream(hunter or hunt, left):
                found[task.fault.id] = _result_of(task.fault, answer)
                if kept is not None and not isinstance(answer, Lost):
                    kept.keep(task, answer)
                if done is not None:
                    done(len(found))
        except KeyboardInterrupt as interruption:  # between two answers
            workers.interruption = interruption
    if workers.interruption is not None and not found:
        raise workers.interruption
    missing = Lost("interrupted before its end")
    results = tuple(found.get(fault.id) or _result_of(fault, missing) for fault in faults)
    seconds = time.monotonic() - start
    return FaultsReport(plan, jobs, versions(), results, seconds, workers.interruption, before)


def _result_of(fault: Fault, answer: FaultResult | Lost) -> FaultResult:
    return FaultResult(fault, (), (answer.message,), 0.0) if isinstance(answer, Lost) else answer
