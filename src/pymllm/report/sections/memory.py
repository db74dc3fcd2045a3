"""Memory over time or operations, with what was decided about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymllm.instrument.reading import Reading
from pymllm.report.blocks import Block, Section
from pymllm.report.documents import GpuMemoryDocument
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.plots import Choice, Plot, legend, scatter
from pymllm.report.quantities import scale_of, show, show_count, show_time
from pymllm.report.records import Curve
from pymllm.report.tables import BAD, GOOD, UNKNOWN, Cell, Column, Table, make_table, number

_OUTCOMES = {"kept": GOOD, "exceeded": BAD, "unknown": UNKNOWN}

_Drawn = tuple[Curve, Run]


def make_memory_section(runs: Sequence[Run]) -> Section | None:
    """Lay out curves and logs of memory; ``None`` where there is none."""
    drawn = [(curve, run) for run in runs for curve in (*run.curves, *_curves_of_tests(run))]
    tests = [document for document, _ in documents_of(runs, GpuMemoryDocument)]
    blocks: list[Block] = []
    if drawn:
        blocks += [_plot(drawn), _curves(drawn)]
    if tests:
        blocks.append(_tests(tests))
    if not blocks:
        return None
    return Section(
        "memory",
        "Memory",
        "A curve is the memory of a process or of a device. Flat: even the upper end of the slope's spread "
        "is below what counts as a leak. Grows or leaks: even the lower end is above it. Too short to tell: "
        "neither. What could not be read is unknown, with the reason, and never zero.",
        blocks,
    )


def _curves_of_tests(run: Run) -> Iterator[Curve]:
    for it, _ in documents_of([run], GpuMemoryDocument):
        if it.nvml.curve.times:
            start = it.nvml.used_start.value
            outcome = None if it.limit is None else it.limit.outcome
            yield Curve(
                f"{it.test} ({it.worker})",
                "bytes",
                "seconds",
                it.nvml.curve.times,
                it.nvml.curve.used,
                f"device memory during {it.test}",
                None if it.limit is None or start is None else it.limit.limit + start,
                None if outcome is None else f"limit {outcome}",
                {"kept": True, "exceeded": False}.get(outcome or ""),
            )


def _plot_of(it: _Drawn) -> str:
    curve, run = it
    return f"{curve.plot or curve.name}, {show_time(run.time)} UTC"


def _plot(drawn: Sequence[_Drawn]) -> Plot:
    return Plot(
        "plot-memory",
        "Memory",
        "The chosen curves of memory; a limit is a dashed line.",
        [_choice(name, [curve for curve, _ in its]) for name, its in grouped(drawn, _plot_of).items()],
        "curves",
    )


def _choice(name: str, curves: Sequence[Curve]) -> Choice:
    scale, shown = scale_of((value for it in curves for value in it.y if value is not None), curves[0].unit)
    traces = []
    for it in curves:
        y = [None if value is None else value * scale for value in it.y]
        traces.append(scatter(it.name, it.x, y, mode="lines+markers" if len(it.x) < 60 else "lines"))
    for it in curves:
        if it.limit is not None and it.x:
            ends, limit = (it.x[0], it.x[-1]), [it.limit * scale] * 2
            traces.append(scatter(f"{it.name}: limit", ends, limit, mode="lines", line={"dash": "dash"}))
    layout = {
        "xaxis": {"title": {"text": curves[0].along}},
        "yaxis": {"title": {"text": shown}},
        "height": 400,
        **legend(),
    }
    verdicts = dict.fromkeys(it.verdict for it in curves if it.verdict is not None)
    note = f"Verdict: {'; '.join(verdicts)}." if verdicts else "Nobody judged these curves."
    return Choice(name, traces, layout, note)


def _curves(drawn: Sequence[_Drawn]) -> Table:
    columns = [
        Column("curve", lambda it: Cell(it[0].name, hint=it[1].source)),
        Column("of", _plot_of),
        number("points", lambda it: show_count(len(it[0].x))),
        number("first", lambda it: _shown(it[0], _known(it[0])[:1])),
        number("lowest", lambda it: _shown(it[0], sorted(_known(it[0]))[:1])),
        number("highest", lambda it: _shown(it[0], sorted(_known(it[0]))[-1:])),
        number("last", lambda it: _shown(it[0], _known(it[0])[-1:])),
        number("limit", lambda it: "none" if it[0].limit is None else show(it[0].limit, it[0].unit)),
        Column("verdict", lambda it: Cell(it[0].verdict or "not judged", _TONES[it[0].good])),
    ]
    return make_table("Curves", drawn, columns)


_TONES = {True: GOOD, False: BAD, None: UNKNOWN}


def _known(curve: Curve) -> list[float]:
    return [value for value in curve.y if value is not None]


def _shown(curve: Curve, found: Sequence[float]) -> str:
    return show(found[0] if found else None, curve.unit)


def _tests(tests: Sequence[GpuMemoryDocument]) -> Table:
    columns = [
        Column("test", lambda it: it.test),
        Column("device", _device),
        number("tensors, peak", lambda it: _reading(it.torch.allocated_peak)),
        number("reserved, peak", lambda it: _reading(it.torch.reserved_peak)),
        number("device in use, peak", lambda it: _reading(it.nvml.used_peak)),
        number("limit on top", lambda it: "none" if it.limit is None else show(it.limit.limit, "bytes")),
        Column("outcome", _outcome),
    ]
    return make_table("Tests that were watched", tests, columns)


def _device(it: GpuMemoryDocument) -> Cell:
    return Cell(it.nvml.device.name) if it.nvml.device else Cell(f"unknown: {it.nvml.reason}", UNKNOWN)


def _outcome(it: GpuMemoryDocument) -> Cell:
    if it.limit is None:
        return Cell("no limit")
    return Cell(it.limit.outcome, _OUTCOMES.get(it.limit.outcome), hint=it.limit.found.reason)


def _reading(it: Reading) -> Cell:
    return Cell(f"unknown: {it.reason}", UNKNOWN) if it.value is None else Cell(show(it.value, "bytes"))
