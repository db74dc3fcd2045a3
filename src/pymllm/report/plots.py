"""Plots of a page: what Plotly draws, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pymllm.report.quantities import log_ticks

PALETTE = ("#2f86d1", "#e0701a", "#12a37a", "#cc79a7", "#b8901b", "#56b4e9", "#8b7ff5", "#8a8f98")
"""Of lines and marks: told apart on light and dark, and without red against green (after Okabe and Ito)."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: Plotly's traces and layout."""

    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    title: str = ""  # where a plot shows several


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plot can show at once: one picture, or small ones beside each other."""

    name: str
    panels: Sequence[Panel]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Pictures that Plotly draws, of which one choice is shown."""

    kind: ClassVar[str] = "plot"
    id: str  # of the page's element
    title: str
    label: str  # what it shows in a sentence, for whoever does not see it
    choices: Sequence[Choice]  # at least one
    chosen_by: str = "shown"  # what is chosen, for the label of the list

    @property
    def plain(self) -> list[dict[str, Any]]:
        """What the page's script draws."""
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
    """Return the part of a layout that lists the lines above or below a picture."""
    place = {"y": 1.02, "yanchor": "bottom"} if above else {"y": -0.25, "yanchor": "top"}
    return {"showlegend": True, "legend": {"orientation": "h", **place}}


def log_axis(title: str, values: Iterable[float], unit: str = "") -> dict[str, Any]:
    """Return a logarithmic axis that shows all of some values, in their unit."""
    return {"type": "log", "title": {"text": title}, **log_ticks(values, unit)}


def scatter(name: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return a line with a mark at each point, unless ``mode`` says otherwise."""
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y), **more}


def short_names(names: Sequence[str]) -> list[str]:
    """Leave the words out with which all of several names begin or end: they stand above all of them."""
    words = [name.split(" ") for name in names]
    least = min(map(len, words), default=0)
    start = end = 0
    while start < least and len({it[start] for it in words}) == 1:
        start += 1
    while start + end < least and len({it[-1 - end] for it in words}) == 1:
        end += 1
    short = [" ".join(it[start : len(it) - end]).strip(",:") for it in words]
    return short if all(short) else list(names)
