"""Faults looked for as ``pymllm verify`` and ``pymllm soak`` look: whether the usual search catches them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.planting import StaleEditError, planted
from pymllm.adapters.registry import find_adapter
from pymllm.conformance.detection import FaultResult, HuntTask
from pymllm.conformance.documents import CAMPAIGN, VERIFICATION, Detection
from pymllm.conformance.runner import verify
from pymllm.conformance.search_tasks import VerifyPlan
from pymllm.conformance.soak.campaign import SoakPlan, soak
from pymllm.errors import PymllmError


def hunt_by_verify(plan: VerifyPlan, task: HuntTask) -> FaultResult:
    """Put a fault in place, verify its adapters in this process as a plan of verify says, and take it out."""
    return _hunt(task.fault, lambda start: _verified(plan, task.fault, start))


def hunt_by_soak(plan: SoakPlan, task: HuntTask) -> FaultResult:
    """Put a fault in place, play a campaign on its adapters until one run fails, and take it out again.

    The ledger is thrown away.
    """
    return _hunt(task.fault, lambda start: _soaked(plan, task.fault, start))


def _hunt(fault: Fault, look: Callable[[float], Detection | str]) -> FaultResult:
    start = time.monotonic()
    try:
        with planted(fault.edits):
            seen = look(start)
    except StaleEditError as error:
        seen = f"cannot be planted: {error}"
    except PymllmError as error:
        seen = f"cannot be examined: {error}"
    seconds = time.monotonic() - start
    if isinstance(seen, str):
        return FaultResult(fault, (), (seen,), seconds)
    return FaultResult(fault, (seen,), (), seconds)


def _verified(plan: VerifyPlan, fault: Fault, start: float) -> Detection | str:
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
    return _missed(plan.seed, played, problems)


def _soaked(plan: SoakPlan, fault: Fault, start: float) -> Detection | str:
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
    return _missed(
        plan.seed, f"{report.totals.operations:,} operations in {report.totals.runs:,} runs", problems
    )


def _most_telling(fault: Fault, found: list[Detection]) -> Detection:
    """Choose one by a law of the fault's list, if there is one; an adapter's shortest program comes first."""
    return next((it for it in found if fault.may_be_caught_by(it.law)), found[0])


def _missed(seed: int, played: str, problems: Iterable[str]) -> str:
    besides = "".join(f"; met {problem}" for problem in dict.fromkeys(problems))
    return f"seed {seed}: not caught; played {played}{besides}"
