"""The model of pools of recurrent states: the holder of each track slot, and the expected rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AllocTrack,
    Clear,
    CopyStates,
    FreeTrack,
    ReadStates,
    ResetStates,
    WriteState,
)
from pymllm.history.outcomes import Outcome, States
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells, SeenCells
from pymllm.oracle.models.kind_model import DONE, MALFORMED_ERRORS, NO_ROOM, KindModel, Misuse, Seen
from pymllm.oracle.models.slot_model import Remainder

_PARTS = ("recurrent", "conv")
_OWNED = ("OwnershipError",)
_FREED_TWICE = Misuse("a track slot is freed twice", "P5", _OWNED, needs="refuses_double_free")
_WORKING_FREED = Misuse("a working row is freed as a track slot", "P5", _OWNED, needs="refuses_foreign")
_ROW_0_FREED = Misuse("row 0 is freed as a track slot", "P5", _OWNED, needs="refuses_foreign")
_OUTSIDE_FREED = Misuse("a slot outside is freed", "X1", _OWNED, needs="refuses_foreign")
_NO_LAYER = Misuse("a layer that is not there is asked for", "X1", MALFORMED_ERRORS)

Cell = tuple[str, int]
"""A cell of the pool: a part of a layer's states, and a row."""


@dataclass(slots=True, kw_only=True)
class SeenWrite(Seen):
    """A write of one row, with its contents by part."""

    row: int
    contents: dict[str, Content]


@dataclass(slots=True, kw_only=True)
class SeenRows(Seen):
    """A copy of rows, pair by pair, or a reset of rows."""

    source: list[int]
    target: list[int]


class StatePoolModel(KindModel):
    """The model of the states of every layer and the holder of each track slot; it copies the pool's choices.

    The configuration has ``max_reqs``, ``layers``, ``track_slots``, the sizes of both parts and ``dtype``.
    """

    KIND: ClassVar[str] = "states"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.layers = self.number("layers")
        self.working = range(1, self.number("max_reqs") + 1)  # rows of requests
        self._track = range(self.working.stop, self.working.stop + self.number("track_slots", 0))
        self.rows = self._track.stop  # row 0, the working rows, the track slots
        heads, values, keys = self.number("v_heads"), self.number("v_dim"), self.number("k_dim")
        channels, places = self.number("conv_dim"), self.number("kernel") - 1
        self.widths = {"recurrent": heads * values * keys, "conv": channels * places}
        self._dtypes = ("float32", str(self.config.get("dtype")))
        self.form = (
            ((self.rows, heads, values, keys), (self.rows, channels, places)),
            self._dtypes,
            (self.rows, self.rows),
            tuple({width} for width in self.widths.values()),
        )
        blank = BlankCells({part: (0,) * width for part, width in self.widths.items()}, self.rows)
        self._states: list[ExpectedCells[Cell]] = [
            ExpectedCells(f"layer {layer}, {{}} state of row {{}}", "P5", blank)
            for layer in range(self.layers)
        ]
        self._forget_track_slots()

    def _forget_track_slots(self) -> None:
        self.held: set[int] = set()
        self.free = Remainder(self._track, self.held)

    def sizes(self) -> dict[str, int]:
        """Return ``max_track_slots`` and ``available_track_slots``."""
        count = len(self._track)
        return {"max_track_slots": count, "available_track_slots": count - len(self.held)}

    def suspect(self, law: str) -> None:
        """Suspect an operation of any content of a layer that no known operation has written."""
        for states in self._states:
            states.suspect(law)

    # -- track slots ---------------------------------------------------------------------------------------

    def read_alloc_track(self, operation: AllocTrack, outcome: Outcome) -> Seen:
        """Read which track slot an allocation hands out, if any is free."""
        return Seen(outcome.result, DONE if self.free else NO_ROOM)

    def follow_alloc_track(self, step: int, operation: AllocTrack, seen: Seen) -> None:
        """Hand out the track slot, or record a failure as suspect."""
        if seen.fate == NO_ROOM:
            self.suspect("X4" if "pool" in self.claims else "P5")
            return
        slots = seen.result.slots
        self.given.record(step, slots)
        self.held.update(slots)
        self._let_go(slots[0])

    def read_free_track(self, operation: FreeTrack, outcome: Outcome) -> Seen:
        """Read a free of a track slot, which must be held."""
        slot = self.one(operation.slot)
        if slot in self.held:
            return Seen(outcome.result)
        if slot in self.free:
            return self.refused(outcome, _FREED_TWICE)
        if slot in self.working:
            return self.refused(outcome, _WORKING_FREED)
        return self.refused(outcome, _OUTSIDE_FREED if slot else _ROW_0_FREED)

    def follow_free_track(self, step: int, operation: FreeTrack, seen: Seen) -> None:
        """Take a held track slot back into the pool."""
        slot = self.one(operation.slot)
        self.held.remove(slot)
        self._let_go(slot)

    def _let_go(self, slot: int) -> None:
        """Record a change of owner, after which the slot's contents are unknown."""
        self.suspect("P5")
        for states in self._states:
            for part in _PARTS:
                states.release((part, slot))

    def follow_clear(self, step: int, operation: Clear, seen: Seen) -> None:
        """Make every track slot free, whether held or not, and set every state to zero."""
        for states in self._states:
            states.wipe("X7")
        self._forget_track_slots()

    # -- states --------------------------------------------------------------------------------------------

    def read_write_state(self, operation: WriteState, outcome: Outcome) -> SeenWrite:
        """Read the contents that are written to a row of a layer."""
        row = self.one(operation.slot)
        if operation.layer not in range(self.layers) or row not in range(self.rows):
            raise ProgramError(f"{operation} leaves the states; there are {self.layers} x {self.rows} rows")
        contents = {
            part: self._ramp(part, first, operation.ramp)
            for part, first in (("recurrent", operation.recurrent), ("conv", operation.conv))
        }
        return SeenWrite(outcome.result, row=row, contents=contents)

    def follow_write_state(self, step: int, operation: WriteState, seen: SeenWrite) -> None:
        """Record the written row, in both parts."""
        self.suspect("P4")
        for part, content in seen.contents.items():
            self._states[operation.layer].put("P4", (part, seen.row), content)

    def _ramp(self, part: str, first: int, ramp: int) -> Content:
        content = tuple([first + at * ramp for at in range(self.widths[part])])
        if content and (min(content) < -128 or max(content) > 127):
            raise ProgramError(f"{content} leaves -128..127, which every dtype can hold")
        return content

    def read_copy_states(self, operation: CopyStates, outcome: Outcome) -> Seen:
        """Read a copy of rows, each to a target of its own or to the padding row."""
        source, target = self.given.resolve(operation.source), self.given.resolve(operation.target)
        errors = self._errors_outside(*source, *target)
        if len(source) != len(target):
            errors += ("ValueError",)
        if errors:
            what = f"copy of {source} to {target}"
            needs = "refuses_bad_arguments" if "ValueError" in errors else "refuses_foreign"
            return self.refused(outcome, Misuse("a bad copy is refused", "P5", errors, needs, name=what))
        own = [row for row in target if row != 0]
        if len(own) != len({*own}):
            raise ProgramError(f"targets {own} name one twice; only row 0 may repeat")
        return SeenRows(outcome.result, source=source, target=target)

    def follow_copy_states(self, step: int, operation: CopyStates, seen: SeenRows) -> None:
        """Record the copied rows, in every layer."""
        self.suspect("P5")
        for states in self._states:
            for part in _PARTS:
                _copy(states, part, seen.source, seen.target)

    def read_reset_states(self, operation: ResetStates, outcome: Outcome) -> Seen:
        """Read which rows are reset."""
        rows = self.given.resolve(operation.rows)
        errors = self._errors_outside(*rows)
        if errors:
            wrong = Misuse("a bad reset is refused", "P5", errors, "refuses_foreign", name=f"reset of {rows}")
            return self.refused(outcome, wrong)
        return SeenRows(outcome.result, source=[], target=rows)

    def follow_reset_states(self, step: int, operation: ResetStates, seen: SeenRows) -> None:
        """Set the reset rows to zero in every layer."""
        self.suspect("P5")
        for states in self._states:
            for part, width in self.widths.items():
                for row in seen.target:
                    states.put("P5", (part, row), (0,) * width)

    def _errors_outside(self, *rows: int) -> tuple[str, ...]:
        return ("IndexError", *_OWNED) if any(row not in range(self.rows) for row in rows) else ()

    def read_read_states(self, operation: ReadStates, outcome: Outcome) -> Seen:
        """Read the contents and the form of a layer, which must exist; a missing dtype counts as right."""
        if operation.layer not in range(self.layers):
            return self.refused(outcome, _NO_LAYER)
        told, memory = outcome.result, self._states[operation.layer]
        if not isinstance(told, States):
            return SeenCells(told, memory=memory, cells={}, form=None)
        recurrent, conv = told.recurrent, told.conv
        form = (
            (told.recurrent_shape, told.conv_shape),
            (told.recurrent_dtype or self._dtypes[0], told.conv_dtype or self._dtypes[1]),
            (len(recurrent), len(conv)),
            ({*map(len, recurrent)}, {*map(len, conv)}),
        )
        cells: dict[Cell, Content] = {("recurrent", row): content for row, content in enumerate(recurrent)}
        cells.update({("conv", row): content for row, content in enumerate(conv)})
        return SeenCells(told, memory=memory, cells=cells, form=form)

    def follow_read_states(self, step: int, operation: ReadStates, seen: SeenCells) -> None:
        """Accept the observed contents of the layer as the expected ones from now on."""
        seen.memory.settle(seen.cells)


def _copy(states: ExpectedCells[Cell], part: str, source: list[int], target: list[int]) -> None:
    """Record a copy: sources are read before targets are written; in the padding row any may come last."""
    read = [states.holds((part, row)) for row in source]
    padding = [contents for row, contents in zip(target, read, strict=True) if row == 0]
    for row, contents in zip(target, read, strict=True):
        if row != 0:
            states.put("P5", (part, row), *contents)
    if padding:
        any_of = dict.fromkeys(content for contents in padding for content in contents)
        states.put("P5", (part, 0), *(any_of if all(padding) else ()))
