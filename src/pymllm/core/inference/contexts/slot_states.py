"""The recurrent states of layers, live or in slots, and the copies between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.block_slots import BlockSlots
from pymllm.core.inference.contexts.host_numbers import check_as_many, host_array, host_integers, is_outside
from pymllm.errors import UsageError
from pymllm.mem_cache.arguments import as_device, as_int, as_row_dtype, as_size, make_zeros
from pymllm.mem_cache.kernels.fused_rows import make_fused
from pymllm.mem_cache.kernels.fused_states import FusedStates, Rows
from pymllm.mem_cache.pools.rows import bit_view
from pymllm.mem_cache.uploads import row_index

MAX_INTERMEDIATE_OFFSETS_PER_REQUEST: Final = 3

_Numbers: TypeAlias = NDArray[np.int64] | torch.Tensor
_Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
_Form: TypeAlias = tuple[int, torch.Size, torch.dtype, torch.device]


def copy_rows(
    sources: Sequence[torch.Tensor], read: torch.Tensor, targets: Sequence[torch.Tensor], write: torch.Tensor
) -> None:
    """Copy the same rows between several pairs of buffers, in every layer and bit for bit.

    ``sources``, ``targets``: ``[layers, rows, ...]``; those of a pair are equal but for the number of rows.
    ``read``, ``write``: shape ``(n,)``, int64, on their device: rows of each source, and as many distinct
    rows of its target. Where the device has no memory for the rows, nothing has been written: all are
    gathered before the first is put in its place. A device that refuses to write the second pair leaves the
    first one written. Cost: two kernels per pair, however many rows and layers; no synchronisation. Laws: C7
    (bit-exact, the payload of a NaN included), X2.
    """
    gathered = [gather_rows(source, read) for source in sources]
    for target, rows in zip([bit_view(target) for target in targets], gathered, strict=True):
        target.index_copy_(1, write, rows)


def gather_rows(source: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """Return copies of rows in every layer, as bits, which is the only step of a copy that allocates."""
    return bit_view(source).index_select(1, read)


class Buffers(NamedTuple):
    """A pair of buffers, conv and SSM, with one row per state in all layers."""

    states: _Pair
    """The two buffers, each ``[layers, rows, ...]``."""
    bits: tuple[NDArray[Any], NDArray[Any]] | None
    """The same memory as NumPy integers; None on a device."""

    @classmethod
    def of(cls, conv: torch.Tensor, ssm: torch.Tensor) -> Buffers:
        """Return a view of two buffers on the same device. Cost: O(1)."""
        on_host = conv.is_cpu
        return cls((conv, ssm), (bit_view(conv).numpy(), bit_view(ssm).numpy()) if on_host else None)


def copy_host_rows(
    sources: Sequence[NDArray[Any]],
    read: NDArray[np.int64],
    targets: Sequence[NDArray[Any]],
    write: NDArray[np.int64],
) -> None:
    """Copy rows as `copy_rows` does, between different buffers on the host.

    Nothing is gathered, so no memory can be missing, and a large batch goes through the processor's caches
    once. With 17 KiB in four layers one state takes 4 us, 64 take 240 and 1,024 take 21 ms, where torch takes
    29, 530 and 30. Laws: C7, X2.
    """
    pairs = list(zip(read.tolist(), write.tolist(), strict=True))
    for source, target in zip(sources, targets, strict=True):
        for row, place in pairs:
            target[:, place] = source[:, row]


def _form(states: torch.Tensor) -> _Form:
    """Return the properties that live and cached states must share."""
    return states.shape[0], states.shape[2:], states.dtype, states.device


class LiveStates:
    """The live states in a context.

    ``context``: offers ``mamba_conv_states``, ``mamba_ssm_states`` and
    ``mamba_metadata.request_to_mamba_state_idx``. ``conv_states``, ``ssm_states``: the cached states, whose
    form the live ones must have.
    """

    def __init__(self, context: Any, conv_states: torch.Tensor, ssm_states: torch.Tensor) -> None:
        self._context = context
        self._cached = {"mamba_conv_states": conv_states, "mamba_ssm_states": ssm_states}
        self._forms = _form(conv_states), _form(ssm_states)

    def buffers(self) -> _Pair:
        """Return the conv and the SSM buffers of the context."""
        conv, ssm = self._context.mamba_conv_states, self._context.mamba_ssm_states
        for (name, cached), wanted, live in zip(self._cached.items(), self._forms, (conv, ssm), strict=True):
            if not isinstance(live, torch.Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(live).__name__}")
            if live.ndim < 2 or _form(live) != wanted:
                raise ValueError(
                    f"{name} is {list(live.shape)} {live.dtype} on {live.device}, the cached states are "
                    f"{list(cached.shape)} {cached.dtype} on {cached.device}; only the rows may differ"
                )
        return conv, ssm

    def rows(self, requests: Sequence[int]) -> NDArray[np.int64] | torch.Tensor:
        """Return the rows of requests in those buffers.

        Returns as many rows, int64: on the host where the context's table is, else where the states are.
        Cost: O(requests); no synchronisation.
        """
        table = self._context.mamba_metadata.request_to_mamba_state_idx
        asked = host_integers("request index", requests, len(table))
        if isinstance(table, torch.Tensor) and table.device.type != "cpu":
            found = table.index_select(0, row_index(asked, table.device))  # pragma: needs cuda
            return found.to(self._cached["mamba_conv_states"].device, torch.int64)  # pragma: needs cuda
        numbers = host_array(table)[asked].astype(np.int64)
        known = self._context.mamba_conv_states.shape[1]
        if is_outside(numbers, known):
            wrong = int(np.argmax((numbers < 0) | (numbers >= known)))
            raise UsageError(
                f"request {asked[wrong]} has no live state: its row of {known} is {numbers[wrong]}"
            )
        return numbers


def as_state_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the state of one layer and one request, after a check (X1)."""
    if not isinstance(shape, Sequence):
        raise TypeError(f"{name} must be a tuple of ints, got {type(shape).__name__}")
    return tuple(as_size(name, size) for size in shape)


def as_state(name: str, state: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
    """Return the state of one layer and one request as bits, after a check.

    ``cached``: ``[layers, slots, ...]``, where it is to go. Laws: C7, X1.
    """
    if not isinstance(state, torch.Tensor) or state.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {type(state).__name__}")
    if state.dtype is not cached.dtype:
        raise TypeError(f"{name} has dtype {state.dtype}, the slots keep {cached.dtype}; convert it first")
    if state.shape != cached.shape[2:]:
        raise ValueError(f"{name} has shape {list(state.shape)}, a slot {list(cached.shape[2:])}")
    # A conjugate or a negative may be no more than a mark on other numbers, which bits do not show.
    return bit_view(state.resolve_conj().resolve_neg())


class SlotStates(BlockSlots):
    """The states in slots: the part of a `MambaSlotAllocator` that copies states.

    ``context``, ``max_slots``, ``num_mamba_layers``, ``conv_states_shape``, ``ssm_states_shape``,
    ``conv_states_dtype``, ``ssm_states_dtype``, ``fused``: as of `MambaSlotAllocator`. Laws: C7.
    """

    def __init__(
        self,
        context: Any,
        max_slots: int,
        num_mamba_layers: int,
        conv_states_shape: tuple[int, ...],
        ssm_states_shape: tuple[int, ...],
        conv_states_dtype: torch.dtype,
        ssm_states_dtype: torch.dtype,
        *,
        fused: bool | None = None,
    ) -> None:
        super().__init__(context, max_slots)
        self.device = as_device(getattr(context, "device", "cpu"))
        self.num_mamba_layers = as_size("num_mamba_layers", num_mamba_layers)
        conv = as_state_shape("conv_states_shape", conv_states_shape)
        ssm = as_state_shape("ssm_states_shape", ssm_states_shape)
        conv_dtype = as_row_dtype(conv_states_dtype, self.device)
        ssm_dtype = as_row_dtype(ssm_states_dtype, self.device)
        requests = as_size("context.max_requests", context.max_requests)
        self.max_intermediate_count = MAX_INTERMEDIATE_OFFSETS_PER_REQUEST * requests
        self.conv_states = self._zeros(self.max_slots, conv, conv_dtype)
        self.ssm_states = self._zeros(self.max_slots, ssm, ssm_dtype)
        self.intermediate_conv_out = self._zeros(self.max_intermediate_count, conv, conv_dtype)
        self.intermediate_ssm_out = self._zeros(self.max_intermediate_count, ssm, ssm_dtype)
        self._cached = Buffers.of(self.conv_states, self.ssm_states)
        self._output = Buffers.of(self.intermediate_conv_out, self.intermediate_ssm_out)
        self._fused = make_fused(fused, self.device, lambda: FusedStates(*self._cached.states, within=False))
        self.is_fused = self._fused is not None
        self._live = LiveStates(context, self.conv_states, self.ssm_states)

    def store_from_tensors(
        self, block_id: int, layer_idx: int, ssm_state: torch.Tensor, conv_state: torch.Tensor
    ) -> None:
        """Write the states of one layer into the slot of a block.

        Parameters
        ----------
        block_id : int
            A block that has a slot.
        layer_idx : int
            ``0 <= layer_idx < num_mamba_layers``.
        ssm_state, conv_state : torch.Tensor
            Of exactly one slot's shape and dtype, on any device.

        Raises
        ------
        UsageError
            The block has no slot.
        IndexError
            The block or the layer does not exist.
        TypeError
            A state is no tensor, or of another dtype; nothing is ever cast.
        ValueError
            A shape does not fit; nothing is ever broadcast.

        Notes
        -----
        On an error nothing has been written, unless the device refuses the second copy: then invalidate the
        block. Cost: two copies. Laws: C7, X1.
        """
        slot = self.get_slot(block_id)
        if slot < 0:
            raise UsageError(f"block {block_id} has no slot; allocate_slots_batch gives it one")
        layer = as_int("layer_idx", layer_idx)
        if not 0 <= layer < self.num_mamba_layers:
            raise IndexError(f"layer_idx {layer} is outside 0..{self.num_mamba_layers - 1}")
        ssm = as_state("ssm_state", ssm_state, self.ssm_states)
        conv = as_state("conv_state", conv_state, self.conv_states)
        # Both places are found before the first is written to.
        ssm_place, conv_place = (
            bit_view(self.ssm_states[layer, slot]),
            bit_view(self.conv_states[layer, slot]),
        )
        ssm_place.copy_(ssm)
        conv_place.copy_(conv)

    def store_from_live_batch(self, slots: Sequence[int], request_indices: Sequence[int]) -> None:
        """Copy the live states of requests to slots, in all layers.

        Parameters
        ----------
        slots : list of int
            Distinct slots, in use or in hand.
        request_indices : list of int
            As many rows of the context.

        Raises
        ------
        IndexError
            A slot or a row does not exist.
        UsageError
            A request has no live state.
        ValueError
            Different lengths, a slot twice, or live states of another form than the cached ones.
        TypeError
            Something is not an integer.

        Notes
        -----
        On an error nothing has been written, unless the device refuses the second copy of two: then the slots
        have half of a state each: invalidate their blocks. Cost: one launch where ``is_fused``,
        else four, and up to two small uploads, however many slots and layers. No synchronisation; a captured
        graph copies the same rows at each replay. Laws: C7, X1.
        """
        targets = self._as_slots(slots)
        live = self._live.buffers()
        rows = self._live.rows(request_indices)
        check_as_many("slots", targets, len(rows), "requests")
        self._move(Buffers.of(*live), rows, self._cached, targets)

    def restore_to_live(self, request_idx: int, block_id: int) -> bool:
        """Copy the cached state of a block to the live state of a request, in all layers.

        Parameters
        ----------
        request_idx : int
            A row of the context.
        block_id : int
            The block behind which the request resumes.

        Returns
        -------
        bool
            False if the block has no cached state; the live state is as it was then.

        Raises
        ------
        IndexError
            The row or the block does not exist.
        UsageError
            The request has no live state.
        ValueError
            Live states of another form than the cached ones.
        TypeError
            Something is not an integer.

        Notes
        -----
        Cost: one launch where ``is_fused``, else four and two small uploads, however many layers. No
        synchronisation; a captured graph copies the same row at each replay. Laws: C7, X1.
        """
        slot = self.get_slot(block_id)
        row = self._live.rows([as_int("request_idx", request_idx)])
        live = self._live.buffers()
        if slot < 0:
            return False
        self._move(self._cached, np.array([slot]), Buffers.of(*live), row)
        return True

    def _copy_intermediate_to_cache(self, src_offsets: Sequence[int], slots: Sequence[int]) -> None:
        """Copy states from the output buffers to slots, in all layers.

        Parameters
        ----------
        src_offsets : list of int
            Rows of ``intermediate_ssm_out`` and ``intermediate_conv_out``.
        slots : list of int
            As many distinct slots.

        Raises
        ------
        IndexError
            A row or a slot does not exist.
        ValueError
            Different lengths, or a slot twice.
        TypeError
            Something is not an integer.

        Notes
        -----
        Errors and cost: as of `store_from_live_batch`. Laws: C7, X1.
        """
        sources = host_integers("src_offsets", src_offsets, self.max_intermediate_count)
        targets = self._as_slots(slots)
        check_as_many("slots", targets, sources.size, "rows")
        self._move(self._output, sources, self._cached, targets)

    def _move(self, sources: Buffers, read: _Numbers, targets: Buffers, write: _Numbers) -> None:
        """Copy rows between buffers, in one kernel launch if possible."""
        if self._fused is not None:
            rows = self._as_rows(read), self._as_rows(write)
            if self._fused.copy(len(read), sources.states, rows[0], targets.states, rows[1]):
                return
        if not len(read):
            return
        if sources.bits is not None and targets.bits is not None:
            copy_host_rows(sources.bits, host_array(read), targets.bits, host_array(write))
        else:
            copy_rows(sources.states, self._as_index(read), targets.states, self._as_index(write))

    def _as_rows(self, numbers: _Numbers) -> Rows:
        """Return row numbers for a kernel launch: a single host number unchanged, others on the device."""
        alone = isinstance(numbers, np.ndarray) and numbers.size == 1
        return int(numbers[0]) if alone else self._as_index(numbers)

    def _as_index(self, numbers: _Numbers) -> torch.Tensor:
        return row_index(numbers, self.device) if isinstance(numbers, np.ndarray) else numbers

    def mem_bytes(self) -> int:
        """Return the bytes of all states, including cached ones and output buffers (beyond the reference)."""
        cached = self.conv_states.nbytes + self.ssm_states.nbytes
        return cached + self.intermediate_conv_out.nbytes + self.intermediate_ssm_out.nbytes

    def _zeros(self, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return make_zeros("a buffer", (self.num_mamba_layers, rows, *shape), dtype, self.device)

    def _as_slots(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """Return slots to write to, which must be distinct, since either of two copies could win."""
        targets = host_integers("slots", slots, self.max_slots)
        if len(set(targets.tolist())) < targets.size:
            raise ValueError(f"slots {targets.tolist()} name one slot twice; each keeps one state")
        return targets
