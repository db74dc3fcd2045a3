"""GPU benchmarks: each case beside torch's own calls and a plain copy, and its goals."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.report.blocks import Section, Tile
from pymllm.report.documents import GpuBenchmarksDocument, GpuCase
from pymllm.report.loading import Run, documents_of
from pymllm.report.quantities import show, show_count, show_time
from pymllm.report.tables import GOOD, QUIET, UNKNOWN, Cell, Column, Table, make_table, number


def make_gpu_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the results of each run on a GPU, the newest first; ``None`` where there is none."""
    found = [(it, run) for it, run in documents_of(reversed(runs), GpuBenchmarksDocument) if it.results]
    if not found:
        return None
    goals = [goal for case in found[0][0].results for goal in case.goals]
    met = sum(goal.is_met for goal in goals)
    tone = GOOD if met == len(goals) else UNKNOWN
    return Section(
        "gpu",
        "GPU benchmarks",
        "Times between two events on the device, medians over samples, with everybody taking turns in one "
        "run: ours, torch's own calls, and a plain copy of as many bytes, which is what the card can do. "
        "The speed is that at which ours moves the bytes of the case. A goal is a ratio of two of these "
        "times.",
        [_table(document, run) for document, run in found],
        [Tile(f"{met} of {len(goals)}", "goals met on the GPU", tone)] if goals else (),
    )


def _table(document: GpuBenchmarksDocument, run: Run) -> Table:
    machine = document.machine
    driver = machine.driver or "unknown"
    columns = [
        Column("case", lambda it: it.name),
        Column("sizes and types", lambda it: ", ".join(f"{key} {value}" for key, value in it.case.items())),
        Column("mode", lambda it: it.mode),
        Column("times, median", _times),
        number("speed of ours", lambda it: f"{show_count(round(it.gigabytes_per_second, 1))} GB/s"),
        Column("goals", _goals),
    ]
    caption = f"{show_time(run.time)} UTC: {machine.device}, driver {driver}, torch {machine.torch}"
    return make_table(caption, document.results, columns)


def _times(it: GpuCase) -> str:
    return ", ".join(f"{who} {show(time.median_us, 'us')}" for who, time in it.times.items())


def _goals(it: GpuCase) -> Cell:
    if not it.goals:
        return Cell("none", QUIET)
    words = "; ".join(
        f"{'✓ met' if goal.is_met else '✗ missed'}: {goal.what} {show_count(goal.value)}, "
        f"{'at least' if goal.is_least else 'at most'} {show_count(goal.bound)}"
        for goal in it.goals
    )
    return Cell(words, GOOD if all(goal.is_met for goal in it.goals) else UNKNOWN)
