"""Shorter keys, and fewer of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymllm.conformance.record_reduction import merge_tokens, shorten_keys
from pymllm.history.operations import Alloc, Evict, Insert, Key, Match, Operation, Span
from tests.unit.tiny_player import reduction_of


def tokens(operations: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [it.key.tokens for it in operations if hasattr(it, "key")]


def test_what_keys_share_is_cut_from_all() -> None:
    """They still begin alike, and part where they parted."""
    operations: list[Operation] = [Match(Key((1, 2, 3, 4, 5, 6, 7))), Match(Key((1, 2, 3, 4, 5, 6, 8)))]

    def part_at_the_end(them: Sequence[Operation]) -> bool:
        one, other = tokens(them)
        return len(one) > 1 and one[:-1] == other[:-1] and one != other

    reduction = reduction_of(operations, part_at_the_end)
    shorten_keys(reduction)
    assert [len(it) for it in tokens(reduction.operations)] == [2, 2]
    assert part_at_the_end(reduction.operations)


def test_slots_go_with_their_tokens() -> None:
    """And what is counted in them."""
    insert = Insert(
        Key((1, 2, 3, 4)), (Span(1, 0, 1), Span(2, 0, 3)), prev_prefix_len=3, swa_evicted_seqlen=2
    )
    reduction = reduction_of(
        [Alloc(1), Alloc(3), insert], lambda them: len(tokens(them)) == 1 and 4 in tokens(them)[0]
    )
    shorten_keys(reduction)
    assert reduction.operations[2] == Insert(Key((4,)), (Span(2, 2, 3),))


def test_pages_stay_whole_where_that_matters() -> None:
    """First pages are cut, then what is left over."""
    reduction = reduction_of(
        [Match(Key((1, 1, 1, 1, 2, 2, 2, 2, 3)))],
        lambda them: len(tokens(them)[0]) // 4 and len(tokens(them)[0]) % 4 in (0, 1),
        {"page_size": 4},
    )
    shorten_keys(reduction)
    assert len(tokens(reduction.operations)[0]) == 4


def test_one_key_alone_is_shortened_where_all_cannot_be() -> None:
    """Down to what it needs."""
    operations: list[Operation] = [Match(Key((1, 2, 3, 4))), Match(Key((1, 2, 3, 4))), Evict(1)]
    reduction = reduction_of(operations, lambda them: tokens(them)[0] == (1, 2, 3, 4))
    shorten_keys(reduction)
    assert tokens(reduction.operations) == [(1, 2, 3, 4), ()]


def test_families_become_one() -> None:
    """And tokens count from 1."""
    operations: list[Operation] = [
        Match(Key((70, 71))),
        Match(Key((80, 71))),
        Match(Key(((90, 70), (71, 71)))),
    ]
    reduction = reduction_of(operations, lambda them: len(set(tokens(them))) >= 2)
    merge_tokens(reduction)
    assert tokens(reduction.operations) == [(1, 1), (1, 1), ((1, 1), (1, 1))]


def test_what_must_differ_stays_different() -> None:
    """Two families of two."""
    operations: list[Operation] = [Match(Key((70,))), Match(Key((80,)))]
    reduction = reduction_of(operations, lambda them: len(set(tokens(them))) == 2)
    merge_tokens(reduction)
    assert tokens(reduction.operations) == [(1,), (2,)]
