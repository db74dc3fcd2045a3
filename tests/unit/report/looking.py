"""Looking at sections: tables by caption, and plots that Plotly accepts."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go  # type: ignore[import-untyped]

from pymllm.report.blocks import Card, Section, Text
from pymllm.report.plots import Plot
from pymllm.report.tables import Cell, Table


def tables(section: Section | None) -> dict[str, list[list[str]]]:
    """Texts of every table, by caption."""
    assert section is not None
    return {
        block.caption: [[cell.text for cell in row] for row in block.rows]
        for block in section.blocks
        if isinstance(block, Table)
    }


def cells(section: Section | None, text: str) -> list[Cell]:
    """Every cell that reads so."""
    assert section is not None
    found = [row for block in section.blocks if isinstance(block, Table) for row in block.rows]
    return [cell for row in found for cell in row if cell.text == text]


def cards(section: Section | None) -> list[Card]:
    assert section is not None
    return [block for block in section.blocks if isinstance(block, Card)]


def texts(section: Section | None) -> list[str]:
    assert section is not None
    return [block.text for block in section.blocks if isinstance(block, Text)]


def figures(section: Section | None) -> dict[str, dict[str, go.Figure]]:
    """Every picture of each plot, as Plotly checks it: what it does not know raises."""
    assert section is not None
    plots = [block for block in section.blocks if isinstance(block, Plot)]
    return {plot.id: dict(_figures(plot)) for plot in plots}


def _figures(plot: Plot) -> Iterator[tuple[str, go.Figure]]:
    for choice in plot.choices:
        yield choice.name, go.Figure(data=list(choice.traces), layout=choice.layout)
