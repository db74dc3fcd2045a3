"""Ours beside its peers: rounds, ratios, verdicts, and a document that keeps to its schema."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.instrument.peer_comparison import (
    OURS,
    SCHEMA,
    VERSION,
    Contender,
    PeerComparison,
    Ratio,
    ScenarioRow,
    estimate_ratio,
    interleave,
    make_document,
    make_row,
    make_standing,
    peers_schema,
)


@pytest.mark.parametrize(
    ("names", "burst", "order", "last"),
    [("abc", 1, "abcbcacab", [3, 5, 7]), ("ab", 2, "aabbbbaa", [3, 4, 5, 6])],
)
def test_each_round_begins_with_another(names: str, burst: int, order: str, last: list[float]) -> None:
    """Nobody always runs first, or behind the same neighbour's mess; a turn's samples stay together."""
    played: list[str] = []
    contestants = {name: lambda name=name: float(played.append(name) or len(played)) for name in names}
    samples = interleave(contestants, rounds=len(names), seconds=1e9, burst=burst)  # type: ignore[arg-type]
    assert "".join(played) == order
    assert samples[names[-1]] == last
    assert sorted(itertools.chain(*samples.values())) == list(range(1, len(order) + 1))


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


@pytest.mark.parametrize("contestants", [{"a": lambda: 1.0}, {}])
def test_nothing_to_play_is_refused(contestants: dict[str, Callable[[], float]]) -> None:
    """An empty table would look like a result."""
    with pytest.raises(ValueError, match=r"rounds and burst must be at least 1|no contestant"):
        interleave(contestants, rounds=0 if contestants else 1, seconds=1)


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


def row(samples: dict[str, list[float]], **changes: Any) -> ScenarioRow:
    given: dict[str, Any] = {
        "id": "T0-p1",
        "title": "nothing at all",
        "unit": "us",
        "statistic": "median",
        "target": 5.0,
        "limit_of": "nothing",
        "code": "0123456789abcdef",
        "samples": samples,
        "limit_samples": [1.0, 3.0, 2.0],
        "facts": {OURS: {"hit_tokens": 7.0}},
    }
    return make_row(**{**given, **changes})


@pytest.mark.parametrize(
    ("ours", "verdict"), [([1.0, 1.1, 1.2], "ahead"), ([9.0, 9.1, 9.2], "behind"), ([1.0, 3.0, 9.0], "level")]
)
def test_the_verdict_needs_the_whole_interval(ours: list[float], verdict: str) -> None:
    """One lucky sample makes nobody faster."""
    found = row({OURS: ours, "slow": [50.0, 50.0, 50.0], "quick": [3.0, 3.0, 3.0]})
    assert (found.best_peer, found.verdict) == ("quick", verdict)
    assert found.limit == 2.0


def test_the_target_is_about_ours_alone() -> None:
    """The target is reached by our time alone, without regard to any peer."""
    assert not row({OURS: [6.0] * 3, "slow": [50.0] * 3}).reached
    alone = row({OURS: [4.0] * 3})
    assert alone.reached
    assert (alone.best_peer, alone.ratio, alone.verdict) == (None, None, "alone")


def test_the_slowest_of_several_kinds_of_keys_stands_for_ours() -> None:
    """Our result is that of the slowest kind of keys; the others are shown after it."""
    quick, slow = [1.0, 1.1, 1.2], [7.0, 7.1, 7.2]
    found = row({f"{OURS} uint32": quick, f"{OURS} int64": slow, "b": [2.0, 2.0, 2.0]})
    assert [it.contender for it in found.standings] == [OURS, f"{OURS} uint32", "b"]
    assert (found.keys, found.standings[0].value, found.best_peer) == ("int64", 7.1, "b")
    assert (found.verdict, found.reached) == ("behind", False)
    alone = row({f"{OURS} list": quick})
    assert (alone.keys, alone.best_peer, alone.standings[0].contender) == ("list", None, OURS)


def test_percentiles_are_samples() -> None:
    """The smallest sample that is not below so many percent of all."""
    standing = make_standing("it", [float(number) for number in range(100, 0, -1)], "mean", {"n": 1.0})
    assert (standing.p50, standing.p95, standing.p99, standing.longest) == (50.0, 95.0, 99.0, 100.0)
    assert (standing.value, standing.samples, standing.facts) == (50.5, 100, {"n": 1.0})
    assert make_standing("it", [3.0], "median", {}).p50 == 3.0


def test_a_document_keeps_to_its_schema() -> None:
    """Also where a peer is missing, and where there is none at all."""
    document = make_document(
        PeerComparison(
            schema=SCHEMA,
            version=VERSION,
            versions={"torch": "2"},
            machine={"processor": "one"},
            clock="cpu",
            slice="smoke",
            seconds=1.5,
            contenders=(Contender(OURS, "pymllm", "0.1", None), Contender("b", "b", None, "not installed")),
            scenarios=(row({OURS: [1.0, 2.0, 3.0], "b": [2.0, 2.0, 2.0]}), row({OURS: [1.0]})),
        )
    )
    validator = Draft202012Validator(peers_schema())
    validator.validate(document)
    assert document["scenarios"][0]["ratio"]["value"] == 1.0
    with pytest.raises(ValidationError):
        validator.validate({**document, "clock": "sundial"})
