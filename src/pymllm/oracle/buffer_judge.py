"""The judge of KV buffers: a write changes the named rows of keys and values, and nothing else."""

from __future__ import annotations

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import SHAPES, Malformed, MoveKV, ReadKV, WriteKV
from pymllm.history.outcomes import Buffers, Done, Outcome
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells
from pymllm.oracle.pool_judge import MALFORMED_ERRORS, PoolJudge

_SMALL = range(-128, 128)


class BufferJudge(PoolJudge):
    """Judges the buffers of every layer (P3, X1, E5)."""

    KIND = "buffers"
    SIZES_LAW = "P3"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.layers = self.number("layers")
        self.rows = self.number("size") + self.number("page_size")  # the first page is padding
        self.widths = {
            "key": self.number("k_heads") * self.number("k_dim"),
            "value": self.number("v_heads") * self.number("v_dim"),
        }
        blank = BlankCells({part: (0,) * width for part, width in self.widths.items()}, self.rows)
        self._buffers = [
            ExpectedCells(f"layer {layer}, {{}} of slot {{}}", "P3", blank) for layer in range(self.layers)
        ]

    def refused(self) -> None:
        """Follow a refused operation, which must not have touched any layer."""
        for buffer in self._buffers:
            buffer.suspect("X1")

    def _judge_malformed(self, step: int, operation: Malformed, outcome: Outcome) -> str:
        self.evidence.meet("a malformed call is refused")
        what = f"{operation.call} with {operation.wrong}"
        return self.expect_refusal("P3", what, outcome, *MALFORMED_ERRORS)

    # -- writing -------------------------------------------------------------------------------------------

    def _judge_write_kv(self, step: int, operation: WriteKV, outcome: Outcome) -> str:
        slots = operation.slots
        wrong = self._what_is_wrong(operation)
        if wrong:
            for what in wrong:
                self.evidence.meet(f"a write with {what} is refused")
            return self.expect_refusal("P3", " and ".join(wrong), outcome, *MALFORMED_ERRORS)
        _demand_writable(operation)
        self.answer(Done, "P3", f"write of slots {list(slots)}", outcome)
        self._leave_all_else()
        for part, rows in (("key", operation.keys), ("value", operation.values)):
            self._write(operation.layer, part, slots, rows)
        self.evidence.meet("padded tokens share slot 0", slots.count(0) > 1)
        self.evidence.meet("padding stands beside tokens", 0 in slots and any(slots))
        self.evidence.meet("no token is written", not slots)
        self.evidence.meet("the last slot is written", self.rows - 1 in slots)
        self.evidence.meet(f"rows are written in shape {operation.shape}", slots)
        return "P3"

    def _what_is_wrong(self, operation: WriteKV) -> list[str]:
        rows = {"key": operation.keys, "value": operation.values}
        if any(len({len(content) for content in contents}) > 1 for contents in rows.values()):
            raise ProgramError("rows of several widths cannot be handed over; they are one tensor")
        wrong = [] if 0 <= operation.layer < self.layers else ["a layer that is not there"]
        if any(not 0 <= slot < self.rows for slot in operation.slots):
            wrong.append("a slot outside the buffers")
        for part, contents in rows.items():
            if len(contents) != len(operation.slots):
                wrong.append(f"too many or too few {part}s")
            if contents and len(contents[0]) != self.widths[part]:
                wrong.append(f"{part}s of another width")
        return wrong

    def _write(self, layer: int, part: str, slots: tuple[int, ...], contents: tuple[Content, ...]) -> None:
        """Follow a write; where several are padded, any of theirs may have come last, in each buffer."""
        padding = [content for slot, content in zip(slots, contents, strict=True) if slot == 0]
        if padding:
            self._buffers[layer].put("E5", (part, 0), *dict.fromkeys(padding))
        for slot, content in zip(slots, contents, strict=True):
            if slot != 0:
                self._buffers[layer].put("P3", (part, slot), content)

    def _judge_move_kv(self, step: int, operation: MoveKV, outcome: Outcome) -> str:
        layer, count = operation.layer, operation.count
        sources = range(operation.source, operation.source + count)
        targets = range(operation.target, operation.target + count)
        last = max(operation.source, operation.target) + count
        is_outside = count < 0 or min(operation.source, operation.target) < 0 or last > self.rows
        if layer not in range(self.layers) or is_outside:
            raise ProgramError(f"{operation} leaves the buffers; there are {self.layers} x {self.rows} rows")
        self.answer(Done, "P3", f"move of slots {sources} to {targets}", outcome)
        self._leave_all_else()
        buffer = self._buffers[layer]
        for part in self.widths:
            held = [buffer.holds((part, slot)) for slot in sources]
            for slot, contents in zip(targets, held, strict=True):
                buffer.put("P3", (part, slot), *contents)
        self.evidence.meet(
            "rows move onto rows that move", 0 < abs(operation.source - operation.target) < count
        )
        return "P3"

    def _leave_all_else(self) -> None:
        """Follow a write as what it must not do: change anything else, in any layer."""
        for buffer in self._buffers:
            buffer.suspect("P3")

    # -- reading -------------------------------------------------------------------------------------------

    def _judge_read_kv(self, step: int, operation: ReadKV, outcome: Outcome) -> str:
        if not 0 <= operation.layer < self.layers:
            self.evidence.meet("a layer that is not there is asked for")
            what = f"reading layer {operation.layer} of {self.layers}"
            return self.expect_refusal("P3", what, outcome, *MALFORMED_ERRORS)
        read = self.answer(Buffers, "P3", f"reading layer {operation.layer}", outcome)
        rows = {"key": read.keys, "value": read.values}
        for part, contents in rows.items():
            shape = (self.rows, {self.widths[part]})
            found = (len(contents), {len(content) for content in contents})
            self.require_shape("P3", f"rows of the {part} buffer and their widths", shape, found)
        self._buffers[operation.layer].test(
            self.evidence,
            {(part, slot): row for part, contents in rows.items() for slot, row in enumerate(contents)},
        )
        return "P3"


def _demand_writable(operation: WriteKV) -> None:
    own = [slot for slot in operation.slots if slot != 0]
    if len(own) != len({*own}):
        raise ProgramError(f"slots {own} name one twice; only slot 0 may repeat")
    if operation.shape not in SHAPES:
        raise ProgramError(
            f"rows are written in shape {operation.shape!r}; it must be one of {', '.join(SHAPES)}"
        )
    if any(number not in _SMALL for row in (*operation.keys, *operation.values) for number in row):
        raise ProgramError("an element is outside -128..127, which every dtype can hold")
