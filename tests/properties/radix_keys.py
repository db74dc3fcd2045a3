"""Keys for the radix machine: drawn small, derived big.

A key is a few small integers: how many pages, where it turns off the common trunk (up to twice), and
a style that packs tail length, space and container. Two keys that turn off at different places share
everything before, so that splits, branches and re-insertions are common.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from radix_model import Path, Space, Token

SPACES = (
    *[Space()] * 12,
    Space("1"),
    Space(1),
    Space("lora"),
    Space(None, 2),
)
"""Where keys live; the plain one is drawn most. The string and the int 1 must not be mixed up (H3)."""

TRUNK, TURN = 7, 7 + 2**24
"""Tokens on the trunk and off it: equal to whoever drops their upper bits."""

CONTAINERS = ("list", "tuple", "array", "int32", "int64", "tensor32", "tensor64")
STYLES = len(SPACES) * len(CONTAINERS) * 4


def make_path(page_size: int, pages: int, turns: Sequence[int], style: int) -> Path:
    """Derive a key of ``pages`` whole pages and a tail.

    Odd turns are none, so that half of all keys stay on the trunk. A page off the trunk differs in its first
    token or, at the other turn, in its last token only: siblings must be told apart by whole pages (R9).
    """
    style, space = divmod(style // len(CONTAINERS), len(SPACES))
    tokens: list[Token] = []
    for page in range(pages):
        fill = [TRUNK] * page_size
        if page in turns and page % 2 == 0:
            fill[-1 if turns.index(page) else 0] = TURN
        tokens += fill
    tokens += [5] * (style % page_size)
    return in_space(SPACES[space], tokens)


def in_space(space: Space, tokens: Sequence[Token]) -> Path:
    """Return the tokens as a path of a space, doubled into bigrams where it wants them."""
    if space.width == 1:
        return Path(space, tuple(tokens))
    return Path(space, tuple((int(str(token)), 1) for token in tokens))


def make_container(path: Path, style: int) -> Any:
    """Return the path's tokens in the container that the style names (K1); bigrams are lists."""
    tokens = path.tokens
    kind = CONTAINERS[style % len(CONTAINERS)]
    if path.space.width > 1 or kind == "list":
        return list(tokens)
    if kind == "tuple":
        return tuple(tokens)
    if kind == "array":
        return array.array("I", tokens)
    if kind in ("int32", "int64"):
        return np.array(tokens, dtype=kind)
    return torch.tensor(tokens, dtype=torch.int32 if kind == "tensor32" else torch.int64)


def clobber(container: Any) -> None:
    """Overwrite a container as its owner may do once a call has returned (X5)."""
    if isinstance(container, torch.Tensor):
        container.fill_(3)
    elif not isinstance(container, tuple):
        for position in range(len(container)):
            container[position] = 3


def hash_pages(path: Path, page_size: int) -> list[str]:
    """Return the hash of each whole page of a path, computed from nothing but the path (H1 to H3)."""
    hashes = []
    prior = _seed(path.space.extra_key)
    for start in range(0, len(path.tokens) - page_size + 1, page_size):
        digest = hashlib.sha256(prior)
        for token in path.tokens[start : start + page_size]:
            for element in token if isinstance(token, tuple) else (token,):
                digest.update(element.to_bytes(4, "little"))
        prior = digest.digest()
        hashes.append(digest.hexdigest())
    return hashes


def _seed(extra_key: str | int | None) -> bytes:
    if extra_key is None:
        return b""
    name = f"s:{extra_key}" if isinstance(extra_key, str) else f"i:{extra_key}"
    return hashlib.sha256(b"\x00" + hashlib.sha256(name.encode()).digest()).digest()
