"""The machines of the runs, the runs themselves, and what is not in a report."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pymllm.report.blocks import QUIET, UNKNOWN, Cell, Column, Section, Table, Text
from pymllm.report.loading import LoadedRuns, Run
from pymllm.report.measured_documents import DoctorDocument
from pymllm.report.quantities import show, show_count, show_time
from pymllm.report.records import Machine

__all__ = ["BRINGS", "machine_name", "make_machines_section", "make_runs_section"]

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


def machine_name(machine: Machine | None) -> str:
    """Name a machine in a few words."""
    if machine is None:
        return "machine not recorded"
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus[:1])
    return f"{machine.name or machine.processor}{gpus} ({machine.fingerprint})"


def make_machines_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the machines of all runs; ``None`` where none was recorded."""
    counts: dict[str, int] = {}
    machines: dict[str, Machine] = {}
    for run in runs:
        if run.machine is not None:
            known = machines.get(run.machine.fingerprint)
            if known is None or known.memory is None:  # a file of pytest-benchmark does not tell it
                machines[run.machine.fingerprint] = run.machine
            counts[run.machine.fingerprint] = counts.get(run.machine.fingerprint, 0) + 1
    doctors = [it for run in runs for it in run.documents if isinstance(it, DoctorDocument)]
    tables = []
    if machines:
        columns = (
            Column("machine"),
            Column("processor"),
            Column("processors usable", True),
            Column("memory", True),
            Column("system"),
            Column("GPUs"),
            Column("runs", True),
        )
        rows = tuple(_row(it, counts[it.fingerprint]) for it in machines.values())
        tables.append(Table("Machines", columns, rows))
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


def _row(machine: Machine, runs: int) -> tuple[Cell, ...]:
    gpus = ", ".join(
        f"{gpu.name} ({show(gpu.memory, 'bytes')}, driver {gpu.driver or 'unknown'})" for gpu in machine.gpus
    )
    if gpus:
        shown = Cell(gpus)
    else:
        shown = Cell(f"none seen: {machine.gpu_reason}" if machine.gpu_reason else "none", QUIET)
    return (
        Cell(f"{machine.name} ({machine.fingerprint})" if machine.name else machine.fingerprint),
        Cell(machine.processor),
        Cell(show_count(machine.cores) if machine.cores else "not recorded"),
        Cell(show(machine.memory, "bytes")),
        Cell(machine.system),
        shown,
        Cell(show_count(runs)),
    )


def _doctors(doctors: Sequence[DoctorDocument]) -> Table:
    columns = (Column("platform"), Column("Python"), Column("torch"), Column("NVML"), Column("packages"))
    rows = tuple(
        (
            Cell(it.platform),
            Cell(it.python),
            Cell(f"{it.torch.version or 'none'}, CUDA {it.torch.cuda or 'none'}"),
            Cell(_devices(len(it.nvml_devices)))
            if it.nvml_reason is None
            else Cell(f"unknown: {it.nvml_reason}", UNKNOWN),
            Cell(", ".join(f"{name} {version}" for name, version in it.packages.items() if version)),
        )
        for it in doctors
    )
    return Table("What pymllm doctor saw", columns, rows)


def make_runs_section(loaded: LoadedRuns, shown: Collection[str]) -> Section:
    """List the runs that were read, the files that were not, and what no run of them brings.

    Parameters
    ----------
    loaded : LoadedRuns
        Everything that was found.
    shown : collection of str
        Ids of the sections that there are.
    """
    columns = (
        Column("file"),
        Column("kind"),
        Column("ended (UTC)", is_word=True),
        Column("machine"),
        Column("pymllm", is_word=True),
        Column("commit"),
        Column("left out"),
    )
    blocks: list[Table | Text] = [Table("Runs", columns, tuple(map(_run_row, loaded.runs)))]
    if loaded.skipped:
        rows = tuple((Cell(it.source), Cell(it.reason, UNKNOWN)) for it in loaded.skipped)
        blocks.append(Table("Files that could not be read", (Column("file"), Column("why")), rows))
    if loaded.copies:
        copies = "1 file was a copy of another and counts" if loaded.copies == 1 else None
        copies = copies or f"{loaded.copies} files were copies of others and count"
        blocks.append(Text(f"{copies} once."))
    absent = {id: words for id, words in BRINGS.items() if id not in shown}
    if absent:
        rows = tuple((Cell(title), Cell(command)) for title, command in absent.values())
        blocks.append(Table("Not in this report", (Column("what"), Column("what brings it")), rows))
    return Section(
        "runs",
        "Runs of this report",
        "Every file that was read. A time with a tilde is when the file was last written: the run itself "
        "did not say when it ended.",
        blocks,
    )


def _run_row(run: Run) -> tuple[Cell, ...]:
    commit = (
        "not recorded" if run.commit is None else run.commit[:12] + (", modified" if run.modified else "")
    )
    return (
        Cell(run.source, hint=run.command),
        Cell(run.kind),
        Cell(f"{'~ ' if run.time_is_of_file else ''}{show_time(run.time)}"),
        Cell(machine_name(run.machine), None if run.machine else QUIET),
        Cell(run.pymllm or "not recorded", None if run.pymllm else QUIET),
        Cell(commit, None if run.commit else QUIET),
        Cell("; ".join(run.unread) or "nothing", UNKNOWN if run.unread else None),
    )


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
