"""Adapter of `pymllm.mem_cache.mamba_radix_cache.MambaRadixCache` and the track slots of a `GDNPool`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.own_prefix import pool_configurations
from pymllm.adapters.own_states import read_states, write_state
from pymllm.adapters.own_tree import OwnTree
from pymllm.adapters.recording_pool import RecordingStatePool
from pymllm.adapters.tree_view import view_hybrid_node, view_tree
from pymllm.errors import ProgramError
from pymllm.history.files import Config
from pymllm.history.operations import (
    AllocTrack,
    Fault,
    FreeTrack,
    Insert,
    Inspect,
    ReadStates,
    Span,
    WriteState,
)
from pymllm.history.outcomes import Done, Inspected, NodeView, NoRoom, Result, Slots
from pymllm.invariants import check_gdn_pool, check_mamba_radix_cache
from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache

__all__ = ["Mamba"]

_STATE_SIZES = ("mamba_evictable_size", "mamba_protected_size")


class Mamba(OwnTree):
    """`MambaRadixCache` with few track slots, over our plain allocator and over none.

    Parameters
    ----------
    name, config
        As of `OwnPrefixCache`, and ``track_slots``: how many the pool of states has.

    Attributes
    ----------
    states : RecordingStatePool
        What the cache gives its states back to.
    """

    CACHE: ClassVar[type[MambaRadixCache]] = MambaRadixCache
    """Whose object it is; what is a variation of ours names itself here."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["token", "none"], track_slots=3),
        *pool_configurations([None], ["token"], track_slots=1),
        *pool_configurations([None], ["token"], track_slots=32),
        *pool_configurations([None], ["token"], track_slots=3, check_ownership=False),
    )

    def claim(self) -> frozenset[str]:
        """Claim everything that is about nodes and states; an engine needs slots, too."""
        claimed = super().claim() | {"mamba", "bare_inserts", "bare_holds", "state_leaves", "lru_lists"}
        return claimed | {"engine"} if self.config["pool"] != "none" else claimed

    def build(self, page_size: int, pool: Any = None) -> MambaRadixCache:
        """Build another cache, without states."""
        return MambaRadixCache(page_size, pool)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> MambaRadixCache:
        """Build a cache over both pools."""
        inner = GDNPool(1, 1, 1, 1, 1, 1, 2, self._device, max_track_slots=self._size("track_slots"))
        self.states = RecordingStatePool(inner, lambda effect: self.effects.append(effect))
        return self.CACHE(self._size("page_size"), self.pool, self.states, on_node_evict)

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        """Return what tells the sizes of both kinds of memory, and what both pools have left."""
        return [
            *super().size_calls(),
            *((name, getattr(self.cache, name)) for name in _STATE_SIZES),
            ("available_track_slots", self.states.inner.available_track_slots),
        ]

    def _set_fault(self, fault: Fault | None) -> None:
        super()._set_fault(fault)
        self.states.fault = fault

    # -- track slots, called by who owns them ----------------------------------------------------------

    def do_alloc_track(self, step: int, operation: AllocTrack) -> Result:
        """Take one track slot."""
        slot = self.states.inner.alloc_track_slot()
        return NoRoom() if slot is None else Slots((slot,))

    def do_free_track(self, step: int, operation: FreeTrack) -> Result:
        """Give one track slot back."""
        self.states.inner.free_track_slot(self._one(operation.slot))
        return Done()

    def do_write_state(self, step: int, operation: WriteState) -> Result:
        """Write into a track slot."""
        write_state(self.states.inner, self._one(operation.slot), operation)
        return Done()

    def do_read_states(self, step: int, operation: ReadStates) -> Result:
        """Read every row of the pool of states."""
        return read_states(self.states.inner, operation.layer)

    def _one(self, span: Span) -> int:
        numbers = self.numbers((span,))
        if len(numbers) != 1:
            raise ProgramError(f"{span} names {len(numbers)} track slots; it must name one")
        return numbers[0]

    # -- states in and out -----------------------------------------------------------------------------

    def state_of(self, node: Any) -> int | None:
        """Return the track slot of the state at a node's end."""
        return None if node.mamba_value is None else int(node.mamba_value)

    def states_of(self, operation: Insert) -> dict[str, torch.Tensor]:
        """Hand the track slot over as a tensor of one integer or another (M1)."""
        if operation.state is None:
            return {}
        slot = self._one(operation.state)
        return {"mamba_value": torch.tensor([slot], dtype=torch.int32 if slot % 2 else torch.int64)}

    # -- looking inside --------------------------------------------------------------------------------

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Tell what a node looks like."""
        return view_hybrid_node(node, parent)

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        """Show every node and both lists."""
        lists = (self.cache.full_lru, self.cache.mamba_lru)
        full, with_state = (tuple(node.id for node in order) for order in lists)
        return Inspected(view_tree(self.cache.root_node, self.view), full, with_state)

    def audit(self) -> Sequence[str]:
        """Walk the tree, both lists and the pools, unless the last operation only read."""
        if not self.is_touched:
            return ()
        check_mamba_radix_cache(self.cache)
        check_gdn_pool(self.states.inner)
        if not self.cache.root_node.children:
            return (*self.audit_departed(), *self.audit_pool())
        laws = ["R5", "R6", "R7", "R8", "R9", "H2", "M8"]
        laws += ["M4", "M5", "M6", "M7"] if len(self.cache.mamba_lru) else []
        laws += ["R1"] if self.pool is not None and self.is_checked else []
        return (*laws, *self.audit_departed(), *self.audit_pool())
