"""What sections of a page are made of, beside tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pymllm.report.plots import Plot
from pymllm.report.tables import Table


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a card; code is written as it is."""

    name: str
    value: str
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """Something that deserves a look by itself, such as a violation with its program."""

    kind: ClassVar[str] = "card"
    id: str  # to which cells lead
    title: str
    tone: str
    facts: Sequence[Fact]
    program: str = ""  # lines of code below
    file: str = ""  # name for whoever takes the program's file from the page; "" where the page has it not
    lines: tuple[str, ...] = ()  # of that file
    picture: str = ""  # of the program, as SVG

    @property
    def contents(self) -> str:
        """The file, whole."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page, which leads to its section."""

    value: str
    name: str
    tone: str | None = None


Block = Table | Plot | Text | Card
Part = Block | Tile


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; its tiles belong at the top of the page."""

    id: str
    title: str
    lead: str  # what is to be seen, how to read it, and where it comes from
    words: Mapping[str, str]  # what the words of its tables and tiles mean
    blocks: Sequence[Block]
    tiles: Sequence[Tile] = ()


def anchor_of(*words: str) -> str:
    """Make words the id of an element: letters, digits and dashes, different words different ids."""
    text = "-".join(words)
    return "".join(c if c.isascii() and c.isalnum() else "-" if c in " -_/" else f"_{ord(c):x}" for c in text)
