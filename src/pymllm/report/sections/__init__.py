"""The sections of a page, by what they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymllm.report.blocks import Section
from pymllm.report.loading import LoadedRuns, Run
from pymllm.report.sections.campaigns import make_faults_section, make_soak_section
from pymllm.report.sections.figures import make_gpu_section, make_peers_section, make_trends_section
from pymllm.report.sections.machines import make_machines_section, make_memory_section, make_runs_section
from pymllm.report.sections.replays import make_hit_rate_section, make_latency_section
from pymllm.report.sections.searches import make_laws_section, make_situations_section

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
