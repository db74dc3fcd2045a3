"""A digest of programs that ignores the names of slots, nodes, tokens and other objects.

A program names tokens, namespaces, slots, rows, blocks, requests, hashes, workers and steps. Which number it
has for one of them is nobody's choice but that of the generator: what counts is which of them are the same.
So each gets the name of who comes first, in a list for its kind. Amounts, positions, numbers of events,
layers, media, clocks and contents are no names, and stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pymllm.history import operations as ops
from pymllm.history.codec import encode
from pymllm.history.files import History
from pymllm.history.operations import Key, Span
from pymllm.search.reduction import renumbered


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of named object; numbers below ``first`` are no names, but padding, "none" or mistakes."""

    name: str
    first: int | None = 0


_TOKEN, _SPACE = _Kind("token", None), _Kind("space", None)
_SLOT, _ROW, _STATE = _Kind("slot", 1), _Kind("row", 1), _Kind("state", 1)
_BLOCK, _REQUEST, _WORKER = _Kind("block"), _Kind("request"), _Kind("worker", None)
_HASH, _CONTENT = _Kind("hash", 1), _Kind("content")

_ALIKE: tuple[tuple[tuple[type, ...], dict[str, _Kind]], ...] = (
    ((Key,), {"tokens": _TOKEN, "extra_key": _SPACE}),
    ((ops.AddRequest,), {"tokens": _TOKEN}),
    ((ops.RunStep,), {"next_tokens": _TOKEN}),
    ((ops.Free, ops.FreeSWA, ops.ReadHalves, ops.WriteKV), {"slots": _SLOT}),
    ((ops.BeginTransfer,), {"memory": _SLOT}),
    ((ops.MoveSWA, ops.MoveKV), {"source": _SLOT, "target": _SLOT}),
    ((ops.Insert,), {"slots": _SLOT, "state": _STATE}),
    ((ops.FreeRow, ops.WriteRow), {"row": _ROW}),
    ((ops.WriteEntries,), {"rows": _ROW}),
    ((ops.FreeTrack, ops.WriteState), {"slot": _STATE}),
    ((ops.CopyStates,), {"source": _STATE, "target": _STATE}),
    ((ops.ResetStates,), {"rows": _STATE}),
    ((ops.RetainBlocks, ops.ReleaseBlocks, ops.StampBlocks), {"blocks": _BLOCK}),
    ((ops.AllocSlots, ops.FindSlots), {"blocks": _BLOCK}),
    ((ops.RegisterBlocks,), {"blocks": _BLOCK, "hashes": _HASH, "parents": _HASH}),
    ((ops.NameStates, ops.DropStates), {"blocks": _BLOCK, "hashes": _HASH}),
    ((ops.StoreState,), {"block": _BLOCK}),
    ((ops.WriteLive,), {"request": _REQUEST}),
    ((ops.SaveLive,), {"slots": _STATE, "requests": _REQUEST}),
    ((ops.RestoreLive,), {"request": _REQUEST, "block": _BLOCK}),
    (
        (ops.StoreBlocks,),
        {"worker": _WORKER, "blocks": _CONTENT, "parent": _CONTENT, "extra_key": _SPACE},
    ),
    ((ops.RemoveBlocks,), {"worker": _WORKER, "hashes": _CONTENT}),
    ((ops.ClearWorker, ops.DropWorker), {"worker": _WORKER}),
    ((ops.FindBlocks,), {"tokens": _CONTENT, "extra_key": _SPACE}),
)
NAMES: dict[type, dict[str, _Kind]] = {kind: fields for kinds, fields in _ALIKE for kind in kinds}
"""Fields that name objects by number. What a step gave is named by the step (`Span`), and so are requests
that a step took up."""


_MOST = 2**16
"""The greatest number of items in a span that are named one by one, since programs may come from anyone."""


def digest_program(history: History) -> str:
    """Return a digest of a program, equal for programs that differ only in names.

    Neither the configuration nor the adapter counts.
    """
    steps = {step.number: number for number, step in enumerate(history.steps, 1)}
    namer = _Namer()
    named = (renumbered(step.operation, lambda it: steps.get(it, it)) for step in history.steps)
    operations = [namer.name(operation) for operation in named]
    return hashlib.sha256(json.dumps(operations, sort_keys=True).encode()).hexdigest()[:16]


class _Namer:
    """The names given so far in a program, by kind of object."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, int]] = {}

    def name(self, record: Any) -> dict[str, Any]:
        """Return an operation or a key as plain data, with the names that this program's digest uses."""
        plain: dict[str, Any] = encode(record)
        for field, kind in NAMES.get(type(record), {}).items():
            value = _spelled_out(record, field)
            if value not in (None, ()):  # the default of some fields is a name, too
                plain[field] = self._rename(value, kind)
        if "key" in plain:
            plain["key"] = self.name(record.key)
        return plain

    def _rename(self, value: Any, kind: _Kind) -> Any:
        if isinstance(value, tuple):
            return [new for it in value for new in self._renamed(it, kind)]
        if isinstance(value, Span):
            return [*self._renamed(value, kind)]
        if value is None or (kind.first is not None and value < kind.first):
            return value
        names = self._names.setdefault(kind.name, {})
        number = names.setdefault(json.dumps(value), len(names))
        return number if kind.first is None else f"{kind.name} {number}"

    def _renamed(self, item: Any, kind: _Kind) -> Iterator[Any]:
        """Yield the new names for an item of a list; a span without a step stands for its numbers."""
        if not isinstance(item, Span):
            yield self._rename(item, kind)
        elif item.step or item.stop - item.start > _MOST:
            yield encode(item)
        else:
            yield from (self._rename(number, kind) for number in range(item.start, item.stop))


def _spelled_out(record: Any, field: str) -> Any:
    """Return the spans in a field, with the rows of a move as a span of plain numbers."""
    value = getattr(record, field)
    return (Span(0, value, value + record.count),) if type(record) is ops.MoveKV else value
