"""The file format of vectors: a header, then one vector per line.

::

    {"format": "cache-vectors", "schema": 1, "version": "1.0.0", "kind": "slots", "specification": "2.1", ...}
    {"id": "slots-A2-0f3c81d2", "law": "A2", "says": "...", "level": "ownership", "flag": "must", ...}

A step of a vector has an operation, as a history has it, and what it must come to
(`pymllm.vectors.expectations`). Steps are numbered from 1 by their place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pymllm.errors import TraceError
from pymllm.history.claims import CLAIMS
from pymllm.history.codec import Record, decode, encode, json_reader
from pymllm.history.config_limits import check_config, config_schema
from pymllm.history.files import Config
from pymllm.history.operations import KINDS, OPERATIONS_OF, Operation
from pymllm.history.schema import schema_of
from pymllm.oracle.laws import find_law
from pymllm.text_file import cut, read_json, read_lines
from pymllm.vectors.expectations import check_expectation

FORMAT = "cache-vectors"
SCHEMA = 1
"""The version of the format; a reader refuses any other."""

LEVELS = ("observable", "counters", "ownership", "content")
"""Levels of a vector's checks: results, sizes, owners of slots, or stored numbers."""

FLAGS = ("must", "may")
"""Whether every step is determined, or the vector ends where an implementation may differ."""


TWICE = "twice"
"""A need of the runner rather than the implementation: to play the vector again on a new one.

The answers must be the same to the last number.
"""


class VectorsHeader(Record, frozen=True):
    """The header of a file of vectors.

    - ``version``: Of the vectors: the first number grows where one goes away or demands something else.
    - ``specification``: The version in whose words the needs are told.
    """

    version: str
    kind: str
    specification: str
    license: str


class VectorStep(Record, frozen=True, rename={"operation": "op"}):
    """An operation and its expected result."""

    operation: Operation
    expect: dict[str, Any]


class Vector(Record, frozen=True):
    """A program with the expected result of each step.

    - ``id``: Kind, law, and a digest of the needs, the configuration and the operations.
    - ``law``, ``says``: The law that it is about, and its sentence.
    - ``level``: What it looks at: ``observable``, ``counters``, ``ownership`` or ``content``.
    - ``flag``: ``must``, or ``may`` where an implementation may go another way at a step, and it ends there.
    - ``needs``: Claims; who lacks one skips it.
    - ``bug``, ``link``: A known bug that it shows, and where that is told of.
    """

    id: str
    law: str
    says: str
    level: str
    flag: str
    needs: tuple[str, ...]
    config: Config
    steps: tuple[VectorStep, ...]
    bug: str = ""
    link: str = ""


def make_id(
    kind: str, law: str, needs: Sequence[str], config: Config, operations: Sequence[Operation]
) -> str:
    """Return a vector's id, which depends only on its needs, configuration and operations."""
    text = json.dumps([sorted(needs), config, [encode(it) for it in operations]], sort_keys=True)
    return f"{kind}-{law}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def dump_vectors(header: VectorsHeader, vectors: Sequence[Vector]) -> str:
    """Return the text of a file of vectors, in the order of their ids."""
    lines = [{"format": FORMAT, "schema": SCHEMA, **encode(header)}]
    lines += [encode(vector) for vector in sorted(vectors, key=lambda it: it.id)]
    return "".join(f"{json.dumps(line, separators=(',', ':'), sort_keys=False)}\n" for line in lines)


def load_vectors(path: Path) -> tuple[VectorsHeader, tuple[Vector, ...]]:
    """Read a file of vectors; raise `TraceError` with the invalid line and the reason."""
    header: VectorsHeader | None = None
    vectors = dict[str, Vector]()
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            if header is None:
                header = _read_header(read_json(line))
                continue
            vector = _read_vector(line)
            _check(vector, header)
            if vector.id in vectors:
                raise ValueError(f"id {cut(repr(vector.id))} is in two lines; each vector needs its own id")
            vectors[vector.id] = vector
        except ValueError as error:
            raise TraceError(str(path), number, str(error)) from None
    if header is None:
        raise TraceError(str(path), None, "empty; a file of vectors begins with its header")
    return header, tuple(vectors.values())


def load_folder(folder: Path) -> Iterator[tuple[VectorsHeader, tuple[Vector, ...]]]:
    """Read every file of vectors in a folder, by file name; raise errors as `load_vectors`."""
    for path in sorted(folder.glob("*.jsonl")):
        yield load_vectors(path)


def _read_header(plain: Any) -> VectorsHeader:
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise ValueError(f'a file of vectors begins with a header {{"format": "{FORMAT}", ...}}')
    if plain.get("schema") != SCHEMA:
        raise ValueError(f"schema is {cut(repr(plain.get('schema')))}; this version reads {SCHEMA}")
    fields = {key: value for key, value in plain.items() if key not in ("format", "schema")}
    header: VectorsHeader = decode(VectorsHeader, fields, "header")
    if header.kind not in KINDS:
        raise ValueError(f"kind is {cut(repr(header.kind))}; it must be one of {', '.join(KINDS)}")
    return header


_read_vector = json_reader(Vector)


def _check(vector: Vector, header: VectorsHeader) -> None:
    """Raise an error for a vector that no runner can run, or that every result passes."""
    find_law(vector.law)
    for value, known, name in ((vector.level, LEVELS, "level"), (vector.flag, FLAGS, "flag")):
        if value not in known:
            raise ValueError(f"{name} is {cut(repr(value))}; it must be one of {', '.join(known)}")
    for claim in vector.needs:
        if claim not in CLAIMS and claim != TWICE:
            raise ValueError(f"needs {cut(repr(claim))}, which is no capability")
    check_config(vector.config, header.kind)
    if not vector.steps:
        raise ValueError(f"{cut(vector.id)} has no step")
    for number, step in enumerate(vector.steps, 1):
        if type(step.operation) not in OPERATIONS_OF[header.kind]:
            raise ValueError(f"step {number} is no operation of kind {header.kind}")
        check_expectation(step.expect, f"step {number}")


def vectors_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of a file of vectors, header or vector."""
    header = schema_of(VectorsHeader)
    header["properties"] = {"format": {"const": FORMAT}, "schema": {"const": SCHEMA}, **header["properties"]}
    header["properties"]["kind"] = {"enum": list(KINDS)}
    header["required"] = ["format", "schema", *header["required"]]
    vector = schema_of(Vector)
    vector["properties"]["level"] = {"enum": list(LEVELS)}
    vector["properties"]["flag"] = {"enum": list(FLAGS)}
    vector["properties"]["config"] = config_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a file of cache vectors",
        "oneOf": [header, vector],
    }
