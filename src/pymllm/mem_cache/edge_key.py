"""The key of a tree node, made when somebody asks for it."""

from __future__ import annotations

from typing import ClassVar

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.one_owner import OneOwner
from pymllm.mem_cache.token_encoding import BYTES_PER_ID, decode_tokens

__all__ = ["EdgeKey"]


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
