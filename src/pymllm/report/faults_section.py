"""Whether the searches bite: which planted fault was caught, by which searcher, after how much."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pymllm.report.blocks import BAD, GOOD, Block, Cell, Choice, Column, Plot, Section, Table, Tile
from pymllm.report.loading import Run
from pymllm.report.quantities import log_ticks, show, show_count
from pymllm.report.search_documents import DetectionRow, FaultRow, FaultsDocument

__all__ = ["make_faults_section"]

_ID = "faults"


def make_faults_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the faults, each as the newest run that planted it found it; ``None`` where none was."""
    newest: dict[str, FaultRow] = {}
    for run in runs:
        for document in run.documents:
            if isinstance(document, FaultsDocument):
                newest |= {fault.id: fault for fault in document.faults}
    if not newest:
        return None
    faults = sorted(newest.values(), key=lambda fault: (fault.caught, _order(fault.id)))
    missed = [fault for fault in faults if not fault.caught]
    blocks: list[Block] = []
    if any(fault.detections for fault in faults):
        blocks += [_plot(faults), _by_searcher(faults)]
    return Section(
        _ID,
        "Faults by searcher",
        "Known bugs of serving engines and deliberately wrong classes are planted, one at a time, and must "
        "be caught by a law that was written down beforehand. Operations and time are counted until the "
        "first violation, and program is the number of operations in the smallest program that shows the "
        "fault, where one was made.",
        [*blocks, _table(faults)],
        (
            Tile(
                f"{len(faults) - len(missed):,} of {len(faults):,}",
                "planted faults caught",
                BAD if missed else GOOD,
                f"#{_ID}",
            ),
        ),
    )


def _order(id: str) -> tuple[str, int, str]:
    number = id[1:]
    return (id[0], int(number), "") if number.isdigit() else ("~", 0, id)


def _detections(faults: Sequence[FaultRow]) -> dict[str, list[tuple[FaultRow, DetectionRow]]]:
    by: dict[str, list[tuple[FaultRow, DetectionRow]]] = {}
    for fault in faults:
        for detection in fault.detections:
            by.setdefault(detection.searcher, []).append((fault, detection))
    return dict(sorted(by.items()))


def _plot(faults: Sequence[FaultRow]) -> Plot:
    traces = tuple(
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
        for searcher, found in _detections(faults).items()
    )
    operations = [it.operations for fault in faults for it in fault.detections]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "operations until caught"}, **log_ticks(operations, "")},
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "showlegend": False,
        "height": 140 + 90 * len(traces),
    }
    return Plot(
        "plot-faults",
        "Operations until a planted fault is caught, by searcher",
        "For each searcher, a point for each fault that it caught, at the number of operations that this "
        "took.",
        (Choice("all", traces, layout),),
    )


def _by_searcher(faults: Sequence[FaultRow]) -> Table:
    columns = (
        Column("searcher"),
        Column("faults caught", True),
        Column("operations, median", True),
        Column("time, median", True),
    )
    rows = tuple(
        (
            Cell(searcher),
            Cell(show_count(len({fault.id for fault, _ in found}))),
            Cell(show_count(median(it.operations for _, it in found))),
            Cell(show(median(it.seconds for _, it in found), "s")),
        )
        for searcher, found in _detections(faults).items()
    )
    return Table("Searchers", columns, rows)


def _table(faults: Sequence[FaultRow]) -> Table:
    columns = (
        Column("fault"),
        Column("what is wrong"),
        Column("laws that may catch it"),
        Column("caught"),
        Column("by"),
        Column("operations", True),
        Column("time", True),
        Column("program", True),
    )
    return Table("Faults", columns, tuple(map(_row, faults)), folded=len(faults) > 30)


def _row(fault: FaultRow) -> tuple[Cell, ...]:
    why = "".join(f": {problem}" for problem in fault.problems)
    caught = Cell("✓ caught", GOOD) if fault.caught else Cell(f"✗ missed{why}", BAD)
    by = ", ".join(dict.fromkeys(f"{it.searcher} ({it.law})" for it in fault.detections))
    return (
        Cell(fault.id),
        Cell(fault.title),
        Cell(", ".join(fault.laws)),
        caught,
        Cell(by or "nobody"),
        Cell("never" if fault.operations is None else show_count(fault.operations)),
        Cell("never" if fault.seconds is None else show(fault.seconds, "s")),
        Cell("not made" if fault.program is None else f"{fault.program} operations"),
    )
