"""The interface of every prefix cache, its keys and results, and the documented hash functions."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pymllm.mem_cache.arguments import as_int
from pymllm.mem_cache.tree.token_encoding import encode_tokens

__all__ = [
    "BasePrefixCache",
    "EvictResult",
    "InsertResult",
    "MatchResult",
    "RadixKey",
    "hash_bytes",
    "hash_to_int64",
    "hash_token_ids",
]


def hash_token_ids(token_ids: Any, prior_hash: str | None = None) -> str:
    """Hash one page of tokens, chained to the pages before it.

    Parameters
    ----------
    token_ids : list, tuple, array.array, numpy.ndarray or torch.Tensor
        Tokens in ``0 .. 2**32 - 1``, each encoded as 4 bytes, little-endian, unsigned; tuples element by
        element. As of a `RadixKey`.
    prior_hash : str, optional
        Hex digest of the page before; its raw bytes go first, which makes the result depend on the position.
        ``None`` before a first page, and never an empty string.

    Returns
    -------
    str
        SHA-256 as 64 hex digits.

    Raises
    ------
    TypeError
        Tokens that are not integers, or a ``prior_hash`` that is no string.
    ValueError
        Tokens out of range, an array or tensor that has not one dimension, tuples of one integer or of
        several lengths; or a ``prior_hash`` that is not whole bytes in hexadecimal digits.

    Notes
    -----
    Cost: O(tokens). Laws: H1, X1.
    """
    raw, _ = encode_tokens(token_ids)
    return hashlib.sha256(_prior_bytes(prior_hash) + raw).hexdigest()


def _prior_bytes(prior_hash: str | None) -> bytes:
    if prior_hash is None:
        return b""
    if not isinstance(prior_hash, str):
        raise TypeError(f"prior_hash is {prior_hash!r}: give the hex digest of the page before, or None")
    try:
        digest = bytes.fromhex(prior_hash)
    except ValueError:
        digest = b""
    # `fromhex` skips blanks, which are no part of a digest.
    if not digest or 2 * len(digest) != len(prior_hash):
        raise ValueError(
            f"prior_hash is {prior_hash!r}: give the hex digest of the page before, or None for a first page"
        )
    return digest


def hash_to_int64(hex_str: str) -> int:
    """Read the first 16 hex digits of a digest as a signed 64-bit integer.

    Parameters
    ----------
    hex_str : str
        A hex digest of at least 16 digits.

    Returns
    -------
    int
        In ``-2**63 .. 2**63 - 1``.

    Raises
    ------
    TypeError
        Not a string.
    ValueError
        Fewer than 16 digits, or digits that are not hexadecimal.

    Notes
    -----
    Laws: H1.
    """
    if not isinstance(hex_str, str):
        raise TypeError(f"hex_str is {hex_str!r}: give a hex digest")
    try:
        digits = bytes.fromhex(hex_str[:16])
    except ValueError:
        digits = b""
    if len(digits) != 8:
        raise ValueError(f"hex_str is {hex_str!r}: give at least 16 hexadecimal digits")
    return int.from_bytes(digits, "big", signed=True)


def hash_bytes(data: bytes) -> int:
    """Hash bytes to an unsigned 64-bit integer, for instance as ``extra_key`` of a multimodal input.

    Parameters
    ----------
    data : bytes-like
        Any content.

    Returns
    -------
    int
        The first 8 bytes of the SHA-256 digest, big-endian, in ``0 .. 2**64 - 1``.

    Notes
    -----
    Laws: H1.
    """
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


Namespace = str | int | None | tuple[str | int | None, ...]
"""The part of a key besides its tokens on which KV depends: nothing, one value, or one per dimension."""


class RadixKey:
    """A token sequence within a namespace, under which a prefix cache stores KV.

    Parameters
    ----------
    token_ids : list, tuple, array.array, numpy.ndarray or torch.Tensor
        The tokens, ``0 .. 2**32 - 1``, an array or tensor of one dimension; or tuples of one length of two or
        more (bigrams), in a list or tuple. Kept as given, neither copied nor changed; a cache reads it during
        a call and keeps nothing of it (X5). The tokens are checked when a cache first reads them: of a
        tokenizer's batch of shape ``(1, n)`` give one row, ``ids[0]``.
    extra_key : str, int or tuple of these, optional
        Namespace (adapter, LoRA id, hash of an image). Keys of different namespaces never share a node. What
        counts is its value: a member of an enumeration of strings is the namespace that its string is.
        A tuple has a value for each dimension on which KV depends, such as salt, adapter, its version; None
        is a missing value. Missing values at the end are left out, and one value alone is the namespace.

    Raises
    ------
    TypeError
        ``extra_key``, or a value in it, is something else; a bool is.
    ValueError
        ``extra_key`` has half of a surrogate pair, which UTF-8 cannot spell and no hash can read.

    Notes
    -----
    Slices of arrays and tensors are views; a slice of a list is a list. Keys that hold arrays or tensors cost
    no work per token in Python. Keys are plain data: they copy and pickle. Laws: K1, K2, H3,
    X1.
    """

    __slots__ = ("token_ids", "extra_key")  # noqa: RUF023 - the documented order

    def __init__(self, token_ids: Any, extra_key: Namespace = None) -> None:
        self.token_ids = token_ids
        self.extra_key = None if extra_key is None else as_namespace(extra_key)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[Any]:
        """Yield the tokens as Python integers (or as tuples of them for wider tokens)."""
        ids = self.token_ids
        return iter(ids.tolist() if isinstance(ids, (np.ndarray, torch.Tensor)) else ids)

    def __getitem__(self, idx: int | slice) -> RadixKey:
        """Return a part of the key in the same namespace; an integer index gives a key of one token."""
        if isinstance(idx, slice):
            return RadixKey(self.token_ids[idx], self.extra_key)
        at, length = as_int("index", idx), len(self)
        if not -length <= at < length:
            raise IndexError(
                f"index {at} is outside a key of {length} tokens; negative numbers count from its end"
            )
        at %= length
        return RadixKey(self.token_ids[at : at + 1], self.extra_key)

    def __repr__(self) -> str:
        shown = list(self[:8])
        more = f", ... {len(self) - 8} more" if len(self) > 8 else ""
        return f"RadixKey({str(shown)[1:-1]}{more}; extra_key={self.extra_key!r})"


def as_namespace(extra_key: Namespace) -> Namespace:
    """Return a namespace as a plain str or int, or as a tuple of them in its shortest form.

    Cost: O(1) for each value, or O(length) for text beyond ASCII. Laws: K1, K2, H3, X1.
    """
    if extra_key is None or not isinstance(extra_key, tuple):
        return _as_value(extra_key)
    values = [_as_value(value) for value in extra_key]
    while values and values[-1] is None:
        values.pop()
    if len(values) > 1:
        return tuple(values)
    return values[0] if values else None


def _as_value(value: str | int | None) -> str | int | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.isascii():
            _check_utf8(text)
        return text
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    raise TypeError(f"extra_key is {value!r}: give None, a str or an int, or a tuple of these")


def _check_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"extra_key is {text!r}, whose character {error.start} is half of a surrogate pair: "
            "give text that UTF-8 can spell"
        ) from None


@dataclass(slots=True, eq=False)
class MatchResult:
    """The result of `BasePrefixCache.match_prefix`; a shallow copy shares the node, a deep copy is refused.

    Parameters
    ----------
    indices : torch.Tensor
        KV slots of the prefix in order, shape ``(prefix_len,)``, ``int64``, on the cache's device; a copy.
    last_node : node
        The node whose path spells exactly that prefix; the root for an empty one.
    prefix_len : int
        Tokens found, whole pages.
    mamba_branching_seqlen : int, optional
        Hybrid caches: tokens of KV found, where that is more than ``prefix_len``.
    """

    indices: torch.Tensor
    last_node: Any = None
    prefix_len: int = 0
    mamba_branching_seqlen: int | None = None


@dataclass(slots=True, eq=False)
class InsertResult:
    """The result of `BasePrefixCache.insert`; copied as a `MatchResult`.

    Parameters
    ----------
    prefix_len : int
        Leading tokens whose KV was present before the call, whole pages.
    last_node : node
        The node whose path spells the inserted key (windowed caches: see law S7 for a refused insert).
    mamba_exist : bool
        Hybrid caches: the node had a state already, so the given one is still the caller's.
    adopted : tuple of (int, int)
        Ascending, disjoint, maximal half-open ranges of the key whose incoming slots the cache now owns. All
        others are still the caller's (R4).
    """

    prefix_len: int = 0
    last_node: Any = None
    mamba_exist: bool = False
    adopted: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class EvictResult:
    """The result of `BasePrefixCache.evict`: counts of the tokens and states given back.

    Parameters
    ----------
    full_evicted : int
        Tokens removed from the cache.
    swa_evicted : int
        Tokens whose sliding-window KV was freed, those of removed nodes included.
    mamba_evicted : int
        States freed.
    """

    full_evicted: int = 0
    swa_evicted: int = 0
    mamba_evicted: int = 0


class BasePrefixCache(ABC):
    """The base class of prefix caches, which share the KV of equal prompt prefixes between requests.

    Implementations: `RadixCache` (a radix tree, with sliding windows), `ChunkCache` (caches nothing) and
    `MambaRadixCache` (KV and recurrent states). One scheduler thread owns a cache; none is thread-safe. A
    second thread is refused where it meets a call that is inside a pool or callback, and nowhere else.
    """

    @abstractmethod
    def reset(self) -> None:
        """Return all owned memory to the pools and start empty; old nodes become stale (X7)."""

    @abstractmethod
    def match_prefix(self, key: RadixKey) -> MatchResult:
        """Find the longest usable cached prefix of ``key``; ownership does not move (R2)."""

    @abstractmethod
    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        """Cache the slots of the whole pages of ``key``; `InsertResult.adopted` lists those taken."""

    @abstractmethod
    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        """Return ``num_tokens`` or more unlocked tokens (or all) to the pool, the least recent first."""

    @abstractmethod
    def inc_lock_ref(self, node: Any) -> Any:
        """Hold ``node`` and its ancestors; return the token that `dec_lock_ref` needs."""

    @abstractmethod
    def dec_lock_ref(self, node: Any, **kwargs: Any) -> None:
        """Release one hold that was taken at ``node``."""

    def evictable_size(self) -> int:
        """Return the number of cached tokens that no hold protects."""
        return 0

    def swa_evictable_size(self) -> int:
        """Return the number of tokens with sliding-window KV that no hold's window protects."""
        return 0

    def protected_size(self) -> int:
        """Return the number of cached tokens that a hold protects."""
        return 0

    def swa_protected_size(self) -> int:
        """Return the number of tokens inside the window of a hold."""
        return 0

    def total_size(self) -> int:
        """Return the number of cached tokens, including tombstoned ones."""
        return self.evictable_size() + self.protected_size()
