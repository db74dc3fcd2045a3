"""Someone who uses both allocators of block contexts directly, and rightly, even when a call fails."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from pymllm.core.inference.contexts import (
    KVBlockAllocator,
    MambaSlotAllocator,
    MambaSlotCapacityError,
    PrefixCachingEvictionPolicy,
)
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
