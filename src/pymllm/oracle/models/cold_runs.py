"""The results of a cold run: KV, states and hashes of every prefix, from tokens alone (E1, C3, H1 to H3)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.errors import ProgramError
from pymllm.history.operations import CONV_PRIME, KV_FACTOR, KV_PRIME, SSM_PRIME, Namespace, Token
from pymllm.oracle.models.prefix_model import Path

_LARGEST_HASH = 2**63 - 1
_PARTIAL = 64
"""The greatest number of states remembered after one prefix, for requests in the middle of its next block."""


@functools.lru_cache(maxsize=4096)
def hash_page(numbers: tuple[int, ...], prior: str = "") -> str:
    """Return the SHA-256 of a page as hex: over the prior hash's raw bytes, then 4 bytes for each number.

    Remembered, since paths share their first pages, and every look asks for the hashes of every node.
    """
    page = b"".join([number.to_bytes(4, "little") for number in numbers])
    return hashlib.sha256(bytes.fromhex(prior) + page).hexdigest()


def numbers_of(token: Token) -> tuple[int, ...]:
    """Return the numbers of a token that are hashed: itself, or each number of a tuple."""
    return token if isinstance(token, tuple) else (token,)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A prefix of whole blocks; equal prefixes are the same object, and are compared by identity."""

    above: Prefix | None  # without the last block; ``None`` for nothing at all
    length: int  # tokens
    kv: int  # what is told of the last block
    last_kv: int  # of the last token
    state: tuple[int, ...]  # recurrent, at the end
    digest: str  # chained hash of the last block

    @property
    def hash(self) -> int:
        """Hash under which the last block is registered (C3)."""
        return (int(self.digest[:16], 16) & _LARGEST_HASH) or 1


class ColdRuns:
    """A generator of prefixes for cold runs, which computes each whole block only once.

    ``conv`` and ``ssm`` count elements, all layers together, 0 without recurrent layers; a weak hash keeps
    ``hash_digits`` hexadecimal digits, ``None`` all of SHA-256.
    """

    def __init__(self, block_size: int, conv: int, ssm: int, hash_digits: int | None = None) -> None:
        self.block_size = block_size
        self._elements = [(e, CONV_PRIME) for e in range(conv)] + [(e, SSM_PRIME) for e in range(ssm)]
        self._hash_digits = hash_digits
        self._maps: dict[int, list[tuple[int, int, int]]] = {}
        self._known: dict[tuple[Prefix, tuple[int, ...]], Prefix] = {}
        self._partial: dict[Prefix, dict[tuple[int, ...], tuple[int, ...]]] = {}
        self.nothing = Prefix(None, 0, 0, 0, (0,) * len(self._elements), "")

    def extend(self, prefixes: list[Prefix], tokens: Sequence[int]) -> None:
        """Add the missing prefixes of some tokens to the known prefixes, shortest first."""
        size = self.block_size
        for start in range(len(prefixes) * size, len(tokens) - size + 1, size):
            above = prefixes[-1] if prefixes else self.nothing
            prefixes.append(self._below(above, tuple(tokens[start : start + size])))

    def state_at(self, prefixes: Sequence[Prefix], tokens: Sequence[int], stop: int) -> tuple[int, ...]:
        """Return the state after ``tokens[:stop]``, given the prefixes of these tokens."""
        whole = stop // self.block_size
        above = prefixes[whole - 1] if whole else self.nothing
        rest = tuple(tokens[above.length : stop])
        # Asked for over and over while requests are looked at, and then a few tokens further on.
        known = self._partial.setdefault(above, {})
        state = known.get(rest)
        if state is None:
            near = max((it for it in known if rest[: len(it)] == it), key=len, default=())
            state = self._advance(known.get(near, above.state), rest[len(near) :])
            if len(known) == _PARTIAL:
                del known[next(iter(known))]
            known[rest] = state
        return state

    def kv_until(self, prefixes: Sequence[Prefix], tokens: Sequence[int], stop: int) -> tuple[int, ...]:
        """Return the KV checksum of each block of a cold run that has computed ``tokens[:stop]``."""
        whole = stop // self.block_size
        sums = [prefix.kv for prefix in prefixes[:whole]]
        if stop % self.block_size:
            above = prefixes[whole - 1] if whole else self.nothing
            sums.append(_fold(above.last_kv, tokens[above.length : stop])[0])
        return tuple(sums)

    def find_rival(self, above: Prefix, tokens: tuple[int, ...], tries: int = 1024) -> tuple[int, ...] | None:
        """Return another block with equal weak hash below the same prefix, if there is one (C3).

        So many last tokens are tried; ``None`` is returned if none of them will do.
        """
        wanted = self._hash(above.digest, tokens)
        others = ((*tokens[:-1], token) for token in range(tries) if token != tokens[-1])
        return next((other for other in others if self._hash(above.digest, other) == wanted), None)

    def below(self, above: Prefix | None, tokens: tuple[int, ...]) -> Prefix:
        """Return the prefix that continues a prefix (``None`` for the empty one) with a block of tokens."""
        return self._below(self.nothing if above is None else above, tokens)

    def _below(self, above: Prefix, tokens: tuple[int, ...]) -> Prefix:
        found = self._known.get((above, tokens))
        if found is None:
            kv, last = _fold(above.last_kv, tokens)
            state, digest = self._advance(above.state, tokens), self._hash(above.digest, tokens)
            found = Prefix(above, above.length + len(tokens), kv, last, state, digest)
            self._known[above, tokens] = found
        return found

    def _hash(self, prior: str, tokens: tuple[int, ...]) -> str:
        whole = hash_page(tokens, prior)
        return whole if self._hash_digits is None else whole[: self._hash_digits].rjust(16, "0")

    def _advance(self, state: tuple[int, ...], tokens: Sequence[int]) -> tuple[int, ...]:
        elements = [*state]
        if elements:
            for token in tokens:
                maps = self._maps.get(token) or self._map(token)
                elements = [(a * x + b) % prime for x, (a, b, prime) in zip(elements, maps, strict=True)]
        return tuple(elements)

    def _map(self, token: int) -> list[tuple[int, int, int]]:
        """Return the factor, summand and prime by which a token changes each element of a state."""
        maps = [
            (1 + (token + 1) * (e + 3) * 7919 % (prime - 1), (token + 1) * (e + 5) * 104_729 + e, prime)
            for e, prime in self._elements
        ]
        self._maps[token] = maps
        return maps


def _fold(last_kv: int, tokens: Sequence[int]) -> tuple[int, int]:
    """Return the KV checksum that is reported for the tokens of one block, and the KV of the last token."""
    total = 0
    for place, token in enumerate(tokens, 1):
        last_kv = (last_kv * KV_FACTOR + token + 1) % KV_PRIME
        total += place * last_kv
    return total, last_kv


@functools.lru_cache(maxsize=128)
def hash_pages(path: Path, page_size: int) -> tuple[str, ...]:
    """Return the hash of each whole page of a path, as hex digits, each chained to the one before it.

    Remembered, since every look asks for those of every node that has any.
    """
    hashes, prior = [], _seed(path.space.extra_key)
    for start in range(0, len(path.tokens) - page_size + 1, page_size):
        page = path.tokens[start : start + page_size]
        try:
            prior = hash_page(tuple([number for token in page for number in numbers_of(token)]), prior)
        except OverflowError:
            raise ProgramError("a token to be hashed is outside 0 .. 2**32 - 1") from None
        hashes.append(prior)
    return tuple(hashes)


def _seed(extra_key: Namespace) -> str:
    """Return the seed to which the hash of the first page of a namespace is chained (H3)."""
    if extra_key is None:
        return ""
    if isinstance(extra_key, tuple):
        name = b"t:" + b"".join(hashlib.sha256(_name(value)).digest() for value in extra_key)
    else:
        name = _name(extra_key)
    return hashlib.sha256(b"\x00" + hashlib.sha256(name).digest()).hexdigest()


def _name(value: str | int | None) -> bytes:
    """Return the text of one value of a namespace, or nothing for a missing value."""
    if value is None:
        return b""
    return (f"s:{value}" if isinstance(value, str) else f"i:{value}").encode()
