"""The sections of memory, machines and runs, and the list of inputs for absent sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from pymllm.instrument.documents import DoctorDocument
from pymllm.instrument.reading import Reading
from pymllm.report.blocks import (
    BAD,
    GOOD,
    QUIET,
    UNKNOWN,
    Cell,
    Choice,
    Column,
    Panel,
    Part,
    Plot,
    Table,
    Text,
    legend,
    make_table,
    number,
    or_quiet,
    scatter,
)
from pymllm.report.documents import GpuMemoryDocument
from pymllm.report.loading import LoadedRuns, Run, documents_of, grouped
from pymllm.report.quantities import machine_name, scale_of, show, show_count, show_time
from pymllm.report.records import Curve, Machine

# -- memory --------------------------------------------------------------------------------------------------


_OUTCOMES = {"kept": GOOD, "exceeded": BAD, "unknown": UNKNOWN}

_Drawn = tuple[Curve, Run]


def make_memory_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of memory curves and logs; a curve of one point is a table row."""
    curves = [(curve, run) for run in runs for curve in (*run.curves, *_curves_of_tests(run))]
    drawn = grouped([it for it in curves if len(_known(it[0])) > 1], _plot_of)
    if drawn:
        yield Plot(
            "plot-memory",
            "Memory",
            "The chosen curves of memory; a limit is a dashed line.",
            [_choice(name, [curve for curve, _ in its]) for name, its in drawn.items()],
            "curves",
        )
    if curves:
        yield _curves(curves)
    tests = [document for document, _ in documents_of(runs, GpuMemoryDocument)]
    if tests:
        yield _tests(tests)


def _curves_of_tests(run: Run) -> Iterator[Curve]:
    for it, _ in documents_of([run], GpuMemoryDocument):
        if it.nvml.curve.times:
            start = it.nvml.used_start.value
            outcome = None if it.limit is None else it.limit.outcome
            yield Curve(
                f"{it.name} ({it.worker})",
                "bytes",
                "seconds",
                it.nvml.curve.times,
                it.nvml.curve.used,
                f"device memory during {it.name}",
                None if it.limit is None or start is None else it.limit.limit + start,
                None if outcome is None else f"limit {outcome}",
                {"kept": True, "exceeded": False}.get(outcome or ""),
            )


def _plot_of(it: _Drawn) -> str:
    curve, run = it
    return f"{curve.plot or curve.name}, {show_time(run.time)} UTC"


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
    note = f"Verdict: {'; '.join(verdicts)}." if verdicts else "These curves were not judged."
    return Choice(name, [Panel(traces, layout)], note)


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
        Column("test", lambda it: it.name),
        Column("device", _device),
        number("tensors, peak", lambda it: _reading(it.torch.allocated_peak)),
        number("reserved, peak", lambda it: _reading(it.torch.reserved_peak)),
        number("device in use, peak", lambda it: _reading(it.nvml.used_peak)),
        number("limit on top", lambda it: "none" if it.limit is None else show(it.limit.limit, "bytes")),
        Column("outcome", _outcome),
        Column("health", _health),
    ]
    return make_table("Tests that were watched", tests, columns)


def _device(it: GpuMemoryDocument) -> Cell:
    return Cell(it.nvml.device.name) if it.nvml.device else Cell(f"unknown: {it.nvml.reason}", UNKNOWN)


def _outcome(it: GpuMemoryDocument) -> Cell:
    if it.limit is None:
        return Cell("no limit")
    return Cell(it.limit.outcome, _OUTCOMES.get(it.limit.outcome), hint=it.limit.found.reason)


def _health(it: GpuMemoryDocument) -> Cell:
    return Cell("; ".join(it.nvml.invalid), BAD) if it.nvml.invalid else Cell("nothing seen")


def _reading(it: Reading) -> Cell:
    return Cell(f"unknown: {it.reason}", UNKNOWN) if it.value is None else Cell(show(it.value, "bytes"))


# -- machines ------------------------------------------------------------------------------------------------


def make_machines_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of the machines of all runs, with the results of `pymllm doctor` on them."""
    machines: dict[str, Machine] = {}
    known = [run.machine for run in runs if run.machine is not None]
    for machine in known:
        seen = machines.get(machine.fingerprint)
        if seen is None or seen.memory is None:  # a file of pytest-benchmark does not tell it
            machines[machine.fingerprint] = machine
    if machines:
        yield _machines(machines.values(), Counter(machine.fingerprint for machine in known))
    doctors = [document for document, _ in documents_of(runs, DoctorDocument)]
    if doctors:
        yield _doctors(doctors)


def _machines(machines: Collection[Machine], runs: Counter[str]) -> Table:
    columns = [
        Column("machine", lambda it: f"{it.name} ({it.fingerprint})" if it.name else it.fingerprint),
        Column("processor", lambda it: it.processor),
        number("processors usable", lambda it: show_count(it.cores) if it.cores else "not recorded"),
        number("memory", lambda it: show(it.memory, "bytes")),
        Column("system", lambda it: it.system),
        Column("GPUs", _gpus),
        number("runs", lambda it: show_count(runs[it.fingerprint])),
    ]
    return make_table("Machines", machines, columns)


def _gpus(machine: Machine) -> Cell:
    if not machine.gpus:
        return Cell(f"none seen: {machine.gpu_reason}" if machine.gpu_reason else "none", QUIET)
    told = (f"{it.name} ({show(it.memory, 'bytes')}, driver {it.driver or 'unknown'})" for it in machine.gpus)
    return Cell(", ".join(told))


def _doctors(doctors: Sequence[DoctorDocument]) -> Table:
    columns = [
        Column("platform", lambda it: it.platform),
        Column("Python", lambda it: it.python),
        Column("torch", lambda it: f"{it.torch.version or 'none'}, CUDA {it.torch.cuda or 'none'}"),
        Column("NVML", _nvml),
        Column(
            "packages", lambda it: ", ".join(f"{name} {told}" for name, told in it.packages.items() if told)
        ),
    ]
    return make_table("What pymllm doctor saw", doctors, columns)


def _nvml(it: DoctorDocument) -> Cell:
    if it.nvml_reason is not None:
        return Cell(f"unknown: {it.nvml_reason}", UNKNOWN)
    count = len(it.nvml_devices)
    return Cell("1 device" if count == 1 else f"{count} devices")


def make_runs_section(loaded: LoadedRuns, absent: Sequence[Mapping[str, str]]) -> Iterator[Part]:
    """Return the section of runs read, files left out, and inputs for absent sections."""
    yield _runs(loaded.runs)
    if loaded.skipped:
        columns = [Column("file", lambda it: it.source), Column("why", lambda it: Cell(it.reason, UNKNOWN))]
        yield make_table("Files that could not be read", loaded.skipped, columns)
    if loaded.copies:
        copies = "1 file is a copy" if loaded.copies == 1 else f"{loaded.copies:,} files are copies"
        yield Text(f"{copies} of another one; each run counts once.")
    if absent:
        columns = [
            Column("section", lambda it: it["title"]),
            Column("what brings it", lambda it: it["brings"]),
        ]
        yield make_table("Not in this report", absent, columns, folded=True)


def _runs(runs: Sequence[Run]) -> Table:
    columns = [
        Column("file", lambda it: Cell(it.source, hint=it.command)),
        Column("kind", lambda it: it.kind),
        Column(
            "ended (UTC)",
            lambda it: f"{'~ ' if it.time_is_of_file else ''}{show_time(it.time)}",
            is_word=True,
        ),
        Column("machine", lambda it: or_quiet(it.machine and machine_name(it.machine))),
        Column("pymllm", lambda it: or_quiet(it.pymllm), is_word=True),
        Column("commit", lambda it: or_quiet(it.commit_words)),
        Column(
            "not shown", lambda it: Cell("; ".join(it.unread) or "nothing", UNKNOWN if it.unread else None)
        ),
    ]
    return make_table("Runs", runs, columns)
