"""The adapters of our trees: configurations, audits, states, and what is seen of nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.own_caches import (
    ASTRAY,
    Mamba,
    OwnTree,
    Radix,
    WindowedRadix,
    path_length,
    view_hybrid_node,
    view_node,
    view_tree,
)
from pymllm.adapters.registry import make_adapter
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.oracle.laws import LAWS, Way

# -- Adapters of `RadixCache` --------------------------------------------------------------------------------


STATE = ops.Span(2, 0, 1)
CONFIGURATIONS = [(kind, config) for kind in (Radix, WindowedRadix, Mamba) for config in kind.CONFIGURATIONS]
STRUCTURAL = {law.id for law in LAWS if Way.STRUCTURE in law.ways}


def make() -> Radix:
    return WindowedRadix("radix", WindowedRadix.CONFIGURATIONS[2])


def hybrid(**changes: Any) -> Mamba:
    return Mamba("mamba", {**Mamba.CONFIGURATIONS[0], **changes})


def fill(adapter: Any, tokens: int = 8) -> Any:
    """Cache one key, and the state at its end where there are states; the steps are 1 to 3."""
    slots: tuple[ops.Span, ...] = (ops.Span(0, 1000, 1000 + tokens),)
    if adapter.pool is not None:
        adapter.apply(1, ops.Alloc(tokens))
        slots = (ops.Span(1, 0, tokens),)
    has_states = isinstance(adapter, Mamba)
    if has_states:
        adapter.apply(2, ops.AllocTrack())
    adapter.apply(
        2 + has_states, ops.Insert(ops.Key((7,) * tokens), slots, state=STATE if has_states else None)
    )
    return adapter


@pytest.mark.parametrize(("kind", "config"), CONFIGURATIONS)
def test_every_configuration_is_built_as_it_says(kind: type[Any], config: dict[str, Any]) -> None:
    """Page, window, pool and track slots are the configuration's, and what is claimed is known."""
    adapter = kind("made", config)
    assert adapter.cache.page_size == config["page_size"]
    assert adapter.capabilities <= set(CAPABILITIES)
    assert (adapter.pool is None) == (config["pool"] == "none")
    assert ("pool" in adapter.capabilities) == ("engine" in adapter.capabilities) == bool(adapter.pool)
    if kind is Mamba:
        assert adapter.states.inner.max_track_slots == config["track_slots"]
        assert {"mamba", "lru_lists"} < adapter.capabilities
    else:
        assert adapter.cache.sliding_window_size == config["window"]
        assert ("swa" in adapter.capabilities) == (config["window"] is not None)


@pytest.mark.parametrize(("kind", "config"), CONFIGURATIONS)
def test_audits_walk_tree_lists_and_pools(kind: type[Any], config: dict[str, Any]) -> None:
    """R9, M8, A2: ids of laws with a structural check; an empty tree tells nothing of trees and states."""
    adapter = kind("made", config)
    empty = set(adapter.audit())
    laws = set(fill(adapter).audit())
    assert empty < laws <= STRUCTURAL
    assert empty == ({"A1", "A2", "A7"} & laws)
    assert ({"A1", "A2"} <= laws) == bool(adapter.pool)
    assert ("R1" in laws) == (bool(adapter.pool) and adapter.is_checked)
    assert ({"M4", "M5", "M6", "M7", "M8"} <= laws) == (kind is Mamba)
    assert ("S4" in laws) == (config["window"] is not None)
    assert ("S2" in laws) == (config["window"] is not None and config["pool"] == "swa")
    adapter.apply(4, ops.Inspect())
    assert adapter.audit() == ()


@pytest.mark.parametrize(
    ("made", "spoil", "law"),
    [
        (make, lambda cache: setattr(cache._tree, "evictable_tokens", 99), "R7"),
        (hybrid, lambda cache: setattr(cache._states, "evictable", 99), "M6"),
    ],
)
def test_an_audit_finds_what_is_wrong_inside(made: Any, spoil: Any, law: str) -> None:
    """R7, M6: the walk is the one of `pymllm.invariants`."""
    adapter = fill(made())
    spoil(adapter.cache)
    with pytest.raises(InvariantViolation, match=law):
        adapter.audit()


@pytest.mark.parametrize("name", ["radix", "chunk"])
def test_a_strangers_configuration_may_leave_out_window_and_pool(name: str) -> None:
    """Absent is none, as documented: a stranger's program runs on our classes."""
    keys = {"window": None, "pool": "none"}
    for config in ({"page_size": 2}, {"page_size": 2, "pool": "token", "slots": 8}):
        short, full = make_adapter(name, config), make_adapter(name, {**keys, **config})
        assert short.capabilities == full.capabilities
        for step, operation in enumerate((ops.Match(ops.Key((1, 2))), ops.Evict(2), ops.Reset()), 1):
            assert short.apply(step, operation) == full.apply(step, operation)


def test_nothing_is_walked_again_after_reading() -> None:
    """An operation that only read does not cause another walk."""
    adapter = fill(make())
    for step, operation in enumerate((ops.Inspect(), ops.Fault("free"), ops.ReadHalves(())), 3):
        adapter.apply(step, operation)
        assert adapter.audit() == ()
    adapter.apply(6, ops.Match(ops.Key(())))
    assert adapter.audit() != ()


def test_an_audit_finds_what_is_wrong_in_the_pool() -> None:
    """A7: and so is that of the pool."""
    adapter = make()
    adapter.pool.inner._half_of[1] = 1
    with pytest.raises(InvariantViolation, match="A7"):
        adapter.audit()


def test_nonsense_that_is_taken_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a call that should have raised and did not is an answer as any other."""
    adapter = make()
    monkeypatch.setattr(adapter.cache, "evict", lambda *amounts: None)
    assert adapter.apply(1, ops.Malformed("evict", "a float amount")).result == out.Done()


# -- Adapter of `MambaRadixCache` ----------------------------------------------------------------------------


def test_small_and_large_pools_of_states_are_examined() -> None:
    """M7: one track slot, a few, and more than there are pages, for both page sizes."""
    found = {(config["page_size"], config["track_slots"]) for config in Mamba.CONFIGURATIONS}
    assert found == {(page, slots) for page in (1, 4) for slots in (1, 3, 32)}


def test_a_free_names_exactly_one() -> None:
    """P5: several at once have no meaning."""
    with pytest.raises(ProgramError, match="one"):
        hybrid().apply(1, ops.FreeTrack(ops.Span(0, 2, 4)))


# -- What the adapters of all trees of ours share ------------------------------------------------------------


CONFIG = {"page_size": 2, "window": None, "pool": "none", "slots": 8, "swa_slots": 8, "track_slots": 3}

each_tree = pytest.mark.parametrize("kind", [Radix, Mamba])


def fill_tree(kind: type[OwnTree]) -> OwnTree:
    """Cache one key of two pages; the step is 1."""
    made = kind("tree", CONFIG)
    made.apply(1, ops.Insert(ops.Key((7,) * 4), (ops.Span(0, 10, 14),)))
    return made


@each_tree
def test_a_node_of_another_cache_is_one_of_the_same_class(kind: type[OwnTree]) -> None:
    """X1: it is refused because it is elsewhere, and for nothing else."""
    made = kind("tree", CONFIG)
    assert type(made.foreign_node) is type(made.cache.root_node)
    assert type(made.build(2)) is type(made.cache)
    refused = made.apply(1, ops.Malformed("lock", "a node of another cache"))
    assert refused.result.error == "StaleNodeError"


@each_tree
def test_what_every_tree_can_is_claimed(kind: type[OwnTree]) -> None:
    """R8, X1, X6: by its class, and what is about slots only over a pool."""
    claimed = kind("tree", CONFIG).capabilities
    assert {"exact_lru", "refusals", "callbacks", "inspect", "hashes"} < claimed
    assert "pool" not in claimed


def test_an_adapter_that_builds_no_other_tree_cannot_be_made() -> None:
    """X1: a forgotten method is an error when the adapter is made, not at the first foreign node."""
    unfinished = type("Unfinished", (OwnTree,), {"make_cache": Radix.make_cache})
    with pytest.raises(TypeError, match=r"abstract method '?build"):
        unfinished("tree", CONFIG)


@each_tree
def test_a_node_that_left_is_looked_at_once(kind: type[OwnTree]) -> None:
    """X5: what was handed out and evicted names no other node; roots of before a reset neither."""
    made = fill_tree(kind)
    made.apply(2, ops.Match(ops.Key((9, 9))))
    assert "X5" not in made.audit()
    node, other = made.node_of(1), made.foreign_node
    made.apply(3, ops.Evict(100))
    node._older = other
    with pytest.raises(
        InvariantViolation, match=rf"X5: node {node.id} has left the tree and keeps node \d+ alive"
    ):
        made.audit()
    assert "X5" not in made.audit()
    made.apply(4, ops.Reset())
    assert "X5" in made.audit()


# -- What is seen of the nodes of a tree ---------------------------------------------------------------------


@pytest.fixture
def cache() -> RadixCache:
    cache = RadixCache(sliding_window_size=2)
    cache.insert(RadixKey([1, 2, 3, 4], "a"), torch.tensor([11, 12, 13, 14]))
    cache.insert(RadixKey([1, 2, 5, 6], "a"), torch.tensor([0, 0, 15, 16]))
    return cache


def test_every_attribute_is_shown(cache: RadixCache) -> None:
    """R10, S5: ids, counts, flags and the boundary are read off the node."""
    node = cache.match_prefix(RadixKey([1, 2, 3, 4], "a")).last_node
    token = cache.inc_lock_ref(node)
    cache.compute_node_hash(node)
    cache.match_prefix(RadixKey([1, 2, 5, 6], "a"))
    cache.evict(0, 2)
    upper, lower, other = view_tree(cache.root_node, view_node)
    assert (upper.parent, upper.tokens, upper.slots, upper.is_alive) == (None, (1, 2), (11, 12), False)
    assert (lower.id, lower.parent, lower.tokens, lower.extra_key) == (node.id, upper.id, (3, 4), "a")
    assert (lower.lock_ref, lower.swa_lock_ref, lower.boundary, lower.hit_count) == (1, 1, token, 1)
    assert (upper.lock_ref, upper.swa_lock_ref, upper.boundary, upper.hit_count) == (1, 0, None, 2)
    assert lower.page_hashes == tuple(node.hash_values)
    assert other.page_hashes is None
    assert other.last_access == upper.last_access > lower.last_access
    assert {view.kept_bytes for view in (upper, lower, other)} == {16}


def test_every_attribute_of_a_hybrid_node_is_shown() -> None:
    """M3, M4: states and their locks are read off the node, where it has them."""
    cache = MambaRadixCache()
    lower = cache.insert(
        RadixKey([1, 2, 3]), torch.tensor([11, 12, 13]), mamba_value=torch.tensor([5])
    ).last_node
    cache.inc_lock_ref(lower)
    cache.compute_node_hash(lower)
    cache.insert(RadixKey([1, 2]))
    views = view_tree(cache.root_node, view_hybrid_node)
    assert [(view.tokens, view.slots, view.state) for view in views] == [
        ((1, 2), (11, 12), None),
        ((3,), (13,), 5),
    ]
    assert [(view.lock_ref, view.state_lock_ref, view.hit_count) for view in views] == [(1, 0, 0), (1, 1, 0)]
    assert [view.swa_lock_ref for view in views] == [None, None]
    assert [len(view.page_hashes or ()) for view in views] == [2, 1]
    assert [view.kept_bytes for view in views] == [16, 8]
    assert views[0].last_access == views[1].last_access + 1


def test_a_path_is_as_long_as_the_key_it_spells(cache: RadixCache) -> None:
    """R2: the node that a match returns spells the prefix."""
    key = ops.Key((1, 2, 5, 9), "a")
    match = cache.match_prefix(RadixKey([*key.tokens], "a"))
    assert path_length(cache.root_node, match.last_node, key) == 3
    assert path_length(cache.root_node, cache.root_node, key) == 0


@pytest.mark.parametrize(
    "key", [ops.Key((1, 2, 5), "a"), ops.Key((1, 2, 3, 9), "a"), ops.Key((1, 2, 3), "a")]
)
def test_a_path_that_spells_something_else_is_astray(cache: RadixCache, key: ops.Key) -> None:
    """R2: other tokens at once, other tokens later, more tokens than the key has."""
    node = cache.match_prefix(RadixKey([1, 2, 3, 4], "a")).last_node
    assert path_length(cache.root_node, node, key) == ASTRAY


def test_a_path_to_another_root_is_astray(cache: RadixCache) -> None:
    """R2: a node of another cache, one that left, and no node at all lead nowhere."""
    key = ops.Key((1, 2, 3, 4), "a")
    node = cache.match_prefix(RadixKey([*key.tokens], "a")).last_node
    assert path_length(RadixCache().root_node, node, key) == ASTRAY
    assert path_length(cache.root_node, None, key) == ASTRAY
    cache.reset()
    assert path_length(cache.root_node, node, key) == ASTRAY
