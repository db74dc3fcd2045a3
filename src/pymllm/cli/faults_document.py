"""The JSON document of a run over faults. Its fields are promised: docs/schemas/faults.schema.json has them.

The version counts up when a field goes away or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymllm.adapters.cabinet.bugs import bug_of
from pymllm.adapters.cabinet.fault import SEARCHERS, Fault
from pymllm.conformance.command_hunts import CAMPAIGN, VERIFICATION
from pymllm.conformance.detection import Detection, FaultResult
from pymllm.conformance.faults_run import FaultsReport
from pymllm.history.files import Config
from pymllm.history.records import encode, schema_of

__all__ = ["SCHEMA", "VERSION", "faults_schema", "make_document"]

SCHEMA = "pymllm.faults"
VERSION = 1


@dataclass(frozen=True, slots=True)
class DetectionRow:
    """How a fault was caught from one seed; the program's length is null where nobody made it smaller."""

    seed: int
    law: str
    message: str
    searcher: str
    adapter: str
    config: Config
    operations: int
    seconds: float
    program: int | None


@dataclass(frozen=True, slots=True)
class BugRow:
    """Whose bug a fault was, and where it is written down; links are absolute."""

    id: str
    engine: str
    version: str | None
    links: tuple[str, ...]
    mechanism: str
    seen: str
    evidence: str


@dataclass(frozen=True, slots=True)
class FaultRow:
    """What became of a fault; medians are null where it was never caught, and ``bug`` where it is of none."""

    id: str
    title: str
    laws: tuple[str, ...]
    caught: bool
    unlisted: tuple[str, ...]
    operations: float | None
    seconds: float | None
    program: int | None
    detections: tuple[DetectionRow, ...]
    problems: tuple[str, ...]
    bug: BugRow | None


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm faults --json`` prints; ``kept`` results are of an earlier run, and take no seconds."""

    schema: str
    version: int
    versions: dict[str, str]
    seeds: tuple[int, ...]
    jobs: int
    seconds: float
    kept: int
    caught: int
    missed: int
    exit_status: int
    faults: tuple[FaultRow, ...]


def make_document(report: FaultsReport) -> dict[str, Any]:
    """Put a report into plain data, valid under `faults_schema`."""
    document = Document(
        SCHEMA,
        VERSION,
        report.versions,
        report.plan.seeds,
        report.jobs,
        round(report.seconds, 3),
        report.kept,
        len(report.results) - len(report.missed),
        len(report.missed),
        report.exit_status,
        tuple(map(_fault_row, report.results)),
    )
    plain: dict[str, Any] = encode(document)
    return plain


def _fault_row(result: FaultResult) -> FaultRow:
    is_seen = bool(result.detections)
    return FaultRow(
        result.fault.id,
        result.fault.title,
        result.fault.laws,
        result.is_caught,
        result.unlisted,
        float(result.operations) if is_seen else None,
        round(result.seconds_to_detection, 3) if is_seen else None,
        result.program,
        tuple(map(_detection_row, result.detections)),
        result.problems,
        _bug_row(result.fault),
    )


def _bug_row(fault: Fault) -> BugRow | None:
    bug = bug_of(fault)
    if bug is None:
        return None
    return BugRow(bug.id, bug.engine, bug.version or None, bug.links, bug.mechanism, bug.seen, bug.evidence)


def _detection_row(it: Detection) -> DetectionRow:
    seconds = round(it.seconds, 3)
    return DetectionRow(
        it.seed, it.law, it.message, it.searcher, it.adapter, it.config, it.operations, seconds, it.program
    )


def faults_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    row = found["properties"]["faults"]["items"]["properties"]["detections"]["items"]
    row["properties"]["searcher"] = {"enum": [*SEARCHERS, VERIFICATION, CAMPAIGN]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm faults", **found}
