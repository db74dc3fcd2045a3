"""The white-box check of a context notices every kind of damage that it looks for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.live_request import Region
from pymllm.errors import InvariantViolation
from pymllm.invariants.blocks import check_dynamic_context


def request(*tokens: int) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(tokens), finished_chunk_token_count=0)


def make_context(mamba_slots: int = 4) -> DynamicInferenceContext:
    """Row 0 is paused, 1 decodes, 2 has a chunk, 3 waits, 4 is empty; 0 and 1 share their first block."""
    context = DynamicInferenceContext(
        max_requests=5,
        num_blocks=13,
        max_blocks_per_request=4,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=mamba_slots,
        num_mamba_layers=1 if mamba_slots else 0,
        paused_limit=2,
    )

    def compute(batch: Any) -> list[int]:
        return [9] * len(batch)

    for prompt in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [7, 8, 9, 10, 11, 12]):
        context.add_request(request(*prompt), 5)
        context.step(compute)
    context.pause(context.requests[0])
    context.add_request(request(20, 21, 22), 2)
    return context


@pytest.mark.parametrize("mamba_slots", [0, 4])
def test_a_sound_context_passes(mamba_slots: int) -> None:
    """C1, C3, E2, E3: with requests in every region, and in a step."""
    context = make_context(mamba_slots)
    assert [live.region for live in context._rows] == list(Region)
    assert len(set(context.request_to_kv_block_ids[:2, 0].tolist())) == 1
    check_dynamic_context(context)
    context.begin_step()
    check_dynamic_context(context)


def live_at(context: Any, row: int) -> Any:
    return context._rows._requests[row]


def lose_a_free_block(context: Any) -> None:
    context.kv_block_allocator.pool_avail -= 1


def lose_a_slot(context: Any) -> None:
    context.mamba_slot_allocator._books.free_count -= 1


def believe_in_another_row(context: Any) -> None:
    live_at(context, 1).row = 2


def name_another_block(context: Any) -> None:
    context.request_to_kv_block_ids[1, 1] = 0


def keep_a_row_behind(context: Any) -> None:
    context.request_to_kv_block_ids[4, 0] = 1


def use_a_block_tomorrow(context: Any) -> None:
    context.kv_block_allocator.block_timestamps[1] = context.prefix_cache_lru_clock + 1


def share_a_state(context: Any) -> None:
    context.mamba_metadata.request_to_mamba_state_idx[1] = 0


def lose_a_state(context: Any) -> None:
    context._rows._free_states.clear()


def forget_the_state_of_a_request(context: Any) -> None:
    context.mamba_metadata.request_to_mamba_state_idx[1] = -1


def keep_a_state_behind(context: Any) -> None:
    context.mamba_metadata.request_to_mamba_state_idx[4] = 1


def forget_a_request(context: Any) -> None:
    del context._live_by_id[id(live_at(context, 2).req)]


def turn_rows_around(context: Any) -> None:
    rows = context._rows
    one, two = live_at(context, 0), live_at(context, 1)
    rows._swap(one, two)


def miscount_a_region(context: Any) -> None:
    context._rows._counts[Region.WAITING] += 1


def decode_without_a_prompt(context: Any) -> None:
    live_at(context, 1).computed = 4


def wait_with_a_chunk(context: Any) -> None:
    live_at(context, 3).chunk = 1


def lower_the_limit(context: Any) -> None:
    context.kv_block_allocator.paused_limit = 1


def reference_a_block_once_more(context: Any) -> None:
    context.kv_block_allocator.retain_memory_blocks([0])


def have_a_block_twice(context: Any) -> None:
    live = live_at(context, 1)
    live.blocks[1] = live.blocks[0]
    context.request_to_kv_block_ids[1, 1] = live.blocks[0]


def compute_more_than_there_is_room_for(context: Any) -> None:
    live_at(context, 1).computed = 9


def share_what_is_not_registered(context: Any) -> None:
    live_at(context, 2).matched = 1


def exchange_tokens(context: Any) -> None:
    context._index._tokens[0, 0] = 99


DAMAGE: list[tuple[Callable[[Any], None], str, str]] = [
    (lose_a_free_block, "C1", "not free, referenced or cached"),
    (lose_a_slot, "C2", "not free, mapped or in hand"),
    (believe_in_another_row, "E2", "in row 1 believes to be in row 2"),
    (name_another_block, "E2", r"rows \[1\] of the table"),
    (keep_a_row_behind, "E2", r"rows \[4\] of the table"),
    (use_a_block_tomorrow, "X3", r"blocks \[1\] have stamps"),
    (share_a_state, "E2", "live states are not free or held once each"),
    (lose_a_state, "E3", "live states .* are lost"),
    (forget_the_state_of_a_request, "E3", r"live states \[1\] are lost"),
    (keep_a_state_behind, "E2", "without a request have live states"),
    (forget_a_request, "E3", "not those that were added"),
    (turn_rows_around, "E2", "out of order"),
    (miscount_a_region, "E2", "counts are"),
    (decode_without_a_prompt, "E2", "row 1 is in DECODE, not WAITING"),
    (wait_with_a_chunk, "E2", "row 3 is in WAITING, not PREFILL"),
    (lower_the_limit, "C1", "keep 2 blocks, the limit is 1"),
    (reference_a_block_once_more, "E3", r"blocks \[0\] are referenced"),
    (have_a_block_twice, "E2", "row 1 has a block twice"),
    (compute_more_than_there_is_room_for, "C1", "has room for 8 tokens and needs 9"),
    (share_what_is_not_registered, "C3", "not registered below -1"),
    (exchange_tokens, "C3", "block 0 holds tokens of hash"),
]


@pytest.mark.parametrize(("damage", "law", "message"), DAMAGE, ids=[d.__name__ for d, _, _ in DAMAGE])
def test_damage_is_noticed(damage: Callable[[Any], None], law: str, message: str) -> None:
    """Each check is seen to fail, and names its law."""
    context = make_context()
    damage(context)
    with pytest.raises(InvariantViolation, match=message) as caught:
        check_dynamic_context(context)
    assert caught.value.law == law
