"""The records of a kept run: a header, and records of what was found.

They are checked as they are made, need the standard library alone, and are lines of JSON in a store
(`pymllm.report.store`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

Number = int | float

BETTER = ("smaller", "bigger")
"""The directions in which a figure can be better."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
KIND = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its model, its bytes and its driver's version, each ``None`` if unknown."""

    name: str
    memory: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run; figures are compared only between runs of one fingerprint."""

    fingerprint: str  # as `make_machine` computes it
    processor: str
    cores: int  # that the process could use
    memory: int | None  # bytes of the whole machine
    system: str  # operating system and architecture, such as "Linux x86_64"
    gpus: tuple[Gpu, ...] = ()
    gpu_reason: str | None = None  # why none could be seen, where that is not known to be none
    name: str | None = None  # tells machines of the same make apart; PYMLLM_MACHINE sets it


def make_machine(
    processor: str,
    cores: int,
    memory: int | None,
    system: str,
    gpus: tuple[Gpu, ...] = (),
    gpu_reason: str | None = None,
    name: str | None = None,
) -> Machine:
    """Make a machine with its fingerprint, which is of processor, cores, system, names of GPUs, and name.

    Neither memory nor a driver's version counts: a file of pytest-benchmark does not tell the first, and a
    new driver is a point on a curve, like a new torch.
    """
    made_of = [processor, cores, system, [gpu.name for gpu in gpus], name]
    fingerprint = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]
    return Machine(fingerprint, processor, cores, memory, system, gpus, gpu_reason, name)


@dataclass(frozen=True, slots=True)
class RunHeader:
    """The header of a run; a run without a machine is compared with no other."""

    kind: str  # what made it: the name of a command, "benchmark", "gpu-memory", or another word in lower case
    time: str  # when it ended, in UTC
    machine: Machine | None
    pymllm: str  # version, with a digest of the source where that is known
    commit: str | None = None  # of the working folder, in full
    modified: bool = False  # whether tracked files differed from it
    code: str | None = None  # hash of the code that measured: figures of other code are never compared
    command: str | None = None  # what was typed
    versions: dict[str, str] = field(default_factory=dict)  # of the packages involved

    def __post_init__(self) -> None:
        if not KIND.fullmatch(self.kind):
            raise ValueError(f"kind must be a word in lower case such as 'gpu-memory', got {self.kind!r}")
        if not TIME.fullmatch(self.time):
            raise ValueError(f"time must be in UTC, such as 2026-11-21T15:03:11Z, got {self.time!r}")
        datetime.fromisoformat(self.time)  # there is no 30 February


@dataclass(frozen=True, slots=True)
class Document:
    """A whole document that a command prints with ``--json``; its own schema describes the fields."""

    document: dict[str, Any]

    def __post_init__(self) -> None:
        named, version = self.document.get("schema"), self.document.get("version")
        if not isinstance(named, str) or type(version) is not int:
            raise ValueError("a document names its schema and version, such as 'pymllm.verify' and 1")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, or the reason for its absence, under the same name in every run that measures it."""

    name: str
    value: Number | None
    unit: str  # such as "us", "bytes" or "operations/s"; "" for a count or a share of 1
    better: str | None = None  # one of `BETTER`, or neither for a fact
    low: Number | None = None  # ends of its spread, such as quartiles or an interval of confidence
    high: Number | None = None
    reason: str | None = None
    code: str | None = None  # hash of the code that measured it, where that is not the header's
    plot: str | None = None  # figures with the same one are shown together; by default the name

    def __post_init__(self) -> None:
        _check_numbers(self.name, (self.value, self.low, self.high))
        if self.better not in (None, *BETTER):
            said = f"better must be one of {', '.join(BETTER)} or None, got {self.better!r}"
            raise ValueError(f"{self.name}: {said}")
        if (self.value is None) == (self.reason is None):
            raise ValueError(f"{self.name}: give a value, or a reason why there is none")


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers over another quantity, such as memory over time, with a verdict on them."""

    name: str
    unit: str  # of y
    along: str  # what x counts, with its unit: "seconds", "operations", "epochs"
    x: tuple[Number, ...]  # rising
    y: tuple[Number | None, ...]  # as many; None where it could not be read
    plot: str | None = None  # curves with the same one are drawn together; by default the name
    limit: Number | None = None  # that y must keep to
    verdict: str | None = None  # in words, such as "flat" or "leaks: live tensors"
    good: bool | None = None  # whether that is good; None where it is unknown

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{self.name}: x and y must be as long, got {len(self.x)} and {len(self.y)}")
        _check_numbers(self.name, (*self.x, *self.y, self.limit))


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of measurements in each bucket, which includes its end but not its beginning."""

    name: str
    unit: str  # of the ends, such as "us"
    ends: tuple[Number, ...]  # upper ones, rising
    counts: tuple[int, ...]  # as many
    plot: str | None = None  # as of a curve
    code: str | None = None  # as of a figure

    def __post_init__(self) -> None:
        if len(self.ends) != len(self.counts):
            found = f"{len(self.ends)} and {len(self.counts)}"
            raise ValueError(f"{self.name}: ends and counts must be as long, got {found}")
        _check_numbers(self.name, self.ends)
        for end, after in pairwise(self.ends):
            if after < end:
                raise ValueError(f"{self.name}: ends must rise, got {after} after {end}; sort the buckets")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that broke a law, line by line: the file, as its document calls it, for ``pymllm rerun``."""

    file: str
    lines: tuple[str, ...]  # without their ends


Record = Document | Figure | Curve | Histogram | Program

RECORDS: dict[str, type[Record]] = {
    "document": Document,
    "figure": Figure,
    "curve": Curve,
    "histogram": Histogram,
    "program": Program,
}
"""Every kind of record, by the word that a line names it with."""


def _check_numbers(name: str, numbers: tuple[Number | None, ...]) -> None:
    for number in numbers:
        if number is not None and not math.isfinite(number):
            said = f"{number} is no number that JSON has; leave out what could not be measured"
            raise ValueError(f"{name}: {said}")
