"""Looking at a section as a reader does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]

from pymllm.report.blocks import PAGE, Card, Cell, Part, Plot, Table, Text, Tile, seen_on
from pymllm.report.loading import Run
from tests.unit.report import samples


class Look:
    """The visible parts of a section: tables by caption, a line for each row, cells between bars."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = list(seen_on(PAGE, parts))
        self._cells = {it.caption: it.rows for it in self.parts if isinstance(it, Table)}
        self.tables = {
            caption: [" | ".join(cell.text for cell in row) for row in rows]
            for caption, rows in self._cells.items()
        }
        self.texts = [it.text for it in self.parts if isinstance(it, Text)]
        self.cards = [it for it in self.parts if isinstance(it, Card)]
        self.plots = {it.id: it for it in self.parts if isinstance(it, Plot)}
        self.tiles = [(it.value, it.name, it.tone) for it in self.parts if isinstance(it, Tile)]

    def cell(self, text: str, caption: str | None = None) -> Cell:
        """The one cell that reads so, of all tables or of one."""
        tables = self._cells.values() if caption is None else [self._cells[caption]]
        (found,) = [it for rows in tables for row in rows for it in row if it.text == text]
        return found

    def columns(self, caption: str, *places: int) -> list[tuple[str, ...]]:
        """Some cells of each row."""
        return [tuple(row[place].text for place in places) for row in self._cells[caption]]

    @cached_property
    def pictures(self) -> dict[str, dict[str, list[go.Figure]]]:
        """The pictures of each choice of each plot, as Plotly checks them: what it does not know raises."""
        return {
            id: {
                it.name: [go.Figure(list(one.traces), one.layout) for one in it.panels] for it in plot.choices
            }
            for id, plot in self.plots.items()
        }

    def picture(self, id: str) -> go.Figure:
        """The only picture of a plot."""
        ((found,),) = self.pictures[id].values()
        return found

    @property
    def code(self) -> list[str]:
        """Return the texts that the cards show as code."""
        return [fact.value for card in self.cards for fact in card.facts if fact.is_code]


def look(make: Callable[[Sequence[Run]], Iterable[Part]], *shown: Run | dict[str, Any]) -> Look:
    """Make a section of runs, or of documents, each of a run of its own, and look at it."""
    return Look(make([it if isinstance(it, Run) else samples.run(it) for it in shown]))
