"""The table of a grid of replays: hit rate over capacity, one column per cache, beside the ceilings."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.cli.program import escaped
from pymllm.cli.replay_result import Ceiling, ReplayGrid, ReplayResult
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.serial import SerialReport

__all__ = ["make_curves"]


def make_curves(grid: ReplayGrid) -> str:
    """Lay a grid out as text, a table for each page size.

    Parameters
    ----------
    grid : ReplayGrid
        At least one result.

    Returns
    -------
    str
        Lines, the last one ended; each violation is named below. A table says how many requests are left out
        where any are.
    """
    plan = grid.results[0].plan
    versions = "  ".join(f"{name} {version}" for name, version in grid.results[0].versions.items())
    seed = f", seed {plan.seed}" if plan.is_named else ""
    requests = max(one.requests for one in grid.results)
    parts = [f"{versions}\n{plan.mode} replay of {escaped(plan.workload)}: {requests:,} requests{seed}\n"]
    for page_size in dict.fromkeys(ceiling.page_size for ceiling in grid.ceilings):
        parts.append(f"\ntoken hit rate, pages of {page_size:,}\n\n{_table(grid, page_size)}")
    for one in grid.results:
        if one.violation is not None:
            where = f"page size {one.plan.page_size}, capacity {one.plan.capacity}"
            found = one.violation
            parts.append(f"{found.law}  VIOLATED by {found.cache} ({where})\n    {found.message}\n")
    return "".join(parts)


def _table(grid: ReplayGrid, page_size: int) -> str:
    ceilings = [one for one in grid.ceilings if one.page_size == page_size]
    caches = list(dict.fromkeys(one.plan.caches[0] for one in grid.results))
    head = ("capacity", *caches, "Belady", "unlimited", "evicted", "left out")
    rows = [_row(grid, ceiling, caches) for ceiling in ceilings]
    if not any(row[-1] != "0" for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    )
    return "".join(f"{line}\n" for line in lines)


def _row(grid: ReplayGrid, ceiling: Ceiling, caches: Sequence[str]) -> tuple[str, ...]:
    here = {
        one.plan.caches[0]: one
        for one in grid.results
        if one.plan.page_size == ceiling.page_size
        and one.plan.capacity is not None
        and one.plan.capacity // one.plan.page_size * one.plan.page_size == ceiling.capacity
    }
    evicted = [run.evicted_tokens for one in here.values() for run in one.runs]
    return (
        f"{ceiling.capacity:,}",
        *(_rate(here[cache]) for cache in caches),
        "-" if ceiling.belady_hit_rate is None else _percent(ceiling.belady_hit_rate),
        _percent(ceiling.unlimited_hit_rate),
        f"{max(evicted, default=0):,}",
        f"{max((_left_out(run) for one in here.values() for run in one.runs), default=0):,}",
    )


def _left_out(run: EngineReport | SerialReport) -> int:
    """Count the requests that are in no rate, since they are too long for this capacity."""
    return run.skipped if isinstance(run, SerialReport) else run.rejected


def _rate(result: ReplayResult) -> str:
    return _percent(result.runs[0].token_hit_rate) if result.runs else "violated"


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
