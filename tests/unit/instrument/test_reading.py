"""A reading is a number or a reason."""

from __future__ import annotations

import pytest

from pymllm.instrument.reading import BYTES, COUNT, PERCENT, Reading

UNKNOWN = Reading.unknown(BYTES, "no driver")


def test_an_unknown_reading_is_not_zero() -> None:
    """What could not be read has a reason in the place of a value."""
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
    """What was lost before or after is lost between, with its reason."""
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
