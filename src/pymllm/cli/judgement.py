"""What came of judging one file, for ``pymllm judge`` and ``pymllm rerun``: as text and as a document.

Neither torch nor Hypothesis is needed here: outcomes are judged where only the file is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pymllm.cli.program import escaped
from pymllm.cli.violation_text import explain
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config, History, load_history
from pymllm.history.operations import KINDS
from pymllm.history.records import encode, schema_of
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict

__all__ = [
    "SCHEMA",
    "VERSION",
    "Judgement",
    "OperationRow",
    "judgement_schema",
    "make_document",
    "make_text",
    "read_program",
]

SCHEMA = "pymllm.judgement"
VERSION = 1


@dataclass(frozen=True, slots=True)
class OperationRow:
    """How long an operation took, in microseconds; refusals are kept apart."""

    operation: str
    is_refused: bool
    count: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of one program.

    Parameters
    ----------
    command : str
        ``"judge"`` or ``"rerun"``.
    file : str
        Where the program is.
    adapter : str
        Whose outcomes were judged.
    history : History
        The program with these outcomes, as far as it got.
    tests, walks : mapping of str to int
        By law: tests by the oracle, walks from inside.
    violation : InvariantViolation or None
        What ended it.
    misfit : str or None
        Why it could not be carried on.
    differences : tuple of int
        Steps whose outcome is not the recorded one.
    times : tuple of OperationRow, optional
        Of the adapter's operations, where they were timed.
    """

    command: str
    file: str
    adapter: str
    history: History
    tests: Mapping[str, int]
    walks: Mapping[str, int]
    violation: InvariantViolation | None = None
    misfit: str | None = None
    differences: tuple[int, ...] = ()
    times: tuple[OperationRow, ...] | None = None

    @property
    def verdict(self) -> Verdict:
        """Violated; unknown where it could not be carried on or tested nothing; else holds."""
        if self.violation is not None:
            return Verdict.VIOLATED
        return Verdict.HOLDS if self.misfit is None and any(self.tests.values()) else Verdict.UNKNOWN


def read_program(file: str) -> History:
    """Read a history.

    Raises
    ------
    TraceError
        It is none.
    click.UsageError
        The file cannot be read.
    """
    try:
        return load_history(Path(file))
    except OSError as error:
        raise click.UsageError(f"{file}: cannot be read: {error.strerror or error}") from None


# -- as text -----------------------------------------------------------------------------------------------


def make_text(judgement: Judgement) -> str:
    """Return the lines that people read; the first one is the verdict."""
    parts = (_details(judgement), _differences(judgement), _times(judgement))
    return "\n".join([_verdict_line(judgement), *(line for lines in parts for line in lines)])


def _verdict_line(judgement: Judgement) -> str:
    adapter = escaped(judgement.adapter)  # a file may name it as it likes, a line of a verdict included
    if judgement.violation is not None:
        law = judgement.violation.law
        return f"{law}  VIOLATED by {adapter}: {find_law(law).sentence}"
    tests = sum(judgement.tests.values())
    laws = sum(count > 0 for count in judgement.tests.values())
    steps = f"{len(judgement.history):,} {'step' if len(judgement.history) == 1 else 'steps'}"
    if judgement.misfit is not None:
        return f"unknown  {adapter} made other choices than the program builds on"
    if not tests:
        return f"unknown  {steps} of {adapter} tested no law"
    return f"holds  {steps} of {adapter}: {tests:,} tests of {laws} laws, none broken"


def _details(judgement: Judgement) -> list[str]:
    if judgement.violation is not None:
        return explain(judgement.violation, judgement.history)
    if judgement.misfit is not None:
        return [f"    because    {judgement.misfit}"]
    tested = ", ".join(f"{law} {count:,}" for law, count in sorted(judgement.tests.items()) if count)
    return [f"    tests      {tested}"] if tested else []


def _differences(judgement: Judgement) -> list[str]:
    if judgement.command == "judge":
        return []
    if not judgement.differences:
        return ["    outcomes   as recorded"]
    steps = ", ".join(map(str, judgement.differences[:10]))
    more = ", ..." if len(judgement.differences) > 10 else ""
    return [f"    outcomes   differ from the recorded ones at step {steps}{more}"]


def _times(judgement: Judgement) -> list[str]:
    if not judgement.times:
        return []
    lines = [f"    times      {'':24}{'count':>9}{'p50 us':>10}{'p95 us':>10}{'p99 us':>10}{'max us':>10}"]
    for row in judgement.times:
        label = f"{row.operation} (refused)" if row.is_refused else row.operation
        figures = "".join(f"{value:>10.1f}" for value in (row.p50_us, row.p95_us, row.p99_us, row.max_us))
        lines.append(f"               {label:24}{row.count:>9,}{figures}")
    return lines


# -- as a document -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ViolationRow:
    """A broken law: what was looked at, what it demands, what there was, at which step."""

    law: str
    message: str
    expected: str | None
    observed: str | None
    step: int


@dataclass(frozen=True, slots=True)
class _Document:
    """What ``pymllm judge --json`` and ``pymllm rerun --json`` print."""

    schema: str
    version: int
    command: str
    file: str
    adapter: str
    kind: str
    config: Config
    steps: int
    verdict: str
    exit_status: int
    tests: dict[str, int]
    walks: dict[str, int]
    violation: _ViolationRow | None
    misfit: str | None
    differences: tuple[int, ...]
    times: tuple[OperationRow, ...] | None = None


def make_document(judgement: Judgement) -> dict[str, Any]:
    """Put a judgement into plain data, valid under `judgement_schema`."""
    violation, history = judgement.violation, judgement.history
    last = history.steps[-1].number if history.steps else 0
    row = None
    if violation is not None:
        row = _ViolationRow(violation.law, violation.message, violation.expected, violation.observed, last)
    document = _Document(
        SCHEMA,
        VERSION,
        judgement.command,
        judgement.file,
        judgement.adapter,
        history.header.kind,
        history.header.config,
        len(history),
        judgement.verdict.value,
        judgement.verdict.exit_status,
        dict(sorted(judgement.tests.items())),
        dict(sorted(judgement.walks.items())),
        row,
        judgement.misfit,
        judgement.differences,
        judgement.times,
    )
    plain: dict[str, Any] = encode(document)
    return plain


def judgement_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(_Document)
    found["properties"] |= {
        "schema": {"const": SCHEMA},
        "version": {"const": VERSION},
        "command": {"enum": ["judge", "rerun"]},
        "kind": {"enum": list(KINDS)},
        "verdict": {"enum": [Verdict.HOLDS.value, Verdict.VIOLATED.value, Verdict.UNKNOWN.value]},
    }
    title = "pymllm judge, pymllm rerun"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **found}
