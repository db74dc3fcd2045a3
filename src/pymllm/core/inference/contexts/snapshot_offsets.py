"""The offsets in a prefill chunk at which states are kept, and the states that a chunk leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pymllm.core.inference.contexts.slot_states import MAX_INTERMEDIATE_OFFSETS_PER_REQUEST
from pymllm.mem_cache.uploads import send


class CommitCandidate(NamedTuple):
    """A state to be cached; candidates sort in the order in which they are kept if slots run out."""

    is_inside: bool
    """Whether the state was extracted inside a chunk; states at prompt ends are preferred."""
    negative_depth: int
    """The number of tokens before the state, negated so that the deepest sorts first."""
    row: int
    """The row of the request, of which lower ones are preferred."""
    block: int
    """The block at whose end the state is."""
    source: int
    """The row of the output buffers; -1 for the live state at the end of a prompt."""


def commit_candidates(
    left_by: Mapping[int, Snapshots], first_row: int, extracted: Sequence[int]
) -> list[CommitCandidate]:
    """Return the states that a prefill batch leaves, each block once.

    Requests that share a block have the same state there, so one of them is enough. Laws: C7.
    """
    found: list[CommitCandidate] = []
    source = 0
    for row, count in enumerate(extracted, first_row):
        left = left_by.get(row)
        if left is not None:
            inside = zip(left.depths[:count], left.blocks, strict=False)
            found += [CommitCandidate(True, -d, row, b, source + at) for at, (d, b) in enumerate(inside)]
            if left.end_block >= 0:
                found.append(CommitCandidate(False, -left.end_depth, row, left.end_block, -1))
        source += count
    best: dict[int, CommitCandidate] = {}
    for candidate in sorted(found):
        best.setdefault(candidate.block, candidate)
    return list(best.values())


def snapshot_positions(
    boundaries: Sequence[int], first_token: int, stop: int, mamba_chunk_size: int
) -> list[int]:
    """Return the block boundaries inside a chunk at which the kernel can extract a state (C8)."""
    return sorted(
        {
            position
            for position in boundaries
            if first_token < position < stop and (position - first_token) % mamba_chunk_size == 0
        }
    )


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The states that one request's chunk leaves for the cache."""

    offsets: tuple[int, ...]  # Where states are extracted, relative to the first token computed; ascending
    depths: tuple[int, ...]  # The same from the start of the prompt
    blocks: tuple[int, ...]  # The block that ends at each
    end_block: int  # The block that ends with the prompt, if its state is to be kept; else -1
    end_depth: int  # Tokens of the prompt


class OffsetTable:
    """The states that each request's chunk leaves, with the offsets on the device.

    ``max_requests``: rows of a context. ``device``: where the forward pass reads them. The device sees one
    buffer that is never replaced, its rows in the order of the prefill batch and zero behind it, so a
    captured graph reads the same addresses in every step. Laws: C8, C9.
    """

    def __init__(self, max_requests: int, device: torch.device) -> None:
        self.of_request: dict[int, Snapshots] = {}
        self._max_requests = max_requests
        cells = max_requests * MAX_INTERMEDIATE_OFFSETS_PER_REQUEST
        with torch.inference_mode(False):
            self._buffer = torch.zeros(cells + max_requests, dtype=torch.int32, device=device)
        self._offsets = self._buffer[:cells].view(max_requests, MAX_INTERMEDIATE_OFFSETS_PER_REQUEST)
        self._counts = self._buffer[cells:]
        self._is_shown = False

    def clear(self) -> None:
        """Forget every request, also on the device."""
        self.of_request.clear()
        if self._is_shown:
            self._buffer.zero_()
            self._is_shown = False

    def show(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Copy the offsets of requests ``first .. first + count - 1`` to the device.

        Returns offsets ``[count, 3]`` and counts ``[count]``, int32, or (None, None) if there is no offset.
        Cost: one copy of the whole buffer; no synchronisation.
        """
        found = [
            (place, self.of_request[row].offsets)
            for place, row in enumerate(range(first, first + count))
            if row in self.of_request and self.of_request[row].offsets
        ]
        if not found:
            if self._is_shown:
                self._buffer.zero_()
                self._is_shown = False
            return None, None
        cells = np.zeros(self._buffer.numel(), np.int32)
        width = MAX_INTERMEDIATE_OFFSETS_PER_REQUEST
        for place, offsets in found:
            cells[place * width : place * width + len(offsets)] = offsets
            cells[self._max_requests * width + place] = len(offsets)
        self._is_shown = True  # if only in part, it is to be cleared all the same
        send(cells, self._buffer)
        return self._offsets[:count], self._counts[:count]
