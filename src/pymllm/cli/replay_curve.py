"""The table of a grid of replays: hit rate over capacity, one column per cache, beside the ceilings."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.cli.program import escaped
from pymllm.cli.replay_result import Ceiling, ReplayGrid, ReplayResult
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.serial import SerialReport

__all__ = ["make_curves"]

_UNKNOWN = "-"


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
    for page_size in dict.fromkeys(page_size for page_size, _ in _points(grid)):
        parts.append(f"\ntoken hit rate, pages of {page_size:,}\n\n{_table(grid, page_size)}")
    for one in grid.results:
        if one.violation is not None:
            where = f"page size {one.plan.page_size}, capacity {one.plan.capacity}"
            found = one.violation
            parts.append(f"{found.law}  VIOLATED by {found.cache} ({where})\n    {found.message}\n")
    if grid.interruption is not None:
        parts.append("interrupted: what has a dash was not done\n")
    return "".join(parts)


def _points(grid: ReplayGrid) -> dict[tuple[int, int], Ceiling | None]:
    """Return page sizes and capacities as used, each with its ceiling where that is known."""
    points: dict[tuple[int, int], Ceiling | None] = dict.fromkeys(map(_point_of, grid.results))
    points |= {(one.page_size, one.capacity): one for one in grid.ceilings}
    return points


def _point_of(result: ReplayResult) -> tuple[int, int]:
    plan = result.plan
    assert plan.capacity is not None  # it is settled
    return plan.page_size, plan.capacity // plan.page_size * plan.page_size


def _table(grid: ReplayGrid, page_size: int) -> str:
    caches = list(dict.fromkeys(one.plan.caches[0] for one in grid.results))
    head = ("capacity", *caches, "Belady", "unlimited", "evicted", "left out")
    rows = [
        _row(grid, point, ceiling, caches)
        for point, ceiling in _points(grid).items()
        if point[0] == page_size
    ]
    if not any(row[-1] != "0" for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    )
    return "".join(f"{line}\n" for line in lines)


def _row(
    grid: ReplayGrid, point: tuple[int, int], ceiling: Ceiling | None, caches: Sequence[str]
) -> tuple[str, ...]:
    here = {one.plan.caches[0]: one for one in grid.results if _point_of(one) == point}
    evicted = [run.evicted_tokens for one in here.values() for run in one.runs]
    belady, unlimited = (
        (None, None) if ceiling is None else (ceiling.belady_hit_rate, ceiling.unlimited_hit_rate)
    )
    return (
        f"{point[1]:,}",
        *(_rate(here[cache]) if cache in here else _UNKNOWN for cache in caches),
        _UNKNOWN if belady is None else _percent(belady),
        _UNKNOWN if unlimited is None else _percent(unlimited),
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
