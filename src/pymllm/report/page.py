"""One static page out of runs: everything in it, nothing loaded from anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from pymllm import __version__
from pymllm.errors import UsageError
from pymllm.report.blocks import PALETTE, Plot, Section
from pymllm.report.faults_section import make_faults_section
from pymllm.report.gpu_section import make_gpu_section
from pymllm.report.hit_rate_section import make_hit_rate_section
from pymllm.report.latency_section import make_latency_section
from pymllm.report.laws_section import make_laws_section
from pymllm.report.loading import LoadedRuns, Run
from pymllm.report.machines_section import make_machines_section, make_runs_section
from pymllm.report.memory_section import make_memory_section
from pymllm.report.peers_section import make_peers_section
from pymllm.report.situations_section import make_situations_section
from pymllm.report.soak_section import make_soak_section
from pymllm.report.trends_section import make_trends_section

__all__ = ["INSTALL", "SECTIONS", "make_page", "make_sections"]

INSTALL = "pip install 'pymllm[report]'"
"""What brings the packages that a page needs."""

SECTIONS: tuple[Callable[[Sequence[Run]], Section | None], ...] = (
    make_laws_section,
    make_faults_section,
    make_situations_section,
    make_soak_section,
    make_trends_section,
    make_peers_section,
    make_gpu_section,
    make_hit_rate_section,
    make_latency_section,
    make_memory_section,
    make_machines_section,
)
"""In the order of the page; the list of runs comes last."""


def make_sections(loaded: LoadedRuns) -> list[Section]:
    """Return every section that the runs have something for, and the list of the runs."""
    found = [section for make in SECTIONS if (section := make(loaded.runs)) is not None]
    return [*found, make_runs_section(loaded, {section.id for section in found})]


def make_page(loaded: LoadedRuns, title: str = "pymllm", now: datetime | None = None) -> str:
    """Make the page.

    Parameters
    ----------
    loaded : LoadedRuns
        What it is about.
    title : str
        Its head line.
    now : datetime, optional
        When it is made, by default now.

    Returns
    -------
    str
        HTML that opens offline: styles, scripts, Plotly and the programs of violations are in it, 5 MB.

    Raises
    ------
    UsageError
        Plotly or jinja2 is not installed; says what brings them.
    """
    environment, plotly = _load_packages()
    sections = make_sections(loaded)
    plots = {
        block.id: block.plain for section in sections for block in section.blocks if isinstance(block, Plot)
    }
    made = (now or datetime.now(UTC)).astimezone(UTC)
    page: str = environment.get_template("page.html.j2").render(
        title=title,
        version=__version__,
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        sections=sections,
        tiles=[tile for section in sections for tile in section.tiles],
        runs=loaded.runs,
        machines={run.machine.fingerprint for run in loaded.runs if run.machine is not None},
        plots=_script_safe(json.dumps(plots, allow_nan=False)),
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


def _script_safe(text: str) -> str:
    """Write JSON so that no string in it can end the element that it stands in."""
    return text.replace("<", "\\u003c")
