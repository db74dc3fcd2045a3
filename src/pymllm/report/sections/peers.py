"""Ours against peers, the limit of the machine, and the target."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.instrument.peer_comparison import OURS, Contender, PeerComparison, ScenarioRow
from pymllm.report.blocks import Block, Section, Tile
from pymllm.report.loading import Run, documents_of
from pymllm.report.plots import PALETTE, Choice, Plot, legend, log_axis, scatter
from pymllm.report.quantities import show, show_count, show_time
from pymllm.report.tables import BAD, GOOD, QUIET, UNKNOWN, Cell, Column, Table, make_table, number

_GREY = ("limit", "target")  # nobody who took part
_TONES = {"ahead": GOOD, "level": None, "behind": BAD, "alone": QUIET}
_SYMBOLS = {OURS: "circle", "limit": "line-ns-open", "target": "diamond-open"}


def make_peers_section(runs: Sequence[Run]) -> Section | None:
    """Lay out each comparison with peers, the newest first; ``None`` where there is none."""
    found = [(it, run) for it, run in documents_of(reversed(runs), PeerComparison) if it.scenarios]
    if not found:
        return None
    verdicts = [row.verdict for row in found[0][0].scenarios]
    compared = len(verdicts) - verdicts.count("alone")
    ahead = f"{verdicts.count('ahead')} of {compared}"
    blocks: list[Block] = [_plot(found)]
    for document, run in found:
        blocks += [_scenarios(document, run), _contenders(document)]
    return Section(
        "peers",
        "Ours against peers, limit and target",
        "Each scenario is played by ours and by every peer that could be installed, in rounds that take "
        "turns in one process or side by side. The ratio is ours to the best peer, below 1 where ours takes "
        "less, with its interval of confidence; it is what carries over to other machines. The limit is "
        "what this machine needs to touch the same bytes, measured in the same run; the target is a promise "
        "about one machine. Each table is one run.",
        blocks,
        [Tile(ahead, "scenarios ahead of every peer")] if compared else (),
    )


def _ours(row: ScenarioRow) -> float | None:
    return next((it.value for it in row.standings if it.contender == OURS), None)


def _plot(found: Sequence[tuple[PeerComparison, Run]]) -> Plot:
    return Plot(
        "plot-peers",
        "Everybody as a multiple of ours",
        "For each scenario, how many times as long as ours each peer, the limit and the target take, on a "
        "logarithmic scale; what lies to the left of 1 is quicker than ours.",
        [_choice(document, run) for document, run in found],
        "run",
    )


def _choice(document: PeerComparison, run: Run) -> Choice:
    marks: dict[str, list[tuple[str, float, str]]] = {}
    for row in document.scenarios:
        ours = _ours(row)
        if not ours:
            continue
        others = [(standing.contender, standing.value) for standing in row.standings]
        for who, value in (*others, ("limit", row.limit), ("target", row.target)):
            if value > 0:
                mark = f"{row.id} {row.title}", value / ours, show(value, row.unit)
                marks.setdefault(who, []).append(mark)
    contenders = [who for who in marks if who not in _GREY]
    colors = dict.fromkeys(marks, PALETTE[-1])
    colors |= {who: PALETTE[place % (len(PALETTE) - 1)] for place, who in enumerate(contenders)}
    traces = [
        scatter(
            who,
            [ratio for _, ratio, _ in places],
            [name for name, _, _ in places],
            mode="markers",
            text=[text for _, _, text in places],
            marker={"size": 11, "symbol": _SYMBOLS.get(who, "square"), "color": colors[who]},
            hovertemplate="%{y}<br>%{text}, %{x:.3g} times ours<extra>%{fullData.name}</extra>",
        )
        for who, places in marks.items()
    ]
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    layout = {
        "xaxis": log_axis("times ours", [ratio for places in marks.values() for _, ratio, _ in places]),
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "height": 170 + 34 * len(document.scenarios),
        **legend(above=True),
        "shapes": [{**one, "line": {"dash": "dot", "width": 1}}],
    }
    note = "What lies to the left of 1 is quicker than ours."
    return Choice(run.hint, traces, layout, note)


def _scenarios(document: PeerComparison, run: Run) -> Table:
    columns = [
        Column("scenario", lambda it: Cell(f"{it.id} {it.title}", hint=f"{it.statistic}; code {it.code}")),
        number("ours", lambda it: show(_ours(it), it.unit)),
        number("best peer", _best_peer),
        number("ratio", _ratio),
        Column("verdict", lambda it: Cell(it.verdict, _TONES.get(it.verdict))),
        Column("limit", lambda it: f"{show(it.limit, it.unit)} ({it.limit_of})"),
        number("target", _target),
    ]
    caption = f"{show_time(run.time)} UTC: {document.slice}, {document.clock} time"
    return make_table(caption, document.scenarios, columns)


def _best_peer(row: ScenarioRow) -> Cell:
    best = next((it for it in row.standings if it.contender == row.best_peer), None)
    return (
        Cell("no peer", QUIET) if best is None else Cell(f"{show(best.value, row.unit)} ({best.contender})")
    )


def _ratio(row: ScenarioRow) -> Cell:
    it = row.ratio
    if it is None:
        return Cell("no peer", QUIET)
    text = f"{show_count(it.value)} ({show_count(it.low)} to {show_count(it.high)})"
    return Cell(text, hint=f"{it.confidence:.0%} over {it.rounds} rounds")


def _target(row: ScenarioRow) -> Cell:
    word = "reached" if row.reached else "not reached"
    return Cell(f"{show(row.target, row.unit)}, {word}", GOOD if row.reached else UNKNOWN)


def _contenders(document: PeerComparison) -> Table:
    columns = [
        Column("contender", lambda it: it.name),
        Column("package", lambda it: f"{it.package} {it.version or ''}".strip()),
        Column("why not", _part),
    ]
    return make_table("Who could take part", document.contenders, columns, folded=True)


def _part(it: Contender) -> Cell:
    return Cell("took part", GOOD) if it.reason is None else Cell(it.reason, UNKNOWN)
