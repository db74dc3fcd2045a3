"""The expected contents of the cached and the live states of blocks (C7, C9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from pymllm.errors import ProgramError
from pymllm.history.config_limits import read_number
from pymllm.history.files import Config
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells

PARTS = ("recurrent", "conv")

StateCells = ExpectedCells[tuple[str, int]]
"""The contents of one layer's states: both parts of each row."""


class BlockStates:
    """The expected states of blocks; the last row of the live states belongs to no request and never changes.

    Of the configuration it reads ``layers``, ``slots``, ``requests``; the shapes ``ssm_heads`` x ``ssm_dim``
    and ``conv_dim`` x ``conv_width``; ``ssm_dtype`` and ``conv_dtype``.
    """

    def __init__(self, config: Config) -> None:
        self.layers, slots = read_number(config, "layers"), read_number(config, "slots")
        self.rows = read_number(config, "requests")  # of the live states, one for each request
        self.shapes = {
            "recurrent": (read_number(config, "ssm_heads"), read_number(config, "ssm_dim")),
            "conv": (read_number(config, "conv_dim"), read_number(config, "conv_width")),
        }
        self.dtypes = {"recurrent": config.get("ssm_dtype"), "conv": config.get("conv_dtype")}
        self.widths = {part: prod(shape) for part, shape in self.shapes.items()}
        layers = range(self.layers)
        self.cached = [self._blank(f"layer {layer}, {{}} state in slot {{}}", slots) for layer in layers]
        self.live = [
            self._blank(f"layer {layer}, live {{}} state of request {{}}", self.rows) for layer in layers
        ]

    def _blank(self, wording: str, rows: int) -> StateCells:
        blank = {part: (0,) * width for part, width in self.widths.items()}
        return ExpectedCells(wording, "C7", BlankCells(blank, rows))

    def suspect(self, law: str) -> None:
        """Record an operation that must not change any state, as suspect of later differences."""
        for cells in (*self.cached, *self.live):
            cells.suspect(law)

    def wipe(self, law: str) -> None:
        """Set all states to zeros."""
        for cells in (*self.cached, *self.live):
            cells.wipe(law)

    def release(self, slots: Iterable[int]) -> None:
        """Forget the contents of slots that change hands, to which anything may then be written."""
        for slot in slots:
            for cells in self.cached:
                for part in PARTS:
                    cells.release((part, slot))

    def store(self, layer: int, slot: int, contents: Sequence[Content]) -> None:
        """Record a write of one layer into a slot, with its contents by part."""
        _put(self.cached[layer], slot, contents)

    def write(self, layer: int, request: int, contents: Sequence[Content]) -> None:
        """Record a write of one layer of a live state."""
        _put(self.live[layer], request, contents)

    def save(self, slots: Sequence[int], requests: Sequence[int]) -> None:
        """Record a copy of live states into distinct slots, in all layers."""
        self._copy(self.live, requests, self.cached, slots)

    def restore(self, request: int, slot: int) -> None:
        """Record a copy of a slot into a live state, in all layers."""
        self._copy(self.cached, [slot], self.live, [request])

    def _copy(
        self, source: list[StateCells], read: Sequence[int], target: list[StateCells], write: Sequence[int]
    ) -> None:
        self.suspect("C7")
        for layer in range(self.layers):
            for old, new in zip(read, write, strict=True):
                for part in PARTS:
                    target[layer].put("C7", (part, new), *source[layer].holds((part, old)))

    def contents(self, recurrent: int, conv: int, ramp: int) -> list[Content]:
        """Return the contents of a write, by part; raise `ProgramError` for numbers outside -128 .. 127."""
        made = [
            tuple(first + at * ramp for at in range(self.widths[part]))
            for part, first in zip(PARTS, (recurrent, conv), strict=True)
        ]
        if any(number not in range(-128, 128) for content in made for number in content):
            raise ProgramError(f"{made} leaves -128..127, which every dtype can hold")
        return made


def _put(cells: StateCells, row: int, contents: Sequence[Content]) -> None:
    cells.suspect("C7")
    for part, content in zip(PARTS, contents, strict=True):
        cells.put("C7", (part, row), content)
