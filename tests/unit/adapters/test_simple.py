"""Tests of the short adapters: pages, effects, nodes and holds by step, and methods that are not written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from pymllm.adapters.simple import BlockAdapter, PrefixAdapter, SlotAdapter, plain_numbers
from pymllm.errors import AdapterError, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out

SPAN = ops.Span(0, 4, 7)


class Pool:
    """Hands out the same slots each time, and notes what came back."""

    def __init__(self) -> None:
        self.came: list[int] = []

    def free(self, slots: Any) -> None:
        for slot in slots:
            self.free_one(int(slot))

    def free_one(self, slot: int) -> None:
        if slot < 0:
            raise KeyError(slot)
        self.came.append(slot)


class Cache(PrefixAdapter):
    """A cache that gives back the slots of an eviction; a node is a key, a hold's token is its length."""

    REFUSALS: ClassVar = {LookupError: "OwnershipError"}

    def __init__(self) -> None:
        super().__init__("cache", {"page_size": 2})
        self.pool = Pool()
        self.calls.watch(self.pool, "free")
        self.calls.watch(self.pool, "free_one")
        self.released: list[tuple[Any, Any]] = []

    def alloc(self, tokens: int) -> Any:
        return torch.arange(2, 2 + tokens) if tokens <= 4 else None

    def free(self, slots: list[int]) -> None:
        self.pool.free(slots)

    def match(self, key: ops.Key) -> tuple[Any, Any]:
        return np.array([2, 3]), key.tokens

    def insert(self, key: ops.Key, slots: list[int]) -> tuple[int, Any]:
        return min(2, len(slots)), key.tokens

    def evict(self, tokens: int) -> int:
        self.pool.free(torch.arange(tokens))
        self.pool.free_one(9)
        return tokens + self.gave_back([])

    def lock(self, node: Any) -> Any:
        return len(node) or object()

    def unlock(self, node: Any, token: Any) -> None:
        self.released.append((node, token))


class Halves(SlotAdapter):
    """With a second slot behind each."""

    def __init__(self, page_size: int = 4) -> None:
        super().__init__("halves", {"page_size": page_size})

    def alloc(self, tokens: int) -> Sequence[int]:
        return range(tokens)

    def halves(self, slots: Sequence[int]) -> Sequence[int]:
        return [slot + 10 for slot in slots]


class Blocks(BlockAdapter):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__("blocks", {})
        self.asked: list[object] = []

    def register(self, blocks: list[int], hashes: list[int], parents: list[int]) -> None:
        self.asked.append((blocks, hashes, parents))

    def release(self, blocks: list[int]) -> None:
        self.lost(torch.tensor(blocks), {7, 3})
        self.lost(blocks[0])


@pytest.mark.parametrize("numbers", [[4, 5], (4, 5), np.array([4, 5]), torch.tensor([4, 5]), iter([4, 5])])
def test_numbers_come_in_any_form(numbers: object) -> None:
    assert plain_numbers(numbers) == (4, 5)
    assert plain_numbers(torch.tensor(4)) == plain_numbers(4) == (4,)


def test_pages_are_named_once_but_where_that_would_hide_a_double_free() -> None:
    """A5: with pages of one token a slot may be named once; of a larger page some or all slots may."""
    assert Halves().pages_of([9, 8, 5, 11]) == [2, 1]
    assert Halves(1).pages_of([9, 5, 9]) == [9, 5, 9]
    assert Halves().slots_of([2, 1]) == [8, 9, 10, 11, 4, 5, 6, 7]


def test_slots_come_with_their_halves() -> None:
    assert Halves().apply(1, ops.Alloc(2)).result == out.Slots((0, 1), (10, 11))


def test_what_the_cache_gives_back_is_an_effect_and_what_its_caller_frees_is_none() -> None:
    """One effect for each call, whatever it makes of further ones; an empty call is none."""
    cache = Cache()
    assert cache.apply(1, ops.Alloc(4)) == out.Outcome(out.Slots((2, 3, 4, 5)))
    assert cache.apply(2, ops.Free((ops.Span(1, 0, 2),))) == out.Outcome(out.Done())
    effects = (out.Effect("free", (0, 1)), out.Effect("free", (9,)))
    assert cache.apply(3, ops.Evict(2)) == out.Outcome(out.Evicted(2), effects)
    assert cache.apply(4, ops.Evict(0)).effects == (out.Effect("free", (9,)),)
    assert cache.pool.came == [2, 3, 0, 1, 9, 9]
    assert cache.gave_back((8, 7)) == 2
    assert cache.effects[-1] == out.Effect("free", (8, 7))
    assert cache.apply(5, ops.Alloc(5)).result == out.NoRoom()


def test_a_refusal_has_its_documented_name_and_is_no_effect() -> None:
    """By the class of the error or one above it; every other error keeps its own name."""
    cache = Cache()
    assert cache.apply(1, ops.Free((ops.Span(0, -2, 0),))) == out.Outcome(out.Failed("OwnershipError"))
    assert cache.apply(2, ops.Evict(1)).effects == (out.Effect("free", (0,)), out.Effect("free", (9,)))
    cache.released = None  # type: ignore[assignment]
    assert cache.apply(3, ops.Match(ops.Key((1,)))).result == out.Matched((2, 3), 2, 2)
    assert cache.apply(4, ops.Lock(3)).result == out.Locked(1)
    assert cache.apply(5, ops.Unlock(4)).result == out.Failed("AttributeError")


def test_an_insert_adopts_the_whole_pages_that_were_not_there() -> None:
    cache = Cache()
    found = cache.apply(1, ops.Match(ops.Key((1, 2, 3)))).result
    assert found == out.Matched((2, 3), 2, 2)
    made = cache.apply(2, ops.Insert(ops.Key((1, 2, 3, 4, 5)), (SPAN, ops.Span(0, 7, 9)))).result
    assert made == out.Inserted(2, ((2, 4),), 4)
    assert cache.apply(3, ops.Insert(ops.Key((1, 2, 3)), (SPAN,))).result == out.Inserted(2, (), 2)


class Answers(PrefixAdapter):
    """An adapter that gives the same answer to every call."""

    def __init__(self, answer: Any, sizes: Any = None) -> None:
        super().__init__("x", {"page_size": 1})
        self.match = self.insert = self.alloc = self.evict = lambda *asked: answer  # type: ignore[method-assign]
        self.sizes = lambda: sizes or {}  # type: ignore[method-assign]


MATCH, INSERT = ops.Match(ops.Key((1,))), ops.Insert(ops.Key((1, 2)), (ops.Span(0, 4, 6),))


@pytest.mark.parametrize(
    ("answer", "operation", "message"),
    [
        (1, INSERT, "insert returned 1; it must return how many tokens it had, and a node, or None"),
        ((1.0, "node"), INSERT, "insert returned (1.0, 'node'); it must return how many"),
        (None, ops.Evict(1), "evict returned None; it must return how many tokens went"),
        ([4], MATCH, "match returned [4]; it must return slots and a node"),
        (([4.0], "node"), MATCH, "match returned [4.0]; it must return integers in a list"),
        (torch.tensor([4.0]), ops.Alloc(1), "alloc returned tensor([4.]); it must return integers"),
    ],
)
def test_an_answer_of_another_form_is_the_adapters_fault(
    answer: Any, operation: ops.Operation, message: str
) -> None:
    """Not an error of the cache, whose laws it would be held against."""
    with pytest.raises(AdapterError, match=re.escape(message)):
        Answers(answer).apply(1, operation)


def test_an_insert_without_a_node_gives_none_to_hold() -> None:
    cache = Answers((1, None))
    assert cache.apply(1, INSERT).result == out.Inserted(1, ((1, 2),), None)
    assert cache.apply(2, ops.Lock(1)).result == out.Unsupported("no node to hold")


def test_counts_of_numpy_are_integers() -> None:
    """And nothing else becomes one: what is wrong is for the smoke test to tell."""
    outcome = Answers(np.int64(3), {"total_size": np.int64(2), "evictable_size": 2.0}).apply(1, ops.Evict(1))
    assert outcome == out.Outcome(out.Evicted(3), (), {"total_size": 2, "evictable_size": 2.0})
    told = [type(it) for it in (outcome.result.full, *outcome.sizes.values())]  # type: ignore[union-attr]
    assert told == [int, int, float]


def test_holds_are_released_as_they_are_named() -> None:
    """R6, S5: by node and token of the hold, or those of another; a token that is an object is not told."""
    cache = Cache()
    cache.apply(1, ops.Match(ops.Key((1, 2))))
    cache.apply(2, ops.Match(ops.Key(())))
    assert cache.apply(3, ops.Lock(1)).result == out.Locked(2)
    assert cache.apply(4, ops.Lock(2)).result == out.Locked(None)
    assert cache.apply(5, ops.Lock(3)).result == out.Locked(2)
    for step, unlock in enumerate((ops.Unlock(3), ops.Unlock(4, at=1, token=5), ops.Unlock(5, token=0)), 6):
        assert cache.apply(step, unlock).result == out.Done()
    assert cache.released == [((1, 2), 2), ((1, 2), 2), ((1, 2), None)]
    with pytest.raises(ProgramError, match="step 9 gave no node"):
        cache.apply(9, ops.Lock(9))
    with pytest.raises(ProgramError, match="step 1 took no hold"):
        cache.apply(9, ops.Unlock(1))


def test_a_chain_of_blocks_has_the_hashes_before_as_parents() -> None:
    """C3: nobody but the adapter need know that parents can be left out."""
    blocks = Blocks()
    blocks.apply(1, ops.RegisterBlocks((SPAN,), (11, 12, 13)))
    blocks.apply(2, ops.RegisterBlocks((SPAN,), (11, 12, 13), (9, 0, 12)))
    assert blocks.asked == [([4, 5, 6], [11, 12, 13], [0, 11, 12]), ([4, 5, 6], [11, 12, 13], [9, 0, 12])]


def test_what_is_lost_is_told_with_its_hashes_in_order() -> None:
    """C6: as many calls as there were."""
    effects = Blocks().apply(1, ops.ReleaseBlocks((SPAN,))).effects
    assert effects == (out.Effect("callback", (4, 5, 6), (3, 7)), out.Effect("callback", (4,)))


@pytest.mark.parametrize(
    ("adapter", "operations"),
    [
        (SlotAdapter, [ops.Alloc(1), ops.Free(()), ops.Clear()]),
        (
            PrefixAdapter,
            [
                ops.Alloc(1),
                ops.Free(()),
                ops.Match(ops.Key(())),
                ops.Insert(ops.Key(())),
                ops.Evict(1),
                ops.Reset(),
            ],
        ),
        (
            BlockAdapter,
            [
                *(
                    ops.AllocBlocks(1),
                    ops.RetainBlocks(()),
                    ops.ReleaseBlocks(()),
                    ops.RegisterBlocks((), ()),
                ),
                *(ops.StampBlocks(()), ops.SetClock(1), ops.Inspect(), ops.Reset()),
            ],
        ),
    ],
)
def test_what_is_not_written_is_unsupported(adapter: type[Any], operations: list[ops.Operation]) -> None:
    """And not an error of the implementation."""
    made = adapter("none", {"page_size": 1})
    assert {type(made.apply(step, it).result) for step, it in enumerate(operations, 1)} == {out.Unsupported}


def test_holds_that_are_not_written_are_unsupported() -> None:
    class Bare(PrefixAdapter):
        def match(self, key: ops.Key) -> tuple[Any, Any]:
            return (), key

    bare = Bare("bare", {"page_size": 1})
    bare.apply(1, ops.Match(ops.Key(())))
    assert bare.apply(2, ops.Lock(1)).result == out.Unsupported("lock")
    bare.keep_hold(2, None, None)
    assert bare.apply(3, ops.Unlock(2)).result == out.Unsupported("unlock")
