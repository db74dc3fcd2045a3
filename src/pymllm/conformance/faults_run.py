"""The whole of ``pymllm faults``: every fault put in place and looked for, several at a time in processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pymllm.adapters.cabinet.fault import Fault
from pymllm.conformance.detection import FaultResult, HuntPlan, HuntTask, hunt
from pymllm.conformance.runner import Progress, versions
from pymllm.conformance.workers import Lost, Workers

__all__ = ["FaultsReport", "look_for_faults"]


@dataclass(frozen=True, slots=True)
class FaultsReport:
    """What became of all of them.

    Parameters
    ----------
    plan : HuntPlan
        How they were looked for.
    jobs : int
        In how many processes.
    versions : dict
        Of what took part.
    results : tuple of FaultResult
        In the order of the faults.
    seconds : float
        For everything.
    interruption : KeyboardInterrupt or None
        What ended the search early; what was not looked for until then is not caught.
    """

    plan: HuntPlan
    jobs: int
    versions: dict[str, str]
    results: tuple[FaultResult, ...]
    seconds: float
    interruption: KeyboardInterrupt | None = None

    @property
    def missed(self) -> tuple[FaultResult, ...]:
        """Those not caught by a law of their list."""
        return tuple(result for result in self.results if not result.is_caught)

    @property
    def exit_status(self) -> int:
        """0 where every fault was caught by a law of its list, else 1."""
        return 1 if self.missed else 0


def look_for_faults(
    faults: Sequence[Fault], plan: HuntPlan, jobs: int, progress: Progress | None = None
) -> FaultsReport:
    """Put each fault in place and look for it.

    Parameters
    ----------
    faults : sequence of Fault
        Each with an id of its own.
    plan : HuntPlan
        How thoroughly.
    jobs : int
        Processes; 1 looks in this one.
    progress : callable, optional
        As of `pymllm.conformance.runner.Progress`.

    Returns
    -------
    FaultsReport
        The same, times aside, for every number of jobs.

    Raises
    ------
    KeyboardInterrupt
        It came before anything was known.
    """
    start = time.monotonic()
    show = progress or (lambda label, total: nullcontext())
    tasks = [HuntTask(fault, plan) for fault in faults]
    with Workers(jobs) as workers, show("faults", len(tasks)) as done:
        answers = workers.map(hunt, tasks, done)
    if workers.interruption is not None and all(isinstance(answer, Lost) for answer in answers):
        raise workers.interruption
    results = tuple(_result_of(fault, answer) for fault, answer in zip(faults, answers, strict=True))
    return FaultsReport(plan, jobs, versions(), results, time.monotonic() - start, workers.interruption)


def _result_of(fault: Fault, answer: FaultResult | Lost) -> FaultResult:
    return FaultResult(fault, (), (answer.message,), 0.0) if isinstance(answer, Lost) else answer
