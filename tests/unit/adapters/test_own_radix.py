"""Adapters of `RadixCache`."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.own_caches import Radix, WindowedRadix
from pymllm.errors import InvariantViolation
from pymllm.history.operations import (
    Alloc,
    Fault,
    Hash,
    Insert,
    Inspect,
    Key,
    Lock,
    Malformed,
    Match,
    ReadHalves,
    Reset,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Hashes, Inspected, Locked
from pymllm.oracle.laws import LAWS, Way

CONFIGURATIONS = [(kind, config) for kind in (Radix, WindowedRadix) for config in kind.CONFIGURATIONS]
STRUCTURAL = {law.id for law in LAWS if Way.STRUCTURE in law.ways}


def make(config: dict[str, Any] | None = None) -> Radix:
    return WindowedRadix("radix", config or WindowedRadix.CONFIGURATIONS[2])


def fill(adapter: Radix, tokens: int = 8) -> Radix:
    """Cache one key; the steps are 1 and 2."""
    slots: tuple[Span, ...] = (Span(0, 1000, 1000 + tokens),)
    if adapter.pool is not None:
        adapter.apply(1, Alloc(tokens))
        slots = (Span(1, 0, tokens),)
    adapter.apply(2, Insert(Key((7,) * tokens), slots))
    return adapter


@pytest.mark.parametrize(("kind", "config"), CONFIGURATIONS)
def test_every_configuration_is_built_as_it_says(kind: type[Radix], config: dict[str, Any]) -> None:
    """Page, window and pool are the configuration's, and what is claimed is known."""
    adapter = kind("radix", config)
    assert adapter.cache.page_size == config["page_size"]
    assert adapter.cache.sliding_window_size == config["window"]
    assert (adapter.pool is None) == (config["pool"] == "none")
    assert adapter.capabilities <= set(CAPABILITIES)
    assert ("swa" in adapter.capabilities) == (config["window"] is not None)
    assert ("pool" in adapter.capabilities) == ("engine" in adapter.capabilities) == bool(adapter.pool)


@pytest.mark.parametrize(("kind", "config"), CONFIGURATIONS)
def test_audits_walk_tree_and_pool(kind: type[Radix], config: dict[str, Any]) -> None:
    """R9, A2: the ids are of laws with a structural check, and an empty tree tells nothing of trees."""
    adapter = kind("radix", config)
    empty = set(adapter.audit())
    laws = set(fill(adapter).audit())
    assert empty < laws <= STRUCTURAL
    assert empty == ({"A1", "A2", "A7"} & laws)
    assert ({"A1", "A2"} <= laws) == bool(adapter.pool)
    assert ("R1" in laws) == (bool(adapter.pool) and adapter.is_checked)
    assert ("S4" in laws) == (config["window"] is not None)
    assert ("S2" in laws) == (config["window"] is not None and config["pool"] == "swa")


def test_an_audit_finds_what_is_wrong_inside() -> None:
    """R7: the walk is the one of `pymllm.invariants`."""
    adapter = fill(make())
    adapter.cache._tree.evictable_tokens += 1
    with pytest.raises(InvariantViolation, match="R7"):
        adapter.audit()


def test_nothing_is_walked_again_after_reading() -> None:
    """What only read has changed nothing that was not seen before."""
    adapter = fill(make())
    for step, operation in enumerate((Inspect(), Fault("free"), ReadHalves(())), 3):
        adapter.apply(step, operation)
        assert adapter.audit() == ()
    adapter.apply(6, Match(Key(())))
    assert adapter.audit() != ()


def test_an_audit_finds_what_is_wrong_in_the_pool() -> None:
    """A7: and so is that of the pool."""
    adapter = make()
    adapter.pool.inner._half_of[1] = 1
    with pytest.raises(InvariantViolation, match="A7"):
        adapter.audit()


def test_nodes_are_shown() -> None:
    """R9, S5: as the tree has them after a hold has split one."""
    adapter = fill(make())
    adapter.apply(3, Lock(2))
    inspected = adapter.apply(4, Inspect()).result
    assert isinstance(inspected, Inspected)
    assert [(view.tokens, view.swa_lock_ref) for view in inspected.nodes] == [((7,) * 4, 0), ((7,) * 4, 1)]


def test_hashes_are_those_of_the_whole_path() -> None:
    """H2: one per page from the root, whatever nodes there are."""
    adapter = fill(make(), tokens=3)
    adapter.apply(3, Match(Key((7,))))
    chain, expected = b"", []
    for _ in range(3):
        chain = hashlib.sha256(chain + (7).to_bytes(4, "little")).digest()
        expected.append(chain.hex())
    assert adapter.apply(4, Hash(2)).result == Hashes(tuple(expected))
    assert adapter.apply(5, Hash(3)).result == Hashes(tuple(expected[:1]))


def test_the_root_has_neither_hashes_nor_holds() -> None:
    """R6, X7: by its node and by None, also once it is an old root."""
    adapter = fill(make())
    adapter.apply(3, Match(Key((9,))))
    assert [adapter.apply(step, Lock(3)).result for step in (4, 5)] == [Locked(), Locked()]
    assert adapter.apply(6, Hash(3)).result == Hashes(())
    adapter.apply(7, Reset())
    results = [adapter.apply(8 + lock, Unlock(lock)).result for lock in (4, 5)]
    assert results == [Done(), Done()]
    assert adapter.apply(14, Hash(3)).result == Hashes(())


def test_what_left_is_stale() -> None:
    """X7: a node of before a reset is refused by every call."""
    adapter = fill(make())
    adapter.apply(3, Lock(2))
    adapter.apply(4, Reset())
    for step, operation in enumerate((Lock(2), Unlock(3), Hash(2)), 5):
        assert adapter.apply(step, operation).result.error == "StaleNodeError"


def test_two_runs_are_the_same() -> None:
    """X3: outcomes are values, and equal ones."""
    programs = [
        [fill(make()).apply(step, op) for step, op in enumerate((Lock(2), Inspect()), 3)] for _ in "12"
    ]
    assert programs[0] == programs[1]
    assert dataclasses.replace(programs[0][0], sizes={}) != programs[1][0]


def test_nonsense_that_is_taken_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a call that should have raised and did not is an answer as any other."""
    adapter = make()
    monkeypatch.setattr(adapter.cache, "evict", lambda *amounts: None)
    assert adapter.apply(1, Malformed("evict", "a float amount")).result == Done()
