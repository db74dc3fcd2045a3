"""Smaller records: keys, slots, pools and pages, fields and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import Key, Operation, Span
from tests.unit.tiny_player import reduction_in, reduction_of

TANGLED = ops.Insert(Key((1, 2)), (Span(1, 0, 1), Span(2, 0, 1)))
BLOCKS = tuple(Span(1, place, place + 1) for place in range(9))
ROWS = ops.WriteKV(0, (4, 5), ((1,), (2,)), ((3,), (4,)))
PAGED: Config = {"page_size": 4, "slots": 48, "swa_slots": 36, "window": 6}


def tokens(operations: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [it.key.tokens for it in operations if hasattr(it, "key")]


def keys(*all_tokens: tuple[Any, ...]) -> list[Operation]:
    return [ops.Match(Key(each)) for each in all_tokens]


def part_at_the_end(them: Sequence[Operation]) -> bool:
    one, other = tokens(them)
    return len(one) > 1 and one[:-1] == other[:-1] and one != other


def are_all(count: int) -> Callable[[Sequence[Any]], object]:
    """Break the law as long as no operation goes."""
    return lambda them: len(them) == count


@pytest.mark.parametrize(
    ("make_smaller", "operations", "breaks", "left"),
    [
        pytest.param(
            *(shorten_keys, keys((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 8)), part_at_the_end),
            keys((6, 7), (6, 8)),
            id="what keys share is cut from all",
        ),
        pytest.param(
            shorten_keys,
            [
                *(ops.Alloc(1), ops.Alloc(3)),
                ops.Insert(Key((1, 2, 3, 4)), (Span(1, 0, 1), Span(2, 0, 3)), 3, 2),
            ],
            lambda them: len(tokens(them)) == 1 and 4 in tokens(them)[0],
            [ops.Alloc(1), ops.Alloc(3), ops.Insert(Key((4,)), (Span(2, 2, 3),))],
            id="slots go with their tokens, and what is counted in them",
        ),
        pytest.param(
            *(shorten_keys, keys((1, 2, 3, 4), (1, 2, 3, 4)), lambda them: tokens(them)[0] == (1, 2, 3, 4)),
            keys((1, 2, 3, 4), ()),
            id="one key alone is shortened where all cannot be",
        ),
        pytest.param(
            *(merge_tokens, keys((70, 71), (80, 71), ((90, 70), (71, 71)))),
            lambda them: len(set(tokens(them))) >= 2,
            keys((1, 1), (1, 1), ((1, 1), (1, 1))),
            id="families become one",
        ),
        pytest.param(
            *(merge_tokens, keys((70,), (80,)), lambda them: len(set(tokens(them))) == 2, keys((1,), (2,))),
            id="what must differ stays different",
        ),
        pytest.param(
            *(shrink_allocations, [ops.AllocBlocks(9), ops.ReleaseBlocks((Span(1, 7, 8), Span(1, 2, 3)))]),
            *(are_all(2), [ops.AllocBlocks(2), ops.ReleaseBlocks((Span(1, 1, 2), Span(1, 0, 1)))]),
            id="blocks are allocated one by one",
        ),
        pytest.param(
            untangle_inserts,
            [
                *(ops.Alloc(2), ops.Match(Key((1, 2))), ops.Alloc(1)),
                *(
                    ops.Insert(Key((1, 2, 3)), (Span(2, 0, 2), Span(3, 0, 1))),
                    ops.Insert(Key((1, 2)), (Span(1, 0, 2),)),
                ),
            ],
            are_all(5),
            [
                *(ops.Alloc(2), ops.Match(Key((1, 2))), ops.Alloc(3)),
                *(ops.Insert(Key((1, 2, 3)), (Span(3, 0, 3),)), ops.Insert(Key((1, 2)), (Span(1, 0, 2),))),
            ],
            id="inserts take their slots from one allocation",
        ),
        pytest.param(
            *(untangle_inserts, [ops.Alloc(1), ops.Alloc(1), TANGLED, TANGLED]),
            lambda them: len(them) == 4 and them[2] == TANGLED,
            [ops.Alloc(1), ops.Alloc(2), TANGLED, ops.Insert(Key((1, 2)), (Span(2, 0, 2),))],
            id="one insert is untangled where all cannot be",
        ),
        pytest.param(
            *(make_usual, [ops.Match(Key((1,), "a", "array")), ops.Match(Key((2,), "b", "array"))]),
            lambda them: {it.key.extra_key for it in them} in ({"a", "b"}, {None, "b"}),
            [ops.Match(Key((1,))), ops.Match(Key((2,), "b"))],
            id="forms and namespaces become the usual ones, all at once or where that does",
        ),
        pytest.param(
            *(make_usual, [ops.Match(Key((1,))), ops.Lock(1), ops.Unlock(2, at=1, token=0)]),
            lambda them: len(them) == 3 and them[2].token == 0,
            [ops.Match(Key((1,))), ops.Lock(1), ops.Unlock(2, token=0)],
            id="another token or node is not passed without need",
        ),
        pytest.param(
            *(lower_numbers, [ops.Evict(100, 7), ops.Fault("free", 9)], lambda them: them[0].tokens >= 37),
            [ops.Evict(37), ops.Fault("free", 0)],
            id="numbers go down as far as they can",
        ),
        pytest.param(
            *(lower_numbers, [ops.Evict(-100)], lambda them: them[0].tokens < 0, [ops.Evict(-1)]),
            id="negative numbers go up",
        ),
        pytest.param(
            *(lower_numbers, [ops.AllocBlocks(9), ops.RegisterBlocks(BLOCKS, tuple(range(101, 110)))]),
            lambda them: len(them) == 2 and Span(1, 4, 5) in them[1].blocks and len(them[1].hashes) > 0,
            [ops.AllocBlocks(0), ops.RegisterBlocks((Span(1, 4, 5),), (1,))],
            id="rows lose items together",
        ),
        pytest.param(
            *(lower_numbers, [ops.AddRequest((9, 8, 9, 7))], lambda them: len(set(them[0].tokens)) >= 2),
            [ops.AddRequest((2, 1))],
            id="prompts get short and plain",
        ),
        pytest.param(
            *(lower_numbers, [*keys((1,), (2,)), ops.Lock(2), ops.Free((Span(0, 1, 2),))], are_all(4)),
            [*keys((1,), (2,)), ops.Lock(2), ops.Free((Span(0, 1, 2),))],
            id="references are no numbers",
        ),
    ],
)
def test_a_pass_leaves_what_the_law_needs(
    make_smaller: Callable[[Any], None],
    operations: list[Operation],
    breaks: Callable[[tuple[Any, ...]], object],
    left: list[Operation],
) -> None:
    """Each way to make records smaller, on a program that breaks the law by a predicate."""
    reduction = reduction_of(operations, breaks)
    make_smaller(reduction)
    assert list(reduction.operations) == left


def test_pages_stay_whole_where_that_matters() -> None:
    """First pages are cut, then what is left over."""
    reduction = reduction_of(
        keys((1, 1, 1, 1, 2, 2, 2, 2, 3)),
        lambda them: len(tokens(them)[0]) // 4 and len(tokens(them)[0]) % 4 in (0, 1),
        {"page_size": 4},
    )
    shorten_keys(reduction)
    assert len(tokens(reduction.operations)[0]) == 4


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
    """As from a row of the numbers themselves; what meets again is one span."""
    assert cut_spans((Span(1, 0, 4), Span(2, 1, 3)), start, stop) == left
    assert cut_spans((Span(1, 0, 2), Span(3, 0, 1), Span(1, 2, 4)), 2, 3) == (Span(1, 0, 4),)


def test_an_allocation_gives_what_is_named_and_no_more() -> None:
    """Whole pages; spans follow."""
    operations = [ops.Alloc(12), ops.Insert(Key((1,) * 4), (Span(1, 4, 8),)), ops.Free((Span(1, 10, 12),))]
    reduction = reduction_of(operations, are_all(3), {"page_size": 4})
    shrink_allocations(reduction)
    freed = ops.Free((Span(1, 6, 8),))
    assert reduction.operations == (ops.Alloc(8), ops.Insert(Key((1,) * 4), (Span(1, 0, 4),)), freed)


def test_each_number_of_a_pool_goes_down_as_far_as_it_can() -> None:
    """What is no number stays."""
    config = {"slots": 48, "window": None, "pool": "token", "caching": True, "track_slots": 3}
    reduction = reduction_in([ops.Alloc(1)], lambda it: int(it.config["slots"] or 0) >= 5, config)
    shrink_pools(reduction)
    assert reduction.program.config == {**config, "slots": 5, "track_slots": 1}


def test_a_pool_goes_down_page_by_page() -> None:
    """A1: a size that leaves a part of a page over is nobody's."""
    tried: list[Config] = []

    def is_enough(program: Program) -> bool:
        tried.append(program.config)
        return program.config["page_size"] == 4 and int(program.config["slots"] or 0) >= 9

    reduction = reduction_in([ops.Alloc(1)], is_enough, PAGED)
    shrink_pools(reduction)
    assert reduction.program.config == {"page_size": 4, "slots": 12, "swa_slots": 4, "window": 1}
    assert len(tried) > 5
    assert all(int(it["slots"] or 0) % int(it["page_size"] or 0) == 0 for it in tried)


def test_a_page_becomes_a_token() -> None:
    """Keys, slots and what is counted in tokens with it; a track slot is one anyhow, and so is a number."""
    state = Span(2, 0, 1)
    operations = [
        *(
            ops.Alloc(8),
            ops.AllocTrack(),
            ops.Insert(Key((1, 1, 1, 1, 2, 2, 2, 2)), (Span(1, 0, 8),), 4, 4, state=state),
        ),
        *(ops.Evict(5, 8), ops.Free((Span(1, 4, 8),)), ROWS),
    ]
    reduction = reduction_of(operations, are_all(6), PAGED)
    shrink_pages(reduction)
    assert reduction.program.config == {"page_size": 1, "slots": 12, "swa_slots": 9, "window": 2}
    assert reduction.operations == (
        *(ops.Alloc(2), ops.AllocTrack(), ops.Insert(Key((1, 2)), (Span(1, 0, 2),), 1, 1, state=state)),
        *(ops.Evict(2, 2), ops.Free((Span(1, 1, 2),)), ROWS),
    )


@pytest.mark.parametrize("config", [{"page_size": 1}, {}])
def test_pages_of_one_stay(config: Config) -> None:
    """And so does what has no pages."""
    reduction = reduction_of([ops.Alloc(4)], lambda them: True, config)
    shrink_pages(reduction)
    assert reduction.operations == (ops.Alloc(4),)
