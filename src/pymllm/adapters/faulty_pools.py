"""Request rows, buffers, states and hashes that are wrong in one way each."""

from __future__ import annotations

from typing import Any, SupportsIndex

import torch

from pymllm.adapters.faulty import Faulty
from pymllm.adapters.own_buffers import KVBuffers
from pymllm.adapters.own_hashes import KeysAndHashes
from pymllm.adapters.own_rows import Rows
from pymllm.adapters.own_states import GDNStates
from pymllm.history.operations import HashInt64, SliceKey
from pymllm.history.outcomes import Number, Tokens
from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.index_arguments import IndexLike
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool

__all__ = [
    "DirtyRows",
    "LostNamespace",
    "LostPadding",
    "OneLayerCopies",
    "RowZero",
    "SilentCasts",
    "SwappedHeads",
    "UnsignedDigests",
    "WorkingSnapshots",
    "WritesEverywhere",
]


# -- rows ----------------------------------------------------------------------------------------------------


class _Rows(Faulty, Rows):
    SOUND = "rows"


class _CountsFromZero(ReqToTokenPool):
    def alloc(self, n: int = 1) -> list[int] | None:
        rows = super().alloc(n)
        return None if rows is None else [row - 1 for row in rows]

    def free(self, slot: int) -> None:
        super().free(slot + 1)


class RowZero(_Rows):
    """Hands out row 0."""

    BREAKS = "P1"
    POOL = _CountsFromZero


class _ZeroesACopy(ReqToTokenPool):
    def free(self, slot: int) -> None:
        table, self.req_to_token = self.req_to_token, self.req_to_token.clone()
        try:
            super().free(slot)
        finally:
            self.req_to_token = table


class DirtyRows(_Rows):
    """Frees rows without zeroing them."""

    BREAKS = "P2"
    POOL = _ZeroesACopy


# -- buffers -------------------------------------------------------------------------------------------------


class _KVBuffers(Faulty, KVBuffers):
    SOUND = "kv-buffers"


class _WritesEveryLayer(KVPool):
    def _write_rows(
        self, layer: int, index: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor
    ) -> None:
        for each in range(self.layer_num):
            super()._write_rows(each, index, k_rows, v_rows)


class WritesEverywhere(_KVBuffers):
    """Writes rows into every layer."""

    BREAKS = "P3"
    CONFIGURATIONS = tuple(config for config in KVBuffers.CONFIGURATIONS if config["layers"] != 1)
    POOL = _WritesEveryLayer


class _Casts(KVPool):
    def set_kv_buffer(self, layer_id: int, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().set_kv_buffer(layer_id, indices, k.to(self.dtype), v.to(self.dtype))


class SilentCasts(_KVBuffers):
    """Casts rows of another dtype."""

    BREAKS = "P3"
    POOL = _Casts


class _DropsPadding(KVPool):
    def _write_rows(
        self, layer: int, index: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor
    ) -> None:
        kept = index != 0
        super()._write_rows(layer, index[kept], k_rows[kept], v_rows[kept])


class LostPadding(_KVBuffers):
    """Drops what is written to slot 0."""

    BREAKS = "E5"
    POOL = _DropsPadding


# -- states --------------------------------------------------------------------------------------------------


class _GDNStates(Faulty, GDNStates):
    SOUND = "gdn-states"


class _StartsInTheRows(GDNPool):
    def _forget_track_slots(self) -> None:
        super()._forget_track_slots()
        self._free_track_slots = [slot - 1 for slot in self._free_track_slots]


class WorkingSnapshots(_GDNStates):
    """Hands out a working row as a track slot."""

    BREAKS = "P5"
    CONFIGURATIONS = GDNStates.CONFIGURATIONS[:2]  # the others have no track slots
    POOL = _StartsInTheRows


class _CopiesOneLayer(GDNPool):
    def copy_states(self, src_index: IndexLike | SupportsIndex, dst_index: IndexLike | SupportsIndex) -> None:
        others = self.recurrent_state[1:].clone(), self.conv_state[1:].clone()
        super().copy_states(src_index, dst_index)
        self.recurrent_state[1:], self.conv_state[1:] = others


class OneLayerCopies(_GDNStates):
    """Copies the states of the first layer only."""

    BREAKS = "P5"
    POOL = _CopiesOneLayer


class _SwapsDimensions(GDNPool):
    def __init__(self, *sizes: Any, **options: Any) -> None:
        reqs, layers, heads, k_dim, v_dim, *others = sizes
        super().__init__(reqs, layers, heads, v_dim, k_dim, *others, **options)


class SwappedHeads(_GDNStates):
    """Keeps the two dimensions of a head in the wrong order."""

    BREAKS = "P4"
    POOL = _SwapsDimensions


# -- keys and hashes -----------------------------------------------------------------------------------------


class _KeysAndHashes(Faulty, KeysAndHashes):
    SOUND = "hashes"


class LostNamespace(_KeysAndHashes):
    """Forgets the namespace of a key that is sliced."""

    BREAKS = "K1"

    def do_slice_key(self, step: int, operation: SliceKey) -> Tokens:
        """Slice a key."""
        return Tokens(super().do_slice_key(step, operation).tokens)


class UnsignedDigests(_KeysAndHashes):
    """Turns a digest into an unsigned number."""

    BREAKS = "H1"

    def do_hash_int64(self, step: int, operation: HashInt64) -> Number:
        """Turn a digest into a number."""
        return Number(super().do_hash_int64(step, operation).value % 2**64)
