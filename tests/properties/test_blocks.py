"""Block contexts and a caller with books of its own: arguments in every form, and failures at every point."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import (
    KVBlockAllocator,
    MambaSlotAllocator,
    MambaSlotCapacityError,
    PrefixCachingEvictionPolicy,
)
from pymllm.errors import CapacityError
from pymllm.invariants.blocks import check_kv_block_allocator, check_mamba_slot_allocator

__all__ = ["BlockCaller", "InjectedFault"]

BLOCKS, SLOTS, ROWS, BLOCK_SIZE = 9, 3, 3, 4
LAYERS, CONV, SSM = 2, (3,), (2, 2)


class InjectedFault(Exception):
    """What a test makes a call raise."""


def state_of(hash_value: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The state behind a block's tokens: any that tells hashes apart will do."""
    return torch.full((LAYERS, *shape), float(hash_value))


class BlockCaller:
    """Plays programs of acts, such as "admit 0 a3 5; compute 0; release 0", and checks after each act.

    `admit` gives a row the blocks of prompt a, of which three are whole and five there are in all, shared as
    far as they are cached; `compute` lets rows run a step together and commit; `resume` restores the deepest
    cached state; `take_slots` and `invalidate` name places of a row's table; `hand` takes slots in hand, and
    `store` fills one. An act whose row is not there, since an earlier one failed, is passed over.
    """

    def __init__(self, policy: PrefixCachingEvictionPolicy, watch: Callable[[], None] = lambda: None) -> None:
        self.context = SimpleNamespace(
            prefix_cache_lru_clock=0,
            prefix_caching_eviction_policy=policy,
            max_requests=ROWS,
            block_size_tokens=BLOCK_SIZE,
            mamba_chunk_size=2,
            request_to_kv_block_ids=torch.full((ROWS, BLOCKS), -1, dtype=torch.int32),
            paused_request_count=0,
            batch_dimensions=SimpleNamespace(prefill_req_count=0, decode_req_count=0),
            mamba_metadata=SimpleNamespace(
                request_to_mamba_state_idx=torch.arange(ROWS).flip(0),
                intermediate_count=0,
                per_request_intermediate_counts=[],
            ),
            mamba_conv_states=torch.zeros(LAYERS, ROWS, *CONV),
            mamba_ssm_states=torch.zeros(LAYERS, ROWS, *SSM),
        )
        self.kv = self.context.kv_block_allocator = KVBlockAllocator(
            self.context, BLOCKS, prefix_caching_eviction_policy=policy
        )
        self.slots = MambaSlotAllocator(self.context, SLOTS, LAYERS, CONV, SSM, torch.float32, torch.float32)
        self.blocks: dict[int, list[int]] = {}
        self.hashes: dict[int, list[int]] = {}
        self.in_hand: list[int] = []
        self.unfilled: set[int] = set()

        def observer(blocks: list[int], hashes: set[int]) -> None:
            self.slots.on_kv_blocks_deregistered(blocks, hashes)
            watch()

        self.kv.on_blocks_deregistered = observer

    # Acts.

    def admit(self, row: str, prompt: str, total: str) -> None:
        if int(row) in self.blocks:
            return
        hashes = [ord(prompt[0]) * 100 + depth for depth in range(int(prompt[1:]))]
        known = self.kv.kv_hash_to_block_id
        shared: list[int] = []
        while len(shared) < len(hashes) and hashes[len(shared)] in known:
            shared.append(known[hashes[len(shared)]])
        self.kv.retain_memory_blocks(shared)
        try:
            new = self.kv.allocate_memory_blocks(int(total) - len(shared))
        except InjectedFault:
            self.kv.release_memory_blocks(shared)
            raise
        if new is None:
            self.kv.release_memory_blocks(shared)
            return
        self.blocks[int(row)], self.hashes[int(row)] = [*shared, *new.tolist()], hashes
        self.context.request_to_kv_block_ids[int(row), : int(total)] = torch.tensor(self.blocks[int(row)])

    def compute(self, *rows: str) -> None:
        """Run a step for rows that are side by side; one that fails is left without a trace."""
        present = [int(row) for row in rows if int(row) in self.blocks]
        for together in [present] if len(present) == len(rows) else [[row] for row in present]:
            try:
                self._compute(together)
            except InjectedFault:
                self.slots._clear_intermediate_state()
                raise

    def _compute(self, rows: Sequence[int]) -> None:
        batch, slots, metadata = self.context.batch_dimensions, self.slots, self.context.mamba_metadata
        whole = {row: len(self.hashes[row]) * BLOCK_SIZE for row in rows}
        for row in rows:
            # A last token behind the whole blocks, where there is a block for it.
            length = whole[row] + (len(self.blocks[row]) > len(self.hashes[row]))
            req = SimpleNamespace(prompt_tokens=range(length), finished_chunk_token_count=0)
            slots.compute_and_store_offsets(req, row, 0, length, 1, [], -(-length // BLOCK_SIZE))
        batch.decode_req_count, batch.prefill_req_count = rows[0], len(rows)
        slots.get_intermediate_gpu_data()
        metadata.per_request_intermediate_counts = [len(left) for left in slots.intermediate_offsets()]
        metadata.intermediate_count = sum(metadata.per_request_intermediate_counts)
        place = 0
        for row, left in zip(rows, slots.intermediate_offsets(), strict=True):
            for offset in left:
                self._fill(slots.intermediate_conv_out, slots.intermediate_ssm_out, place, row, offset)
                place += 1
            live = int(metadata.request_to_mamba_state_idx[row])
            self._fill(self.context.mamba_conv_states, self.context.mamba_ssm_states, live, row, whole[row])
        self.context.prefix_cache_lru_clock += 1
        for row in rows:
            self._register(row)
        slots.commit_intermediate_states()

    def _fill(self, conv: torch.Tensor, ssm: torch.Tensor, place: int, row: int, depth: int) -> None:
        value = self.hashes[row][depth // BLOCK_SIZE - 1]
        conv[:, place], ssm[:, place] = state_of(value, CONV), state_of(value, SSM)

    def _register(self, row: int) -> None:
        """Register as the context does: nothing below a block whose hash another block has."""
        hashes, blocks = self.hashes[row], self.blocks[row]
        known = self.kv.kv_hash_to_block_id
        pairs = zip(hashes, blocks, strict=False)
        right = next((at for at, (h, b) in enumerate(pairs) if known.get(h, b) != b), len(hashes))
        self.kv.register_kv_block_hashes(blocks[:right], hashes[:right])

    def resume(self, row: str) -> None:
        if int(row) not in self.blocks:
            return
        whole = list(zip(self.blocks[int(row)], self.hashes[int(row)], strict=False))
        live = int(self.context.mamba_metadata.request_to_mamba_state_idx[int(row)])
        for block, value in reversed(whole):
            if self.slots.has_state(block) and block not in self.unfilled:
                assert self.slots.restore_to_live(int(row), block)
                assert torch.equal(self.context.mamba_conv_states[:, live], state_of(value, CONV)), "C7"
                assert torch.equal(self.context.mamba_ssm_states[:, live], state_of(value, SSM)), "C7"
                return

    def release(self, row: str) -> None:
        if int(row) in self.blocks:
            self.context.prefix_cache_lru_clock += 1
            blocks = self.blocks.pop(int(row))
            self.context.request_to_kv_block_ids[int(row)] = -1
            self.kv.update_timestamps(blocks)
            self.kv.release_memory_blocks(blocks)

    def take_slots(self, row: str, *places: str) -> None:
        if int(row) in self.blocks:
            blocks = [self.blocks[int(row)][int(place)] for place in places]
            with contextlib.suppress(MambaSlotCapacityError):
                without = {block for block in blocks if not self.slots.has_state(block)}
                assert len(self.slots.allocate_slots_batch(blocks)) == len(blocks)
                self.unfilled |= without

    def invalidate(self, row: str, place: str) -> None:
        if int(row) in self.blocks:
            self.slots.invalidate_block(self.blocks[int(row)][int(place)])

    def hand(self, count: str) -> None:
        with contextlib.suppress(MambaSlotCapacityError):
            self.in_hand += self.slots._evict_lru_slots_batch(int(count))

    def store(self, row: str) -> None:
        self.slots.store_from_live_batch(self.in_hand[:1], [int(row)] * len(self.in_hand[:1]))

    def evict(self) -> None:
        blocks = self.kv.allocate_memory_blocks(self.kv.dummy_block_idx)
        assert blocks is not None
        self.kv.release_memory_blocks(blocks)

    def reset(self) -> None:
        self.kv.reset()
        self.slots.reset()
        self.blocks.clear()
        self.in_hand.clear()
        self.context.request_to_kv_block_ids.fill_(-1)

    # Checks.

    def run(self, program: str) -> Counter[str]:
        """Play a program, give everything back, and take every block."""
        seen = self.play(program)
        for row in list(self.blocks):
            seen += self.play(f"release {row}")
        assert self.kv.pool_avail + self.kv.evictable_blocks == self.kv.dummy_block_idx, "E3"
        seen += self.play("evict")
        assert self.slots.free_count + len(self.in_hand) == SLOTS, "C6: what became free lost its slot"
        return seen

    def play(self, program: str) -> Counter[str]:
        """Act, and check after each act."""
        seen: Counter[str] = Counter()
        for line in program.split(";"):
            act, *arguments = line.split()
            try:
                getattr(self, act)(*arguments)
            except InjectedFault:
                seen["faults"] += 1
            self.check()
            seen["states"] += len(self.slots.hash_to_block_id)
        return seen

    def check(self) -> None:
        """Books, references, and what is in the states that can be found."""
        check_kv_block_allocator(self.kv)
        check_mamba_slot_allocator(self.slots, self.in_hand)
        held = Counter(block for blocks in self.blocks.values() for block in blocks)
        counts = [held[block] for block in range(BLOCKS)]
        assert self.kv.block_ref_counts.tolist() == counts, "C1: a reference is lost"
        with_slot = [block for block in range(BLOCKS) if self.slots.has_state(block)]
        self.unfilled &= set(with_slot) - set(self.slots.hash_to_block_id.values())
        for block in set(with_slot) - self.unfilled:
            slot, value = self.slots.get_slot(block), int(self.kv.block_hashes[block])
            assert torch.equal(self.slots.conv_states[:, slot], state_of(value, CONV)), "C7"
            assert torch.equal(self.slots.ssm_states[:, slot], state_of(value, SSM)), "C7"


READ_ONLY = np.array([0, 1])
READ_ONLY.flags.writeable = False

# What callers have given by mistake, and some things that are no mistake.
ANYTHING: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 8, 9, 2**40, 2**63, 2**70, 1.5, float("nan"), 1j, "1", b"1", object()),
    *([], [0], [0, 0], [0, 1], [-1], [8], [9], [1.5], [True], [None], ["a"], [[0], [1]], [[0], [1, 2]]),
    *((0, 1), range(2), range(0), {0, 1}, {0: 1}, memoryview(b"ab"), bytearray(b"ab"), SimpleNamespace()),
    *(np.array([0, 1], dtype) for dtype in ("i4", ">i4", "u8", "f4", "O", "?")),
    *(np.array([0.5]), np.array([], float), np.array(["a"]), np.array(3), READ_ONLY, READ_ONLY[::-1]),
    *(np.int16(2), np.float32(2), np.bool_(True)),
    *(torch.tensor([0, 1], dtype=dtype) for dtype in (torch.int32, torch.uint16, torch.bool, torch.float16)),
    *(
        torch.tensor(1),
        torch.tensor(0.5),
        torch.tensor([[0, 1]]),
        torch.empty(0),
        torch.tensor([0, 1]).to_sparse(),
    ),
    *(torch.zeros(3), torch.zeros(2, 2), torch.zeros(3, requires_grad=True), torch.zeros(2, 2).double()),
)

REQUEST = SimpleNamespace(prompt_tokens=range(9), finished_chunk_token_count=0)

# Arguments that are right; the test puts anything in the place of each.
SLOT_CALLS: dict[str, tuple[Any, ...]] = {
    "allocate_slots_batch": ([3, 4],),
    "_evict_lru_slots_batch": (1,),
    "get_slot": (0,),
    "has_state": (0,),
    "invalidate_block": (0,),
    "_invalidate_blocks_batch": ([0, 1],),
    "on_kv_blocks_deregistered": ([0, 1], {7}),
    "store_from_tensors": (0, 1, torch.ones(2, 2), torch.ones(3)),
    "store_from_live_batch": ([0, 1], [1, 2]),
    "restore_to_live": (2, 0),
    "register_block_hashes_batch": ([0], [9700]),
    "compute_and_store_offsets": (REQUEST, 1, 0, 9, 1, [3], 3),
    "_copy_intermediate_to_cache": ([0, 1], [1, 2]),
}
BLOCK_CALLS: dict[str, tuple[Any, ...]] = {
    "allocate_memory_blocks": (2,),
    "release_memory_blocks": ([3],),
    "retain_memory_blocks": ([1],),
    "register_kv_block_hashes": ([3, 4], [77, 78], [0, 77]),
    "update_timestamps": ([0, 8],),
    "free_among": ([0, 8],),
}


def make_caller() -> BlockCaller:
    """Blocks 0 to 2 are a cached prompt with states, 0 is in use, as are 3 to 5; 6 and 7 are free."""
    caller = BlockCaller(PrefixCachingEvictionPolicy.LRU)
    caller.play("admit 0 a3 3; compute 0; release 0; admit 0 a1 1; admit 1 b3 3")
    return caller


def trace_of(caller: BlockCaller) -> list[Any]:
    """Every book, and every bit of a state."""
    kv, slots, context = caller.kv, caller.slots, caller.context
    tensors = [
        kv.block_ref_counts,
        kv.block_hashes,
        kv.block_timestamps,
        kv.block_parents,
        slots.block_to_slot,
        slots.slot_to_block,
    ]
    states = [slots.conv_states, slots.ssm_states, context.mamba_conv_states, context.mamba_ssm_states]
    return [
        *(each.tolist() for each in tensors + states),
        kv._free[: kv.pool_avail].tolist(),
        slots.free_slots[: slots.free_count].tolist(),
        *(dict(each) for each in (kv.kv_hash_to_block_id, slots.hash_to_block_id, slots._offsets.of_request)),
    ]


def refusal_of(part: Any, act: str, arguments: list[Any]) -> Exception | None:
    """Call, and return the error that was raised, if it is one of the documented ones."""
    try:
        getattr(part, act)(*arguments)
    except (TypeError, ValueError, IndexError, CapacityError) as error:
        return error
    return None


def give_anything(part: Callable[[BlockCaller], Any], act: str, right: tuple[Any, ...]) -> int:
    """Try everything in every place but a request's, and return how often that was refused."""
    refused = 0
    caller = make_caller()
    before = trace_of(caller)
    for place, thing in itertools.product(range(len(right)), ANYTHING):
        if right[place] is REQUEST:
            continue
        error = refusal_of(part(caller), act, [*right[:place], thing, *right[place + 1 :]])
        if error is None:
            caller = make_caller()
            continue
        assert str(error)
        assert trace_of(caller) == before, f"{act} changed something before it refused {thing!r}"
        refused += 1
    return refused


@pytest.mark.parametrize("act", SLOT_CALLS)
def test_what_the_slot_allocator_refuses_changes_nothing(act: str) -> None:
    """X1: a type, a range, a length or a number of tokens that is wrong; states are compared bit for bit."""
    getattr(make_caller().slots, act)(*SLOT_CALLS[act])
    assert give_anything(lambda caller: caller.slots, act, SLOT_CALLS[act]) > len(ANYTHING) // 3


@pytest.mark.parametrize("act", BLOCK_CALLS)
def test_what_the_block_allocator_refuses_changes_nothing(act: str) -> None:
    """X1: the stamps and the order of what is free included."""
    getattr(make_caller().kv, act)(*BLOCK_CALLS[act])
    assert give_anything(lambda caller: caller.kv, act, BLOCK_CALLS[act]) > len(ANYTHING) // 3


PROGRAMS = {
    "a prompt that is cached, found, and pushed out": """
        admit 0 a3 3; compute 0; release 0; admit 1 a3 4; resume 1; compute 1; release 1; admit 0 b4 4;
        compute 0; admit 1 c3 4; compute 1; release 0; release 1; admit 2 a3 3; resume 2; compute 2;
        release 2; admit 0 d5 8; compute 0; release 0; admit 0 a2 2; resume 0; release 0
    """,
    "three requests in one step, with too few slots for all": """
        admit 0 a2 3; admit 1 b2 2; admit 2 c1 1; compute 0 1 2; release 1; admit 1 b2 3; resume 1; compute 1;
        release 0; release 2; admit 0 d2 2; compute 0 1; admit 2 e2 2; compute 1 2; resume 2; release 0;
        release 1; release 2; admit 0 f4 8; compute 0; release 0
    """,
    "one prompt twice in a step": """
        admit 0 a3 3; admit 1 a3 3; compute 0 1; release 0; admit 0 a3 3; resume 0; compute 0; release 0;
        release 1; admit 2 b8 8; compute 2; release 2; admit 0 a1 2; compute 0; release 0
    """,
    "slots that callers ask for and hold in hand": """
        admit 0 a3 3; take_slots 0 0 1 2; invalidate 0 1; take_slots 0 1; compute 0; release 0; hand 1;
        admit 1 b2 3; compute 1; store 1; hand 1; resume 1; release 1; hand 2; admit 2 a3 4; take_slots 2 0 3;
        compute 2; release 2
    """,
    "a reset while everything is in use": """
        admit 0 a3 4; compute 0; admit 1 a3 3; resume 1; hand 0; reset; admit 0 b2 3; compute 0; release 0;
        admit 1 b2 2; resume 1; admit 2 c6 6; compute 2; release 1; release 2; reset; admit 0 a2 2; compute 0
    """,
}

# What fails, and the module-level names through which it is called; none where it is the observer itself.
FAULTS: dict[str, tuple[str, ...]] = {
    "an observer": (),
    "memory for an index": ("slot_states.row_index", "live_states.row_index"),
    "memory for rows": ("device_copies.gather_rows",),
    "a copy to the device": ("device_copies.send", "snapshot_offsets.send"),
    "reading a table": (
        "block_slots.host_array",
        "live_states.host_array",
        "mamba_slot_allocator.host_array",
    ),
}


class Countdown:
    """Let calls through but for the ``nth`` one (0: all of them)."""

    def __init__(self, nth: int) -> None:
        self.nth, self.calls = nth, 0

    def tick(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise InjectedFault(f"call {self.nth}")

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.tick()
            return call(*arguments)

        return counted


@contextlib.contextmanager
def failing(fault: str, countdown: Countdown) -> Iterator[None]:
    """Route the calls of a kind through a countdown."""
    with pytest.MonkeyPatch.context() as patch:
        for place in FAULTS[fault]:
            module_name, name = place.split(".")
            module = sys.modules[f"pymllm.core.inference.contexts.{module_name}"]
            patch.setattr(module, name, countdown.around(getattr(module, name)))
        yield


def run(program: str, fault: str, policy: PrefixCachingEvictionPolicy, nth: int) -> tuple[int, Counter[str]]:
    """Run a program with the nth call of a kind failing; return how many there were, and what was seen."""
    countdown = Countdown(nth)
    caller = BlockCaller(policy, (lambda: None) if FAULTS[fault] else countdown.tick)
    with failing(fault, countdown):
        seen = caller.run(PROGRAMS[program])
    return countdown.calls, seen


@pytest.mark.parametrize("policy", list(PrefixCachingEvictionPolicy), ids=lambda policy: policy.value)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_whichever_call_fails_nothing_is_lost(
    program: str, fault: str, policy: PrefixCachingEvictionPolicy
) -> None:
    """X2, C1, C2, C4, C7: the n-th, for every n; references, slots, hashes and the states behind them."""
    calls, seen = run(program, fault, policy, 0)
    assert calls > 0
    assert seen["states"] > 0
    for nth in range(1, calls + 1):
        reached, seen = run(program, fault, policy, nth)
        assert seen["faults"] == 1, f"of {reached} calls none was the {nth}th: runs differ before the fault"


REFUSING: dict[str, Callable[[BlockCaller], object]] = {
    "allocate_slots_batch": lambda caller: caller.slots.allocate_slots_batch(caller.blocks[1][:2]),
    "_evict_lru_slots_batch": lambda caller: caller.slots._evict_lru_slots_batch(1),
    "register_block_hashes_batch": lambda caller: caller.slots.register_block_hashes_batch(
        caller.blocks[0], caller.hashes[0]
    ),
    "store_from_live_batch": lambda caller: caller.slots.store_from_live_batch([0, 1], [2, 0]),
    "restore_to_live": lambda caller: caller.slots.restore_to_live(2, caller.blocks[0][0]),
    "_copy_intermediate_to_cache": lambda caller: caller.slots._copy_intermediate_to_cache([1, 2], [0, 2]),
}


@pytest.mark.parametrize("act", REFUSING)
def test_a_single_call_that_fails_below_has_changed_nothing(act: str) -> None:
    """X2, C5, C7: neither books nor a bit of a state, wherever in the call it fails."""
    failures = 0
    for fault in [each for each, names in FAULTS.items() if names]:
        caller, counted = make_caller(), Countdown(0)
        with failing(fault, counted):
            REFUSING[act](caller)
        for nth in range(1, counted.calls + 1):
            caller = make_caller()
            before = trace_of(caller)
            with failing(fault, Countdown(nth)), pytest.raises(InjectedFault):
                REFUSING[act](caller)
            assert trace_of(caller) == before
            caller.check()
            failures += 1
    assert failures > 0
