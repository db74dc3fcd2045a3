"""The machine of KV buffers: writes of every shape and index, padded ones, and many that do not fit."""

from __future__ import annotations

import random
from typing import ClassVar

from pymllm.conformance.acting import act
from pymllm.conformance.pool_machine import SEED, PoolMachine, index_form
from pymllm.history.operations import Malformed, MoveKV, ReadKV, WriteKV
from pymllm.oracle.buffer_judge import BufferJudge

__all__ = ["BufferMachine"]

Rows = tuple[tuple[int, ...], ...]

SHAPES = ("heads", "flat", "strided", "batch")


class BufferMachine(PoolMachine):
    """Drives the buffers of every layer (P3, X1, E5)."""

    MALFORMED: ClassVar[tuple[Malformed, ...]] = (
        *(Malformed("write_kv", f"{part} of another dtype") for part in ("keys", "values")),
        *(Malformed("write_kv", f"keys {wrong}") for wrong in ("on another device", "of one dimension")),
        *(Malformed("write_kv", wrong) for wrong in ("one element for a key", "one value for all slots")),
        *(Malformed("write_kv", f"{kind} indices") for kind in ("float", "bool")),
        *(Malformed("write_kv", f"a list of {what}") for what in ("keys", "indices")),
        *(Malformed("write_kv", f"a {kind} layer") for kind in ("float", "bool")),
        *(Malformed("read_kv", wrong) for wrong in ("a float layer", "no layer")),
    )

    @property
    def judge(self) -> BufferJudge:
        """The judge, who knows the sizes."""
        judge = self.examiner.judge
        assert isinstance(judge, BufferJudge)  # adapters of kind buffers are judged by no other
        return judge

    def observe(self) -> None:
        """Read every layer."""
        for layer in range(self.judge.layers):
            self.do(ReadKV(layer))

    @act(weight=3, layer=(0, 2), tokens=(0, 4), padding=(0, 3), shape=(0, 3), seed=SEED)
    def write(self, layer: int, tokens: int, padding: int, shape: int, seed: int) -> None:
        """Write some tokens and some padding, shuffled."""
        source = random.Random(seed)
        slots = self._slots(source, tokens, padding)
        self._write(layer % self.judge.layers, slots, *self._contents(source, len(slots)), shape, source)

    @act(weight=2, layer=(0, 2), first=(0, 12), onto=(1, 12), count=(1, 4))
    def move(self, layer: int, first: int, onto: int, count: int) -> None:
        """Move rows inside the buffers, onto rows that move as well."""
        rows = self.judge.rows
        first, onto = first % rows, max(onto % rows, 1)
        self.do(MoveKV(layer % self.judge.layers, first, onto, min(count, rows - first, rows - onto)))
        self.observe()

    @act(needs="can_refuse", weight=3, tokens=(0, 3), twist=(0, 8), shape=(0, 3), seed=SEED)
    def write_badly(self, tokens: int, twist: int, shape: int, seed: int) -> None:
        """Write with one thing wrong; a wrong slot is the last, so that a write which starts first shows."""
        source = random.Random(seed)
        slots = self._slots(source, tokens, 0)
        layer = {0: -1, 1: self.judge.layers}.get(twist, 0)
        if twist in (2, 3):
            slots.append(-1 if twist == 2 else self.judge.rows)
        keys, values = self._contents(source, len(slots))
        part, other = self.judge.widths["key"], self.judge.widths["value"]
        if twist == 4:
            keys = (*keys, (1,) * part)
        elif twist == 5:
            values = values[1:] or ((1,) * other,) * 2
        elif twist == 6 and slots:
            keys = _resized(keys, part + 1 - 2 * (seed % 2))
        elif twist == 7 and slots:
            values = _resized(values, 1 if other > 1 and seed % 2 else 2 * other)
        elif twist == 8:
            keys, values = (*keys, (1,) * part), (*values, (1,) * other)
        self._write(layer, slots, keys, values, shape, source)

    @act(needs="can_refuse", beyond=(0, 1))
    def read_badly(self, beyond: int) -> None:
        """Ask for a layer that is not there."""
        self.do(ReadKV(self.judge.layers if beyond else -1))

    def _write(
        self, layer: int, slots: list[int], keys: Rows, values: Rows, shape: int, source: random.Random
    ) -> None:
        form = index_form(source, slots)
        self.do(WriteKV(layer, tuple(slots), keys, values, SHAPES[shape], form))
        self.observe()

    def _slots(self, source: random.Random, tokens: int, padding: int) -> list[int]:
        """Choose slots at random, the last one often."""
        usable = range(1, self.judge.rows)
        slots = source.sample(usable, min(tokens, len(usable)))
        if slots and source.random() < 0.2 and usable[-1] not in slots:
            slots[0] = usable[-1]
        slots += [0] * padding
        source.shuffle(slots)
        return slots

    def _contents(self, source: random.Random, count: int) -> tuple[Rows, Rows]:
        return _rows(source, count, self.judge.widths["key"]), _rows(
            source, count, self.judge.widths["value"]
        )


def _rows(source: random.Random, count: int, width: int) -> Rows:
    return tuple(tuple(source.randrange(-128, 128) for _ in range(width)) for _ in range(count))


def _resized(rows: Rows, width: int) -> Rows:
    return tuple((row * 2)[:width] for row in rows)
