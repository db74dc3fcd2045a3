"""Every entry point of the block contexts, once for each use of memory in it that may fail (X2, X4, X7, E3).

After each failure the walks of `pymllm.invariants` hold, nothing has changed, the same call then does what it
does on an object where nothing ever failed, and all that was handed out comes back. Where a call says that
it leaves something else behind, the entry names that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.live_request import LiveRequest
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.invariants.blocks import (
    check_dynamic_context,
    check_kv_block_allocator,
    check_mamba_slot_allocator,
)
from tests.failing_points import Failed, Sweep, watched_places

LRU, REF_ZERO = PrefixCachingEvictionPolicy.LRU, PrefixCachingEvictionPolicy.REF_ZERO


@pytest.fixture(autouse=True, scope="module")
def _watched() -> Iterator[None]:
    with watched_places():
        yield


class Entry(NamedTuple):
    """A call on a prepared subject, and the traces that its failure may leave."""

    name: str
    make: Callable[[], Any]
    """Makes a subject: ``kv``, ``slots`` or ``context``, and what else the call takes."""
    act: Callable[[Any], Any]
    leaves: str = ""
    """What a failure may leave that was not there, as the docstring says; else nothing."""
    in_hand: int = 0
    """Slots that the call gives to its caller."""


# -- what is compared ----------------------------------------------------------------------------------------


def _plain(it: Any) -> Any:
    """Return tensors as data, and leave out what has no value of its own."""
    if isinstance(it, torch.Tensor):
        return it.tolist()
    if isinstance(it, (tuple, list)):
        return [_plain(each) for each in it]
    return len(it) if isinstance(it, ForwardBatch) else it


def _state(subject: Any) -> dict[str, Any]:
    """Return all that a caller can see of a subject."""
    kv, slots, context = (getattr(subject, name, None) for name in ("kv", "slots", "context"))
    free = set(kv.free_among(range(kv.pool_size)))
    used = [None if block in free else block for block in range(kv.pool_size)]
    seen: dict[str, Any] = {
        "blocks": (
            kv._free[: kv.pool_avail].tolist(),
            kv.block_ref_counts.tolist(),
            kv.block_hashes.tolist(),
            [
                None if count is None else stamp
                for stamp, count in zip(kv.block_timestamps.tolist(), used, strict=True)
            ],
            kv.block_parents.tolist(),
            dict(kv.kv_hash_to_block_id),
            kv.evictable_blocks,
        )
    }
    if slots is not None:
        seen["slots"] = (
            slots.block_to_slot.tolist(),
            slots.slot_to_block.tolist(),
            slots.free_slots[: slots.free_count].tolist(),
            dict(slots.hash_to_block_id),
        )
        seen["offsets"] = (
            dict(slots._offsets.of_request),
            [_plain(it) for it in slots.get_intermediate_gpu_data()],
        )
        seen["states"] = {
            value: (_bits(slots.conv_states, slot), _bits(slots.ssm_states, slot))
            for value, block in slots.hash_to_block_id.items()
            if (slot := slots.get_slot(block)) >= 0
        }
    if context is not None:
        seen["rows"] = (
            [_of_request(live) for live in context._rows],
            context.request_to_kv_block_ids.tolist(),
            context.mamba_metadata.request_to_mamba_state_idx.tolist(),
            context.mamba_metadata.intermediate_count,
            list(context.mamba_metadata.per_request_intermediate_counts),
            context.prefix_cache_lru_clock,
            None if context._step is None else len(context._step),
        )
    return seen


def _of_request(live: LiveRequest) -> tuple[Any, ...]:
    place = live.req.name, live.region, live.chunk, live.computed, live.req.finished_chunk_token_count
    held = list(live.blocks), live.matched, live.registered, live.skip, live.is_known, list(live.generated)
    return *place, *held


def _bits(states: torch.Tensor, slot: int) -> list[float]:
    numbers: list[float] = states[:, slot].flatten().tolist()
    return numbers


def _check(subject: Any, in_hand: list[int] | None = None) -> None:
    if getattr(subject, "context", None) is not None:
        check_dynamic_context(subject.context)
    else:
        check_kv_block_allocator(subject.kv)
        if getattr(subject, "slots", None) is not None:
            check_mamba_slot_allocator(subject.slots, in_hand or ())


def _drain(subject: Any) -> None:
    """Give everything back, and demand that all of it is there."""
    context, kv = getattr(subject, "context", None), subject.kv
    if context is not None:
        if context._step is not None:
            context.abort_step()
        for req in context.requests:
            context.release(req)
    else:
        for block, count in enumerate(kv.block_ref_counts.tolist()):
            kv.release_memory_blocks([block] * count)
    _check(subject)
    every = kv.pool_size - 1
    assert kv.pool_avail + kv.evictable_blocks == every
    taken = kv.allocate_memory_blocks(every)
    assert sorted(taken.tolist()) == list(range(every))
    if getattr(subject, "slots", None) is not None:
        assert subject.slots.free_count == subject.slots.max_slots
    kv.release_memory_blocks(taken)


def findings(entry: Entry, **options: Any) -> tuple[int, list[str]]:
    """Sweep an entry point; returns how many points failed, and what was wrong after which."""
    twin = entry.make()
    before = _state(twin)
    answer = _plain(entry.act(twin))
    after = _state(twin)
    sweep: Sweep[Any] = Sweep(entry.make, entry.act, **options)
    found = []
    for failed in sweep:
        try:
            _judge(entry, failed, before, answer, after)
        except Exception as error:
            found.append(f"{failed.where}: {type(error).__name__} {str(error)[:200]}")
    return sweep.points, found


def _judge(entry: Entry, failed: Failed[Any], before: Any, answer: Any, after: Any) -> None:
    subject = failed.subject
    if failed.error is None:
        assert _plain(failed.result) == answer, "it went on, with another answer"
        assert _differences(_state(subject), after) == []
        _check(subject, answer if entry.in_hand else None)
    else:
        assert type(failed.error) is MemoryError, repr(failed.error)
        _check(subject)
        now = _state(subject)
        changed = _differences(now, before)
        assert not changed or entry.leaves, f"changed: {changed}"
        if entry.leaves != _HALF_COPIED:
            known = [state for one in (before, after) for state in one.get("states", {}).items()]
            strange = [state for state in now.get("states", {}).items() if state not in known]
            assert not strange, f"states that nobody computed are found: {strange}"
        again = _plain(entry.act(subject))
        _check(subject, again if entry.in_hand else None)
        if not changed:
            assert again == answer, "the same call, with another answer"
            assert _differences(_state(subject), after) == []
    if not entry.in_hand:
        _drain(subject)


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


# -- blocks --------------------------------------------------------------------------------------------------


def _blocks(policy: PrefixCachingEvictionPolicy = LRU) -> Any:
    """Blocks 0..3 are a chain, 0 and 1 referenced; 4 is referenced and unregistered; 5 to 7 are free."""
    told: list[Any] = []
    subject = SimpleNamespace(prefix_cache_lru_clock=3, told=told)
    kv = subject.kv = KVBlockAllocator(subject, 9, prefix_caching_eviction_policy=policy)
    kv.on_blocks_deregistered = lambda blocks, hashes: told.append((blocks, hashes))
    kv.allocate_memory_blocks(5)
    kv.register_kv_block_hashes([0, 1, 2, 3], [10, 11, 12, 13])
    kv.update_timestamps([2])
    kv.release_memory_blocks([2, 3])
    kv.retain_memory_blocks([1])
    subject.prefix_cache_lru_clock = 5
    return subject


def _blocks_ref_zero() -> Any:
    """Blocks 0 and 1 are a chain of held blocks, 2 is below 1 and held, 4 unregistered."""
    subject = SimpleNamespace(prefix_cache_lru_clock=3)
    kv = subject.kv = KVBlockAllocator(subject, 9, prefix_caching_eviction_policy=REF_ZERO)
    kv.allocate_memory_blocks(5)
    kv.register_kv_block_hashes([0, 1, 2, 3], [10, 11, 12, 13])
    return subject


def _lowered() -> Any:
    subject = _blocks()
    subject.prefix_cache_lru_clock = 1
    return subject


BLOCKS = [
    Entry("allocate free ones", _blocks, lambda it: it.kv.allocate_memory_blocks(2)),
    Entry("allocate none", _blocks, lambda it: it.kv.allocate_memory_blocks(0)),
    Entry("allocate too many", _blocks, lambda it: it.kv.allocate_memory_blocks(6)),
    Entry("allocate with an eviction", _blocks, lambda it: it.kv.allocate_memory_blocks(4)),
    Entry("allocate with evictions", _blocks, lambda it: it.kv.allocate_memory_blocks(5)),
    Entry("retain", _blocks, lambda it: it.kv.retain_memory_blocks(torch.tensor([3, 0, 3]))),
    Entry("release", _blocks, lambda it: it.kv.release_memory_blocks([0, 1, 1, 4])),
    Entry("release one", _blocks, lambda it: it.kv.release_memory_blocks([4])),
    Entry("release a subtree", _blocks_ref_zero, lambda it: it.kv.release_memory_blocks([4, 1, 3])),
    Entry("register a chain", _blocks, lambda it: it.kv.register_kv_block_hashes([0, 4], [10, 14])),
    Entry("register below", _blocks, lambda it: it.kv.register_kv_block_hashes([4], [14], [11])),
    Entry("stamp", _blocks, lambda it: it.kv.update_timestamps([0, 3])),
    Entry("stamp lower", _lowered, lambda it: it.kv.update_timestamps([0, 2, 3])),
    Entry("reset blocks", _blocks, lambda it: it.kv.reset()),
    Entry("reset blocks of REF_ZERO", _blocks_ref_zero, lambda it: it.kv.reset()),
    Entry("free among", _blocks, lambda it: it.kv.free_among([0, 5, 8])),
    Entry("evictable", _blocks, lambda it: (it.kv.evictable_blocks, repr(it.kv))),
]


# -- slots ---------------------------------------------------------------------------------------------------


def _slots(policy: PrefixCachingEvictionPolicy = LRU) -> Any:
    """Of three slots blocks 0, 2 and 5 have one; 2 and 5 are cached, 0 held; a request prefills row 1."""
    subject = SimpleNamespace(
        prefix_cache_lru_clock=0,
        prefix_caching_eviction_policy=policy,
        max_requests=3,
        block_size_tokens=4,
        mamba_chunk_size=2,
        device=torch.device("cpu"),
        request_to_kv_block_ids=torch.tensor([[6, 7, -1], [0, 1, 3], [-1, -1, -1]], dtype=torch.int32),
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.tensor([2, 0, 1], dtype=torch.int32),
            intermediate_count=2,
            per_request_intermediate_counts=[2],
        ),
        mamba_conv_states=torch.arange(18, dtype=torch.float16).view(2, 3, 3),
        mamba_ssm_states=torch.arange(24, dtype=torch.float32).view(2, 3, 2, 2),
        paused_request_count=0,
        batch_dimensions=SimpleNamespace(prefill_req_count=1, decode_req_count=1),
    )
    kv = subject.kv = subject.kv_block_allocator = KVBlockAllocator(
        subject, 10, prefix_caching_eviction_policy=LRU
    )
    kv.allocate_memory_blocks(8)
    kv.register_kv_block_hashes([2, 5, 0, 1, 3], [12, 15, 10, 11, 13], [0, 0, 0, 10, 11])
    slots = subject.slots = MambaSlotAllocator(subject, 4, 2, (3,), (2, 2), torch.float16, torch.float32)
    kv.on_blocks_deregistered = slots.on_kv_blocks_deregistered
    slots.conv_states.copy_(torch.arange(24, dtype=torch.float16).view(2, 4, 3))
    slots.allocate_slots_batch([0, 2, 5])
    slots.register_block_hashes_batch([0, 2, 5], [10, 12, 15])
    kv.release_memory_blocks([2, 5])
    subject.req = SimpleNamespace(prompt_tokens=list(range(12)), finished_chunk_token_count=0)
    return subject


def _slots_ref_zero() -> Any:
    return _slots(REF_ZERO)


def _computed() -> Any:
    """The same with what the prefilling request leaves: states at 4, 8 and 12."""
    subject = _slots()
    subject.slots.compute_and_store_offsets(subject.req, 1, 0, 12, 1, [0], 3)
    subject.slots.get_intermediate_gpu_data()
    return subject


def _store_tensors(it: Any) -> None:
    it.slots.store_from_tensors(2, 1, torch.ones(2, 2), torch.ones(3, dtype=torch.float16))


_HALF_COPIED = "what the device refuses to copy is half copied"

SLOTS = [
    Entry("one free slot", _slots, lambda it: it.slots.allocate_slots_batch([1])),
    Entry("slots for two", _slots, lambda it: it.slots.allocate_slots_batch([1, 3, 1, 0])),
    Entry("slots by evicting all", _slots, lambda it: it.slots.allocate_slots_batch([1, 3, 4])),
    Entry("slots of those that have one", _slots, lambda it: it.slots.allocate_slots_batch([0, 2])),
    Entry("slots of REF_ZERO", _slots_ref_zero, lambda it: it.slots.allocate_slots_batch([1, 3, 4])),
    Entry("evict a slot", _slots, lambda it: it.slots._evict_lru_slots_batch(1), in_hand=1),
    Entry("evict two", _slots, lambda it: it.slots._evict_lru_slots_batch(2), in_hand=2),
    Entry("evict by id", _slots_ref_zero, lambda it: it.slots._evict_lru_slots_batch(2), in_hand=2),
    Entry("get slot", _slots, lambda it: (it.slots.get_slot(5), it.slots.has_state(1))),
    Entry("invalidate", _slots, lambda it: it.slots.invalidate_block(2)),
    Entry("invalidate one of a batch", _slots, lambda it: it.slots._invalidate_blocks_batch([2, 1])),
    Entry("invalidate a batch", _slots, lambda it: it.slots._invalidate_blocks_batch([2, 5, 1, 2])),
    Entry("deregister", _slots, lambda it: it.slots.on_kv_blocks_deregistered([2, 5, 1], {12, 15})),
    Entry("deregister one", _slots, lambda it: it.slots.on_kv_blocks_deregistered([2], {12})),
    Entry("blocks evicted", _slots, lambda it: it.kv.allocate_memory_blocks(3)),
    Entry("blocks released", _slots, lambda it: it.kv.release_memory_blocks([6, 0, 7])),
    Entry("register states", _slots, lambda it: it.slots.register_block_hashes_batch([2, 0], [12, -1])),
    Entry("store tensors", _slots, _store_tensors, _HALF_COPIED),
    Entry("store live", _slots, lambda it: it.slots.store_from_live_batch([1, 3], [0, 2]), _HALF_COPIED),
    Entry("restore", _slots, lambda it: it.slots.restore_to_live(1, 2), _HALF_COPIED),
    Entry("restore nothing", _slots, lambda it: it.slots.restore_to_live(1, 3)),
    Entry("copy", _slots, lambda it: it.slots._copy_intermediate_to_cache([0, 4], [1, 3]), _HALF_COPIED),
    Entry(
        "compute offsets",
        _slots,
        lambda it: it.slots.compute_and_store_offsets(it.req, 1, 0, 12, 1, torch.tensor([0]), 3),
    ),
    Entry("offsets to the device", _computed, lambda it: it.slots.get_intermediate_gpu_data()),
    Entry("offsets on the host", _computed, lambda it: it.slots.intermediate_offsets()),
    Entry(
        "commit",
        _computed,
        lambda it: it.slots.commit_intermediate_states(),
        "states of this step are dropped",
    ),
    Entry("clear", _computed, lambda it: it.slots._clear_intermediate_state(), "the host has forgotten"),
    Entry("reset slots", _computed, lambda it: it.slots.reset(), "trackers are new, states are not"),
    Entry("bytes", _slots, lambda it: (it.slots.mem_bytes(), repr(it.slots))),
]


# -- contexts ------------------------------------------------------------------------------------------------


def _request(name: str, *tokens: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, prompt_tokens=list(tokens), finished_chunk_token_count=0)


def _choose(batch: ForwardBatch) -> list[int]:
    return [99] * len(batch)


def _context(policy: PrefixCachingEvictionPolicy = LRU, slots: int = 4, blocks: int = 12) -> Any:
    """A request that decodes, one between two chunks, and cached blocks with states where there are any."""
    context = DynamicInferenceContext(
        max_requests=4,
        num_blocks=blocks,
        max_blocks_per_request=6,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=slots,
        num_mamba_layers=2 if slots else 0,
        conv_states_shape=(3,),
        ssm_states_shape=(2, 2),
        prefix_caching_eviction_policy=policy,
        paused_limit=9,
    )
    subject = SimpleNamespace(
        context=context, kv=context.kv_block_allocator, slots=context.mamba_slot_allocator
    )
    if slots:
        assert context.mamba_conv_states is not None
        context.mamba_conv_states.copy_(torch.arange(24.0).view(2, 4, 3))
    for name, *tokens in (("gone", *range(20, 32)), ("decodes", *range(7)), ("waits", *range(40, 49))):
        req = _request(str(name), *tokens)
        assert context.add_request(req, 8 if name == "waits" else None)
        context.step(_choose)
        if name == "gone":
            context.release(req)
        setattr(subject, str(name), req)
    subject.new = _request("new", *range(20, 32), 7, 8, 9)
    return subject


def _without_states() -> Any:
    return _context(slots=0)


def _ref_zero() -> Any:
    return _context(REF_ZERO)


def _scheduled() -> Any:
    """A step is next in which one decodes into a new block, and three prefill; one of them leaves states."""
    subject = _context(blocks=16)
    assert subject.context.schedule_chunk(subject.waits)
    assert subject.context.add_request(subject.new)
    assert subject.context.add_request(_request("other", *range(60, 76)))
    return subject


def _without_room() -> Any:
    """A step is next in which one decodes into a block that has to be evicted."""
    subject = _context(blocks=8)
    assert subject.kv.pool_avail == 0
    return subject


def _in_step() -> Any:
    subject = _scheduled()
    subject.batch = subject.context.begin_step()
    subject.slots.get_intermediate_gpu_data()
    return subject


def _paused() -> Any:
    subject = _context()
    assert subject.context.pause(subject.waits)
    return subject


def _drafted(policy: PrefixCachingEvictionPolicy = LRU) -> Any:
    """One decodes its fourth block; the second is registered, and has registered blocks below."""
    subject = _context(policy)
    for _ in range(5):
        subject.context.step(_choose)
    return subject


_CONTEXTS = {"LRU": _context, "REF_ZERO": _ref_zero, "attention alone": _without_states}

CONTEXTS = [
    *(
        Entry(f"{name}, {kind}", make, act)
        for kind, make in _CONTEXTS.items()
        for name, act in {
            "add": lambda it: it.context.add_request(it.new),
            "add a chunk": lambda it: it.context.add_request(it.new, 5, reserve=1),
            "add what is not cached": lambda it: it.context.add_request(_request("other", *range(60, 75))),
            "add in vain": lambda it: it.context.add_request(it.new, reserve=99),
            "schedule": lambda it: it.context.schedule_chunk(it.waits),
            "pause": lambda it: it.context.pause(it.decodes),
            "release what decodes": lambda it: it.context.release(it.decodes),
            "release what waits": lambda it: it.context.release(it.waits),
        }.items()
    ),
    *(
        Entry(
            f"truncate to {kept}, {policy.value}",
            partial(_drafted, policy),
            lambda it, kept=kept: it.context.truncate(it.decodes, kept, 3),
        )
        for policy in (LRU, REF_ZERO)
        for kept in (7, 8)
    ),
    Entry("resume", _paused, lambda it: it.context.resume(it.waits)),
    Entry("schedule in vain", _paused, lambda it: it.context.add_request(_request("o", *range(60, 84)))),
    Entry("look", _context, lambda it: (repr(it.context), len(it.context.waiting_requests))),
    Entry("begin", _scheduled, lambda it: it.context.begin_step()),
    Entry("begin without chunks", _context, lambda it: it.context.begin_step()),
    Entry(
        "begin without room",
        _without_room,
        lambda it: it.context.begin_step(),
        "cached blocks that made room",
    ),
    Entry(
        "commit a step",
        _in_step,
        lambda it: it.context.commit_step(_choose(it.batch)),
        "the states of this step are dropped",
    ),
    Entry(
        "abort", _in_step, lambda it: it.context._step is None or it.context.abort_step(), "the step is over"
    ),
    Entry("step", _scheduled, lambda it: it.context.step(_choose), "the step is over"),
    Entry("reset a context", _in_step, lambda it: it.context.reset(), "the states keep what they had"),
]


NO_POINTS = {
    *("allocate too many", "reset blocks", "reset blocks of REF_ZERO", "evictable", "get slot", "invalidate"),
    *("offsets on the host", "bytes", "look", "resume", *(f"pause, {kind}" for kind in _CONTEXTS)),
}
"""Calls that take no memory that grows, so that none of them can fail for it."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("entry", [*BLOCKS, *SLOTS, *CONTEXTS], ids=lambda entry: entry.name)
def test_a_call_that_finds_no_memory_loses_nothing(entry: Entry, after: bool) -> None:
    """X2, X4, X7, E3: wherever it fails, all is as it was, or as the entry says, and it can be made again.

    A failure comes instead of what takes memory, or behind it: what was asked of a device is said later.
    """
    points, found = findings(entry, after=after)
    assert found == []
    assert (points == 0) == (entry.name in NO_POINTS)


@pytest.mark.parametrize("name", ["reset slots", "reset a context"])
def test_a_reset_that_fails_has_freed_everything(name: str) -> None:
    """X7: what a device refuses is to fill a buffer; the trackers are those of a new object by then."""
    (entry,) = (it for it in [*SLOTS, *CONTEXTS] if it.name == name)
    for failed in Sweep(entry.make, entry.act):
        slots, context = failed.subject.slots, getattr(failed.subject, "context", None)
        assert (slots.free_count, slots.hash_to_block_id) == (slots.max_slots, {})
        assert slots.free_slots.tolist() == list(range(slots.max_slots))
        assert slots.intermediate_offsets() in ([], [()])
        if context is not None:
            assert (context.requests, context._step, context.prefix_cache_lru_clock) == ([], None, 0)
            assert context.kv_block_allocator.pool_avail == context.kv_block_allocator.dummy_block_idx


def test_an_observer_that_fails_has_heard_of_all_that_is_gone() -> None:
    """X2: what it was told of is free, nothing is lost, and a call that had evicted hands out nothing."""
    for entry in BLOCKS:
        if entry.name.startswith(("allocate", "release")):
            sweep = Sweep(entry.make, entry.act, named=lambda it: [it.kv.on_blocks_deregistered])
            told = [failed.subject for failed in sweep if "<lambda>()" in failed.where]
            evicts = "eviction" in entry.name
            assert len(told) == (evicts or entry.name in ("release", "release one")), entry.name
            for subject in told:
                held = sum(subject.kv.block_ref_counts.tolist())
                assert not evicts or held == sum(entry.make().kv.block_ref_counts.tolist())
                _drain(subject)
