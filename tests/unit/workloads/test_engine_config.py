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
