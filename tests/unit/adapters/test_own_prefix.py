"""Tests of the shared parts of the adapters of our prefix caches: pools, keys, holds, faults and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed import MALFORMED_CALLS, call_malformed
from pymllm.adapters.own_caches import (
    Chunk,
    Mamba,
    OwnTree,
    Radix,
    WindowedRadix,
)
from pymllm.adapters.own_prefix import pool_configurations
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.mem_cache.slots.host_queue import HostQueueStore
from pymllm.mem_cache.slots.slot_store import SlotStore

# -- What the adapters of our own prefix caches share --------------------------------------------------------


def adapter(window: int | None = 2, pool: str = "swa", slots: int = 8) -> WindowedRadix:
    config = {"page_size": 1, "window": window, "pool": pool, "slots": slots, "swa_slots": slots}
    return WindowedRadix("radix", config)


def result(adapter: WindowedRadix, step: int, operation: Any) -> Any:
    return adapter.apply(step, operation).result


@pytest.fixture
def filled() -> WindowedRadix:
    """Keys 1 2 3 4 (slots 1 to 4) and 1 2 5 (slot 7) are cached, 5 and 6 are the caller's."""
    made = adapter()
    made.apply(1, ops.Alloc(4))
    made.apply(2, ops.Insert(ops.Key((1, 2, 3, 4)), (ops.Span(1, 0, 4),)))
    made.apply(3, ops.Alloc(3))
    made.apply(4, ops.Insert(ops.Key((1, 2, 5)), (ops.Span(3, 0, 3),)))
    return made


class TestPool:
    @pytest.mark.parametrize(
        "operation", [ops.Alloc(1), ops.Free(()), ops.FreeSWA(()), ops.MoveSWA((), ()), ops.ReadHalves(())]
    )
    def test_what_a_pool_lacks_cannot_be_called(self, operation: Any) -> None:
        """A7: a cache without a pool has nothing to call, and only an allocator with two pools has halves."""
        assert isinstance(result(adapter(pool="none"), 1, operation), out.Unsupported)
        plain = result(adapter(pool="token"), 1, operation)
        assert isinstance(plain, out.Unsupported) == isinstance(
            operation, ops.FreeSWA | ops.MoveSWA | ops.ReadHalves
        )

    @pytest.mark.parametrize("wrong", [{"pool": "paged"}, {"slots": None}, {"page_size": True}])
    def test_a_wrong_configuration_is_named(self, wrong: dict[str, Any]) -> None:
        """The message says what may be given."""
        config = {"page_size": 1, "window": None, "pool": "token", "slots": 8, **wrong}
        with pytest.raises(ValueError, match="it must be"):
            WindowedRadix("radix", config)

    @pytest.mark.parametrize("kind", [Radix, WindowedRadix, Mamba])
    def test_pools_that_check_nothing_are_played_for_each_page_size(self, kind: type[Any]) -> None:
        """X7, R5: the queue of free pages and what a cache gives it; no refusals are claimed of it."""
        found = [config for config in kind.CONFIGURATIONS if "check_ownership" in config]
        assert {config["page_size"] for config in found} == {1, 4}
        for config in found:
            made = kind("made", config)
            stores = [value for value in vars(made.pool.inner).values() if isinstance(value, SlotStore)]
            assert {type(store) for store in stores} == {HostQueueStore}
            assert "refusals" not in made.capabilities
            assert "refusals" in kind("made", {**config, "check_ownership": True}).capabilities


class TestKeys:
    def test_a_match_tells_its_dtype(self, filled: WindowedRadix, monkeypatch: pytest.MonkeyPatch) -> None:
        """R2: trees return int64."""
        assert result(filled, 5, ops.Match(ops.Key((9,)))).dtype == "int64"
        monkeypatch.setattr(filled.cache._tree, "gather", lambda path: torch.empty(0, dtype=torch.int32))
        assert result(filled, 6, ops.Match(ops.Key((9,)))).dtype == "int32"


class TestHolds:
    @pytest.mark.parametrize(
        "operation", [ops.Lock(1), ops.Lock(9), ops.Unlock(2), ops.Unlock(5, at=1), ops.Unlock(5, token=2)]
    )
    def test_a_step_that_gave_nothing_is_the_programs_fault(
        self, operation: Any, filled: WindowedRadix
    ) -> None:
        """A program that names a missing node or hold cannot be judged."""
        filled.apply(5, ops.Lock(2))
        with pytest.raises(ProgramError, match="step"):
            filled.apply(6, operation)


class TestFaults:
    def test_a_fault_is_forgotten_after_one_operation(self, filled: WindowedRadix) -> None:
        """X2: whatever that operation was."""
        filled.apply(5, ops.Fault("free"))
        filled.apply(6, ops.Match(ops.Key((1,))))
        assert result(filled, 7, ops.Evict(9)) == out.Evicted(5, 5)

    def test_a_cache_that_lets_callbacks_in_shows_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """X6: a note that is empty tells a judge that nothing was refused."""
        made = adapter(pool="none")
        made.apply(1, ops.Insert(ops.Key((1, 2))))
        monkeypatch.setattr(type(made.cache._guard), "refuse", lambda guard, call: None)
        made.apply(2, ops.Fault("reenter"))
        (effect,) = made.apply(3, ops.Evict(1)).effects
        assert effect.note == ""


# -- Adapter of `ChunkCache` ---------------------------------------------------------------------------------


def test_what_it_does_not_have_is_not_claimed() -> None:
    """It has neither nodes nor hashes, calls nobody back and refuses nothing."""
    chunk = Chunk("chunk", Chunk.CONFIGURATIONS[1])
    assert chunk.capabilities == {"pool", "engine", *ops.DIMENSIONS, "bigrams", "forms"}
    chunk.apply(1, ops.Match(ops.Key((7,))))
    for step, operation in enumerate((ops.Inspect(), ops.Hash(1), ops.Fault("free")), 2):
        assert isinstance(chunk.apply(step, operation).result, out.Unsupported)


# -- Arguments that no caller may pass -----------------------------------------------------------------------


STATES = {wrong for _, wrong in MALFORMED_CALLS if "state" in wrong}
REFUSALS = {"TypeError", "ValueError", "IndexError", "LockError", "StaleNodeError"}


def hybrid(**changes: Any) -> Mamba:
    return Mamba("mamba", {**Mamba.CONFIGURATIONS[0], **changes})


def paged(**changes: Any) -> WindowedRadix:
    config = {"page_size": 4, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 24, **changes}
    return WindowedRadix("radix", config)


def with_a_hold(made: OwnTree) -> OwnTree:
    made.apply(1, ops.Alloc(8))
    made.apply(2, ops.Insert(ops.Key((7,) * 8), (ops.Span(1, 0, 8),)))
    made.apply(3, ops.Lock(2))
    return made


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_each_is_refused_and_changes_nothing(call: str, wrong: str) -> None:
    """X1: with everything that the call needs at hand; the other kind of cache may be unable to make it."""
    for target in (with_a_hold(paged()), with_a_hold(hybrid(page_size=4))):
        before = target.sizes()
        outcome = target.apply(4, ops.Malformed(call, wrong))
        if isinstance(target, Mamba) == (wrong in STATES):
            assert isinstance(outcome.result, out.Failed)
        assert getattr(outcome.result, "error", "TypeError") in REFUSALS
        assert isinstance(outcome.result, out.Failed | out.Unsupported)
        assert (outcome.effects, outcome.sizes) == ((), before)
        assert target.audit()


@pytest.mark.parametrize(
    ("target", "call", "wrong"),
    [
        (paged(), "unlock", "a bool for a token"),
        (paged(window=None), "unlock", "a negative token"),
        (paged(window=None), "insert", "a float prev_prefix_len"),
        (paged(pool="none"), "build", "a pool of other pages"),
        (paged(), "match", "a bad temper"),
        (paged(), "insert", "two states"),
        (hybrid(page_size=4), "build", "a window of no token"),
    ],
)
def test_what_cannot_be_made_is_unsupported(target: OwnTree, call: str, wrong: str) -> None:
    """X1: without a hold, a window, a pool or states there is nothing to spoil."""
    with pytest.raises(UnsupportedError):
        call_malformed(MALFORMED_CALLS, ops.Malformed(call, wrong), target)
    assert isinstance(target.apply(1, ops.Malformed(call, wrong)).result, out.Unsupported)


def test_every_page_size_window_and_pool_is_examined() -> None:
    """In pools so small that they run out, the larger the pages the larger."""
    found = pool_configurations([None, 4], ["token", "swa"], more=1)
    pairs = [(it["page_size"], it["slots"], it["window"], it["pool"], it["more"]) for it in found]
    windows = [(window, pool, 1) for window in (None, 4) for pool in ("token", "swa")]
    assert pairs == [(*sizes, *rest) for sizes in ((1, 24), (4, 48)) for rest in windows]
