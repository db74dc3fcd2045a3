"""The recurrent and convolution states of GDN (gated delta net) layers, by request row or track slot."""

from __future__ import annotations

import heapq
from typing import SupportsIndex

import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import (
    LAST_INT32,
    as_device,
    as_int,
    as_row_dtype,
    as_size,
    as_switch,
    make_zeros,
)
from pymllm.mem_cache.kernels.fused_rows import make_fused
from pymllm.mem_cache.kernels.fused_states import FusedStates, Rows
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.pools.rows import IndexLike, as_integers, bit_view, check_range, is_readable, is_single
from pymllm.mem_cache.uploads import bring


class GDNPool(OneOwner):
    """The states of all GDN layers, indexed like the rows of `ReqToTokenPool`.

    Rows ``1 .. max_reqs`` are the working states of the requests in those rows, row 0 is padding, and the
    rows from ``max_reqs + 1`` on are *track slots*: snapshots that a prefix cache keeps.

    Parameters
    ----------
    max_reqs : int
        ``ReqToTokenPool.size``.
    num_gdn_layers, num_v_heads, head_k_dim, head_v_dim : int
        Layers, value heads per layer, and the two dimensions of a head's state matrix.
    conv_dim : int
        Channels of the convolution.
    conv_kernel_size : int
        Its width; the state keeps ``conv_kernel_size - 1`` columns.
    device : str or torch.device
        Where the states are. The trackers of the track slots are on the host.
    dtype : torch.dtype
        Storage type of ``conv_state``; ``recurrent_state`` is float32.
    max_track_slots : int
        Snapshots that can be kept at a time; 0 for none.
    check_bounds : bool, optional
        Look at the values of index tensors before using them: always, never, or (None) those of
        tensors on the host, where looking does not synchronise and disturbs no graph capture. Ints
        are always looked at. What an unchecked index outside the pool does is undefined.
    fused : bool, optional
        Move states by one launch of a Triton kernel: always, never, or (None) on CUDA devices where Triton is
        installed and compiles. The bits are the same. Kernels are compiled here, not at the first copy.

    Attributes
    ----------
    recurrent_state : torch.Tensor
        ``[num_gdn_layers, pool_size, num_v_heads, head_v_dim, head_k_dim]`` float32, where ``pool_size`` is
        ``max_reqs + 1 + max_track_slots``; zero at first, never replaced.
    conv_state : torch.Tensor
        ``[num_gdn_layers, pool_size, conv_dim, conv_kernel_size - 1]`` in ``dtype``; zero at first, never
        replaced.
    is_fused : bool
        Whether a kernel moves both.

    Raises
    ------
    TypeError
        A size is not an int, or ``dtype`` is not a `torch.dtype`.
    ValueError
        A size is below 1 (``max_track_slots`` below 0) or too large, torch has no such device, or it cannot
        read rows of such a dtype by index; or ``fused`` is True and cannot be.
    MemoryError
        The host has no memory for the states.

    Notes
    -----
    Not thread-safe: one scheduler thread owns a pool.
    A call that finds no memory has changed nothing; after an interrupt in the middle of one, `clear` is the
    only call that is promised to work, and makes the pool new.
    Laws: P1, P4, P5, X1, X4, X7.
    Source: the documented interface gives two layouts, head_k_dim before head_v_dim for the whole tensor and
    the other way round for `get_layer_state`, which hands out views of it. Only one can be true; the view
    is what kernels receive and FlashInfer expects, so it decides.
    """

    def __init__(
        self,
        max_reqs: int,
        num_gdn_layers: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_dim: int,
        conv_kernel_size: int,
        device: str | torch.device = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        max_track_slots: int = 0,
        *,
        check_bounds: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.max_reqs = as_size("max_reqs", max_reqs, maximum=LAST_INT32)
        self.num_gdn_layers = as_size("num_gdn_layers", num_gdn_layers)
        self.num_v_heads = as_size("num_v_heads", num_v_heads)
        self.head_k_dim = as_size("head_k_dim", head_k_dim)
        self.head_v_dim = as_size("head_v_dim", head_v_dim)
        self.conv_dim = as_size("conv_dim", conv_dim)
        self.conv_kernel_size = as_size("conv_kernel_size", conv_kernel_size)
        self.max_track_slots = as_size("max_track_slots", max_track_slots, 0, LAST_INT32)
        self.device = as_device(device)
        self.dtype = as_row_dtype(dtype, self.device)
        self.check_bounds = as_switch("check_bounds", check_bounds)
        self.pool_size = self.max_reqs + 1 + self.max_track_slots

        recurrent = (self.num_v_heads, self.head_v_dim, self.head_k_dim)
        conv = (self.conv_dim, self.conv_kernel_size - 1)
        leading = (self.num_gdn_layers, self.pool_size)
        self.recurrent_state = self._make_states(leading + recurrent, torch.float32)
        self.conv_state = self._make_states(leading + conv, self.dtype)
        self._states = self.recurrent_state, self.conv_state
        self._fused = make_fused(fused, self.device, lambda: FusedStates(*self._states, within=True))
        self.is_fused = self._fused is not None
        self._forget_track_slots()

    def _make_states(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return make_zeros("a buffer", shape, dtype, self.device)

    def __repr__(self) -> str:
        """Return the shape of the pool and the number of free track slots."""
        return (
            f"GDNPool(max_reqs={self.max_reqs}, num_gdn_layers={self.num_gdn_layers}, "
            f"max_track_slots={self.max_track_slots}, dtype={self.dtype}, device='{self.device}', "
            f"available_track_slots={self.available_track_slots()})"
        )

    def get_layer_state(self, gdn_layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of one layer as views, not copies.

        Parameters
        ----------
        gdn_layer_idx : int
            ``0 <= gdn_layer_idx < num_gdn_layers``, counted over the GDN layers alone.

        Returns
        -------
        tuple of torch.Tensor
            ``[pool_size, num_v_heads, head_v_dim, head_k_dim]`` float32 and
            ``[pool_size, conv_dim, conv_kernel_size - 1]`` in ``dtype``, both contiguous.

        Raises
        ------
        IndexError
            There is no such layer; negative numbers do not count from the end.

        Notes
        -----
        Cost: O(1). Laws: P4, X5 (shared by design).
        """
        layer = as_int("gdn_layer_idx", gdn_layer_idx)
        if not 0 <= layer < self.num_gdn_layers:
            raise IndexError(f"gdn_layer_idx {layer} is outside 0..{self.num_gdn_layers - 1}")
        return self.recurrent_state[layer], self.conv_state[layer]

    def reset_states(self, req_pool_indices: IndexLike | SupportsIndex) -> None:
        """Fill exactly the named rows with zeros, in every layer.

        Parameters
        ----------
        req_pool_indices : torch.Tensor, numpy.ndarray, sequence of int, or int
            Rows to reset, any shape, any integer dtype, any device; working rows, track slots or row 0.

        Raises
        ------
        IndexError
            A row is outside the pool.
        TypeError
            Something is not an integer.

        Notes
        -----
        Cost: O(rows) and one launch where ``is_fused``, else two, however many layers; a copy for indices on
        the host. No synchronisation, unless ``check_bounds`` asks for it of indices on a device; can be
        captured in a CUDA graph. On an error nothing has changed.
        Laws: P5, X1.
        """
        rows = self._as_rows("req_pool_indices", req_pool_indices)
        if self._fused is not None and self._fused.clear(_count(rows), self._states, rows):
            return
        index = self._as_index(rows)
        for view in [bit_view(state) for state in self._states]:
            view.index_fill_(1, index, 0)

    def copy_states(self, src_index: IndexLike | SupportsIndex, dst_index: IndexLike | SupportsIndex) -> None:
        """Copy states from rows to rows, bit for bit, in every layer.

        Parameters
        ----------
        src_index, dst_index : int, torch.Tensor, numpy.ndarray or sequence of int
            Rows to read and rows to write, equally many, working rows or track slots. All are read before
            one is written, so a row may be in both. Naming a destination twice is the caller's error, row 0
            aside.

        Raises
        ------
        IndexError
            A row is outside the pool.
        TypeError
            Something is not an integer.
        ValueError
            The two have different lengths.

        Notes
        -----
        Cost: O(rows), however many layers. Where ``is_fused``, one launch for up to 512 rows and no memory;
        else four and a temporary copy of the rows; a copy for indices on the host. No synchronisation, unless
        ``check_bounds`` asks for it of indices on a device; can be captured in a CUDA graph. On an error
        nothing has changed.
        Laws: P5, X1.
        """
        src = self._as_rows("src_index", src_index)
        dst = self._as_rows("dst_index", dst_index)
        count = _count(src)
        if count != _count(dst):
            raise ValueError(f"{count} rows to read and {_count(dst)} to write; they must be equally many")
        if self._fused is not None and self._fused.copy(count, self._states, src, self._states, dst):
            return
        read, write = self._as_index(src), self._as_index(dst)
        views = [bit_view(state) for state in self._states]
        found = [view.index_select(1, read) for view in views]
        for view, rows in zip(views, found, strict=True):
            view.index_copy_(1, write, rows)

    def alloc_track_slot(self) -> int | None:
        """Allocate the lowest free track slot.

        Returns
        -------
        int or None
            A row in ``max_reqs + 1 .. pool_size - 1`` that is not handed out until it is freed; its content
            is whatever was there. None when all are handed out; the pool is then exactly as before.

        Notes
        -----
        Cost: O(log max_track_slots) on the host; no device call.
        Laws: P5, X3, X4.
        """
        if not self._free_track_slots:
            return None
        slot = self._free_track_slots[0]
        self._held_track_slots.add(slot)
        try:
            heapq.heappop(self._free_track_slots)
        except BaseException:
            self._held_track_slots.discard(slot)
            raise
        return slot

    def free_track_slot(self, slot: int) -> None:
        """Free a track slot, whose content stays until it is written again.

        Parameters
        ----------
        slot : int
            A track slot that is handed out.

        Raises
        ------
        OwnershipError
            The slot is not handed out, or is no track slot; always checked.
        TypeError
            ``slot`` is not an int.

        Notes
        -----
        Cost: O(log max_track_slots) on the host; no device call.
        Laws: P5, X1.
        """
        row = as_int("slot", slot)
        try:
            self._held_track_slots.remove(row)
        except KeyError:
            raise OwnershipError(
                f"track slot {row} is not handed out; track slots are "
                f"{self.max_reqs + 1}..{self.pool_size - 1} and each is freed once"
            ) from None
        try:
            heapq.heappush(self._free_track_slots, row)
        except BaseException:
            self._held_track_slots.add(row)
            raise

    def is_track_slot_handed_out(self, slot: int) -> bool:
        """Tell whether ``slot`` is a track slot that is handed out (beyond the documented interface).

        Cost: one lookup on the host; no device call. Laws: P5, M7.
        """
        return slot in self._held_track_slots

    def available_track_slots(self) -> int:
        """Return the number of track slots that can still be handed out (beyond the documented interface)."""
        return len(self._free_track_slots)

    def clear(self) -> None:
        """Free every track slot and set all states to zero (beyond the documented interface).

        Cost: one fill of all states; no synchronisation. Laws: X7 (the pool then behaves like a new one).
        """
        self.recurrent_state.zero_()
        self.conv_state.zero_()
        self._forget_track_slots()

    def mem_bytes(self) -> int:
        """Return the size of all states in bytes, including padding and track slots.

        Returns
        -------
        int
            Bytes as requested from torch (its allocator may round up).
        """
        return self.recurrent_state.nbytes + self.conv_state.nbytes

    def _forget_track_slots(self) -> None:
        # An ascending list already is a heap.
        free: list[int] = list(range(self.max_reqs + 1, self.pool_size))
        held: set[int] = set()
        self._free_track_slots, self._held_track_slots = free, held

    def _as_rows(self, name: str, value: IndexLike | SupportsIndex) -> Rows:
        """Return checked rows to be read or written."""
        if is_single(value) and not isinstance(value, torch.Tensor):
            row = as_int(name, value)
            if not 0 <= row < self.pool_size:
                raise IndexError(f"{name} {row} is outside 0..{self.pool_size - 1}; row 0 is padding")
            return row
        rows = as_integers(name, value)  # type: ignore[arg-type]
        if is_readable(rows, self.check_bounds):
            check_range(name, rows, self.pool_size, "row 0 is padding")
        return rows

    def _as_index(self, rows: Rows) -> torch.Tensor:
        """Return rows as an index on the pool's device."""
        if isinstance(rows, torch.Tensor):
            return bring(rows, self.device)
        # Filling a tensor over there neither synchronises nor reads host memory, unlike copying one.
        return torch.full((1,), rows, dtype=torch.int64, device=self.device)


def _count(rows: Rows) -> int:
    return rows.numel() if isinstance(rows, torch.Tensor) else 1
