"""Numbers with their units."""

from __future__ import annotations

import pytest

from pymllm.report.quantities import log_ticks, scale_of, show, show_count, show_share, show_time


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "unknown"),
        (1.25e-5, "s", "12.5 µs"),
        (0.9999999, "s", "1 s"),
        (0.99996, "s", "1 s"),
        (3, "ms", "3 ms"),
        (2000, "us", "2 ms"),
        (0, "us", "0 ns"),
        (0.4, "ns", "0.4 ns"),
        (250 << 20, "bytes", "250 MiB"),
        (10, "bytes", "10 bytes"),
        (3 << 29, "bytes", "1.5 GiB"),
        (-(1 << 20), "bytes", "-1 MiB"),
        (0.1234, "share", "12.3 %"),
        (1234, "tokens", "1,234 tokens"),
        (7, "", "7"),
        (0.25, "", "0.25"),
    ],
)
def test_a_number_is_shown_in_the_unit_that_people_read(value: float | None, unit: str, text: str) -> None:
    """Three digits."""
    assert show(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (200, "200"), (229.97, "230"), (1234567, "1,234,567"), (1234.5, "1,234"), (100.4, "100"),
        (1.5, "1.5"), (0.001234, "0.00123"), (-2.5, "-2.5"), (1e-20, "0"),
    ],
)  # fmt: skip
def test_zeros_that_belong_to_a_number_stay(value: float, text: str) -> None:
    """230 is not 23."""
    assert show_count(value) == text


def test_shares_and_times_are_short() -> None:
    """Per cent, and seconds."""
    assert show_share(0.5) == "50.0 %"
    assert show_time("2026-11-21T15:03:11.123Z") == "2026-11-21 15:03:11"
    assert show_time("2026-11-21T15:03:11Z") == "2026-11-21 15:03:11"


@pytest.mark.parametrize(
    ("values", "unit", "shown", "unit_shown"),
    [
        ([0.001, 0.02], "s", 20.0, "ms"),
        ([1 << 30], "bytes", 1.0, "GiB"),
        ([0.5], "share", 50.0, "%"),
        ([3.0], "steps/s", 3.0, "steps/s"),
        ([], "s", None, "ns"),
    ],
)
def test_an_axis_has_the_unit_of_its_largest_number(
    values: list[float], unit: str, shown: float | None, unit_shown: str
) -> None:
    """One for all of its numbers."""
    scale, name = scale_of(values, unit)
    assert name == unit_shown
    if shown is not None:
        assert max(values) * scale == pytest.approx(shown)


def test_a_logarithmic_axis_has_texts_with_units() -> None:
    """Plotly's own are the digits 2 and 5 without any."""
    fine = log_ticks([15, 80], "us")
    assert fine["ticktext"] == ["10 µs", "20 µs", "50 µs", "100 µs", "200 µs", "500 µs"]
    assert fine["tickvals"][1] == 20
    assert log_ticks([1, 1e6], "")["ticktext"] == [
        "1",
        "10",
        "100",
        "1,000",
        "10,000",
        "100,000",
        "1,000,000",
    ]
    assert log_ticks([0, -1], "us") == {}
