"""Tests of the vectors that an adapter plays: by claims and by pages, and their use for few claims."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.faults.table import find_faults, own_cabinet
from pymllm.history.operations import Alloc, Insert
from pymllm.vectors.claims import PLAIN, TYPICAL, Claimant, percent
from pymllm.vectors.format import Vector, VectorStep
from pymllm.vectors.make import try_faults
from pymllm.vectors.play import SKIPPED, play_on
from pymllm.vectors.programs import is_of_plain, search_plainly
from pymllm.vectors.run import load_all
from pymllm.vectors.shares import faults_of, share_of
from tests.unit.vectors.runners import FOLDER, IN_PYTHON

FILES = {kind: vectors for kind, (_, vectors) in load_all(FOLDER).items()}
OF_PLAIN = [it for it in FILES["prefix"] if PLAIN.plays("prefix", it)]
POOLED: dict[str, Any] = {"page_size": 1, "window": None, "pool": "token", "slots": 2}


def vector(needs: tuple[str, ...] = ("pool",), **config: Any) -> Vector:
    step = VectorStep(Alloc(1), {})
    return Vector("a", "R2", "", "observable", "must", needs, {**POOLED, **config}, (step,))


@pytest.mark.parametrize(
    ("made", "claims"),
    [
        (vector(), "pool"),
        (vector(("pool", "twice")), "pool"),
        (vector(("extra_key", "pool")), "pool extra_key"),
        (vector(("refuses_stale", "pool")), "pool refusals"),
        (vector((), pool="none"), ""),
        (vector(("pool", "swa"), window=2), "pool swa"),
        (vector(("pool",), pool="swa"), "pool swa"),
        (vector(("pool", "mamba"), track_slots=1), "pool mamba"),
        (vector(("pool",), policy="lfu"), "pool exact_policy"),
        (vector(("pool",), policy="lfu"), "pool ranked_policy"),
    ],
)
def test_a_vector_is_for_who_claims_what_it_needs(made: Vector, claims: str) -> None:
    """A vector is played with all claims that its needs or its configuration ask for, and only then."""
    whole = frozenset(claims.split())
    assert Claimant("prefix", whole).plays("prefix", made)
    assert not Claimant("slots", whole).plays("prefix", made)
    assert not any(Claimant("prefix", whole - {it}).plays("prefix", made) for it in whole)


def test_pages_of_one_token_are_no_pages() -> None:
    """An adapter with one page size plays no vectors of the other; without a page size it plays both."""
    one, several = vector(), vector(page_size=4)
    assert [PLAIN.plays("prefix", it) for it in (one, several)] == [True, False]
    paged = Claimant("prefix", PLAIN.claims, 8)
    assert [paged.plays("prefix", it) for it in (one, several)] == [False, True]
    assert all(Claimant("prefix", PLAIN.claims).plays("prefix", it) for it in (one, several))


def test_who_claims_everything_is_built_in_any_way() -> None:
    """Only the kind counts, and the pages, if they are named."""
    everybody = Claimant("prefix")
    assert all(everybody.plays("prefix", it) for it in FILES["prefix"])
    assert not everybody.plays("slots", FILES["slots"][0])


def test_a_cache_that_keeps_nothing_is_no_plain_one() -> None:
    """It cannot be told by a claim."""
    assert not PLAIN.plays("prefix", vector(retains=False))


def test_the_example_plays_what_its_claims_say() -> None:
    """With pages of any size: neither a vector more nor one less than the table counts."""
    claims = Claimant("prefix", frozenset(IN_PYTHON.PageCache.CLAIMS))
    assert IN_PYTHON.PageCache.CLAIMS == ("pool", "extra_key", "exact_lru")
    for it in FILES["prefix"]:
        plain = {"needs": it.needs and list(it.needs), "config": dict(it.config)}
        cache, _ = IN_PYTHON.make(plain, "prefix")
        assert (cache is not None) == claims.plays("prefix", it), it.id


def test_a_plain_cache_plays_sixty_vectors_at_least() -> None:
    """Each of them is played by ours to its end, and needs nothing that such a cache does not claim."""
    assert len(OF_PLAIN) >= 60
    made = load_adapter(find_adapter("radix"))
    assert all(set(it.needs) <= (PLAIN.claims or set()) for it in OF_PLAIN)
    assert {play_on(it, "radix", made).verdict for it in OF_PLAIN}.isdisjoint({SKIPPED, "failed"})


def test_a_plain_vector_expects_nothing_that_is_told_from_inside() -> None:
    """No node, hit or hash is asked for; a field that a plain cache does not have is passed over."""
    for it in OF_PLAIN:
        for step in it.steps:
            result = step.expect.get("result", {})
            said = set(result.get("$may", result))
            assert said <= {
                *(
                    "is",
                    "slots",
                    "dtype",
                    "prefix_len",
                    "node_len",
                    "adopted",
                    "full",
                    "swa",
                    "states",
                    "$free",
                )
            }


def test_an_insert_comes_without_slots_only_where_it_has_no_tokens() -> None:
    """Or where there is no pool, whose slots they would be: docs/vectors.md says how to read it."""
    for it in FILES["prefix"]:
        for step in it.steps:
            if isinstance(step.operation, Insert) and it.config["pool"] != "none":
                is_refused = any(need.startswith("refuses_") for need in it.needs)
                assert step.operation.slots is not None or not step.operation.key.tokens or is_refused, it.id


def test_the_planted_locked_parent_is_shown_to_a_plain_cache() -> None:
    """And to how many faults a share refers is told: those of the kind, but for the engine's."""
    (fault,) = find_faults(["faulty-locked-parents"], own_cabinet())
    kills = try_faults({"prefix": OF_PLAIN}, [fault])
    assert sum(it == {fault.id} or fault.id in it for it in kills.values()) >= 3
    share = share_of(PLAIN, FILES, kills)
    assert share.vectors == tuple(sorted(it.id for it in OF_PLAIN))
    assert share.of == len(FILES["prefix"])
    assert share.shown.keys() == {it.id for it in faults_of("prefix")}
    assert (share.faults, len(share.shown[fault.id])) == (1, sum(map(bool, kills.values())))


def test_a_search_finds_plain_programs_of_several_seeds() -> None:
    """Each is for a plain cache; a fault of windows is not looked for."""
    plain, windowed = find_faults(["faulty-locked-parents", "B19"], own_cabinet())
    sources = search_plainly(plain)
    assert 2 <= len({it.operations for it in sources}) <= len(sources) <= 3
    assert all(set(it.needs) <= (PLAIN.claims or set()) for it in sources)
    assert all(it.config["page_size"] == 1 and it.config["pool"] == "token" for it in sources)
    assert (is_of_plain(windowed), search_plainly(windowed)) == (False, [])


def test_typical_claims_are_different_and_play_something() -> None:
    """Each with a name of its own."""
    assert len({name for name, _ in TYPICAL}) == len({it for _, it in TYPICAL}) == len(TYPICAL)
    for _, claimant in TYPICAL:
        assert any(claimant.plays(claimant.kind, it) for it in FILES[claimant.kind])


@pytest.mark.parametrize(
    ("some", "of", "text"), [(0, 0, "0.0 %"), (1, 3, "33.3 %"), (1999, 2000, "99.9 %"), (7, 7, "100.0 %")]
)
def test_only_all_are_a_hundred_percent(some: int, of: int, text: str) -> None:
    """A share is cut off, and not rounded."""
    assert percent(some, of) == text
