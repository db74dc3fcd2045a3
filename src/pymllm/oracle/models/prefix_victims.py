"""The pages that an eviction may take: by a strict order, or otherwise any that are no more than needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from pymllm.oracle.models.prefix_model import Page, Path, PrefixModel, StateEnds

Cut = Callable[[Path], bool | None]
"""A function that tells whether a node ends at a path: true, false, or ``None`` if unknown."""


def never_cut(path: Path) -> bool | None:
    """Return ``None``: whether a node ends at a path is unknown."""
    return None


@dataclass(frozen=True, slots=True)
class Taken:
    """The pages, windows and states that an eviction takes."""

    removed: tuple[Path, ...]  # in order of removal
    tombstoned: frozenset[Path]  # pages that stay without their window KV
    full: int  # tokens removed
    swa: int  # alive tokens that go in either way
    cascaded: frozenset[Path] = frozenset()  # not chosen, but left as leaves, dead (S4) or stateless (M5)
    states: frozenset[Path] = frozenset()  # that go, with their pages or without

    @property
    def full_without_cascade(self) -> int:
        """Tokens removed by choice, without those of parents removed because their last child went."""
        size = self.full // max(len(self.removed), 1)
        return self.full - len(self.cascaded) * size


def plan_evictions(
    model: PrefixModel, tokens: int, alive_tokens: int, cut: Cut = never_cut
) -> Iterator[Taken]:
    """Yield the pages that an eviction may take (R5, S3, S4, R8, R11), the smallest choice first.

    The second number, ``swa_num_tokens``, is ignored without a window; ``cut`` tells what is known of nodes.
    """
    windows: list[_Aged] = []
    if model.window is not None and alive_tokens > 0:
        windows = sorted(_aged(path, page) for path, page in model.pages.items() if page.alive)
    for first in _Sketch(model, cut).take_leaves(tokens):
        if model.window is None:
            yield first.taken()
        else:
            for second in first.copy().take_windows(alive_tokens, windows):
                yield second.taken()


def plan_room(model: PrefixModel, path: Path, cached: int, pages: int) -> tuple[Path, ...]:
    """Return the pages to evict to make room for new ones below the cached part of a path, which is held.

    They go one by one, in the order of evictions; where there are too few of them, all that may go.
    """
    sketch = _Sketch(model, lambda end: True)
    parting = path.upto(cached)
    sketch.children[parting] = sketch.children.get(parting, 0) + 1  # so that it is no leaf, nor what is above
    list(sketch.take_leaves(pages * model.page_size))
    return tuple(sketch.removed)


_Aged = tuple[int, int, int, int, Path]


def _aged(path: Path, page: Page, rank: int = 0) -> _Aged:
    """Insert a page among those of equal rank, ordered by recency and then by birth."""
    return rank, page.access, len(path.tokens), page.birth, path


def _ranked(model: PrefixModel, path: Path, page: Page) -> _Aged:
    """Insert a page among leaves ordered by rank; among equal ranks the least recent goes first."""
    return _aged(path, page, 0 if model.rank is None else model.rank(page))


class _Sketch:
    """A copy of the cache in which victims are removed one by one; the model itself stays unchanged.

    Candidates stand in line, in an order which no eviction changes. One that is none any more
    is passed over when its turn comes: looking through all pages for each victim took 30 to 45 % of judging
    a pool of 200 to 1,500 pages.
    """

    def __init__(self, model: PrefixModel, cut: Cut) -> None:
        self.model, self.cut = model, cut
        self.left: dict[Path, Page] = dict(model.pages)
        self.first_children = model.children
        self.children = model.children.copy()
        self.dead = set() if model.window is None else _dead(model)
        self.removed: list[Path] = []
        self.tombstoned: set[Path] = set()
        self.cascaded: set[Path] = set()
        self.alive_gone = 0
        self.leaves: list[_Aged] = []  # a heap
        self.windows: list[_Aged] = []
        self.passed_windows = 0

    def copy(self) -> _Sketch:
        """Return an independent copy of the sketch."""
        other = object.__new__(_Sketch)
        other.model, other.cut, other.first_children = self.model, self.cut, self.first_children
        other.left, other.children, other.dead = dict(self.left), self.children.copy(), set(self.dead)
        other.removed, other.tombstoned = list(self.removed), set(self.tombstoned)
        other.cascaded, other.alive_gone = set(self.cascaded), self.alive_gone
        other.leaves, other.windows, other.passed_windows = [], [], 0
        return other

    def taken(self) -> Taken:
        """Return the pages, windows and states removed so far."""
        size = self.model.page_size
        return Taken(
            tuple(self.removed),
            frozenset(path for path in self.tombstoned if path in self.left),
            len(self.removed) * size,
            self.alive_gone * size if self.model.window is not None else 0,
            frozenset(self.cascaded),
        )

    # -- phase 1 -------------------------------------------------------------------------------------------

    def take_leaves(self, tokens: int) -> Iterator[_Sketch]:
        """Remove the first leaves until enough is gone; yield each point where an eviction may stop (R5)."""
        victim: Path | None = None
        leaves = (path for path in self.left if not self.children.get(path)) if tokens > 0 else ()
        self.leaves = [_ranked(self.model, path, self.left[path]) for path in leaves]
        heapify(self.leaves)
        while len(self.removed) * self.model.page_size < tokens and (victim := self._first_leaf()):
            self._remove(victim)
        while victim is not None and (above := self._rest_above(victim)) is not None:
            if self.cut(above) is None:
                yield self
            victim = above
            self._remove(victim)
        yield self

    def _first_leaf(self) -> Path | None:
        while self.leaves and not self._is_free_leaf(self.leaves[0][-1]):
            heappop(self.leaves)
        return self.leaves[0][-1] if self.leaves else None

    def _is_free_leaf(self, path: Path) -> bool:
        return path in self.left and not self.children.get(path) and not self.left[path].locks

    def _rest_above(self, victim: Path) -> Path | None:
        """Return the parent of a removed page, if both may share a node that the parent now ends."""
        gone = self.model.pages[victim]
        above = gone.above
        page = self.left.get(above)
        if page is None or self.children[above] or self.first_children.get(above, 0) > 1 or page.locks:
            return None
        in_one_node = page.access == gone.access and self.removed[-1] == victim
        return above if in_one_node and not self.cut(above) else None

    def _remove(self, leaf: Path) -> None:
        self.alive_gone += leaf not in self.dead
        above = self._unlink(leaf)
        while above in self.left and above in self.dead and not self.children.get(above):
            self.cascaded.add(above)
            above = self._unlink(above)

    def _unlink(self, leaf: Path) -> Path:
        above = self.left.pop(leaf).above
        self.removed.append(leaf)
        self.children[above] -= 1
        if above in self.left and not self.children[above]:
            heappush(self.leaves, _ranked(self.model, above, self.left[above]))
        return above

    # -- phase 2 -------------------------------------------------------------------------------------------

    def take_windows(self, tokens: int, windows: list[_Aged]) -> Iterator[_Sketch]:
        """Free least recent windows until enough is gone; yield each point where eviction may stop (S3)."""
        victim: Path | None = None
        self.windows = windows
        while self.alive_gone * self.model.page_size < tokens and (victim := self._oldest_window()):
            self._drop_window(victim)
        while victim is not None and (below := self._rest_below(victim)) is not None:
            if self.cut(victim) is None:
                yield self
            victim = below
            self._drop_window(victim)
        yield self

    def _oldest_window(self) -> Path | None:
        while self.passed_windows < len(self.windows):
            path = self.windows[self.passed_windows][-1]
            if path in self.left and path not in self.dead and not self.left[path].swa_locks:
                return path
            self.passed_windows += 1
        return None

    def _rest_below(self, victim: Path) -> Path | None:
        """Return the child of a tombstoned page, if both may share a node and its window goes next."""
        if victim not in self.left or self.first_children.get(victim, 0) > 1 or self.cut(victim):
            return None
        below = self._oldest_window()
        if below is None:
            return None
        page, above = self.left[below], self.left[victim]
        if page.above != victim:
            return None
        return below if page.access == above.access and page.locks == above.locks else None

    def _drop_window(self, path: Path) -> None:
        if not self.children.get(path):
            self._remove(path)
            return
        self.dead.add(path)
        self.tombstoned.add(path)
        self.alive_gone += 1


def is_explained(
    model: PrefixModel,
    removed: Set[Path],
    tombstoned: Set[Path],
    tokens: int,
    alive_tokens: int,
    *,
    may_join: bool = False,
) -> bool:
    """Tell whether some last victim was still needed, for a cache without a claimed order.

    A victim is a run of pages without a branch, as long as one node may be, with the dead pages that had to
    follow it (S4): those that were dead before, or lost their window a moment ago. Without some one of the
    runs taken, there must have been too little of something. With ``may_join`` a branch is none any more
    once all but one of its children have gone: the cache may have made one node of what is left.
    """
    if not removed and not tombstoned:
        return True
    alive = {path for path in removed | tombstoned if model.pages[path].alive}
    may_follow = {path for path in removed if may_join or alive_tokens > 0 or path not in alive}
    gone = removed if may_join else frozenset[Path]()
    size = model.page_size
    return any(
        (len(removed) - len(run & removed)) * size < tokens
        or (len(alive) - len(run & alive)) * size < alive_tokens
        for taken in (removed, tombstoned)
        for run in last_runs(model, taken, may_follow, gone - taken)
    )


def last_runs(
    model: PrefixModel, taken: Set[Path], may_follow: Set[Path], before: Set[Path] = frozenset()
) -> Iterator[set[Path]]:
    """Yield each run of removed pages that may have gone last, downward from a page with a remaining parent.

    Pages that ``may_follow`` went with the last of those below them; a run ends at a branch below any other.
    What went ``before`` is no branch.
    """
    below: dict[Path, list[Path]] = {}
    for path, page in model.pages.items():
        if path not in before:
            below.setdefault(page.above, []).append(path)
    for top in taken:
        if model.pages[top].above not in taken:
            yield from _runs_from([top], taken, may_follow, below)


def _runs_from(
    run: list[Path], taken: Set[Path], may_follow: Set[Path], below: Mapping[Path, list[Path]]
) -> Iterator[set[Path]]:
    while len(children := below.get(run[-1], [])) == 1 and children[0] in taken:
        run.append(children[0])
    branches = [child for child in children if child in taken] if run[-1] in may_follow else []
    for branch in branches:
        yield from _runs_from([*run, branch], taken, may_follow, below)
    if not branches:
        yield set(run)


def plan_state_eviction(
    model: PrefixModel,
    ends: StateEnds,
    tokens: int,
    states: int,
    goes_on: Callable[[Path], bool] = lambda path: True,
) -> Taken:
    """Return the pages and states that an eviction takes in strict order (R5, R8, R11, M5).

    ``goes_on`` tells whether a page goes that a removal left as a leaf without a state.

    A node ends wherever there is a state, a branch or the end of a hold. So the run of pages that goes with a
    leaf is the same however nodes are cut: up to a page with a state, with another child, or with a hold.
    """
    sketch = _StateSketch(model, ends, goes_on)
    sketch.take_leaves(tokens)
    sketch.take_states(states)
    removed = tuple(sketch.removed)
    return Taken(
        removed,
        frozenset(),
        len(removed) * model.page_size,
        0,
        frozenset(sketch.cascaded),
        frozenset(sketch.states),
    )


class _StateSketch:
    """A copy of a cache with states, in which victims are removed one by one."""

    def __init__(self, model: PrefixModel, ends: StateEnds, goes_on: Callable[[Path], bool]) -> None:
        self.model, self.goes_on = model, goes_on
        self.left = dict(model.pages)
        self.children = model.children.copy()
        self.ends = set(ends.slots)
        self.unlocked = self.ends.difference(hold.path for hold in model.holds.values())
        self.removed: list[Path] = []
        self.states: set[Path] = set()
        self.cascaded: set[Path] = set()
        self.leaves: list[_Aged] = []  # a heap

    def take_leaves(self, tokens: int) -> None:
        """Remove the first leaves until enough tokens are gone (R5)."""
        if tokens <= 0:
            return
        # Locks are looked at first: they ask for no hash of a path, which is one of all its tokens.
        unlocked = [(path, page) for path, page in self.left.items() if not page.locks]
        leaves = [(path, page) for path, page in unlocked if not self.children.get(path)]
        self.leaves = [_ranked(self.model, path, page) for path, page in leaves]
        heapify(self.leaves)
        while self.leaves and len(self.removed) * self.model.page_size < tokens:
            self._remove(heappop(self.leaves)[-1])

    def take_states(self, states: int) -> None:
        """Free least recent states until enough are gone, a leaf with its KV (M5)."""
        while len(self.states) < states:
            unlocked = self.unlocked & self.ends
            if not unlocked:
                return
            victim = min(unlocked, key=self._recency)
            if self.children.get(victim):
                self._drop_state(victim)
            else:
                self._remove(victim)

    def _recency(self, path: Path) -> tuple[int, int]:
        return self.left[path].access, len(path.tokens)

    def _remove(self, leaf: Path) -> None:
        above = self._unlink(leaf)
        while (page := self.left.get(above)) is not None and not self.children.get(above):
            if above in self.ends or page.locks or not self.goes_on(above):
                if not page.locks:
                    heappush(self.leaves, _ranked(self.model, above, page))
                return
            self.cascaded.add(above)
            above = self._unlink(above)

    def _unlink(self, leaf: Path) -> Path:
        above = self.left.pop(leaf).above
        self.removed.append(leaf)
        self.children[above] -= 1
        if leaf in self.ends:
            self._drop_state(leaf)
        return above

    def _drop_state(self, path: Path) -> None:
        self.ends.remove(path)
        self.states.add(path)


def is_state_eviction_explained(
    model: PrefixModel, removed: Set[Path], states: Set[Path], alone: Set[Path], tokens: int, wanted: int
) -> bool:
    """Tell whether some last victim, which may be a state that went ``alone``, was still needed."""
    if not removed and not states:
        return True
    if alone and len(states) <= wanted:
        return True
    return any(
        (len(removed) - len(run)) * model.page_size < tokens or len(states - run) < wanted
        for run in last_runs(model, removed, removed)
    )


# -- what may not be left ----------------------------------------------------------------------------------


def find_orphans(model: PrefixModel, removed: Set[Path]) -> list[Path]:
    """Return the cached pages that lost their parent (R9)."""
    gone, children = _count_below(model, removed), model.children
    if all(children.get(path, 0) <= gone.get(path, 0) for path in removed):
        return []
    return [path for path, page in model.pages.items() if path not in removed and page.above in removed]


def _count_below(model: PrefixModel, removed: Iterable[Path]) -> dict[Path, int]:
    """Count the removed pages by the path of their parent."""
    pages, counts = model.pages, dict[Path, int]()
    for path in removed:
        above = pages[path].above
        counts[above] = counts.get(above, 0) + 1
    return counts


def _dead(model: PrefixModel) -> set[Path]:
    return {path for path, page in model.pages.items() if not page.alive}


def find_dead_leaves(model: PrefixModel, removed: Set[Path], tombstoned: Set[Path]) -> list[Path]:
    """Return the leaves that an eviction left without a live window (S4)."""
    gone, children = _count_below(model, removed), model.children
    dead = (_dead(model) | tombstoned) - removed
    return [path for path in dead if children.get(path, 0) <= gone.get(path, 0)]


def find_bare_leaves(
    model: PrefixModel, ends: StateEnds, removed: Set[Path], states: Set[Path]
) -> list[Path]:
    """Return the leaves that a removal left without a state or a lock (M5)."""
    gone = _count_below(model, removed)
    left = [path for path in gone if path in model.pages and path not in removed]
    leaves = [path for path in left if model.children[path] == gone[path] and not model.pages[path].locks]
    return [path for path in leaves if path not in ends or path in states]
