"""Tests of nodes that differ from the model, or from earlier nodes: each is refused by its broken law."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Inspect
from pymllm.history.outcomes import Inspected, NodeView, Outcome
from pymllm.oracle.judge import Judge, make_judge
from pymllm.oracle.models import prefix_model
from pymllm.oracle.models.cold_runs import hash_pages
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Path, Space

# -- Nodes that differ from the model, or from what they were, are refused by the law that they break --------


CLAIMS = ("exact_lru", "hashes", "inspect", "swa")
WHOLE = Path(Space(), (1, 2, 3, 4))
SLOTS = (11, 12, 13, 14)


def looker(window: int | None = 2, without: Sequence[str] = ()) -> Judge[CacheModel]:
    """Judge looks at four pages, of which a match has used the first two, and a hold covers the last two."""
    claims = tuple(claim for claim in CLAIMS if claim not in without)
    made = make_judge(Header("x", "prefix", {"page_size": 1, "window": window}, claims))
    cache = made.model.cache
    cache.commit_insert(cache.plan_insert(WHOLE, SLOTS))
    cache.commit_match(WHOLE.upto(2))
    cache.commit_lock(9, cache.plan_lock(WHOLE))
    made.model.tokens[9] = 5
    return made


UPPER = NodeView(
    1, None, (1, 2), None, SLOTS[:2], lock_ref=1, swa_lock_ref=0, hit_count=1, last_access=2.0, kept_bytes=16
)
LOWER = NodeView(
    2, 1, (3, 4), None, SLOTS[2:], lock_ref=1, swa_lock_ref=1, hit_count=0, last_access=1.0, boundary=5
)
GOOD = (UPPER, LOWER)


def look(book: Judge[CacheModel], nodes: Sequence[NodeView]) -> str | None:
    """Look at nodes; return the law that is broken, if one is."""
    try:
        book.judge(99, Inspect(), Outcome(Inspected(tuple(nodes))))
    except InvariantViolation as violation:
        return violation.law
    return None


def test_good_nodes_are_accepted_and_test_what_they_show() -> None:
    """R6, R8, R9, R10, S5, S6, X5: what is shown is counted, and what is not is left out."""
    book = looker()
    assert look(book, GOOD) is None
    assert set(book.evidence.exercised) == {"R3", "R6", "R8", "R9", "R10", "S5", "S6", "X3", "X5", "X8"}
    bare = looker(None)
    assert look(bare, [NodeView(1, None, WHOLE.tokens, None, SLOTS)]) is None
    assert set(bare.evidence.exercised) == {"R3", "R9", "X3", "X8"}


def test_counts_of_held_windows_are_tested_only_where_a_hold_is() -> None:
    """S6: of nodes that nobody holds they are 0 anyhow."""
    book = looker()
    book.model.cache.commit_unlock(9)
    free = [dataclasses.replace(node, lock_ref=0, swa_lock_ref=0, boundary=None) for node in GOOD]
    assert look(book, free) is None
    assert not {"R6", "S5", "S6"} & set(book.evidence.exercised)


@pytest.mark.parametrize(
    ("number", "changes", "law"),
    [
        (0, {"slots": (11, 13)}, "R3"),
        (0, {"lock_ref": 2}, "R6"),
        (0, {"hit_count": 0}, "R10"),
        (0, {"is_alive": False}, "S2"),
        (1, {"swa_lock_ref": 0}, "S6"),
        (1, {"last_access": 2.0}, "R8"),
        (1, {"last_access": 3.0}, "R8"),
        (1, {"boundary": 6}, "S5"),
        (1, {"boundary": None}, "S5"),
        (0, {"boundary": 5}, "S5"),
        (0, {"page_hashes": ("0" * 64,) * 2}, "H2"),
        (1, {"tokens": (3, 5)}, "R3"),
    ],
)
def test_a_node_that_differs_from_the_model_is_refused(
    number: int, changes: dict[str, Any], law: str
) -> None:
    """Each attribute has its law."""
    nodes = list(GOOD)
    nodes[number] = dataclasses.replace(nodes[number], **changes)
    assert look(looker(), nodes) == law


def test_nodes_that_are_missing_or_too_many_are_refused() -> None:
    """R3, R9: every cached page, and no other; the words say which."""
    assert look(looker(), [UPPER]) == "R3"
    more = dataclasses.replace(LOWER, id=3, parent=2, boundary=None)
    with pytest.raises(InvariantViolation) as caught:
        looker().judge(99, Inspect(), Outcome(Inspected((*GOOD, more))))
    assert caught.value.law == "R9"
    assert caught.value.message.startswith("page (1, 2, 3, 4, 3")
    assert (caught.value.expected, caught.value.observed) == ("not in the tree", "slots (13,)")


def test_a_window_starts_with_a_node() -> None:
    """S5: an inner edge has no id to carry."""
    one = dataclasses.replace(UPPER, tokens=(1,), slots=(11,), kept_bytes=8)
    rest = NodeView(2, 1, (2, 3, 4), None, SLOTS[1:], lock_ref=1, boundary=5)
    assert look(looker(), [one, rest]) == "S5"


def test_dead_pages_are_compared() -> None:
    """S2: a tombstone is shown as one."""
    book = looker()
    book.model.cache.commit_evict([], [WHOLE.upto(1), WHOLE.upto(2)])
    assert look(book, [dataclasses.replace(UPPER, is_alive=False), LOWER]) is None
    assert book.evidence.exercised["S2"] == 1


def test_computed_hashes_are_those_of_the_path() -> None:
    """H2: each node has its part of the chain."""
    book = looker()
    hashed = dataclasses.replace(LOWER, page_hashes=hash_pages(WHOLE, 1)[2:])
    assert look(book, [UPPER, hashed]) is None
    assert book.evidence.exercised["H2"] == 1


def test_laws_that_are_not_claimed_are_not_tested() -> None:
    """R8, H2: a cache may show nodes without an order, or with hashes of its own."""
    odd = dataclasses.replace(LOWER, last_access=7.0, page_hashes=("x", "y"))
    book = looker(without=("exact_lru", "hashes"))
    assert look(book, [UPPER, odd]) is None
    assert not {"R8", "H2"} & set(book.evidence.exercised)


# - from one look to the next -----------------------------------------------------------------------------


def seen(*nodes: NodeView) -> Judge[CacheModel]:
    book = looker()
    assert look(book, nodes or GOOD) is None
    return book


def test_a_node_keeps_its_id_and_its_end() -> None:
    """R10: whatever is split, inserted or evicted elsewhere."""
    assert look(seen(), [UPPER, dataclasses.replace(LOWER, id=3)]) == "R10"
    book = seen(*split_in_three())
    assert look(book, GOOD) == "R10"


def split_in_three() -> tuple[NodeView, ...]:
    one = dataclasses.replace(UPPER, id=8, tokens=(1,), slots=(11,), kept_bytes=8)
    two = dataclasses.replace(UPPER, id=1, parent=8, tokens=(2,), slots=(12,), kept_bytes=8)
    return one, two, LOWER


def test_a_node_is_split_only_where_it_may_be() -> None:
    """R2, R10, X3: the lower half keeps the id, and the upper half's is new."""
    assert look(seen(), split_in_three()) == "R2"
    book = seen()
    book.model.nodes.may_split([WHOLE.upto(1)])
    before = book.evidence.exercised["R10"]
    assert look(book, split_in_three()) is None
    assert book.evidence.exercised["R10"] - before == 2
    assert book.evidence.reached["a held path is split"] == 1
    assert not book.evidence.reached["an edge node is split"]
    book = seen()
    book.model.nodes.may_split([WHOLE.upto(1)])
    one, *rest = split_in_three()
    assert look(book, [dataclasses.replace(one, id=0), dataclasses.replace(rest[0], parent=0), LOWER]) == "X3"


def test_splits_of_edge_nodes_and_of_hashed_nodes_are_met() -> None:
    """S5, H2: the upper half takes the boundary id, and its part of the hashes."""
    book = seen()
    book.model.nodes.may_split([WHOLE.upto(3)])
    hashes = hash_pages(WHOLE, 1)
    upper = dataclasses.replace(LOWER, id=3, tokens=(3,), slots=(13,), page_hashes=hashes[2:3])
    lower = dataclasses.replace(
        LOWER, parent=3, tokens=(4,), slots=(14,), boundary=None, page_hashes=hashes[3:]
    )
    assert look(book, [UPPER, upper, lower]) is None
    assert book.evidence.reached["an edge node is split"] == 1
    assert book.evidence.reached["a hashed node is split"] == 1


def replaced(book: Judge[CacheModel]) -> None:
    """Let the last two pages go, and cache them anew."""
    cache = book.model.cache
    cache.commit_unlock(9)
    cache.commit_evict([WHOLE, WHOLE.upto(3)], [])
    cache.commit_insert(cache.plan_insert(WHOLE, SLOTS))


def renewed(id: int) -> tuple[NodeView, ...]:
    upper = dataclasses.replace(UPPER, lock_ref=0, last_access=3.0)
    return upper, NodeView(id, 1, (3, 4), None, SLOTS[2:], last_access=3.0)


def test_what_is_cached_anew_is_a_new_node() -> None:
    """X3: its id was never used before, in the tree or in a callback."""
    book = seen()
    replaced(book)
    assert look(book, renewed(2)) == "X3"
    book.model.nodes.called_back.add(4)
    assert look(book, renewed(4)) == "X3"
    assert look(book, renewed(5)) is None


def test_where_nodes_end_is_known_until_it_may_have_changed() -> None:
    """R5: who was shown the nodes knows what an eviction takes whole."""
    judge = looker()
    book = judge.model.nodes
    assert (book.cut(WHOLE.upto(0)), book.cut(WHOLE)) == (True, None)
    assert book.ids_of([WHOLE]) is None
    look(judge, GOOD)
    assert [book.cut(WHOLE.upto(end)) for end in (1, 2, 3, 4)] == [False, True, False, True]
    assert book.ids_of([WHOLE, WHOLE.upto(3)]) == [2]
    book.may_split([WHOLE.upto(3)])
    assert [book.cut(WHOLE.upto(end)) for end in (1, 3)] == [False, None]
    replaced(judge)
    assert [book.cut(WHOLE.upto(end)) for end in (2, 3, 4)] == [True, None, None]
    assert book.cut(Path(Space(), (9,))) is None


def test_a_page_in_another_space_is_not_lost() -> None:
    """K1 before R3: it is shown under another namespace than it was cached under."""
    elsewhere = NodeView(1, None, WHOLE.tokens, "1", SLOTS)
    with pytest.raises(InvariantViolation, match=r"space of page \(1,\).*\(None, 1\).*\('1', 1\)") as caught:
        looker(None).judge(99, Inspect(), Outcome(Inspected((elsewhere,))))
    assert caught.value.law == "K1"
    assert look(looker(None), [NodeView(1, None, (5, 2, 3, 4), "1", SLOTS)]) == "R3"
    whole = NodeView(2, None, WHOLE.tokens, None, SLOTS)
    assert look(looker(None), [elsewhere, whole]) == "R9"


def test_a_page_under_other_values_is_not_lost() -> None:
    """K2 before K1: it is shown under other values than it was cached under."""
    made = make_judge(Header("x", "prefix", {"page_size": 4}, (*CLAIMS, "extra_key", "lora")))
    cache = made.model.cache
    cache.commit_insert(cache.plan_insert(Path(Space(("a", "b")), WHOLE.tokens), SLOTS))
    assert look(made, [NodeView(1, None, WHOLE.tokens, ("b", "a"), SLOTS)]) == "K2"
    assert look(made, [NodeView(1, None, (9, 9, 9, 9), ("b", "a"), SLOTS)]) == "R3"


# -- Nodes that are no tree ----------------------------------------------------------------------------------


UPPER_VIEW = NodeView(1, None, (7, 7, 8, 8), "a", (2, 3, 4, 5), kept_bytes=32)
LOWER_VIEW = NodeView(2, 1, (9, 9), "a", (6, 7))


def paged() -> Judge[CacheModel]:
    """Judge looks at three pages of two tokens in a namespace."""
    claims = (*CLAIMS, "extra_key")
    made = make_judge(Header("x", "prefix", {"page_size": 2}, claims))
    cache = made.model.cache
    cache.commit_insert(cache.plan_insert(Path(Space("a"), (7, 7, 8, 8, 9, 9)), (2, 3, 4, 5, 6, 7)))
    return made


def test_pages_are_found_by_their_paths() -> None:
    """R9: a path is the whole prefix from the root."""
    assert look(paged(), [UPPER_VIEW, LOWER_VIEW]) is None


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"id": 1}, "X3"),
        ({"parent": 5}, "R9"),
        ({"tokens": ()}, "R9"),
        ({"tokens": (9, (9, 9))}, "R9"),
        ({"tokens": (9,)}, "R9"),
        ({"tokens": (9, 9, 9), "slots": (6, 7, 8)}, "R9"),
        ({"slots": (6,)}, "R9"),
        ({"parent": None, "tokens": (7, 7)}, "R9"),
        ({"extra_key": None}, "K1"),
        ({"tokens": ((9, 9), (9, 9))}, "K1"),
        ({"kept_bytes": 48}, "X5"),
    ],
)
def test_what_is_no_tree_is_refused(changes: dict[str, Any], law: str) -> None:
    """R9, K1, X3, X5: whole pages, one node each, below a parent of the same namespace."""
    assert look(paged(), [UPPER_VIEW, dataclasses.replace(LOWER_VIEW, **changes)]) == law


# -- Page hashes, from the path alone ------------------------------------------------------------------------


def test_pages_chain_from_the_one_before() -> None:
    """H2: the tail after the last whole page has none."""
    first = hashlib.sha256(b"\x01\0\0\0\x02\0\0\0")
    second = hashlib.sha256(first.digest() + b"\x03\0\0\0\x04\0\0\0")
    hashes = hash_pages(Path(Space(), (1, 2, 3, 4, 5)), 2)
    assert hashes == (first.hexdigest(), second.hexdigest())


def test_tuples_are_hashed_element_by_element() -> None:
    """H1: a pair is eight bytes."""
    assert hash_pages(Path(Space(None, 2), ((1, 2),)), 1) == hash_pages(Path(Space(), (1, 2)), 2)


def test_a_namespace_seeds_the_first_page() -> None:
    """H3: 33 bytes, so that no tokens can collide; the string and the number differ."""
    named = hashlib.sha256(b"\0" + hashlib.sha256(b"i:1").digest()).digest()
    expected = hashlib.sha256(named + b"\x07\0\0\0").hexdigest()
    assert hash_pages(Path(Space(1), (7,)), 1) == (expected,)
    assert len({hash_pages(Path(Space(space), (7,)), 1) for space in (None, 1, "1")}) == 3


def test_several_values_seed_the_first_page() -> None:
    """H3: by the digest of the name of each; a missing value has none."""
    digests = [hashlib.sha256(name).digest() for name in (b"", b"s:b", b"i:3")]
    named = hashlib.sha256(b"\0" + hashlib.sha256(b"t:" + b"".join(digests)).digest()).digest()
    expected = hashlib.sha256(named + b"\x07\0\0\0").hexdigest()
    assert hash_pages(Path(Space((None, "b", 3)), (7,)), 1) == (expected,)
    spaces = (("a", "bc"), ("ab", "c"), ("bc", "a"), ("", "a"), (None, "a"), "a")
    assert len({hash_pages(Path(Space(space), (7,)), 1) for space in spaces}) == len(spaces)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_cannot_be_hashed_makes_no_sense(token: int) -> None:
    """X1: a program that asks for its hash is refused, and nobody is blamed."""
    with pytest.raises(ProgramError, match="a token to be hashed is outside"):
        hash_pages(Path(Space(), (1, token)), 2)


# -- paths ---------------------------------------------------------------------------------------------------


def test_equal_paths_are_one_object() -> None:
    """They are looked up by identity, so an equal path of another making must be the same one."""
    path = Path(Space("a"), (1, 2, 3))
    assert Path(Space("a"), (1, 2)).longer_by((3,)) is path
    assert Path(Space("a"), (1, 2, 3, 4)).upto(3) is path
    assert copy.deepcopy(path) is path
    assert pickle.loads(pickle.dumps(path)) is path
    assert Path(Space("b"), (1, 2, 3)) is not path
    assert repr(path) == "Path(space=Space(extra_key='a', width=1), tokens=(1, 2, 3))"


def test_paths_that_nobody_uses_are_forgotten() -> None:
    """A soak makes millions of paths; a new one of the same tokens is not the one that has gone."""
    key = (Space("short-lived"), (1, 2, 3))
    kept = Path(Space("kept"), (1,))
    Path(*key)
    again = Path(*key)
    assert prefix_model._PATHS.known[key]() is again
    del again
    for number in range(2 * prefix_model._PATHS.limit):
        Path(Space("many"), (number,))
    assert key not in prefix_model._PATHS.known
    assert len(prefix_model._PATHS.known) < 2 * prefix_model._PATHS.limit
    assert Path(Space("kept"), (1,)) is kept


def test_a_path_that_another_thread_has_just_made_is_the_one() -> None:
    """Two judges at once have keys in common, and a second object would be a path that is not cached."""
    path = Path(Space("both"), (1, 2))
    assert prefix_model._PATHS.make(*path.__reduce__()[1]) is path
