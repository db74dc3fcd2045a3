"""The adapter of `KVBlockAllocator` and `MambaSlotAllocator`, in a minimal context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from msgspec import structs

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.failing_calls import InjectedFault
from pymllm.adapters.kept_events import take_events
from pymllm.adapters.key_forms import CONTAINERS, clobber
from pymllm.adapters.malformed import MALFORMED_BLOCKS, Calls, call_malformed
from pymllm.adapters.own_pools import OwnPool, make_ramp, view_states
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm.invariants.blocks import check_kv_block_allocator, check_mamba_slot_allocator

_MAX_BLOCKS = 4


@dataclass(eq=False)
class BlockContext:
    """A minimal context for block allocators, with the attributes that they need and no requests.

    The clock and the live states are the caller's. The last of ``max_requests`` never has a live state; those
    of the others lie in the opposite order, so whoever takes a request for its row is found out.
    """

    max_requests: int
    block_size_tokens: int
    prefix_caching_eviction_policy: Any
    device: torch.device
    mamba_chunk_size: int = 2
    prefix_cache_lru_clock: int = 0
    kv_block_allocator: Any = None
    mamba_slot_allocator: Any = None
    mamba_conv_states: torch.Tensor | None = None
    mamba_ssm_states: torch.Tensor | None = None
    paused_request_count: int = 0
    batch_dimensions: Any = field(
        default_factory=lambda: SimpleNamespace(prefill_req_count=0, decode_req_count=0)
    )

    def __post_init__(self) -> None:
        shape = (self.max_requests, _MAX_BLOCKS)
        self.request_to_kv_block_ids = torch.full(shape, -1, dtype=torch.int32)
        self.mamba_metadata = SimpleNamespace(
            request_to_mamba_state_idx=[*range(self.max_requests - 2, -1, -1), -1],
            intermediate_count=0,
            per_request_intermediate_counts=[0] * self.max_requests,
        )

    @property
    def live_rows(self) -> list[int]:
        """The rows of each request's live state, and a last row that belongs to no request."""
        return [*self.mamba_metadata.request_to_mamba_state_idx[:-1], self.max_requests - 1]


_SMALL: Config = {
    **{"blocks": 8, "block_size": 4, "policy": "lru", "caching": True, "slots": 3},
    **{"requests": 4, "layers": 2, "conv_dim": 2, "conv_width": 2, "ssm_heads": 1, "ssm_dim": 3},
    **{"conv_dtype": "bfloat16", "ssm_dtype": "float32"},
}
_LARGE: Config = {**_SMALL, "blocks": 80, "block_size": 256, "slots": 64, "layers": 1}


class Blocks(OwnPool):
    """The adapter of a block allocator and the slot allocator that observes it, both in `context`.

    `BLOCKS` and `SLOTS` say whose objects they are; what is a variation of one of ours names itself there.
    """

    KIND = "blocks"
    BLOCKS: ClassVar[type[Any]] = KVBlockAllocator
    SLOTS: ClassVar[type[Any]] = MambaSlotAllocator
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _SMALL,
        {**_SMALL, "block_size": 256, "slots": 1, "conv_dtype": "float16", "ssm_dtype": "float16"},
        _LARGE,
        {**_SMALL, "block_size": 256, "policy": "ref_zero"},
        {**_SMALL, "policy": "ref_zero", "slots": 1},
        {**_LARGE, "policy": "ref_zero", "block_size": 4},
        {**_SMALL, "caching": False},
        {**_SMALL, "slots": None},
    )
    MALFORMED: ClassVar[Calls] = MALFORMED_BLOCKS

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._in_hand: set[int] = set()
        self._transfers: dict[int, int] = {}
        self._armed: ops.Fault | None = None
        self._fault: ops.Fault | None = None
        self._calls = 0

    def make_pool(self) -> object:
        """Build the context with both allocators, and return the block allocator."""
        policy, caching = str(self.config.get("policy")), self.config.get("caching") is not False
        self.context = BlockContext(
            int(self.config.get("requests") or 1), self.number("block_size"), policy, self.device
        )
        pool_size = self.number("blocks") + 1
        blocks = self.BLOCKS(
            self.context,
            pool_size,
            enable_prefix_caching=caching,
            prefix_caching_eviction_policy=policy,
        )
        self.context.kv_block_allocator = blocks
        self.slots: Any = self.make_slots(self.SLOTS) if self.config.get("slots") else None
        self.context.mamba_slot_allocator = self.slots
        blocks.on_blocks_deregistered = self._observe
        if "events" in self.capabilities:
            blocks.keep_events()
        return blocks

    def make_slots(self, slot_class: type[Any]) -> object:
        """Build the slot allocator, and the live states in the context."""
        layers, rows = self.number("layers"), self.number("requests")
        forms = []
        for part, sizes in (("conv", ("conv_dim", "conv_width")), ("ssm", ("ssm_heads", "ssm_dim"))):
            shape = tuple(self.number(size) for size in sizes)
            dtype = getattr(torch, str(self.config.get(f"{part}_dtype")))
            live = torch.zeros((layers, rows, *shape), dtype=dtype, device=self.device)
            setattr(self.context, f"mamba_{part}_states", live)
            forms.append((shape, dtype))
        (conv, conv_dtype), (ssm, ssm_dtype) = forms
        return slot_class(self.context, self.number("slots"), layers, conv, ssm, conv_dtype, ssm_dtype)

    def claim(self) -> frozenset[str]:
        """Return the claims of both allocators, with ``mamba`` if there are slots."""
        common = {"pool", "forms", "refusals", "callbacks", "faults", "inspect", "exact_lru"} | {
            "capacity_errors",
            "transfers",
        }
        common |= {"events"} if hasattr(self.BLOCKS, "keep_events") else set()  # those of others keep none
        return frozenset(common | ({"mamba"} if self.config.get("slots") else set()))

    def sizes(self) -> dict[str, int]:
        sizes = {"pool_avail": self.pool.pool_avail, "evictable_blocks": self.pool.evictable_blocks}
        return sizes if self.slots is None else {**sizes, "free_count": self.slots.free_count}

    def audit(self) -> Sequence[str]:
        """Check the internal state of the block and slot allocators."""
        check_kv_block_allocator(self.pool)
        if self.slots is None:
            return ("C1", "C3")
        check_mamba_slot_allocator(self.slots, self._in_hand)
        return ("C1", "C2", "C3", "C4", "C6")

    def do_malformed(self, step: int, operation: ops.Malformed) -> out.Done:
        """Make a malformed call of `MALFORMED`, on the block or the slot allocator."""
        return call_malformed(self.MALFORMED, operation, self)

    def do_take_events(self, step: int, operation: ops.TakeEvents) -> out.ToldEvents:
        if "events" not in self.capabilities:
            raise UnsupportedError("no events are kept")
        return take_events(self.pool)

    # -- the observer --------------------------------------------------------------------------------------

    def apply(self, step: int, operation: ops.Operation) -> out.Outcome:
        """Carry out an operation, with the fault that was armed just before."""
        self._fault, self._armed, self._calls = self._armed, None, 0
        return super().apply(step, operation)

    def do_fault(self, step: int, operation: ops.Fault) -> out.Done:
        """Arm a fault inside the observer of the next operation."""
        self._armed = operation
        return out.Done()

    def _observe(self, blocks: list[int], hashes: set[int]) -> None:
        """Record the observer's call, pass it to the slot allocator, and then cause any armed fault."""
        sizes = {"pool_avail": self.pool.pool_avail, "evictable_blocks": self.pool.evictable_blocks}
        self._calls += 1
        struck = self._fault.call if self._fault is not None and self._fault.nth == self._calls else ""
        note = self._call_again() if struck == "reenter" else ""
        self.effects.append(
            out.Effect("callback", tuple(blocks), tuple(sorted(hashes)), note=note, sizes=sizes)
        )
        if self.slots is not None:
            self.slots.on_kv_blocks_deregistered(blocks, hashes)
        if struck == "callback":
            raise InjectedFault("the observer was told to raise")

    def _call_again(self) -> str:
        """Make each call that an observer may not make, and return the error that all of them raised."""
        calls: tuple[Callable[[], object], ...] = (
            lambda: self.pool.allocate_memory_blocks(0),
            lambda: self.pool.retain_memory_blocks([]),
            lambda: self.pool.release_memory_blocks([]),
            lambda: self.pool.begin_transfer([]),
            lambda: self.pool.end_transfer(0),
            lambda: self.pool.register_kv_block_hashes([], []),
            lambda: self.pool.update_timestamps([]),
            lambda: self.pool.reset(),
            *([self.pool.keep_events] if "events" in self.capabilities else []),
        )
        met = [_error_of(call) for call in calls]
        return next((error for error in met if error != "RuntimeError"), "RuntimeError")

    # -- blocks --------------------------------------------------------------------------------------------

    @contextmanager
    def _handed(self, spans: Sequence[ops.Span], form: str) -> Iterator[Any]:
        """Pass numbers in a container that is overwritten afterwards."""
        if form not in CONTAINERS:
            raise ProgramError(f"form is {form!r}; it must be one of {', '.join(CONTAINERS)}")
        container = CONTAINERS[form](self.numbers(spans))
        try:
            yield container
        finally:
            clobber(container)

    def do_alloc_blocks(self, step: int, operation: ops.AllocBlocks) -> out.Slots | out.NoRoom:
        """Allocate blocks, and overwrite the returned container afterwards."""
        blocks = self.pool.allocate_memory_blocks(operation.count)
        if blocks is None:
            return out.NoRoom()
        given = tuple(blocks.tolist())
        clobber(blocks)
        return out.Slots(given)

    def do_retain_blocks(self, step: int, operation: ops.RetainBlocks) -> out.Done:
        with self._handed(operation.blocks, operation.form) as blocks:
            self.pool.retain_memory_blocks(blocks)
        return out.Done()

    def do_release_blocks(self, step: int, operation: ops.ReleaseBlocks) -> out.Done:
        with self._handed(operation.blocks, operation.form) as blocks:
            self.pool.release_memory_blocks(blocks)
        return out.Done()

    def do_begin_transfer(self, step: int, operation: ops.BeginTransfer) -> out.Done:
        with self._handed(operation.memory, "list") as blocks:
            self._transfers[step] = self.pool.begin_transfer(blocks)
        return out.Done()

    def do_end_transfer(self, step: int, operation: ops.EndTransfer) -> out.Done:
        if operation.transfer not in self._transfers:
            raise ProgramError(f"step {operation.transfer} began no transfer")
        self.pool.end_transfer(self._transfers[operation.transfer])
        return out.Done()

    def do_register_blocks(self, step: int, operation: ops.RegisterBlocks) -> out.Done:
        with self._handed(operation.blocks, operation.form) as blocks:
            parents = None if operation.parents is None else [*operation.parents]
            self.pool.register_kv_block_hashes(blocks, [*operation.hashes], parents)
        return out.Done()

    def do_stamp_blocks(self, step: int, operation: ops.StampBlocks) -> out.Done:
        with self._handed(operation.blocks, operation.form) as blocks:
            self.pool.update_timestamps(blocks)
        return out.Done()

    def do_set_clock(self, step: int, operation: ops.SetClock) -> out.Done:
        self.context.prefix_cache_lru_clock = operation.clock
        return out.Done()

    def do_reset(self, step: int, operation: ops.Reset) -> out.Done:
        """Reset the block and slot allocators, and the state of the context."""
        self.pool.reset()
        self.context.prefix_cache_lru_clock = 0
        if self.slots is not None:
            self.slots.reset()
            self._in_hand.clear()
            for live in self._live():
                live.zero_()
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.BlockBooks:
        pool, slots = self.pool, self.slots
        books = out.BlockBooks(
            _listed(pool.block_ref_counts),
            _listed(pool.block_hashes),
            self.stamps(),
            tuple(sorted(pool.kv_hash_to_block_id.items())),
        )
        if slots is None:
            return books
        return structs.replace(
            books,
            slot_of_block=_listed(slots.block_to_slot),
            block_of_slot=_listed(slots.slot_to_block),
            free_slots=_listed(slots.free_slots[: slots.free_count]),
            block_of_state=tuple(sorted(slots.hash_to_block_id.items())),
        )

    def stamps(self) -> tuple[int, ...]:
        """Return the stamp of every block."""
        return _listed(self.pool.block_timestamps)

    # -- slots ---------------------------------------------------------------------------------------------

    def _slotted(self) -> Any:
        if self.slots is None:
            raise UnsupportedError("cached states")
        return self.slots

    def do_alloc_slots(self, step: int, operation: ops.AllocSlots) -> out.Slots:
        slots = self._slotted()
        with self._handed(operation.blocks, "list") as blocks:
            return out.Slots(tuple(slots.allocate_slots_batch(blocks)))

    def do_evict_slots(self, step: int, operation: ops.EvictSlots) -> out.Slots:
        taken = self._slotted()._evict_lru_slots_batch(operation.count)
        self._in_hand.update(taken)
        return out.Slots(tuple(taken))

    def do_find_slots(self, step: int, operation: ops.FindSlots) -> out.FoundSlots:
        slots, blocks = self._slotted(), self.numbers(operation.blocks)
        found = tuple(slots.get_slot(block) for block in blocks)
        return out.FoundSlots(found, tuple(slots.has_state(block) for block in blocks))

    def do_name_states(self, step: int, operation: ops.NameStates) -> out.Done:
        slots = self._slotted()
        with self._handed(operation.blocks, "list") as blocks:
            slots.register_block_hashes_batch(blocks, [*operation.hashes])
        return out.Done()

    def do_drop_states(self, step: int, operation: ops.DropStates) -> out.Done:
        """Drop the states of blocks by the call that the operation names."""
        slots, blocks = self._slotted(), self.numbers(operation.blocks)
        if operation.how == "one by one":
            for block in blocks:
                slots.invalidate_block(block)
        elif operation.how == "batch":
            slots._invalidate_blocks_batch(blocks)
        else:
            slots.on_kv_blocks_deregistered(blocks, {*operation.hashes})
        return out.Done()

    # -- states --------------------------------------------------------------------------------------------

    def _live(self) -> tuple[torch.Tensor, torch.Tensor]:
        conv, ssm = self.context.mamba_conv_states, self.context.mamba_ssm_states
        if conv is None or ssm is None:
            raise UnsupportedError("live states")
        return conv, ssm

    def do_store_state(self, step: int, operation: ops.StoreState) -> out.Done:
        """Write one layer of a slot from tensors that are overwritten afterwards."""
        slots = self._slotted()
        ssm = make_ramp(slots.ssm_states[0, 0], operation.recurrent, operation.ramp)
        conv = make_ramp(slots.conv_states[0, 0], operation.conv, operation.ramp)
        slots.store_from_tensors(self.one(operation.block), operation.layer, ssm, conv)
        for state in (ssm, conv):
            state.zero_()
        return out.Done()

    def do_write_live(self, step: int, operation: ops.WriteLive) -> out.Done:
        conv, ssm = self._live()
        row = self.context.live_rows[operation.request]
        for live, first in ((ssm, operation.recurrent), (conv, operation.conv)):
            state = live[operation.layer, row]
            state.copy_(make_ramp(state, first, operation.ramp))
        return out.Done()

    def do_save_live(self, step: int, operation: ops.SaveLive) -> out.Done:
        slots = self._slotted()
        with self._handed(operation.slots, "list") as targets:
            slots.store_from_live_batch(targets, [*operation.requests])
        return out.Done()

    def do_restore_live(self, step: int, operation: ops.RestoreLive) -> out.Number:
        return out.Number(int(self._slotted().restore_to_live(operation.request, self.one(operation.block))))

    def do_read_states(self, step: int, operation: ops.ReadStates) -> out.States:
        slots = self._slotted()
        return view_states(slots.ssm_states[operation.layer], slots.conv_states[operation.layer])

    def do_read_live(self, step: int, operation: ops.ReadLive) -> out.States:
        """Read the live states of a layer, in the order of requests."""
        conv, ssm = self._live()
        states, rows = view_states(ssm[operation.layer], conv[operation.layer]), self.context.live_rows
        # Put in order here: to index both tensors by a list took as long as all the rest.
        recurrent, convolved = (tuple(part[row] for row in rows) for part in (states.recurrent, states.conv))
        return structs.replace(states, recurrent=recurrent, conv=convolved)


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def _listed(view: torch.Tensor) -> tuple[int, ...]:
    return tuple(view.tolist())
