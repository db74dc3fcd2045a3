"""Calls of the block allocators that no caller may make; each must be refused, whatever the state (X1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pymllm.adapters.base import UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = ["MALFORMED_BLOCKS"]

_Call = Callable[[Any], object]

_FLOATS = object()
"""Stands for `_zeros`: the words of this module are for programs in any language, too, without torch."""


def _zeros() -> torch.Tensor:
    import torch

    return torch.zeros(1)


def _of_ids(call: str, method: str, of_slots: bool = False) -> dict[tuple[str, str], _Call]:
    """Return calls of a method that takes ids, with what are none."""
    wrong: dict[str, Any] = {
        "float ids": [0.0],
        "bool ids": [True],
        "a tensor of floats": _FLOATS,
        "a string": "0",
        "no ids": None,
    }

    def spoil(value: Any) -> _Call:
        def spoiled(adapter: Any) -> object:
            owner = _slots(adapter) if of_slots else adapter.pool
            return getattr(owner, method)(_zeros() if value is _FLOATS else value)

        return spoiled

    return {(call, name): spoil(value) for name, value in wrong.items()}


def _slots(adapter: Any) -> Any:
    if adapter.slots is None:
        raise UnsupportedError("cached states")
    return adapter.slots


def _stored(adapter: Any) -> tuple[Any, int, torch.Tensor, torch.Tensor]:
    """Return the slots, a block that has one, and states that would fit."""
    slots = _slots(adapter)
    blocks = [block for block in slots.slot_to_block.tolist() if block >= 0]
    if not blocks:
        raise UnsupportedError("a store where no block has a slot")
    return slots, blocks[0], slots.ssm_states[0, 0] + 1, slots.conv_states[0, 0] + 1


def _store_short(adapter: Any) -> None:
    slots, block, ssm, conv = _stored(adapter)
    slots.store_from_tensors(block, 0, ssm, conv[:-1])


def _store_cast(adapter: Any) -> None:
    slots, block, ssm, conv = _stored(adapter)
    slots.store_from_tensors(block, 0, ssm.double(), conv)


def _store_list(adapter: Any) -> None:
    slots, block, ssm, conv = _stored(adapter)
    slots.store_from_tensors(block, 0, ssm, conv.tolist())


def _store_nowhere(adapter: Any) -> None:
    slots, block, ssm, conv = _stored(adapter)
    slots.store_from_tensors(block, 0.0, ssm, conv)


MALFORMED_BLOCKS: Final[Mapping[tuple[str, str], _Call]] = {
    ("alloc_blocks", "a negative count"): lambda adapter: adapter.pool.allocate_memory_blocks(-1),
    ("alloc_blocks", "a float count"): lambda adapter: adapter.pool.allocate_memory_blocks(1.0),
    ("alloc_blocks", "a bool count"): lambda adapter: adapter.pool.allocate_memory_blocks(True),
    **_of_ids("retain_blocks", "retain_memory_blocks"),
    **_of_ids("release_blocks", "release_memory_blocks"),
    **_of_ids("stamp_blocks", "update_timestamps"),
    ("register_blocks", "float ids"): lambda adapter: adapter.pool.register_kv_block_hashes([0.0], [1]),
    ("register_blocks", "a float hash"): lambda adapter: adapter.pool.register_kv_block_hashes([0], [1.0]),
    ("register_blocks", "a hash too many"): lambda adapter: adapter.pool.register_kv_block_hashes([], [1]),
    ("register_blocks", "a parent too many"): (
        lambda adapter: adapter.pool.register_kv_block_hashes([], [], [0])
    ),
    **_of_ids("alloc_slots", "allocate_slots_batch", of_slots=True),
    **_of_ids("drop_states", "_invalidate_blocks_batch", of_slots=True),
    ("drop_states", "a float id"): lambda adapter: _slots(adapter).invalidate_block(0.0),
    ("evict_slots", "a negative count"): lambda adapter: _slots(adapter)._evict_lru_slots_batch(-1),
    ("evict_slots", "a float count"): lambda adapter: _slots(adapter)._evict_lru_slots_batch(0.0),
    ("find_slots", "a float id"): lambda adapter: _slots(adapter).get_slot(0.0),
    ("find_slots", "a bool id"): lambda adapter: _slots(adapter).has_state(True),
    ("name_states", "a hash too many"): (
        lambda adapter: _slots(adapter).register_block_hashes_batch([], [1])
    ),
    ("name_states", "a float hash"): lambda adapter: _slots(adapter).register_block_hashes_batch([0], [1.0]),
    ("store_state", "a shorter state"): _store_short,
    ("store_state", "another dtype"): _store_cast,
    ("store_state", "a list"): _store_list,
    ("store_state", "a float layer"): _store_nowhere,
    ("save_live", "a slot twice"): lambda adapter: _slots(adapter).store_from_live_batch([0, 0], [0, 0]),
    ("save_live", "a slot outside"): lambda adapter: _slots(adapter).store_from_live_batch([-1], [0]),
    ("save_live", "a float request"): lambda adapter: _slots(adapter).store_from_live_batch([0], [0.0]),
    ("restore_live", "a float request"): lambda adapter: _slots(adapter).restore_to_live(0.0, 0),
    ("restore_live", "a float id"): lambda adapter: _slots(adapter).restore_to_live(0, 0.0),
}
"""Each call with what is wrong with it, made on an adapter of block allocators."""
