"""A ledger without measurements, which differ on each play, and the file that holds these measurements.

So what was played is the same file wherever it was played, and nothing is lost.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from pymllm.errors import TraceError
from pymllm.history.schema import schema_of
from pymllm.soak.ledger import (
    FILE,
    FORMAT,
    LIMIT,
    OPENING,
    CampaignHeader,
    Memory,
    RunRecord,
    Shares,
    read_ledger,
)
from pymllm.text_file import cut, read_json, read_lines

MEASURED_FILE = "measured.jsonl"
"""The name of the file of measurements beside a merged ledger."""
MEASURED_OPENING = {"format": f"{FORMAT}-measured", "schema": 1}
"""The first line of a file of measurements."""


class Measured(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The measurements of a run, which a merge writes apart from its results; fields as of `RunRecord`.

    Lines are in the order of the ledger's; ``number`` and ``seed`` say of which run one is.
    """

    number: int
    seed: int
    audited: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu: float = 0.0
    shares: Shares = field(default_factory=Shares)
    memory: Memory = field(default_factory=Memory)
    file: str | None = None
    short: str | None = None

    @classmethod
    def take_from(cls, record: RunRecord) -> Measured:
        """Return the measurements of a run."""
        return cls(record.number, record.seed, **{name: getattr(record, name) for name in _MEASURED})

    def is_of(self, record: RunRecord) -> bool:
        """Tell whether the measurements belong to a run without measurements."""
        return (self.number, self.seed) == (record.number, record.seed) and not record.memory.process

    def put_into(self, record: RunRecord) -> RunRecord:
        """Return a run with these measurements."""
        return structs.replace(record, **{name: getattr(self, name) for name in _MEASURED})


_MEASURED = ("audited", "seconds", "cpu", "shares", "memory", "file", "short")


def canonical_line(record: CampaignHeader | RunRecord) -> str:
    """Return a run's line without measurements, equal for equal runs wherever they were played.

    A header says nothing of a shard there, and a run nothing of what was measured; names are in order, and
    what is as it is by default is left out.
    """
    if isinstance(record, CampaignHeader):
        return json.dumps(OPENING | _plain(record.campaign))
    return json.dumps({name: it for name, it in _plain(record).items() if name not in _MEASURED})


_ATOMS = frozenset({bool, float, int, str, type(None)})


def _plain(value: Any) -> Any:
    """Return plain data for JSON without default values; msgspec compares defaults by identity."""
    if isinstance(value, Struct):
        fields = ((name, getattr(value, name), default) for name, default in _defaults(type(value)))
        return {
            name: it if type(it) in _ATOMS else _plain(it) for name, it, default in fields if it != default
        }
    if isinstance(value, dict):
        return {name: it if type(it) in _ATOMS else _plain(it) for name, it in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [it if type(it) in _ATOMS else _plain(it) for it in value]
    return value


@functools.cache
def _defaults(of: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a record class with their defaults; without one, with a value unequal to all."""
    fields = structs.fields(of)
    made = (it.default if it.default_factory is msgspec.NODEFAULT else it.default_factory() for it in fields)
    return tuple((it.name, default) for it, default in zip(fields, made, strict=True))


def measured_line(record: RunRecord) -> str:
    """Return the line of a run's measurements."""
    return json.dumps(msgspec.to_builtins(Measured.take_from(record)))


def measured_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of measurements, the first or any other."""
    opening = {name: {"const": value} for name, value in MEASURED_OPENING.items()}
    first = {"type": "object", "properties": opening, "required": [*opening], "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of what pymllm merge writes beside a ledger",
        "oneOf": [first, schema_of(Measured)],
    }


def read_with_measured(path: Path) -> Iterator[CampaignHeader | RunRecord]:
    """Read a ledger together with the file of measurements that a merge wrote beside it.

    `TraceError` as of `read_ledger`, and where a line beside it is of no run, or not in its place.
    """
    beside = path.with_name(MEASURED_FILE)
    measured = _read_measured(beside) if path.name == FILE and beside.exists() else iter(())
    waiting = next(measured, None)
    for record in read_ledger(path):
        if isinstance(record, RunRecord) and waiting is not None and waiting.is_of(record):
            record, waiting = waiting.put_into(record), next(measured, None)
        yield record
    if waiting is not None:
        why = f"run {waiting.number}, seed {waiting.seed}, is not in its place in {FILE}; merge once more"
        raise TraceError(str(beside), None, why)


def _read_measured(path: Path) -> Iterator[Measured]:
    for number, line in read_lines(path, errors="replace", limit=LIMIT):
        try:
            plain = read_json(line)
            if number == 1 and plain != MEASURED_OPENING:
                raise ValueError(f"it begins with {cut(line.strip())}; this version reads {MEASURED_OPENING}")
            if number > 1:
                yield msgspec.convert(plain, Measured)
        except (ValueError, msgspec.ValidationError) as error:
            raise TraceError(str(path), number, str(error)) from None
