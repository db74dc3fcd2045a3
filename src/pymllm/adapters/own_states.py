"""The adapter of `GDNPool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.own_pool import OwnPool, as_elements, as_numbers
from pymllm.history.files import Config
from pymllm.history.operations import (
    AllocTrack,
    Clear,
    CopyStates,
    FreeTrack,
    ReadStates,
    ResetStates,
    WriteState,
)
from pymllm.history.outcomes import Done, NoRoom, Slots, States
from pymllm.invariants.pools import check_gdn_pool
from pymllm.mem_cache.gdn_pool import GDNPool

__all__ = ["GDNStates", "read_states", "write_state"]

_SMALL: Config = {
    "max_reqs": 3,
    "layers": 2,
    "v_heads": 1,
    "k_dim": 2,
    "v_dim": 1,
    "conv_dim": 2,
    "kernel": 3,
}
_FLAT: Config = {"max_reqs": 1, "layers": 3, "v_heads": 2, "k_dim": 1, "v_dim": 3, "conv_dim": 1, "kernel": 1}
_ONE = torch.tensor([1])


def write_state(pool: GDNPool, row: int, operation: WriteState) -> None:
    """Write a row of a pool through the views of a layer, as a kernel does."""
    firsts = (operation.recurrent, operation.conv)
    for view, first in zip(pool.get_layer_state(operation.layer), firsts, strict=True):
        numbers = [first + at * operation.ramp for at in range(view[row].numel())]
        view[row].copy_(as_elements(numbers, view.dtype).view(view[row].shape))


def read_states(pool: GDNPool, layer: int) -> States:
    """Read both views of a layer, all rows."""
    recurrent, conv = pool.get_layer_state(layer)
    return States(
        as_numbers(recurrent),
        as_numbers(conv),
        tuple(recurrent.shape),
        tuple(conv.shape),
        str(recurrent.dtype).removeprefix("torch."),
        str(conv.dtype).removeprefix("torch."),
    )


class GDNStates(OwnPool):
    """A `GDNPool`; an element is the bit pattern of its dtype, as in `KVBuffers`."""

    KIND = "states"
    POOL = GDNPool
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {**_SMALL, "dtype": "bfloat16", "track_slots": 2},
        {**_FLAT, "dtype": "float16", "track_slots": 3},
        {**_SMALL, "dtype": "float32", "track_slots": 0},
    )
    MALFORMED: ClassVar[Mapping[tuple[str, str], Callable[[Any], object]]] = {
        ("free_track", "a float slot"): lambda pool: pool.free_track_slot(float(pool.max_reqs + 1)),
        ("free_track", "a bool slot"): lambda pool: pool.free_track_slot(True),
        ("free_track", "no slot"): lambda pool: pool.free_track_slot(None),
        ("copy_states", "float rows"): lambda pool: pool.copy_states(_ONE / 1, _ONE - 1),
        ("copy_states", "bool rows"): lambda pool: pool.copy_states(_ONE > 0, _ONE - 1),
        ("copy_states", "float targets"): lambda pool: pool.copy_states(_ONE - 1, _ONE / 1),
        ("copy_states", "no target"): lambda pool: pool.copy_states(_ONE, None),
        ("reset_states", "float rows"): lambda pool: pool.reset_states(_ONE / 1),
        ("reset_states", "bool rows"): lambda pool: pool.reset_states(_ONE > 0),
        ("reset_states", "a string"): lambda pool: pool.reset_states("1"),
        ("read_states", "a float layer"): lambda pool: pool.get_layer_state(0.0),
        ("read_states", "no layer"): lambda pool: pool.get_layer_state(None),
    }

    def make_pool(self) -> object:
        """Build a pool that looks at the values of indices on any device."""
        return self.POOL(
            self.number("max_reqs"),
            self.number("layers"),
            self.number("v_heads"),
            self.number("k_dim"),
            self.number("v_dim"),
            self.number("conv_dim"),
            self.number("kernel"),
            self.device,
            self.dtype(),
            self.number("track_slots"),
            check_bounds=True,
        )

    def claim(self) -> frozenset[str]:
        """Return ``pool`` and ``refusals``."""
        return frozenset({"pool", "refusals"})

    def sizes(self) -> dict[str, int]:
        """Return ``max_track_slots`` and ``available_track_slots``."""
        return {
            "max_track_slots": self.pool.max_track_slots,
            "available_track_slots": self.pool.available_track_slots(),
        }

    def audit(self) -> Sequence[str]:
        """Look at the form of the states and walk the books of the track slots."""
        check_gdn_pool(self.pool)
        return ("P4", "P5", "X3")

    def do_alloc_track(self, step: int, operation: AllocTrack) -> Slots | NoRoom:
        """Take one track slot."""
        slot = self.pool.alloc_track_slot()
        return NoRoom() if slot is None else Slots((slot,))

    def do_free_track(self, step: int, operation: FreeTrack) -> Done:
        """Give one track slot back."""
        self.pool.free_track_slot(self.one(operation.slot))
        return Done()

    def do_write_state(self, step: int, operation: WriteState) -> Done:
        """Write through the views of a layer."""
        write_state(self.pool, self.one(operation.slot), operation)
        return Done()

    def do_copy_states(self, step: int, operation: CopyStates) -> Done:
        """Copy rows."""
        source, target = (self.numbers(spans) for spans in (operation.source, operation.target))
        self.pool.copy_states(self.index(source, operation.form), self.index(target, operation.form))
        return Done()

    def do_reset_states(self, step: int, operation: ResetStates) -> Done:
        """Zero rows."""
        self.pool.reset_states(self.index(self.numbers(operation.rows), operation.form))
        return Done()

    def do_read_states(self, step: int, operation: ReadStates) -> States:
        """Read both views of a layer."""
        return read_states(self.pool, operation.layer)

    def do_clear(self, step: int, operation: Clear) -> Done:
        """Take every track slot back and zero all states."""
        self.pool.clear()
        return Done()
