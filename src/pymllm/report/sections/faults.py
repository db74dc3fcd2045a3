"""Whether the searches bite: which planted fault was caught, by which searcher, after how much."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pymllm.conformance.documents import Detection, FaultRow, FaultsDocument
from pymllm.report.blocks import Block, Section, Tile
from pymllm.report.loading import Run, documents_of
from pymllm.report.plots import Choice, Plot, log_axis
from pymllm.report.quantities import show, show_count
from pymllm.report.tables import BAD, GOOD, Cell, Column, Table, make_table, number

_Found = list[tuple[FaultRow, Detection]]


def make_faults_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the faults, each as the newest run that planted it found it; ``None`` where none was."""
    newest = {fault.id: fault for it, _ in documents_of(runs, FaultsDocument) for fault in it.faults}
    if not newest:
        return None
    faults = sorted(newest.values(), key=lambda fault: (fault.caught, _order(fault.id)))
    missed = sum(not fault.caught for fault in faults)
    by_searcher: dict[str, _Found] = {}
    for fault in faults:
        for detection in fault.detections:
            by_searcher.setdefault(detection.searcher, []).append((fault, detection))
    found = sorted(by_searcher.items())
    blocks: list[Block] = [_plot(found), _searchers(found)] if found else []
    caught = f"{len(faults) - missed:,} of {len(faults):,}"
    return Section(
        "faults",
        "Faults by searcher",
        "Known bugs of serving engines and deliberately wrong classes are planted, one at a time, and must "
        "be caught by a law that was written down beforehand. Operations and time are counted until the "
        "first violation, and program is the number of operations in the smallest program that shows the "
        "fault, where one was made.",
        [*blocks, _faults(faults)],
        [Tile(caught, "planted faults caught", BAD if missed else GOOD)],
    )


def _order(id: str) -> tuple[str, int, str]:
    return (id[0], int(id[1:]), "") if id[1:].isdigit() else ("~", 0, id)


def _plot(by_searcher: Sequence[tuple[str, _Found]]) -> Plot:
    traces = [
        {
            "type": "box",
            "name": searcher,
            "x": [max(detection.operations, 1) for _, detection in found],
            "text": [f"{fault.id}: {fault.title}<br>law {it.law}, seed {it.seed}" for fault, it in found],
            "boxpoints": "all",
            "pointpos": 0,
            "jitter": 0.6,
            "orientation": "h",
            "fillcolor": "rgba(0,0,0,0)",
            "line": {"width": 1},
            "hovertemplate": "%{text}<br>%{x} operations<extra>%{fullData.name}</extra>",
        }
        for searcher, found in by_searcher
    ]
    operations = [it.operations for _, found in by_searcher for _, it in found]
    layout = {
        "xaxis": log_axis("operations until caught", operations),
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "showlegend": False,
        "height": 140 + 90 * len(traces),
    }
    return Plot(
        "plot-faults",
        "Operations until a planted fault is caught, by searcher",
        "For each searcher, a point for each fault that it caught, at the number of operations that this "
        "took.",
        [Choice("all", traces, layout)],
    )


def _searchers(by_searcher: Sequence[tuple[str, _Found]]) -> Table:
    columns = [
        Column("searcher", lambda it: it[0]),
        number("faults caught", lambda it: show_count(len({fault.id for fault, _ in it[1]}))),
        number("operations, median", lambda it: show_count(median(one.operations for _, one in it[1]))),
        number("time, median", lambda it: show(median(one.seconds for _, one in it[1]), "s")),
    ]
    return make_table("Searchers", by_searcher, columns)


def _faults(faults: Sequence[FaultRow]) -> Table:
    columns = [
        Column("fault", lambda it: it.id),
        Column("what is wrong", lambda it: it.title),
        Column("laws that may catch it", lambda it: ", ".join(it.laws)),
        Column("caught", _caught),
        Column("by", _by),
        number("operations", lambda it: "never" if it.operations is None else show_count(it.operations)),
        number("time", lambda it: "never" if it.seconds is None else show(it.seconds, "s")),
        number("program", lambda it: "not made" if it.program is None else f"{it.program} operations"),
    ]
    return make_table("Faults", faults, columns, folded=len(faults) > 30)


def _caught(fault: FaultRow) -> Cell:
    if fault.caught:
        return Cell("✓ caught", GOOD)
    return Cell(f"✗ missed{''.join(f': {problem}' for problem in fault.problems)}", BAD)


def _by(fault: FaultRow) -> str:
    return ", ".join(dict.fromkeys(f"{it.searcher} ({it.law})" for it in fault.detections)) or "nobody"
