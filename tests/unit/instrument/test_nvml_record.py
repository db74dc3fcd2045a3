"""A reading is a number or a reason; a record is read by people, and its curve stays small."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from pymllm.instrument.nvml_device import DeviceIdentity
from pymllm.instrument.nvml_record import (
    CurveRecorder,
    Health,
    MemoryCurve,
    NvmlRecord,
    SamplingCost,
    UsedMeans,
)
from pymllm.instrument.reading import BYTES, COUNT, PERCENT, Reading

SIZE, NONE = Reading(3 << 20, BYTES), Reading(0, COUNT)
RECORD = NvmlRecord(
    device=DeviceIdentity("GPU-1", "Fake GPU", False, "GPU-1", "599.01", "13.599.01"),
    reason=None,
    seconds=2.5,
    used_means=UsedMeans.WITHOUT_RESERVED,
    total=SIZE,
    reserved=SIZE,
    used_start=SIZE,
    used_end=SIZE,
    used_peak=SIZE,
    process_start=Reading.unknown(BYTES, "in a container"),
    process_end=SIZE,
    utilization_mean=Reading(40, PERCENT),
    utilization_peak=Reading(90, PERCENT),
    health=Health((), (), NONE, NONE, NONE, None),
    invalid=(),
    unwatched=(),
    cost=SamplingCost(4, 0, 80_000, 50_000, 7_500_000, 0, 0),
    curve=MemoryCurve((0.0, 1.0), (3 << 20, 3 << 20)),
)


@pytest.mark.parametrize(
    ("invalid", "unwatched", "is_valid"),
    [((), (), True), ((), ("clocks",), None), (("XID 79",), (), False), (("XID 79",), ("clocks",), False)],
)
def test_a_run_is_valid_only_where_all_was_watched(
    invalid: tuple[str, ...], unwatched: tuple[str, ...], is_valid: bool | None
) -> None:
    """Nothing seen is not the same as nothing there."""
    assert replace(RECORD, invalid=invalid, unwatched=unwatched).is_valid is is_valid


def test_a_record_says_what_was_seen_and_what_it_cost() -> None:
    """Unknown numbers keep their reasons; reasons not to believe the run stand at its end."""
    text = str(replace(RECORD, invalid=("XID 79",), unwatched=("clocks: no permission",)))
    assert text.splitlines() == [
        "Fake GPU (GPU-1), driver 599.01",
        "device memory: 3.0 MiB at the start, 3.0 MiB at most, 3.0 MiB at the end",
        "this process: unknown (in a container) at the start, 3.0 MiB at the end",
        "utilization: 40 % on average, 90 % at most",
        "watching took 4 samples of 20 us on average and 50 us at most, 0.1 ms in all, and 7.5 ms before and"
        " after; the run, 2.50 s",
        "invalid: XID 79",
        "not watched: clocks: no permission",
    ]


def test_a_shared_reason_is_said_once() -> None:
    """A line that says the same thing twice is not read."""
    unknown = Reading.unknown(PERCENT, "not supported")
    text = str(replace(RECORD, utilization_mean=unknown, utilization_peak=unknown))
    assert "\nutilization: unknown (not supported)\n" in text


def test_a_record_of_nothing_says_why() -> None:
    """One line is enough where there was no device."""
    assert str(replace(RECORD, device=None, reason="no driver")) == "not watched: no driver"


def test_a_run_without_samples_has_a_cost() -> None:
    """Nothing is divided by zero."""
    assert str(SamplingCost(0, 0, 0, 0, 0, 0, 0)).startswith("0 samples of 0 us")


@pytest.mark.parametrize("samples", [0, 1, 8, 9, 100, 1001])
def test_a_curve_is_kept_in_full_or_thinned_evenly(samples: int) -> None:
    """The kept samples have one distance, and begin with the first; the ends are known."""
    recorder = CurveRecorder(8)
    used = [5 + 9 * (at == samples // 2 + 1) for at in range(samples)]
    for at, value in enumerate(used):
        recorder.add(float(at), value)
    curve = recorder.curve()
    assert len(curve) == len(curve.used) == min(samples, 8) or 4 <= len(curve) <= 8 < samples
    steps = {later - sooner for sooner, later in itertools.pairwise(curve.times)}
    assert len(steps) <= 1
    assert [int(at) for at in curve.times][:1] == [0][:samples]
    assert not samples or curve.times[-1] > samples - 1 - 2 * max(steps, default=1)
    expected = (used[0], used[-1]) if samples else (None, None)
    assert (recorder.first, recorder.last) == expected


@pytest.mark.parametrize("most", [0, 1, 7])
def test_an_odd_room_is_refused(most: int) -> None:
    """Half of the samples go at a time."""
    with pytest.raises(ValueError, match="must be even"):
        CurveRecorder(most)


UNKNOWN = Reading.unknown(BYTES, "no driver")


def test_an_unknown_reading_is_not_zero() -> None:
    """An unreadable value is a reason, not zero."""
    assert UNKNOWN.value is None
    assert not UNKNOWN.is_known
    assert str(UNKNOWN) == "unknown (no driver)"
    assert Reading(0, BYTES).is_known


@pytest.mark.parametrize(("value", "reason"), [(None, None), (0, "no driver")])
def test_a_reading_is_either_known_or_not(value: int | None, reason: str | None) -> None:
    """A value without need of a reason, or a reason: nothing between."""
    with pytest.raises(ValueError, match="give one of them"):
        Reading(value, BYTES, reason)


def test_a_difference_is_unknown_where_either_side_is() -> None:
    """A reading that is unknown before or after makes the difference unknown, with its reason."""
    assert Reading(7, BYTES).minus(Reading(3, BYTES)) == Reading(4, BYTES)
    assert Reading(7, BYTES).minus(UNKNOWN) == UNKNOWN
    assert UNKNOWN.minus(Reading(7, BYTES)) == UNKNOWN


def test_units_do_not_mix() -> None:
    """Bytes less counts are nothing."""
    with pytest.raises(ValueError, match="cannot take count from bytes"):
        Reading(7, BYTES).minus(Reading(3, COUNT))


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        (Reading(1023, BYTES), "1023 B"),
        (Reading(1536, BYTES), "1.5 KiB"),
        (Reading(-(3 << 30), BYTES), "-3.0 GiB"),
        (Reading(5 << 50, BYTES), "5120.0 TiB"),
        (Reading(1234, COUNT), "1,234"),
        (Reading(50, PERCENT), "50 %"),
    ],
)
def test_a_reading_is_written_with_its_unit(reading: Reading, text: str) -> None:
    """Bytes in binary units, counts alone."""
    assert str(reading) == text
