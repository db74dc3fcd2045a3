"""The ledger of a soak: the document that ``pymllm soak --json`` would have printed, and curves of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymllm.conformance.documents import DriftRow, FailureRow, SoakDocument, SoakedAdapter
from pymllm.conformance.soak.drift import Drift, DriftVerdict
from pymllm.conformance.soak.ledger import merge_ledgers
from pymllm.conformance.soak.records import Failure, RunRecord
from pymllm.conformance.soak.totals import AdapterTotals, FailureTotals, Totals
from pymllm.oracle.verdicts import Verdict
from pymllm.report.records import Curve

_POINTS = 240
_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a ledger comes to."""

    document: SoakDocument
    curves: tuple[Curve, ...]  # memory of each process
    version: str | None  # of the package, where all campaigns were of one
    versions: Mapping[str, str]  # of the packages involved


def read_ledger_file(*paths: Path) -> Ledger:
    """Read a ledger, or several as one; errors as of `pymllm.conformance.soak.ledger.read_ledger`."""
    headers, runs, conflicts = merge_ledgers(paths)
    totals = Totals(headers)
    ordered = sorted(runs, key=lambda run: (run.memory.process, run.memory.operations))
    for run in ordered:
        totals.add(run)
    drifts = totals.memory.estimate()
    is_violated = totals.has_violations or bool(conflicts)
    verdict = Verdict.UNKNOWN if totals.has_problems else Verdict.HOLDS
    document = SoakDocument(
        verdict=(Verdict.VIOLATED if is_violated else verdict).value,
        interrupted=False,
        seconds=sum(run.seconds for run in runs),
        runs=totals.runs,
        operations=totals.operations,
        cpu_seconds=totals.cpu,
        peak_bytes=totals.memory.peak,
        adapters=tuple(map(_adapter, totals.adapters.values())),
        drifts=tuple(map(_drift, drifts)),
        conflicts=tuple(map(str, conflicts)),
    )
    versions = {header.version for header in headers}
    return Ledger(
        document,
        memory_curves(ordered, drifts),
        versions.pop() if len(versions) == 1 else None,
        headers[0].versions,
    )


def _adapter(it: AdapterTotals) -> SoakedAdapter:
    return SoakedAdapter(
        it.name,
        it.kind,
        it.runs,
        it.operations,
        it.seconds,
        it.operations_per_second,
        it.shares,
        dict(it.exercised),
        tuple(it.untested),
        dict(it.reached),
        tuple(it.missing),
        tuple(map(_failure_row, it.failures.values())),
    )


def _failure_row(it: FailureTotals) -> SoakFailureRow:
    first = it.first
    assert first.failure is not None  # it is counted as one
    return SoakFailureRow(
        it.runs,
        first.config,
        first.machine,
        first.seed,
        first.limit,
        _failure(first.failure),
        first.file,
        first.short,
    )


def _failure(it: Failure) -> SoakFailure:
    return SoakFailure(it.law, it.message, it.expected, it.observed, it.step)


def _drift(it: Drift) -> DriftRow:
    return DriftRow(it.measure, it.unit, it.slope, it.low, it.high, it.bound, it.samples, it.verdict.value)


def memory_curves(runs: Iterable[RunRecord], drifts: Sequence[Drift]) -> tuple[Curve, ...]:
    """Draw the memory that each process of a campaign shares with nobody, over the operations it carried out.

    The runs of one process are in order; drifts are what was found of the campaign as a whole. There are curves
    of the first 16 processes, with at most 240 points each, the last one always.
    """
    points: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        if run.memory.process:
            points.setdefault(run.memory.process, []).append((run.memory.operations, run.memory.uss))
    verdict = next((it.verdict for it in drifts if it.measure == "uss"), DriftVerdict.TOO_SHORT)
    good = {DriftVerdict.FLAT: True, DriftVerdict.GROWS: False}.get(verdict)
    curves = []
    for number, (_, series) in enumerate(list(points.items())[:_PROCESSES], 1):
        stride = -(-len(series) // _POINTS)
        x, y = zip(*series[::-1][::stride][::-1], strict=True)
        curves.append(
            Curve(
                f"process {number}",
                "bytes",
                "operations",
                tuple(map(float, x)),
                y,
                "memory of a soak's processes, shared with nobody",
                verdict=verdict.value,
                good=good,
            )
        )
    return tuple(curves)
