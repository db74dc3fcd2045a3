"""The slots of a tree node, kept by page where a pool's pages are known."""

from __future__ import annotations

from functools import cache
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.token_encoding import BYTES_PER_ID, decode_tokens

PageStarts: TypeAlias = "NDArray[np.int64]"
"""The first slot of each page, in order; the page's other slots follow on."""

# Up to here NumPy is quicker: 2.4 us for 32 pages of 16 slots, where torch takes 3.2; for 8,192, 114 and 51.
_FEW_PAGES = 64


class EdgeKey(OneOwner):
    """What gives a node its ``key``: the tokens of its edge, read from the bytes that the tree compares.

    Trees work on the bytes alone. So a node has no `RadixKey` and no array of its own until its key is
    looked at: an insert is 0.8 us shorter and a node 170 bytes smaller.
    """

    _INSTEAD: ClassVar[str] = "keep its id, or match its prompt again"

    __slots__ = ("_key", "_length", "_namespace", "_raw")

    _key: RadixKey | None
    _namespace: str | int | None
    _raw: bytes
    _length: int

    @property
    def key(self) -> RadixKey | None:
        """The tokens of the edge, read-only; ``None`` before the node has an edge.

        An array, ``uint32``; a tuple of tuples where tokens have several integers: a key for any call.
        """
        if self._key is None and self._length:
            width = len(self._raw) // (self._length * BYTES_PER_ID)
            ids = decode_tokens(self._raw, width)
            self._key = RadixKey(ids if width == 1 else tuple(map(tuple, ids.tolist())), self._namespace)
        return self._key

    @key.setter
    def key(self, key: RadixKey | None) -> None:
        self._key = key


class EdgeSlots(EdgeKey):
    """What gives a node its ``value``: all its slots, or the first of each of its pages.

    A page of a key is one page of the pool (R1), so where the pool's pages are numbers that follow one
    another, the first says all. With pages of 16, an insert then copies, and an eviction reads, a sixteenth
    of the slots: a request of T3 in ``benchmarks`` took 89 us, now 75; a token takes 4.5 bytes and not 12.
    """

    __slots__ = ("_starts", "_value")

    _starts: PageStarts | None
    _value: torch.Tensor | None

    @property
    def value(self) -> torch.Tensor | None:
        """The KV slots, one per token: the node's own, or made now where it keeps its pages."""
        if self._starts is None:
            return self._value
        if self._starts.size == self._length:
            return torch.from_numpy(self._starts)
        return expand_pages(self._starts, self._length // self._starts.size)

    @value.setter
    def value(self, value: torch.Tensor | None) -> None:
        self._value, self._starts = value, None

    @property
    def evicted(self) -> bool:
        """Whether the KV slots are gone."""
        return self._value is None and self._starts is None


def expand_pages(starts: PageStarts, page_size: int) -> torch.Tensor:
    """Write down every slot of pages.

    ``starts``: the first slot of each, ``int64``, shape ``(n,)``. Returns ``int64``, shape ``(n *
    page_size,)``, on the CPU, memory of its own.
    """
    column = starts.reshape(-1, 1)
    if starts.size <= _FEW_PAGES:
        return torch.from_numpy((column + _offsets(page_size)).reshape(-1))
    # Into NumPy's memory: a megabyte of torch's own is of fresh pages in some processes: 350 us, not 52.
    slots = torch.from_numpy(np.empty((starts.size, page_size), np.int64))
    torch.add(torch.from_numpy(_offsets(page_size)), torch.from_numpy(column), out=slots)
    return slots.view(-1)


@cache
def _offsets(page_size: int) -> NDArray[np.int64]:
    return np.arange(page_size)
