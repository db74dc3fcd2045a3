"""Smaller records: keys, slots, pools and pages, fields and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pymllm.conformance.record_reduction import (
    cut_spans,
    lower_numbers,
    make_usual,
    merge_tokens,
    shorten_keys,
    shrink_allocations,
    shrink_pages,
    shrink_pools,
    untangle_inserts,
)
from pymllm.conformance.reduction import Program
from pymllm.history.files import Config
from pymllm.history.operations import (
    AddRequest,
    Alloc,
    AllocBlocks,
    AllocTrack,
    Evict,
    Fault,
    Free,
    Insert,
    Key,
    Lock,
    Match,
    Operation,
    RegisterBlocks,
    ReleaseBlocks,
    Span,
    Unlock,
    WriteKV,
)
from tests.unit.tiny_player import reduction_in, reduction_of


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


@pytest.mark.parametrize(
    ("start", "stop", "left"),
    [
        (0, 0, (Span(1, 0, 4), Span(2, 1, 3))),
        (1, 3, (Span(1, 0, 1), Span(1, 3, 4), Span(2, 1, 3))),
        (3, 5, (Span(1, 0, 3), Span(2, 2, 3))),
        (0, 4, (Span(2, 1, 3),)),
        (0, 9, ()),
    ],
)
def test_places_are_cut_over_all_spans(start: int, stop: int, left: tuple[Span, ...]) -> None:
    """As from a row of the numbers themselves."""
    assert cut_spans((Span(1, 0, 4), Span(2, 1, 3)), start, stop) == left


def test_what_meets_again_is_one_span() -> None:
    """Two neighbours of one step."""
    assert cut_spans((Span(1, 0, 2), Span(3, 0, 1), Span(1, 2, 4)), 2, 3) == (Span(1, 0, 4),)


def test_an_allocation_gives_what_is_named_and_no_more() -> None:
    """Whole pages; spans follow."""
    operations = [Alloc(12), Insert(Key((1,) * 4), (Span(1, 4, 8),)), Free((Span(1, 10, 12),))]
    reduction = reduction_of(operations, lambda them: len(them) == 3, {"page_size": 4})
    shrink_allocations(reduction)
    assert reduction.operations == (
        Alloc(8),
        Insert(Key((1,) * 4), (Span(1, 0, 4),)),
        Free((Span(1, 6, 8),)),
    )


def test_blocks_are_allocated_likewise() -> None:
    """One by one, whatever a page is."""
    reduction = reduction_of(
        [AllocBlocks(9), ReleaseBlocks((Span(1, 7, 8), Span(1, 2, 3)))], lambda them: len(them) == 2
    )
    shrink_allocations(reduction)
    assert reduction.operations == (AllocBlocks(2), ReleaseBlocks((Span(1, 1, 2), Span(1, 0, 1))))


def test_inserts_take_their_slots_from_one_allocation() -> None:
    """What a match gave is no longer needed."""
    operations = [
        Alloc(2),
        Match(Key((1, 2))),
        Alloc(1),
        Insert(Key((1, 2, 3)), (Span(2, 0, 2), Span(3, 0, 1))),
        Insert(Key((1, 2)), (Span(1, 0, 2),)),
    ]
    reduction = reduction_of(operations, lambda them: len(them) == 5)
    untangle_inserts(reduction)
    assert reduction.operations[2:] == (
        Alloc(3),
        Insert(Key((1, 2, 3)), (Span(3, 0, 3),)),
        Insert(Key((1, 2)), (Span(1, 0, 2),)),
    )


def test_one_insert_is_untangled_where_all_cannot_be() -> None:
    """The others keep what they have."""
    tangled = Insert(Key((1, 2)), (Span(1, 0, 1), Span(2, 0, 1)))
    operations = [Alloc(1), Alloc(1), tangled, tangled]
    reduction = reduction_of(operations, lambda them: len(them) == 4 and them[2] == tangled)
    untangle_inserts(reduction)
    assert reduction.operations[2] == tangled
    assert reduction.operations[3] == Insert(Key((1, 2)), (Span(2, 0, 2),))


def test_each_number_goes_down_as_far_as_it_can() -> None:
    """What is no number stays."""
    config = {"slots": 48, "window": None, "pool": "token", "caching": True, "track_slots": 3}
    reduction = reduction_in([Alloc(1)], lambda it: int(it.config["slots"] or 0) >= 5, config)
    shrink_pools(reduction)
    assert reduction.program.config == {**config, "slots": 5, "track_slots": 1}


def test_a_pool_goes_down_page_by_page() -> None:
    """A1: a size that leaves a part of a page over is nobody's."""
    tried: list[Config] = []

    def is_enough(program: Program) -> bool:
        tried.append(program.config)
        return program.config["page_size"] == 4 and int(program.config["slots"] or 0) >= 9

    config: Config = {"page_size": 4, "slots": 48, "swa_slots": 36, "window": 6}
    reduction = reduction_in([Alloc(1)], is_enough, config)
    shrink_pools(reduction)
    assert reduction.program.config == {"page_size": 4, "slots": 12, "swa_slots": 4, "window": 1}
    assert len(tried) > 5
    assert all(int(it["slots"] or 0) % int(it["page_size"] or 0) == 0 for it in tried)


def test_a_page_becomes_a_token() -> None:
    """Keys, slots and what is counted in tokens with it; a track slot is one anyhow."""
    operations = [
        Alloc(8),
        AllocTrack(),
        Insert(Key((1, 1, 1, 1, 2, 2, 2, 2)), (Span(1, 0, 8),), 4, 4, state=Span(2, 0, 1)),
        Evict(5, 8),
        Free((Span(1, 4, 8),)),
    ]
    config = {"page_size": 4, "slots": 48, "swa_slots": 36, "window": 6}
    reduction = reduction_of(operations, lambda them: len(them) == 5, config)
    shrink_pages(reduction)
    assert reduction.program.config == {"page_size": 1, "slots": 12, "swa_slots": 9, "window": 2}
    assert reduction.operations == (
        Alloc(2),
        AllocTrack(),
        Insert(Key((1, 2)), (Span(1, 0, 2),), 1, 1, state=Span(2, 0, 1)),
        Evict(2, 2),
        Free((Span(1, 1, 2),)),
    )


def test_numbers_in_a_row_stay() -> None:
    """They are no spans of slots: rows of a buffer, hashes."""
    operations = [WriteKV(0, (4, 5), ((1,), (2,)), ((3,), (4,)))]
    reduction = reduction_of(operations, lambda them: len(them) == 1, {"page_size": 4, "size": 8})
    shrink_pages(reduction)
    assert reduction.operations == tuple(operations)
    assert reduction.program.config["page_size"] == 1


def test_pages_of_one_stay() -> None:
    """And so does what has no pages."""
    for config in ({"page_size": 1}, {}):
        reduction = reduction_of([Alloc(4)], lambda them: True, config)
        shrink_pages(reduction)
        assert reduction.operations == (Alloc(4),)


def test_forms_and_namespaces_become_the_usual_ones() -> None:
    """In all operations at once where that does, else where it does."""
    keys = [Match(Key((1,), "a", "array")), Match(Key((2,), "b", "array"))]
    reduction = reduction_of(
        keys, lambda them: {it.key.extra_key for it in them} in ({"a", "b"}, {None, "b"})
    )
    make_usual(reduction)
    assert reduction.operations == (Match(Key((1,))), Match(Key((2,), "b")))


def test_another_token_or_node_is_not_passed_without_need() -> None:
    """A field that names a step and need not be there."""
    operations = [Match(Key((1,))), Lock(1), Unlock(2, at=1, token=0)]
    reduction = reduction_of(operations, lambda them: len(them) == 3 and them[2].token == 0)
    make_usual(reduction)
    assert reduction.operations[2] == Unlock(2, token=0)


def test_numbers_go_down_as_far_as_they_can() -> None:
    """To nothing, or to the last that does."""
    reduction = reduction_of([Evict(100, 7), Fault("free", 9)], lambda them: them[0].tokens >= 37)
    lower_numbers(reduction)
    assert reduction.operations == (Evict(37), Fault("free", 0))


def test_negative_numbers_go_up() -> None:
    """The sign may be what matters."""
    reduction = reduction_of([Evict(-100)], lambda them: them[0].tokens < 0)
    lower_numbers(reduction)
    assert reduction.operations == (Evict(-1),)


def test_rows_lose_items_together() -> None:
    """Blocks and their hashes stay pairs."""
    blocks = tuple(Span(1, place, place + 1) for place in range(9))
    operations = [AllocBlocks(9), RegisterBlocks(blocks, tuple(range(101, 110)))]
    reduction = reduction_of(
        operations,
        lambda them: len(them) == 2 and Span(1, 4, 5) in them[1].blocks and len(them[1].hashes) > 0,
    )
    lower_numbers(reduction)
    assert reduction.operations[1] == RegisterBlocks((Span(1, 4, 5),), (1,))


def test_prompts_get_short_and_plain() -> None:
    """Few tokens, of few kinds."""
    reduction = reduction_of([AddRequest((9, 8, 9, 7))], lambda them: len(set(them[0].tokens)) >= 2)
    lower_numbers(reduction)
    assert len(reduction.operations[0].tokens) == 2
    assert sorted(reduction.operations[0].tokens) == [1, 2]


def test_references_are_no_numbers() -> None:
    """A hold of another step is another hold."""
    operations = [Match(Key((1,))), Match(Key((2,))), Lock(2), Free((Span(0, 1, 2),))]
    reduction = reduction_of(operations, lambda them: len(them) == 4)
    lower_numbers(reduction)
    assert reduction.operations[2] == Lock(2)
