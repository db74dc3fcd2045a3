"""The adapters of sglang's caches with states: the unified tree, and an older class where that version is."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from pymllm.adapters.base import CAPABILITIES, Adapter
from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, ProgramError
from pymllm.history import operations as ops
from pymllm.history.outcomes import Done, Evicted, Inserted, Inspected, Matched, NoRoom, Slots, Unsupported
from pymllm_peers.sglang.mamba import SglangMamba, SglangRustMamba, SglangUnifiedMamba

NAMES: dict[str, Any] = {
    "sglang-unified-mamba": SglangUnifiedMamba,
    "sglang-rust-mamba": SglangRustMamba,
    "sglang-mamba": SglangMamba,
}


def made(name: str, **changes: Any) -> Adapter:
    """Build an adapter, or skip where this version of sglang has no such cache."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("sglang is not installed; tox -e peers and tox -e peers-older install it")
    try:
        return make_adapter(name, {**NAMES[name].CONFIGURATIONS[0], **changes})
    except AdapterError as error:
        if "is not the version" not in error.message:
            raise
        pytest.skip(error.message)


def with_a_state(adapter: Adapter) -> None:
    """Cache (1, 2) in slots 1 and 2, its state in slot 1 of states, in three steps."""
    adapter.apply(1, ops.Alloc(2))
    adapter.apply(2, ops.AllocTrack())
    inserted = adapter.apply(3, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),), state=ops.Span(2, 0, 1)))
    assert inserted.result == Inserted(0, ((0, 2),), 2)


def test_each_is_examined_with_few_states_and_with_many() -> None:
    """M5: one alone, some, and more than keys; R1: in pages of one token and of four."""
    for adapter in NAMES.values():
        sizes = {(config["page_size"], config["track_slots"]) for config in adapter.CONFIGURATIONS}
        assert sizes == {(page, tracks) for page in (1, 4) for tracks in (1, 3, 32)}
    assert (SglangUnifiedMamba.BACKEND, SglangRustMamba.BACKEND) == ("python", "rust")


@pytest.mark.parametrize("name", NAMES)
def test_a_number_of_states_is_needed(name: str) -> None:
    """It is refused before sglang is imported."""
    with pytest.raises(KeyError, match="track_slots"):
        NAMES[name](name, {"page_size": 1, "pool": "token", "slots": 4})


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_words_that_exist(name: str) -> None:
    """Each takes states with every key, and none can be driven by an engine."""
    claims = made(name).capabilities
    assert claims <= set(CAPABILITIES)
    assert "mamba" in claims
    assert claims.isdisjoint({"engine", "bare_inserts", "lean_matches"})


@pytest.mark.parametrize("name", NAMES)
def test_a_match_ends_at_a_state(name: str) -> None:
    """M1, M2: KV is found as far as it goes, and told of where it goes beyond the state."""
    adapter = made(name)
    with_a_state(adapter)
    assert adapter.apply(4, ops.Match(ops.Key((1, 2, 3)))).result == Matched((1, 2), 2, 2, state=1)
    assert adapter.apply(5, ops.Match(ops.Key((1,)))).result == Matched((), 0, 0, branching=1)
    adapter.apply(6, ops.AllocTrack())
    again = ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),), state=ops.Span(6, 0, 1))
    assert adapter.apply(7, again).result == Inserted(2, (), 2, state_exists=True)
    assert adapter.apply(8, ops.FreeTrack(ops.Span(6, 0, 1))).sizes["available_track_slots"] == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_goes_with_its_state(name: str) -> None:
    """M5, M6, M7: both pools are told, and so is the caller."""
    adapter = made(name, track_slots=1)
    with_a_state(adapter)
    assert adapter.apply(4, ops.AllocTrack()).result == NoRoom()
    evicted = adapter.apply(5, ops.Evict(0, 1))
    assert evicted.result == Evicted(2, 0, 1)
    calls = sorted((effect.call, effect.slots) for effect in evicted.effects)
    assert calls == [("free", (1, 2)), ("free_state", (1,))]
    assert adapter.apply(6, ops.AllocTrack()).result == Slots((1,))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_reset_gives_states_back_in_the_place_of_a_server(name: str, is_whole: bool) -> None:
    """X7: the cache alone would leave them, which ``whole_reset`` shows."""
    adapter = made(name, whole_reset=is_whole)
    with_a_state(adapter)
    reset = adapter.apply(4, ops.Reset())
    assert reset.result == Done()
    assert reset.sizes["available_track_slots"] == 3 - is_whole


@pytest.mark.parametrize("name", NAMES)
def test_what_an_insert_lacks_is_told(name: str) -> None:
    """Without a state it is not supported; two states are a wrong program."""
    adapter = made(name)
    adapter.apply(1, ops.Alloc(2))
    assert isinstance(adapter.apply(2, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),))).result, Unsupported)
    with pytest.raises(ProgramError, match="must name one"):
        adapter.apply(3, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),), state=ops.Span(1, 0, 2)))
    if name == "sglang-mamba":
        assert isinstance(adapter.apply(4, ops.Insert(ops.Key(()), ())).result, Unsupported)
    else:
        assert adapter.apply(4, ops.Insert(ops.Key(()), ())).result == Inserted(0, (), 0)


@pytest.mark.parametrize("name", NAMES)
def test_nodes_show_their_states(name: str) -> None:
    """M3: after a split the lower half has it; the tree in Rust shows nothing."""
    adapter = made(name)
    with_a_state(adapter)
    adapter.apply(4, ops.Match(ops.Key((1,))))
    shown = adapter.apply(5, ops.Inspect()).result
    if name == "sglang-rust-mamba":
        assert isinstance(shown, Unsupported)
        return
    assert isinstance(shown, Inspected)
    assert [(node.tokens, node.state) for node in shown.nodes] == [((1,), None), ((2,), 1)]


def test_the_older_class_tells_less_than_it_took() -> None:
    """R5: ``told_counts`` repeats its answer."""
    adapter = made("sglang-mamba", told_counts=True)
    with_a_state(adapter)
    assert adapter.apply(4, ops.Evict(0, 1)).result == Evicted(0, 0, 1)
