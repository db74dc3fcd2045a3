"""The section of curves over cache capacity: hit rates, seconds and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymllm.documents.curves import CheckpointPoint, CurveDocument, CurveOfCheckpoints, CurveRow
from pymllm.report.blocks import (
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
)
from pymllm.report.loading import Run, documents_of
from pymllm.report.quantities import count_of, show, show_count, show_share

_FOLDED = 60


@dataclass(frozen=True, slots=True)
class Curved:
    """A curve and the run that contains it."""

    document: CurveDocument
    run: Run

    @property
    def name(self) -> str:
        """The name of the curve, from workload, method and model; of equal names the newest counts."""
        it, model = self.document.workload, self.document.model
        drawn = f", seed {it.seed}" if it.kind == "named" else ""
        sampled = "" if self.document.sample is None else f", {self.document.sample.rate * 100:g} % of blocks"
        of_model = "" if model is None else f", {model.name} {model.dtype}"
        return (
            f"{it.name}, {it.requests:,} requests{drawn}, page {self.document.page_size}{sampled}{of_model}"
        )


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of a curve: one capacity and its counts."""

    curve: Curved
    row: CurveRow


def find_curves(runs: Sequence[Run]) -> list[Curved]:
    """Return the newest curve of each name."""
    found = {}
    for document, run in documents_of(runs, CurveDocument):
        it = Curved(document, run)
        found[it.name] = it
    return [found[name] for name in sorted(found)]


def make_capacity_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of curves: hit rate, saved tokens and the gain of another GiB, over capacity."""
    for document, run in documents_of(runs, CurveDocument):
        yield from (Text(line, only=TERMINAL) for line in _heading(document))
        if document.interrupted:
            done = count_of(document.workload.requests, "request")
            yield Text(
                f"The curve in {run.source} was interrupted after {done}: its numbers are of a part.", UNKNOWN
            )
    curves = find_curves(runs)
    if not curves:
        return
    yield Plot(
        "plot-capacity",
        "What memory buys",
        "Pictures over capacity, or over memory where the model is known: the share of the prompts' tokens "
        "that the cache had, with the ceilings of the best choice and of an unlimited cache; the prefill "
        "that is saved; and what a GiB more saves.",
        [_choice(it) for it in curves],
        "curve",
    )
    yield _table([_Point(it, row) for it in curves for row in it.document.rows])
    yield from (Text(line) for it in curves for line in (*_left_out(it.document), *_sum_up(it.document)))
    if kept := [_Kept(it, of, row) for it in curves for of in it.document.checkpoints for row in of.points]:
        yield _checkpoints(kept)
    if grouped := [it for it in curves if it.document.groups]:
        yield _groups(
            [_Grouped(it, g.name, row) for it in grouped for g in it.document.groups for row in g.rows]
        )
    yield Tile(show_count(len(curves)), "capacity curves")


def _heading(document: CurveDocument) -> list[str]:
    it, model = document.workload, document.model
    seed = f", seed {it.seed}" if it.kind == "named" else ""
    lines = [
        "  ".join(f"{name} {version}" for name, version in document.versions.items()),
        f"{it.name}: {it.requests:,} requests{seed}, longest prompt "
        f"{count_of(document.longest_prompt, 'token')}, {show(document.trace_seconds, 's')}",
        f"radix tree, lru, serial replay, pages of {count_of(document.page_size, 'token')}: "
        + _method(document),
    ]
    if model is not None:
        kept = f"latent {model.latent_dim}" if model.latent_dim else f"{model.kv_heads} x {model.head_dim}"
        layers = f"{model.counted_layers} of {count_of(model.layers, 'layer')}"
        size = f"{show_count(model.bytes_per_token)} bytes per token"
        lines.append(f"{model.name}: {layers}, {kept}, {model.dtype}: {size}")
    return lines


def _method(document: CurveDocument) -> str:
    seconds = show(document.cpu_seconds, "s")
    if document.sample is None:
        return f"exact, one pass, {seconds} of processor time"
    return f"estimated from {document.sample.rate * 100:g} % of the blocks, {seconds} of processor time"


# -- pictures ------------------------------------------------------------------------------------------------


def _choice(curve: Curved) -> Choice:
    document = curve.document
    in_bytes = document.model is not None
    places = {
        row.capacity: row.kv_bytes if row.kv_bytes is not None else row.capacity for row in document.rows
    }
    axis = (
        log_axis("memory of the cache", list(places.values()), "bytes")
        if in_bytes
        else log_axis("capacity, KV slots (tokens)", list(places.values()))
    )
    panels = [
        Panel(
            _rates(document, places),
            _layout(axis, "hit rate, % of prompt tokens", 400)
            | {"yaxis": {"title": {"text": "hit rate, % of prompt tokens"}, "range": [0, 101]}},
        )
    ]
    if document.prefill_rate is not None:
        saved = [(places[row.capacity], row.prefill_seconds_saved) for row in document.rows]
        line = _line("prefill saved", saved, _seconds)
        panels.append(Panel([line], _layout(axis, "seconds", 260), "prefill that is saved, over the trace"))
    worth = [
        (places[row.capacity], row.next_gib_seconds if document.prefill_rate else row.next_gib_tokens)
        for row in document.rows
    ]
    if any(value is not None for _, value in worth):
        unit = "seconds per GiB" if document.prefill_rate else "tokens per GiB"
        line = _line("next GiB", worth, lambda value: f"{show_count(value)} {unit}", shape="hv")
        panels.append(Panel([line], _layout(axis, unit, 260), "what the next GiB saves, over the trace"))
    if document.groups:
        lines = [
            _line(it.name, [(places[row.capacity], row.token_hit_rate * 100) for row in it.rows], _percent)
            for it in document.groups
        ]
        layout = _layout(axis, "hit rate, %", 400) | {"showlegend": True}
        panels.append(Panel(lines, layout, f"hit rate by {document.by}"))
    return Choice(curve.name, panels)


def _rates(document: CurveDocument, places: dict[int, int]) -> list[dict[str, Any]]:
    rows = document.rows
    own = [(places[row.capacity], row.token_hit_rate * 100) for row in rows]
    lru = _line("lru", own, _percent, line={"color": PALETTE[0]})
    lows = [(row.token_hit_rate - row.low) * 100 for row in rows if row.low is not None]
    highs = [(row.high - row.token_hit_rate) * 100 for row in rows if row.high is not None]
    if lows and highs:
        lru["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": highs,
            "arrayminus": lows,
            "thickness": 1,
        }
    traces = [lru]
    for place, policy in enumerate(document.policies, 1):
        replayed = [(places[it.capacity], it.token_hit_rate * 100) for it in policy.points]
        color = PALETTE[place % len(PALETTE)]
        traces.append(_line(policy.eviction_policy, replayed, _percent, line={"color": color}))
    for place, kept in enumerate(document.checkpoints, 1 + len(document.policies)):
        counted = [(places[it.capacity], it.token_hit_rate * 100) for it in kept.points]
        color = PALETTE[place % len(PALETTE)]
        traces.append(_line(_name_of(kept), counted, _percent, line={"color": color}))
    best = [(places[row.capacity], _in_percent(row.belady_hit_rate)) for row in rows]
    ceiling = [(places[row.capacity], _in_percent(row.ceiling_hit_rate)) for row in rows]
    for name, dash, points in (("best choice (Belady)", "dot", best), ("unlimited", "dash", ceiling)):
        if any(rate is not None for _, rate in points):
            traces.append(_line(name, points, _percent, line={"dash": dash, "color": PALETTE[-1]}))
    return traces


def _line(
    name: str,
    points: Sequence[tuple[int, float | None]],
    tell: Callable[[float], str],
    shape: str = "linear",
    line: dict[str, str] | None = None,
) -> dict[str, Any]:
    known = [(x, y) for x, y in points if y is not None]
    return scatter(
        name,
        [x for x, _ in known],
        [y for _, y in known],
        line={"shape": shape} | (line or {}),
        text=[tell(y) for _, y in known],
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )


def _layout(axis: dict[str, Any], what: str, height: int) -> dict[str, Any]:
    return {
        "xaxis": axis,
        "yaxis": {"title": {"text": what}, "rangemode": "tozero"},
        "height": height,
        **legend(),
        "showlegend": height > 260,
    }


def _in_percent(rate: float | None) -> float | None:
    return None if rate is None else rate * 100


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _seconds(value: float) -> str:
    return show(value, "s")


# -- tables --------------------------------------------------------------------------------------------------


def _table(points: Sequence[_Point]) -> Table:
    bought = any(it.row.gpus is not None for it in points)

    def gib(it: _Point) -> Any:
        if it.row.next_gib_seconds is not None:
            return show(it.row.next_gib_seconds, "s")
        return or_quiet(it.row.next_gib_tokens, lambda tokens: f"{tokens:,.0f} tokens", "not known")

    columns = [
        _CURVE,
        number("capacity, slots", lambda it: show_count(it.row.capacity)),
        *([number("GPUs", lambda it: or_quiet(it.row.gpus, show_count, "not asked"))] if bought else []),
        number("memory", lambda it: or_quiet(it.row.kv_bytes, lambda it: show(it, "bytes"), "no model")),
        number("hit rate", lambda it: _rate(it.row)),
        *(number(f"hit rate, {policy}", partial(_rate_by, policy)) for policy in _policies(points)),
        number("best choice", lambda it: or_quiet(it.row.belady_hit_rate, show_share, "not computed")),
        number("ceiling", lambda it: or_quiet(it.row.ceiling_hit_rate, show_share, "not computed")),
        number("tokens saved", lambda it: show_count(it.row.hit_tokens)),
        number("prefill saved", lambda it: or_quiet(it.row.prefill_seconds_saved, _seconds, "no rate")),
        number("next GiB saves", gib),
        number("evicted, tokens", lambda it: or_quiet(it.row.evicted_tokens, show_count, "not known")),
        number("left out", lambda it: Cell(show_count(it.row.skipped), None if it.row.skipped else QUIET)),
    ]
    return make_table("Capacities", points, columns, folded=len(points) > _FOLDED)


def _left_out(document: CurveDocument) -> Iterator[str]:
    """Yield a note where rates cover only some requests and must not be compared."""
    rows = [row for row in document.rows if row.skipped]
    if rows:
        largest = show_count(rows[-1].capacity)
        yield (
            f"{document.workload.name}: up to {largest} slots, requests above half the capacity are left "
            f"out, at most {rows[0].skipped:,} of {document.workload.requests:,}: compare tokens saved "
            "there, not rates."
        )


_ENOUGH = 0.9


def _sum_up(document: CurveDocument) -> Iterator[str]:
    """Yield a sentence about the first capacity whose hit rate is nearly the highest possible."""
    rows = document.rows
    if not rows or not (most := rows[-1].ceiling_hit_rate or rows[-1].token_hit_rate):
        return
    what = (
        f"{show_share(most)} that {'an unlimited cache' if rows[-1].ceiling_hit_rate else 'the largest'} hits"
    )
    found = next((row for row in rows if row.token_hit_rate >= _ENOUGH * most), None)
    if found is None:
        way = "leave out --capacity" if rows[-1].gpus is None else "give more gpus=N, or leave out --memory"
        yield (
            f"{document.workload.name}: no capacity here hits {show_share(_ENOUGH)} of the {what}; {way}, "
            "and capacities are chosen."
        )
        return
    if found is rows[-1] and not found.ceiling_hit_rate:
        return  # the largest one hits all that it hits itself: that says nothing
    memory = "" if found.kv_bytes is None else f" ({show(found.kv_bytes, 'bytes')})"
    gpus = "" if found.gpus is None else f" on {count_of(found.gpus, 'GPU')}"
    yield (
        f"{document.workload.name}: {show_count(found.capacity)} slots{memory}{gpus} are the first here to "
        f"hit {show_share(_ENOUGH)} of the {what}: {show_share(found.token_hit_rate)}."
    )


_CURVE = Column("curve", lambda it: Cell(it.curve.name, hint=it.curve.run.hint), only=PAGE)


def _policies(points: Sequence[_Point]) -> list[str]:
    found = (it.eviction_policy for point in points for it in point.curve.document.policies)
    return list(dict.fromkeys(found))


def _rate_by(policy: str, point: _Point) -> Cell:
    """Return the hit rate of a policy other than ``lru``, from its replay at a capacity."""
    rates = {
        it.capacity: it.token_hit_rate
        for one in point.curve.document.policies
        for it in one.points
        if one.eviction_policy == policy
    }
    return or_quiet(rates.get(point.row.capacity), show_share, "not replayed")


def _rate(row: CurveRow) -> str:
    if row.low is None or row.high is None:
        return show_share(row.token_hit_rate)
    return f"{show_share(row.token_hit_rate)} ({show_share(row.low)} to {show_share(row.high)})"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A point of a hybrid model's curve."""

    curve: Curved
    of: CurveOfCheckpoints
    point: CheckpointPoint


def _name_of(kept: CurveOfCheckpoints) -> str:
    return f"states, {kept.keeping}={kept.tokens}"


def _checkpoints(points: Sequence[_Kept]) -> Table:
    columns = [
        _CURVE,
        Column("states", lambda it: f"{it.of.keeping}={it.of.tokens}"),
        number("capacity, slots", lambda it: show_count(it.point.capacity)),
        number("hit rate", lambda it: show_share(it.point.token_hit_rate)),
        number("hits lost", lambda it: or_quiet(it.point.lost_share, show_share, "no hits")),
        number("tokens saved", lambda it: show_count(it.point.hit_tokens)),
        number("most states", lambda it: show_count(it.point.peak_states)),
        number("evicted, tokens", lambda it: show_count(it.point.evicted_tokens)),
    ]
    return make_table("Capacities of hybrid models", points, columns, folded=len(points) > _FOLDED)


@dataclass(frozen=True, slots=True)
class _Grouped:
    """A point of a curve for a group of requests."""

    curve: Curved
    group: str
    row: CurveRow


def _groups(points: Sequence[_Grouped]) -> Table:
    columns = [
        _CURVE,
        Column("requests with", lambda it: f"{it.curve.document.by} {it.group}"),
        number("capacity, slots", lambda it: show_count(it.row.capacity)),
        number("requests", lambda it: show_count(it.row.requests)),
        number("hit rate", lambda it: show_share(it.row.token_hit_rate)),
        number("tokens saved", lambda it: show_count(it.row.hit_tokens)),
    ]
    return make_table("Capacities, by class of request", points, columns, folded=True)
