"""An engine over an adapter: calls become operations; rows are its own, slots are the adapter's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, UsageError
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Slots, Unsupported
from pymllm.machines.driven_cache import (
    Carrier,
    DrivenAllocator,
    DrivenCache,
    DrivenStates,
    driven_config,
    make_driven_cache,
    make_driven_pools,
)
from pymllm.machines.examiner import Examiner
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.workloads.engine_pools import EnginePools

ROWS = 2
PLAIN: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}


class Driven:
    """An examined adapter with a carrier and a cache over it, and an engine's states where asked for."""

    def __init__(
        self, adapter: str = "radix-window", *, states: bool = False, **changes: int | str | bool | None
    ) -> None:
        self.examiner = Examiner(make_adapter(adapter, {**PLAIN, **changes}))
        judge = self.examiner.judge
        self.carrier, self.tracks = Carrier(self.examiner.do, judge), judge.model.tracks
        self.states: Any = DrivenStates(self.carrier, ROWS, self.tracks) if states and self.tracks else None
        self.cache = DrivenCache(self.carrier, self.states)

    def alloc(self, tokens: int) -> torch.Tensor:
        """Take slots."""
        return torch.tensor(self.carrier.do(ops.Alloc(tokens), Slots).slots)

    def save(self, token: int, working: int = 1) -> int:
        """Cache a token and the state of a working row, and return the row that the state is in."""
        row: int = self.states.alloc_track_slot()
        self.states.copy_states(working, row)
        self.cache.insert(RadixKey([token]), self.alloc(1), mamba_value=torch.tensor([row]))
        return row

    def pools(self) -> EnginePools:
        """Make the pools of an engine for two requests."""
        header = self.examiner.history.header
        config = driven_config(header, max_running=2)
        return make_driven_pools(self.carrier, make_driven_cache(self.carrier, config), config, header)

    def operations(self) -> list[Operation]:
        """List all that was done."""
        return [step.operation for step in self.examiner.history.steps]


def test_each_call_is_one_operation_with_nodes_holds_and_slots_by_step() -> None:
    """X3: a program that names nothing which the adapter chose can be run again on any other."""
    driven = Driven()
    cache = driven.cache
    slots = driven.alloc(4)
    inserted = cache.insert(RadixKey([70, 71, 70], "a"), slots[:3])
    assert (inserted.prefix_len, inserted.adopted, inserted.last_node) == (0, ((0, 3),), 2)
    found = cache.match_prefix(RadixKey(np.array([70, 71, 72]), "a"))
    assert (found.indices.tolist(), found.prefix_len) == (slots[:2].tolist(), 2)
    assert found.indices.dtype == torch.int64
    token = cache.inc_lock_ref(found.last_node)
    cache.insert(RadixKey([70, 71, 73], "a"), torch.cat([found.indices, slots[3:].long()]))
    assert cache.evict(9, 3).full_evicted == 2
    cache.dec_lock_ref(found.last_node, swa_boundary_id=token)
    cache.reset()
    assert driven.operations() == [
        ops.Alloc(4),
        ops.Insert(Key((1, 2, 1), "a"), (Span(1, 0, 3),)),
        ops.Match(Key((1, 2, 3), "a")),
        ops.Lock(3),
        ops.Insert(Key((1, 2, 4), "a"), (Span(3, 0, 2), Span(1, 3, 4))),
        ops.Evict(9, 3),
        ops.Unlock(4),
        ops.Reset(),
    ]


def test_branches_are_passed_on_and_states_only_where_there_are_rows_for_them() -> None:
    """M2, M5: an adapter that keeps states is driven without them by who has none."""
    driven = Driven("mamba", track_slots=2)
    driven.cache.insert(RadixKey(range(3)), driven.alloc(3))
    found = driven.cache.match_prefix(RadixKey(range(4)))
    assert (found.prefix_len, found.mamba_branching_seqlen) == (0, 3)
    assert driven.cache.state_of(found.last_node) is None
    assert driven.cache.evict(1).mamba_evicted == 0


def test_without_slots_the_token_ids_are_stored() -> None:
    """R1: a cache without a pool is driven, too, though not by an engine."""
    driven = Driven(pool="none")
    assert driven.cache.insert(RadixKey([5, 6])).adopted == ((0, 2),)
    assert driven.operations() == [ops.Insert(Key((1, 2)))]


def test_paths_of_nodes_are_those_that_the_answers_spell() -> None:
    """E2: whoever holds a node can ask what its path is."""
    driven = Driven(page_size=4, slots=48, swa_slots=36)
    slots, key = driven.alloc(8), RadixKey(range(10, 17))
    inserted = driven.cache.insert(key, slots[:7])
    assert driven.cache.path_of(inserted.last_node).tokens == (1, 2, 3, 4)
    found = driven.cache.match_prefix(RadixKey(range(10, 20)))
    assert driven.cache.path_of(found.last_node) == driven.cache.path_of_key(key).upto(4)


@pytest.mark.parametrize("tells", [True, False])
def test_sizes_are_told_or_recounted(tells: bool) -> None:
    """R7: an adapter that cannot tell a size is driven by what it must be."""
    driven = Driven(window=4, pool="swa")
    cache, carrier = driven.cache, driven.carrier
    assert (cache.total_size(), carrier.size("available_size")) == (0, 18)
    slots = driven.alloc(6)
    cache.insert(RadixKey(range(6)), slots)
    cache.inc_lock_ref(2)
    if not tells:
        carrier._told = {}
    assert (cache.total_size(), cache.evictable_size(), cache.protected_size()) == (6, 0, 6)
    assert (cache.swa_evictable_size(), cache.swa_protected_size()) == (2, 4)
    assert (carrier.size("full_available_size"), carrier.size("swa_available_size")) == (18, 12)


def answering(result: Failed | Unsupported | NoRoom) -> Callable[[Operation], Outcome]:
    """Answer every operation alike."""
    return lambda operation: Outcome(result)


def test_rightly_refused_call_is_the_drivers_mistake() -> None:
    """X1: a judge that lets a refusal pass says that the caller made a mistake."""
    carrier = Carrier(answering(Failed("OwnershipError", "slot 3")), Driven().carrier.judge)
    with pytest.raises(UsageError, match=r"Free\(.*\) was refused: OwnershipError: slot 3"):
        carrier.do(ops.Free((Span(0, 3, 4),)), Done)


@pytest.mark.parametrize("result", [Unsupported("alloc"), NoRoom()])
def test_answer_of_another_kind_is_the_adapters_mistake(result: Unsupported | NoRoom) -> None:
    """An adapter that claims to be fit for an engine must understand what an engine asks."""
    carrier = Carrier(answering(result), Driven().carrier.judge)
    with pytest.raises(AdapterError, match=r"Alloc\(tokens=1\) was answered by"):
        carrier.do(ops.Alloc(1), Slots)


@pytest.fixture
def driven() -> Driven:
    """A hybrid cache with two working rows and three track slots, with which nothing was done yet."""
    return Driven("mamba", states=True, track_slots=3)


def test_a_snapshot_goes_into_the_adapters_memory_and_comes_from_there(driven: Driven) -> None:
    """E1, M1: written before it is handed over, read before it is restored, named by the steps."""
    states = driven.states
    states.recurrent_state[:, 1] = 70
    states.conv_state[:, 1] = -3
    row = driven.save(9)
    assert row == ROWS + 1
    found = driven.cache.match_prefix(RadixKey([9, 8]))
    assert driven.cache.state_of(found.last_node) == row
    states.copy_states(row, 2)
    assert driven.operations() == [
        ops.AllocTrack(),
        ops.WriteState(0, Span(1, 0, 1), 8 * 70 % 256 - 128, 4 * -3 % 256 - 128),
        ops.Alloc(1),
        ops.Insert(Key((1,)), (Span(3, 0, 1),), state=Span(1, 0, 1)),
        ops.Match(Key((1, 2))),
        ops.ReadStates(0),
    ]
    assert torch.equal(states.recurrent_state[:, 2], states.recurrent_state[:, 1])
    assert torch.equal(states.conv_state[:, 2], states.conv_state[:, 1])


def test_rows_of_states_that_the_cache_evicted_are_used_again(driven: Driven) -> None:
    """M7: whoever frees a track slot, its row goes to the next; those of others stay."""
    first, second = driven.save(7), driven.save(8)
    assert sorted(driven.states.cached_rows()) == [first, second]
    driven.carrier.do(ops.Evict(0, 1), object)
    assert driven.states.cached_rows() == [second]
    assert driven.states.alloc_track_slot() not in (None, second)
    assert driven.states.alloc_track_slot() not in (None, second)
    assert driven.states.alloc_track_slot() is None


def test_track_slots_of_ever_new_numbers_find_rows(driven: Driven) -> None:
    """M7: no number is promised, so none may be relied on."""
    states, seen = driven.states, []
    for slot in (50, 70, 60, 90):
        driven.carrier._do = lambda operation, slot=slot: Outcome(Slots((slot,)))  # type: ignore[misc]
        driven.tracks.hand_out(slot, slot)
        seen.append(states.alloc_track_slot())
        driven.tracks.take_back(slot)
    assert seen == [3, 3, 3, 3]
    assert states.row_of(90) == 3


def test_working_states_are_nobodys_business(driven: Driven) -> None:
    """E1: they are reset and copied without an operation."""
    states = driven.states
    states.recurrent_state[:, 1] = 5
    states.copy_states(1, 2)
    states.reset_states(1)
    assert states.recurrent_state[:, 1].count_nonzero() == 0
    assert bool((states.recurrent_state[:, 2] == 5).all())
    assert driven.operations() == []


def test_adapter_that_shows_no_contents_is_driven_all_the_same(driven: Driven) -> None:
    """E1: then only where a state lies is judged."""
    row = driven.states.alloc_track_slot()
    assert row is not None
    driven.carrier._do = lambda operation: Outcome(Unsupported("no contents"))
    driven.states.copy_states(1, row)
    driven.states.copy_states(row, 2)


def paged(page_size: int, pool: str, window: int | None) -> Driven:
    """A radix cache with 6 pages of its pool and 4 window pages."""
    sizes = {"page_size": page_size, "slots": 6 * page_size, "swa_slots": 4 * page_size}
    return Driven(**sizes, pool=pool, window=window)


def test_calls_of_the_pool_are_operations() -> None:
    """A3: slots by the step that gave them, in tensors of any shape."""
    driven = paged(1, "swa", 4)
    allocator = DrivenAllocator(driven.carrier, 6)
    slots = allocator.alloc(4)
    assert slots is not None
    assert (slots.dtype, len(slots)) == (torch.int32, 4)
    assert allocator.alloc(1) is None
    allocator.free_swa(slots[[1, 3]].view(2, 1))
    allocator.free(slots[1:])
    assert driven.operations() == [
        ops.Alloc(4),
        ops.Alloc(1),
        ops.FreeSWA((Span(1, 1, 2), Span(1, 3, 4))),
        ops.Free((Span(1, 1, 4),)),
    ]
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (5, 3)
    assert allocator.available_size() == 3


@pytest.mark.parametrize(
    ("pool", "window", "expected"),
    [
        ("token", None, (24, None, None)),
        ("token", 4, (24, None, None)),
        ("swa", None, (16, None, None)),
        ("swa", 4, (24, 16, 4)),
    ],
)
def test_engine_has_what_the_adapter_offers(
    pool: str, window: int | None, expected: tuple[int, int | None, int | None]
) -> None:
    """E4: no more than can be handed out at one time; a window only where its halves can be given back."""
    driven = paged(4, pool, window)
    config = driven_config(driven.examiner.history.header, decode_headroom=3)
    assert (config.capacity, config.swa_capacity, config.sliding_window_size) == expected
    assert config.content_check
    assert (config.check_every, config.decode_headroom) == (1, 3)
    pools = driven.pools()
    assert (pools.swa_allocator is not None) == (window is not None and pool == "swa")
    assert pools.full_available_size() == config.capacity
    assert pools.allocator.size == 24
    assert pools.rows.req_to_token.shape[1] == config.max_context


def test_audits_look_at_what_the_model_knows() -> None:
    """E2: cached slots, and those of a held path, without a look into the adapter."""
    driven = paged(1, "token", None)
    pools = driven.pools()
    slots = pools.allocator.alloc(4)
    assert slots is not None
    cache = pools.kind.cache
    cache.insert(RadixKey([1, 2, 3]), slots[:3])
    cache.insert(RadixKey([1, 2, 4]), torch.cat([slots[:2], slots[3:]]))
    found = cache.match_prefix(RadixKey([1, 2, 4]))
    assert sorted(torch.cat(pools.kind.cached_slots()).tolist()) == sorted(slots.tolist())
    assert torch.cat(pools.kind.path_slots(found.last_node)).tolist() == slots[[0, 1, 3]].tolist()
    pools.kind.check()
    pools.check_allocator()
    assert len(driven.examiner.history) == 4


def test_engine_has_states_where_the_adapter_keeps_them() -> None:
    """E1, E3: as many track slots, behind the rows of as many requests as may run."""
    driven = Driven("mamba", track_slots=3)
    assert driven_config(driven.examiner.history.header).track_slots == 3
    kind = driven.pools().kind
    assert kind.state_pool is not None
    assert kind.state_pool.max_track_slots == 3
    assert kind.state_pool.recurrent_state.shape[1] == 1 + 2 + 3
    row = kind.state_pool.alloc_track_slot()
    kind.cache.insert(RadixKey([5]), driven.alloc(1), mamba_value=torch.tensor([row]))
    found = kind.cache.match_prefix(RadixKey([5]))
    assert kind.cached_states() == [row] == [kind.state_of(found.last_node)]


def test_engine_without_states_has_none() -> None:
    """E1: a cache that keeps KV only."""
    driven = paged(1, "token", None)
    kind = driven.pools().kind
    assert kind.state_pool is None
    assert kind.cached_states() == []


def test_engine_of_a_cache_that_keeps_nothing() -> None:
    """A chunk cache has no paths, and its pool is driven like any."""
    pools = Driven("chunk", retains=False).pools()
    found = pools.kind.cache.match_prefix(RadixKey([1, 2]))
    assert torch.cat(pools.kind.path_slots(found.last_node)).tolist() == []
    assert torch.cat(pools.kind.cached_slots()).tolist() == []


def test_an_allocation_can_be_refused_whatever_is_free() -> None:
    """X4: the adapter is not asked; nothing is always to be had."""
    driven = paged(1, "token", None)
    allocator = DrivenAllocator(driven.carrier, 6)
    answers = [True, False]
    allocator.refuses = lambda: answers.pop(0)
    assert allocator.alloc(2) is None
    assert driven.examiner.history.steps == []
    assert allocator.alloc(0) is not None
    assert allocator.alloc(2) is not None
    assert answers == []
