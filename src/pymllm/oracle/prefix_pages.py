"""What the model of a prefix cache is made of: paths, pages, holds, and what an insert is going to do."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pymllm.errors import ProgramError
from pymllm.history.operations import Key, Token

__all__ = [
    "Found",
    "Hold",
    "InsertPlan",
    "NotUsableError",
    "Page",
    "Path",
    "Space",
    "demand_namespace",
    "ends_of_pages",
    "merge_runs",
    "path_of_key",
]


class Space(NamedTuple):
    """What keys must share before their tokens are compared (K1)."""

    extra_key: str | int | None = None
    width: int = 1


_new = tuple.__new__  # Paths are made by the million: past the call in Python they take half as long.


class Path(NamedTuple):
    """A whole token prefix within its space; the empty one is the root."""

    space: Space
    tokens: tuple[Token, ...]

    def upto(self, end: int) -> Path:
        """Return the prefix of the first ``end`` tokens."""
        return _new(Path, (self.space, self.tokens[:end]))

    def longer_by(self, tokens: tuple[Token, ...]) -> Path:
        """Return the prefix that goes on with these tokens."""
        return _new(Path, (self.space, self.tokens + tokens))

    def covers(self, other: Path) -> bool:
        """Tell whether this is a prefix of ``other``, or equal to it."""
        return self.space == other.space and self.tokens == other.tokens[: len(self.tokens)]


@functools.lru_cache(maxsize=128)
def ends_of_pages(path: Path, page_size: int) -> tuple[Path, ...]:
    """Return the prefix at the end of each whole page of a path, shortest first.

    Remembered, since a match alone asks four times: a fifth of the judge's time over a radix cache.
    """
    return tuple(path.upto(end) for end in range(page_size, len(path.tokens) + 1, page_size))


def path_of_key(key: Key) -> Path:
    """Return the path that a key spells, an unaligned tail included.

    Raises
    ------
    ProgramError
        Its tokens are of different kinds, or tuples of one number, which are no tokens, or its namespace is
        no text (K1).
    """
    demand_namespace(key)
    widths = {len(token) if isinstance(token, tuple) else 1 for token in key.tokens}
    if len(widths) > 1:
        raise ProgramError(f"the tokens of a key have widths {sorted(widths)}; they must have one")
    if 1 in widths and isinstance(key.tokens[0], tuple):
        raise ProgramError(f"token {key.tokens[0]} is a tuple of one number; it must be the number")
    return Path(Space(key.extra_key, *widths), key.tokens)


@dataclass(slots=True)
class Page:
    """What the cache holds for the last page of a path.

    Attributes
    ----------
    slots : tuple of int
        Its slots, in order.
    alive : bool
        Whether it is no tombstone; always true without a window.
    birth : int
        Number of the page: another one each time that a path is cached anew, the same for a revived page.
    access : int
        Number of the last match or insert that had it on its path (R8).
    hits : int
        Matches whose returned prefix had it (R10).
    locks, swa_locks : int
        Holds at or below it (R6), and those whose window covers it (S6).
    """

    slots: tuple[int, ...]
    alive: bool
    birth: int = 0
    access: int = 0
    hits: int = 0
    locks: int = 0
    swa_locks: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """One outstanding lock: where it was taken, and the tokens before the first page of its window."""

    path: Path
    edge: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a match must return, and how long it would be if dead windows did not matter."""

    path: Path
    slots: tuple[int, ...]
    stored: int


@dataclass(slots=True)
class InsertPlan:
    """What an insert must do; nothing of it has happened yet.

    Attributes
    ----------
    path : Path
        The whole pages of the key.
    prefix_len : int
        Tokens that are cached before the call, dead ones included.
    refused : bool
        Whether nothing happens, because the key would not be usable afterwards (S7).
    adopted : tuple of (int, int)
        Ranges of the key whose incoming slots the cache takes (R4).
    new : dict of Path to Page
        Pages that are not cached yet.
    replaced : dict of Path to tuple of int
        Unlocked tombstones, and the incoming slots that they take in place of theirs.
    moved : dict of Path to dict of int to int
        Locked tombstones that take incoming SWA halves: incoming slot to cached slot.
    displaced : tuple of int
        Slots that go back to the pool: those that the replaced pages had.
    splits : set of Path
        Where a tree may split a node.
    """

    path: Path
    prefix_len: int
    refused: bool = False
    adopted: tuple[tuple[int, int], ...] = ()
    new: dict[Path, Page] = field(default_factory=dict)
    replaced: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    moved: dict[Path, dict[int, int]] = field(default_factory=dict)
    displaced: tuple[int, ...] = ()
    splits: set[Path] = field(default_factory=set)

    @property
    def moves(self) -> dict[int, int]:
        """Incoming slot to cached slot, for each SWA half that changes hands."""
        return {source: target for halves in self.moved.values() for source, target in halves.items()}


class NotUsableError(Exception):
    """The model's word for a `ValueError`: the arguments break a precondition."""


def merge_runs(starts: Iterable[int], size: int) -> tuple[tuple[int, int], ...]:
    """Join the starts of pages, in order, into maximal half-open ranges of tokens."""
    ranges: list[tuple[int, int]] = []
    for start in starts:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], start + size)
        else:
            ranges.append((start, start + size))
    return tuple(ranges)


def demand_namespace(key: Key) -> None:
    """Raise `ProgramError` for a namespace with half of a surrogate pair: no hash can read it (K1)."""
    space = key.extra_key
    if isinstance(space, str) and not space.isascii():
        try:
            space.encode()
        except UnicodeEncodeError as error:
            raise ProgramError(
                f"the namespace {space!r} has half of a surrogate pair at {error.start}: "
                "UTF-8 cannot spell it; give text that it can"
            ) from None
