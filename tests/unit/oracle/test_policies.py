"""Tests of eviction policies: a claimed order is checked, and an unknown policy is judged without order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Evict, Insert, Inspect, Key, Lock, Match, Unlock
from pymllm.history.outcomes import Effect
from pymllm.mem_cache.tree.eviction_policy import POLICIES
from pymllm.oracle.judge import make_judge
from pymllm.oracle.models.policy_ranks import POLICY_RANKS
from pymllm.replay.plan import knows_policy


def three_leaves(policy: str, adapter: str = "radix", **config: Any) -> ToldProgram:
    """Cache (1, 1) in slots 1 and 2, (2,) in 3 and (3,) in 4, with 2, 0 and 1 hits and priorities 1, 2, 0."""
    told = ToldProgram(adapter, policy=policy, **config)
    for tokens, priority in (((1, 1), 1), ((2,), 2), ((3,), 0)):
        state = {"state": told.snapshot()} if adapter == "mamba" else {}
        told.put(*tokens, priority=priority, **state)
    told(Match(Key((1, 1))))
    told(Match(Key((3,))))
    told(Match(Key((1, 1))))
    return told


FIRST = {"lru": 3, "lfu": 3, "fifo": 1, "mru": 1, "filo": 4, "priority": 4, "slru": 3, "log-lfu": 3}
"""The first slot that each policy gives back."""


def test_every_policy_is_known() -> None:
    assert [*FIRST] == [name for name, rank in POLICY_RANKS.items() if rank is not None]


@pytest.mark.parametrize(("adapter", "config"), [("radix", {}), ("radix", {"window": 1}), ("mamba", HYBRID)])
@pytest.mark.parametrize("policy", FIRST)
def test_the_first_in_rank_goes(policy: str, adapter: str, config: dict[str, Any]) -> None:
    """R11: in each tree of ours, and another leaf in its place breaks the law."""
    told = three_leaves(policy, adapter, **config)
    told(Inspect())
    evicted = told(Evict(1))
    freed = [slot for effect in told.effects(evicted) if effect.call == "free" for slot in effect.slots]
    assert freed[0] == FIRST[policy]
    law = "R8" if policy == "lru" else "R11"
    assert told.sound().exercised[law] > 0
    if adapter == "radix" and not config and len(freed) == 1:
        other = 3 if freed == [4] else 4
        changed = [Effect("free", (other,)), *told.effects(evicted)[1:]]
        assert told.law(evicted, effects=tuple(changed)) == law


class Aged:
    """Adds to the number of an access, of which only the order is anybody's to know."""

    name = "aged"

    def rank(self, node: Any) -> Any:
        return node.last_access_time + 8 * node.hit_count


@pytest.mark.parametrize("idle", [Match(Key(())), Match(Key((9,))), Insert(Key(()), slots=())], ids=repr)
def test_each_match_and_insert_is_counted(idle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R11: those that write on no page, too, so that our class and the judge have the same numbers."""
    monkeypatch.setitem(POLICIES, "aged", Aged)
    monkeypatch.setitem(POLICY_RANKS, "aged", lambda page: page.access + 8 * page.hits)
    told = ToldProgram("radix", policy="aged")
    told.put(1)
    told(Match(Key((1,))))
    for _ in range(7):
        told(idle)
    told.put(2)
    told(Evict(1))
    assert told.sound().exercised["R11"] > 0


@pytest.mark.parametrize("policy", ["fifo", "mru"])
def test_no_more_goes_than_is_needed(policy: str) -> None:
    """R5: as with recency; and that what is older stays is seen."""
    told = three_leaves(policy)
    evicted = told(Evict(1))
    assert told.sound().reached["a policy spares what is older"] == 1
    callback = told.effects(evicted)[-1]
    assert told.law(evicted, effects=(Effect("free", (1, 2, 3)), callback), full=3) == "R5"


def test_a_policy_that_nobody_knows_is_judged_without_order() -> None:
    """R5: any leaf may go, and no more than is needed."""
    told = three_leaves("lfu", without=("exact_policy", "call_order"))
    told.header.config["policy"] = "mine"  # type: ignore[index]
    evicted = told(Evict(1))
    callback = told.effects(evicted)[-1]
    assert told.law(evicted, effects=(Effect("free", (4,)), callback)) is None
    assert told.law(evicted, effects=(Effect("free", (3, 4)), callback), full=2) == "R5"


def ranked_leaves() -> ToldProgram:
    """Return the three leaves of a cache that claims ranks and no order; (2,) is inserted a second time."""
    told = three_leaves("lru", without=("exact_lru", "call_order"))
    claims = (*told.header.capabilities, "ranked_policy")
    config = {**told.header.config, "policy": "inserts"}
    told.header = dataclasses.replace(told.header, capabilities=claims, config=config)
    told.put(2)
    return told


def test_a_rank_lets_equal_ones_go_in_any_order() -> None:
    """R11, R5: of two leaves with one insert each either, the one with two not before them."""
    told = ranked_leaves()
    evicted = told(Evict(1))
    callback = told.effects(evicted)[-1]
    assert told.sound().exercised["R11"] > 0
    for freed, law in (((2,), None), ((3,), "R11"), ((3, 4), "R5")):
        assert told.law(evicted, effects=(Effect("free", freed), callback), full=len(freed)) == law


def test_what_is_held_may_have_any_rank() -> None:
    """R11, R6: and where nothing goes, or nothing stays, nothing was before it."""
    told = ranked_leaves()
    held = [told(Lock(told(Match(Key(tokens))))) for tokens in ((1, 1), (3,))]
    evicted = told(Evict(1))
    assert [effect.slots for effect in told.effects(evicted) if effect.call == "free"] == [(3,)]
    told(Evict(1))
    for lock in held:
        told(Unlock(lock))
    told(Evict(9))
    told.sound()


class Largest:
    """A policy with a name that looks at a node's length, which pages do not have."""

    name = "largest"

    def rank(self, node: Any) -> int:
        return -len(node.key)


@pytest.mark.parametrize("line", [{}, {"largest": None}])
def test_a_policy_that_no_page_can_rank_claims_no_order(
    monkeypatch: pytest.MonkeyPatch, line: dict[str, None]
) -> None:
    """R11: whether it has a line in the judge's table or none, it is replayed, examined and not accused."""
    monkeypatch.setitem(POLICIES, "largest", Largest)
    for name, rank in line.items():
        monkeypatch.setitem(POLICY_RANKS, name, rank)
    told = three_leaves("largest")
    evicted = told(Evict(1))
    assert [effect.slots for effect in told.effects(evicted) if effect.call == "free"] == [(1, 2)]
    assert told.sound().exercised["R11"] == 0
    assert not {"exact_lru", "exact_policy"} & {*told.header.capabilities}
    assert knows_policy("radix", "largest") is bool(line)
    with pytest.raises(
        ProgramError, match=r"the claim exact_policy needs one of lru, lfu, .* log-lfu, release, inserts$"
    ):
        make_judge(Header("x", "prefix", told.header.config, ("exact_policy", "pool")))


@pytest.mark.parametrize(
    ("claim", "policy", "message"),
    [
        ("exact_lru", "fifo", "the configuration's policy is 'fifo'; the claim exact_lru needs lru"),
        ("exact_policy", "mine", "policy is 'mine'; the claim exact_policy needs one of lru, lfu, fifo"),
        ("exact_policy", None, "policy is None; the claim exact_policy"),
        ("ranked_policy", "mine", "policy is 'mine'; the claim ranked_policy needs one of lru, lfu, fifo"),
    ],
)
def test_a_claim_that_does_not_fit_the_policy_is_no_program(claim: str, policy: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        make_judge(Header("x", "prefix", {"page_size": 1, "pool": "none", "policy": policy}, (claim,)))


@pytest.mark.parametrize(("claims", "config"), [(("swa", "exact_windows"), {"window": 2}), (("mamba",), {})])
def test_ranks_alone_are_claimed_without_windows_and_states(
    claims: tuple[str, ...], config: dict[str, int]
) -> None:
    """R11: their evictions take leaves in another order."""
    whole = {"page_size": 1, "pool": "none", "policy": "inserts", "track_slots": 1, **config}
    with pytest.raises(ProgramError, match="with it there must be no window and no states"):
        make_judge(Header("x", "prefix", whole, ("ranked_policy", *claims)))
