"""A verdict accuses what leaks, in its layer, and nobody else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pymllm.instrument.leaks import (
    BOUNDS,
    Checkpoint,
    Layer,
    LayerVerdict,
    LeakVerdict,
    Outcome,
    judge_leaks,
)
from pymllm.instrument.reading import BYTES, Reading

MIB = 1 << 20
FIELDS = {Layer.SLOTS: "slots", Layer.LIVE: "live", Layer.CACHE: "cache", Layer.DEVICE: "own"}
STILL = Checkpoint(
    at=0.0,
    slots=Reading(3, "slots"),
    live=Reading(5 * MIB, BYTES),
    cache=Reading(MIB, BYTES),
    returned=Reading(0, BYTES),
    own=Reading(300 * MIB, BYTES),
    device=Reading(400 * MIB, BYTES),
    others=Reading(0, "processes"),
)


def course(field: str, values: Sequence[float]) -> list[Checkpoint]:
    """Checkpoints in which one field takes these values and all others stay."""
    unit = getattr(STILL, field).unit
    return [
        replace(STILL, at=float(at), **{field: Reading(round(value), unit)})
        for at, value in enumerate(values, 1)
    ]


def outcomes(verdict: LeakVerdict) -> dict[Layer, Outcome]:
    return {it.layer: it.outcome for it in verdict.layers}


@pytest.mark.parametrize("layer", Layer)
def test_growth_in_one_layer_is_a_leak_there_and_nowhere_else(layer: Layer) -> None:
    """The layer that grows is named, with its slope; the others do not leak."""
    step = 4 * BOUNDS[layer] or 512
    verdict = judge_leaks(course(FIELDS[layer], [step * at for at in range(12)]))
    assert outcomes(verdict) == {it: Outcome.LEAK if it is layer else Outcome.NO_LEAK for it in Layer}
    (leak,) = verdict.leaking
    assert leak.slope is not None
    assert (leak.slope.value, leak.layer) == (step, layer)
    assert verdict.of(layer) is leak
    assert f"{layer.value}: leak of" in str(verdict)


def test_a_still_program_leaks_nowhere() -> None:
    """Ten checkpoints are enough to say so."""
    verdict = judge_leaks(course("slots", [3] * 10))
    assert set(outcomes(verdict).values()) == {Outcome.NO_LEAK}
    assert verdict.leaking == ()
    assert str(verdict).splitlines()[0] == "slots: no leak"
    assert str(verdict).splitlines()[3] == "device: no leak (up to 262,144 bytes per epoch are none)"


@pytest.mark.parametrize("checkpoints", range(10))
def test_too_few_checkpoints_are_no_verdict(checkpoints: int) -> None:
    """Growth that nobody can be sure of is not called anything."""
    verdict = judge_leaks(course("slots", range(checkpoints)))
    assert set(outcomes(verdict).values()) == {Outcome.UNKNOWN}
    assert "too short" in str(verdict.layers[0])
    assert verdict.checkpoints == checkpoints


FLAT: dict[str, Callable[[int], list[float]]] = {
    "a first epoch that brings everything": lambda n: [0.0] + [9e6] * (n - 1),
    "a warming up that ends": lambda n: [min(at, n // 5) * 3e6 for at in range(n)],
    "a sawtooth": lambda n: [at % 5 * 1e6 for at in range(n)],
    "one late collection": lambda n: [5e6 if at == n // 2 else 0.0 for at in range(n)],
    "memory that is given back": lambda n: [(n - at) * 4e6 for at in range(n)],
    "a slow fill that saturates": lambda n: [2e7 * (1 - 0.6**at) for at in range(n)],
    "a step in the middle": lambda n: [0.0 if at < n // 2 else 4e6 for at in range(n)],
    "growth that ended": lambda n: [min(at, n // 2) * 4e6 for at in range(n)],
}


@pytest.mark.parametrize("checkpoints", [10, 16, 40, 100])
@pytest.mark.parametrize("shape", FLAT)
@pytest.mark.parametrize("layer", Layer)
def test_what_does_not_go_on_growing_is_not_accused(layer: Layer, shape: str, checkpoints: int) -> None:
    """Whatever fills up, steps, saws or comes back is no leak; at worst nobody can tell yet."""
    verdict = judge_leaks(course(FIELDS[layer], FLAT[shape](checkpoints)))
    assert outcomes(verdict)[layer] is not Outcome.LEAK


@pytest.mark.parametrize("shape", ["a first epoch that brings everything", "a warming up that ends"])
def test_warming_up_is_no_leak(shape: str) -> None:
    """What came in the first quarter does not count at all."""
    assert judge_leaks(course("live", FLAT[shape](40))).of(Layer.LIVE).outcome is Outcome.NO_LEAK


def test_growth_that_ended_is_acquitted_by_more_checkpoints() -> None:
    """The late ones alone are enough when there are enough of them."""
    values = [min(at, 12) * 4e6 for at in range(40)]
    assert judge_leaks(course("live", values)).of(Layer.LIVE).outcome is Outcome.NO_LEAK


def test_noise_is_accused_at_most_as_often_as_promised() -> None:
    """Of 500 layers that only flicker, one may be accused at the confidence of 99.8 %."""
    draw = random.Random(11)
    accused = 0
    for _ in range(500):
        values = [1e9 + draw.gauss(0, 1e8) for _ in range(14)]
        accused += judge_leaks(course("live", values)).of(Layer.LIVE).outcome is Outcome.LEAK
    assert accused <= 3


def test_a_level_that_wanders_is_hardly_ever_accused() -> None:
    """Each checkpoint begins where the last one ended, up or down: of 300, two may look like a leak."""
    draw = random.Random(13)
    accused = 0
    for _ in range(300):
        level = [1e9]
        for _ in range(29):
            level.append(level[-1] + draw.gauss(0, 1e7))
        accused += judge_leaks(course("live", level)).of(Layer.LIVE).outcome is Outcome.LEAK
    assert accused <= 2


def test_a_few_wild_checkpoints_do_not_hide_a_leak() -> None:
    """Memory that a checkpoint met by chance drowns the mean step, but not the steps' direction."""
    each_epoch, now_and_then = [512.0 * at for at in range(24)], [512.0 * (at // 4) for at in range(72)]
    for values in (each_epoch, now_and_then):
        values[-10] += 1e9
        assert judge_leaks(course("live", values)).of(Layer.LIVE).outcome is Outcome.LEAK


def test_a_leak_in_noise_is_found() -> None:
    """A megabyte an epoch under flickering of the same size is seen in sixty epochs."""
    draw = random.Random(5)
    values = [at * MIB + draw.gauss(0, MIB) for at in range(60)]
    leak = judge_leaks(course("own", [300 * MIB + value for value in values])).of(Layer.DEVICE)
    assert leak.outcome is Outcome.LEAK
    assert leak.slope is not None
    assert leak.slope.low < MIB < leak.slope.high


def test_a_slow_leak_is_found_with_patience() -> None:
    """One slot in three epochs is a leak; a dozen epochs may not tell, thirty do."""
    assert (
        judge_leaks(course("slots", [at // 3 for at in range(12)])).of(Layer.SLOTS).outcome
        is not Outcome.NO_LEAK
    )
    leak = judge_leaks(course("slots", [at // 3 for at in range(30)])).of(Layer.SLOTS)
    assert leak.outcome is Outcome.LEAK
    assert leak.slope is not None
    assert leak.slope.value == pytest.approx(1 / 3)


@pytest.mark.parametrize("start", [15, 22, 30])
def test_a_leak_that_began_late_is_not_acquitted(start: int) -> None:
    """What stood still for most of a run and grows at its end is no flat layer."""
    values = [512 * max(0, at - start) for at in range(40)]
    assert judge_leaks(course("live", values)).of(Layer.LIVE).outcome is not Outcome.NO_LEAK


def test_memory_that_fell_first_may_leak_later() -> None:
    """What was given back at first does not make up for what is taken later."""
    values = [1e6 - 1e4 * at if at < 24 else 1e5 + 512 * at for at in range(40)]
    assert judge_leaks(course("live", values)).of(Layer.LIVE).outcome is Outcome.UNKNOWN


def test_undecided_checkpoints_say_what_they_see() -> None:
    """Where neither can be said, the interval is shown."""
    verdict = judge_leaks(course("live", [0, 9, 2, 7, 4, 8, 3, 9, 5, 9, 6, 9])).of(Layer.LIVE)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.slope is not None
    assert "9 checkpoints do not tell" in str(verdict)
    assert "take more" in str(verdict)


def test_an_unknown_layer_keeps_its_reason() -> None:
    """What was never read is neither leaking nor sound."""
    checkpoints = [replace(it, live=Reading.unknown(BYTES, "no CUDA")) for it in course("slots", [0] * 12)]
    assert str(judge_leaks(checkpoints).of(Layer.LIVE)) == "live bytes: unknown (no CUDA)"


def test_some_unknown_readings_are_left_out() -> None:
    """A reading that failed now and then does not hide a leak."""
    checkpoints = course("live", [512 * at for at in range(16)])
    for at in (5, 9):
        checkpoints[at] = replace(checkpoints[at], live=Reading.unknown(BYTES, "busy"))
    assert judge_leaks(checkpoints).of(Layer.LIVE).outcome is Outcome.LEAK


def test_checkpoints_at_one_epoch_have_no_slope() -> None:
    """Growth needs work between."""
    checkpoints = [replace(it, at=1.0) for it in course("live", range(12))]
    assert "all at one epoch" in str(judge_leaks(checkpoints).of(Layer.LIVE))


def test_checkpoints_may_share_an_epoch() -> None:
    """Two looks at one epoch have no growth between them."""
    checkpoints = [replace(it, at=float(at // 2)) for at, it in enumerate(course("live", range(0, 24)))]
    verdict = judge_leaks(checkpoints).of(Layer.LIVE)
    assert verdict.slope is not None
    assert verdict.slope.value == pytest.approx(2, rel=0.1)
    assert verdict.outcome is Outcome.LEAK


def test_growth_that_may_be_within_the_bound_is_not_accused() -> None:
    """The whole interval must be above it, not only its middle."""
    values = [280 * 1024 * at + 100 * 1024 * (-1) ** at for at in range(12)]
    verdict = judge_leaks(course("cache", values)).of(Layer.CACHE)
    assert verdict.slope is not None
    assert verdict.slope.low < verdict.bound < verdict.slope.value
    assert verdict.outcome is Outcome.UNKNOWN


def test_two_epochs_are_no_direction() -> None:
    """However often one looks: one step is one step."""
    values = [512 * (at >= 60) for at in range(80)]
    checkpoints = [replace(it, at=1.0 + (at >= 60)) for at, it in enumerate(course("live", values))]
    assert judge_leaks(checkpoints).of(Layer.LIVE).outcome is Outcome.UNKNOWN


def test_a_bound_is_the_callers() -> None:
    """Whoever expects growth says how much."""
    checkpoints = course("slots", range(12))
    bounds = {**BOUNDS, Layer.SLOTS: 1.0}
    assert judge_leaks(checkpoints, bounds).of(Layer.SLOTS).outcome is Outcome.NO_LEAK


def test_a_verdict_is_plain_data() -> None:
    """A report can keep it; an end of an interval that is not bounded is null."""
    msgspec = pytest.importorskip("msgspec")
    verdict = json.loads(msgspec.json.encode(judge_leaks(course("slots", range(12)))))
    slots, live = verdict["layers"][:2]
    assert (slots["layer"], slots["outcome"], slots["slope"]["value"]) == ("slots", "leak", 1.0)
    assert (live["layer"], live["outcome"]) == ("live bytes", "no leak")
    assert verdict["checkpoints"] == 12


# -- whose the device's memory is ------------------------------------------------------------------


def device_course(others: Sequence[Reading]) -> list[Checkpoint]:
    """Checkpoints in which the device fills up and nobody says what this process has."""
    unknown = Reading.unknown(BYTES, "not listed")
    return [
        replace(it, own=unknown, others=other)
        for it, other in zip(course("device", [MIB * at for at in range(12)]), others, strict=True)
    ]


def device_verdict(others: Sequence[Reading]) -> LayerVerdict:
    return judge_leaks(device_course(others)).of(Layer.DEVICE)


def test_a_process_alone_on_a_device_answers_for_it() -> None:
    """Without a number of its own, growth is its own where nobody else is there."""
    assert device_verdict([Reading(0, "processes")] * 12).outcome is Outcome.LEAK


def test_a_neighbours_growth_is_not_ours() -> None:
    """With anybody else on the device at any checkpoint, growth may be theirs."""
    others = [Reading(int(at == 7), "processes") for at in range(12)]
    verdict = device_verdict(others)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.reason == "device memory grows, but whose is unknown: others use it, too"


def test_growth_among_unknown_neighbours_is_not_ours() -> None:
    """In a container nobody knows who else is there."""
    verdict = device_verdict([Reading.unknown("processes", "in a container")] * 12)
    assert verdict.reason == "device memory grows, but whose is unknown: in a container"


def test_our_own_number_comes_first() -> None:
    """A neighbour that grows changes nothing where the driver says what is ours."""
    checkpoints = [
        replace(it, others=Reading(4, "processes")) for it in course("device", [MIB * at for at in range(12)])
    ]
    assert judge_leaks(checkpoints).of(Layer.DEVICE).outcome is Outcome.NO_LEAK


def test_a_still_device_does_not_leak_whoever_is_there() -> None:
    """An acquittal needs no witness."""
    unknown = Reading.unknown("processes", "in a container")
    checkpoints = [
        replace(it, own=Reading.unknown(BYTES, "not listed"), others=unknown)
        for it in course("device", [400 * MIB] * 12)
    ]
    assert judge_leaks(checkpoints).of(Layer.DEVICE).outcome is Outcome.NO_LEAK
