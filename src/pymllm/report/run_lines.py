"""Writing and reading the lines of a run, and their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pymllm.history.records import (
    decode,
    decode_tagged,
    encode,
    encode_tagged,
    name_of,
    schema_of,
    tagged_schema_of,
)
from pymllm.report.records import (
    BETTER,
    FORMAT,
    KIND,
    RECORDS,
    SCHEMA,
    TIME,
    Document,
    Gpu,
    Machine,
    Record,
    RunHeader,
)
from pymllm.text_file import cut, read_json

__all__ = ["dump_record", "dump_run_header", "read_record", "read_run_header", "run_schema"]

_KINDS = {name_of(kind): kind for kind in RECORDS}


def dump_run_header(header: RunHeader) -> str:
    """Write the first line of a run, without its end."""
    return json.dumps({"format": FORMAT, "schema": SCHEMA, **encode(header)}, allow_nan=False)


def dump_record(record: Record) -> str:
    """Write the line of a record, without its end."""
    if isinstance(record, Document):
        return json.dumps({"record": "document", "document": record.document}, allow_nan=False)
    return json.dumps(encode_tagged(record, "record"), allow_nan=False)


def read_run_header(line: str) -> RunHeader:
    """Read the first line of a run.

    Raises
    ------
    ValueError
        It is none, or of another version of the format; says why.
    """
    plain = read_json(line)
    if not isinstance(plain, dict):
        raise ValueError("a run begins with an object, its header")
    if (plain.get("format"), plain.get("schema")) != (FORMAT, SCHEMA):
        found = f"format {cut(repr(plain.get('format')))}, schema {cut(repr(plain.get('schema')))}"
        raise ValueError(f"{found}; this version reads {FORMAT!r}, {SCHEMA}")
    machine = plain.pop("machine", None)
    header: RunHeader = decode(RunHeader, {"machine": None, **_known(RunHeader, plain)}, "header")
    return header if machine is None else replace(header, machine=_read_machine(machine))


def _read_machine(plain: Any) -> Machine:
    if not isinstance(plain, dict):
        raise ValueError(f"header.machine must be an object, got {cut(repr(plain))}")
    gpus = plain.get("gpus", [])
    if isinstance(gpus, list):
        plain = {**plain, "gpus": [_known(Gpu, gpu) if isinstance(gpu, dict) else gpu for gpu in gpus]}
    machine: Machine = decode(Machine, _known(Machine, plain), "header.machine")
    return machine


def read_record(line: str) -> Record | None:
    """Read a line behind the first one.

    Returns
    -------
    Record or None
        ``None`` for a kind that this version does not know.

    Raises
    ------
    ValueError
        It is no record; says why.
    """
    plain = read_json(line)
    if not isinstance(plain, dict) or not isinstance(plain.get("record"), str):
        raise ValueError("a line behind the header is an object that names its kind in 'record'")
    kind = _KINDS.get(plain["record"])
    if kind is None:
        return None
    if kind is Document:
        document = plain.get("document")
        if not isinstance(document, dict):
            raise ValueError("document.document must be an object")
        return Document(document)
    record: Record = decode_tagged(RECORDS, {"record": plain["record"], **_known(kind, plain)}, "record")
    return record


def _known(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {it.name for it in fields(kind)}
    return {name: value for name, value in plain.items() if name in names}


def run_schema() -> dict[str, Any]:
    """Describe one line of a run, header or record, as a JSON schema (draft 2020-12)."""
    header = schema_of(RunHeader)
    header["properties"] = {"format": {"const": FORMAT}, "schema": {"const": SCHEMA}, **header["properties"]}
    header["properties"]["kind"] = {"type": "string", "pattern": f"^{KIND.pattern}$"}
    header["properties"]["time"] = {"type": "string", "pattern": f"^{TIME.pattern}$"}
    header["required"] = ["format", "schema", *header["required"]]
    records = tagged_schema_of([kind for kind in RECORDS if kind is not Document], "record")["oneOf"]
    for record in records:
        if record["properties"]["record"]["const"] == "figure":
            record["properties"]["better"] = {"enum": [*BETTER, None]}
    document = {
        "type": "object",
        "description": (Document.__doc__ or "").partition("\n")[0],
        "properties": {
            "record": {"const": "document"},
            "document": {
                "type": "object",
                "properties": {"schema": {"type": "string"}, "version": {"type": "integer"}},
                "required": ["schema", "version"],
            },
        },
        "required": ["record", "document"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a line of a run",
        "oneOf": [header, document, *records],
    }
