"""How much caches hit, over their capacity, beside what an unlimited one would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.report.blocks import (
    BAD,
    PALETTE,
    QUIET,
    Block,
    Cell,
    Choice,
    Column,
    Plot,
    Section,
    Table,
    Text,
    Tile,
)
from pymllm.report.loading import Run
from pymllm.report.measured_documents import EngineRun, ReplayDocument
from pymllm.report.quantities import log_ticks, show, show_count, show_share, show_time

__all__ = ["Replayed", "find_replays", "make_hit_rate_section"]

_ID = "hit-rate"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A cache over a workload, and the run that it was part of."""

    document: ReplayDocument
    engine: EngineRun
    run: Run

    @property
    def workload(self) -> str:
        """What was replayed, the same for each cache over it."""
        it = self.document.workload
        drawn = f", seed {it.seed}" if it.kind == "named" else ""
        return f"{it.name}, {it.requests:,} requests{drawn}, {self.document.mode}"

    @property
    def cache(self) -> str:
        """Through what, but for its capacity."""
        it = self.engine.config
        window = "" if it.sliding_window_size is None else f", window {show_count(it.sliding_window_size)}"
        return f"{it.cache}, page {it.page_size}{window}"

    @property
    def best(self) -> float | None:
        """What the best choice would hit, which knows the future; ``None`` where nobody computed it."""
        size = self.engine.config.page_size, self.engine.config.capacity
        return next(
            (it.belady_hit_rate for it in self.document.ceilings if (it.page_size, it.capacity) == size), None
        )


def find_replays(runs: Sequence[Run]) -> list[Replayed]:
    """Return the newest replay of each workload through each cache of each capacity, smallest first."""
    found: dict[tuple[str, str, int], Replayed] = {}
    for run in runs:
        for document in run.documents:
            if isinstance(document, ReplayDocument):
                for engine in document.runs:
                    it = Replayed(document, engine, run)
                    found[it.workload, it.cache, engine.config.capacity] = it
    return sorted(found.values(), key=lambda it: (it.workload, it.cache, it.engine.config.capacity))


def make_hit_rate_section(runs: Sequence[Run]) -> Section | None:
    """Lay out hit rates; ``None`` where nothing was replayed."""
    replays = find_replays(runs)
    broken = [
        Text(f"{found.cache} broke {found.law} in {run.source}: {found.message}", BAD)
        for run in runs
        for document in run.documents
        if isinstance(document, ReplayDocument) and (found := document.violation) is not None
    ]
    if not replays and not broken:
        return None
    blocks: list[Block] = [*broken]
    if replays:
        blocks += [_plot(replays), _table(replays)]
    return Section(
        _ID,
        "Hit rate over capacity",
        "How many of the prompts' tokens were served from the cache, for each capacity that was replayed. A "
        "ceiling is what an unlimited cache with the same pages would serve: no cache of any capacity hits "
        "more. The best choice evicts what is needed last, which takes a look into the future; where it was "
        "computed, it is the most that a cache of this capacity could hit.",
        blocks,
        (Tile(show_count(len(replays)), "caches replayed", None, f"#{_ID}"),),
    )


def _plot(replays: Sequence[Replayed]) -> Plot:
    by_workload: dict[str, list[Replayed]] = {}
    for it in replays:
        by_workload.setdefault(it.workload, []).append(it)
    return Plot(
        "plot-hit-rate",
        "Hit rate over capacity",
        "Share of the prompts' tokens that each cache served, over its capacity in slots, with the ceiling "
        "of an unlimited cache as a dashed line.",
        tuple(_choice(name, its) for name, its in by_workload.items()),
        "workload",
    )


def _choice(name: str, replays: Sequence[Replayed]) -> Choice:
    by_cache: dict[str, list[Replayed]] = {}
    for it in replays:
        by_cache.setdefault(it.cache, []).append(it)
    traces: list[dict[str, object]] = []
    for number, (cache, its) in enumerate(by_cache.items()):
        color = PALETTE[number % len(PALETTE)]
        capacities = [it.engine.config.capacity for it in its]
        measured = [it.engine.token_hit_rate * 100 for it in its]
        ceiling = [it.engine.ceiling_hit_rate * 100 for it in its]
        hover = "%{x:,} slots: %{y:.1f} %<extra>%{fullData.name}</extra>"
        line = {
            "type": "scatter",
            "mode": "lines+markers",
            "x": capacities,
            "legendgroup": cache,
            "hovertemplate": hover,
        }
        marks = {"symbol": "line-ew-open", "size": 12, "color": color}
        solid = {"name": cache, "y": measured, "line": {"color": color}, "marker": {"color": color}}
        dashed = {"name": f"{cache}: ceiling", "y": ceiling, "line": {"color": color, "dash": "dash"}}
        traces += [{**line, **solid}, {**line, **dashed, "marker": marks}]
    traces += _best_choices(replays)
    sizes = [it.engine.config.capacity for it in replays]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "capacity, KV slots (tokens)"}, **log_ticks(sizes, "")},
        "yaxis": {"title": {"text": "hit rate, % of prompt tokens"}, "range": [0, 101]},
        "height": 440,
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
    }
    return Choice(name, tuple(traces), layout)


def _best_choices(replays: Sequence[Replayed]) -> list[dict[str, object]]:
    """Draw what the best choice would hit, which knows the future, where somebody computed it."""
    known = {(it.engine.config.page_size, it.engine.config.capacity): it.best for it in replays}
    by_page: dict[int, list[tuple[int, float]]] = {}
    for (page, capacity), best in sorted(known.items()):
        if best is not None:
            by_page.setdefault(page, []).append((capacity, best * 100))
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"best choice (Belady), page {page}",
            "x": [capacity for capacity, _ in points],
            "y": [best for _, best in points],
            "line": {"dash": "dot"},
            "hovertemplate": "%{x:,} slots: %{y:.1f} %<extra>%{fullData.name}</extra>",
        }
        for page, points in by_page.items()
    ]


def _table(replays: Sequence[Replayed]) -> Table:
    columns = (
        Column("workload"),
        Column("cache"),
        Column("capacity, slots", True),
        Column("hit rate", True),
        Column("ceiling", True),
        Column("best choice (Belady)", True),
        Column("evicted, tokens", True),
        Column("most stored, tokens", True),
        Column("retractions", True),
        Column("resident memory, most", True),
    )
    return Table("Replays", columns, tuple(map(_row, replays)))


def _row(it: Replayed) -> tuple[Cell, ...]:
    engine = it.engine
    retractions = engine.retractions
    return (
        Cell(it.workload, hint=f"{show_time(it.run.time)} UTC, {it.run.source}"),
        Cell(it.cache),
        Cell(show_count(engine.config.capacity)),
        Cell(show_share(engine.token_hit_rate)),
        Cell(show_share(engine.ceiling_hit_rate)),
        _best_cell(it.best),
        Cell(show_count(engine.evicted_tokens)),
        Cell(show_count(engine.peak_tokens_stored)),
        Cell("no engine", QUIET) if retractions is None else Cell(show_count(retractions)),
        Cell(show(engine.peak_rss_bytes, "bytes")),
    )


def _best_cell(best: float | None) -> Cell:
    return Cell("not computed", QUIET) if best is None else Cell(show_share(best))
