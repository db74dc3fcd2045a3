"""The blocks of a report (tables, plots, texts and cards) as plain data for a page or a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import and_
from typing import Any, ClassVar

from pymllm.report.quantities import log_ticks

GOOD, BAD, UNKNOWN, QUIET = "good", "bad", "unknown", "quiet"
"""Tones of a cell; a word or sign also gives the meaning, for readers who cannot see the colour."""

ENDING = "ending"
"""The tone of a summary text, which a terminal shows last."""

PAGE, TERMINAL, VERBOSE, BRIEF = "page", "terminal", "verbose", "brief"
"""Places that alone may show a block or column; a terminal is verbose if asked, and brief otherwise."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of one table cell: a text with its unit, and its appearance."""

    text: str
    tone: str | None = None
    href: str | None = None  # where it leads
    hint: str | None = None  # for whoever points at it; never what is needed to understand the cell
    spark: tuple[float, ...] = ()  # a curve to draw beside the text

    @property
    def spark_points(self) -> str:
        """The points of the cell's curve, for an SVG of 100 by 24."""
        low, high = min(self.spark), max(self.spark)
        span, steps = (high - low) or 1.0, max(len(self.spark) - 1, 1)
        return " ".join(
            f"{place / steps * 96 + 2:.1f},{22 - (value - low) / span * 20:.1f}"
            for place, value in enumerate(self.spark)
        )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: numbers are aligned right, and unbreakable words such as times stay whole."""

    name: str
    of: Callable[[Any], Cell | str]
    is_number: bool = False
    hint: str | None = None
    is_word: bool = False
    only: str = ""  # place where it is seen; "" for all places
    group: str = ""  # of columns that belong together, for a table whose rows a terminal sets side by side


@dataclass(frozen=True, slots=True)
class Table:
    """A table of rows, whose first cell names the row; `make_table` makes one from objects."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False  # whether only the caption is seen until somebody opens it
    only: str = ""  # as of a column
    is_turned: bool = False  # whether a terminal sets the rows side by side, under the first cell of each

    def with_columns(self, places: Sequence[int]) -> Table:
        """Return the table with some of its columns."""
        columns = tuple(self.columns[at] for at in places)
        return replace(
            self, columns=columns, rows=tuple(tuple(row[at] for at in places) for row in self.rows)
        )

    def seen_on(self, place: str) -> Table:
        """Return the table without columns of other places and, in a terminal, without empty columns."""
        is_seen = [column.only in ("", place) for column in self.columns]
        if place == TERMINAL and self.rows:
            told = (any(it.tone != QUIET for it in cells) for cells in zip(*self.rows, strict=True))
            is_seen = [*map(and_, is_seen, told)]
        return self.with_columns([at for at, is_shown in enumerate(is_seen) if is_shown])


def number(name: str, of: Callable[[Any], Cell | str], only: str = "") -> Column:
    """Return a column of numbers."""
    return Column(name, of, True, only=only)


def make_table(
    caption: str, items: Iterable[Any], columns: Sequence[Column], folded: bool = False, only: str = ""
) -> Table:
    """Return a table with a row for each of some objects."""
    made = ([column.of(item) for column in columns] for item in items)
    rows = tuple(tuple(Cell(it) if isinstance(it, str) else it for it in row) for row in made)
    return Table(caption, tuple(columns), rows, folded, only)


def or_quiet(value: Any, show: Callable[[Any], str] = str, missing: str = "not recorded") -> Cell:
    """Return a cell for a value, or with words for a missing value."""
    return Cell(missing, QUIET) if value is None else Cell(show(value))


PALETTE = ("#2f86d1", "#e0701a", "#12a37a", "#cc79a7", "#b8901b", "#56b4e9", "#8b7ff5", "#8a8f98")
"""The colours of lines and marks, distinct on light and dark without red against green (after Okabe and
Ito)."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a plot: Plotly's traces and layout."""

    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    title: str = ""  # where a plot shows several


@dataclass(frozen=True, slots=True)
class Choice:
    """One view of a plot that readers can choose: one picture, or several small ones side by side."""

    name: str
    panels: Sequence[Panel]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Pictures drawn by Plotly, of which one choice is shown."""

    kind: ClassVar[str] = "plot"
    id: str  # of the page's element
    title: str
    label: str  # what it shows in a sentence, for whoever does not see it
    choices: Sequence[Choice]  # at least one
    chosen_by: str = "shown"  # what is chosen, for the label of the list

    @property
    def plain(self) -> list[dict[str, Any]]:
        """The choices of the plot, as plain data for the page's script."""
        return [
            {
                "note": choice.note,
                "panels": [
                    {"title": it.title, "data": list(it.traces), "layout": it.layout} for it in choice.panels
                ],
            }
            for choice in self.choices
        ]


def legend(*, above: bool = False) -> dict[str, Any]:
    """Return the layout of a plot's legend above or below the picture."""
    place = {"y": 1.02, "yanchor": "bottom"} if above else {"y": -0.25, "yanchor": "top"}
    return {"showlegend": True, "legend": {"orientation": "h", **place}}


def log_axis(title: str, values: Iterable[float], unit: str = "") -> dict[str, Any]:
    """Return a logarithmic axis that covers some values, in their unit."""
    return {"type": "log", "title": {"text": title}, **log_ticks(values, unit)}


def scatter(name: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return a line with a mark at each point, or another form given by ``mode``."""
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y), **more}


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names by the words at the start or end that all share and that a title shows once."""
    words = [name.split(" ") for name in names]
    least = min(map(len, words), default=0)
    start = end = 0
    while start < least and len({it[start] for it in words}) == 1:
        start += 1
    while start + end < least and len({it[-1 - end] for it in words}) == 1:
        end += 1
    short = [" ".join(it[start : len(it) - end]).strip(",:") for it in words]
    return short if all(short) else list(names)


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, which is one line of a terminal."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str | None = None
    only: str = ""  # as of a column


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a card; code is shown unchanged."""

    name: str
    value: str
    is_code: bool = False
    only: str = ""  # as of a column


@dataclass(frozen=True, slots=True)
class Card:
    """A card for one result, such as a violation with its program."""

    kind: ClassVar[str] = "card"
    id: str  # to which cells lead
    title: str
    tone: str
    facts: Sequence[Fact]
    program: str = ""  # lines of code below
    file: str = ""  # name for whoever takes the program's file from the page; "" where the page has it not
    lines: tuple[str, ...] = ()  # of that file
    picture: str = ""  # of the program, as SVG
    note: str = ""  # on the program

    def seen_on(self, place: str) -> Card:
        """Return the card without facts of other places."""
        return replace(self, facts=[fact for fact in self.facts if fact.only in ("", place)])

    @property
    def contents(self) -> str:
        """The whole text of the card's program file."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page that links to its section."""

    value: str
    name: str
    tone: str | None = None


Block = Table | Plot | Text | Card
Part = Block | Tile


def seen_on(place: str, parts: Iterable[Part], *, verbose: bool = False) -> Iterator[Part]:
    """Yield the parts that a page or a terminal shows, with only the table columns shown there."""
    places = ("", place, VERBOSE if verbose else BRIEF) if place == TERMINAL else ("", place)
    for part in parts:
        if isinstance(part, Table | Text) and part.only not in places:
            continue
        yield part.seen_on(place) if isinstance(part, Table | Card) else part


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page; its tiles stand at the top of the page."""

    id: str
    title: str
    lead: str  # what is to be seen, how to read it, and where it comes from
    words: Mapping[str, str]  # what the words of its tables and tiles mean
    blocks: Sequence[Block]
    tiles: Sequence[Tile] = ()


def anchor_of(*words: str) -> str:
    """Return an HTML id for words: letters, digits and dashes; different words have different ids."""
    text = "-".join(words)
    return "".join(c if c.isascii() and c.isalnum() else "-" if c in " -_/" else f"_{ord(c):x}" for c in text)
