"""Blocks and slots as inverse partial maps, and the stack of free slots."""

from __future__ import annotations

import numpy as np

from pymllm.core.inference.contexts.slot_books import SlotBooks

NOBODY = np.empty(0, np.int64)


def take(books: SlotBooks, *blocks: int) -> list[int]:
    """Take the slots of blocks."""
    claim = books.claim(0, np.array(blocks))
    books.take(claim)
    slots: list[int] = claim.slots.tolist()
    return slots


def make_books() -> SlotBooks:
    """Blocks 4, 1 and 3 have slots 0, 1 and 2 of four, and the hashes 40 and 10; slot 3 is in hand."""
    books = SlotBooks(6, 4)
    blocks = np.array([4, 1, 3, 0])
    assert books.give(books.claim(4, NOBODY), blocks, blocks) == [0, 1, 2, 3]
    take(books, 0)
    books.name(4, 40)
    books.name(1, 10)
    return books


def test_each_block_is_found_once() -> None:
    """C5: of those without a slot, and the entries used for it are as before."""
    books = make_books()
    assert sorted(books.distinct(np.array([0, 2, 0, 5, 2, 0])).tolist()) == [0, 2, 5]
    assert books.slot_of.tolist() == [-1, 1, -1, 2, 0, -1]


def test_taking_leaves_slots_in_hand() -> None:
    """C2, C4: neither free nor mapped, their hashes forgotten."""
    books = make_books()
    assert take(books, 1, 3) == [1, 2]
    assert books.free_count == 0
    assert books.block_of.tolist() == [4, -1, -1, -1]
    assert books.hash_to_block_id == {40: 4}
    assert books.hash_of.tolist() == [-1, -1, -1, -1, 40, -1]


def test_freeing_passes_over_what_has_no_slot() -> None:
    """C2: and counts a repeated block once."""
    books = make_books()
    books.free_slots_of(np.array([0, 2]))
    assert books.free_count == 0
    books.free_slots_of(np.array([1, 0, 1]))
    books.free_slots_of(np.array([4, 3, 4, 3]))
    assert sorted(books.free_slots[:3].tolist()) == [0, 1, 2]
    assert books.free_count == 3
    assert books.hash_to_block_id == {}


def test_a_block_has_one_hash_and_a_hash_one_block() -> None:
    """C4: the first block of a hash keeps it, the latest hash of a block is its own."""
    books = make_books()
    books.name(3, 40)
    books.name(1, 11)
    assert books.hash_to_block_id == {40: 4, 11: 1}
    assert books.hash_of.tolist() == [-1, 11, -1, -1, 40, -1]


def test_clear_makes_new_books() -> None:
    """C9: the order of the free slots included."""
    books, new = make_books(), SlotBooks(6, 4)
    books.clear()
    for name in ("block_to_slot", "slot_to_block", "free_slots"):
        assert getattr(books, name).tolist() == getattr(new, name).tolist()
    assert (books.free_count, books.hash_to_block_id, books.hash_of.tolist()) == (4, {}, [-1] * 6)
