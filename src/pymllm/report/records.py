"""A run as it is kept: a header and what was found, the lines of `pymllm.report.run_lines`.

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
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, get_args

__all__ = [
    "BETTER",
    "FORMAT",
    "KIND",
    "RECORDS",
    "SCHEMA",
    "TIME",
    "Curve",
    "Document",
    "Figure",
    "Gpu",
    "Histogram",
    "Machine",
    "Program",
    "Record",
    "RunHeader",
    "make_machine",
]

FORMAT = "pymllm-run"
SCHEMA = 1
"""Version of the format; a reader refuses any other."""

BETTER = ("smaller", "bigger")
"""Which way a figure is better, where one is."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
KIND = re.compile(r"[a-z][a-z0-9-]*")


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
        if not KIND.fullmatch(self.kind):
            raise ValueError(f"kind must be a word in lower case such as 'gpu-memory', got {self.kind!r}")
        if not TIME.fullmatch(self.time):
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
        for end, after in pairwise(self.ends):
            if after < end:
                raise ValueError(f"{self.name}: ends must rise, got {after} after {end}; sort the buckets")


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


def _check_numbers(name: str, numbers: tuple[float | None, ...]) -> None:
    """Refuse what JSON has no number for."""
    for number in numbers:
        if number is not None and not math.isfinite(number):
            raise ValueError(
                f"{name}: {number} is no number that JSON has; leave out what could not be measured"
            )
