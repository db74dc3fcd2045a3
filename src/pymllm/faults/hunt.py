"""All steps of ``pymllm faults hunt``: planting every fault and searching for it, in parallel.

What became of a fault is kept in a file as soon as it is known: a run that dies goes on where it was. Faults
can also be looked for as ``pymllm verify`` and ``pymllm soak`` look: whether the usual search catches them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct

from pymllm.adapters.registry import find_adapter
from pymllm.documents.faults import CAMPAIGN, VERIFICATION, Detection, FaultsDocument
from pymllm.errors import PymllmError
from pymllm.faults.detection import FaultResult, HuntPlan, HuntTask, Miss, hunt
from pymllm.faults.fault import Fault
from pymllm.faults.plant import StaleEditError, planted
from pymllm.search.foreign_source import digest_adapter, digest_modules
from pymllm.search.runner import verify, versions
from pymllm.search.tasks import VerifyPlan
from pymllm.soak.campaign import SoakPlan, soak
from pymllm.work.carrying import Carrier, Progress, unseen
from pymllm.work.kept import KeptResults, Work
from pymllm.work.workers import INTERRUPTED, Lost, Workers


class _Kept(Struct, frozen=True, forbid_unknown_fields=True):
    detections: tuple[Detection, ...]
    problems: tuple[str, ...]
    seconds: float
    missed: int = 0


def keep_results(path: Path) -> KeptResults[HuntTask, FaultResult]:
    """Open a file that keeps the results of faults; those of changed adapters or classes are repeated."""
    return KeptResults(path, _WORK, versions())


def _key_of(task: HuntTask) -> str:
    edited = digest_modules([module for edit in task.fault.edits for module in edit.modules])
    sources = [edited, *map(digest_adapter, task.fault.adapters)]
    return f"{sources} {task!r}"


def source_of(faults: Sequence[Fault], plan: HuntPlan) -> str:
    """Return the sources that determine the results of faults."""
    return "\n".join(_key_of(HuntTask(fault, plan)) for fault in faults)


def _unpack(task: HuntTask, plain: Any) -> FaultResult:
    kept = msgspec.convert(plain, _Kept)
    return FaultResult(task.fault, kept.detections, kept.problems, kept.seconds, kept.missed)


_WORK: Work[HuntTask, FaultResult] = Work(
    "faults",
    _key_of,
    lambda task: task.fault.id,
    lambda result: msgspec.to_builtins(
        _Kept(result.detections, result.problems, result.seconds, result.missed)
    ),
    _unpack,
)


@dataclass(frozen=True, slots=True)
class FaultsReport:
    """The results of the search for all faults."""

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
        """The faults that no law of their list caught."""
        return tuple(result for result in self.results if not result.is_caught)

    @property
    def exit_status(self) -> int:
        """The exit status: 0 if every fault was caught by a law of its list, else 1."""
        return 1 if self.missed else 0

    def document(self) -> FaultsDocument:
        """Return the document of the report."""
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
    progress: Progress = unseen,
    kept: KeptResults[HuntTask, FaultResult] | None = None,
    hunter: Callable[[HuntTask], FaultResult] | None = None,
) -> FaultsReport:
    """Plant each fault and search for it with ``hunter``, by default `hunt`, in other processes.

    The report is the same, times aside, for every number of jobs. What ``kept`` has is not looked for again,
    and what is found is kept there at once. `KeyboardInterrupt`: it came before anything was known.
    """
    start = time.monotonic()
    tasks = [HuntTask(fault, plan) for fault in faults]
    with Workers(jobs) as workers:
        carrier = Carrier(workers, progress, kept)
        answers = carrier.carry_out("faults", hunter or hunt, tasks)
    if workers.interruption is not None and all(answer is INTERRUPTED for answer in answers):
        raise workers.interruption
    results = tuple(_result_of(fault, answer) for fault, answer in zip(faults, answers, strict=True))
    seconds = time.monotonic() - start
    return FaultsReport(plan, jobs, versions(), results, seconds, workers.interruption, carrier.taken)


def _result_of(fault: Fault, answer: FaultResult | Lost) -> FaultResult:
    return FaultResult(fault, (), (answer.message,), 0.0) if isinstance(answer, Lost) else answer


def hunt_by_verify(plan: VerifyPlan, task: HuntTask) -> FaultResult:
    """Plant a fault, verify its adapters in this process by a plan, and remove the fault."""
    return _hunt(task.fault, lambda start: _verified(plan, task.fault, start))


def hunt_by_soak(plan: SoakPlan, task: HuntTask) -> FaultResult:
    """Plant a fault, play a campaign on its adapters until one run fails, and remove the fault.

    The ledger is thrown away.
    """
    return _hunt(task.fault, lambda start: _soaked(plan, task.fault, start))


def _hunt(fault: Fault, look: Callable[[float], Detection | Miss]) -> FaultResult:
    start = time.monotonic()
    try:
        with planted(fault.edits):
            seen = look(start)
    except StaleEditError as error:
        seen = Miss(f"cannot be planted: {error}", 0)
    except PymllmError as error:
        seen = Miss(f"cannot be examined: {error}", 0)
    seconds = time.monotonic() - start
    if isinstance(seen, Miss):
        return FaultResult(fault, (), (seen.message,), seconds, seen.operations)
    return FaultResult(fault, (seen,), (), seconds)


def _verified(plan: VerifyPlan, fault: Fault, start: float) -> Detection | Miss:
    adapters = tuple(map(find_adapter, fault.adapters))
    report = verify(replace(plan, adapters=adapters, jobs=0))
    steps = sum(machine.steps for adapter in report.adapters for machine in adapter.machines)
    found = [
        Detection(
            plan.seed,
            finding.law,
            finding.violation.message,
            VERIFICATION,
            adapter.name,
            finding.history.header.config,
            steps,
            time.monotonic() - start,
            len(finding.history),
        )
        for adapter in report.adapters
        for finding in adapter.findings
    ]
    if found:
        return _most_telling(fault, found)
    played = f"{report.programs:,} of {report.promised:,} programs, {steps:,} steps"
    problems = (problem.message for adapter in report.adapters for problem in adapter.problems)
    return _missed(plan.seed, played, problems, steps)


def _soaked(plan: SoakPlan, fault: Fault, start: float) -> Detection | Miss:
    adapters = tuple(map(find_adapter, fault.adapters))
    with TemporaryDirectory() as folder:
        report = soak(replace(plan, adapters=adapters, jobs=0, stops_on_failure=True), Path(folder) / "soak")
    found, problems = [], [smoke.message for smoke in report.refused]
    for name, adapter in report.totals.adapters.items():
        for law, failures in adapter.failures.items():
            record, failure = failures.first, failures.first.failure
            if failure is None or not law:
                problems += [failure.message] if failure is not None else []
                continue
            finding = (report.findings or {}).get((name, law))
            found.append(
                Detection(
                    record.seed,
                    law,
                    failure.message,
                    CAMPAIGN,
                    name,
                    record.config,
                    report.totals.operations,
                    time.monotonic() - start,
                    None if finding is None else len(finding.history),
                )
            )
    if found:
        return _most_telling(fault, found)
    played = f"{report.totals.operations:,} operations in {report.totals.runs:,} runs"
    return _missed(plan.seed, played, problems, report.totals.operations)


def _most_telling(fault: Fault, found: list[Detection]) -> Detection:
    """Return the first detection by a law of the fault's list, or else the first detection."""
    return next((it for it in found if fault.may_be_caught_by(it.law)), found[0])


def _missed(seed: int, played: str, problems: Iterable[str], operations: int) -> Miss:
    besides = "".join(f"; met {problem}" for problem in dict.fromkeys(problems))
    return Miss(f"seed {seed}: not caught{besides}; played {played}", operations)
