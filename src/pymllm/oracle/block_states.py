"""What the views of blocks must say, and what stands in cached and live states (C1 to C4, C7, C9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from pymllm.errors import ProgramError
from pymllm.history.config_limits import read_number
from pymllm.history.files import Config
from pymllm.history.outcomes import BlockBooks, States
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.block_model import BlockModel, BlockSlotModel
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells

_NONE = -1

Difference = tuple[str, str, object, object]
"""A law, the view, what it must say and what it says."""


def find_wrong_view(blocks: BlockModel, slots: BlockSlotModel | None, books: BlockBooks) -> Difference | None:
    """Return the first view that is wrong: its law, which it is, what it must say and what it says.

    The stamps of free blocks and all that is told of the dummy are open, but for its slot.
    """
    total = blocks.usable
    sizes, told = [total + 1] * 3, [*map(len, (books.refs, books.hashes, books.stamps))]
    if told != sizes:  # what comes next costs as much as was told, and no more
        return "C1", "sizes of the views", sizes, told
    is_kept = [block not in blocks.free for block in range(total)]
    stamps = [blocks.stamps[block] for block in range(total)]
    hashes = [blocks.hash_of.get(block, _NONE) for block in range(total)]
    views: list[Difference] = [
        ("C1", "block_ref_counts", [blocks.refs[block] for block in range(total)], [*books.refs[:total]]),
        ("C3", "block_hashes", hashes, [*books.hashes[:total]]),
        ("C3", "kv_hash_to_block_id", _pairs(blocks.block_of), books.block_of_hash),
        ("C1", "block_timestamps", _kept(stamps, is_kept), _kept(books.stamps, is_kept)),
    ]
    if slots is not None:
        block_of = {slot: block for block, slot in slots.slot_of.items()}
        views += [
            ("C2", "block_to_slot", _listed(slots.slot_of, total + 1), books.slot_of_block),
            ("C2", "slot_to_block", _listed(block_of, slots.total), books.block_of_slot),
            ("C2", "free_slots", [*slots.free], sorted(books.free_slots)),
            (
                "C4",
                "hash_to_block_id",
                _pairs({it: b for b, it in slots.named.items()}),
                books.block_of_state,
            ),
        ]
    return next((view for view in views if view[2] != view[3]), None)


def _pairs(numbers: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(numbers.items()))


def _listed(numbers: Mapping[int, int], count: int) -> tuple[int, ...]:
    return tuple(numbers.get(key, _NONE) for key in range(count))


def _kept(stamps: list[int] | tuple[int, ...], is_kept: list[bool]) -> list[int]:
    return [stamp for stamp, kept in zip(stamps, is_kept, strict=False) if kept]


_PARTS = ("recurrent", "conv")
_Cells = ExpectedCells[tuple[str, int]]


class BlockStates:
    """Follows every copy; the last row of the live states is no request's and stays as it is.

    Of the configuration it reads ``layers``, ``slots``, ``requests``; the shapes ``ssm_heads`` x ``ssm_dim``
    and ``conv_dim`` x ``conv_width``; ``ssm_dtype`` and ``conv_dtype``.
    """

    def __init__(self, config: Config) -> None:
        self.layers, slots = read_number(config, "layers"), read_number(config, "slots")
        self.rows = read_number(config, "requests")  # of the live states, one for each request
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
        """Return what a write writes, by part; `ProgramError` where a number leaves -128 .. 127."""
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
            "recurrent": (read.recurrent_shape, read.recurrent_dtype),
            "conv": (read.conv_shape, read.conv_dtype),
        }
        count = len(cells.cells) // len(_PARTS)
        for part, (shape, dtype) in forms.items():
            wanted = ((count, *self._shapes[part]), self._dtypes[part])
            if (shape, dtype or self._dtypes[part]) != wanted:
                evidence.refuse("C7", f"form of the {part} states", wanted, (shape, dtype))
        found = {(part, row): content for part, rows in seen.items() for row, content in enumerate(rows)}
        if found.keys() != cells.cells:
            evidence.refuse("C7", "rows read", f"{count} of both", len(found))
        for (part, row), content in found.items():
            if len(content) != self.widths[part]:  # of a slot that may hold anything, too
                evidence.refuse("C7", f"numbers in {part} row {row}", self.widths[part], len(content))
        cells.test(evidence, found)


def _put(cells: _Cells, row: int, contents: Sequence[Content]) -> None:
    cells.suspect("C7")
    for part, content in zip(_PARTS, contents, strict=True):
        cells.put("C7", (part, row), content)
