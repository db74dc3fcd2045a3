"""The tensors that hold keys and values: one pair of buffers per layer, one row per slot.

Who owns which slot is the allocator's business (`pymllm.mem_cache.slots.token_allocator`); this module only
stores rows, and refuses to store them anywhere but where it was told to.
"""

from __future__ import annotations

from typing import SupportsIndex

import torch

from pymllm.mem_cache.arguments import (
    as_device,
    as_int,
    as_row_dtype,
    as_size,
    as_switch,
    make_zeros,
    refuse_long_pool,
)
from pymllm.mem_cache.kernels.fused_kv import FusedKV
from pymllm.mem_cache.kernels.fused_rows import make_fused
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.pools.pinned import PinnedMemory, can_pin, size_of
from pymllm.mem_cache.pools.rows import as_integers, bit_view, check_range, is_readable
from pymllm.mem_cache.uploads import bring


class KVPool(OneOwner):
    """The keys and values of every layer, with one row per slot.

    Parameters
    ----------
    size : int
        Usable slots, a multiple of ``page_size``. They are numbered from ``page_size`` on (from 1 with
        pages of one token); slot 0 takes the writes of padded tokens.
    layer_num : int
        Transformer layers; each has one K and one V buffer.
    k_head_num, k_head_dim : int
        Key heads per token, elements per key head.
    device : str or torch.device
        Where the buffers are.
    dtype : torch.dtype
        Storage type of both buffers.
    v_head_num, v_head_dim : int, optional
        The same for values; as for keys unless given.
    pin_memory : bool
        Page-lock buffers on the CPU, so that copies to a GPU can overlap with computing: plain memory that
        CUDA is told of (``cudaHostRegister``), in one piece, given back when nobody has a buffer any more. It
        has no effect for buffers elsewhere, and none before CUDA is in use in this process, which it does not
        start: call ``torch.cuda.init()`` first.
    page_size : int
        Tokens per page of the allocator that numbers the slots.
    check_bounds : bool, optional
        Look at the values of index tensors before writing: always, never, or (None) those of tensors on the
        host, where looking does not synchronise and disturbs no graph capture. What an unchecked index
        outside the buffers does is undefined.
    fused : bool, optional
        Write K and V by one launch of a Triton kernel: always, never, or (None) on CUDA devices where Triton
        is installed and compiles. The bits are the same. Kernels are compiled here, not at the first write.

    Attributes
    ----------
    k_buffer, v_buffer : list of torch.Tensor
        Per layer ``[size + page_size, head_num, head_dim]``, contiguous, zero at first. They are shared with
        everybody who asks and are never replaced.
    is_fused : bool
        Whether a kernel writes both.
    is_pinned : bool
        Whether they are page-locked.

    Raises
    ------
    RuntimeError
        The driver does not page-lock so many bytes.
    TypeError
        A size is not an int, ``dtype`` is not a `torch.dtype`, or ``pin_memory`` is not a bool.
    ValueError
        A size is below 1 or too large, ``size`` is not a multiple of ``page_size``, torch has no such device,
        or it cannot read rows of such a dtype by index; or ``fused`` is True and cannot be.
    MemoryError
        The host has no memory for the buffers.

    Notes
    -----
    Not thread-safe: one scheduler thread owns a pool.
    Laws: A1 (the number of rows), P3, E5, X1, X5.
    Source: ``size + page_size`` rows because page 0 is reserved and the last page ends at
    ``size + page_size - 1``; zeros, because a masked read of a padding row that holds NaN is still NaN.
    """

    def __init__(
        self,
        size: int,
        layer_num: int,
        k_head_num: int,
        k_head_dim: int,
        device: str | torch.device = "cuda",
        dtype: torch.dtype = torch.float16,
        v_head_num: int | None = None,
        v_head_dim: int | None = None,
        pin_memory: bool = True,
        *,
        page_size: int = 1,
        check_bounds: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.size = as_size("size", size)
        self.layer_num = as_size("layer_num", layer_num)
        self.k_head_num = as_size("k_head_num", k_head_num)
        self.k_head_dim = as_size("k_head_dim", k_head_dim)
        self.v_head_num = self.k_head_num if v_head_num is None else as_size("v_head_num", v_head_num)
        self.v_head_dim = self.k_head_dim if v_head_dim is None else as_size("v_head_dim", v_head_dim)
        self.page_size = as_size("page_size", page_size)
        if self.size % self.page_size:
            raise ValueError(
                f"size {self.size} is not a multiple of page_size {self.page_size}; "
                f"use {self.size // self.page_size * self.page_size or self.page_size}"
            )
        refuse_long_pool(self.size, self.page_size)
        self.device = as_device(device)
        self.dtype = as_row_dtype(dtype, self.device)
        self.check_bounds = as_switch("check_bounds", check_bounds)
        if not isinstance(pin_memory, bool):
            raise TypeError(f"pin_memory must be True or False, got {pin_memory!r}")

        rows = self.size + self.page_size
        k_shape, v_shape = (rows, self.k_head_num, self.k_head_dim), (rows, self.v_head_num, self.v_head_dim)
        self.is_pinned = pin_memory and can_pin(self.device)
        buffers = self._make_buffers([k_shape] * self.layer_num + [v_shape] * self.layer_num)
        self.k_buffer, self.v_buffer = buffers[: self.layer_num], buffers[self.layer_num :]
        self._k_bits = [bit_view(buffer) for buffer in self.k_buffer]
        self._v_bits = [bit_view(buffer) for buffer in self.v_buffer]
        # Addresses of each layer's two buffers, from the first byte to after the last.
        self._spans = [
            (*_span_of(k), *_span_of(v)) for k, v in zip(self.k_buffer, self.v_buffer, strict=True)
        ]
        self._fused = make_fused(fused, self.device, lambda: FusedKV(self.k_buffer, self.v_buffer))
        self.is_fused = self._fused is not None

    def _make_buffers(self, shapes: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        if not self.is_pinned:
            made = [make_zeros("a buffer", shape, self.dtype, self.device) for shape in shapes]
            self._bytes = sum(buffer.nbytes for buffer in made)
            return made
        memory = PinnedMemory(sum(size_of(shape, self.dtype) for shape in shapes))
        self._bytes = len(memory)
        # A pool is often built while a model loads under inference mode; tensors born there could not be
        # written outside it.
        with torch.inference_mode(False):
            return memory.tensors(shapes, self.dtype)

    def __repr__(self) -> str:
        """Return the shape of the pool."""
        return (
            f"KVPool(size={self.size}, layer_num={self.layer_num}, "
            f"k={self.k_head_num}x{self.k_head_dim}, v={self.v_head_num}x{self.v_head_dim}, "
            f"dtype={self.dtype}, device='{self.device}', page_size={self.page_size})"
        )

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Return the key buffer of one layer, not a copy.

        Parameters
        ----------
        layer_id : int
            ``0 <= layer_id < layer_num``.

        Returns
        -------
        torch.Tensor
            Shape ``[size + page_size, k_head_num, k_head_dim]``, contiguous: ``view(rows, -1)`` is the
            flat layout.

        Raises
        ------
        IndexError
            There is no such layer; negative numbers do not count from the end.

        Notes
        -----
        Cost: O(1). Laws: P3, X5 (buffers are shared by design).
        """
        return self.k_buffer[self._check_layer(layer_id)]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """Return the value buffer of one layer, not a copy.

        Parameters
        ----------
        layer_id : int
            ``0 <= layer_id < layer_num``.

        Returns
        -------
        torch.Tensor
            Shape ``[size + page_size, v_head_num, v_head_dim]``, contiguous.

        Raises
        ------
        IndexError
            There is no such layer.

        Notes
        -----
        Cost: O(1). Laws: P3, X5.
        """
        return self.v_buffer[self._check_layer(layer_id)]

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the key and the value buffer of one layer, not copies.

        Parameters
        ----------
        layer_id : int
            ``0 <= layer_id < layer_num``.

        Returns
        -------
        tuple of torch.Tensor
            As from `get_key_buffer` and `get_value_buffer`.

        Raises
        ------
        IndexError
            There is no such layer.

        Notes
        -----
        Cost: O(1). Laws: P3, X5.
        """
        layer = self._check_layer(layer_id)
        return self.k_buffer[layer], self.v_buffer[layer]

    def set_kv_buffer(self, layer_id: int, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write keys and values into the named rows of one layer, and nowhere else.

        Parameters
        ----------
        layer_id : int
            ``0 <= layer_id < layer_num``.
        indices : torch.Tensor
            Slots, any integer dtype, any shape (n elements in all), any device. Slot 0 may repeat, for
            padded tokens; each of its elements is then one of theirs, for a GPU writes them side by side.
            Another slot that repeats is the caller's error.
        k, v : torch.Tensor
            One row for each index, in the pool's dtype and on its device. Any shape whose trailing
            dimensions multiply to ``head_num * head_dim`` and whose leading ones multiply to n:
            ``[n, heads, dim]``, ``[n, heads * dim]``, or ``[batch, seq, heads, dim]`` with indices
            ``[batch, seq]``. What lies in this layer's own buffers, seen through whatever tensor, is read
            before anything is written.

        Raises
        ------
        IndexError
            The layer, or an index, is outside the pool.
        TypeError
            ``indices`` has no integer dtype, or ``k`` or ``v`` not the pool's, or one of them is not a dense
            tensor; nothing is ever cast.
        ValueError
            A shape or a device does not fit; nothing is ever broadcast.

        Notes
        -----
        Cost: O(n) and one launch where ``is_fused``, whether indices are int32 or int64; two, and one to
        convert int32, where not, or where elements of a row of ``k`` or ``v`` lie apart or out of alignment.
        No synchronisation, unless ``check_bounds`` asks for it of ``indices`` on a device; those on the host
        are one copy more. Can be captured in a CUDA graph. On an error nothing has been written, neither K
        nor V.
        Laws: P3, E5, X1.
        """
        layer = self._check_layer(layer_id)
        if not isinstance(indices, torch.Tensor):
            raise TypeError(f"indices must be a tensor, got {type(indices).__name__}")
        index = as_integers("indices", indices)
        count = index.numel()
        k_rows = self._as_rows("k", k, (count, self.k_head_num, self.k_head_dim))
        v_rows = self._as_rows("v", v, (count, self.v_head_num, self.v_head_dim))
        # Moving rows about inside the buffers: a write could overtake what is still to be read.
        if self._is_own(k_rows, layer):
            k_rows = k_rows.clone()
        if self._is_own(v_rows, layer):
            v_rows = v_rows.clone()
        if is_readable(index, self.check_bounds):
            check_range("slot", index, self.size + self.page_size, "padded tokens are written to slot 0")
        self._write_rows(layer, index, k_rows, v_rows)

    def _write_rows(
        self, layer: int, index: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor
    ) -> None:
        """Write checked rows, in one kernel launch if possible."""
        if self._fused is not None and self._fused.write(layer, index, k_rows, v_rows):
            return
        index = bring(index, self.device)
        # Both are read as bits before either is written: what torch refuses to view, it refuses here.
        k_bits, v_bits = bit_view(k_rows), bit_view(v_rows)
        # index_copy_ is one kernel without a synchronisation on CUDA. On the CPU it was measured against
        # index_put_ for 4096 rows: 11 to 16 us with rows of 8 bytes, even with rows of 2 KiB.
        self._k_bits[layer].index_copy_(0, index, k_bits)
        self._v_bits[layer].index_copy_(0, index, v_bits)

    def mem_bytes(self) -> int:
        """Return the size of all buffers in bytes, including padding rows.

        Returns
        -------
        int
            Where ``is_pinned``, what is really taken, whole pages of the host; else what was asked of torch,
            whose allocator for CUDA may round up.
        """
        return self._bytes

    def _check_layer(self, layer_id: SupportsIndex) -> int:
        layer = as_int("layer_id", layer_id)
        if not 0 <= layer < self.layer_num:
            raise IndexError(f"layer_id {layer} is outside 0..{self.layer_num - 1}; layers count from 0")
        return layer

    def _as_rows(self, name: str, rows: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        """Return the checked rows of ``k`` or ``v``, in the shape of the pool's rows."""
        if not isinstance(rows, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(rows).__name__}")
        if rows.dtype is not self.dtype:
            raise TypeError(f"{name} has dtype {rows.dtype}, the pool stores {self.dtype}; convert it first")
        if rows.device != self.device:
            raise ValueError(f"{name} is on {rows.device}, the pool on {self.device}; move it first")
        if rows.layout is not torch.strided or rows.is_nested:
            raise TypeError(f"{name} is no dense tensor (layout {rows.layout}); give its rows in full")
        if rows.shape != shape:
            if not _is_batch_of_rows(rows.shape, shape[1] * shape[2], shape[0]):
                raise ValueError(
                    f"{name} of shape {list(rows.shape)} does not hold {shape[0]} rows of "
                    f"{shape[1]} * {shape[2]} elements, one for each index"
                )
            rows = rows.reshape(shape)
        # A conjugate or a negative may be no more than a mark on other numbers, which bits do not show.
        return rows.resolve_conj().resolve_neg() if rows.is_conj() or rows.is_neg() else rows

    def _is_own(self, rows: torch.Tensor, layer: int) -> bool:
        """Tell whether rows lie in the layer's own buffers, through whichever tensor."""
        first, end = _span_of(rows)
        k_first, k_end, v_first, v_end = self._spans[layer]
        return (first < k_end and k_first < end) or (first < v_end and v_first < end)


def _span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address range of a tensor's storage: its first byte, and the one after its last."""
    storage = tensor.untyped_storage()
    first = storage.data_ptr()
    return first, first + storage.nbytes()


def _is_batch_of_rows(shape: torch.Size, row: int, count: int) -> bool:
    """Tell whether the trailing dimensions multiply to ``row`` and the leading ones to ``count``."""
    trailing = 1
    for cut in range(len(shape), -1, -1):
        if trailing == row and shape[:cut].numel() == count:
            return True
        if cut:
            trailing *= shape[cut - 1]
    return False
