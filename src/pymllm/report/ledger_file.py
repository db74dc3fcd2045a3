"""The ledger of a soak: the document that ``pymllm soak --json`` would have printed, and curves of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymllm.conformance.documents import SoakDocument
from pymllm.conformance.soak.ledger import RunRecord, merge_ledgers
from pymllm.conformance.soak.totals import Drift, DriftVerdict, Totals
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
    is_unknown = totals.has_problems or not totals.runs
    verdict = Verdict.UNKNOWN if is_unknown else Verdict.HOLDS
    document = SoakDocument(
        verdict=Verdict.VIOLATED if totals.has_violations or conflicts else verdict,
        interrupted=False,
        seconds=sum(run.seconds for run in runs),
        runs=totals.runs,
        operations=totals.operations,
        cpu_seconds=totals.cpu,
        peak_bytes=totals.memory.peak,
        adapters=tuple(it.row() for it in totals.adapters.values()),
        drifts=tuple(it.row() for it in drifts),
        conflicts=tuple(map(str, conflicts)),
    )
    versions = {header.version for header in headers}
    version = versions.pop() if len(versions) == 1 else None
    return Ledger(document, memory_curves(ordered, drifts), version, headers[0].versions)


def memory_curves(runs: Iterable[RunRecord], drifts: Sequence[Drift]) -> tuple[Curve, ...]:
    """Draw the memory that each process of a campaign shares with nobody, over the operations it carried out.

    The runs of one process are in order; drifts are what was found of the campaign as a whole. There are
    curves of the first 16 processes, with at most 240 points each, the last one always.
    """
    points: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        if run.memory.process:
            points.setdefault(run.memory.process, []).append((run.memory.operations, run.memory.uss))
    verdict = next((it.verdict for it in drifts if it.measure == "uss"), DriftVerdict.TOO_SHORT)
    good = {DriftVerdict.FLAT: True, DriftVerdict.GROWS: False}.get(verdict)
    plot = "memory of a soak's processes, shared with nobody"
    curves = []
    for number, series in enumerate(list(points.values())[:_PROCESSES], 1):
        stride = -(-len(series) // _POINTS)
        x, y = zip(*series[::-1][::stride][::-1], strict=True)
        at = tuple(map(float, x))
        name = f"process {number}"
        curves.append(Curve(name, "bytes", "operations", at, y, plot, None, verdict.value, good))
    return tuple(curves)
