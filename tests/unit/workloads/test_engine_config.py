"""The engine's configuration refuses what cannot run and rounds the rest to whole pages."""

from __future__ import annotations

import pytest

from pymllm.workloads.engine_config import EngineConfig


def test_capacities_are_cut_down_to_whole_pages() -> None:
    """The rounded sizes are what the engine uses and reports."""
    config = EngineConfig(page_size=16, capacity=1000, sliding_window_size=64, swa_capacity=500).rounded()
    assert (config.capacity, config.swa_capacity, config.max_context) == (992, 496, 992)


def test_window_half_is_as_large_as_the_other_by_default() -> None:
    """A window without its own capacity takes the full one; without a window there is none."""
    windowed = EngineConfig(page_size=16, capacity=1000, sliding_window_size=64).rounded()
    assert windowed.swa_capacity == 992
    assert EngineConfig().rounded().swa_capacity is None


def test_states_are_four_per_running_request_by_default() -> None:
    """Only a cache of states has track slots, and none of them is a number that may be asked for."""
    assert EngineConfig(cache="mamba", max_running=8).rounded().track_slots == 32
    assert EngineConfig(cache="mamba", track_slots=0).rounded().track_slots == 0
    assert EngineConfig().rounded().track_slots is None


def test_cache_of_states_has_no_window() -> None:
    """X1: nor have the other caches any states."""
    with pytest.raises(ValueError, match="sliding_window_size is 8; cache 'mamba' has no window"):
        EngineConfig(cache="mamba", sliding_window_size=8)
    with pytest.raises(ValueError, match="track_slots is for caches 'blocks' and 'mamba'; cache 'radix'"):
        EngineConfig(track_slots=8)
    with pytest.raises(ValueError, match="track_slots is -1"):
        EngineConfig(cache="mamba", track_slots=-1)


def test_blocks_have_sizes_of_their_own() -> None:
    """What paused requests may keep is whole blocks of the pool; no other cache has any of it."""
    config = EngineConfig(cache="blocks", page_size=16, capacity=1000, max_running=8).rounded()
    assert (config.track_slots, config.mamba_chunk_size, config.eviction_policy) == (32, 128, "lru")
    assert config.paused_capacity == 240
    given = EngineConfig(cache="blocks", page_size=16, capacity=1000, paused_capacity=9999).rounded()
    assert given.paused_capacity == 992
    plain = EngineConfig().rounded()
    assert plain.mamba_chunk_size is plain.eviction_policy is plain.paused_capacity is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mamba_chunk_size": 2}, "mamba_chunk_size is for cache 'blocks'; cache 'mamba' has no blocks"),
        ({"eviction_policy": "lru"}, "eviction_policy is for cache 'blocks'"),
        ({"paused_capacity": 0}, "paused_capacity is for cache 'blocks'"),
        ({"cache": "blocks", "mamba_chunk_size": 0}, "mamba_chunk_size is 0; it must be above 0"),
        ({"cache": "blocks", "eviction_policy": "fifo"}, "'fifo'; it must be one of .'lru', 'ref_zero'"),
        ({"cache": "blocks", "paused_capacity": -1}, "paused_capacity is -1; it must be 0 or more"),
        ({"cache": "blocks", "sliding_window_size": 4}, "cache 'blocks' has no window"),
    ],
)
def test_what_blocks_cannot_have_is_refused(changes: dict[str, object], words: str) -> None:
    """X1: nor may anything else have what is theirs."""
    with pytest.raises(ValueError, match=words):
        EngineConfig(**({"cache": "mamba"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"page_size": 0},
        {"capacity": 0},
        {"capacity": 15, "page_size": 16},
        {"max_running": 0},
        {"max_context": 0},
        {"chunk_tokens": 0},
        {"iteration_ms": 0.0},
        {"iteration_ms": float("nan")},
        {"sliding_window_size": 0},
        {"sliding_window_size": 8, "swa_capacity": 0},
        {"sliding_window_size": 8, "swa_capacity": 15, "page_size": 16},
        {"swa_capacity": 8},
        {"decode_headroom": -1},
        {"check_every": -1},
    ],
)
def test_impossible_configuration_is_refused(changes: dict[str, float]) -> None:
    """X1: the message names the field that is out of bounds."""
    with pytest.raises(
        ValueError, match=next(reversed(changes)) if len(changes) == 1 else "must hold|above 0"
    ):
        EngineConfig(**changes)  # type: ignore[arg-type]
