"""The machine of state pools: forward passes, snapshots taken and restored, and misuse of both."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import ClassVar

from pymllm.conformance.acting import act
from pymllm.conformance.pool_machine import SEED, PoolMachine, index_form
from pymllm.history.operations import (
    AllocTrack,
    Clear,
    CopyStates,
    FreeTrack,
    Malformed,
    ReadStates,
    ResetStates,
    Span,
    WriteState,
)
from pymllm.oracle.state_judge import StateJudge

__all__ = ["StateMachine"]


class StateMachine(PoolMachine):
    """Drives the states of every layer (P4, P5, X1, X4, X7)."""

    MALFORMED: ClassVar[tuple[Malformed, ...]] = (
        *(Malformed("free_track", wrong) for wrong in ("a float slot", "a bool slot", "no slot")),
        *(
            Malformed("copy_states", wrong)
            for wrong in ("float rows", "bool rows", "float targets", "no target")
        ),
        *(Malformed("reset_states", wrong) for wrong in ("float rows", "bool rows", "a string")),
        *(Malformed("read_states", wrong) for wrong in ("a float layer", "no layer")),
    )

    @property
    def judge(self) -> StateJudge:
        """The judge, who knows which track slots are handed out."""
        judge = self.examiner.judge
        assert isinstance(judge, StateJudge)  # adapters of kind states are judged by no other
        return judge

    @property
    def has_snapshots(self) -> bool:
        """Whether a track slot is handed out."""
        return bool(self.judge.held)

    def observe(self) -> None:
        """Read every layer."""
        for layer in range(self.judge.layers):
            self.do(ReadStates(layer))

    # -- track slots ---------------------------------------------------------------------------------------

    @act()
    def alloc_track_slot(self) -> None:
        """Take a track slot."""
        self.do(AllocTrack())
        self.observe()

    @act(needs="has_snapshots", pick=(0, 3))
    def free_track_slot(self, pick: int) -> None:
        """Give a track slot back."""
        held = sorted(self.judge.held)
        (span,) = self._names([held[pick % len(held)]])
        self.do(FreeTrack(span))
        self.observe()

    @act(needs="can_refuse", slot=(-1, 6))
    def free_badly(self, slot: int) -> None:
        """Give back what is nobody's, or no track slot."""
        slot = min(slot, self.judge.rows)
        if slot not in self.judge.held:
            self.do(FreeTrack(Span(0, slot, slot + 1)))
            self.observe()

    @act(chance=(0, 2))
    def clear(self, chance: int) -> None:
        """Take everything back, now and then."""
        if not chance:
            self.do(Clear())
            self.observe()

    # -- states --------------------------------------------------------------------------------------------

    @act(weight=3, row=(0, 6), seed=SEED)
    def advance(self, row: int, seed: int) -> None:
        """Write a row in every layer, as a forward pass does."""
        source = random.Random(seed)
        (span,) = self._names([row % self.judge.rows])
        largest_ramp = 24 // max(self.judge.widths.values())  # the last element is still below 128
        for layer in range(self.judge.layers):
            recurrent, conv = source.randrange(-128, 104), source.randrange(-128, 104)
            self.do(WriteState(layer, span, recurrent, conv, source.randint(0, largest_ramp)))
        self.observe()

    @act(weight=3, count=(1, 4), padding=(0, 2), seed=SEED)
    def copy(self, count: int, padding: int, seed: int) -> None:
        """Copy some rows to some others, padded with copies to row 0."""
        source = random.Random(seed)
        rows = range(self.judge.rows)
        targets = [*source.sample(rows[1:], min(count, len(rows) - 1)), *[0] * padding]
        source.shuffle(targets)
        self._copy(source.choices(rows, k=len(targets)), targets, source)

    @act(needs="can_refuse", count=(0, 2), twist=(0, 4), seed=SEED)
    def copy_badly(self, count: int, twist: int, seed: int) -> None:
        """Copy with the last row outside, or with one row too many on one side."""
        source = random.Random(seed)
        rows, targets = [0] * count, source.sample(range(self.judge.rows), count)
        outside = -1 if seed % 2 else self.judge.rows
        if twist < 2:
            rows.append(outside if twist else 0)
            targets.append(0 if twist else outside)
        else:
            (rows if twist == 2 else targets).append(0)
        self._copy(rows, targets, source)

    def _copy(self, rows: list[int], targets: list[int], source: random.Random) -> None:
        form = index_form(source, [*rows, *targets])
        self.do(CopyStates(self._names(rows), self._names(targets), form))
        self.observe()

    @act(count=(0, 4), seed=SEED)
    def reset(self, count: int, seed: int) -> None:
        """Zero some rows."""
        source = random.Random(seed)
        self._reset(source.choices(range(self.judge.rows), k=count), source)

    @act(needs="can_refuse", count=(0, 2), seed=SEED)
    def reset_badly(self, count: int, seed: int) -> None:
        """Zero some rows, the last of which is not there."""
        source = random.Random(seed)
        outside = source.choice((-1, self.judge.rows))
        self._reset([*source.choices(range(self.judge.rows), k=count), outside], source)

    def _reset(self, rows: list[int], source: random.Random) -> None:
        self.do(ResetStates(self._names(rows), index_form(source, rows)))
        self.observe()

    @act(needs="can_refuse", beyond=(0, 1))
    def read_badly(self, beyond: int) -> None:
        """Ask for a layer that is not there."""
        self.do(ReadStates(self.judge.layers if beyond else -1))

    def _names(self, rows: Iterable[int]) -> tuple[Span, ...]:
        """Name track slots by the steps that gave them while they are held, other rows by themselves."""
        return tuple(
            span
            for row in rows
            for span in (
                self.judge.given.name((row,)) if row in self.judge.held else (Span(0, row, row + 1),)
            )
        )
