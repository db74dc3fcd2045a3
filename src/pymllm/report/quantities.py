"""Numbers as readable text with units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pymllm.report.records import Machine

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_BYTES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
_DIGITS = 3
_GROUPED = 1000
_FINE_DECADES = 3
_BYTE_TICKS = 10


def count_of(number: int, one: str, several: str = "") -> str:
    """Return a count with its noun, in the singular for one."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def kept_words(kept: int) -> str:
    """Return words for the number of results kept from an earlier run; empty for none."""
    return f", and {count_of(kept, 'result')} kept from an earlier run" if kept else ""


def show(value: float | None, unit: str) -> str:
    """Return a number with its unit: 0.0000125 and ``"s"`` as "12.5 µs", ``None`` as "unknown".

    Units are ``s``, ``ms``, ``us``, ``ns``, ``bytes``, ``share`` (of 1), or a word that is written as it is.
    """
    if value is None:
        return "unknown"
    if unit in SECONDS:
        return _scaled(value * SECONDS[unit], _TIMES)
    if unit == "bytes":
        return _scaled(value, (*_BYTES, ("bytes", 1.0)))
    if unit == "share":
        return show_share(value)
    return f"{show_count(value)} {unit}".rstrip()


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    name, size = _unit_for(value, units)
    return f"{show_count(value / size)} {name}"


def _unit_for(value: float, units: tuple[tuple[str, float], ...]) -> tuple[str, float]:
    """Return the largest unit in which a number is at least one, or the smallest unit."""
    for name, size in units:
        # What rounds up to one of a unit is one of that unit: 999.96 ms would read as 1,000 ms.
        if abs(value) >= size * (1 - 0.5 * 10**-_DIGITS):
            return name, size
    return units[-1]


def show_count(value: float) -> str:
    """Return a number with thousands separators, and with three digits if it has a fraction."""
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) >= _GROUPED:
        return f"{value:,.0f}"
    digits = max(0, _DIGITS - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_share(value: float) -> str:
    """Return a fraction of 1 as text in per cent."""
    return f"{value * 100:.1f} %"


def show_time(time: str) -> str:
    """Return the UTC time of a run as text, to the second: "2026-11-21 15:03:11"."""
    return time.replace("T", " ").removesuffix("Z").partition(".")[0]


def show_duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def machine_name(machine: Machine | None) -> str:
    """Describe a machine in a few words."""
    if machine is None:
        return "machine not recorded"
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus[:1])
    return f"{machine.name or machine.processor}{gpus} ({machine.fingerprint})"


def scale_of(values: Iterable[float], unit: str) -> tuple[float, str]:
    """Return the factor by which to scale an axis, and the unit after scaling."""
    largest = max(map(abs, values), default=0.0)
    if unit == "share":
        return 100.0, "%"
    if unit in SECONDS:
        name, size = _unit_for(largest * SECONDS[unit], _TIMES)
        return SECONDS[unit] / size, name
    if unit == "bytes":
        name, size = _unit_for(largest, (*_BYTES, ("bytes", 1.0)))
        return 1 / size, name
    return 1.0, unit


def log_ticks(values: Iterable[float], unit: str) -> dict[str, list[Any]]:
    """Return places and texts of a logarithmic axis's ticks: 1, 2 and 5 of each power of ten, or 1 only.

    Of bytes they are powers of two, every so many that about ten are left.
    """
    positive = [value for value in values if value > 0]
    if not positive:
        return {}
    if unit == "bytes":
        first, last = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
        powers = [2.0**power for power in range(first, last + 1, -(-(last - first + 1) // _BYTE_TICKS))]
        return {"tickvals": powers, "ticktext": [show(place, unit) for place in powers]}
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    steps = (1, 2, 5) if high - low <= _FINE_DECADES else (1,)
    places = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    return {"tickvals": places, "ticktext": [show(place, unit) for place in places]}
