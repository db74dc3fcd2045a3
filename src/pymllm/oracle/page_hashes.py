"""The hash of each page of a path, computed from nothing but the path (H1 to H3)."""

from __future__ import annotations

import functools
import hashlib

from pymllm.errors import ProgramError
from pymllm.oracle.prefix_pages import Path

__all__ = ["hash_pages"]


@functools.lru_cache(maxsize=128)
def hash_pages(path: Path, page_size: int) -> tuple[str, ...]:
    """Return the hash of each whole page of a path, as hex digits, each chained to the one before it.

    Remembered, since every look asks for those of every node that has any.
    """
    try:
        return _hashes(path, page_size)
    except OverflowError:
        raise ProgramError("a token to be hashed is outside 0 .. 2**32 - 1") from None


def _hashes(path: Path, page_size: int) -> tuple[str, ...]:
    hashes = []
    prior = _seed(path.space.extra_key)
    for start in range(0, len(path.tokens) - page_size + 1, page_size):
        digest = hashlib.sha256(prior)
        for token in path.tokens[start : start + page_size]:
            for element in token if isinstance(token, tuple) else (token,):
                digest.update(element.to_bytes(4, "little"))
        prior = digest.digest()
        hashes.append(digest.hexdigest())
    return tuple(hashes)


def _seed(extra_key: str | int | None) -> bytes:
    """Return what the first page of a namespace chains from (H3)."""
    if extra_key is None:
        return b""
    name = f"s:{extra_key}" if isinstance(extra_key, str) else f"i:{extra_key}"
    return hashlib.sha256(b"\x00" + hashlib.sha256(name.encode()).digest()).digest()
