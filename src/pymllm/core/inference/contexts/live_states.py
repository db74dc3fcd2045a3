"""The live states of requests, as a context keeps them: their form, and which row is whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.device_copies import row_index
from pymllm.core.inference.contexts.host_numbers import host_array, host_integers
from pymllm.errors import UsageError
from pymllm.mem_cache.arguments import as_size
from pymllm.mem_cache.bit_view import bit_view


class LiveStates:
    """Find live states through a context.

    ``context``: offers ``mamba_conv_states``, ``mamba_ssm_states`` and
    ``mamba_metadata.request_to_mamba_state_idx``. ``conv_states``, ``ssm_states``: the cached states, whose
    form the live ones must have.
    """

    def __init__(self, context: Any, conv_states: torch.Tensor, ssm_states: torch.Tensor) -> None:
        self._context = context
        self._cached = {"mamba_conv_states": conv_states, "mamba_ssm_states": ssm_states}

    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the conv and the SSM buffer of the context."""
        conv, ssm = self._context.mamba_conv_states, self._context.mamba_ssm_states
        for (name, cached), live in zip(self._cached.items(), (conv, ssm), strict=True):
            if not isinstance(live, torch.Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(live).__name__}")
            wanted = (cached.shape[0], *cached.shape[2:], cached.dtype, cached.device)
            if (*live.shape[:1], *live.shape[2:], live.dtype, live.device) != wanted:
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
        if numbers.size and numbers.view(np.uint64).max() >= known:
            wrong = int(np.argmax((numbers < 0) | (numbers >= known)))
            raise UsageError(
                f"request {asked[wrong]} has no live state: its row of {known} is {numbers[wrong]}"
            )
        return numbers


def as_state_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Read the shape of the state of one layer and one request (X1)."""
    if not isinstance(shape, Sequence):
        raise TypeError(f"{name} must be a tuple of ints, got {type(shape).__name__}")
    return tuple(as_size(name, size) for size in shape)


def as_state(name: str, state: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
    """Read the state of one layer and one request, as bits.

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
