"""A run as it is kept: one file of JSON lines, a header and what was found.

::

    {"format": "pymllm-run", "schema": 1, "kind": "benchmark", "time": "2026-11-21T15:03:11Z", ...}
    {"record": "figure", "name": "match a full hit: p99", "value": 12.5, "unit": "us", ...}
    {"record": "document", "document": {"schema": "pymllm.verify", "version": 1, ...}}

A file says everything about its run, so that copying files from one folder into another merges two stores. A
new field does not change the version of the format, nor does a new kind of record: a reader leaves out what
it does not know.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, get_args

from pymllm.oracle.records import (
    decode,
    decode_tagged,
    encode,
    encode_tagged,
    name_of,
    schema_of,
    tagged_schema_of,
)

__all__ = [
    "BETTER",
    "FORMAT",
    "RECORDS",
    "SCHEMA",
    "Curve",
    "Document",
    "Figure",
    "Gpu",
    "Histogram",
    "Machine",
    "Program",
    "Record",
    "RunHeader",
    "dump_record",
    "dump_run_header",
    "make_machine",
    "read_record",
    "read_run_header",
    "run_schema",
]

FORMAT = "pymllm-run"
SCHEMA = 1
"""Version of the format; a reader refuses any other."""

BETTER = ("smaller", "bigger")
"""Which way a figure is better, where one is."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_KIND = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a machine.

    Parameters
    ----------
    name : str
        Of its model.
    memory : int or None
        Its bytes; ``None`` where nobody told.
    driver : str or None
        Version of the driver.
    """

    name: str
    memory: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run took place; figures are compared only between runs of one fingerprint.

    Parameters
    ----------
    fingerprint : str
        Of processor, cores, system, names of GPUs and name, as `make_machine` computes it.
    processor : str
        Its model.
    cores : int
        Processors that the process could use.
    memory : int or None
        Bytes of the whole machine; ``None`` where nobody told.
    system : str
        Operating system and architecture, such as ``"Linux x86_64"``.
    gpus : tuple of Gpu
        Those that were seen.
    gpu_reason : str or None
        Why none could be seen, where that is not known to be none.
    name : str or None
        What tells machines of the same make apart; the environment variable ``PYMLLM_MACHINE`` sets it.
    """

    fingerprint: str
    processor: str
    cores: int
    memory: int | None
    system: str
    gpus: tuple[Gpu, ...] = ()
    gpu_reason: str | None = None
    name: str | None = None


def make_machine(
    processor: str,
    cores: int,
    memory: int | None,
    system: str,
    gpus: tuple[Gpu, ...] = (),
    gpu_reason: str | None = None,
    name: str | None = None,
) -> Machine:
    """Make a machine with its fingerprint.

    Parameters
    ----------
    processor, cores, memory, system, gpus, gpu_reason, name
        As of `Machine`.

    Notes
    -----
    Neither memory nor a driver's version counts: a file of pytest-benchmark does not tell the first, and a
    new driver is a point on a curve, like a new torch.
    """
    made_of = [processor, cores, system, [gpu.name for gpu in gpus], name]
    fingerprint = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]
    return Machine(fingerprint, processor, cores, memory, system, gpus, gpu_reason, name)


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What a run is.

    Parameters
    ----------
    kind : str
        What made it: the name of a command, ``"benchmark"``, ``"gpu-memory"``, or another word in lower case.
    time : str
        When it ended, in UTC, such as ``"2026-11-21T15:03:11Z"``.
    machine : Machine or None
        Where; ``None`` where nobody wrote it down, and then nothing is compared with it.
    pymllm : str
        Version of this package, with a digest of its source where that is known.
    commit : str or None
        Of the working folder, in full; ``None`` outside of a repository.
    modified : bool
        Whether tracked files differed from the commit.
    code : str or None
        Hash of the code that measured; figures of different code are never compared. A record may have its
        own.
    command : str or None
        What was typed.
    versions : dict of str to str
        Of the packages involved.
    """

    kind: str
    time: str
    machine: Machine | None
    pymllm: str
    commit: str | None = None
    modified: bool = False
    code: str | None = None
    command: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"kind must be a word in lower case such as 'gpu-memory', got {self.kind!r}")
        if not _TIME.fullmatch(self.time):
            raise ValueError(f"time must be in UTC, such as 2026-11-21T15:03:11Z, got {self.time!r}")
        datetime.fromisoformat(self.time)  # there is no 30 February


@dataclass(frozen=True, slots=True)
class Document:
    """A document that a command prints with ``--json``, whole; its own schema says what is in it."""

    document: dict[str, Any]

    def __post_init__(self) -> None:
        named, version = self.document.get("schema"), self.document.get("version")
        if not isinstance(named, str) or type(version) is not int:
            raise ValueError("a document names its schema and version, such as 'pymllm.verify' and 1")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Parameters
    ----------
    name : str
        The same in every run that measures the same.
    value : float or None
        ``None`` where it could not be read; then ``reason`` says why.
    unit : str
        Such as ``"us"``, ``"bytes"`` or ``"operations/s"``; ``""`` for a count or a share of 1.
    better : str or None
        ``"smaller"``, ``"bigger"``, or ``None`` for a fact that is neither.
    low, high : float or None
        Ends of its spread, such as quartiles or an interval of confidence.
    reason : str or None
        Why there is no value.
    code : str or None
        Hash of the code that measured it, where that is not the header's.
    plot : str or None
        Figures with the same one are about the same thing, and are shown together; by default the name.
    """

    name: str
    value: float | None
    unit: str
    better: str | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    code: str | None = None
    plot: str | None = None

    def __post_init__(self) -> None:
        _check_numbers(self.name, (self.value, self.low, self.high))
        if self.better not in (None, *BETTER):
            raise ValueError(
                f"{self.name}: better must be one of {', '.join(BETTER)} or None, got {self.better!r}"
            )
        if (self.value is None) == (self.reason is None):
            raise ValueError(f"{self.name}: give a value, or a reason why there is none")


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers over something, such as memory over time.

    Parameters
    ----------
    name : str
        Of this curve.
    unit : str
        Of ``y``.
    along : str
        What ``x`` counts, with its unit: ``"seconds"``, ``"operations"``, ``"epochs"``.
    x : tuple of float
        Rising.
    y : tuple of float or None
        As many; ``None`` where it could not be read.
    plot : str or None
        Curves with the same one are drawn together; by default the name.
    limit : float or None
        That ``y`` must keep to.
    verdict : str or None
        What was decided about it, in words, such as ``"flat"`` or ``"leaks: live tensors"``.
    good : bool or None
        Whether that is good; ``None`` where it is unknown.
    """

    name: str
    unit: str
    along: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    plot: str | None = None
    limit: float | None = None
    verdict: str | None = None
    good: bool | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{self.name}: x and y must be as long, got {len(self.x)} and {len(self.y)}")
        _check_numbers(self.name, (*self.x, *self.y, self.limit))


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a measurement fell into each bucket.

    Parameters
    ----------
    name : str
        What was measured.
    unit : str
        Of ``ends``, such as ``"us"``.
    ends : tuple of float
        Upper ends of the buckets, rising; each bucket has its end and not that of the one before.
    counts : tuple of int
        As many.
    plot : str or None
        Histograms with the same one are drawn together; by default the name.
    code : str or None
        As of `Figure`.
    """

    name: str
    unit: str
    ends: tuple[float, ...]
    counts: tuple[int, ...]
    plot: str | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        if len(self.ends) != len(self.counts):
            raise ValueError(
                f"{self.name}: ends and counts must be as long, got {len(self.ends)} and {len(self.counts)}"
            )
        _check_numbers(self.name, self.ends)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that broke a law, as the file that ``pymllm rerun`` takes.

    Parameters
    ----------
    file : str
        What the document calls it.
    lines : tuple of str
        Of the file, without their ends.
    """

    file: str
    lines: tuple[str, ...]


Record = Document | Figure | Curve | Histogram | Program

RECORDS: tuple[type, ...] = get_args(Record)
"""Every kind of record; a line names its kind in ``record``."""

_KINDS = {name_of(kind): kind for kind in RECORDS}


def _check_numbers(name: str, numbers: tuple[float | None, ...]) -> None:
    """Refuse what JSON has no number for."""
    for number in numbers:
        if number is not None and not math.isfinite(number):
            raise ValueError(
                f"{name}: {number} is no number that JSON has; leave out what could not be measured"
            )


def dump_run_header(header: RunHeader) -> str:
    """Write the first line of a run, without its end."""
    return json.dumps({"format": FORMAT, "schema": SCHEMA, **encode(header)}, allow_nan=False)


def dump_record(record: Record) -> str:
    """Write the line of a record, without its end."""
    if isinstance(record, Document):
        return json.dumps({"record": "document", "document": record.document}, allow_nan=False)
    return json.dumps(encode_tagged(record, "record"), allow_nan=False)


def _loads(line: str) -> Any:
    return json.loads(line, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number that JSON has")


def read_run_header(line: str) -> RunHeader:
    """Read the first line of a run.

    Raises
    ------
    ValueError
        It is none, or of another version of the format; says why.
    """
    plain = _loads(line)
    if not isinstance(plain, dict):
        raise ValueError("a run begins with an object, its header")
    if (plain.get("format"), plain.get("schema")) != (FORMAT, SCHEMA):
        found = f"format {plain.get('format')!r}, schema {plain.get('schema')!r}"
        raise ValueError(f"{found}; this version reads {FORMAT!r}, {SCHEMA}")
    machine = plain.pop("machine", None)
    header: RunHeader = decode(RunHeader, {"machine": None, **_known(RunHeader, plain)}, "header")
    return header if machine is None else replace(header, machine=_read_machine(machine))


def _read_machine(plain: Any) -> Machine:
    if not isinstance(plain, dict):
        raise ValueError(f"header.machine must be an object, got {plain!r}")
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
    plain = _loads(line)
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
    header["properties"]["kind"] = {"type": "string", "pattern": f"^{_KIND.pattern}$"}
    header["properties"]["time"] = {"type": "string", "pattern": f"^{_TIME.pattern}$"}
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
