"""The JSON document of a soak. Its fields are promised: docs/schemas/soak.schema.json has them.

The version counts up when a field goes away or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymllm.conformance.soak.campaign import SoakReport
from pymllm.conformance.soak.records import Failure
from pymllm.conformance.soak.totals import AdapterTotals, FailureTotals
from pymllm.history.files import Config
from pymllm.history.records import encode, schema_of

__all__ = ["SCHEMA", "VERSION", "make_document", "soak_schema"]

SCHEMA = "pymllm.soak"
VERSION = 1


@dataclass(frozen=True, slots=True)
class CampaignRow:
    """A campaign: what to type to play it again."""

    source: str
    versions: dict[str, str]
    seed: int
    operations: int | None
    longest: int
    audit: int
    places: int


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A broken law, or a problem where ``law`` is null: the first run that met it, and how many did."""

    runs: int
    source: str
    config: Config
    machine: str
    seed: int
    limit: int
    failure: Failure
    file: str | None
    short: str | None


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """What is known of an adapter; shares are parts of the processor's time."""

    name: str
    kind: str
    places: int
    places_played: int
    runs: int
    operations: int
    seconds: float
    cpu_seconds: float
    operations_per_cpu_second: float
    shares: dict[str, float]
    tests: dict[str, int]
    walks: dict[str, int]
    untested_laws: tuple[str, ...]
    situations: dict[str, int]
    missing_situations: tuple[str, ...]
    failures: tuple[FailureRow, ...]


@dataclass(frozen=True, slots=True)
class DriftRow:
    """How memory changes: units per million operations, null where there are too few samples."""

    measure: str
    unit: str
    slope: float | None
    low: float | None
    high: float | None
    bound: float
    samples: int
    processes: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm soak --json`` prints; after an interrupt the command's status is the signal's."""

    schema: str
    version: int
    campaigns: tuple[CampaignRow, ...]
    strict: bool
    verdict: str
    exit_status: int
    interrupted: bool
    seconds: float
    jobs: int
    folder: str | None
    runs: int
    operations: int
    cpu_seconds: float
    peak_bytes: int
    adapters: tuple[AdapterRow, ...]
    drifts: tuple[DriftRow, ...]
    refused: dict[str, str]
    conflicts: tuple[str, ...]


def make_document(report: SoakReport, *, strict: bool = False) -> dict[str, Any]:
    """Put a report into plain data.

    Parameters
    ----------
    report : SoakReport
        Of the campaign.
    strict : bool
        As of `SoakReport.verdict`.

    Returns
    -------
    dict
        Valid under `soak_schema`.
    """
    totals, verdict = report.totals, report.verdict(strict=strict)
    document = Document(
        SCHEMA,
        VERSION,
        tuple(
            CampaignRow(it.version, it.versions, it.seed, it.operations, it.longest, it.audit, len(it.places))
            for it in report.headers
        ),
        strict,
        verdict.value,
        verdict.exit_status,
        report.interruption is not None,
        round(report.seconds, 3),
        report.jobs,
        str(report.folder) if report.folder is not None else None,
        totals.runs,
        totals.operations,
        round(totals.cpu, 3),
        totals.memory.peak,
        tuple(map(_adapter_row, totals.adapters.values())),
        tuple(
            DriftRow(
                it.measure,
                it.unit,
                _rounded(it.slope),
                _rounded(it.low),
                _rounded(it.high),
                it.bound,
                it.samples,
                it.processes,
                it.verdict.value,
            )
            for it in report.drifts
        ),
        {it.name: it.message for it in report.refused},
        tuple(map(str, report.conflicts)),
    )
    plain: dict[str, Any] = encode(document)
    return plain


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _adapter_row(adapter: AdapterTotals) -> AdapterRow:
    return AdapterRow(
        adapter.name,
        adapter.kind,
        adapter.places,
        len(adapter.played),
        adapter.runs,
        adapter.operations,
        round(adapter.seconds, 3),
        round(adapter.cpu, 3),
        round(adapter.operations_per_second, 1),
        {name: round(share, 4) for name, share in adapter.shares.items()},
        dict(sorted(adapter.exercised.items())),
        dict(sorted(adapter.audited.items())),
        tuple(adapter.untested),
        dict(sorted(adapter.reached.items())),
        tuple(adapter.missing),
        tuple(map(_failure_row, adapter.failures.values())),
    )


def _failure_row(failure: FailureTotals) -> FailureRow:
    record = failure.first
    assert record.failure is not None  # it is counted as one
    return FailureRow(
        failure.runs,
        record.version,
        record.config,
        record.machine,
        record.seed,
        record.limit,
        record.failure,
        record.file,
        record.short,
    )


def soak_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm soak", **found}
