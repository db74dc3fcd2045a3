"""A replay as text: a column for each cache, or hit rates over capacity for a grid of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymllm.cli.output import escaped
from pymllm.cli.tables import draw, make_legend, make_table
from pymllm.documents.replays import (
    CacheTime,
    CeilingRow,
    ReplayConfig,
    ReplayDocument,
    ReplayRun,
    column_of,
)
from pymllm.replay.plan import ReplayPlan
from pymllm.report.quantities import count_of

if TYPE_CHECKING:
    from rich.table import Table

    from pymllm.replay.cells import Replayed
    from pymllm.replay.grid import ReplayGrid

# -- one replay ----------------------------------------------------------------------------------------------

_Rows = list[tuple[str, str]]
_Sections = list[tuple[str, _Rows]]


def make_text(result: Replayed) -> str:
    """Lay a replay out as text; outside of a terminal nothing is wrapped or cut."""
    document = result.document
    parts: list[str | Table | tuple[str, str]] = [_heading(document)]
    if document.runs:
        parts += [_table(result), "", make_legend(_legend(result.plan)), ""]
    if document.violation is not None:
        found = document.violation
        parts.append((f"{found.law}  VIOLATED by {found.cache}\n    {found.message}", "bold"))
    if document.interrupted:
        parts.append((_how_far(result), "bold"))
    return draw(*parts, fits_terminal=True)


def _legend(plan: ReplayPlan) -> dict[str, str]:
    """Explain the words of the table that are no field's terms."""
    of_engine = {
        "retractions": "running requests sent back to the queue because memory ran out",
        "peak tokens held": "by requests and the cache; peak tokens stored: by the cache",
        "virtual time": "of the simulated engine, which computes nothing",
    }
    return {
        "token hit rate": "part of the prompt tokens that the cache had",
        "ceiling": "hit rate of a cache without a limit",
        **({} if plan.mode == "serial" else of_engine),
        "median / p99": "half, and 99 % of the requests, spent less time in these calls",
    }


def _heading(document: ReplayDocument) -> str:
    versions = "  ".join(f"{name} {version}" for name, version in document.versions.items())
    it = document.workload
    seed = f", seed {it.seed}" if it.kind == "named" else ""
    return f"{versions}\n{document.mode} replay of {escaped(it.name)}: {it.requests:,} requests{seed}\n"


def _how_far(result: Replayed) -> str:
    """Say which column an interrupt cut short, and what was not begun."""
    runs, last = result.document.runs, result.document.runs[-1]
    begun = last.requests if last.finished is None else last.finished
    ended = begun + (last.skipped or 0) + (last.rejected or 0)
    left = [column_of(*column) for column in result.plan.columns[len(runs) :]]
    unplayed = f"; not replayed: {', '.join(left)}" if left else ""
    total = result.document.workload.requests
    return f"interrupted: {last.config.column} after {ended:,} of {total:,} requests{unplayed}"


def _table(result: Replayed) -> Table:
    runs = result.document.runs
    table = make_table("")
    for run in runs:
        table.add_column(run.config.column, justify="right", overflow="fold")
    columns = [_sections(run, result.plan) for run in runs]
    for place, (title, rows) in enumerate(columns[0]):
        table.add_row(title, style="bold")
        for line, (label, _) in enumerate(rows):
            table.add_row(f"  {label}", *(column[place][1][line][1] for column in columns))
    return table


def _sections(run: ReplayRun, plan: ReplayPlan) -> _Sections:
    """Return what a column says, with the label of each line; all columns of a replay have the same ones."""
    it, config, is_serial = run, run.config, plan.mode == "serial"
    requests = [("requests", f"{it.requests:,}")]
    if is_serial:
        requests.append(("skipped: above half the capacity", f"{it.skipped:,}"))
    else:
        requests += [
            ("finished", f"{it.finished:,}"),
            ("rejected: larger than the pool", f"{it.rejected:,}"),
            ("retractions", f"{it.retractions:,}"),
        ]
    if plan.has_blocks:
        requests.append(("pauses", "no pauses" if it.pauses is None else f"{it.pauses:,}"))
    hits = [
        ("prompt tokens", _count(it.prompt_tokens)),
        ("token hit rate", _percent(it.token_hit_rate)),
        ("ceiling of an unlimited cache", _percent(it.ceiling_hit_rate)),
    ]
    if not is_serial:
        hits.append(("hits lost: window evicted", _count(it.dead_window_tokens, none="no window")))
    if plan.has_states:
        hits.append(("hits lost: no cached state", _count(it.stateless_tokens, none="no states")))
    times = [(name, _times(getattr(it, name))) for name in ("match", "insert", "evict", "lock")]
    if is_serial:
        times += [
            ("allocator", _times(it.allocator)),
            ("all of them", _times(it.total)),
            ("all of them, mean", f"{it.total_mean_us:,.1f} us"),
        ]
    ran = [("wall time", f"{it.wall_seconds:,.2f} s")]
    if not is_serial:
        ran = [
            ("iterations", f"{it.iterations:,}"),
            ("virtual time", f"{it.virtual_seconds:,.1f} s"),
            *ran,
            ("contents compared", _count(it.content_tokens) if config.content_check else "off"),
        ]
    walks = f"{it.invariant_checks:,} times" if config.check_every else "off"
    return [
        ("requests", requests),
        ("hits", hits),
        ("memory", _memory(it, plan)),
        ("in the cache per request, median / p99", times),
        ("run", [*ran, ("invariants walked", walks)]),
        ("configuration", _configuration(config, plan)),
    ]


def _memory(it: ReplayRun, plan: ReplayPlan) -> _Rows:
    rss = it.peak_rss_bytes
    memory = "unknown on this platform" if rss is None else f"{rss / 2**20:,.0f} MiB"
    rows = [("evictions", f"{it.evict_calls:,} calls"), ("evicted", _count(it.evicted_tokens))]
    if it.config.sliding_window_size is not None:
        rows.append(("evicted window halves", _count(it.evicted_swa_tokens)))
    if plan.mode != "serial":
        rows.append(("peak tokens held", _count(it.peak_tokens_held)))
    rows += [
        ("peak tokens stored", _count(it.peak_tokens_stored)),
        ("peak memory of the process", memory),
    ]
    if plan.has_states:
        rows += [
            (label, _count(count, "state", none="no states"))
            for label, count in (
                ("peak states held", it.peak_states_held),
                ("evicted states", it.evicted_states),
                ("states not kept: no free slot", it.skipped_snapshots),
            )
        ]
    return rows


def _configuration(config: ReplayConfig, plan: ReplayPlan) -> _Rows:
    rows = [("page size", _count(config.page_size))]
    if plan.mode == "serial":
        return [
            *rows,
            ("capacity", _rounded(config.capacity, plan.capacity)),
            ("ownership checks", "on" if config.check_ownership else "off"),
            *_policy(config, plan),
        ]
    rows += [
        ("window", _count(config.sliding_window_size, none="none")),
        ("capacity", _rounded(config.capacity, plan.capacity)),
    ]
    if plan.has_states:
        rows.append(("capacity for states", _count(config.track_slots, "state", none="no states")))
    if config.swa_capacity is not None:
        asked = plan.capacity if plan.swa_capacity is None else plan.swa_capacity
        rows.append(("capacity of the window half", _rounded(config.swa_capacity, asked)))
    rows += [
        ("at most running", f"{config.max_running:,} requests"),
        ("prefill chunk", _count(config.chunk_tokens)),
        ("virtual time of an iteration", f"{config.iteration_ms:g} ms"),
    ]
    if plan.has_blocks:  # a column of another cache has none of it
        rows += [
            ("a state after every", _count(config.mamba_chunk_size, none="no blocks")),
            ("capacity for paused requests", _count(config.paused_capacity, none="no blocks")),
        ]
    return [*rows, *_policy(config, plan)]


def _policy(config: ReplayConfig, plan: ReplayPlan) -> _Rows:
    if not (plan.has_blocks or plan.eviction_policies):
        return []
    own = "evicts nothing" if config.cache == "chunk" else "lru"
    return [("eviction policy", (config.eviction_policy or own).replace("_", "-"))]


def _count(count: int | None, thing: str = "token", none: str = "unknown") -> str:
    return none if count is None else count_of(count, thing)


def _times(time: CacheTime | None) -> str:
    return "unknown" if time is None else f"{time.median_us:,.1f} / {time.p99_us:,.1f} us"


def _rounded(used: int, asked: int | None) -> str:
    return _count(used) if used == asked else f"{_count(used)} ({asked:,} asked)"


# -- hit rate over capacity ----------------------------------------------------------------------------------

_UNKNOWN = "-"


def make_curves(grid: ReplayGrid) -> str:
    """Lay a grid out as text, a table of hit rates over capacity for each page size, violations below."""
    parts = [_heading(grid.document)]
    for page_size in dict.fromkeys(page_size for page_size, _ in _points(grid)):
        parts.append(f"\ntoken hit rate, pages of {page_size:,}\n\n{_curve(grid, page_size)}")
        parts.append(f"\neach run, pages of {page_size:,}\n\n{_runs(grid, page_size)}")
    legend = {
        "capacity": "KV slots; the column of a cache has its hit rate there",
        "Belady": "highest hit rate of any cache of this capacity; known without an engine only",
        "unlimited": "hit rate of a cache without a limit",
        "left out": "most requests that were too large for a cache",
        "evicted": "tokens that the cache evicted",
        "match, insert, evict": "microseconds of a request in these calls, median / p99",
    }
    parts.append(f"\n{draw(make_legend(legend), '', fits_terminal=True)}")
    for one in grid.results:
        found = one.document.violation
        if found is not None:
            where = f"page size {one.plan.page_size}, capacity {one.plan.capacity}"
            parts.append(f"{found.law}  VIOLATED by {found.cache} ({where})\n    {found.message}\n")
    if grid.interruption is not None:
        parts.append("interrupted: a dash marks what was not replayed\n")
    return "".join(parts)


def _points(grid: ReplayGrid) -> dict[tuple[int, int], CeilingRow | None]:
    """Return page sizes and capacities as used, each with its ceiling where that is known."""
    points: dict[tuple[int, int], CeilingRow | None] = dict.fromkeys(map(_point_of, grid.results))
    points |= {(one.page_size, one.capacity): one for one in grid.ceilings}
    return points


def _point_of(result: Replayed) -> tuple[int, int]:
    plan = result.plan
    assert plan.capacity is not None  # it is settled
    return plan.page_size, plan.capacity // plan.page_size * plan.page_size


def _curve(grid: ReplayGrid, page_size: int) -> str:
    caches = list(dict.fromkeys(column_of(*one.plan.columns[0]) for one in grid.results))
    head = ("capacity", *caches, "Belady", "unlimited", "left out")
    rows = [
        _row(grid, point, ceiling, caches)
        for point, ceiling in _points(grid).items()
        if point[0] == page_size
    ]
    if not any(row[-1] != "0" for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return draw(make_table(*head, right=head, gap=2, rows=rows), fits_terminal=True)


def _row(
    grid: ReplayGrid, point: tuple[int, int], ceiling: CeilingRow | None, caches: Sequence[str]
) -> tuple[str, ...]:
    here = {
        column_of(*one.plan.columns[0]): one.document.runs for one in grid.results if _point_of(one) == point
    }
    runs = [run for found in here.values() for run in found]
    rates = {cache: _percent(it[0].token_hit_rate) if it else "violated" for cache, it in here.items()}
    belady, unlimited = (ceiling.belady_hit_rate, ceiling.unlimited_hit_rate) if ceiling else (None, None)
    return (
        f"{point[1]:,}",
        *(rates.get(cache, _UNKNOWN) for cache in caches),
        _UNKNOWN if belady is None else _percent(belady),
        _UNKNOWN if unlimited is None else _percent(unlimited),
        f"{max((run.skipped or run.rejected or 0 for run in runs), default=0):,}",
    )


def _runs(grid: ReplayGrid, page_size: int) -> str:
    """Lay out what each run with pages of one size evicted, and how long a request took."""
    calls = ("match", "insert", "evict")
    rows = [
        (
            column_of(*one.plan.columns[0]),
            f"{run.config.capacity:,}",
            f"{run.evicted_tokens:,}",
            *(_times(getattr(run, call)).removesuffix(" us") for call in calls),
        )
        for one in grid.results
        for run in one.document.runs
        if run.config.page_size == page_size
    ]
    figures = ("capacity", "evicted", *calls)
    return draw(make_table("cache", *figures, right=figures, gap=2, rows=rows), fits_terminal=True)


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
