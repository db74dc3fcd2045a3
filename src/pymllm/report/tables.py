"""Tables of a page: plain data that the templates write down, whatever they list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

GOOD, BAD, UNKNOWN, QUIET = "good", "bad", "unknown", "quiet"
"""Tones of a cell; a word or a sign says the same, for whoever does not see the colour."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table: a text with its unit, and how it looks."""

    text: str
    tone: str | None = None
    href: str | None = None  # where it leads
    hint: str | None = None  # for whoever points at it; never what is needed to understand the cell
    spark: tuple[float, ...] = ()  # a curve to draw beside the text

    @property
    def spark_points(self) -> str:
        """Points of the curve for an SVG of 100 by 24."""
        low, high = min(self.spark), max(self.spark)
        span, steps = (high - low) or 1.0, max(len(self.spark) - 1, 1)
        return " ".join(
            f"{place / steps * 96 + 2:.1f},{22 - (value - low) / span * 20:.1f}"
            for place, value in enumerate(self.spark)
        )


@dataclass(frozen=True, slots=True)
class Column:
    """A column: numbers stand on the right, and words such as a time are never broken."""

    name: str
    of: Callable[[Any], Cell | str]
    is_number: bool = False
    hint: str | None = None
    is_word: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, of which the first one names the row; `make_table` makes them of things."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False  # whether only the caption is seen until somebody opens it


def number(name: str, of: Callable[[Any], Cell | str]) -> Column:
    """Make a column of numbers."""
    return Column(name, of, True)


def make_table(caption: str, items: Iterable[Any], columns: Sequence[Column], folded: bool = False) -> Table:
    """List some things, a row each."""
    made = ([column.of(item) for column in columns] for item in items)
    rows = tuple(tuple(Cell(it) if isinstance(it, str) else it for it in row) for row in made)
    return Table(caption, tuple(columns), rows, folded)


def or_quiet(value: Any, show: Callable[[Any], str] = str, missing: str = "not recorded") -> Cell:
    """Make a cell of a value, or of the words that there is none."""
    return Cell(missing, QUIET) if value is None else Cell(show(value))
