"""The documented views of blocks and slots, each compared with what it must say (C1 to C4)."""

from __future__ import annotations

from collections.abc import Mapping

from pymllm.history.outcomes import BlockBooks
from pymllm.oracle.block_model import BlockModel
from pymllm.oracle.block_slot_model import BlockSlotModel

__all__ = ["find_wrong_view"]

_NONE = -1

Difference = tuple[str, str, object, object]
"""A law, the view, what it must say and what it says."""


def find_wrong_view(blocks: BlockModel, slots: BlockSlotModel | None, books: BlockBooks) -> Difference | None:
    """Return the first view that is wrong.

    Parameters
    ----------
    blocks, slots : BlockModel, BlockSlotModel or None
        What must be.
    books : BlockBooks
        What is told.

    Returns
    -------
    tuple of (str, str, object, object) or None
        The law, which view, expected and observed. The stamps of free blocks and all that is told of the
        dummy are open, but for its slot.
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
