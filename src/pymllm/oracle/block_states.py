"""What must stand in the slots of cached states and in the live states of requests (C7, C9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from pymllm.errors import ProgramError
from pymllm.history.config_limits import read_number
from pymllm.history.files import Config
from pymllm.history.outcomes import States
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.expected_cells import BlankCells, Content, ExpectedCells

__all__ = ["BlockStates"]

_PARTS = ("recurrent", "conv")
_Cells = ExpectedCells[tuple[str, int]]


class BlockStates:
    """Follows every copy; the last row of the live states is no request's and stays as it is.

    Parameters
    ----------
    config : dict
        ``layers``, ``slots``, ``requests``; the shapes ``ssm_heads`` x ``ssm_dim`` and ``conv_dim`` x
        ``conv_width``; ``ssm_dtype`` and ``conv_dtype``.

    Attributes
    ----------
    layers, rows : int
        Layers, and rows of the live states: one for each request, the last one's nobody's.
    widths : dict of str to int
        Elements of each part.
    """

    def __init__(self, config: Config) -> None:
        self.layers, slots = read_number(config, "layers"), read_number(config, "slots")
        self.rows = read_number(config, "requests")
        self._shapes = {
            "recurrent": (read_number(config, "ssm_heads"), read_number(config, "ssm_dim")),
            "conv": (read_number(config, "conv_dim"), read_number(config, "conv_width")),
        }
        self._dtypes = {"recurrent": config.get("ssm_dtype"), "conv": config.get("conv_dtype")}
        self.widths = {part: prod(shape) for part, shape in self._shapes.items()}
        self._cached = [self._blank(f"layer {layer}, {{}} state in slot {{}}", slots) for layer in self._all]
        self._live = [
            self._blank(f"layer {layer}, live {{}} state of request {{}}", self.rows) for layer in self._all
        ]

    @property
    def _all(self) -> range:
        return range(self.layers)

    def _blank(self, wording: str, rows: int) -> _Cells:
        blank = {part: (0,) * width for part, width in self.widths.items()}
        return ExpectedCells(wording, "C7", BlankCells(blank, rows))

    def suspect(self, law: str) -> None:
        """Follow an operation that must not change any state."""
        for cells in (*self._cached, *self._live):
            cells.suspect(law)

    def wipe(self, law: str) -> None:
        """Follow a return of everything to zeros."""
        for cells in (*self._cached, *self._live):
            cells.wipe(law)

    def release(self, slots: Iterable[int]) -> None:
        """Follow slots that change hands: anything may be written to them then."""
        for slot in slots:
            for cells in self._cached:
                for part in _PARTS:
                    cells.release((part, slot))

    def store(self, layer: int, slot: int, contents: Sequence[Content]) -> None:
        """Follow a write of one layer into a slot; contents by part."""
        _put(self._cached[layer], slot, contents)

    def write(self, layer: int, request: int, contents: Sequence[Content]) -> None:
        """Follow a write of one layer of a live state."""
        _put(self._live[layer], request, contents)

    def save(self, slots: Sequence[int], requests: Sequence[int]) -> None:
        """Follow a copy of live states into distinct slots, all layers."""
        self._copy(self._live, requests, self._cached, slots)

    def restore(self, request: int, slot: int) -> None:
        """Follow a copy of a slot into a live state, all layers."""
        self._copy(self._cached, [slot], self._live, [request])

    def _copy(
        self, source: list[_Cells], read: Sequence[int], target: list[_Cells], write: Sequence[int]
    ) -> None:
        self.suspect("C7")
        for layer in self._all:
            for old, new in zip(read, write, strict=True):
                for part in _PARTS:
                    target[layer].put("C7", (part, new), *source[layer].holds((part, old)))

    def contents(self, recurrent: int, conv: int, ramp: int) -> list[Content]:
        """Return what a write writes, by part.

        Raises
        ------
        ProgramError
            A number leaves -128 .. 127, which not every dtype holds.
        """
        made = [
            tuple(first + at * ramp for at in range(self.widths[part]))
            for part, first in zip(_PARTS, (recurrent, conv), strict=True)
        ]
        if any(number not in range(-128, 128) for content in made for number in content):
            raise ProgramError(f"{made} leaves -128..127, which every dtype can hold")
        return made

    def test_cached(self, evidence: Evidence, layer: int, read: States) -> None:
        """Compare a layer's slots with what was read."""
        self._test(evidence, self._cached[layer], read)

    def test_live(self, evidence: Evidence, layer: int, read: States) -> None:
        """Compare a layer's live states with what was read."""
        self._test(evidence, self._live[layer], read)

    def _test(self, evidence: Evidence, cells: _Cells, read: States) -> None:
        seen = {"recurrent": read.recurrent, "conv": read.conv}
        forms = {
            "recurrent": (read.recurrent_shape[1:], read.recurrent_dtype),
            "conv": (read.conv_shape[1:], read.conv_dtype),
        }
        for part, (shape, dtype) in forms.items():
            if (shape, dtype or self._dtypes[part]) != (self._shapes[part], self._dtypes[part]):
                wanted = (self._shapes[part], self._dtypes[part])
                evidence.refuse("C7", f"form of the {part} states", wanted, (shape, dtype))
        found = {(part, row): content for part, rows in seen.items() for row, content in enumerate(rows)}
        if found.keys() != cells.cells:
            evidence.refuse("C7", "rows read", f"{len(cells.cells) // 2} of both", len(found))
        cells.test(evidence, found)


def _put(cells: _Cells, row: int, contents: Sequence[Content]) -> None:
    cells.suspect("C7")
    for part, content in zip(_PARTS, contents, strict=True):
        cells.put("C7", (part, row), content)
