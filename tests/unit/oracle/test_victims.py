"""Tests of the next victims of an eviction: leaves, windows and states, and no more than is explained."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from pymllm.oracle.models.prefix_model import Hold, Path, PrefixModel, Space, StateEnds
from pymllm.oracle.models.prefix_victims import (
    Taken,
    is_explained,
    is_state_eviction_explained,
    plan_evictions,
    plan_state_eviction,
)

# -- What an eviction may take: compared with whole nodes, however the pages are divided into them -----------


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


# - whole nodes -------------------------------------------------------------------------------------------


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
            alive = [end for end in self.runs if end not in self.dead and not self.model.pages[end].swa_locks]
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


# -- Whether the last victim was needed, whatever the order --------------------------------------------------


ONE, TWO = Path(Space(), (1, 2, 3)), Path(Space(), (1, 2, 4))


def model(window: int | None = None) -> PrefixModel:
    """Two pages with two leaves below."""
    made = PrefixModel(1, window)
    for slot, key in ((10, ONE), (20, TWO)):
        made.commit_insert(made.plan_insert(key, range(slot, slot + 3)))
    return made


@pytest.mark.parametrize(
    ("removed", "tokens", "explained"),
    [
        ((), 0, True),
        ((ONE,), 0, False),
        ((ONE,), 1, True),
        ((ONE, TWO), 1, False),
        ((ONE, TWO), 2, True),
        ((ONE, TWO, ONE.upto(2), ONE.upto(1)), 2, False),
        ((ONE, TWO, ONE.upto(2), ONE.upto(1)), 3, True),
    ],
)
def test_without_its_last_run_it_would_have_been_too_little(
    removed: tuple[Path, ...], tokens: int, explained: bool
) -> None:
    """R5: a run without a branch may be one node."""
    assert is_explained(model(), set(removed), set(), tokens, 0) is explained


def test_dead_pages_go_with_their_last_child() -> None:
    """S4: above a branch, too, whether they were dead before or lost their window a moment ago."""
    everything = {ONE, TWO, ONE.upto(2), ONE.upto(1)}
    made = model(window=1)
    assert not is_explained(made, everything, set(), 2, 0)
    assert is_explained(made, everything, set(), 0, 4)
    made.commit_evict([], [ONE.upto(2), ONE.upto(1)])
    assert is_explained(made, everything, set(), 2, 0)
    assert not is_explained(made, everything, set(), 1, 0)


def test_windows_are_counted_in_alive_tokens() -> None:
    """S3: those of removed pages included."""
    made = model(window=1)
    upper = {ONE.upto(1), ONE.upto(2)}
    assert is_explained(made, set(), upper, 0, 1)
    assert is_explained(made, set(), upper, 0, 2)
    assert not is_explained(made, set(), upper, 0, 0)
    assert is_explained(made, {ONE}, upper, 0, 2)
    assert not is_explained(made, {ONE, TWO}, set(), 1, 1)


def test_what_is_left_of_a_branch_may_be_one_node() -> None:
    """R5, S3: where nodes may be joined, once all but one of the children have gone."""
    everything = {ONE, TWO, ONE.upto(2), ONE.upto(1)}
    assert is_explained(model(), everything, set(), 2, 0, may_join=True)
    assert not is_explained(model(), everything, set(), 1, 0, may_join=True)
    made = model(window=1)
    assert is_explained(made, {ONE}, {ONE.upto(2), ONE.upto(1)}, 1, 2, may_join=True)
    lower = {ONE.upto(1), ONE.upto(2)}
    assert is_explained(made, {ONE}, lower, 0, 2, may_join=True)
    assert not is_explained(made, {ONE}, {*lower, TWO}, 0, 1, may_join=True)
    assert is_explained(made, {ONE}, {*lower, TWO}, 0, 2, may_join=True)
    assert not is_explained(made, {ONE}, {*lower, TWO}, 0, 2)


def test_any_single_node_is_explained_by_itself() -> None:
    """R5: a random run that was asked for by one token."""
    source = random.Random(5)
    for _ in range(50):
        made = PrefixModel(1)
        length = source.randint(1, 6)
        key = Path(Space(), tuple(range(length)))
        made.commit_insert(made.plan_insert(key, range(10, 10 + length)))
        cut = source.randint(0, length - 1)
        assert is_explained(made, {key.upto(end) for end in range(cut + 1, length + 1)}, set(), 1, 0)


# -- What an eviction from a hybrid cache takes --------------------------------------------------------------


STEM, LEFT, RIGHT = (1, 2), (1, 2, 3, 4), (1, 2, 5)


def state_path(tokens: tuple[int, ...]) -> Path:
    return Path(Space(), tokens)


def paths(*tokens: tuple[int, ...]) -> set[Path]:
    return {state_path(each) for each in tokens}


def make(*states: tuple[int, ...], held: tuple[int, ...] | None = None) -> tuple[PrefixModel, StateEnds]:
    """Two branches of a stem, the left one older, with states at the ends of some prefixes."""
    ends = StateEnds()
    model = PrefixModel(1, states=ends)
    for key in (LEFT, RIGHT):
        model.commit_insert(model.plan_insert(state_path(key), range(len(key))))
    ends.slots |= {state_path(tokens): 10 + at for at, tokens in enumerate(states)}
    if held is not None:
        model.commit_lock(1, Hold(state_path(held), 0))
    return model, ends


@pytest.mark.parametrize(
    ("states", "held", "tokens", "wanted", "removed", "freed"),
    [
        ((LEFT, RIGHT), None, 0, 0, (), ()),
        ((LEFT, RIGHT), None, 1, 0, (LEFT, LEFT[:3]), (LEFT,)),
        ((LEFT, RIGHT), None, 3, 0, (LEFT, LEFT[:3], RIGHT, STEM, (1,)), (LEFT, RIGHT)),
        ((LEFT, RIGHT, STEM), None, 3, 0, (LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT)),
        ((LEFT, RIGHT, STEM), None, 4, 0, (LEFT, LEFT[:3], RIGHT, STEM, (1,)), (LEFT, RIGHT, STEM)),
        ((LEFT, RIGHT), LEFT, 9, 0, (RIGHT,), (RIGHT,)),
        ((LEFT, RIGHT), STEM, 9, 0, (LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT)),
        ((LEFT, RIGHT), None, 0, 1, (LEFT, LEFT[:3]), (LEFT,)),
        ((STEM, RIGHT), None, 0, 1, (), (STEM,)),
        ((STEM, RIGHT), None, 0, 2, (RIGHT,), (STEM, RIGHT)),
        ((STEM, RIGHT, LEFT), None, 0, 9, (*(LEFT, LEFT[:3], RIGHT, STEM), (1,)), (LEFT, STEM, RIGHT)),
        ((STEM,), STEM, 0, 1, (), ()),
        ((STEM,), RIGHT, 0, 1, (), (STEM,)),
        ((LEFT, RIGHT), None, 1, 1, (LEFT, LEFT[:3]), (LEFT,)),
        ((LEFT, RIGHT), None, 1, 2, (LEFT, LEFT[:3], RIGHT, STEM, (1,)), (LEFT, RIGHT)),
    ],
)
def test_what_goes_is_determined(
    states: tuple[tuple[int, ...], ...],
    held: tuple[int, ...] | None,
    tokens: int,
    wanted: int,
    removed: tuple[tuple[int, ...], ...],
    freed: tuple[tuple[int, ...], ...],
) -> None:
    """R5, M5: leaves by recency, then states; what is left without a state and a child goes too."""
    model, ends = make(*states, held=held)
    taken = plan_state_eviction(model, ends, tokens, wanted)
    assert taken.removed == tuple(state_path(each) for each in removed)
    assert taken.states == paths(*freed)
    assert taken.full == len(removed)
    assert len(model.pages) == 5
    assert len(ends.slots) == len(states)


def test_pages_that_follow_are_told_from_those_chosen() -> None:
    """M5: a page goes by itself, or because nothing is below it any more."""
    taken = plan_state_eviction(*make(LEFT, RIGHT), 3, 0)
    assert taken.cascaded == paths(LEFT[:3], STEM, (1,))


@pytest.mark.parametrize(
    ("removed", "freed", "tokens", "wanted", "is_told"),
    [
        ((), (), 0, 0, True),
        ((LEFT, LEFT[:3]), (LEFT,), 1, 0, True),
        ((LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT), 1, 0, False),
        ((LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT), 2, 0, True),
        ((RIGHT,), (RIGHT,), 0, 1, True),
        ((), (STEM,), 0, 1, True),
        ((), (STEM,), 0, 0, False),
        ((RIGHT,), (RIGHT, STEM), 0, 1, False),
    ],
)
def test_the_last_victim_was_still_needed(
    removed: tuple[tuple[int, ...], ...],
    freed: tuple[tuple[int, ...], ...],
    tokens: int,
    wanted: int,
    is_told: bool,
) -> None:
    """R5, M5: in any order, one leaf or one state fewer would have been too few."""
    model, _ = make(LEFT, RIGHT, STEM)
    alone = paths(*freed) - paths(*removed)
    found = is_state_eviction_explained(model, paths(*removed), paths(*freed), alone, tokens, wanted)
    assert found is is_told
