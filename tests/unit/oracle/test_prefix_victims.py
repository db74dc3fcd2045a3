"""What an eviction may take: compared with whole nodes, however the pages are divided into them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from pymllm.oracle.prefix_model import Path, PrefixModel, Space
from pymllm.oracle.prefix_victims import Taken, plan_evictions


def path(*tokens: int) -> Path:
    return Path(Space(), tokens)


def chain(*groups: int, window: int | None = None) -> tuple[PrefixModel, Path]:
    """Cache one chain of one-token pages: groups of so many, each used once more than the one below."""
    model = PrefixModel(1, window)
    whole = path(*range(sum(groups)))
    model.commit_insert(model.plan_insert(whole, range(100, 100 + sum(groups))))
    for number in range(1, len(groups)):
        model.commit_match(whole.upto(sum(groups[:-number])))
    return model, whole


def outcomes(model: PrefixModel, tokens: int, alive: int = 0) -> list[tuple[int, int]]:
    return [(taken.full, taken.swa) for taken in plan_evictions(model, tokens, alive)]


def test_nothing_is_taken_for_nothing() -> None:
    """R5: n <= 0 takes no part."""
    assert outcomes(chain(3)[0], 0) == [(0, 0)]
    assert outcomes(PrefixModel(1), 5) == [(0, 0)]


def test_the_last_run_may_go_as_far_as_its_node_may_reach() -> None:
    """R5: enough and no more, or the rest of a run of one access."""
    assert outcomes(chain(2, 3)[0], 1) == [(1, 0), (2, 0), (3, 0)]
    assert outcomes(chain(2, 3)[0], 4) == [(4, 0), (5, 0)]
    assert outcomes(chain(2, 3)[0], 9) == [(5, 0)]


def test_a_run_ends_where_nodes_must() -> None:
    """R5, R6: at a branch, and below a hold."""
    model, whole = chain(4)
    model.commit_lock(1, model.plan_lock(whole.upto(2)))
    assert outcomes(model, 1) == [(1, 0), (2, 0)]
    model, whole = chain(4)
    branch = path(0, 1, 9)
    model.commit_insert(model.plan_insert(branch, (100, 101, 200)))
    model.commit_match(whole)
    assert outcomes(model, 2) == [(2, 0), (3, 0)]
    assert outcomes(model, 1) == [(1, 0)]


def test_what_is_known_of_nodes_is_respected() -> None:
    """R5: whole nodes where one knows where they end."""
    model, whole = chain(4)
    known = {whole.upto(end): end == 2 for end in range(1, 4)}
    sizes = [taken.full for taken in plan_evictions(model, 1, 0, known.get)]
    assert sizes == [2]
    sizes = [taken.full for taken in plan_evictions(model, 1, 0, {whole.upto(3): False}.get)]
    assert sizes == [2, 3, 4]


def test_a_window_is_freed_from_the_top_of_its_run() -> None:
    """S3: least recent first, inner pages stay without window KV, and a leaf goes with what is dead above."""
    model, whole = chain(2, 2, window=1)
    taken = list(plan_evictions(model, 0, 1))
    assert [sorted(len(end.tokens) for end in one.tombstoned) for one in taken] == [[3], []]
    assert [[len(end.tokens) for end in one.removed] for one in taken] == [[], [4, 3]]
    assert taken[1].cascaded == {whole.upto(3)}
    assert [(one.full, one.swa) for one in taken] == [(0, 1), (2, 2)]


def test_a_window_under_a_hold_stays() -> None:
    """S6: only what no hold's window covers."""
    model, whole = chain(4, window=2)
    model.commit_lock(1, model.plan_lock(whole))
    (taken,) = plan_evictions(model, 9, 9)
    assert (taken.removed, taken.tombstoned) == ((), {whole.upto(1), whole.upto(2)})


def test_what_phase_1_freed_counts_in_phase_2() -> None:
    """S3: m alive tokens, those of removed leaves included."""
    assert outcomes(chain(1, 1, 1, window=1)[0], 1, 1) == [(1, 1)]
    assert outcomes(chain(1, 1, 1, window=1)[0], 1, 2) == [(2, 2)]


def test_what_is_known_of_nodes_is_respected_in_windows() -> None:
    """S3: a whole node loses its window."""
    model, whole = chain(1, 4, window=1)
    known = {whole.upto(2): False, whole.upto(3): True}
    (taken,) = plan_evictions(model, 0, 1, known.get)
    assert taken.tombstoned == {whole.upto(2), whole.upto(3)}


# -- whole nodes -------------------------------------------------------------------------------------------


class Nodes:
    """An eviction of whole nodes, as the specification tells it; written without a look at the oracle's."""

    def __init__(self, model: PrefixModel, ends: Iterable[Path]) -> None:
        self.model = model
        self.dead = {end for end in ends if not model.pages[end].alive}
        self.runs: dict[Path, list[Path]] = {}
        for end in ends:
            run = [end]
            while len(run[0].tokens) > model.page_size and model.parent(run[0]) not in set(ends):
                run.insert(0, model.parent(run[0]))
            self.runs[end] = run
        self.removed: list[Path] = []
        self.tombstoned: set[Path] = set()
        self.full = self.swa = 0

    def above(self, end: Path) -> Path:
        return self.model.parent(self.runs[end][0])

    def is_leaf(self, end: Path) -> bool:
        return all(self.above(other) != end for other in self.runs)

    def age(self, end: Path) -> tuple[int, int]:
        return self.model.pages[end].access, len(end.tokens)

    def evict(self, tokens: int, alive_tokens: int) -> Taken:
        while self.full < tokens:
            leaves = [end for end in self.runs if self.is_leaf(end) and not self.model.locks(end)]
            if not leaves:
                break
            self.remove(min(leaves, key=self.age))
        while self.model.window is not None and self.swa < alive_tokens:
            alive = [end for end in self.runs if end not in self.dead and not self.model.swa_locks(end)]
            if not alive:
                break
            victim = min(alive, key=self.age)
            if self.is_leaf(victim):
                self.remove(victim)
            else:
                self.dead.add(victim)
                self.tombstoned.update(self.runs[victim])
                self.swa += len(self.runs[victim]) * self.model.page_size
        tombstoned = frozenset(self.tombstoned.difference(self.removed))
        return Taken(tuple(self.removed), tombstoned, self.full, self.swa)

    def remove(self, end: Path) -> None:
        above = self.above(end)
        tokens = len(self.runs[end]) * self.model.page_size
        self.full += tokens
        self.swa += 0 if end in self.dead or self.model.window is None else tokens
        self.removed += reversed(self.runs.pop(end))
        if above in self.dead and self.is_leaf(above):
            self.remove(above)


def random_model(source: random.Random, page_size: int, window: int | None) -> PrefixModel:
    """Insert, match, hold and evict at random, as a correct cache of any granularity would."""
    model = PrefixModel(page_size, window, can_move=True)
    slot = 1000
    for step in range(source.randint(3, 25)):
        tokens = tuple(token for _ in range(source.randint(1, 6)) for token in page_of(source, page_size))
        key, choice = path(*tokens), source.random()
        if choice < 0.5:
            evicted = source.choice([0, max(0, len(tokens) - (window or 0)) // page_size * page_size])
            model.commit_insert(model.plan_insert(key, range(slot, slot + len(tokens)), evicted=evicted))
            slot += len(tokens)
        elif choice < 0.7:
            model.commit_match(model.find(key).path)
        elif choice < 0.8 and model.find(key).slots:
            model.commit_lock(step, model.plan_lock(model.find(key).path))
        elif model.holds and choice < 0.85:
            model.commit_unlock(source.choice(list(model.holds)))
        else:
            amounts = [source.choice([0, 1, 2, 5]) * page_size for _ in range(2)]
            taken = source.choice(list(plan_evictions(model, *amounts)))
            model.commit_evict(taken.removed, taken.tombstoned)
    return model


def page_of(source: random.Random, page_size: int) -> list[int]:
    return [7] * (page_size - 1) + [source.choice([7, 7, 7, 8])]


def random_ends(source: random.Random, model: PrefixModel) -> set[Path]:
    """Divide the pages into nodes: where a node must end, and at random where it may."""
    children: dict[Path, list[Path]] = {}
    for page in model.pages:
        children.setdefault(model.parent(page), []).append(page)
    often = source.random()

    def may_go_on(page: Path) -> bool:
        below = children.get(page, [])
        if len(below) != 1 or any(hold.path == page or hold.path.upto(hold.edge) == page for hold in holds):
            return False
        one, two = model.pages[page], model.pages[below[0]]
        marks = [(each.access, each.alive, each.locks, each.swa_locks, each.hits) for each in (one, two)]
        return marks[0] == marks[1]

    holds = list(model.holds.values())
    return {page for page in model.pages if not may_go_on(page) or source.random() < often}


@pytest.mark.parametrize(("page_size", "window"), [(1, None), (2, None), (1, 2), (1, 4), (2, 3)])
def test_whole_nodes_are_always_among_what_is_allowed(page_size: int, window: int | None) -> None:
    """R5, S3, S4, R8: whatever the nodes are; with the nodes known, theirs is the only way."""
    source = random.Random(page_size * 100 + (window or 0))
    several = 0
    for _ in range(300):
        model = random_model(source, page_size, window)
        ends = random_ends(source, model)
        amounts = [source.choice([0, 1, 1, 2, 3, 9]) * page_size for _ in range(2)]
        expected = Nodes(model, ends).evict(*amounts)
        allowed = list(plan_evictions(model, *amounts))
        several += len(allowed) > 1
        found = [as_sets(taken) for taken in allowed]
        assert as_sets(expected) in found
        exact = [as_sets(taken) for taken in plan_evictions(model, *amounts, ends.__contains__)]
        assert exact == [as_sets(expected)]
        assert len({taken[2:] for taken in set(found)}) == len(set(found))  # counts alone tell them apart
    assert several > 30


def as_sets(taken: Taken) -> tuple[frozenset[Path], frozenset[Path], int, int]:
    return frozenset(taken.removed), taken.tombstoned, taken.full, taken.swa


def test_pages_go_in_the_order_of_their_nodes() -> None:
    """X2: callbacks run in order of removal, so the pages of one node are together."""
    source = random.Random(3)
    for _ in range(200):
        model = random_model(source, 1, 2)
        ends = random_ends(source, model)
        amounts = [source.choice([1, 2, 5]), source.choice([0, 2, 5])]
        (taken,) = plan_evictions(model, *amounts, ends.__contains__)
        assert list(taken.removed) == list(Nodes(model, ends).evict(*amounts).removed)
