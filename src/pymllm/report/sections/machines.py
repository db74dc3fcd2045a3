"""The machines of the runs, the runs themselves, and what is not in a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from pymllm.instrument.machine_facts import DoctorDocument
from pymllm.report.blocks import Block, Section, Text
from pymllm.report.loading import LoadedRuns, Run, documents_of
from pymllm.report.quantities import machine_name, show, show_count, show_time
from pymllm.report.records import Machine
from pymllm.report.tables import QUIET, UNKNOWN, Cell, Column, Table, make_table, number

BRINGS = {
    "laws": (
        "laws by implementation",
        "pymllm verify --store FOLDER, or pymllm compare NAMES --store FOLDER",
    ),
    "faults": ("faults by searcher", "pymllm faults --store FOLDER"),
    "situations": ("situations", "pymllm verify --store FOLDER, or pymllm soak --store FOLDER"),
    "soak": ("soak", "pymllm soak --store FOLDER"),
    "trends": ("trends", "any of the others, or tox -e bench"),
    "peers": ("ours against peers", "tox -e bench-peers"),
    "gpu": ("GPU benchmarks", "pytest benchmarks -m gpu --benchmark-enable --gpu-results=FOLDER"),
    "hit-rate": ("hit rate over capacity", "pymllm replay TRACE --store FOLDER"),
    "latency": ("latency", "pytest benchmarks --benchmark-enable --benchmark-json=FILE, or pymllm replay"),
    "memory": ("memory", "pytest --gpu-memory-log=FILE, or pymllm soak --store FOLDER"),
}
"""What brings each section of a report."""


def make_machines_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the machines of all runs; ``None`` where none was recorded."""
    machines: dict[str, Machine] = {}
    known = [run.machine for run in runs if run.machine is not None]
    for machine in known:
        seen = machines.get(machine.fingerprint)
        if seen is None or seen.memory is None:  # a file of pytest-benchmark does not tell it
            machines[machine.fingerprint] = machine
    tables = []
    if machines:
        tables.append(_machines(machines.values(), Counter(machine.fingerprint for machine in known)))
    doctors = [document for document, _ in documents_of(runs, DoctorDocument)]
    if doctors:
        tables.append(_doctors(doctors))
    if not tables:
        return None
    return Section(
        "machines",
        "Machines",
        "Machines are told apart by processor, usable processors, system and GPUs, and by "
        "PYMLLM_MACHINE where it was set; figures of two of them are never put on one line.",
        tables,
    )


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


def make_runs_section(loaded: LoadedRuns, shown: Collection[str]) -> Section:
    """List the runs that were read, the files that were not, and what no run brings of the sections shown."""
    blocks: list[Block] = [_runs(loaded.runs)]
    if loaded.skipped:
        columns = [Column("file", lambda it: it.source), Column("why", lambda it: Cell(it.reason, UNKNOWN))]
        blocks.append(make_table("Files that could not be read", loaded.skipped, columns))
    if loaded.copies:
        copies = f"{loaded.copies} files were copies of others and count"
        if loaded.copies == 1:
            copies = "1 file was a copy of another and counts"
        blocks.append(Text(f"{copies} once."))
    absent = [words for id, words in BRINGS.items() if id not in shown]
    if absent:
        columns = [Column("what", lambda it: it[0]), Column("what brings it", lambda it: it[1])]
        blocks.append(make_table("Not in this report", absent, columns))
    return Section(
        "runs",
        "Runs of this report",
        "Every file that was read. A time with a tilde is when the file was last written: the run itself "
        "did not say when it ended.",
        blocks,
    )


def _runs(runs: Sequence[Run]) -> Table:
    columns = [
        Column("file", lambda it: Cell(it.source, hint=it.command)),
        Column("kind", lambda it: it.kind),
        Column(
            "ended (UTC)",
            lambda it: f"{'~ ' if it.time_is_of_file else ''}{show_time(it.time)}",
            is_word=True,
        ),
        Column("machine", lambda it: Cell(machine_name(it.machine), None if it.machine else QUIET)),
        Column(
            "pymllm",
            lambda it: Cell(it.pymllm or "not recorded", None if it.pymllm else QUIET),
            is_word=True,
        ),
        Column("commit", _commit),
        Column(
            "left out", lambda it: Cell("; ".join(it.unread) or "nothing", UNKNOWN if it.unread else None)
        ),
    ]
    return make_table("Runs", runs, columns)


def _commit(run: Run) -> Cell:
    if run.commit is None:
        return Cell("not recorded", QUIET)
    return Cell(f"{run.commit[:12]}{', modified' if run.modified else ''}")
