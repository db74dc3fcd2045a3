"""The adapter of Megatron-LM's KVBlockAllocator and MambaSlotAllocator, in the smallest context.

Neither checks what its callers owe (`careful_callers`), and ``ref_zero`` has no stamps to show. Where its
contract differs from ours, the adapter does what Megatron's own context does: a chain of blocks is registered
with the parents' hashes, and ids are handed over as the lists and tensors that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed import Calls
from pymllm.adapters.own_blocks import BlockContext, Blocks
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.megatron.package import load_megatron, load_slots
from pymllm_peers.projects import MEGATRON


@dataclass(eq=False)
class MegatronContext(BlockContext):
    """The smallest context with the attributes that Megatron also reads; rows of live states are a tensor."""

    gdp_num_householder: int = 0
    ssm_chunk_alignment: int = 2
    max_mamba_intermediate_states_per_step: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.mamba_metadata.request_to_mamba_state_idx
        self.mamba_metadata.request_to_mamba_state_idx = torch.tensor(rows)

    @property
    def live_rows(self) -> list[int]:
        rows: list[int] = self.mamba_metadata.request_to_mamba_state_idx.tolist()
        return [*rows[:-1], self.max_requests - 1]


class MegatronBlocks(Blocks):
    """The adapter of both allocators; it zeroes cached states on a reset, which Megatron does not do.

    Two more keys of its configuration hold it to what it does not promise, for one program: ``also`` names
    capabilities, and with ``whole_reset`` nothing is zeroed for it.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config
        for config in Blocks.CONFIGURATIONS
        if config["caching"]  # without, there is nothing to show
    )
    MALFORMED: ClassVar[Calls] = {}

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        MEGATRON.require_version()
        super().__init__(name, config)

    def make_pool(self) -> object:
        module = load_megatron("kv_block_allocator")
        policy = module.PrefixCachingEvictionPolicy(str(self.config.get("policy")))
        self.context = MegatronContext(
            int(self.config.get("requests") or 1), self.number("block_size"), policy, self.device
        )
        blocks = module.KVBlockAllocator(self.context, self.number("blocks") + 1, 0, True, policy)
        self.context.kv_block_allocator = blocks
        self.slots = self.make_slots(load_slots().MambaSlotAllocator) if self.config.get("slots") else None
        self.context.mamba_slot_allocator = self.slots
        blocks.on_blocks_deregistered = self._observe
        made: object = blocks
        return made

    def claim(self) -> frozenset[str]:
        """Claim the laws that both allocators keep for a careful caller."""
        common = {"pool", "callbacks", "inspect", "capacity_errors", "careful_callers"}
        common |= {"exact_lru"} if self.config["policy"] == "lru" else set()
        common |= {"mamba"} if self.config.get("slots") else set()
        return frozenset(common) | frozenset(str(self.config.get("also", "")).split())

    def sizes(self) -> dict[str, int]:
        sizes = self._sizes_of_blocks()
        return sizes if self.slots is None else {**sizes, "free_count": self.slots.free_count}

    def _sizes_of_blocks(self) -> dict[str, int]:
        evictable = int(self.pool.get_evictable_block_count())
        return {"pool_avail": int(self.pool.pool_avail), "evictable_blocks": evictable}

    def audit(self) -> Sequence[str]:
        return ()

    def _observe(self, blocks: list[int], hashes: set[int]) -> None:
        """Report a callback, and pass it on to the slots."""
        told = out.Effect("callback", tuple(blocks), tuple(sorted(hashes)), sizes=self._sizes_of_blocks())
        self.effects.append(told)
        if self.slots is not None:
            self.slots.on_kv_blocks_deregistered(blocks, hashes)

    def do_fault(self, step: int, operation: ops.Fault) -> out.Done:
        raise UnsupportedError("an observer may call in, which nobody refuses")

    # -- blocks --------------------------------------------------------------------------------------------

    def do_retain_blocks(self, step: int, operation: ops.RetainBlocks) -> out.Done:
        self.pool.retain_memory_blocks(self.numbers(operation.blocks))
        return out.Done()

    def do_release_blocks(self, step: int, operation: ops.ReleaseBlocks) -> out.Done:
        self.pool.release_memory_blocks(self._tensor(operation.blocks))
        return out.Done()

    def do_register_blocks(self, step: int, operation: ops.RegisterBlocks) -> out.Done:
        """Register blocks; without named parents, each entry is the child of the one before."""
        hashes = [*operation.hashes]
        parents = [0, *hashes][: len(hashes)] if operation.parents is None else [*operation.parents]
        self.pool.register_kv_block_hashes(self.numbers(operation.blocks), hashes, parents)
        return out.Done()

    def stamps(self) -> tuple[int, ...]:
        """Return the stamp of every block; with ``ref_zero`` there are none."""
        return super().stamps() if self.config["policy"] == "lru" else ()

    def do_stamp_blocks(self, step: int, operation: ops.StampBlocks) -> out.Done:
        self.pool.update_timestamps(self._tensor(operation.blocks))
        return out.Done()

    def _tensor(self, blocks: Sequence[ops.Span]) -> torch.Tensor:
        return torch.tensor(self.numbers(blocks), dtype=torch.int32)

    def do_evict_slots(self, step: int, operation: ops.EvictSlots) -> out.Slots:
        """Evict slots from blocks, after the check of an allocation of slots for how many may go."""
        slots = self._slotted()
        candidates = slots._evictable_block_ids()
        if len(candidates) < operation.count:
            raise load_slots().MambaSlotCapacityError(operation.count, len(candidates))
        taken = slots._evict_lru_slots_batch(operation.count, candidates)
        return out.Slots(tuple(taken))

    def do_reset(self, step: int, operation: ops.Reset) -> out.Done:
        super().do_reset(step, operation)
        if self.slots is not None and not self.config.get("whole_reset"):
            self.slots.conv_states.zero_()
            self.slots.ssm_states.zero_()
        return out.Done()
