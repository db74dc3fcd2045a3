"""The operations of the table that says which slot holds which position of a request (kind ``rows``)."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots
from pymllm.oracle.spans import Span

__all__ = [
    "ROW_OPERATIONS",
    "AllocRows",
    "FreeRow",
    "ReadRows",
    "WriteEntries",
    "WriteRow",
]


@built_through_slots
@dataclass(frozen=True, slots=True)
class AllocRows:
    """Take rows for requests, all or none (P1); answered by `Slots` or `NoRoom`."""

    count: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class FreeRow:
    """Give a row back (P2); ``row`` names exactly one."""

    row: Span


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteRow:
    """Write ``values`` into positions ``start .. stop`` of one row (P3); ``form`` is theirs, as of `Free`."""

    row: Span
    start: int
    stop: int
    values: tuple[int, ...]
    form: str = "int32"


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Write one value into one position of each row named; row 0 takes padding (P2, E5).

    ``form`` is that of all three, as of `Free`.
    """

    rows: tuple[Span, ...]
    positions: tuple[int, ...]
    values: tuple[int, ...]
    form: str = "int32"


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read the whole table; answered by `Table`."""


ROW_OPERATIONS: tuple[type, ...] = (AllocRows, FreeRow, WriteRow, WriteEntries, ReadRows)
"""Those that no other kind has."""
