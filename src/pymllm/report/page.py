"""A static page made from runs, self-contained and without any external resource."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from pymllm import __version__
from pymllm.errors import UsageError
from pymllm.report.blocks import PALETTE, Plot
from pymllm.report.loading import LoadedRuns
from pymllm.report.sections import make_sections, tell_all
from pymllm.report.summary import headline

INSTALL = "pip install 'pymllm[report]'"
"""The command that installs the packages needed for a page."""


def make_page(loaded: LoadedRuns, title: str = "pymllm", now: datetime | None = None) -> str:
    """Return the page as 5 MB of offline HTML; raise `UsageError` if Plotly or jinja2 is missing."""
    environment, plotly = _load_packages()
    sections = make_sections(loaded)
    plots = {
        block.id: block.plain for section in sections for block in section.blocks if isinstance(block, Plot)
    }
    made = (now or datetime.now(UTC)).astimezone(UTC)
    page: str = environment.get_template("page.html.j2").render(
        title=title,
        verdict=headline(tell_all(loaded.runs)),
        version=__version__,
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        sections=sections,
        tiles=[(tile, section.id) for section in sections for tile in section.tiles],
        runs=loaded.runs,
        machines={run.machine.fingerprint for run in loaded.runs if run.machine is not None},
        plots=json.dumps(plots, allow_nan=False).replace("<", "\\u003c"),  # no string ends its element
        plotly=plotly,
        palette=PALETTE,
        style=_asset("page.css"),
        script=_asset("page.js"),
    )
    return page


def _load_packages() -> tuple[Any, str]:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError as error:
        package = str(error.name).split(".")[0]
        raise UsageError(f"a report needs {package}, which is not installed; {INSTALL} brings it") from None
    environment = Environment(
        loader=PackageLoader("pymllm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment, str(get_plotlyjs())


def _asset(name: str) -> str:
    return (files("pymllm.report") / "templates" / name).read_text(encoding="utf-8")
