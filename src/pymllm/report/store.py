"""The store of runs: a folder with one file for each run, which copying merges.

::

    {"format": "pymllm-run", "schema": 1, "kind": "benchmark", "time": "2026-11-21T15:03:11Z", ...}
    {"record": "figure", "name": "match a full hit: p99", "value": 12.5, "unit": "us", ...}
    {"record": "document", "document": {"schema": "pymllm.verify", "version": 1, ...}}

A file says everything about its run, so that copying files from one folder into another merges two stores. A
new field does not change the version of the format, nor does a new kind of record: a reader leaves out what
it does not know. Writing needs the standard library alone, reading msgspec.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pymllm.errors import TraceError
from pymllm.instrument.provenance import build_version
from pymllm.report.machine import find_commit, look_at_this_machine
from pymllm.report.records import BETTER, KIND, RECORDS, TIME, Record, RunHeader
from pymllm.text_file import cut, read_json, read_text_file, write_text_file

FORMAT = "pymllm-run"
SCHEMA = 1
"""The version of the format; a reader refuses any other."""

SUFFIX = ".run.jsonl"
"""The ending of the names of a store's files."""

_Made = TypeVar("_Made")
_NAMES = {kind: name for name, kind in RECORDS.items()}


# -- writing -------------------------------------------------------------------------------------------------


def make_header(
    kind: str,
    *,
    command: Sequence[str] | None = None,
    code: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> RunHeader:
    """Return the header of a run that ends now on this machine; ``command`` is the typed command line.

    Cost: git is asked twice, NVML is opened, and the package's source is read: about a tenth of a second.
    """
    commit, modified = find_commit()
    return RunHeader(
        kind=kind,
        time=datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
        machine=look_at_this_machine(),
        pymllm=build_version(),
        commit=commit,
        modified=modified,
        code=code,
        command=None if command is None else " ".join(command),
        versions=dict(versions or {}),
    )


def write_run(folder: Path, header: RunHeader, records: Iterable[Record]) -> Path:
    """Write a run into a store, created if missing, and return the file.

    Kind, time and contents name it. `ValueError` where there is no record, or one with what is no number of
    JSON; `OSError` where the file cannot be written: then there is none, not a part of one.
    """
    lines = [dump_record(record) for record in records]
    if not lines:
        raise ValueError("a run has at least one record; there is none to keep")
    lines.insert(0, dump_header(header))
    folder.mkdir(parents=True, exist_ok=True)
    time = re.sub(r"[-:]|\.\d+", "", header.time)
    path = folder / f"{header.kind}-{time}-{_identity(lines)[:8]}{SUFFIX}"
    write_text_file(path, "".join(f"{line}\n" for line in lines))
    return path


def dump_header(header: RunHeader) -> str:
    """Return the first line of a run, without the newline."""
    return json.dumps({"format": FORMAT, "schema": SCHEMA, **_plain(header)}, allow_nan=False)


def dump_record(record: Record) -> str:
    """Return the line of a record, without the newline."""
    return json.dumps({"record": _NAMES[type(record)], **_plain(record)}, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a record as plain data for JSON, without fields that have their default."""
    if is_dataclass(value):
        found = ((it, getattr(value, it.name)) for it in fields(value))
        return {it.name: _plain(held) for it, held in found if held != _default_of(it)}
    return [_plain(it) for it in value] if isinstance(value, tuple) else value


def _default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


# -- reading -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A stored run; files with the same ``identity``, a digest of their lines, are copies."""

    header: RunHeader
    records: tuple[Record, ...]
    identity: str
    unknown: int = 0  # lines of kinds that this version does not know, which were left out


def read_run(path: Path) -> StoredRun:
    """Read a file of a store; raise `TraceError` with the invalid line and the reason."""
    text = read_text_file(path, errors="replace")
    lines = text.rstrip("\n").split("\n")
    if lines == [""]:
        raise TraceError(str(path), None, "empty; a run begins with its header")
    found: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(read_record(line) if found else read_header(line))
        except ValueError as error:
            raise TraceError(str(path), number, str(error)) from None
    records = tuple(record for record in found[1:] if record is not None)
    return StoredRun(found[0], records, _identity(lines), len(found) - 1 - len(records))


def _identity(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_header(line: str) -> RunHeader:
    """Read the first line of a run; raise `ValueError` if it is no header, or of another version."""
    plain = read_json(line)
    if not isinstance(plain, dict):
        raise ValueError("a run begins with an object, its header")
    if (plain.get("format"), plain.get("schema")) != (FORMAT, SCHEMA):
        found = f"format {cut(repr(plain.get('format')))}, schema {cut(repr(plain.get('schema')))}"
        raise ValueError(f"{found}; this version reads {FORMAT!r}, {SCHEMA}")
    return read_as(RunHeader, {"machine": None, **plain}, "header")


def read_record(line: str) -> Record | None:
    """Read a later line of a run; ``None`` for an unknown kind, `ValueError` for an invalid record."""
    plain = read_json(line)
    if not isinstance(plain, dict) or not isinstance(plain.get("record"), str):
        raise ValueError("a line behind the header is an object that names its kind in 'record'")
    kind = RECORDS.get(plain["record"])
    return None if kind is None else read_as(kind, plain, plain["record"])


def read_as(kind: type[_Made], plain: Any, where: str) -> _Made:
    """Convert plain data to a record, ignoring fields unknown to this version.

    `ValueError` where something is missing or of another type: where, what it is and what it must be.
    """
    import msgspec

    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_told(str(error), plain, where)) from None


_WORDS_FOR = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def _told(message: str, plain: Any, where: str) -> str:
    """Return the text of a msgspec error, with the wrong value if the error names its place."""
    said, _, place = message.partition(" - at `$")
    place = place.removesuffix("`")
    if missing := re.match("Object missing required field `(.*)`", said):
        return f"{where}{place}: field {missing[1]!r} is missing"
    expected = re.match("Expected `(.*?)`", said)
    if expected is None or "[...]" in place:
        return f"{where}{place}: {said[:1].lower()}{said[1:]}"
    for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        plain = plain[name or int(number)]
    kinds = " or ".join(_WORDS_FOR.get(kind, kind) for kind in expected[1].split(" | "))
    return f"{where}{place} is {cut(repr(plain))}; it must be {kinds}"


def run_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a line of a run, header or record."""
    import msgspec

    kinds = (RunHeader, *RECORDS.values())
    lines, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    begins = [{"format": {"const": FORMAT}, "schema": {"const": SCHEMA}}]
    begins += [{"record": {"const": word}} for word in RECORDS]
    for kind, begin in zip(kinds, begins, strict=True):
        part = parts[kind.__name__]
        part["properties"] = {**begin, **part["properties"]}
        part["required"] = [*begin, *part["required"]]
    for part in parts.values():
        part["additionalProperties"] = False
        for described in part["properties"].values():
            described.pop("default", None)  # what has it is left out
    header, document = parts["RunHeader"]["properties"], parts["Document"]["properties"]
    header["kind"] = {"type": "string", "pattern": f"^{KIND.pattern}$"}
    header["time"] = {"type": "string", "pattern": f"^{TIME.pattern}$"}
    parts["Figure"]["properties"]["better"] = {"enum": [*BETTER, None]}
    document["document"] = {
        "type": "object",
        "properties": {"schema": {"type": "string"}, "version": {"type": "integer"}},
        "required": ["schema", "version"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a line of a run",
        "oneOf": list(lines),
        "$defs": parts,
    }
