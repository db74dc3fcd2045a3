"""How much caches hit, over their capacity, beside what an unlimited one would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymllm.conformance.documents import ReplayDocument, ReplayRun
from pymllm.report.blocks import Block, Section, Text, Tile
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.plots import PALETTE, Choice, Plot, legend, log_axis, scatter
from pymllm.report.quantities import show, show_count, show_share
from pymllm.report.tables import BAD, QUIET, Cell, Column, Table, make_table, number


@dataclass(frozen=True, slots=True)
class Replayed:
    """A cache over a workload, and the run that it was part of."""

    document: ReplayDocument
    engine: ReplayRun
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
    def capacity(self) -> int:
        """Its slots."""
        return self.engine.config.capacity

    @property
    def best(self) -> float | None:
        """What the best choice would hit, which knows the future; ``None`` where nobody computed it."""
        size = self.engine.config.page_size, self.capacity
        rates = (it.belady_hit_rate for it in self.document.ceilings if (it.page_size, it.capacity) == size)
        return next(rates, None)


def find_replays(runs: Sequence[Run]) -> list[Replayed]:
    """Return the newest replay of each workload through each cache of each capacity, smallest first."""
    found: dict[tuple[str, str, int], Replayed] = {}
    for document, run in documents_of(runs, ReplayDocument):
        for engine in document.runs:
            it = Replayed(document, engine, run)
            found[it.workload, it.cache, it.capacity] = it
    return [found[key] for key in sorted(found)]


def make_hit_rate_section(runs: Sequence[Run]) -> Section | None:
    """Lay out hit rates; ``None`` where nothing was replayed."""
    replays = find_replays(runs)
    blocks: list[Block] = [
        Text(f"{broken.cache} broke {broken.law} in {run.source}: {broken.message}", BAD)
        for document, run in documents_of(runs, ReplayDocument)
        if (broken := document.violation) is not None
    ]
    if replays:
        blocks += [_plot(replays), _table(replays)]
    if not blocks:
        return None
    return Section(
        "hit-rate",
        "Hit rate over capacity",
        "How many of the prompts' tokens were served from the cache, for each capacity that was replayed. A "
        "ceiling is what an unlimited cache with the same pages would serve: no cache of any capacity hits "
        "more. The best choice evicts what is needed last, which takes a look into the future; where it was "
        "computed, it is the most that a cache of this capacity could hit.",
        blocks,
        [Tile(show_count(len(replays)), "caches replayed")],
    )


def _plot(replays: Sequence[Replayed]) -> Plot:
    by_workload = grouped(replays, lambda it: it.workload)
    return Plot(
        "plot-hit-rate",
        "Hit rate over capacity",
        "Share of the prompts' tokens that each cache served, over its capacity in slots, with the ceiling "
        "of an unlimited cache as a dashed line.",
        [_choice(name, its) for name, its in by_workload.items()],
        "workload",
    )


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
    return Choice(name, traces, layout)


def _line(name: str, points: Sequence[tuple[int, float]], line: dict[str, str]) -> dict[str, Any]:
    hover = "%{x:,} slots: %{y:.1f} %<extra>%{fullData.name}</extra>"
    capacities, rates = [capacity for capacity, _ in points], [rate * 100 for _, rate in points]
    return scatter(name, capacities, rates, line=line, hovertemplate=hover)


def _table(replays: Sequence[Replayed]) -> Table:
    columns = [
        Column("workload", lambda it: Cell(it.workload, hint=it.run.hint)),
        Column("cache", lambda it: it.cache),
        number("capacity, slots", lambda it: show_count(it.capacity)),
        number("hit rate", lambda it: show_share(it.engine.token_hit_rate)),
        number("ceiling", lambda it: show_share(it.engine.ceiling_hit_rate)),
        number("best choice (Belady)", lambda it: _best(it.best)),
        number("evicted, tokens", lambda it: show_count(it.engine.evicted_tokens)),
        number("most stored, tokens", lambda it: show_count(it.engine.peak_tokens_stored)),
        number("retractions", lambda it: _retractions(it.engine.retractions)),
        number("resident memory, most", lambda it: show(it.engine.peak_rss_bytes, "bytes")),
    ]
    return make_table("Replays", replays, columns)


def _best(best: float | None) -> Cell:
    return Cell("not computed", QUIET) if best is None else Cell(show_share(best))


def _retractions(count: int | None) -> Cell:
    return Cell("no engine", QUIET) if count is None else Cell(show_count(count))
