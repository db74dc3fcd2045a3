"""``pymllm verify --check-protocol --json``: conversations with programs as one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymllm.conformance.protocol_check import Exchange, ProtocolReport
from pymllm.history.records import encode, schema_of
from pymllm.oracle.verdicts import Verdict

__all__ = ["SCHEMA", "VERSION", "make_document", "protocol_check_schema"]

SCHEMA = "pymllm.protocol-check"
VERSION = 1
_VERDICTS = (Verdict.HOLDS.value, Verdict.UNKNOWN.value)


@dataclass(frozen=True, slots=True)
class Introduced:
    """What a program said of itself."""

    protocol: int
    name: str
    version: str
    language: str
    kind: str
    capabilities: tuple[str, ...]
    clock: bool
    audits: bool


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """One conversation; ``program`` is null without a hello, ``conversation`` the file with its last lines.

    An exchange that is wrong in several ways stands there several times; ``line`` counts what the program
    wrote.
    """

    name: str
    program: Introduced | None
    answers: int
    problems: int
    exchanges: tuple[Exchange, ...]
    conversation: str | None


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm verify --check-protocol --json`` prints: unknown where any answer is wrong."""

    schema: str
    version: int
    verdict: str
    exit_status: int
    programs: tuple[ProgramRow, ...]


def make_document(checked: Sequence[tuple[ProtocolReport, str | None]]) -> dict[str, Any]:
    """Put conversations into plain data, valid under `protocol_check_schema`.

    Parameters
    ----------
    checked : sequence of (ProtocolReport, str or None)
        What came of each, and the file with its last lines.
    """
    verdict = Verdict.UNKNOWN if any(report.problems for report, _ in checked) else Verdict.HOLDS
    rows = tuple(_row(report, path) for report, path in checked)
    plain: dict[str, Any] = encode(Document(SCHEMA, VERSION, verdict.value, verdict.exit_status, rows))
    return plain


def _row(report: ProtocolReport, path: str | None) -> ProgramRow:
    said = report.program
    introduced = None
    if said is not None:
        introduced = Introduced(
            said.protocol,
            said.name,
            said.version,
            said.language,
            said.kind,
            said.capabilities,
            said.clock,
            said.audits,
        )
    problems = len(report.problems)
    return ProgramRow(report.name, introduced, report.answers, problems, report.exchanges, path)


def protocol_check_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    found["properties"] |= {
        "schema": {"const": SCHEMA},
        "version": {"const": VERSION},
        "verdict": {"enum": list(_VERDICTS)},
    }
    title = "pymllm verify --check-protocol"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **found}
