"""The judge of state pools: their layout, who has which track slot, and copies that lose no bit."""

from __future__ import annotations

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
from pymllm.history.outcomes import Done, NoRoom, Outcome, Slots, States
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells
from pymllm.oracle.models.slot_model import Remainder
from pymllm.oracle.pool_judge import MALFORMED_ERRORS, PoolJudge

_PARTS = ("recurrent", "conv")


class StateJudge(PoolJudge):
    """Judges the states of every layer and the books of the track slots (P4, P5, X1, X4, X7).

    What stands in a track slot once it was freed is open; which free one is handed out is, too.
    """

    KIND = "states"
    SIZES_LAW = "P5"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.layers = self.number("layers")
        self.working = range(1, self.number("max_reqs") + 1)  # rows of requests
        self._track = range(self.working.stop, self.working.stop + self.number("track_slots", 0))
        self.rows = self._track.stop  # row 0, the working rows, the track slots
        self._shapes = {
            "recurrent": (self.rows, self.number("v_heads"), self.number("v_dim"), self.number("k_dim")),
            "conv": (self.rows, self.number("conv_dim"), self.number("kernel") - 1),
        }
        self.widths = {
            "recurrent": self.number("v_heads") * self.number("v_dim") * self.number("k_dim"),
            "conv": self.number("conv_dim") * (self.number("kernel") - 1),
        }
        self._dtypes = {"recurrent": "float32", "conv": str(self.config.get("dtype"))}
        blank = BlankCells({part: (0,) * width for part, width in self.widths.items()}, self.rows)
        self._states = [
            ExpectedCells(f"layer {layer}, {{}} state of row {{}}", "P5", blank)
            for layer in range(self.layers)
        ]
        self._forget_track_slots()

    def _forget_track_slots(self) -> None:
        self.held: set[int] = set()
        self.free = Remainder(self._track, self.held)

    def sizes(self) -> dict[str, int]:
        """Return ``max_track_slots`` and ``available_track_slots``."""
        return {"max_track_slots": len(self._track), "available_track_slots": len(self.free)}

    def refused(self) -> None:
        """Follow a refused operation, which must not have touched any layer."""
        self._suspect("X1")

    def _suspect(self, law: str) -> None:
        for states in self._states:
            states.suspect(law)

    # -- track slots ---------------------------------------------------------------------------------------

    def _judge_alloc_track(self, step: int, operation: AllocTrack, outcome: Outcome) -> str:
        what = f"a track slot of {len(self.free)} free ones"
        if not self.free:
            self.answer(NoRoom, self.room_law, what, outcome)
            self.evidence.count(self.room_law)
            self._suspect(self.room_law)
            self.evidence.meet("track slots run out")
            return self.room_law
        slots = self.answer(Slots, "P5", what, outcome).slots
        self.evidence.demand(
            "P5",
            len(slots) == len(self.free.intersection(slots)) == 1,
            "a track slot handed out",
            f"one of {self.free}",
            lambda: slots,
        )
        self.given.record(step, slots)
        self.held.update(slots)
        self._let_go(slots[0])
        return "P5"

    def _judge_free_track(self, step: int, operation: FreeTrack, outcome: Outcome) -> str:
        slot = self.one(operation.slot)
        if slot not in self.held:
            return self._judge_bad_free(slot, outcome)
        self.answer(Done, "P5", f"free of track slot {slot}", outcome)
        self.held.remove(slot)
        self._let_go(slot)
        return "P5"

    def _let_go(self, slot: int) -> None:
        """Follow a change of owners: anything may be written to the slot then, and nothing elsewhere."""
        self._suspect("P5")
        for states in self._states:
            for part in _PARTS:
                states.release((part, slot))

    def _judge_bad_free(self, slot: int, outcome: Outcome) -> str:
        law = "P5"
        if slot in self.free:
            situation = "a track slot is freed twice"
        elif slot in self.working:
            situation = "a working row is freed as a track slot"
        elif slot == 0:
            situation = "row 0 is freed as a track slot"
        else:
            law, situation = "X1", "a slot outside is freed"
        self.evidence.meet(situation)
        return self.expect_refusal(law, f"free of track slot {slot}", outcome, "OwnershipError")

    def _judge_clear(self, step: int, operation: Clear, outcome: Outcome) -> str:
        self.answer(Done, "X7", "clear", outcome)
        self.evidence.meet("a clear takes snapshots from their holders", self.held)
        for states in self._states:
            states.wipe("X7")
        self._forget_track_slots()
        return "X7"

    # -- states --------------------------------------------------------------------------------------------

    def _judge_write_state(self, step: int, operation: WriteState, outcome: Outcome) -> str:
        row = self.one(operation.slot)
        if operation.layer not in range(self.layers) or row not in range(self.rows):
            raise ProgramError(f"{operation} leaves the states; there are {self.layers} x {self.rows} rows")
        contents = {
            "recurrent": self._ramp("recurrent", operation.recurrent, operation.ramp),
            "conv": self._ramp("conv", operation.conv, operation.ramp),
        }
        self.answer(Done, "P4", f"write of row {row}", outcome)
        self._suspect("P4")
        for part, content in contents.items():
            self._states[operation.layer].put("P4", (part, row), content)
        return "P4"

    def _ramp(self, part: str, first: int, ramp: int) -> Content:
        content = tuple(first + at * ramp for at in range(self.widths[part]))
        if any(not -128 <= number < 128 for number in content):
            raise ProgramError(f"{content} leaves -128..127, which every dtype can hold")
        return content

    def _judge_copy_states(self, step: int, operation: CopyStates, outcome: Outcome) -> str:
        source, target = self.given.resolve(operation.source), self.given.resolve(operation.target)
        errors = self._errors_outside(*source, *target)
        if len(source) != len(target):
            errors += ("ValueError",)
        if errors:
            self.evidence.meet("a bad copy is refused")
            return self.expect_refusal("P5", f"copy of {source} to {target}", outcome, *errors)
        own = [row for row in target if row != 0]
        if len(own) != len({*own}):
            raise ProgramError(f"targets {own} name one twice; only row 0 may repeat")
        self.answer(Done, "P5", f"copy of {source} to {target}", outcome)
        self._suspect("P5")
        for states in self._states:
            for part in _PARTS:
                self._copy(states, part, source, target)
        self._note_copy(source, target)
        return "P5"

    @staticmethod
    def _copy(
        states: ExpectedCells[tuple[str, int]], part: str, source: list[int], target: list[int]
    ) -> None:
        """All rows are read before one is written; of several padded ones any may come last."""
        read = [states.holds((part, row)) for row in source]
        padding = [contents for row, contents in zip(target, read, strict=True) if row == 0]
        for row, contents in zip(target, read, strict=True):
            if row != 0:
                states.put("P5", (part, row), *contents)
        if padding:
            any_of = dict.fromkeys(content for contents in padding for content in contents)
            states.put("P5", (part, 0), *(any_of if all(padding) else ()))

    def _note_copy(self, source: list[int], target: list[int]) -> None:
        pairs = list(zip(source, target, strict=True))
        taken = any(s in self.working and t in self.held for s, t in pairs)
        restored = any(s in self.held and t in self.working for s, t in pairs)
        self.evidence.meet("a snapshot is taken", taken)
        self.evidence.meet("a snapshot is restored", restored)
        self.evidence.meet("one copy reads and writes the same row", {*source} & {*target})
        self.evidence.meet("padded copies share row 0", target.count(0) > 1)

    def _judge_reset_states(self, step: int, operation: ResetStates, outcome: Outcome) -> str:
        rows = self.given.resolve(operation.rows)
        errors = self._errors_outside(*rows)
        if errors:
            self.evidence.meet("a bad reset is refused")
            return self.expect_refusal("P5", f"reset of {rows}", outcome, *errors)
        self.answer(Done, "P5", f"reset of {rows}", outcome)
        self._suspect("P5")
        for states in self._states:
            for part, row in ((part, row) for part in _PARTS for row in rows):
                states.put("P5", (part, row), (0,) * self.widths[part])
        self.evidence.meet("several rows are reset", len({*rows}) > 1)
        return "P5"

    def _errors_outside(self, *rows: int) -> tuple[str, ...]:
        return ("IndexError", "OwnershipError") if any(row not in range(self.rows) for row in rows) else ()

    def _judge_read_states(self, step: int, operation: ReadStates, outcome: Outcome) -> str:
        if operation.layer not in range(self.layers):
            self.evidence.meet("a layer that is not there is asked for")
            what = f"reading layer {operation.layer} of {self.layers}"
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        read = self.answer(States, "P4", f"reading layer {operation.layer}", outcome)
        self._require_form("recurrent", read.recurrent, read.recurrent_shape, read.recurrent_dtype)
        self._require_form("conv", read.conv, read.conv_shape, read.conv_dtype)
        self._states[operation.layer].test(
            self.evidence,
            {
                (part, row): content
                for part, contents in (("recurrent", read.recurrent), ("conv", read.conv))
                for row, content in enumerate(contents)
            },
        )
        return "P5"

    def _require_form(
        self, part: str, contents: tuple[Content, ...], shape: tuple[int, ...], dtype: str
    ) -> None:
        self.require_shape("P4", f"shape of the {part} states", self._shapes[part], shape)
        self.require_shape(
            "P4", f"dtype of the {part} states", self._dtypes[part], dtype or self._dtypes[part]
        )
        found = (len(contents), {len(content) for content in contents})
        self.require_shape("P4", f"{part} states and their widths", (self.rows, {self.widths[part]}), found)
