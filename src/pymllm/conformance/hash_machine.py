"""The machine of keys and hashes: every container, slices from both ends, chains of pages."""

from __future__ import annotations

import random
from typing import ClassVar

from pymllm.conformance.acting import act
from pymllm.conformance.pool_machine import SEED, PoolMachine
from pymllm.history.operations import (
    HashBytes,
    HashInt64,
    HashPage,
    Key,
    Malformed,
    PickToken,
    SliceKey,
    Token,
)
from pymllm.history.outcomes import Hashes

__all__ = ["HashMachine"]

_NAMESPACES = (None, "lora", "", 7, 0, -1)
_LARGE_FORMS = ("list", "tuple", "int64", "tensor64")
_FORMS = (*_LARGE_FORMS, "array", "int32", "tensor32", "list 2", "tuple 2", "list 3")
"""Containers, and of how many numbers their tokens are tuples."""
_EDGES = (0, 1, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1)


class HashMachine(PoolMachine):
    """Drives `RadixKey` and the hash functions (K1, H1, X1)."""

    MALFORMED: ClassVar[tuple[Malformed, ...]] = (
        *(Malformed("slice_key", wrong) for wrong in ("a float start", "a float namespace")),
        *(Malformed("slice_key", wrong) for wrong in ("a bool namespace", "a tuple as namespace")),
        *(Malformed("pick_token", wrong) for wrong in ("a float index", "no index")),
        *(Malformed("hash_page", wrong) for wrong in ("float tokens", "a float array", "a bool array")),
        *(Malformed("hash_page", wrong) for wrong in ("a string of tokens", "a number of tokens")),
        *(
            Malformed("hash_page", wrong)
            for wrong in ("three dimensions", "empty tuples", "a number as prior")
        ),
        *(
            Malformed("hash_page", wrong)
            for wrong in ("two dimensions", "a list of lists", "tuples of one number")
        ),
        *(Malformed("hash_int64", wrong) for wrong in ("a number", "bytes")),
        *(Malformed("hash_bytes", wrong) for wrong in ("a string", "a number")),
    )

    def begin(self) -> None:
        """Start without a page to chain to."""
        self.last_digest: str | None = None

    @property
    def can_mix_widths(self) -> bool:
        """Whether a page of several widths is refused."""
        return self.can_refuse and self._has_bigrams

    @property
    def _has_bigrams(self) -> bool:
        return "bigrams" in self.examiner.adapter.capabilities

    # -- keys ----------------------------------------------------------------------------------------------

    @act(weight=2, count=(0, 5), form=(0, 9), start=(-7, 7), stop=(-7, 7), seed=SEED)
    def slice_key(self, count: int, form: int, start: int, stop: int, seed: int) -> None:
        """Slice a key; -7 stands for an end left out."""
        key = self._key(count, form, seed)
        self.do(SliceKey(key, None if start == -7 else start, None if stop == -7 else stop))

    @act(weight=2, count=(1, 5), form=(0, 9), at=(-6, 6), seed=SEED)
    def pick_token(self, count: int, form: int, at: int, seed: int) -> None:
        """Take one token of a key, or ask for one that is not there."""
        if self.can_refuse or -count <= at < count:
            self.do(PickToken(self._key(count, form, seed), at))

    # -- hashes --------------------------------------------------------------------------------------------

    @act(weight=3, count=(0, 5), form=(0, 9), is_chained=(0, 1), seed=SEED)
    def hash_page(self, count: int, form: int, is_chained: int, seed: int) -> None:
        """Hash a page, alone or after the last one."""
        prior = self.last_digest if is_chained else None
        result = self.do(HashPage(self._key(count, form, seed), prior)).result
        if isinstance(result, Hashes):
            self.last_digest = result.digests[0]

    @act(needs="can_refuse", count=(0, 3), form=(0, 3), wrong=(0, 4), seed=SEED)
    def hash_page_badly(self, count: int, form: int, wrong: int, seed: int) -> None:
        """Hash a page with a token that has no 4 bytes, or after something that is no digest."""
        source = random.Random(seed)
        tokens: tuple[Token, ...] = tuple(source.randrange(9) for _ in range(count))
        prior = {0: "no digest", 1: "abc"}.get(wrong)
        if wrong > 1:
            tokens = (*tokens, {2: -1, 3: 2**32, 4: 2**40}[wrong])
        self.do(HashPage(Key(tokens, None, _LARGE_FORMS[form]), prior))

    @act(needs="can_mix_widths", first=(0, 3), second=(0, 3))
    def hash_a_mixed_page(self, first: int, second: int) -> None:
        """Hash a page whose tokens have different widths, numbers among them, or are tuples of one number."""
        if first != second or first == 3:
            token: tuple[Token, ...] = (5, (5, 6), (5, 6, 7), (5,))
            self.do(HashPage(Key((token[first], token[second]))))

    @act(digits=(16, 64), seed=SEED)
    def hash_int64(self, digits: int, seed: int) -> None:
        """Turn a digest, or only its beginning, into a number."""
        digest = f"{random.Random(seed).getrandbits(256):064x}"
        self.do(HashInt64((digest.upper() if seed % 3 == 0 else digest)[:digits]))

    @act(needs="can_refuse", digits=(0, 15), is_hex=(0, 1))
    def hash_int64_badly(self, digits: int, is_hex: int) -> None:
        """Turn something too short, or not hexadecimal, into a number."""
        self.do(HashInt64("7" * digits if is_hex else "7" * digits + "-" * 8 + "7" * 8))

    @act(count=(0, 8), seed=SEED)
    def hash_bytes(self, count: int, seed: int) -> None:
        """Hash some bytes."""
        self.do(HashBytes(random.Random(seed).randbytes(count).hex()))

    def _key(self, count: int, form: int, seed: int) -> Key:
        """Make a key, in a container that can hold its tokens."""
        source = random.Random(seed)
        chosen, _, width = _FORMS[form].partition(" ")
        edges = _EDGES[:7] if chosen in ("int32", "tensor32") else _EDGES
        tokens: tuple[Token, ...] = tuple(source.choices(edges, k=count))
        if width and self._has_bigrams:
            tokens = tuple(tuple(source.choices(edges, k=int(width))) for _ in range(count))
        return Key(tokens, source.choice(_NAMESPACES), chosen)
