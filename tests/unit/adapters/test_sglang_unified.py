"""The adapters of sglang's unified tree: in Python and in Rust, alone and beside a window."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.adapters.sglang.caches import SglangRust, SglangRustSWA, SglangUnified, SglangUnifiedSWA
from pymllm.history.operations import (
    Alloc,
    Evict,
    FreeSWA,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Effect, Evicted, Inspected, Locked, Matched, Unsupported
from tests.unit.adapters.sglang_versions import needs_sglang_newer

NAMES = {
    "sglang-unified": SglangUnified,
    "sglang-rust": SglangRust,
    "sglang-unified-swa": SglangUnifiedSWA,
    "sglang-rust-swa": SglangRustSWA,
}


def test_the_trees_are_told_apart() -> None:
    """By sglang's own names, and each kind of memory by its."""
    assert [it.BACKEND for it in NAMES.values()] == ["python", "rust", "python", "rust"]
    assert [it.PARTS for it in NAMES.values()] == [("FULL",)] * 2 + [("FULL", "SWA")] * 2
    assert {config["sliding_window"] for config in SglangRustSWA.CONFIGURATIONS} == {4, 6}


@needs_sglang_newer
@pytest.mark.parametrize("name", NAMES)
def test_it_matches_and_evicts_over_its_own_pool(name: str) -> None:
    """R2, R5: slots with halves go as one, whichever of the two goes first."""
    adapter = make_adapter(name, dict(NAMES[name].CONFIGURATIONS[0]))
    adapter.apply(1, Alloc(3))
    adapter.apply(2, Insert(Key((1, 2, 3)), (Span(1, 0, 3),)))
    assert adapter.apply(3, Match(Key((1, 2)))).result == Matched((1, 2), 2, 2)
    evicted = adapter.apply(4, Evict(99))
    assert evicted.result == Evicted(3)
    assert sorted(slot for effect in evicted.effects for slot in effect.slots) == [1, 2, 3]
    assert all(isinstance(effect, Effect) and effect.call == "free" for effect in evicted.effects)
    assert evicted.sizes["available_size"] == min(24, evicted.sizes.get("swa_available_size", 24))


@needs_sglang_newer
def test_only_the_tree_in_python_shows_nodes() -> None:
    """And only where no leaf is split for its window."""
    shown = {name: make_adapter(name).apply(1, Inspect()).result for name in NAMES}
    assert shown.pop("sglang-unified") == Inspected(())
    assert all(isinstance(result, Unsupported) for result in shown.values())


@needs_sglang_newer
def test_halves_are_not_given_back_early() -> None:
    """There would be tombstones, of which nothing is claimed."""
    assert isinstance(make_adapter("sglang-rust-swa").apply(1, FreeSWA(())).result, Unsupported)


@needs_sglang_newer
@pytest.mark.parametrize("name", ["sglang-unified-swa", "sglang-rust-swa"])
def test_a_window_holds_it_to_our_rules(name: str) -> None:
    """S5 to S7: halves go early, an insert says which, a hold has a token, and window sizes are told."""
    adapter = make_adapter(name, {**NAMES[name].CONFIGURATIONS[0], "window": 4})
    assert "swa" in adapter.capabilities
    adapter.apply(1, Alloc(5))
    assert adapter.apply(2, FreeSWA((Span(1, 0, 1),))).result == Done()
    key = Key((1, 2, 3, 4, 5))
    inserted = adapter.apply(3, Insert(key, (Span(1, 0, 5),), swa_evicted_seqlen=1))
    assert (inserted.sizes["swa_evictable_size"], inserted.sizes["evictable_size"]) == (4, 5)
    held = adapter.apply(4, Lock(3))
    assert isinstance(held.result, Locked)
    assert isinstance(held.result.token, int)
    assert held.sizes["swa_protected_size"] == 4
    assert adapter.apply(5, Unlock(4)).sizes["swa_protected_size"] == 0
