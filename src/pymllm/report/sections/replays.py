"""The sections of replays: every number, hit rates over capacity, and durations of operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

from pymllm.documents.replays import CacheTime, CeilingRow, ReplayDocument, ReplayRun
from pymllm.report.blocks import (
    BAD,
    PAGE,
    PALETTE,
    QUIET,
    TERMINAL,
    UNKNOWN,
    Cell,
    Choice,
    Column,
    Panel,
    Part,
    Plot,
    Table,
    Text,
    Tile,
    legend,
    log_axis,
    make_table,
    number,
    or_quiet,
    scatter,
    short_names,
)
from pymllm.report.documents import BUCKETS_PER_DOUBLING, bucket_of
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.quantities import count_of, machine_name, show, show_count, show_share
from pymllm.report.records import Histogram

# -- hit rate ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay of a workload through a cache, with the run that contains it."""

    document: ReplayDocument
    engine: ReplayRun
    run: Run

    @property
    def workload(self) -> str:
        """The title of the replayed workload, equal for all caches that replayed it."""
        it = self.document.workload
        drawn = f", seed {it.seed}" if it.kind == "named" else ""
        return f"{it.name}, {it.requests:,} requests{drawn}, {self.document.mode}"

    @property
    def cache(self) -> str:
        """The name of the cache, without its capacity."""
        it = self.engine.config
        window = "" if it.sliding_window_size is None else f", window {show_count(it.sliding_window_size)}"
        return f"{it.column}, page {it.page_size}{window}"

    @property
    def capacity(self) -> int:
        """The capacity of the cache in slots."""
        return self.engine.config.capacity

    @property
    def best(self) -> float | None:
        """The hit rate of an optimal cache, which knows the future; ``None`` if not computed."""
        return None if self._ceilings is None else self._ceilings.belady_hit_rate

    @property
    def unlimited(self) -> float | None:
        """The hit rate of an unlimited cache; ``None`` if not computed."""
        return None if self._ceilings is None else self._ceilings.unlimited_hit_rate

    @property
    def _ceilings(self) -> CeilingRow | None:
        size = self.engine.config.page_size, self.capacity
        return next((it for it in self.document.ceilings if (it.page_size, it.capacity) == size), None)


def find_replays(runs: Sequence[Run]) -> list[Replayed]:
    """Return the newest replay of each workload through each cache of each capacity, smallest first."""
    found: dict[tuple[str, str, int], Replayed] = {}
    for document, run in documents_of(runs, ReplayDocument):
        for engine in document.runs:
            it = Replayed(document, engine, run)
            found[it.workload, it.cache, it.capacity] = it
    return [found[key] for key in sorted(found)]


def make_hit_rate_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of hit rates, with plots of workloads replayed at several capacities."""
    for document, run in documents_of(runs, ReplayDocument):
        yield from (Text(line, only=TERMINAL) for line in _heading(document))
        yield from _tables(document, run) if document.runs else ()
        if (broken := document.violation) is not None:
            yield Text(f"{broken.law}  VIOLATED by {broken.cache} in {run.source}: {broken.message}", BAD)
        if document.interrupted:
            yield Text(f"The replay in {run.source} was interrupted: its numbers are of a part.", UNKNOWN)
    replays = find_replays(runs)
    by_workload = grouped(replays, lambda it: it.workload)
    curves = {name: its for name, its in by_workload.items() if len({it.capacity for it in its}) > 1}
    if curves:
        yield Plot(
            "plot-hit-rate",
            "Hit rate over capacity",
            "Share of the prompts' tokens that each cache served, over its capacity in slots, with the "
            "ceiling of an unlimited cache as a dashed line.",
            [_choice(name, its) for name, its in curves.items()],
            "workload",
        )
    if replays:
        yield _table(replays)
        yield Tile(show_count(len(replays)), "replays")


def _heading(document: ReplayDocument) -> tuple[str, str]:
    versions = "  ".join(f"{name} {version}" for name, version in document.versions.items())
    it = document.workload
    seed = f", seed {it.seed}" if it.kind == "named" else ""
    return versions, f"{document.mode} replay of {it.name}: {it.requests:,} requests{seed}"


def _choice(name: str, replays: Sequence[Replayed]) -> Choice:
    traces: list[dict[str, Any]] = []
    for place, (cache, its) in enumerate(grouped(replays, lambda it: it.cache).items()):
        color = PALETTE[place % len(PALETTE)]
        measured = [(it.capacity, it.engine.token_hit_rate) for it in its]
        ceiling = [(it.capacity, it.engine.ceiling_hit_rate) for it in its]
        marks = {"symbol": "line-ew-open", "size": 12, "color": color}
        traces += [
            _line(cache, measured, {"color": color}) | {"legendgroup": cache, "marker": {"color": color}},
            _line(f"{cache}: ceiling", ceiling, {"color": color, "dash": "dash"})
            | {"legendgroup": cache, "marker": marks},
        ]
    known = {(it.engine.config.page_size, it.capacity): it.best for it in replays}
    best_rates = sorted((*size, best) for size, best in known.items() if best is not None)
    for page, sizes in grouped(best_rates, lambda it: it[0]).items():
        best = [(capacity, rate) for _, capacity, rate in sizes]
        traces.append(_line(f"best choice (Belady), page {page}", best, {"dash": "dot"}))
    layout = {
        "xaxis": log_axis("capacity, KV slots (tokens)", [it.capacity for it in replays]),
        "yaxis": {"title": {"text": "hit rate, % of prompt tokens"}, "range": [0, 101]},
        "height": 440,
        **legend(),
    }
    return Choice(name, [Panel(traces, layout)])


def _line(name: str, points: Sequence[tuple[int, float]], line: dict[str, str]) -> dict[str, Any]:
    hover = "%{x:,} slots: %{y:.1f} %<extra>%{fullData.name}</extra>"
    capacities, rates = [capacity for capacity, _ in points], [rate * 100 for _, rate in points]
    return scatter(name, capacities, rates, line=line, hovertemplate=hover)


# -- every number of a replay --------------------------------------------------------------------------------


def _of(group: str, name: str, of: Callable[[Replayed], Cell | str]) -> Column:
    return Column(name, of, is_number=True, group=group)


def _counted(group: str, name: str, field: str, missing: str = "not there", thing: str = "token") -> Column:
    """Return a column of a count, empty for caches or modes without it."""
    return _told(group, name, field, lambda count: count_of(count, thing), missing)


def _told(
    group: str, name: str, field: str, tell: Callable[[Any], str], missing: str = "not there"
) -> Column:
    """Return a column of a field as text; dots in its name lead to nested fields."""
    find = attrgetter(field)
    return _of(group, name, lambda it: or_quiet(find(it.engine), tell, missing))


def _times(time: CacheTime) -> str:
    return f"{time.median_us:,.1f} / {time.p99_us:,.1f} us"


def _rounded(used: int, asked: int | None) -> str:
    return (
        count_of(used, "token") if asked in (None, used) else f"{count_of(used, 'token')} ({asked:,} asked)"
    )


def _capacity(it: Replayed) -> str:
    asked = it.document.asked
    return _rounded(it.capacity, it.capacity if asked.page_sizes else asked.capacity)


def _swa_capacity(it: Replayed) -> Cell:
    asked, used = it.document.asked, it.engine.config.swa_capacity
    wished = used if asked.page_sizes else asked.swa_capacity or asked.capacity
    return or_quiet(used, lambda used: _rounded(used, wished), "no window")


def _of_window(it: Replayed, tokens: int | None) -> Cell:
    has_window = it.engine.config.sliding_window_size is not None
    return or_quiet(tokens if has_window else None, lambda tokens: count_of(tokens, "token"), "no window")


def _compared(it: Replayed) -> Cell:
    checked = it.engine.config.content_check
    tokens = it.engine.content_tokens
    return or_quiet(checked, lambda on: count_of(tokens or 0, "token") if on else "off", "no engine")


def _walked(it: Replayed) -> str:
    return f"{it.engine.invariant_checks:,} times" if it.engine.config.check_every else "off"


def _policy(it: Replayed) -> Cell:
    config = it.engine.config
    own = "evicts nothing" if config.cache == "chunk" else "lru"
    return or_quiet(config.eviction_policy, lambda policy: policy.replace("_", "-"), own)


def _memory(it: Replayed) -> str:
    found = it.engine.peak_rss_bytes
    return "unknown on this platform" if found is None else show(found, "bytes")


_PLAIN = "{:,}".format
_OPERATIONS = ("match", "insert", "evict", "lock")
_IN_CACHE = "in the cache per request, median / p99"
_COLUMNS = (
    _of("requests", "requests", lambda it: show_count(it.engine.requests)),
    _told("requests", "skipped: above half the capacity", "skipped", _PLAIN, "no limit"),
    _told("requests", "finished", "finished", _PLAIN, "no engine"),
    _told("requests", "rejected: larger than the pool", "rejected", _PLAIN, "no engine"),
    _told("requests", "retractions", "retractions", _PLAIN, "no engine"),
    _told("requests", "pauses", "pauses", _PLAIN, "no pauses"),
    _counted("hits", "prompt tokens", "prompt_tokens"),
    _told("hits", "token hit rate", "token_hit_rate", show_share),
    _told("hits", "ceiling of an unlimited cache", "ceiling_hit_rate", show_share),
    _of("hits", "best choice", lambda it: or_quiet(it.best, show_share, "not computed")),
    _counted("hits", "hits lost: window evicted", "dead_window_tokens", "no window"),
    _counted("hits", "hits lost: no cached state", "stateless_tokens", "no states"),
    _counted("memory", "evictions", "evict_calls", thing="call"),
    _counted("memory", "evicted", "evicted_tokens"),
    _of("memory", "evicted window halves", lambda it: _of_window(it, it.engine.evicted_swa_tokens)),
    _counted("memory", "peak tokens held", "peak_tokens_held", "no engine"),
    _counted("memory", "peak tokens stored", "peak_tokens_stored"),
    _of("memory", "peak memory of the process", _memory),
    _counted("memory", "peak states held", "peak_states_held", "no states", "state"),
    _counted("memory", "evicted states", "evicted_states", "no states", "state"),
    _counted("memory", "states not kept: no free slot", "skipped_snapshots", "no states", "state"),
    *(_told(_IN_CACHE, name, name, _times) for name in (*_OPERATIONS, "allocator")),
    _told(_IN_CACHE, "all of them", "total", _times),
    _told(_IN_CACHE, "all of them, mean", "total_mean_us", "{:,.1f} us".format),
    _told("run", "iterations", "iterations", _PLAIN, "no engine"),
    _told("run", "virtual time", "virtual_seconds", "{:,.1f} s".format, "no engine"),
    _told("run", "wall time", "wall_seconds", "{:,.2f} s".format),
    _of("run", "contents compared", _compared),
    _of("run", "invariants walked", _walked),
    _counted("configuration", "page size", "config.page_size"),
    _counted("configuration", "window", "config.sliding_window_size", "none"),
    _of("configuration", "capacity", _capacity),
    _counted("configuration", "capacity for states", "config.track_slots", "no states", "state"),
    _of("configuration", "capacity of the window half", _swa_capacity),
    _counted("configuration", "at most running", "config.max_running", "no engine", "request"),
    _counted("configuration", "prefill chunk", "config.chunk_tokens", "no engine"),
    _told("configuration", "virtual time of an iteration", "config.iteration_ms", "{:g} ms".format),
    _counted("configuration", "a state after every", "config.mamba_chunk_size", "no blocks"),
    _counted("configuration", "capacity for paused requests", "config.paused_capacity", "no blocks"),
    _told("configuration", "ownership checks", "config.check_ownership", lambda on: "on" if on else "off"),
    _of("configuration", "eviction policy", _policy),
)


_RECORDED = (
    _counted("recorded hits", "tokens that the server found cached", "recorded.recorded_tokens"),
    _counted("recorded hits", "tokens that were hit here", "recorded.replayed_tokens"),
    _counted("recorded hits", "both are equal", "recorded.equal", thing="request"),
    _counted("recorded hits", "the last block was computed again", "recorded.last_block", thing="request"),
    _counted("recorded hits", "fewer than here", "recorded.fewer", thing="request"),
    _counted("recorded hits", "more than here", "recorded.more", thing="request"),
)
"""Columns for a trace that records what its server had cached."""


def _named(*names: str) -> list[Column]:
    """Return the columns of these names, in the order of the names."""
    by_name = {column.name: column for column in _COLUMNS}
    return [by_name[name] for name in names]


def _tables(document: ReplayDocument, run: Run) -> Iterator[Table]:
    """Yield the tables for a terminal: all numbers of one size, or the main numbers of several."""
    found = [Replayed(document, engine, run) for engine in document.runs]
    if not document.asked.page_sizes:
        recorded = _RECORDED if any(it.engine.recorded for it in found) else ()
        columns = [Column("", lambda it: it.engine.config.column), *_COLUMNS, *recorded]
        yield replace(make_table("Replays", found, columns, only=TERMINAL), is_turned=True)
        return
    columns = [
        *(_named("page size") if len(document.asked.page_sizes) > 1 else []),
        *_named("capacity"),
        Column("cache", lambda it: it.engine.config.cache),
        *_named("eviction policy", "token hit rate", "best choice"),
        _of("", "unlimited", lambda it: or_quiet(it.unlimited, show_share, "not computed")),
        _of("", "left out", _left_out),
        *_named("evicted", "match", "insert", "evict"),
    ]
    found.sort(key=lambda it: (document.asked.page_sizes.index(it.engine.config.page_size), it.capacity))
    yield make_table("Replays", found, columns, only=TERMINAL)


def _left_out(it: Replayed) -> Cell:
    count = it.engine.skipped or it.engine.rejected or 0
    return Cell(show_count(count), None if count else QUIET)


def _table(replays: Sequence[Replayed]) -> Table:
    columns = [
        Column("workload", lambda it: Cell(it.workload, hint=it.run.hint)),
        Column("cache", lambda it: it.cache),
        *_named("capacity", "token hit rate", "ceiling of an unlimited cache", "best choice", "evicted"),
        *_named("peak tokens stored", "retractions", "peak memory of the process"),
    ]
    return make_table("Replays", replays, columns, only=PAGE)


# -- latency -------------------------------------------------------------------------------------------------


_QUANTILES = (0.5, 0.95, 0.99, 1.0)
_FOLDED = 40

_Measured = tuple[Histogram, Run]


def make_latency_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of durations: benchmark histograms, and the cache time of replayed requests."""
    newest: dict[tuple[str, str, str], _Measured] = {}
    for run in runs:
        where = run.machine.fingerprint if run.machine else run.identity
        newest |= {(it.name, where, it.code or ""): (it, run) for it in run.histograms}
    measured = [newest[key] for key in sorted(newest)]
    by_plot = grouped(
        [it for it in measured if sum(map(bool, it[0].counts)) > 1], lambda it: it[0].plot or it[0].name
    )
    if by_plot:
        yield Plot(
            "plot-latency",
            "Histogram of durations",
            "How many samples of the chosen measurement fell into each bucket, over a logarithmic axis of "
            "time.",
            [_duration_choice(name, its) for name, its in sorted(by_plot.items())],
            "measurement",
        )
    if measured:
        yield _duration_table(measured)
    replays = find_replays(runs)
    beside = {name: its for name, its in grouped(replays, lambda it: it.workload).items() if len(its) > 1}
    if beside:
        yield Plot(
            "plot-replay-latency",
            "Time in the cache per request",
            "For each cache operation a picture: the median and the 99th percentile over requests, a line "
            "for each cache of the chosen workload, over a logarithmic axis of time.",
            [_replay_choice(name, its) for name, its in beside.items()],
            "workload",
        )
    if replays:
        yield _replay_table(replays)


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return the end of the bucket that a share of samples does not exceed; ``None`` without samples."""
    total = sum(histogram.counts)
    for end, passed in zip(histogram.ends, accumulate(histogram.counts), strict=True):
        if total and passed >= share * total - 1e-9:
            return end
    return None


def _duration_choice(name: str, measured: Sequence[_Measured]) -> Choice:
    by_name = grouped(measured, lambda it: it[0].name)
    panels = []
    for title, its in zip(short_names(list(by_name)), by_name.values(), strict=True):
        ends = [end for histogram, _ in its for end in histogram.ends]
        layout = {
            "xaxis": log_axis("duration", ends, its[0][0].unit),
            "yaxis": {"title": {"text": "samples"}, "rangemode": "tozero"},
            "height": 360 if len(by_name) == 1 else 260,
            **legend(),
            "showlegend": len(its) > 1,
        }
        panels.append(Panel([_steps(*it) for it in its], layout, title if len(by_name) > 1 else ""))
    return Choice(name, panels)


def _steps(histogram: Histogram, run: Run) -> dict[str, Any]:
    """Return a histogram's outline, drawn over buckets of equal width."""
    counts: Counter[int] = Counter()
    for end, count in zip(histogram.ends, histogram.counts, strict=True):
        if count:
            counts[bucket_of(end)] += count
    places = sorted({*counts, *(at + 1 for at in counts)})  # behind a bucket comes the next, or nothing
    edges = [2 ** ((at - 1) / BUCKETS_PER_DOUBLING) for at in places]
    told = [f"{show(low, histogram.unit)} to {show(high, histogram.unit)}" for low, high in pairwise(edges)]
    return scatter(
        machine_name(run.machine),
        edges,
        [counts[at] for at in places],
        mode="lines",
        line={"shape": "hv", "width": 1.5},
        fill="tozeroy",
        text=[*told, ""],
        hovertemplate="%{text}: %{y:,} samples<extra>%{fullData.name}</extra>",
    )


def _duration_table(measured: Sequence[_Measured]) -> Table:
    columns = [
        Column("measurement", lambda it: Cell(it[0].name, hint=it[1].hint)),
        Column("machine", lambda it: machine_name(it[1].machine)),
        number("samples", lambda it: show_count(sum(it[0].counts))),
        *map(_quantile_column, _QUANTILES),
    ]
    return make_table("Durations", measured, columns, folded=len(measured) > _FOLDED)


def _quantile_column(share: float) -> Column:
    name = "longest" if share == 1 else f"p{share * 100:g}"
    return number(name, lambda it: show(quantile(it[0], share), it[0].unit))


# -- of replays ----------------------------------------------------------------------------------------------


def _name(it: Replayed) -> str:
    return f"{it.workload}: {it.cache}, {it.capacity:,} slots"


def _microseconds(it: Replayed, operation: str, field: str) -> float:
    return float(getattr(getattr(it.engine, operation), field))


def _replay_choice(workload: str, replays: Sequence[Replayed]) -> Choice:
    """Return a line for each cache from the median to the 99th percentile, with marked ends."""
    names = [f"{it.cache}, {it.capacity:,} slots" for it in replays]
    panels = []
    for operation in _OPERATIONS:
        times = [[_microseconds(it, operation, which) for which in ("median_us", "p99_us")] for it in replays]
        traces = [
            scatter(
                name,
                pair,
                [name, name],
                text=["median", "p99"],
                marker={"symbol": ["circle", "diamond"], "size": 9},
                hovertemplate="%{y}<br>%{text}: %{x:.4g} µs<extra></extra>",
            )
            for name, pair in zip(names, times, strict=True)
        ]
        layout = {
            "xaxis": log_axis("time per request", [time for pair in times for time in pair], "us"),
            "yaxis": {"automargin": True, "autorange": "reversed"},
            "height": 130 + 28 * len(names),
            "showlegend": False,
        }
        panels.append(Panel(traces, layout, operation))
    note = "● median of the requests, ◆ their 99th percentile; what took no time at all has no mark."
    return Choice(workload, panels, note)


def _replay_table(replays: Sequence[Replayed]) -> Table:
    columns = [
        Column("replay", lambda it: Cell(_name(it), hint=it.run.hint)),
        Column("machine", lambda it: machine_name(it.run.machine)),
        *_named(*_OPERATIONS),
    ]
    return make_table("Time in the cache per request", replays, columns)
