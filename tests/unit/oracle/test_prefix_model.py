"""The page model of a prefix cache, law by law."""

from __future__ import annotations

import pytest

from pymllm.oracle.prefix_model import InsertPlan, NotUsableError, Path, PrefixModel, Space


def path(*tokens: int, extra_key: str | int | None = None) -> Path:
    return Path(Space(extra_key), tokens)


def put(model: PrefixModel, key: Path, first_slot: int, **bounds: int) -> InsertPlan:
    """Insert a key with slots of its own."""
    plan = model.plan_insert(key, range(first_slot, first_slot + len(key.tokens)), **bounds)
    model.commit_insert(plan)
    return plan


def hold(model: PrefixModel, key: Path, number: int = 1) -> None:
    model.commit_lock(number, model.plan_lock(key))


def kill(model: PrefixModel, *pages: Path) -> None:
    model.commit_evict([], pages)


def test_a_match_ends_with_the_last_whole_page_that_is_cached() -> None:
    """R1, R2: the tail after the last whole page is ignored."""
    model = PrefixModel(2)
    put(model, path(1, 2, 3, 4, 5), 10)
    assert model.find(path(1, 2, 3, 4, 5)).slots == (10, 11, 12, 13)
    assert model.find(path(1, 2, 3, 9)).path == path(1, 2)
    assert model.find(path(9)).slots == ()


def test_namespaces_do_not_share_pages() -> None:
    """K1: equal tokens of another namespace are not found."""
    model = PrefixModel(1)
    put(model, path(1, extra_key=1), 10)
    assert not model.find(path(1)).slots
    assert not model.find(path(1, extra_key="1")).slots


def test_an_insert_adopts_what_is_new_and_leaves_what_was_there() -> None:
    """R3, R4: slots already cached are not overwritten."""
    model = PrefixModel(1)
    put(model, path(1, 2), 10)
    plan = put(model, path(1, 2, 3), 20)
    assert (plan.prefix_len, plan.adopted, plan.displaced) == (2, ((2, 3),), ())
    assert model.slots(path(1, 2, 3)) == (10, 11, 22)


def test_an_insert_of_nothing_changes_nothing() -> None:
    """R3: an empty key is a no-op, recency included."""
    model = PrefixModel(4)
    put(model, path(1, 2, 3), 10)
    assert (model.pages, model.clock) == ({}, 0)


def test_recency_and_hits_are_those_of_the_returned_path() -> None:
    """R8, R10: a match stamps what it returned, an insert its whole path."""
    model = PrefixModel(1)
    put(model, path(1, 2, 3), 10)
    model.commit_match(path(1, 2))
    pages = model.pages
    assert [pages[path(1, 2, 3).upto(end)].access for end in (1, 2, 3)] == [2, 2, 1]
    assert [pages[path(1, 2, 3).upto(end)].hits for end in (1, 2, 3)] == [1, 1, 0]


def test_holds_count_at_and_above_their_node() -> None:
    """R6, R7: everything at or above a hold is protected."""
    model = PrefixModel(1)
    put(model, path(1, 2, 3), 10)
    hold(model, path(1, 2), 1)
    hold(model, path(1), 2)
    assert [model.locks(path(1, 2, 3).upto(end)) for end in (1, 2, 3)] == [2, 1, 0]
    assert model.sizes() == {
        "evictable_size": 1,
        "protected_size": 2,
        "total_size": 3,
        "swa_evictable_size": 0,
        "swa_protected_size": 0,
    }
    model.commit_unlock(1)
    assert [model.locks(path(1, 2).upto(end)) for end in (1, 2)] == [1, 0]


def test_a_prefix_is_usable_with_its_last_window_alive_or_all_of_it() -> None:
    """S1: dead tokens before the last W do not matter."""
    model = PrefixModel(1, window=2)
    put(model, path(1, 2, 3, 4), 10)
    kill(model, path(1, 2))
    usable = [model.is_usable(path(1, 2, 3, 4).upto(end)) for end in range(5)]
    assert usable == [True, True, False, False, True]
    assert model.find(path(1, 2, 3)).path == path(1)
    assert model.find(path(1, 2, 3)).stored == 3


def test_a_hold_covers_its_window_in_whole_pages() -> None:
    """S5, S6: the pages that cover the last W tokens, and no other."""
    model = PrefixModel(2, window=3)
    put(model, path(1, 2, 3, 4, 5, 6), 10)
    hold(model, path(1, 2, 3, 4, 5, 6))
    assert model.holds[1].edge == 2
    assert [model.swa_locks(path(1, 2, 3, 4, 5, 6).upto(end)) for end in (2, 4, 6)] == [0, 1, 1]
    assert model.sizes()["swa_protected_size"] == 4
    assert model.plan_lock(path(1, 2)).edge == 0


def test_a_hold_on_a_dead_window_is_refused() -> None:
    """S5: the prefix must be usable."""
    model = PrefixModel(1, window=2)
    put(model, path(1, 2), 10)
    kill(model, path(1))
    with pytest.raises(NotUsableError):
        model.plan_lock(path(1, 2))


def test_an_unlocked_tombstone_takes_the_incoming_slots() -> None:
    """S7: its own go back to the pool, and the page is still the same one."""
    model = PrefixModel(1, window=2)
    put(model, path(1, 2, 3), 10)
    kill(model, path(1))
    birth = model.pages[path(1)].birth
    plan = put(model, path(1, 2, 3), 20)
    assert (plan.prefix_len, plan.adopted, plan.displaced) == (3, ((0, 1),), (10,))
    assert (model.pages[path(1)].slots, model.pages[path(1)].alive) == ((20,), True)
    assert model.pages[path(1)].birth == birth


def test_without_a_pool_nothing_is_displaced() -> None:
    """S7: slots of no pool are simply forgotten."""
    model = PrefixModel(1, window=2, has_pool=False)
    put(model, path(1, 2, 3), 10)
    kill(model, path(1))
    plan = put(model, path(1, 2, 3), 20)
    assert (plan.adopted, plan.displaced) == (((0, 1),), ())


@pytest.mark.parametrize(("can_move", "revived"), [(True, True), (False, False)])
def test_a_locked_tombstone_keeps_its_slots_and_takes_the_incoming_halves(
    can_move: bool, revived: bool
) -> None:
    """S7: only where the pool can move halves; not in adopted."""
    model = PrefixModel(1, window=1, can_move=can_move)
    put(model, path(1, 2), 10)
    hold(model, path(1, 2))
    kill(model, path(1))
    plan = put(model, path(1, 2), 20)
    assert (plan.adopted, plan.displaced) == ((), ())
    assert plan.moves == ({20: 10} if revived else {})
    assert (model.pages[path(1)].slots, model.pages[path(1)].alive) == ((10,), revived)


@pytest.mark.parametrize(("protected", "evicted"), [(2, 0), (0, 2)])
def test_pages_before_either_bound_stay_dead(protected: int, evicted: int) -> None:
    """S7: revival starts after both, and nodes may be split there."""
    model = PrefixModel(1, window=1)
    put(model, path(1, 2, 3), 10)
    kill(model, path(1), path(1, 2))
    plan = put(model, path(1, 2, 3, 4), 20, protected=protected, evicted=evicted)
    assert plan.adopted == ((3, 4),)
    assert path(1, 2) in plan.splits
    assert not model.pages[path(1, 2)].alive


def test_a_page_with_its_own_slots_stays_dead() -> None:
    """S7: passing the tree's own slots back brings no window KV."""
    model = PrefixModel(1, window=1)
    put(model, path(1, 2), 10)
    kill(model, path(1))
    assert put(model, path(1, 2), 10).adopted == ()
    assert not model.pages[path(1)].alive


def test_new_pages_before_the_freed_halves_are_born_dead() -> None:
    """S7: from swa_evicted_seqlen on they are alive."""
    model = PrefixModel(1, window=1)
    put(model, path(1, 2, 3), 10, evicted=2)
    assert [model.pages[path(1, 2, 3).upto(end)].alive for end in (1, 2, 3)] == [False, False, True]


def test_a_key_that_would_not_be_usable_is_refused_whole() -> None:
    """S7: nothing changes, recency included."""
    model = PrefixModel(1, window=2)
    plan = put(model, path(1, 2, 3), 10, evicted=2)
    assert (plan.refused, plan.adopted, plan.prefix_len) == (True, (), 0)
    assert (model.pages, model.clock) == ({}, 0)


@pytest.mark.parametrize("bounds", [{"protected": 3}, {"protected": -1}, {"protected": 2}])
def test_a_protected_length_is_within_the_key_and_cached(bounds: dict[str, int]) -> None:
    """S7: 0 <= p <= len(key), and the whole pages below p are cached."""
    model = PrefixModel(2, window=2)
    with pytest.raises(NotUsableError):
        model.plan_insert(path(1, 2), (10, 11), **bounds)
    assert not model.plan_insert(path(1, 2), (10, 11), protected=1).refused


@pytest.mark.parametrize("evicted", [-2, 1, 4])
def test_a_freed_length_is_within_the_key_and_whole(evicted: int) -> None:
    """S7: 0 <= e <= len(key), in whole pages."""
    with pytest.raises(NotUsableError):
        PrefixModel(2, window=2).plan_insert(path(1, 2), (10, 11), evicted=evicted)


def test_bounds_change_nothing_without_a_window() -> None:
    """S7, X1: neither whole pages nor what is cached matter, but both are lengths within the key."""
    assert PrefixModel(2).plan_insert(path(1, 2), (10, 11), protected=2, evicted=1).adopted == ((0, 2),)
    for bounds in ({"protected": 3}, {"protected": -1}, {"evicted": 3}, {"evicted": -1}):
        with pytest.raises(NotUsableError):
            PrefixModel(2).plan_insert(path(1, 2), (10, 11), **{"protected": 0, "evicted": 0, **bounds})


def test_a_page_that_is_cached_anew_is_another_page() -> None:
    """R6: a node that left does not come back with its path."""
    model = PrefixModel(1)
    put(model, path(1), 10)
    birth = model.pages[path(1)].birth
    model.commit_evict([path(1)], [])
    put(model, path(1), 20)
    assert model.pages[path(1)].birth > birth


def test_a_reset_forgets_everything_that_was_cached_or_held() -> None:
    """X7: whatever is held."""
    model = PrefixModel(1)
    put(model, path(1, 2), 10)
    hold(model, path(1))
    assert model.reset() == [10, 11]
    assert (model.pages, model.holds) == ({}, {})


def test_the_parent_of_a_page_is_one_page_shorter() -> None:
    """R5: it becomes a leaf when its last child goes."""
    assert PrefixModel(2).parent(path(1, 2, 3, 4)) == path(1, 2)


def test_children_are_those_of_a_recount() -> None:
    """R9: as pages come and go, for paths with cached pages directly below, the root among them."""
    model, left, right = PrefixModel(1), path(1, 2, 3), path(1, 4)
    put(model, left, 10)
    put(model, right, 20)
    put(model, path(1, 2, extra_key="a"), 30)
    assert model.children == {left.upto(0): 1, left.upto(1): 2, left.upto(2): 1} | {
        path(extra_key="a"): 1,
        path(1, extra_key="a"): 1,
    }
    model.commit_evict([left, left.upto(2)], [])
    assert model.children[left.upto(1)] == 1
    assert left.upto(2) not in model.children
    model.reset()
    assert model.children == {}
