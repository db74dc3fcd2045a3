"""The reading of a counter: a value, or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass

BYTES = "bytes"
COUNT = "count"
PERCENT = "%"
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


class Unreadable(Exception):
    """Raised for an unreadable counter, with the reason; instruments turn it into an unknown `Reading`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A number with its unit, or ``unknown`` with the reason, but never an uncounted zero."""

    value: int | None
    unit: str
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError(
                f"a reading has a value or a reason why not, got value {self.value!r} and reason"
                f" {self.reason!r}; give one of them"
            )

    @classmethod
    def unknown(cls, unit: str, reason: str) -> Reading:
        """Return a reading without a value."""
        return cls(None, unit, reason)

    @property
    def is_known(self) -> bool:
        """Whether the reading has a value."""
        return self.value is not None

    def minus(self, other: Reading) -> Reading:
        """Return the difference to another reading of the same unit; unknown if either is."""
        if self.unit != other.unit:
            raise ValueError(f"cannot take {other.unit} from {self.unit}; subtract readings of one unit")
        if self.value is None:
            return self
        if other.value is None:
            return other
        return Reading(self.value - other.value, self.unit)

    def __str__(self) -> str:
        if self.value is None:
            return f"unknown ({self.reason})"
        if self.unit == BYTES:
            return _in_binary_units(self.value)
        return f"{self.value:,}" if self.unit == COUNT else f"{self.value:,} {self.unit}"


def _in_binary_units(value: int) -> str:
    """Return bytes as text in the largest binary unit that gives at least one."""
    size, step = float(value), 0
    while abs(size) >= 1024 and step < len(_STEPS) - 1:
        size, step = size / 1024, step + 1
    return f"{size:.1f} {_STEPS[step]}" if step else f"{value} B"
