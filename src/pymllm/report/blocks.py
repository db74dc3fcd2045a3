"""What a page is made of: plain data that the templates write down, whatever it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BAD",
    "GOOD",
    "PALETTE",
    "QUIET",
    "UNKNOWN",
    "Block",
    "Card",
    "Cell",
    "Choice",
    "Column",
    "Fact",
    "Plot",
    "Section",
    "Table",
    "Text",
    "Tile",
    "anchor_of",
]

PALETTE = ("#2f86d1", "#e0701a", "#12a37a", "#cc79a7", "#b8901b", "#56b4e9", "#8b7ff5", "#8a8f98")
"""Of lines and bars: told apart on light and on dark, and without red against green (after Okabe and Ito)."""

GOOD, BAD, UNKNOWN, QUIET = "good", "bad", "unknown", "quiet"
"""Tones of a cell; a word or a sign says the same, for whoever does not see the colour."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table.

    Parameters
    ----------
    text : str
        With its unit.
    tone : str or None
        ``"good"``, ``"bad"``, ``"unknown"`` or ``"quiet"``.
    href : str or None
        Where it leads.
    hint : str or None
        More, for whoever points at it; never what is needed to understand the cell.
    spark : tuple of float
        A curve to draw beside the text.
    """

    text: str
    tone: str | None = None
    href: str | None = None
    hint: str | None = None
    spark: tuple[float, ...] = ()

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
    """The head of a column; numbers stand on the right, and words such as a time are never broken."""

    name: str
    is_number: bool = False
    hint: str | None = None
    is_word: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells.

    Parameters
    ----------
    caption : str
        What the rows are.
    columns : tuple of Column
        The first one names the row.
    rows : tuple of tuple of Cell
        Each as long as ``columns``.
    folded : bool
        Whether only the caption is seen until somebody opens it.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.caption

    @property
    def kind(self) -> str:
        """Name of the template."""
        return "table"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the pictures that a plot can show: Plotly's traces and layout."""

    name: str
    traces: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture, or several of which one is chosen.

    Parameters
    ----------
    id : str
        Of the page's element.
    title : str
        What it shows.
    label : str
        The same in a sentence, for whoever does not see it.
    choices : tuple of Choice
        At least one.
    chosen_by : str
        What is chosen, for the label of the list.
    """

    id: str
    title: str
    label: str
    choices: tuple[Choice, ...]
    chosen_by: str = "shown"

    @property
    def kind(self) -> str:
        """Name of the template."""
        return "plot"

    @property
    def plain(self) -> dict[str, Any]:
        """What the page's script draws."""
        return {
            "id": self.id,
            "choices": [
                {"name": it.name, "data": list(it.traces), "layout": it.layout, "note": it.note}
                for it in self.choices
            ],
        }


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    tone: str | None = None

    @property
    def kind(self) -> str:
        """Name of the template."""
        return "text"


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a card; code is written as it is."""

    name: str
    value: str
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """Something that deserves a look by itself, such as a violation with its program.

    Parameters
    ----------
    id : str
        To which cells lead.
    title, tone
        Of the card.
    facts : tuple of Fact
        In order.
    program : str
        Lines of code below; "" for none.
    file : str
        Name for whoever takes the program's file from the page; "" where the page does not have it.
    lines : tuple of str
        Of that file.
    """

    id: str
    title: str
    tone: str
    facts: tuple[Fact, ...]
    program: str = ""
    file: str = ""
    lines: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Name of the template."""
        return "card"

    @property
    def contents(self) -> str:
        """The file, whole."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page."""

    value: str
    name: str
    tone: str | None = None
    href: str | None = None


Block = Table | Plot | Text | Card


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Parameters
    ----------
    id, title
        Of the part; the page's list of contents leads to it.
    lead : str
        What is to be seen, how to read it, and where it comes from.
    blocks : tuple
        In order.
    tiles : tuple of Tile
        What of it belongs at the top of the page.
    """

    id: str
    title: str
    lead: str
    blocks: Sequence[Block]
    tiles: tuple[Tile, ...] = ()


def anchor_of(*words: str) -> str:
    """Make words the id of an element: letters, digits and dashes, different words different ids."""
    text = "-".join(words)
    return "".join(c if c.isascii() and c.isalnum() else "-" if c in " -_/" else f"_{ord(c):x}" for c in text)
