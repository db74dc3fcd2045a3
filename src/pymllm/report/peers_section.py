"""Ours against peers, the limit of the machine, and the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.instrument.peer_comparison import PeerComparison, ScenarioRow
from pymllm.report.blocks import (
    BAD,
    GOOD,
    PALETTE,
    QUIET,
    UNKNOWN,
    Block,
    Cell,
    Choice,
    Column,
    Plot,
    Section,
    Table,
    Tile,
)
from pymllm.report.loading import Run
from pymllm.report.quantities import log_ticks, show, show_count, show_time

__all__ = ["make_peers_section"]

_ID = "peers"
_OURS = "pymllm"
_GREY = ("limit", "target")  # nobody who took part
_TONES = {"ahead": GOOD, "level": None, "behind": BAD, "alone": QUIET}


@dataclass(frozen=True, slots=True)
class _Compared:
    document: PeerComparison
    run: Run


def make_peers_section(runs: Sequence[Run]) -> Section | None:
    """Lay out each comparison with peers; ``None`` where there is none."""
    found = [
        _Compared(document, run)
        for run in runs
        for document in run.documents
        if isinstance(document, PeerComparison) and document.scenarios
    ]
    if not found:
        return None
    newest = found[-1].document
    blocks: list[Block] = [_plot(found)]
    for it in reversed(found):
        blocks += [_table(it), _who(it)]
    ahead = sum(row.verdict == "ahead" for row in newest.scenarios)
    compared = sum(row.verdict != "alone" for row in newest.scenarios)
    return Section(
        _ID,
        "Ours against peers, limit and target",
        "Each scenario is played by ours and by every peer that could be installed, in rounds that take "
        "turns in one process or side by side. The ratio is ours to the best peer, below 1 where ours takes "
        "less, with its interval of confidence; it is what carries over to other machines. The limit is "
        "what this machine needs to touch the same bytes, measured in the same run; the target is a promise "
        "about one machine. Each table is one run.",
        blocks,
        (Tile(f"{ahead} of {compared}", "scenarios ahead of every peer", None, f"#{_ID}"),)
        if compared
        else (),
    )


def _ours(row: ScenarioRow) -> float | None:
    return next((it.value for it in row.standings if it.contender == _OURS), None)


def _plot(found: Sequence[_Compared]) -> Plot:
    return Plot(
        "plot-peers",
        "Everybody as a multiple of ours",
        "For each scenario, how many times as long as ours each peer, the limit and the target take, on a "
        "logarithmic scale; what lies to the left of 1 is quicker than ours.",
        tuple(_choice(it) for it in reversed(found)),
        "run",
    )


def _choice(it: _Compared) -> Choice:
    marks: dict[str, list[tuple[str, float, str]]] = {}
    for row in it.document.scenarios:
        ours = _ours(row)
        if not ours:
            continue
        name = f"{row.id} {row.title}"
        others = [(standing.contender, standing.value) for standing in row.standings]
        others += [("limit", row.limit), ("target", row.target)]
        for who, value in others:
            if value > 0:
                marks.setdefault(who, []).append((name, value / ours, show(value, row.unit)))
    contenders = [who for who in marks if who not in _GREY]
    colors = dict.fromkeys(marks, PALETTE[-1])
    colors |= {who: PALETTE[place % (len(PALETTE) - 1)] for place, who in enumerate(contenders)}
    traces = tuple(
        {
            "type": "scatter",
            "mode": "markers",
            "name": who,
            "x": [ratio for _, ratio, _ in places],
            "y": [name for name, _, _ in places],
            "text": [text for _, _, text in places],
            "marker": {"size": 11, "symbol": _symbol(who), "color": colors[who]},
            "hovertemplate": "%{y}<br>%{text}, %{x:.3g} times ours<extra>%{fullData.name}</extra>",
        }
        for who, places in marks.items()
    )
    ratios = [ratio for places in marks.values() for _, ratio, _ in places]
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "times ours"},
            **log_ticks(ratios, ""),
        },
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "height": 170 + 34 * len(it.document.scenarios),
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "shapes": [
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"dash": "dot", "width": 1},
            }
        ],
    }
    note = "What lies to the left of 1 is quicker than ours."
    return Choice(f"{show_time(it.run.time)} UTC, {it.run.source}", traces, layout, note)


def _symbol(who: str) -> str:
    return {_OURS: "circle", "limit": "line-ns-open", "target": "diamond-open"}.get(who, "square")


def _table(it: _Compared) -> Table:
    columns = (
        Column("scenario"),
        Column("ours", True),
        Column("best peer", True),
        Column("ratio", True),
        Column("verdict"),
        Column("limit"),
        Column("target", True),
    )
    caption = f"{show_time(it.run.time)} UTC: {it.document.slice}, {it.document.clock} time"
    return Table(caption, columns, tuple(map(_row, it.document.scenarios)))


def _row(row: ScenarioRow) -> tuple[Cell, ...]:
    best = next((it for it in row.standings if it.contender == row.best_peer), None)
    peer = (
        Cell("no peer", QUIET) if best is None else Cell(f"{show(best.value, row.unit)} ({best.contender})")
    )
    ratio = Cell("no peer", QUIET)
    if row.ratio is not None:
        it = row.ratio
        interval = f"{show_count(it.low)} to {show_count(it.high)}"
        ratio = Cell(
            f"{show_count(it.value)} ({interval})", hint=f"{it.confidence:.0%} over {it.rounds} rounds"
        )
    return (
        Cell(f"{row.id} {row.title}", hint=f"{row.statistic}; code {row.code}"),
        Cell(show(_ours(row), row.unit)),
        peer,
        ratio,
        Cell(row.verdict, _TONES.get(row.verdict)),
        Cell(f"{show(row.limit, row.unit)} ({row.limit_of})"),
        _target(row),
    )


def _target(row: ScenarioRow) -> Cell:
    word = "reached" if row.reached else "not reached"
    return Cell(f"{show(row.target, row.unit)}, {word}", GOOD if row.reached else UNKNOWN)


def _who(it: _Compared) -> Table:
    rows = tuple(
        (
            Cell(contender.name),
            Cell(f"{contender.package} {contender.version or ''}".strip()),
            Cell("took part", GOOD) if contender.reason is None else Cell(contender.reason, UNKNOWN),
        )
        for contender in it.document.contenders
    )
    return Table(
        "Who could take part", (Column("contender"), Column("package"), Column("why not")), rows, folded=True
    )
