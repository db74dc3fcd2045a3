"""The JSON document of a verification. Its fields are promised: docs/schemas/verify.schema.json has them.

The version counts up when a field goes away or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymllm.cli.verify_files import SavedFiles
from pymllm.conformance.program_text import write_program
from pymllm.conformance.results import AdapterResult, LawResult, MachineResult, VerifyReport
from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.history.records import encode, schema_of
from pymllm.oracle.verdicts import Verdict

__all__ = ["SCHEMA", "VERSION", "make_document", "verify_schema"]

SCHEMA = "pymllm.verify"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LawRow:
    """What is known of a law: tests by the oracle, walks from inside."""

    id: str
    sentence: str
    source: str
    verdict: str
    tests: int
    walks: int


@dataclass(frozen=True, slots=True)
class InvariantRow:
    """What is known of an invariant by its name, and the laws that it is made of."""

    name: str
    laws: tuple[str, ...]
    verdict: str


@dataclass(frozen=True, slots=True)
class MachineRow:
    """What a machine did over all configurations of an adapter.

    Situations by how often they were met; unmet are those that it should have met and never did. Fewer
    programs than promised were played where a search took much too long and was cut short.
    """

    name: str
    configurations: int
    programs: int
    steps: int
    seconds: float
    steps_per_second: float
    situations: dict[str, int]
    unmet: tuple[str, ...]
    promised: int


@dataclass(frozen=True, slots=True)
class SituationRow:
    """How often a machine met a situation, and the adapters with which it should have and never did."""

    name: str
    machine: str
    times: int
    unmet: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViolationRow:
    """A broken law and a program for it; it is the smallest as far as a search to its end can tell."""

    law: str
    message: str
    expected: str | None
    observed: str | None
    config: Config
    step: int
    steps: int
    program: str
    file: str | None
    rerun_shows_it: bool
    judge_shows_it: bool
    smallest: bool


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """Why something is unknown, and the program that was running.

    Of a program in another process also how the conversation ended, and the file with its last lines.
    """

    message: str
    file: str | None
    ended: str | None
    conversation: str | None


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """What is known of an adapter; its kind is null where it could not be loaded."""

    name: str
    kind: str | None
    verdict: str
    laws: tuple[LawRow, ...]
    machines: tuple[MachineRow, ...]
    violations: tuple[ViolationRow, ...]
    problems: tuple[ProblemRow, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm verify --json`` prints; after an interrupt the command's status is the signal's."""

    schema: str
    version: int
    versions: dict[str, str]
    profile: str
    seed: int
    examples: int | None
    acts_max: int
    jobs: int
    seconds: float
    verdict: str
    exit_status: int
    interrupted: bool
    strict: bool
    laws: tuple[LawRow, ...]
    invariants: tuple[InvariantRow, ...]
    situations: tuple[SituationRow, ...]
    adapters: tuple[AdapterRow, ...]
    programs: int
    promised: int


def make_document(report: VerifyReport, files: SavedFiles) -> dict[str, Any]:
    """Put a report into plain data.

    Parameters
    ----------
    report : VerifyReport
        Of the verification.
    files : SavedFiles
        Where its programs are.

    Returns
    -------
    dict
        Valid under `verify_schema`.
    """
    document = Document(
        SCHEMA,
        VERSION,
        report.versions,
        report.profile,
        report.seed,
        report.examples,
        report.steps,
        report.jobs,
        round(report.seconds, 3),
        report.verdict.value,
        report.exit_status,
        report.interruption is not None,
        report.is_strict,
        tuple(map(_law_row, report.laws)),
        tuple(InvariantRow(it.name, it.laws, it.verdict.value) for it in report.invariants),
        tuple(SituationRow(it.name, it.machine, it.times, it.unmet) for it in report.situations),
        tuple(_adapter_row(adapter, files) for adapter in report.adapters),
        report.programs,
        report.promised,
    )
    plain: dict[str, Any] = encode(document)
    return plain


def _law_row(result: LawResult) -> LawRow:
    law = result.law
    return LawRow(law.id, law.sentence, law.source, result.verdict.value, result.exercised, result.audited)


def _machine_row(machine: MachineResult) -> MachineRow:
    return MachineRow(
        machine.name,
        machine.configurations,
        machine.programs,
        machine.steps,
        round(machine.seconds, 3),
        round(machine.steps_per_second, 1),
        machine.reached,
        machine.unmet,
        machine.promised,
    )


def _adapter_row(adapter: AdapterResult, files: SavedFiles) -> AdapterRow:
    violations = tuple(
        ViolationRow(
            finding.law,
            finding.violation.message,
            finding.violation.expected,
            finding.violation.observed,
            finding.history.header.config,
            finding.step,
            len(finding.history),
            write_program(finding.history),
            files.programs.get((adapter.name, finding.law)),
            finding.is_rerun,
            finding.is_judged,
            not finding.is_unfinished,
        )
        for finding in adapter.findings
    )
    problems = tuple(
        ProblemRow(
            problem.message,
            files.crashes.get((adapter.name, place)),
            None if problem.conversation is None else problem.conversation.verdict,
            files.conversations.get((adapter.name, place)),
        )
        for place, problem in enumerate(adapter.problems)
    )
    return AdapterRow(
        adapter.name,
        adapter.kind,
        adapter.verdict.value,
        tuple(map(_law_row, adapter.laws)),
        tuple(map(_machine_row, adapter.machines)),
        violations,
        problems,
    )


def verify_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    _narrow(found)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm verify", **found}


def _narrow(schema: dict[str, Any]) -> None:
    """Give the names that come from a list their list, wherever they stand."""
    properties = schema.get("properties", {})
    if "verdict" in properties:
        properties["verdict"] = {"enum": [verdict.value for verdict in Verdict]}
    if "kind" in properties:
        properties["kind"] = {"enum": [*KINDS, None]}
    for inner in properties.values():
        _narrow(inner.get("items", inner))
