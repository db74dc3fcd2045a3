"""Memory over time or operations, with what was decided about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pymllm.report.blocks import BAD, GOOD, UNKNOWN, Block, Cell, Choice, Column, Plot, Section, Table
from pymllm.report.loading import Run
from pymllm.report.measured_documents import GpuMemoryDocument, Reading
from pymllm.report.quantities import scale_of, show, show_count, show_time
from pymllm.report.records import Curve

__all__ = ["make_memory_section"]

_ID = "memory"
_OUTCOMES = {"kept": GOOD, "exceeded": BAD, "unknown": UNKNOWN}


@dataclass(frozen=True, slots=True)
class _Drawn:
    curve: Curve
    run: Run

    @property
    def plot(self) -> str:
        return f"{self.curve.plot or self.curve.name}, {show_time(self.run.time)} UTC"


def make_memory_section(runs: Sequence[Run]) -> Section | None:
    """Lay out curves and logs of memory; ``None`` where there is none."""
    drawn = [_Drawn(curve, run) for run in runs for curve in (*run.curves, *_curves_of_tests(run))]
    tests = [(it, run) for run in runs for it in run.documents if isinstance(it, GpuMemoryDocument)]
    blocks: list[Block] = []
    if drawn:
        blocks += [_plot(drawn), _table(drawn)]
    if tests:
        blocks.append(_tests(tests))
    if not blocks:
        return None
    return Section(
        _ID,
        "Memory",
        "A curve is the memory of a process or of a device. Flat: even the upper end of the slope's spread "
        "is below what counts as a leak. Grows or leaks: even the lower end is above it. Too short to tell: "
        "neither. What could not be read is unknown, with the reason, and never zero.",
        blocks,
    )


def _curves_of_tests(run: Run) -> Iterator[Curve]:
    for it in run.documents:
        if isinstance(it, GpuMemoryDocument) and it.nvml.curve.times:
            limit = None
            if it.limit is not None and it.nvml.used_start.value is not None:
                limit = it.limit.limit + it.nvml.used_start.value
            yield Curve(
                f"{it.test} ({it.worker})",
                "bytes",
                "seconds",
                it.nvml.curve.times,
                it.nvml.curve.used,
                f"device memory during {it.test}",
                limit,
                None if it.limit is None else f"limit {it.limit.outcome}",
                None if it.limit is None else {"kept": True, "exceeded": False}.get(it.limit.outcome),
            )


def _plot(drawn: Sequence[_Drawn]) -> Plot:
    by_plot: dict[str, list[Curve]] = {}
    for it in drawn:
        by_plot.setdefault(it.plot, []).append(it.curve)
    return Plot(
        "plot-memory",
        "Memory",
        "The chosen curves of memory; a limit is a dashed line.",
        tuple(_choice(name, curves) for name, curves in by_plot.items()),
        "curves",
    )


def _choice(name: str, curves: Sequence[Curve]) -> Choice:
    first = curves[0]
    scale, shown = scale_of((value for it in curves for value in it.y if value is not None), first.unit)
    traces: list[dict[str, object]] = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(it.x) < 60 else "lines",
            "name": it.name,
            "x": list(it.x),
            "y": [None if value is None else value * scale for value in it.y],
        }
        for it in curves
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{it.name}: limit",
            "x": [it.x[0], it.x[-1]],
            "y": [it.limit * scale] * 2,
            "line": {"dash": "dash"},
        }
        for it in curves
        if it.limit is not None and it.x
    ]
    layout = {
        "xaxis": {"title": {"text": first.along}},
        "yaxis": {"title": {"text": shown}},
        "height": 400,
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
    }
    verdicts = dict.fromkeys(it.verdict for it in curves if it.verdict is not None)
    note = f"Verdict: {'; '.join(verdicts)}." if verdicts else "Nobody judged these curves."
    return Choice(name, tuple(traces), layout, note)


def _table(drawn: Sequence[_Drawn]) -> Table:
    columns = (
        Column("curve"),
        Column("of"),
        Column("points", True),
        Column("first", True),
        Column("lowest", True),
        Column("highest", True),
        Column("last", True),
        Column("limit", True),
        Column("verdict"),
    )
    return Table("Curves", columns, tuple(map(_row, drawn)))


def _row(it: _Drawn) -> tuple[Cell, ...]:
    curve = it.curve
    known = [value for value in curve.y if value is not None]
    figures = (known[0], min(known), max(known), known[-1]) if known else (None,) * 4
    tone = {True: GOOD, False: BAD, None: UNKNOWN}[curve.good]
    return (
        Cell(curve.name, hint=it.run.source),
        Cell(it.plot),
        Cell(show_count(len(curve.x))),
        *(Cell(show(value, curve.unit)) for value in figures),
        Cell("none" if curve.limit is None else show(curve.limit, curve.unit)),
        Cell(curve.verdict or "not judged", tone),
    )


def _tests(tests: Sequence[tuple[GpuMemoryDocument, Run]]) -> Table:
    columns = (
        Column("test"),
        Column("device"),
        Column("tensors, peak", True),
        Column("reserved, peak", True),
        Column("device in use, peak", True),
        Column("limit on top", True),
        Column("outcome"),
    )
    return Table("Tests that were watched", columns, tuple(_test_row(it) for it, _ in tests))


def _test_row(it: GpuMemoryDocument) -> tuple[Cell, ...]:
    device = Cell(it.nvml.device.name) if it.nvml.device else Cell(f"unknown: {it.nvml.reason}", UNKNOWN)
    limit, outcome = Cell("none"), Cell("no limit")
    if it.limit is not None:
        limit = Cell(show(it.limit.limit, "bytes"))
        outcome = Cell(it.limit.outcome, _OUTCOMES.get(it.limit.outcome), hint=it.limit.found.reason)
    readings = (it.torch.allocated_peak, it.torch.reserved_peak, it.nvml.used_peak)
    return (Cell(it.test), device, *map(_reading, readings), limit, outcome)


def _reading(it: Reading) -> Cell:
    if it.value is None:
        return Cell(f"unknown: {it.reason}", UNKNOWN)
    return Cell(show(it.value, "bytes"))
