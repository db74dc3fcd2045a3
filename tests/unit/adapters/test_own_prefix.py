"""What the adapters of our prefix caches share: pools, keys, holds, faults; and what must be refused."""

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
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.slot_store import SlotStore

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
    def test_slots_come_with_their_halves(self) -> None:
        """A7: an allocation tells both halves where there are two."""
        assert result(adapter(), 1, ops.Alloc(2)) == out.Slots((1, 2), (1, 2))
        assert result(adapter(pool="token"), 1, ops.Alloc(2)) == out.Slots((1, 2))
        assert result(adapter(), 1, ops.Alloc(9)) == out.NoRoom()

    def test_the_callers_own_calls_are_no_effects(self) -> None:
        """R4: an effect is what the cache did."""
        made = adapter()
        made.apply(1, ops.Alloc(4))
        outcomes = [
            made.apply(2, ops.FreeSWA((ops.Span(1, 0, 1),), "int64 2d")),
            made.apply(3, ops.MoveSWA((ops.Span(1, 1, 2),), (ops.Span(1, 0, 1),))),
            made.apply(4, ops.Free((ops.Span(1, 1, 4),), "int32 strided")),
        ]
        assert [(outcome.result, outcome.effects) for outcome in outcomes] == [(out.Done(), ())] * 3
        assert outcomes[-1].sizes["full_available_size"] == 7
        assert outcomes[-1].sizes["swa_available_size"] == 7

    def test_halves_can_be_asked_for(self) -> None:
        """A7: 0 where there is none, whoever owns the slot."""
        made = adapter()
        made.apply(1, ops.Alloc(3))
        made.apply(2, ops.FreeSWA((ops.Span(1, 0, 1),)))
        assert result(made, 3, ops.ReadHalves((ops.Span(0, 1, 5),))) == out.Slots((), (0, 2, 3, 0))

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
    def test_a_match_tells_slots_length_and_path(self, filled: WindowedRadix) -> None:
        """R2: and the tree does not change with what the caller does to its tensors."""
        for step in (5, 6):
            assert result(filled, step, ops.Match(ops.Key((1, 2, 5, 9)))) == out.Matched((1, 2, 7), 3, 3)

    def test_a_match_tells_its_dtype(self, filled: WindowedRadix, monkeypatch: pytest.MonkeyPatch) -> None:
        """R2: trees return int64."""
        assert result(filled, 5, ops.Match(ops.Key((9,)))).dtype == "int64"
        monkeypatch.setattr(filled.cache._tree, "gather", lambda path: torch.empty(0, dtype=torch.int32))
        assert result(filled, 6, ops.Match(ops.Key((9,)))).dtype == "int32"

    def test_an_insert_tells_what_was_adopted(self, filled: WindowedRadix) -> None:
        """R4: the duplicates, 5 and 6, are still the caller's."""
        assert result(filled, 5, ops.Free((ops.Span(3, 0, 2),))) == out.Done()
        filled.apply(6, ops.Alloc(1))
        whole = (ops.Span(1, 0, 2), ops.Span(3, 2, 3), ops.Span(6, 0, 1))
        assert result(filled, 7, ops.Insert(ops.Key((1, 2, 5, 6)), whole, 3)) == out.Inserted(3, ((3, 4),), 4)

    def test_token_ids_stand_in_without_a_pool(self) -> None:
        """R1: no slots at all is something else than none of them."""
        made = adapter(pool="none")
        assert result(made, 1, ops.Insert(ops.Key((5, 6)))) == out.Inserted(0, ((0, 2),), 2)
        assert result(made, 2, ops.Match(ops.Key((5, 6)))) == out.Matched((5, 6), 2, 2)
        assert result(made, 3, ops.Insert(ops.Key(()), ())) == out.Inserted(0, (), 0)

    def test_evictions_show_in_result_and_effects(self, filled: WindowedRadix) -> None:
        """X2: tombstones first, then what is removed, then the callback; its sizes are the new ones."""
        filled.apply(5, ops.Match(ops.Key((1, 2, 3, 4))))
        outcome = filled.apply(6, ops.Evict(1, 3))
        assert outcome.result == out.Evicted(1, 3)
        removed = out.Effect("callback", node=outcome.effects[2].node, sizes=outcome.sizes)
        assert outcome.effects == (out.Effect("free_swa", (1, 2)), out.Effect("free", (7,)), removed)

    def test_a_reset_gives_everything_back(self, filled: WindowedRadix) -> None:
        """X7: five slots, in one call."""
        outcome = filled.apply(5, ops.Reset())
        assert outcome.result == out.Done()
        assert [sorted(effect.slots) for effect in outcome.effects] == [[1, 2, 3, 4, 7]]


class TestHolds:
    def test_a_hold_is_named_by_its_step(self, filled: WindowedRadix) -> None:
        """S5: the token is the adapter's to keep."""
        token = result(filled, 5, ops.Lock(2)).token
        assert token is not None
        filled.apply(6, ops.Match(ops.Key((1, 2))))
        assert result(filled, 7, ops.Lock(6)) == out.Locked(None)
        assert result(filled, 8, ops.Unlock(5)) == out.Done()
        assert result(filled, 9, ops.Unlock(7)) == out.Done()
        assert filled.sizes()["protected_size"] == 0

    @pytest.mark.parametrize("lock", [5, 6])
    def test_no_token_can_be_left_out_or_passed(self, lock: int, filled: WindowedRadix) -> None:
        """R6: both ways are the same."""
        filled.apply(4, ops.Match(ops.Key((1, 2))))
        filled.apply(lock, ops.Lock(4))
        assert result(filled, 7, ops.Unlock(lock)) == out.Done()

    def test_node_and_token_of_others_can_be_passed(self, filled: WindowedRadix) -> None:
        """S5, R6: a wrong token and a wrong node are refused."""
        filled.apply(5, ops.Lock(2))
        filled.apply(6, ops.Match(ops.Key((1, 2))))
        filled.apply(7, ops.Lock(6))
        wrong = [
            ops.Unlock(5, token=7),
            ops.Unlock(5, token=0),
            ops.Unlock(7, token=5),
            ops.Unlock(5, at=6),
            ops.Unlock(5, at=4),
        ]
        for step, operation in enumerate(wrong, 8):
            assert result(filled, step, operation).error == "LockError"
        assert result(filled, 13, ops.Unlock(7, at=2, token=5)) == out.Done()

    @pytest.mark.parametrize(
        "operation", [ops.Lock(1), ops.Lock(9), ops.Unlock(2), ops.Unlock(5, at=1), ops.Unlock(5, token=2)]
    )
    def test_a_step_that_gave_nothing_is_the_programs_fault(
        self, operation: Any, filled: WindowedRadix
    ) -> None:
        """A program that names what is not there cannot be judged."""
        filled.apply(5, ops.Lock(2))
        with pytest.raises(ProgramError, match="step"):
            filled.apply(6, operation)


class TestFaults:
    def test_a_pool_call_fails_once(self, filled: WindowedRadix) -> None:
        """X2: what was refused is still there, and the next eviction gets it."""
        assert result(filled, 5, ops.Fault("free")) == out.Done()
        outcome = filled.apply(6, ops.Evict(9))
        assert isinstance(outcome.result, out.Failed)
        assert (outcome.result.error, outcome.effects) == ("InjectedFault", ())
        assert result(filled, 7, ops.Evict(9)) == out.Evicted(5, 5)

    def test_a_fault_is_forgotten_after_one_operation(self, filled: WindowedRadix) -> None:
        """X2: whatever that operation was."""
        filled.apply(5, ops.Fault("free"))
        filled.apply(6, ops.Match(ops.Key((1,))))
        assert result(filled, 7, ops.Evict(9)) == out.Evicted(5, 5)

    def test_callbacks_fail_from_the_nth_on(self, filled: WindowedRadix) -> None:
        """X2: all of them run, and the first error is the one that is raised."""
        filled.apply(5, ops.Fault("callback", 2))
        outcome = filled.apply(6, ops.Evict(9))
        assert isinstance(outcome.result, out.Failed)
        assert outcome.result.error == "InjectedFault"
        assert [effect.call for effect in outcome.effects] == ["free", "callback", "callback", "callback"]

    def test_a_callback_that_calls_the_cache_notes_what_it_met(self, filled: WindowedRadix) -> None:
        """X6: no callback re-enters."""
        filled.apply(5, ops.Fault("reenter", 2))
        outcome = filled.apply(6, ops.Evict(9))
        assert outcome.result == out.Evicted(5, 5)
        assert [effect.note for effect in outcome.effects] == ["", "", "RuntimeError", "RuntimeError"]

    def test_a_cache_that_lets_callbacks_in_shows_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """X6: a note that is empty tells a judge that nothing was refused."""
        made = adapter(pool="none")
        made.apply(1, ops.Insert(ops.Key((1, 2))))
        monkeypatch.setattr(made.cache._callbacks, "refuse", lambda call: None)
        made.apply(2, ops.Fault("reenter"))
        (effect,) = made.apply(3, ops.Evict(1)).effects
        assert effect.note == ""


# -- Adapter of `ChunkCache` ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", Chunk.CONFIGURATIONS)
def test_nothing_is_kept(config: dict[str, Any]) -> None:
    """Section 6: empty matches, nothing adopted, sizes 0, locks that do nothing."""
    chunk = Chunk("chunk", config)
    slots: tuple[ops.Span, ...] = (ops.Span(0, 100, 108),)
    if config["pool"] != "none":
        chunk.apply(1, ops.Alloc(8))
        slots = (ops.Span(1, 0, 8),)
    operations = [
        ops.Insert(ops.Key((7,) * 8), slots),
        ops.Match(ops.Key((7,) * 8)),
        ops.Lock(3),
        ops.Evict(8, 8),
        ops.Unlock(4),
    ]
    outcomes = [chunk.apply(step, operation) for step, operation in enumerate(operations, 2)]
    expected = [out.Inserted(0, ()), out.Matched((), 0), out.Locked(), out.Evicted(0), out.Done()]
    assert [outcome.result for outcome in outcomes] == expected
    assert [outcome.effects for outcome in outcomes] == [()] * 5
    assert sum(size for name, size in outcomes[-1].sizes.items() if "available" not in name) == 0
    assert chunk.audit() == (() if config["pool"] == "none" else ("A1", "A2"))


def test_what_it_does_not_have_is_not_claimed() -> None:
    """It has neither nodes nor hashes, calls nobody back and refuses nothing."""
    chunk = Chunk("chunk", Chunk.CONFIGURATIONS[1])
    assert chunk.capabilities == {"pool", "engine", "extra_key", "bigrams"}
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
    """X1: with everything that the call needs at hand, it raises what malformed arguments raise."""
    target = with_a_hold(hybrid(page_size=4) if wrong in STATES else paged())
    before = target.sizes()
    outcome = target.apply(4, ops.Malformed(call, wrong))
    assert isinstance(outcome.result, out.Failed)
    assert outcome.result.error in REFUSALS
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


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_a_hybrid_cache_refuses_what_it_can_be_asked(call: str, wrong: str) -> None:
    """X1: every call is refused, or cannot be made, and nothing changes."""
    target = with_a_hold(hybrid(page_size=4))
    before = target.sizes()
    outcome = target.apply(4, ops.Malformed(call, wrong))
    assert isinstance(outcome.result, out.Failed | out.Unsupported)
    assert getattr(outcome.result, "error", "TypeError") in REFUSALS
    assert (outcome.effects, outcome.sizes) == ((), before)


def test_every_page_size_window_and_pool_is_examined() -> None:
    """In pools so small that they run out, the larger the pages the larger."""
    found = pool_configurations([None, 4], ["token", "swa"], more=1)
    pairs = [(it["page_size"], it["slots"], it["window"], it["pool"], it["more"]) for it in found]
    windows = [(window, pool, 1) for window in (None, 4) for pool in ("token", "swa")]
    assert pairs == [(*sizes, *rest) for sizes in ((1, 24), (4, 48)) for rest in windows]
