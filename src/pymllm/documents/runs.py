"""The documents of ``goals`` and ``diff``, and a table of all documents with reading and schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import field

from pymllm.documents.campaigns import Failure, SoakDocument
from pymllm.documents.faults import FaultsDocument
from pymllm.documents.probes import ProbeDocument
from pymllm.documents.programs import (
    Exchange,
    JudgementDocument,
    ProtocolDocument,
    ShrinkDocument,
)
from pymllm.documents.replays import AskedRow, ReplayConfig, ReplayDocument, ReplayRun
from pymllm.documents.searches import CompareDocument, Kind, VerifyDocument
from pymllm.documents.watches import WatchDocument
from pymllm.instrument.documents import DoctorDocument, Document, Row
from pymllm.oracle.verdicts import Verdict


class WorthReaching(Row, frozen=True, kw_only=True):
    """A coverage goal: the laws it is about, the capabilities it needs, and its configurations."""

    name: str
    kind: Kind
    of_engine: bool = False
    laws: tuple[str, ...]
    bugs: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    configuration: tuple[str, ...] = ()


class GoalsDocument(Document, frozen=True, kw_only=True, tag="pymllm.situations"):
    """The document that ``pymllm goals --json`` prints."""

    goals: tuple[WorthReaching, ...] = field(name="situations")


class LawChange(Row, frozen=True):
    """A law of an implementation whose verdict has changed."""

    subject: str
    law: str
    before: Verdict
    after: Verdict
    worse: bool


class FindingChange(Row, frozen=True):
    """A broken law (or a problem if ``law`` is null) in only one run; it is new if in the later run."""

    subject: str
    law: str | None
    message: str
    new: bool


class FigureChange(Row, frozen=True):
    """A figure with a changed value, not judged if the spreads overlap or its noise is unknown.

    ``test`` says why: the spreads (quartiles, or an interval of confidence) are apart or overlap, there are
    no samples, or the machine or the code that measured is another.
    """

    name: str
    unit: str
    before: float
    after: float
    test: str
    verdict: Literal["worse", "better", "changed"] | None


FAIL_ON = ("law", "finding", "figure", "any")
"""The kinds of changes that ``pymllm diff --fail-on`` may name."""


class DiffDocument(Document, frozen=True, kw_only=True, tag="pymllm.diff"):
    """The document that ``pymllm diff --json`` prints.

    The worse comes first; ``failed_on`` are the reasons for status 1.

    Laws are compared where both runs know them: ``only_before`` and ``only_after`` are subjects of one alone.
    ``compared`` counts the laws, figures, faults and coverage goals that both have; the status is 3 where it
    is 0.
    """

    before: str
    after: str
    kind: str
    laws: tuple[LawChange, ...]
    findings: tuple[FindingChange, ...]
    figures: tuple[FigureChange, ...]
    goals_lost: tuple[str, ...] = field(name="situations_lost")
    faults_missed: tuple[str, ...]
    faults_caught: tuple[str, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    failed_on: tuple[str, ...]
    compared: int | None = None
    exit_status: int


AnyDocument = (
    VerifyDocument
    | CompareDocument
    | JudgementDocument
    | ShrinkDocument
    | FaultsDocument
    | SoakDocument
    | ReplayDocument
    | GoalsDocument
    | ProtocolDocument
    | DoctorDocument
    | ProbeDocument
    | WatchDocument
)
DOCUMENTS: dict[str, type[Document]] = {str(it.__struct_config__.tag): it for it in get_args(AnyDocument)}
"""The record of each document, by its schema's name."""

_OMITTING = {
    it.__name__
    for it in (AskedRow, Exchange, Failure, JudgementDocument, ReplayConfig, ReplayDocument, ReplayRun)
}  # leave out what has its default, or is not theirs
_D = TypeVar("_D", bound=Document)


def read_as(record: type[_D], plain: Mapping[str, Any]) -> _D:
    """Read a document from plain data; raise `ValueError` for a missing or mistyped field."""
    try:
        return msgspec.convert(plain, record)
    except msgspec.ValidationError as error:
        raise ValueError(f"{record.__struct_config__.tag}: {error}") from None


def schema_of_document(record: type[Document], title: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a document as written."""
    (found,), parts = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    for part in parts.values():
        if part.get("type") == "object" and "properties" in part:
            # A field has a default for older documents; whoever writes one now writes all of them.
            always = part["required"] if part["title"] in _OMITTING else part["properties"]
            part["required"] = [it for it in part["properties"] if it in {"schema", "version", *always}]
            part["additionalProperties"] = False
            for described in part["properties"].values():
                described.pop("default", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": title,
        "$defs": parts,
    }
