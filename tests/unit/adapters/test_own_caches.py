"""Adapters of our prefix caches: pools, nodes by step, holds, looks, faults, and what must be refused."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest
import torch

from pymllm.adapters.base import CAPABILITIES, UnsupportedError
from pymllm.adapters.malformed import MALFORMED_CALLS, call_malformed
from pymllm.adapters.own_caches import (
    ASTRAY,
    Chunk,
    Mamba,
    OwnTree,
    Radix,
    WindowedRadix,
    path_length,
    view_hybrid_node,
    view_node,
    view_tree,
)
from pymllm.adapters.own_prefix import pool_configurations
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Fault,
    Free,
    FreeSWA,
    FreeTrack,
    Hash,
    Insert,
    Inspect,
    Key,
    Lock,
    Malformed,
    Match,
    MoveSWA,
    ReadHalves,
    ReadStates,
    Reset,
    Span,
    Unlock,
    WriteState,
)
from pymllm.history.outcomes import (
    Done,
    Effect,
    Evicted,
    Failed,
    Hashes,
    Inserted,
    Inspected,
    Locked,
    Matched,
    NoRoom,
    Slots,
    States,
    Unsupported,
)
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.host_queue import HostQueueStore
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.slot_store import SlotStore
from pymllm.oracle.laws import LAWS, Way

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
    made.apply(1, Alloc(4))
    made.apply(2, Insert(Key((1, 2, 3, 4)), (Span(1, 0, 4),)))
    made.apply(3, Alloc(3))
    made.apply(4, Insert(Key((1, 2, 5)), (Span(3, 0, 3),)))
    return made


class TestPool:
    def test_slots_come_with_their_halves(self) -> None:
        """A7: an allocation tells both halves where there are two."""
        assert result(adapter(), 1, Alloc(2)) == Slots((1, 2), (1, 2))
        assert result(adapter(pool="token"), 1, Alloc(2)) == Slots((1, 2))
        assert result(adapter(), 1, Alloc(9)) == NoRoom()

    def test_the_callers_own_calls_are_no_effects(self) -> None:
        """R4: an effect is what the cache did."""
        made = adapter()
        made.apply(1, Alloc(4))
        outcomes = [
            made.apply(2, FreeSWA((Span(1, 0, 1),), "int64 2d")),
            made.apply(3, MoveSWA((Span(1, 1, 2),), (Span(1, 0, 1),))),
            made.apply(4, Free((Span(1, 1, 4),), "int32 strided")),
        ]
        assert [(outcome.result, outcome.effects) for outcome in outcomes] == [(Done(), ())] * 3
        assert outcomes[-1].sizes["full_available_size"] == 7
        assert outcomes[-1].sizes["swa_available_size"] == 7

    def test_halves_can_be_asked_for(self) -> None:
        """A7: 0 where there is none, whoever owns the slot."""
        made = adapter()
        made.apply(1, Alloc(3))
        made.apply(2, FreeSWA((Span(1, 0, 1),)))
        assert result(made, 3, ReadHalves((Span(0, 1, 5),))) == Slots((), (0, 2, 3, 0))

    @pytest.mark.parametrize("operation", [Alloc(1), Free(()), FreeSWA(()), MoveSWA((), ()), ReadHalves(())])
    def test_without_a_pool_there_is_nothing_to_call(self, operation: Any) -> None:
        """A cache without a pool claims none."""
        assert isinstance(result(adapter(pool="none"), 1, operation), Unsupported)

    @pytest.mark.parametrize("operation", [FreeSWA(()), MoveSWA((), ()), ReadHalves(())])
    def test_a_plain_pool_has_no_halves(self, operation: Any) -> None:
        """A7: only an allocator with two pools has them."""
        assert isinstance(result(adapter(pool="token"), 1, operation), Unsupported)

    @pytest.mark.parametrize("wrong", [{"pool": "paged"}, {"slots": None}, {"page_size": True}])
    def test_a_wrong_configuration_is_named(self, wrong: dict[str, Any]) -> None:
        """The message says what may be given."""
        config = {"page_size": 1, "window": None, "pool": "token", "slots": 8, **wrong}
        with pytest.raises(ValueError, match="it must be"):
            WindowedRadix("radix", config)

    def test_configurations_differ_and_are_tiny(self) -> None:
        """Small pools run out, small pages meet."""
        made = pool_configurations([None, 4], ["none", "swa"], retains=False)
        assert len({tuple(config.items()) for config in made}) == 8
        assert {config["page_size"] for config in made} == {1, 4}
        assert all(config["retains"] is False and config["slots"] in (24, 48) for config in made)

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
            assert result(filled, step, Match(Key((1, 2, 5, 9)))) == Matched((1, 2, 7), 3, 3)

    def test_a_match_tells_its_dtype(self, filled: WindowedRadix, monkeypatch: pytest.MonkeyPatch) -> None:
        """R2: trees return int64."""
        assert result(filled, 5, Match(Key((9,)))).dtype == "int64"
        monkeypatch.setattr(filled.cache._tree, "gather", lambda path: torch.empty(0, dtype=torch.int32))
        assert result(filled, 6, Match(Key((9,)))).dtype == "int32"

    def test_an_insert_tells_what_was_adopted(self, filled: WindowedRadix) -> None:
        """R4: the duplicates, 5 and 6, are still the caller's."""
        assert result(filled, 5, Free((Span(3, 0, 2),))) == Done()
        filled.apply(6, Alloc(1))
        whole = (Span(1, 0, 2), Span(3, 2, 3), Span(6, 0, 1))
        assert result(filled, 7, Insert(Key((1, 2, 5, 6)), whole, 3)) == Inserted(3, ((3, 4),), 4)

    def test_token_ids_stand_in_without_a_pool(self) -> None:
        """R1: no slots at all is something else than none of them."""
        made = adapter(pool="none")
        assert result(made, 1, Insert(Key((5, 6)))) == Inserted(0, ((0, 2),), 2)
        assert result(made, 2, Match(Key((5, 6)))) == Matched((5, 6), 2, 2)
        assert result(made, 3, Insert(Key(()), ())) == Inserted(0, (), 0)

    def test_evictions_show_in_result_and_effects(self, filled: WindowedRadix) -> None:
        """X2: tombstones first, then what is removed, then the callback; its sizes are the new ones."""
        filled.apply(5, Match(Key((1, 2, 3, 4))))
        outcome = filled.apply(6, Evict(1, 3))
        assert outcome.result == Evicted(1, 3)
        removed = Effect("callback", node=outcome.effects[2].node, sizes=outcome.sizes)
        assert outcome.effects == (Effect("free_swa", (1, 2)), Effect("free", (7,)), removed)

    def test_a_reset_gives_everything_back(self, filled: WindowedRadix) -> None:
        """X7: five slots, in one call."""
        outcome = filled.apply(5, Reset())
        assert outcome.result == Done()
        assert [sorted(effect.slots) for effect in outcome.effects] == [[1, 2, 3, 4, 7]]


class TestHolds:
    def test_a_hold_is_named_by_its_step(self, filled: WindowedRadix) -> None:
        """S5: the token is the adapter's to keep."""
        token = result(filled, 5, Lock(2)).token
        assert token is not None
        filled.apply(6, Match(Key((1, 2))))
        assert result(filled, 7, Lock(6)) == Locked(None)
        assert result(filled, 8, Unlock(5)) == Done()
        assert result(filled, 9, Unlock(7)) == Done()
        assert filled.sizes()["protected_size"] == 0

    @pytest.mark.parametrize("lock", [5, 6])
    def test_no_token_can_be_left_out_or_passed(self, lock: int, filled: WindowedRadix) -> None:
        """R6: both ways are the same."""
        filled.apply(4, Match(Key((1, 2))))
        filled.apply(lock, Lock(4))
        assert result(filled, 7, Unlock(lock)) == Done()

    def test_node_and_token_of_others_can_be_passed(self, filled: WindowedRadix) -> None:
        """S5, R6: a wrong token and a wrong node are refused."""
        filled.apply(5, Lock(2))
        filled.apply(6, Match(Key((1, 2))))
        filled.apply(7, Lock(6))
        wrong = [Unlock(5, token=7), Unlock(5, token=0), Unlock(7, token=5), Unlock(5, at=6), Unlock(5, at=4)]
        for step, operation in enumerate(wrong, 8):
            assert result(filled, step, operation).error == "LockError"
        assert result(filled, 13, Unlock(7, at=2, token=5)) == Done()

    @pytest.mark.parametrize("operation", [Lock(1), Lock(9), Unlock(2), Unlock(5, at=1), Unlock(5, token=2)])
    def test_a_step_that_gave_nothing_is_the_programs_fault(
        self, operation: Any, filled: WindowedRadix
    ) -> None:
        """A program that names what is not there cannot be judged."""
        filled.apply(5, Lock(2))
        with pytest.raises(ProgramError, match="step"):
            filled.apply(6, operation)


class TestFaults:
    def test_a_pool_call_fails_once(self, filled: WindowedRadix) -> None:
        """X2: what was refused is still there, and the next eviction gets it."""
        assert result(filled, 5, Fault("free")) == Done()
        outcome = filled.apply(6, Evict(9))
        assert isinstance(outcome.result, Failed)
        assert (outcome.result.error, outcome.effects) == ("InjectedFault", ())
        assert result(filled, 7, Evict(9)) == Evicted(5, 5)

    def test_a_fault_is_forgotten_after_one_operation(self, filled: WindowedRadix) -> None:
        """X2: whatever that operation was."""
        filled.apply(5, Fault("free"))
        filled.apply(6, Match(Key((1,))))
        assert result(filled, 7, Evict(9)) == Evicted(5, 5)

    def test_callbacks_fail_from_the_nth_on(self, filled: WindowedRadix) -> None:
        """X2: all of them run, and the first error is the one that is raised."""
        filled.apply(5, Fault("callback", 2))
        outcome = filled.apply(6, Evict(9))
        assert isinstance(outcome.result, Failed)
        assert outcome.result.error == "InjectedFault"
        assert [effect.call for effect in outcome.effects] == ["free", "callback", "callback", "callback"]

    def test_a_callback_that_calls_the_cache_notes_what_it_met(self, filled: WindowedRadix) -> None:
        """X6: no callback re-enters."""
        filled.apply(5, Fault("reenter", 2))
        outcome = filled.apply(6, Evict(9))
        assert outcome.result == Evicted(5, 5)
        assert [effect.note for effect in outcome.effects] == ["", "", "RuntimeError", "RuntimeError"]

    def test_a_cache_that_lets_callbacks_in_shows_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """X6: a note that is empty tells a judge that nothing was refused."""
        made = adapter(pool="none")
        made.apply(1, Insert(Key((1, 2))))
        monkeypatch.setattr(made.cache._callbacks, "refuse", lambda call: None)
        made.apply(2, Fault("reenter"))
        (effect,) = made.apply(3, Evict(1)).effects
        assert effect.note == ""


# -- Adapter of `ChunkCache` ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", Chunk.CONFIGURATIONS)
def test_nothing_is_kept(config: dict[str, Any]) -> None:
    """Section 6: empty matches, nothing adopted, sizes 0, locks that do nothing."""
    chunk = Chunk("chunk", config)
    slots: tuple[Span, ...] = (Span(0, 100, 108),)
    if config["pool"] != "none":
        chunk.apply(1, Alloc(8))
        slots = (Span(1, 0, 8),)
    operations = [Insert(Key((7,) * 8), slots), Match(Key((7,) * 8)), Lock(3), Evict(8, 8), Unlock(4)]
    outcomes = [chunk.apply(step, operation) for step, operation in enumerate(operations, 2)]
    expected = [Inserted(0, ()), Matched((), 0), Locked(), Evicted(0), Done()]
    assert [outcome.result for outcome in outcomes] == expected
    assert [outcome.effects for outcome in outcomes] == [()] * 5
    assert sum(size for name, size in outcomes[-1].sizes.items() if "available" not in name) == 0
    assert chunk.audit() == (() if config["pool"] == "none" else ("A1", "A2"))


def test_what_it_does_not_have_is_not_claimed() -> None:
    """It has neither nodes nor hashes, calls nobody back and refuses nothing."""
    chunk = Chunk("chunk", Chunk.CONFIGURATIONS[1])
    assert chunk.capabilities == {"pool", "engine", "extra_key", "bigrams"}
    chunk.apply(1, Match(Key((7,))))
    for step, operation in enumerate((Inspect(), Hash(1), Fault("free")), 2):
        assert isinstance(chunk.apply(step, operation).result, Unsupported)


# -- Adapters of `RadixCache` --------------------------------------------------------------------------------


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


# -- Adapter of `MambaRadixCache` ----------------------------------------------------------------------------


each_configuration = pytest.mark.parametrize("config", Mamba.CONFIGURATIONS)
STATE = Span(2, 0, 1)


def make_of_own_mamba(config: Any = None) -> Mamba:
    return Mamba("mamba", config or Mamba.CONFIGURATIONS[0])


def fill_of_own_mamba(adapter: Mamba, tokens: int = 4) -> Mamba:
    """Cache one key and the state at its end; the steps are 1 to 3."""
    slots: tuple[Span, ...] = (Span(0, 1000, 1000 + tokens),)
    if adapter.pool is not None:
        adapter.apply(1, Alloc(tokens))
        slots = (Span(1, 0, tokens),)
    adapter.apply(2, AllocTrack())
    adapter.apply(3, Insert(Key((7,) * tokens), slots, state=STATE))
    return adapter


@each_configuration
def test_own_mamba_every_configuration_is_built_as_it_says(config: dict[str, Any]) -> None:
    """Page, pool and track slots are the configuration's, and what is claimed is known."""
    adapter = make_of_own_mamba(config)
    assert adapter.cache.page_size == config["page_size"]
    assert (adapter.pool is None) == (config["pool"] == "none")
    assert adapter.states.inner.max_track_slots == config["track_slots"]
    assert {"mamba", "lru_lists"} < adapter.capabilities <= set(CAPABILITIES)
    assert ("pool" in adapter.capabilities) == ("engine" in adapter.capabilities) == bool(adapter.pool)


def test_small_and_large_pools_of_states_are_examined() -> None:
    """M7: one track slot, a few, and more than there are pages, for both page sizes."""
    found = {(config["page_size"], config["track_slots"]) for config in Mamba.CONFIGURATIONS}
    assert found == {(page, slots) for page in (1, 4) for slots in (1, 3, 32)}


def test_track_slots_are_those_of_the_pool() -> None:
    """P5, M7: handed out, given back, and gone when there are none."""
    adapter = make_of_own_mamba()
    assert [adapter.apply(step, AllocTrack()).result for step in (1, 2, 3, 4)] == [
        *(Slots((slot,)) for slot in (2, 3, 4)),
        NoRoom(),
    ]
    freed = adapter.apply(5, FreeTrack(Span(3, 0, 1)))
    assert (freed.result, freed.effects) == (Done(), ())
    assert freed.sizes["available_track_slots"] == 1


def test_track_slots_hold_what_was_written() -> None:
    """E1: row 0, the one working row, and the track slots; a read changes nothing that an audit would see."""
    adapter = make_of_own_mamba()
    adapter.apply(2, AllocTrack())
    assert adapter.apply(3, WriteState(0, STATE, 5, -6)).result == Done()
    read = adapter.apply(4, ReadStates(0)).result
    assert isinstance(read, States)
    assert read.recurrent == ((0,), (0,), (5,), (0,), (0,))
    assert read.conv == ((0,), (0,), (-6,), (0,), (0,))
    assert adapter.audit() == ()


def test_a_free_names_exactly_one() -> None:
    """P5: several at once have no meaning."""
    with pytest.raises(ProgramError, match="one"):
        make_of_own_mamba().apply(1, FreeTrack(Span(0, 2, 4)))


@pytest.mark.parametrize("slots", [2, 3])
def test_a_state_is_handed_over_and_found(slots: int) -> None:
    """M1, M2: as either integer; the tensor is overwritten at once (X5)."""
    adapter = make_of_own_mamba()
    for step in range(10, 8 + slots):
        adapter.apply(step, AllocTrack())
    fill_of_own_mamba(adapter)
    matched = adapter.apply(4, Match(Key((7,) * 4))).result
    assert isinstance(matched, Matched)
    assert (matched.prefix_len, matched.state, matched.branching) == (4, slots, None)
    beyond = adapter.apply(5, Insert(Key((7,) * 4), (Span(4, 0, 4),))).result
    assert beyond == Inserted(4, (), 4, False)


def test_kv_without_a_state_is_told() -> None:
    """M2: how long it is; the root has no state."""
    adapter = make_of_own_mamba()
    adapter.apply(1, Alloc(2))
    adapter.apply(2, Insert(Key((7, 7)), (Span(1, 0, 2),)))
    assert adapter.apply(3, Match(Key((7, 7)))).result == Matched((), 0, 0, "int64", None, 2)


def test_what_goes_back_is_seen() -> None:
    """M5, X2: the state first, then its KV."""
    outcome = fill_of_own_mamba(make_of_own_mamba()).apply(4, Evict(0, 1))
    assert outcome.result == Evicted(4, 0, 1)
    assert [effect.call for effect in outcome.effects] == ["free_state", "free", "callback"]
    assert outcome.effects[0] == Effect("free_state", (2,))
    assert outcome.sizes["available_track_slots"] == 3


def test_a_call_of_the_pool_of_states_can_fail() -> None:
    """X2, X7: it has taken nothing, and the next works again."""
    adapter = fill_of_own_mamba(make_of_own_mamba())
    adapter.apply(4, Fault("free_state"))
    refused = adapter.apply(5, Evict(0, 1))
    assert (refused.result.error, refused.effects) == ("InjectedFault", ())
    assert refused.sizes["mamba_evictable_size"] == 1
    assert adapter.apply(6, Reset()).effects == (Effect("free_state", (2,)), Effect("free", (1, 2, 3, 4)))


def test_nodes_and_lists_are_shown() -> None:
    """M3, M8: with the states at their ends."""
    adapter = fill_of_own_mamba(make_of_own_mamba())
    adapter.apply(4, Insert(Key((7,) * 3), (Span(1, 0, 3),)))
    shown = adapter.apply(5, Inspect()).result
    assert isinstance(shown, Inspected)
    upper, lower = shown.nodes
    assert [(view.tokens, view.state) for view in shown.nodes] == [((7,) * 3, None), ((7,), 2)]
    assert (shown.full_lru, shown.mamba_lru) == ((upper.id, lower.id), (lower.id,))


@each_configuration
def test_audits_walk_tree_lists_and_pools(config: dict[str, Any]) -> None:
    """M8, A2: the ids are of laws with a structural check; without a state nothing is said of states."""
    adapter = make_of_own_mamba(config)
    empty = set(adapter.audit())
    laws = set(fill_of_own_mamba(adapter).audit())
    assert empty < laws <= STRUCTURAL
    assert empty == ({"A1", "A2"} & laws)
    assert laws >= {"M4", "M5", "M6", "M7", "M8", "R9"}
    assert ("R1" in laws) == (bool(adapter.pool) and adapter.is_checked)
    adapter.apply(4, Inspect())
    assert adapter.audit() == ()


def test_own_mamba_an_audit_finds_what_is_wrong_inside() -> None:
    """M6: the walk is the one of `pymllm.invariants`."""
    adapter = fill_of_own_mamba(make_of_own_mamba())
    adapter.cache._states.evictable += 1
    with pytest.raises(InvariantViolation, match="M6"):
        adapter.audit()


# -- What the adapters of all trees of ours share ------------------------------------------------------------


CONFIG = {"page_size": 2, "window": None, "pool": "none", "slots": 8, "swa_slots": 8, "track_slots": 3}

each_tree = pytest.mark.parametrize("kind", [Radix, Mamba])


def fill_of_own_tree(kind: type[OwnTree]) -> OwnTree:
    """Cache one key of two pages; the step is 1."""
    made = kind("tree", CONFIG)
    made.apply(1, Insert(Key((7,) * 4), (Span(0, 10, 14),)))
    return made


@each_tree
def test_a_node_of_another_cache_is_one_of_the_same_class(kind: type[OwnTree]) -> None:
    """X1: it is refused because it is elsewhere, and for nothing else."""
    made = kind("tree", CONFIG)
    assert type(made.foreign_node) is type(made.cache.root_node)
    assert type(made.build(2)) is type(made.cache)
    refused = made.apply(1, Malformed("lock", "a node of another cache"))
    assert refused.result.error == "StaleNodeError"


@each_tree
def test_holds_are_known_until_they_are_released(kind: type[OwnTree]) -> None:
    """R6: the last one that is outstanding, and none after a reset."""
    made = fill_of_own_tree(kind)
    assert isinstance(made.apply(2, Malformed("unlock", "a bool for a token")).result, Unsupported)
    assert made.apply(3, Lock(1)).result == Locked()
    assert made.some_held_node() is made.node_of(1)
    assert made.apply(4, Unlock(3)).result == Done()
    made.apply(5, Lock(1))
    made.apply(6, Reset())
    for step, operation in enumerate((Lock(1), Unlock(5), Hash(1)), 7):
        assert made.apply(step, operation).result.error == "StaleNodeError"
    assert isinstance(made.apply(10, Malformed("unlock", "a bool for a token")).result, Unsupported)


@each_tree
def test_roots_have_neither_hashes_nor_holds(kind: type[OwnTree]) -> None:
    """R6: by the node and by None."""
    made = fill_of_own_tree(kind)
    made.apply(2, Match(Key((9, 9))))
    assert [made.apply(step, Lock(2)).result for step in (3, 4)] == [Locked(), Locked()]
    assert made.apply(5, Hash(2)).result == Hashes(())


@each_tree
def test_hashes_and_nodes_are_those_of_the_whole_path(kind: type[OwnTree]) -> None:
    """H2, R9: one hash per page, from the root."""
    made = fill_of_own_tree(kind)
    made.apply(2, Insert(Key((7, 7)), (Span(0, 10, 12),)))
    hashes: Any = made.apply(3, Hash(1)).result
    assert len(hashes.digests) == 2
    shown = made.apply(4, Inspect()).result
    assert isinstance(shown, Inspected)
    assert [view.slots for view in shown.nodes] == [(10, 11), (12, 13)]
    assert [len(view.page_hashes or ()) for view in shown.nodes] == [1, 1]


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
    made = fill_of_own_tree(kind)
    made.apply(2, Match(Key((9, 9))))
    assert "X5" not in made.audit()
    node, other = made.node_of(1), made.foreign_node
    made.apply(3, Evict(100))
    node._older = other
    with pytest.raises(
        InvariantViolation, match=rf"X5: node {node.id} has left the tree and keeps node \d+ alive"
    ):
        made.audit()
    assert "X5" not in made.audit()
    made.apply(4, Reset())
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


def test_parents_come_before_their_children(cache: RadixCache) -> None:
    """R9: a reader can spell every path while reading."""
    views = view_tree(cache.root_node, view_node)
    ids = [view.id for view in views]
    assert all(view.parent is None or view.parent in ids[:at] for at, view in enumerate(views))


def test_a_path_is_as_long_as_the_key_it_spells(cache: RadixCache) -> None:
    """R2: the node that a match returns spells the prefix."""
    key = Key((1, 2, 5, 9), "a")
    match = cache.match_prefix(RadixKey([*key.tokens], "a"))
    assert path_length(cache.root_node, match.last_node, key) == 3
    assert path_length(cache.root_node, cache.root_node, key) == 0


@pytest.mark.parametrize("key", [Key((1, 2, 5), "a"), Key((1, 2, 3, 9), "a"), Key((1, 2, 3), "a")])
def test_a_path_that_spells_something_else_is_astray(cache: RadixCache, key: Key) -> None:
    """R2: other tokens at once, other tokens later, more tokens than the key has."""
    node = cache.match_prefix(RadixKey([1, 2, 3, 4], "a")).last_node
    assert path_length(cache.root_node, node, key) == ASTRAY


def test_a_path_to_another_root_is_astray(cache: RadixCache) -> None:
    """R2: a node of another cache, one that left, and no node at all lead nowhere."""
    key = Key((1, 2, 3, 4), "a")
    node = cache.match_prefix(RadixKey([*key.tokens], "a")).last_node
    assert path_length(RadixCache().root_node, node, key) == ASTRAY
    assert path_length(cache.root_node, None, key) == ASTRAY
    cache.reset()
    assert path_length(cache.root_node, node, key) == ASTRAY


# -- Arguments that no caller may pass -----------------------------------------------------------------------


STATES = {wrong for _, wrong in MALFORMED_CALLS if "state" in wrong}
REFUSALS = {"TypeError", "ValueError", "IndexError", "LockError", "StaleNodeError"}


def adapter_of_malformed_prefix(
    window: int | None = 4, pool: str = "swa", page_size: int = 4
) -> WindowedRadix:
    config = {"page_size": page_size, "window": window, "pool": pool, "slots": 24, "swa_slots": 24}
    return WindowedRadix("radix", config)


def hybrid() -> Mamba:
    return Mamba("mamba", {"page_size": 4, "window": None, "pool": "token", "slots": 24, "track_slots": 3})


def with_a_hold(made: OwnTree) -> OwnTree:
    made.apply(1, Alloc(8))
    made.apply(2, Insert(Key((7,) * 8), (Span(1, 0, 8),)))
    made.apply(3, Lock(2))
    return made


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_each_is_refused_and_changes_nothing(call: str, wrong: str) -> None:
    """X1: with everything that the call needs at hand, it raises what malformed arguments raise."""
    target = with_a_hold(hybrid() if wrong in STATES else adapter_of_malformed_prefix())
    before = target.sizes()
    outcome = target.apply(4, Malformed(call, wrong))
    assert isinstance(outcome.result, Failed)
    assert outcome.result.error in REFUSALS
    assert (outcome.effects, outcome.sizes) == ((), before)
    assert target.audit()


@pytest.mark.parametrize(
    ("target", "call", "wrong"),
    [
        (adapter_of_malformed_prefix(), "unlock", "a bool for a token"),
        (adapter_of_malformed_prefix(window=None), "unlock", "a negative token"),
        (adapter_of_malformed_prefix(window=None), "insert", "a float prev_prefix_len"),
        (adapter_of_malformed_prefix(pool="none"), "build", "a pool of other pages"),
        (adapter_of_malformed_prefix(), "match", "a bad temper"),
        (adapter_of_malformed_prefix(), "insert", "two states"),
        (hybrid(), "build", "a window of no token"),
    ],
)
def test_what_cannot_be_made_is_unsupported(target: OwnTree, call: str, wrong: str) -> None:
    """X1: without a hold, a window, a pool or states there is nothing to spoil."""
    with pytest.raises(UnsupportedError):
        call_malformed(MALFORMED_CALLS, Malformed(call, wrong), target)
    assert isinstance(target.apply(1, Malformed(call, wrong)).result, Unsupported)


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_a_hybrid_cache_refuses_what_it_can_be_asked(call: str, wrong: str) -> None:
    """X1: every call is refused, or cannot be made, and nothing changes."""
    target = with_a_hold(hybrid())
    before = target.sizes()
    outcome = target.apply(4, Malformed(call, wrong))
    assert isinstance(outcome.result, Failed | Unsupported)
    assert getattr(outcome.result, "error", "TypeError") in REFUSALS
    assert (outcome.effects, outcome.sizes) == ((), before)
