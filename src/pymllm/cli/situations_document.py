"""The JSON document of the situations. Its fields are promised: docs/schemas/situations.schema.json has them.

The version counts up when a field goes away or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymllm.history.operations import KINDS
from pymllm.history.records import encode, schema_of
from pymllm.oracle.situation import Situation

__all__ = ["SCHEMA", "VERSION", "make_document", "situations_schema"]

SCHEMA = "pymllm.situations"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SituationRow:
    """A situation: what is at stake, the capabilities it needs, and what a configuration must be like."""

    name: str
    kind: str
    of_engine: bool
    laws: tuple[str, ...]
    bugs: tuple[str, ...]
    capabilities: tuple[str, ...]
    configuration: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """What ``pymllm situations --json`` prints."""

    schema: str
    version: int
    situations: tuple[SituationRow, ...]


def make_document(situations: Sequence[Situation]) -> dict[str, Any]:
    """Put situations into plain data, valid under `situations_schema`."""
    rows = tuple(
        SituationRow(
            one.name,
            one.kind,
            one.of_engine,
            one.laws,
            one.bugs,
            tuple(sorted(one.needs)),
            tuple(condition.text for condition in one.when),
        )
        for one in situations
    )
    plain: dict[str, Any] = encode(Document(SCHEMA, VERSION, rows))
    return plain


def situations_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(Document)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    found["properties"]["situations"]["items"]["properties"]["kind"] = {"enum": list(KINDS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm situations", **found}
