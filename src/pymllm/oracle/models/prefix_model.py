"""A flat model of a prefix cache: one record per page, no tree, no nodes, no tensors.

Everything that the specification determines is predicted: what a match returns, what an insert adopts, moves
or displaces, which holds count where, every size. What an eviction takes is its implementation's
choice within bounds (`pymllm.oracle.models.prefix_victims`), so the model is told.

Obvious rather than fast. Operations come in two halves, a plan that changes nothing and a commit, so
that an operation which fails half-way can be judged by what it really did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from threading import RLock
from typing import NamedTuple
from weakref import ref

from pymllm.errors import ProgramError
from pymllm.history.operations import DIMENSIONS, Key, Namespace, Token


class Space(NamedTuple):
    """The values that two keys must share before their tokens are compared: namespace and width (K1)."""

    extra_key: Namespace = None
    width: int = 1


class Path:
    """A whole token prefix within its namespace; the empty prefix is the root.

    Equal paths are one object, so that a look-up takes the same time for each length. A tuple hashes all of
    its tokens each time: with that, soaks of radix, mamba and radix-window played 0.91, 0.85 and 0.67 of the
    operations per second. An operation of a large cache looks paths up some 350 times.
    """

    __slots__ = ("__weakref__", "space", "tokens")

    space: Space
    tokens: tuple[Token, ...]

    def __new__(cls, space: Space, tokens: tuple[Token, ...]) -> Path:
        """Return the path, a new one only if none is in use."""
        key = space, tokens
        known = _PATHS.known.get(key)
        path = None if known is None else known()
        return _PATHS.make(*key) if path is None else path

    def __reduce__(self) -> tuple[type[Path], tuple[Space, tuple[Token, ...]]]:
        return Path, (self.space, self.tokens)

    def __repr__(self) -> str:
        return f"Path(space={self.space!r}, tokens={self.tokens!r})"

    def upto(self, end: int) -> Path:
        """Return the prefix of the first ``end`` tokens."""
        return Path(self.space, self.tokens[:end])

    def longer_by(self, tokens: tuple[Token, ...]) -> Path:
        """Return the path extended by these tokens."""
        return Path(self.space, self.tokens + tokens)

    def covers(self, other: Path) -> bool:
        """Tell whether this path is a prefix of ``other``, or equal to it."""
        return self.space == other.space and self.tokens == other.tokens[: len(self.tokens)]


class _Paths:
    """Every path in use, and paths gone since the last sweep.

    The callback of a reference would take a path out at once. But it is code in Python, and swallows an alarm
    that rings in it, which ends a search that takes too long, or the Ctrl-C of a person.
    """

    def __init__(self, least: int) -> None:
        self.known: dict[tuple[Space, tuple[Token, ...]], ref[Path]] = {}
        self.limit = self._least = least  # paths at which the unused ones are removed
        self._lock = RLock()  # two threads must not make equal paths

    def make(self, space: Space, tokens: tuple[Token, ...]) -> Path:
        """Return a new path, or the one that another thread has made meanwhile."""
        with self._lock:
            known = self.known.get((space, tokens))
            path = None if known is None else known()
            if path is None:
                path = object.__new__(Path)
                path.space, path.tokens = space, tokens
                self.known[space, tokens] = ref(path)
                if len(self.known) >= self.limit:
                    self._sweep()
            return path

    def _sweep(self) -> None:
        """Remove unused paths, until twice as many as are left now are known."""
        for key in [key for key, path in self.known.items() if path() is None]:
            del self.known[key]
        self.limit = max(self._least, 2 * len(self.known))


_PATHS = _Paths(1_024)
_ROOT = Path(Space(), ())


@functools.lru_cache(maxsize=512)
def ends_of_pages(path: Path, page_size: int) -> tuple[Path, ...]:
    """Return the prefix at the end of each whole page of a path, shortest first.

    Remembered, since a match alone asks four times: a fifth of the judge's time over a radix cache.
    """
    return tuple(path.upto(end) for end in range(page_size, len(path.tokens) + 1, page_size))


@functools.lru_cache(maxsize=128)
def path_of_key(key: Key) -> Path:
    """Return the path of a key, including an incomplete last page; results are cached.

    A `ProgramError` where its tokens are of different kinds, or tuples of one number, which are no tokens, or
    its namespace is no text (K1).
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
    """The cache's record of the last page of a path."""

    slots: tuple[int, ...]
    alive: bool  # no tombstone; always so without a window
    birth: int = 0  # another number each time that a path is cached anew, the same for a revived page
    came: int = 0  # number of the insert that brought it (R11)
    priority: int = 0  # the highest that an insert with it on its path was given (R11)
    inserts: int = 0  # that had it on their paths since it came (R11)
    released: int = 0  # number of the last insert or release with it on its path (R11)
    access: int = 0  # number of the last match or insert that had it on its path (R8)
    hits: int = 0  # matches whose returned prefix had it (R10)
    locks: int = 0  # holds at or below it (R6)
    swa_locks: int = 0  # those whose window covers it (S6)
    above: Path = _ROOT  # the path one page shorter, once it is cached


Rank = Callable[[Page], int]
"""The sort key of an eviction policy: the page with the smallest goes first (R11)."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One outstanding lock: its path, and the number of tokens before the first page of its window."""

    path: Path
    edge: int


@dataclass(frozen=True, slots=True)
class Found:
    """The result that a match must return, and the length that it would have if all windows were alive."""

    path: Path
    slots: tuple[int, ...]
    stored: int


@dataclass(slots=True)
class InsertPlan:
    """The planned effects of an insert, before any of them is applied."""

    path: Path
    prefix_len: int  # tokens that are cached before the call, dead ones included
    refused: bool = False  # nothing happens, because the key would not be usable afterwards (S7)
    adopted: tuple[tuple[int, int], ...] = ()  # ranges of the key whose incoming slots the cache takes (R4)
    new: dict[Path, Page] = field(default_factory=dict)
    replaced: dict[Path, tuple[int, ...]] = field(default_factory=dict)  # unlocked tombstones: new slots
    moved: dict[Path, dict[int, int]] = field(default_factory=dict)  # locked ones: incoming to cached slot
    displaced: tuple[int, ...] = ()  # slots that go back to the pool: those that the replaced pages had
    evicted: tuple[Path, ...] = ()  # pages that make room, of a cache that takes its memory by itself
    has_room: bool = True
    splits: set[Path] = field(default_factory=set)  # where a tree may split a node
    dead: list[Path] = field(default_factory=list)  # pages on its path that were dead before
    fallen: dict[Path, tuple[int, ...]] = field(default_factory=dict)  # pages that lose halves, with slots

    @property
    def is_alive(self) -> bool:
        """Whether all pages on the insert's path were alive, and all new pages are alive, too."""
        return not self.dead and all(page.alive for page in self.new.values())

    @property
    def moves(self) -> dict[int, int]:
        """The cached slot that receives each incoming slot's SWA half."""
        return {source: target for halves in self.moved.values() for source, target in halves.items()}


class NotUsableError(Exception):
    """Raised for arguments that break a precondition, where an implementation must raise `ValueError`."""


def merge_runs(starts: Iterable[int], size: int) -> tuple[tuple[int, int], ...]:
    """Merge the starts of consecutive pages into maximal half-open ranges of tokens."""
    ranges: list[tuple[int, int]] = []
    for start in starts:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], start + size)
        else:
            ranges.append((start, start + size))
    return tuple(ranges)


def demand_namespace(key: Key) -> None:
    """Raise `ProgramError` for a namespace that cannot be hashed (K1) or is not in its shortest form (K2)."""
    space = key.extra_key
    if not isinstance(space, tuple):
        _demand_text(space)
        return
    if not 2 <= len(space) <= len(DIMENSIONS) or space[-1] is None:
        raise ProgramError(
            f"the namespace {space!r} has {len(space)} values; give 2 to {len(DIMENSIONS)}, "
            "the last not null, or the first value alone"
        )
    for value in space:
        _demand_text(value)


def _demand_text(value: str | int | None) -> None:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ProgramError(
                f"the namespace {value!r} has half of a surrogate pair at {error.start}: "
                "UTF-8 cannot spell it; give text that it can"
            ) from None


class StateEnds:
    """The states of a cache: at most one at the end of each page, in a track slot."""

    def __init__(self) -> None:
        self.slots: dict[Path, int] = {}  # track slots, by the prefixes whose states they hold
        self.evicted: frozenset[Path] = frozenset()  # whose state was evicted, and their KV was not
        self.changes = 0  # counts up whenever a state comes or goes

    def __contains__(self, path: Path) -> bool:
        return path in self.slots

    def sizes(self, holds: Mapping[int, Hold]) -> dict[str, int]:
        """Return the numbers of unlocked and of locked states (M6)."""
        held = {hold.path for hold in holds.values()}
        protected = len(held & self.slots.keys())
        return {
            "mamba_evictable_size": len(self.slots) - protected,
            "mamba_protected_size": protected,
        }

    def add(self, path: Path, slot: int) -> None:
        """Put a state at the end of a path."""
        self.changes += 1
        self.slots[path] = slot

    def clear(self) -> None:
        """Forget every state."""
        self.changes += 1
        self.slots.clear()
        self.evicted = frozenset()

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove states; the KV of their pages may stay."""
        self.changes += 1
        for path in paths:
            del self.slots[path]


class PrefixModel:
    """The state of a prefix cache and its windows, as a dictionary of pages.

    Slots belong to a pool with ``has_pool``, which offers ``move_swa`` with ``can_move``; without ``states``,
    KV is all that a prefix needs; without ``rank``, recency alone says which leaf goes next; without ``room``
    (in pages) inserts bring their memory with them.
    """

    def __init__(
        self,
        page_size: int,
        window: int | None = None,
        *,
        has_pool: bool = True,
        can_move: bool = False,
        states: StateEnds | None = None,
        rank: Rank | None = None,
        room: int | None = None,
    ) -> None:
        self.page_size = page_size
        self.rank = rank
        self.room = room
        self.window = window
        self.has_pool = has_pool
        self.can_move = can_move
        self.states = states
        self.pages: dict[Path, Page] = {}  # under the prefix that ends with it
        self.children: dict[Path, int] = {}  # cached pages directly below a path; evictions ask all the time
        self.holds: dict[int, Hold] = {}  # by the step of their `Lock`
        self.clock = 0  # number of the last match or insert (R8)
        self._releases = 0  # number of the last insert or release (R11)
        self._births = 0
        self._sizes: dict[str, int] = {}
        self._is_counted = False
        self._counted_changes = 0

    # -- reading -------------------------------------------------------------------------------------------

    def whole(self, path: Path) -> Path:
        """Return a path cut down to whole pages (R1)."""
        return path.upto(len(path.tokens) // self.page_size * self.page_size)

    def page_ends(self, path: Path) -> tuple[Path, ...]:
        """Return the prefix at the end of each whole page of a path, shortest first."""
        return ends_of_pages(path, self.page_size)

    def parent(self, path: Path) -> Path:
        """Return the path one page shorter."""
        return path.upto(len(path.tokens) - self.page_size)

    def stored(self, path: Path) -> list[Path]:
        """Return the leading pages of a path that are cached, including those without a live window."""
        found = []
        for end in self.page_ends(path):
            if end not in self.pages:
                break
            found.append(end)
        return found

    def slots(self, path: Path) -> tuple[int, ...]:
        """Return the slots of a cached path, in order."""
        return self._slots_of(self.page_ends(path))

    def _slots_of(self, ends: Iterable[Path]) -> tuple[int, ...]:
        pages = self.pages
        return tuple([slot for end in ends for slot in pages[end].slots])

    def locks(self, page: Path) -> int:
        """Count the holds at or below a page (R6), which may have lost its state."""
        return self.pages[page].locks if page in self.pages else 0

    def usable(self, alive: Sequence[bool]) -> bool:
        """Tell whether a request may resume from a prefix, given which of its pages are alive (S1)."""
        if self.window is None or all(alive):
            return True
        tail = sum(1 for _ in takewhile(bool, reversed(alive)))
        return tail * self.page_size >= self.window

    def is_usable(self, path: Path) -> bool:
        """Tell whether a request may resume from a cached path (S1)."""
        if self.window is None:
            return True
        return self.usable([self.pages[end].alive for end in self.page_ends(path)])

    def is_resumable(self, path: Path) -> bool:
        """Tell whether a match may end at a cached path: usable, with a state if the cache keeps any (M2)."""
        return self.is_usable(path) and (self.states is None or path in self.states)

    def sizes(self) -> dict[str, int]:
        """Return every size of the cache, counted from its pages (R7, S6, M6).

        Counted again only after what changes pages, holds or states, every second operation or so. The dict
        is the model's own.
        """
        changes = 0 if self.states is None else self.states.changes
        if not self._is_counted or changes != self._counted_changes:
            self._sizes, self._is_counted, self._counted_changes = self._recount(), True, changes
        return self._sizes

    def _recount(self) -> dict[str, int]:
        size, pages = self.page_size, self.pages.values()
        alive = [page for page in pages if page.alive] if self.window is not None else []
        held = len([page for page in pages if page.locks])
        covered = len([page for page in alive if page.swa_locks])
        count = {
            "evictable_size": (len(pages) - held) * size,
            "protected_size": held * size,
            "total_size": len(pages) * size,
            "swa_evictable_size": (len(alive) - covered) * size,
            "swa_protected_size": covered * size,
        }
        return count if self.states is None else count | self.states.sizes(self.holds)

    # -- match ---------------------------------------------------------------------------------------------

    def find(self, key: Path) -> Found:
        """Find the longest usable prefix of a key (R2, S1, M2)."""
        stored = self.stored(key)
        count = len(stored)
        while count and not self.is_resumable(stored[count - 1]):
            count -= 1
        best = stored[count - 1] if count else key.upto(0)
        return Found(best, self._slots_of(stored[:count]), len(stored) * self.page_size)

    def commit_match(self, path: Path) -> None:
        """Record a hit on a returned prefix and make the prefix the most recent (R8, R10)."""
        self.clock += 1
        for end in self.page_ends(path):
            page = self.pages[end]
            page.hits += 1
            page.access = self.clock

    # -- insert --------------------------------------------------------------------------------------------

    def plan_insert(
        self, key: Path, slots: Sequence[int], protected: int = 0, evicted: int = 0
    ) -> InsertPlan:
        """Plan an insert (R3, R4, S7); raise `NotUsableError` where the cache must raise `ValueError`.

        The key has its unaligned tail, one slot per token; ``protected`` and ``evicted`` are
        ``prev_prefix_len`` and ``swa_evicted_seqlen``.
        """
        size, whole = self.page_size, self.whole(key)
        plan = InsertPlan(whole, len(self.stored(whole)) * size)
        self._check_bounds(len(key.tokens), plan.prefix_len, protected, evicted)
        first = max(protected, evicted)
        alive: list[bool] = []
        adopted: list[int] = []
        for start, end in zip(range(0, len(whole.tokens), size), self.page_ends(whole), strict=True):
            incoming = tuple(slots[start : start + size])
            if start >= plan.prefix_len:
                is_alive = self.window is None or start >= evicted
                plan.new[end] = Page(incoming, is_alive)
                adopted.append(start)
            elif not (is_alive := (page := self.pages[end]).alive):
                plan.dead.append(end)
                if start >= first and incoming != page.slots:
                    is_alive = self._plan_revival(plan, end, page, incoming)
                    adopted += [start] if end in plan.replaced else []
            alive.append(is_alive)
        if not self.usable(alive):
            return InsertPlan(whole, plan.prefix_len, refused=True, dead=plan.dead)
        plan.adopted = merge_runs(adopted, size)
        plan.splits = self._splits(plan, protected, evicted)
        return plan

    def _check_bounds(self, length: int, cached: int, protected: int, evicted: int) -> None:
        """Check that both lengths are within the key; pages before them matter only with a window."""
        size, has_window = self.page_size, self.window is not None
        if not 0 <= protected <= length or (has_window and protected // size * size > cached):
            raise NotUsableError(f"prev_prefix_len {protected} of {length}, {cached} cached")
        if not 0 <= evicted <= length or (has_window and evicted % size):
            raise NotUsableError(f"swa_evicted_seqlen {evicted} of {length}, page {size}")

    def _plan_revival(self, plan: InsertPlan, end: Path, page: Page, incoming: tuple[int, ...]) -> bool:
        if not page.locks:
            plan.replaced[end] = incoming
            plan.displaced += page.slots if self.has_pool else ()
            return True
        if self.has_pool and self.can_move:
            plan.moved[end] = dict(zip(incoming, page.slots, strict=True))
        return end in plan.moved

    def _splits(self, plan: InsertPlan, protected: int, evicted: int) -> set[Path]:
        size, length = self.page_size, len(plan.path.tokens)
        places = {plan.prefix_len, length}
        if self.window is not None:
            places |= {-(-protected // size) * size, evicted}
        for end in (*plan.replaced, *plan.moved):
            places |= {len(end.tokens) - size, len(end.tokens)}
        return {plan.path.upto(place) for place in places if 0 < place <= length}

    def commit_moves(self, ends: Iterable[Path]) -> None:
        """Revive locked pages with the incoming SWA halves, which stay even if the insert fails (X2)."""
        self._is_counted = False
        for end in ends:
            self.pages[end].alive = True

    def commit_insert(self, plan: InsertPlan, priority: int = 0) -> None:
        """Apply the whole plan of an insert and stamp its path (R8, R11); a refused one changes nothing."""
        if plan.refused:
            return
        self.commit_moves(plan.moved)
        for end, slots in plan.replaced.items():
            self.pages[end].slots, self.pages[end].alive = slots, True
        for end, page in plan.new.items():
            self._births += 1
            page.birth, page.came, page.priority = self._births, self.clock + 1, priority
            self.pages[end] = page
            page.above = above = self.parent(end)
            self.children[above] = self.children.get(above, 0) + 1
        self.clock += 1
        self._releases += 1
        for end in self.page_ends(plan.path):
            page = self.pages[end]
            page.access, page.released = self.clock, self._releases
            page.priority = max(page.priority, priority)
            page.inserts += 1

    # -- evict and reset -----------------------------------------------------------------------------------

    def commit_evict(self, removed: Iterable[Path], tombstoned: Iterable[Path]) -> None:
        """Remove evicted pages, and mark pages whose window was evicted as dead."""
        self._is_counted = False
        for path in tombstoned:
            self.pages[path].alive = False
        children = self.children
        for path in removed:
            above = self.pages.pop(path).above
            children[above] -= 1
            if not children[above]:
                del children[above]

    def reset(self) -> list[int]:
        """Empty the cache, held pages included, and return the slots that were cached (X7)."""
        slots = [slot for page in self.pages.values() for slot in page.slots]
        self._is_counted = False
        self.pages.clear()
        self.children.clear()
        self.holds.clear()
        if self.states is not None:
            self.states.clear()
        return slots

    # -- holds ---------------------------------------------------------------------------------------------

    def plan_lock(self, path: Path) -> Hold:
        """Work out the window of a hold (S5); raise `NotUsableError` if the prefix cannot be resumed from."""
        if not self.is_usable(path):
            raise NotUsableError("the prefix has a dead window")
        if self.window is None:
            return Hold(path, 0)
        outside = max(0, len(path.tokens) - self.window)
        return Hold(path, outside // self.page_size * self.page_size)

    def commit_lock(self, number: int, hold: Hold) -> None:
        """Add a hold to its path and to its window."""
        self.holds[number] = hold
        self._count(hold, 1)

    def commit_unlock(self, number: int) -> None:
        """Remove a hold from its path and from its window."""
        hold = self.holds.pop(number)
        self._count(hold, -1)
        if self.rank is not None:
            # Behind all that was let go of before; what is still held is put there again later.
            self._releases += 1
            for end in self.page_ends(hold.path):
                self.pages[end].released = self._releases

    def _count(self, hold: Hold, by: int) -> None:
        self._is_counted = False
        for end in self.page_ends(hold.path):
            page = self.pages[end]
            page.locks += by
            if self.window is not None and len(end.tokens) > hold.edge:
                page.swa_locks += by
