"""The adapter of `RadixKey` and the documented hash functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.key_forms import make_tokens
from pymllm.adapters.own_pool import OwnPool
from pymllm.history.operations import HashBytes, HashInt64, HashPage, Key, PickToken, SliceKey
from pymllm.history.outcomes import Hashes, Number, Tokens
from pymllm.mem_cache.base_prefix_cache import RadixKey, hash_bytes, hash_to_int64, hash_token_ids

__all__ = ["KeysAndHashes"]


class KeysAndHashes(OwnPool):
    """`RadixKey`, `hash_token_ids`, `hash_to_int64` and `hash_bytes`; there is nothing to build."""

    KIND = "hashes"
    MALFORMED: ClassVar[Mapping[tuple[str, str], Callable[[Any], object]]] = {
        ("slice_key", "a float start"): lambda _: RadixKey([1, 2])[0.5:],
        ("slice_key", "a float namespace"): lambda _: RadixKey([1, 2], 1.5),  # type: ignore[arg-type]
        ("slice_key", "a bool namespace"): lambda _: RadixKey([1, 2], True),
        ("slice_key", "a tuple as namespace"): lambda _: RadixKey([1, 2], ("a",)),  # type: ignore[arg-type]
        ("pick_token", "a float index"): lambda _: RadixKey([1, 2])[1.0],  # type: ignore[index]
        ("pick_token", "no index"): lambda _: RadixKey([1, 2])[None],  # type: ignore[index]
        ("hash_page", "float tokens"): lambda _: hash_token_ids([1, 1.0]),
        ("hash_page", "a float array"): lambda _: hash_token_ids(np.array([1.0])),
        ("hash_page", "a bool array"): lambda _: hash_token_ids(np.array([True])),
        ("hash_page", "a string of tokens"): lambda _: hash_token_ids("12"),
        ("hash_page", "a number of tokens"): lambda _: hash_token_ids(2),
        ("hash_page", "two dimensions"): lambda _: hash_token_ids(np.zeros((2, 2), dtype=np.uint32)),
        ("hash_page", "three dimensions"): lambda _: hash_token_ids(np.zeros((1, 1, 1), dtype=np.int64)),
        ("hash_page", "a list of lists"): lambda _: hash_token_ids([[1, 2]]),
        ("hash_page", "tuples of one number"): lambda _: hash_token_ids([(1,), (2,)]),
        ("hash_page", "empty tuples"): lambda _: hash_token_ids([()]),
        ("hash_page", "a number as prior"): lambda _: hash_token_ids([1], 2),  # type: ignore[arg-type]
        ("hash_int64", "a number"): lambda _: hash_to_int64(2),  # type: ignore[arg-type]
        ("hash_int64", "bytes"): lambda _: hash_to_int64(b"0" * 64),  # type: ignore[arg-type]
        ("hash_bytes", "a string"): lambda _: hash_bytes("12"),  # type: ignore[arg-type]
        ("hash_bytes", "a number"): lambda _: hash_bytes(2),  # type: ignore[arg-type]
    }

    def make_pool(self) -> None:
        """Build nothing: keys live for one operation, and functions for ever."""

    def claim(self) -> frozenset[str]:
        """Return what keys and hashes can do."""
        return frozenset({"bigrams", "extra_key", "hashes", "refusals"})

    def do_slice_key(self, step: int, operation: SliceKey) -> Tokens:
        """Slice a key."""
        return _read(_make_key(operation.key)[operation.start : operation.stop])

    def do_pick_token(self, step: int, operation: PickToken) -> Tokens:
        """Take one token of a key."""
        return _read(_make_key(operation.key)[operation.at])

    def do_hash_page(self, step: int, operation: HashPage) -> Hashes:
        """Hash tokens."""
        return Hashes((hash_token_ids(_make_key(operation.key).token_ids, operation.prior),))

    def do_hash_int64(self, step: int, operation: HashInt64) -> Number:
        """Turn a digest into a number."""
        return Number(hash_to_int64(operation.digest))

    def do_hash_bytes(self, step: int, operation: HashBytes) -> Number:
        """Hash bytes."""
        return Number(hash_bytes(bytes.fromhex(operation.data)))


def _make_key(key: Key) -> RadixKey:
    try:
        tokens = make_tokens(key)
    except (OverflowError, RuntimeError) as error:
        raise UnsupportedError(f"{key.form} cannot hold these tokens: {error}") from error
    return RadixKey(tokens, key.extra_key)


def _read(key: RadixKey) -> Tokens:
    """Read a key by iterating over it; its length is that of the container."""
    return Tokens(tuple(key)[: len(key)], key.extra_key)
