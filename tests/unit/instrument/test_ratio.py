"""A ratio has the true one in its interval about as often as it says, and says when it cannot know."""

from __future__ import annotations

import random

import pytest

from pymllm.instrument.peer_comparison import Ratio, estimate_ratio


def test_what_happens_to_a_whole_round_cancels() -> None:
    """A machine that becomes three times as slow half way through changes no ratio."""
    load = [1.0] * 20 + [3.0] * 20
    ratio = estimate_ratio([2 * one for one in load], [4 * one for one in load], "mean")
    assert (ratio.value, ratio.low, ratio.high, ratio.rounds) == (0.5, 0.5, 0.5, 40)


def test_the_interval_has_the_truth_about_as_often_as_it_says() -> None:
    """Of 60 experiments with noise, about 54 at 90 %."""
    source = random.Random(1)

    def noisy(level: float) -> list[float]:
        return [level * source.uniform(0.8, 1.2) for _ in range(30)]

    held = 0
    for seed in range(60):
        ratio = estimate_ratio(noisy(3.0), noisy(2.0), "mean", confidence=0.9, seed=seed)
        assert ratio.low <= ratio.value <= ratio.high
        held += ratio.low <= 1.5 <= ratio.high
    assert 46 <= held <= 59


def test_rounds_that_one_alone_played_are_left_out() -> None:
    """The slow one dropped out before the machine got busy."""
    ratio = estimate_ratio([1.0, 1.0, 1.0, 50.0, 50.0], [2.0, 2.0, 2.0])
    assert (ratio.value, ratio.high, ratio.rounds) == (0.5, 0.5, 3)


def test_many_rounds_are_drawn_in_blocks_of_neighbours() -> None:
    """A long busy spell of one side widens the interval as it should; single draws would hide it."""
    spell = ([1.0] * 500 + [3.0] * 500) * 2
    ratio = estimate_ratio(spell, [1.0] * 2000, "mean")
    assert ratio.value == 2.0
    assert ratio.low < 1.9
    assert ratio.high > 2.1


def test_what_was_sampled_in_one_turn_is_drawn_together() -> None:
    """Three turns of a hundred equal samples are three rounds, and not three hundred."""
    turns = [1.0] * 100 + [2.0] * 100 + [3.0] * 100
    ratio = estimate_ratio(turns, [1.0] * 300, "mean", burst=100)
    assert (ratio.low, ratio.value, ratio.high) == (1.0, 2.0, 3.0)
    assert estimate_ratio(turns[:200], [1.0] * 200, "mean", burst=100).high == 1.5


def test_two_rounds_have_no_interval() -> None:
    """Nothing is made up from two samples."""
    assert estimate_ratio([1.0, 3.0], [2.0, 2.0], "mean") == Ratio(1.0, 1.0, 1.0, 0.95, 2)


def test_the_same_samples_give_the_same_interval() -> None:
    """Nothing is drawn from the clock."""
    source = random.Random(2)
    samples = [source.uniform(1, 2) for _ in range(50)]
    assert estimate_ratio(samples, samples[::-1]) == estimate_ratio(samples, samples[::-1])
    assert estimate_ratio(samples, samples[::-1]) != estimate_ratio(samples, samples[::-1], seed=1)


@pytest.mark.parametrize(
    ("ours", "theirs", "more"),
    [
        ([], [1.0], {}),
        ([1.0], [0.0], {}),
        ([1.0], [1.0], {"statistic": "mode"}),
        ([1.0], [1.0], {"confidence": 1.0}),
    ],
)
def test_what_has_no_ratio_is_refused(
    ours: list[float], theirs: list[float], more: dict[str, object]
) -> None:
    """Each message says what would do."""
    with pytest.raises(ValueError, match=r"needs a round|choose one of|between 0 and 1"):
        estimate_ratio(ours, theirs, **more)  # type: ignore[arg-type]
