"""The table of a replay: every number with its unit, one column per cache, plain ASCII."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from pymllm.cli.drawn_tables import table_console
from pymllm.cli.program import escaped
from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_result import ReplayResult
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import CacheTime, EngineReport
from pymllm.workloads.serial import SerialReport

__all__ = ["make_text"]

_Rows = list[tuple[str, str]]
_Sections = list[tuple[str, _Rows]]


def make_text(result: ReplayResult, *, width: int | None = None, styled: bool = False) -> str:
    """Lay a result out as text.

    Parameters
    ----------
    result : ReplayResult
        Of a finished or broken-off replay.
    width : int, optional
        Columns of the terminal; ``None`` for as many as the table needs.
    styled : bool
        Mark headings with the terminal's bold.

    Returns
    -------
    str
        Lines, the last one ended. Without a width nothing is wrapped or cut.
    """
    console = table_console(width, styled=styled)
    with console.capture() as captured:
        console.print(Text(_heading(result)), soft_wrap=True)
        if result.runs:
            console.print(_table(result))
        if result.violation is not None:
            found = result.violation
            verdict = f"{found.law}  VIOLATED by {found.cache}\n    {found.message}"
            console.print(Text(verdict, style="bold" if styled else ""), soft_wrap=True)
        if result.interruption is not None:
            console.print(Text(_how_far(result), style="bold" if styled else ""), soft_wrap=True)
    # The table pads its last column, which nobody wants to see in a file.
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _heading(result: ReplayResult) -> str:
    plan = result.plan
    versions = "  ".join(f"{name} {version}" for name, version in result.versions.items())
    seed = f", seed {plan.seed}" if plan.is_named else ""
    return f"{versions}\n{plan.mode} replay of {escaped(plan.workload)}: {result.requests:,} requests{seed}\n"


def _how_far(result: ReplayResult) -> str:
    """Say which column an interrupt cut short, and what was not begun."""
    last = result.runs[-1]
    ended = last.requests + last.skipped if isinstance(last, SerialReport) else last.finished + last.rejected
    left = result.plan.caches[len(result.runs) :]
    unplayed = f"; not played: {', '.join(left)}" if left else ""
    return f"interrupted: {last.config.cache} after {ended:,} of {result.requests:,} requests{unplayed}"


def _table(result: ReplayResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    columns = [_sections(report, result.plan) for report in result.runs]
    for report in result.runs:
        table.add_column(report.config.cache, justify="right", overflow="fold")
    for place, (title, rows) in enumerate(columns[0]):
        table.add_row(title, style="bold")
        for line, (label, _) in enumerate(rows):
            table.add_row(f"  {label}", *(column[place][1][line][1] for column in columns))
    return table


def _sections(report: EngineReport | SerialReport, plan: ReplayPlan) -> _Sections:
    if isinstance(report, SerialReport):
        return _serial_sections(report, plan)
    return _engine_sections(report, plan)


def _engine_sections(report: EngineReport, plan: ReplayPlan) -> _Sections:
    requests = [
        ("requests", f"{report.requests:,}"),
        ("finished", f"{report.finished:,}"),
        ("rejected, as they can never fit", f"{report.rejected:,}"),
        ("retractions", f"{report.retractions:,}"),
    ]
    if plan.has_blocks:
        requests.append(("pauses", "no pauses" if report.pauses is None else f"{report.pauses:,}"))
    lost = report.dead_window_tokens
    hits = [*_hits(report), ("hits lost to dead windows", "no window" if lost is None else _tokens(lost))]
    if plan.has_states:
        hits.append(("hits lost for want of a state", _of_states(report.stateless_tokens, "token")))
    return [
        ("requests", requests),
        ("hits", hits),
        ("memory", _engine_memory(report, plan)),
        (_TIMES_TITLE, _cache_times(report)),
        ("run", _engine_run(report)),
        ("configuration", _engine_configuration(report.config, plan)),
    ]


def _engine_memory(report: EngineReport, plan: ReplayPlan) -> _Rows:
    rows = [
        *_evictions(report),
        ("peak tokens held", _tokens(report.peak_tokens_held)),
        *_peaks(report),
    ]
    if report.config.sliding_window_size is not None:
        rows.insert(2, ("evicted window halves", _tokens(report.evicted_swa_tokens)))
    if plan.has_states:
        rows += [
            ("peak states held", _of_states(report.peak_states_held, "state")),
            ("evicted states", _of_states(report.evicted_states, "state")),
            ("states left out, as no slot was free", _of_states(report.skipped_snapshots, "state")),
        ]
    return rows


def _engine_run(report: EngineReport) -> _Rows:
    config = report.config
    return [
        ("iterations", f"{report.iterations:,}"),
        ("virtual time", f"{report.virtual_seconds:,.1f} s"),
        ("wall time", f"{report.wall_seconds:,.2f} s"),
        ("contents compared", _tokens(report.content_tokens) if config.content_check else "off"),
        ("invariants walked", _walks(report.invariant_checks, config.check_every)),
    ]


def _engine_configuration(config: EngineConfig, plan: ReplayPlan) -> _Rows:
    window = config.sliding_window_size
    rows = [
        ("page size", _tokens(config.page_size)),
        ("window", "none" if window is None else _tokens(window)),
        ("capacity", _rounded(config.capacity, plan.capacity)),
        ("at most running", f"{config.max_running:,} requests"),
        ("prefill chunk", _tokens(config.chunk_tokens)),
        ("virtual time of an iteration", f"{config.iteration_ms:g} ms"),
    ]
    if config.swa_capacity is not None:
        asked = plan.capacity if plan.swa_capacity is None else plan.swa_capacity
        rows.insert(3, ("capacity of the window half", _rounded(config.swa_capacity, asked)))
    if plan.has_states:
        rows.insert(3, ("capacity for states", _of_states(config.track_slots, "state")))
    if plan.has_blocks:
        rows += _of_blocks(config)
    return rows


def _of_blocks(config: EngineConfig) -> _Rows:
    """Say what only blocks have; a column of another cache has none of it."""
    if config.mamba_chunk_size is None or config.paused_capacity is None or config.eviction_policy is None:
        values = ("no blocks",) * 3
    else:
        policy = config.eviction_policy.replace("_", "-")
        values = (_tokens(config.mamba_chunk_size), policy, _tokens(config.paused_capacity))
    labels = ("a state after every", "eviction policy", "capacity for paused requests")
    return list(zip(labels, values, strict=True))


def _serial_sections(report: SerialReport, plan: ReplayPlan) -> _Sections:
    config = report.config
    requests = [
        ("requests", f"{report.requests:,}"),
        ("skipped, above half the capacity", f"{report.skipped:,}"),
    ]
    times = [
        *_cache_times(report),
        ("allocator", _times(report.allocator)),
        ("all of them", _times(report.total)),
        ("all of them, mean", f"{report.total_mean_us:,.1f} us"),
    ]
    run = [
        ("wall time", f"{report.wall_seconds:,.2f} s"),
        ("invariants walked", _walks(report.invariant_checks, config.check_every)),
    ]
    configuration = [
        ("page size", _tokens(config.page_size)),
        ("capacity", _rounded(config.capacity, plan.capacity)),
        ("ownership checks", "on" if config.check_ownership else "off"),
    ]
    return [
        ("requests", requests),
        ("hits", _hits(report)),
        ("memory", [*_evictions(report), *_peaks(report)]),
        (_TIMES_TITLE, times),
        ("run", run),
        ("configuration", configuration),
    ]


_TIMES_TITLE = "in the cache per request, median / p99"


def _hits(report: EngineReport | SerialReport) -> _Rows:
    return [
        ("prompt tokens", _tokens(report.prompt_tokens)),
        ("token hit rate", f"{100 * report.token_hit_rate:.1f} %"),
        ("ceiling of an unlimited cache", f"{100 * report.ceiling_hit_rate:.1f} %"),
    ]


def _evictions(report: EngineReport | SerialReport) -> _Rows:
    return [("evictions", f"{report.evict_calls:,} calls"), ("evicted", _tokens(report.evicted_tokens))]


def _peaks(report: EngineReport | SerialReport) -> _Rows:
    return [
        ("peak tokens stored", _tokens(report.peak_tokens_stored)),
        ("peak memory of the process", _mebibytes(report.peak_rss_bytes)),
    ]


def _cache_times(report: EngineReport | SerialReport) -> _Rows:
    return [
        ("match", _times(report.match)),
        ("insert", _times(report.insert)),
        ("evict", _times(report.evict)),
        ("lock", _times(report.lock)),
    ]


def _tokens(count: int) -> str:
    return _counted(count, "token")


def _of_states(count: int | None, thing: str) -> str:
    """Say what a column of a cache without states has in a row about them."""
    return "no states" if count is None else _counted(count, thing)


def _counted(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count:,} {thing}s"


def _mebibytes(count: int | None) -> str:
    return "unknown on this platform" if count is None else f"{count / 2**20:,.0f} MiB"


def _times(time: CacheTime) -> str:
    return f"{time.median_us:,.1f} / {time.p99_us:,.1f} us"


def _walks(count: int, every: int) -> str:
    return f"{count:,} times" if every else "off"


def _rounded(used: int, asked: int | None) -> str:
    return _tokens(used) if used == asked else f"{_tokens(used)} ({asked:,} asked)"
