"""A flat model of the radix cache: one record per page, no tree, no nodes, no tensors.

Everything the contract determines is predicted: what a match returns, what an insert adopts, moves
or displaces, which holds count where, every size. Where the contract speaks of nodes (whole victims
of an eviction, the node that a hold names) the model is told where nodes end at that moment: those
*ends* are observed, and `Plan.splits` bounds where an operation may have made new ones.

Slow and obvious on purpose. Operations come in two halves, a plan that changes nothing and a commit,
so that an operation which fails half-way can be judged by what it really did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Token = int | tuple[int, ...]


class Space(NamedTuple):
    """What keys must share before their tokens are compared (K1)."""

    extra_key: str | int | None = None
    width: int = 1


class Path(NamedTuple):
    """A whole token prefix within its space; the empty one is the root."""

    space: Space
    tokens: tuple[Token, ...]

    def upto(self, end: int) -> Path:
        """Return the prefix of the first ``end`` tokens."""
        return Path(self.space, self.tokens[:end])

    def covers(self, other: Path) -> bool:
        """Return whether this is a prefix of ``other``, or equal to it."""
        return self.space == other.space and self.tokens == other.tokens[: len(self.tokens)]


@dataclass
class Page:
    """What the cache holds for one page of a path."""

    slots: tuple[int, ...]
    alive: bool
    access: int
    hits: int = 0


@dataclass(frozen=True)
class Hold:
    """One outstanding lock: where it was taken, and the tokens before the first page of its window."""

    path: Path
    edge: int


@dataclass(frozen=True)
class Match:
    """What a match returns, and how long the match would be if dead windows did not matter."""

    path: Path
    slots: tuple[int, ...]
    stored: int


@dataclass
class InsertPlan:
    """What an insert does; nothing of it has happened yet."""

    path: Path
    prefix_len: int
    last: Path
    refused: bool = False
    adopted: tuple[tuple[int, int], ...] = ()
    displaced: list[int] = field(default_factory=list)
    moved: dict[Path, dict[int, int]] = field(default_factory=dict)
    stored: dict[Path, Page] = field(default_factory=dict)
    splits: set[Path] = field(default_factory=set)

    @property
    def moves(self) -> dict[int, int]:
        """Incoming slot to cached slot, for each SWA half that changes hands."""
        return {source: target for halves in self.moved.values() for source, target in halves.items()}


class NotUsableError(Exception):
    """The model's word for a `ValueError`: the arguments break a precondition."""


class RadixModel:
    """The contract's sections 4 and 5 over a dictionary of pages.

    Parameters
    ----------
    page_size : int
        Tokens per page.
    window : int or None
        ``sliding_window_size`` in tokens.
    has_pool : bool
        Whether slots belong to a pool.
    can_move : bool
        Whether that pool offers ``move_swa``.
    """

    def __init__(self, page_size: int, window: int | None, *, has_pool: bool, can_move: bool) -> None:
        self.page_size = page_size
        self.window = window
        self.has_pool = has_pool
        self.can_move = can_move
        self.pages: dict[Path, Page] = {}
        self.holds: dict[int, Hold] = {}
        self.clock = 0

    # -- reading -----------------------------------------------------------------------------

    def whole(self, path: Path) -> Path:
        """Return the path cut down to whole pages (R1)."""
        return path.upto(len(path.tokens) // self.page_size * self.page_size)

    def page_ends(self, path: Path) -> list[Path]:
        """Return the prefix at the end of each whole page of the path, shortest first."""
        size = self.page_size
        return [path.upto(end) for end in range(size, len(path.tokens) + 1, size)]

    def stored(self, path: Path) -> list[Path]:
        """Return the leading pages of the path that are cached, dead ones included."""
        found = []
        for end in self.page_ends(path):
            if end not in self.pages:
                break
            found.append(end)
        return found

    def parent(self, path: Path) -> Path:
        """Return the path one page shorter."""
        return path.upto(len(path.tokens) - self.page_size)

    def locks(self, page: Path) -> int:
        """Count the holds at or below a page (R6)."""
        return self.lock_tables()[0][page]

    def swa_locks(self, page: Path) -> int:
        """Count the holds whose window covers a page (S6)."""
        return self.lock_tables()[1][page]

    def usable(self, alive: Sequence[bool]) -> bool:
        """Return whether a prefix whose pages have these flags may be resumed from (S1)."""
        if self.window is None or all(alive):
            return True
        tail = 0
        for flag in reversed(alive):
            if not flag:
                break
            tail += self.page_size
        return tail >= self.window

    def is_usable(self, path: Path) -> bool:
        """Return whether a cached path may be resumed from (S1)."""
        return self.usable([self.pages[end].alive for end in self.page_ends(path)])

    def slots(self, path: Path) -> tuple[int, ...]:
        """Return the slots of a cached path, in order."""
        return tuple(slot for end in self.page_ends(path) for slot in self.pages[end].slots)

    def lock_tables(self) -> tuple[Counter[Path], Counter[Path]]:
        """Return `locks` and `swa_locks` of every page that has any, counted hold by hold."""
        full: Counter[Path] = Counter()
        swa: Counter[Path] = Counter()
        for hold in self.holds.values():
            ends = self.page_ends(hold.path)
            full.update(ends)
            if self.window is not None:
                swa.update(end for end in ends if len(end.tokens) > hold.edge)
        return full, swa

    def sizes(self) -> dict[str, int]:
        """Return every size as a recount (R7, S6)."""
        names = ("evictable_size", "protected_size", "total_size", "swa_evictable_size", "swa_protected_size")
        count = dict.fromkeys(names, 0)
        locks, swa_locks = self.lock_tables()
        for path, page in self.pages.items():
            count["total_size"] += self.page_size
            count["protected_size" if locks[path] else "evictable_size"] += self.page_size
            if self.window is not None and page.alive:
                name = "swa_protected_size" if swa_locks[path] else "swa_evictable_size"
                count[name] += self.page_size
        return count

    # -- match -------------------------------------------------------------------------------

    def match(self, key: Path) -> Match:
        """Find the longest usable prefix and stamp it (R2, R8, S1)."""
        stored = self.stored(key)
        best = next((end for end in reversed(stored) if self.is_usable(end)), key.upto(0))
        self._stamp(best)
        for end in self.page_ends(best):
            self.pages[end].hits += 1
        return Match(best, self.slots(best), len(stored) * self.page_size)

    def _stamp(self, path: Path) -> None:
        self.clock += 1
        for end in self.page_ends(path):
            self.pages[end].access = self.clock

    # -- insert ------------------------------------------------------------------------------

    def plan_insert(
        self, key: Path, slots: Sequence[int], ends: set[Path], protected: int = 0, evicted: int = 0
    ) -> InsertPlan:
        """Decide what an insert does (R3, R4, S7).

        Parameters
        ----------
        key : Path
            The key, unaligned tail included.
        slots : sequence of int
            One incoming slot per token of the key.
        ends : set of Path
            Where nodes end before the call.
        protected, evicted : int
            ``prev_prefix_len`` and ``swa_evicted_seqlen``.

        Raises
        ------
        NotUsableError
            Where the cache must raise a `ValueError`.
        """
        size, whole = self.page_size, self.whole(key)
        stored = self.stored(whole)
        self._check_bounds(key, len(stored) * size, protected, evicted)
        plan = InsertPlan(whole, prefix_len=len(stored) * size, last=whole)
        alive: list[bool] = []
        adopted: list[int] = []
        for number, end in enumerate(self.page_ends(whole)):
            start = number * size
            incoming = tuple(slots[start : start + size])
            if end not in self.pages:
                living = self.window is None or start >= evicted
                plan.stored[end] = Page(incoming, living, 0)
                adopted.append(start)
                alive.append(living)
                continue
            page = self.pages[end]
            revived = False
            if not page.alive and start >= max(protected, evicted) and incoming != page.slots:
                revived = self._revive(plan, end, page, incoming)
                if end in plan.stored:
                    adopted.append(start)
            alive.append(page.alive or revived)
        if not self.usable(alive):
            usable = [e for e in stored if e in ends and self.is_usable(e)]
            last = usable[-1] if usable else key.upto(0)
            return InsertPlan(whole, prefix_len=plan.prefix_len, last=last, refused=True)
        plan.adopted = _ranges(adopted, size)
        plan.splits = self._splits(plan, whole, protected, evicted)
        return plan

    def _check_bounds(self, key: Path, cached: int, protected: int, evicted: int) -> None:
        size, length = self.page_size, len(key.tokens)
        if self.window is None:
            return
        if not 0 <= protected <= length or protected // size * size > cached:
            raise NotUsableError(f"prev_prefix_len {protected} of {length}, {cached} cached")
        if not 0 <= evicted <= length or evicted % size:
            raise NotUsableError(f"swa_evicted_seqlen {evicted} of {length}, page {size}")

    def _revive(self, plan: InsertPlan, end: Path, page: Page, incoming: tuple[int, ...]) -> bool:
        if not self.locks(end):
            plan.stored[end] = Page(incoming, True, 0, page.hits)
            plan.displaced.extend(page.slots if self.has_pool else ())
            return True
        if self.has_pool and self.can_move:
            plan.moved[end] = dict(zip(incoming, page.slots, strict=True))
            return True
        return False

    def _splits(self, plan: InsertPlan, whole: Path, protected: int, evicted: int) -> set[Path]:
        size = self.page_size
        places = {plan.prefix_len, len(whole.tokens)}
        if self.window is not None:
            places |= {-(-protected // size) * size, evicted}
        for end in [*plan.stored, *plan.moved]:
            places |= {len(end.tokens) - size, len(end.tokens)} if end in self.pages else set()
        return {whole.upto(place) for place in places if 0 < place <= len(whole.tokens)}

    def commit_moves(self, plan: InsertPlan) -> None:
        """Revive the held pages that took incoming SWA halves (X2: this stays, whatever comes later)."""
        for end in plan.moved:
            self.pages[end].alive = True

    def commit_insert(self, plan: InsertPlan) -> None:
        """Carry the whole plan out and stamp the path (R8); a refused one does nothing."""
        if plan.refused or not plan.path.tokens:
            return
        self.commit_moves(plan)
        self.pages.update(plan.stored)
        self._stamp(plan.path)

    # -- evict -------------------------------------------------------------------------------

    def commit_evict(self, removed_pages: Iterable[Path], tombstoned_pages: Iterable[Path]) -> None:
        """Take pages out, and mark pages dead."""
        for page in tombstoned_pages:
            self.pages[page].alive = False
        for page in removed_pages:
            del self.pages[page]

    # -- locks -------------------------------------------------------------------------------

    def plan_lock(self, path: Path) -> Hold:
        """Work out a hold's window (S5).

        Raises
        ------
        NotUsableError
            The prefix cannot be resumed from.
        """
        if not self.is_usable(path):
            raise NotUsableError("the prefix has a dead window")
        if self.window is None:
            return Hold(path, 0)
        outside = max(0, len(path.tokens) - self.window)
        return Hold(path, outside // self.page_size * self.page_size)

    def reset(self) -> list[int]:
        """Forget everything; return the slots that go back to the pool (X7)."""
        slots = [slot for page in self.pages.values() for slot in page.slots]
        self.pages.clear()
        self.holds.clear()
        return slots


def _ranges(starts: Sequence[int], size: int) -> tuple[tuple[int, int], ...]:
    """Join page starts into maximal half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for start in starts:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], start + size)
        else:
            ranges.append((start, start + size))
    return tuple(ranges)
