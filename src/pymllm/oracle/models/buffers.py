"""The model of KV buffers: the expected contents of every slot of every layer."""

from __future__ import annotations

from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import SHAPES, MoveKV, ReadKV, WriteKV
from pymllm.history.outcomes import Buffers, Outcome
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells, SeenCells
from pymllm.oracle.models.kind_model import MALFORMED_ERRORS, KindModel, Misuse, Seen

_SMALL = range(-128, 128)
_NO_LAYER = Misuse("a layer that is not there is asked for", "P3", MALFORMED_ERRORS)


class BufferModel(KindModel):
    """The model of each layer's buffers, each with a part of keys and a part of values.

    The configuration has ``layers``, ``size`` and ``page_size``, and the shapes ``k_heads`` x ``k_dim`` and
    ``v_heads`` x ``v_dim``.
    """

    KIND: ClassVar[str] = "buffers"
    malformed_law: ClassVar[str] = "P3"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.layers = self.number("layers")
        self.rows = self.number("size") + self.number("page_size")  # the first page is padding
        self.widths = {
            "key": self.number("k_heads") * self.number("k_dim"),
            "value": self.number("v_heads") * self.number("v_dim"),
        }
        self.forms = {part: (self.rows, {width}) for part, width in self.widths.items()}
        blank = BlankCells({part: (0,) * width for part, width in self.widths.items()}, self.rows)
        self._buffers: list[ExpectedCells[tuple[str, int]]] = [
            ExpectedCells(f"layer {layer}, {{}} of slot {{}}", "P3", blank) for layer in range(self.layers)
        ]

    def suspect(self, law: str) -> None:
        """Suspect an operation of any content of a layer that no known operation has written."""
        for buffer in self._buffers:
            buffer.suspect(law)

    # -- writing -------------------------------------------------------------------------------------------

    def read_write_kv(self, operation: WriteKV, outcome: Outcome) -> Seen:
        """Read a write, whose values must fit the buffers."""
        parts = {"key": operation.keys, "value": operation.values}
        if any(len({*map(len, contents)}) > 1 for contents in parts.values()):
            raise ProgramError("rows of several widths cannot be handed over; they are one tensor")
        wrong = [] if 0 <= operation.layer < self.layers else ["a layer that is not there"]
        if any(not 0 <= slot < self.rows for slot in operation.slots):
            wrong.append("a slot outside the buffers")
        for part, contents in parts.items():
            if len(contents) != len(operation.slots):
                wrong.append(f"too many or too few {part}s")
            if contents and len(contents[0]) != self.widths[part]:
                wrong.append(f"{part}s of another width")
        if wrong:
            return self.refused(outcome, *map(_misuse, wrong))
        _demand_writable(operation)
        return Seen(outcome.result)

    def follow_write_kv(self, step: int, operation: WriteKV, seen: Seen) -> None:
        """Record the written rows of a layer; of several written to the padding, any may have come last."""
        self.suspect("P3")
        buffer = self._buffers[operation.layer]
        for part, contents in (("key", operation.keys), ("value", operation.values)):
            rows = list(zip(operation.slots, contents, strict=True))
            padding = [content for slot, content in rows if slot == 0]
            if padding:
                buffer.put("E5", (part, 0), *dict.fromkeys(padding))
            for slot, content in rows:
                if slot != 0:
                    buffer.put("P3", (part, slot), content)

    def read_move_kv(self, operation: MoveKV, outcome: Outcome) -> Seen:
        """Read a move of rows inside a layer."""
        count, source, target = operation.count, operation.source, operation.target
        is_outside = count < 0 or min(source, target) < 0 or max(source, target) + count > self.rows
        if operation.layer not in range(self.layers) or is_outside:
            raise ProgramError(f"{operation} leaves the buffers; there are {self.layers} x {self.rows} rows")
        return Seen(outcome.result)

    def follow_move_kv(self, step: int, operation: MoveKV, seen: Seen) -> None:
        """Record a move of rows: all sources are read before any target is written."""
        self.suspect("P3")
        buffer, source, target = self._buffers[operation.layer], operation.source, operation.target
        for part in self.widths:
            held = [buffer.holds((part, source + at)) for at in range(operation.count)]
            for at, contents in enumerate(held):
                buffer.put("P3", (part, target + at), *contents)

    # -- reading -------------------------------------------------------------------------------------------

    def read_read_kv(self, operation: ReadKV, outcome: Outcome) -> Seen:
        """Read the contents of a layer, which must exist."""
        if not 0 <= operation.layer < self.layers:
            return self.refused(outcome, _NO_LAYER)
        told = outcome.result
        shown = slice(None if "tight_buffers" in self.claims else self.rows)
        parts = {"key": told.keys[shown], "value": told.values[shown]} if isinstance(told, Buffers) else {}
        cells: dict[tuple[str, int], Content] = {
            (part, slot): row for part, rows in parts.items() for slot, row in enumerate(rows)
        }
        forms = {part: (len(rows), {*map(len, rows)}) for part, rows in parts.items()}
        return SeenCells(told, memory=self._buffers[operation.layer], cells=cells, form=forms)

    def follow_read_kv(self, step: int, operation: ReadKV, seen: SeenCells) -> None:
        """Accept the observed contents of the layer as the expected ones from now on."""
        seen.memory.settle(seen.cells)


def _misuse(wrong: str) -> Misuse:
    needs = "refuses_foreign" if "outside" in wrong else "refuses_bad_arguments"
    return Misuse(f"a write with {wrong} is refused", "P3", MALFORMED_ERRORS, needs)


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
