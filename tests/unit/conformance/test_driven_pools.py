"""An engine's pools over an adapter: slots are the adapter's, and who has them is the ledger's to say."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.base import header_of
from pymllm.adapters.registry import make_adapter
from pymllm.conformance.driven_cache import (
    Carrier,
    DrivenAllocator,
    DrivenCache,
    driven_config,
    make_driven_cache,
    make_driven_pools,
)
from pymllm.conformance.examiner import Examiner
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, Free, FreeSWA, Span
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.oracle.prefix_judge import PrefixJudge
from pymllm.workloads.engine_pools import EnginePools


def examined(page_size: int, pool: str, window: int | None) -> tuple[Examiner, Carrier]:
    """Make a radix cache under examination, with 6 pages of its pool and 4 window pages."""
    sizes = {"page_size": page_size, "slots": 6 * page_size, "swa_slots": 4 * page_size}
    examiner = Examiner(make_adapter("radix-window", {**sizes, "pool": pool, "window": window}))
    judge = examiner.judge
    assert isinstance(judge, PrefixJudge)
    return examiner, Carrier(examiner.do, judge)


def pools_of(examiner: Examiner, carrier: Carrier) -> EnginePools:
    header = examiner.history.header
    config = driven_config(header, max_running=2)
    return make_driven_pools(carrier, make_driven_cache(carrier, config), config, header)


def test_calls_of_the_pool_are_operations() -> None:
    """A3: slots by the step that gave them, in tensors of any shape."""
    examiner, carrier = examined(1, "swa", 4)
    allocator = DrivenAllocator(carrier, 6)
    slots = allocator.alloc(4)
    assert slots is not None
    assert (slots.dtype, len(slots)) == (torch.int32, 4)
    assert allocator.alloc(1) is None
    allocator.free_swa(slots[[1, 3]].view(2, 1))
    allocator.free(slots[1:])
    assert [step.operation for step in examiner.history.steps] == [
        Alloc(4),
        Alloc(1),
        FreeSWA((Span(1, 1, 2), Span(1, 3, 4))),
        Free((Span(1, 1, 4),)),
    ]
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (5, 3)
    assert allocator.available_size() == 3


def test_ledger_tells_who_has_a_slot() -> None:
    """E2: what a caller or the cache has is handed out, whichever slot of the page is named."""
    _, carrier = examined(4, "token", None)
    allocator = DrivenAllocator(carrier, 24)
    slots = allocator.alloc(8)
    assert slots is not None
    DrivenCache(carrier).insert(RadixKey(range(4)), slots[:4])
    allocator.free(slots[4:])
    named = torch.stack([slots[3], slots[4], slots[7]])
    assert allocator.is_handed_out(named).tolist() == [True, False, False]
    assert allocator.translate_to_swa(named).tolist() == [0, 0, 0]


@pytest.mark.parametrize("page_size", [1, 4])
def test_halves_are_those_that_the_adapter_told(page_size: int) -> None:
    """A7: slot by slot within a page; nothing where a half is gone, or for padding."""
    examiner, carrier = examined(page_size, "swa", 4)
    allocator = DrivenAllocator(carrier, 6 * page_size)
    slots = allocator.alloc(3 * page_size)
    assert slots is not None
    inner = examiner.adapter.pool.inner  # type: ignore[attr-defined]
    assert torch.equal(allocator.translate_to_swa(slots), inner.translate_to_swa(slots))
    allocator.free_swa(slots[:page_size])
    named = torch.cat([slots, torch.tensor([0])])
    assert torch.equal(allocator.translate_to_swa(named), inner.translate_to_swa(named))


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
    examiner, carrier = examined(4, pool, window)
    config = driven_config(examiner.history.header, decode_headroom=3)
    assert (config.capacity, config.swa_capacity, config.sliding_window_size) == expected
    assert config.content_check
    assert (config.check_every, config.decode_headroom) == (1, 3)
    pools = pools_of(examiner, carrier)
    assert (pools.swa_allocator is not None) == (window is not None and pool == "swa")
    assert pools.full_available_size() == config.capacity
    assert pools.allocator.size == 24
    assert pools.rows.req_to_token.shape[1] == config.max_context


def test_audits_look_at_what_the_model_knows() -> None:
    """E2: cached slots, and those of a held path, without a look into the adapter."""
    examiner, carrier = examined(1, "token", None)
    pools = pools_of(examiner, carrier)
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
    assert len(examiner.history) == 4


def test_engine_has_states_where_the_adapter_keeps_them() -> None:
    """E1, E3: as many track slots, behind the rows of as many requests as may run."""
    config: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
    examiner = Examiner(make_adapter("mamba", {**config, "track_slots": 3}))
    judge = examiner.judge
    assert isinstance(judge, PrefixJudge)
    assert driven_config(examiner.history.header).track_slots == 3
    kind = pools_of(examiner, Carrier(examiner.do, judge)).kind
    assert kind.state_pool is not None
    assert kind.state_pool.max_track_slots == 3
    assert kind.state_pool.recurrent_state.shape[1] == 1 + 2 + 3
    row = kind.state_pool.alloc_track_slot()
    slots = torch.tensor([1])
    examiner.do(Alloc(1))
    kind.cache.insert(RadixKey([5]), slots, mamba_value=torch.tensor([row]))
    found = kind.cache.match_prefix(RadixKey([5]))
    assert kind.cached_states() == [row] == [kind.state_of(found.last_node)]


def test_engine_without_states_has_none() -> None:
    """E1: a cache that keeps KV only."""
    examiner, carrier = examined(1, "token", None)
    kind = pools_of(examiner, carrier).kind
    assert kind.state_pool is None
    assert kind.cached_states() == []


def test_engine_of_a_cache_that_keeps_nothing() -> None:
    """Section 6: a chunk cache has no paths, and its pool is driven like any."""
    config: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
    examiner = Examiner(make_adapter("chunk", {**config, "retains": False}))
    header = header_of(examiner.adapter)
    judge = examiner.judge
    assert isinstance(judge, PrefixJudge)
    carrier = Carrier(examiner.do, judge)
    pools = make_driven_pools(carrier, DrivenCache(carrier), driven_config(header), header)
    found = pools.kind.cache.match_prefix(RadixKey([1, 2]))
    assert torch.cat(pools.kind.path_slots(found.last_node)).tolist() == []
    assert torch.cat(pools.kind.cached_slots()).tolist() == []


def test_an_allocation_can_be_refused_whatever_is_free() -> None:
    """X4: the adapter is not asked; nothing is always to be had."""
    examiner, carrier = examined(1, "token", None)
    allocator = DrivenAllocator(carrier, 6)
    answers = [True, False]
    allocator.refuses = lambda: answers.pop(0)
    assert allocator.alloc(2) is None
    assert examiner.history.steps == []
    assert allocator.alloc(0) is not None
    assert allocator.alloc(2) is not None
    assert answers == []
