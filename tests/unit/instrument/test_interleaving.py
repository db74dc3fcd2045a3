"""Rounds in which everybody is sampled once, and shares of time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.instrument.peer_comparison import interleave


def test_each_round_begins_with_another() -> None:
    """Nobody always runs first, or always behind the same neighbour's mess."""
    order: list[str] = []

    def sampler(name: str) -> Callable[[], float]:
        def sample() -> float:
            order.append(name)
            return float(len(order))

        return sample

    samples = interleave({name: sampler(name) for name in "abc"}, rounds=3, seconds=1e9)
    assert "".join(order) == "abcbcacab"
    assert samples == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0]}


def test_who_has_used_its_time_drops_out_and_the_others_go_on() -> None:
    """The slow one gives its fewest samples first."""
    now = 0.0

    def takes(seconds: float) -> Callable[[], float]:
        def sample() -> float:
            nonlocal now
            now += seconds
            return seconds

        return sample

    samples = interleave(
        {"quick": takes(1), "slow": takes(100)}, rounds=10, seconds=5, fewest=2, clock=lambda: now
    )
    assert samples == {"quick": [1] * 5, "slow": [100] * 2}


def test_a_turn_has_as_many_samples_as_it_is_told() -> None:
    """The order within a turn is kept, and both series stay aligned."""
    order: list[str] = []

    def sampler(name: str) -> Callable[[], float]:
        return lambda: float(order.append(name) or len(order))

    samples = interleave({"a": sampler("a"), "b": sampler("b")}, rounds=2, seconds=1e9, burst=2)
    assert "".join(order) == "aabbbbaa"
    assert samples == {"a": [1.0, 2.0, 7.0, 8.0], "b": [3.0, 4.0, 5.0, 6.0]}


@pytest.mark.parametrize("contestants", [{"a": lambda: 1.0}, {}])
def test_nothing_to_play_is_refused(contestants: dict[str, Callable[[], float]]) -> None:
    """An empty table would look like a result."""
    with pytest.raises(ValueError, match=r"rounds and burst must be at least 1|no contestant"):
        interleave(contestants, rounds=0 if contestants else 1, seconds=1)
