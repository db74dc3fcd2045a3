"""The command ``pymllm doctor``: a description of this machine for bug reports and logs.

Whatever is missing becomes a reason; a machine with something broken is sick, and the command ends with 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pymllm.cli import options
from pymllm.cli.options import Amount
from pymllm.cli.output import complain, escaped
from pymllm.cli.store import keep_run
from pymllm.cli.tables import progress_bar, tell
from pymllm.instrument.documents import Counter, Device, DoctorDocument, SmokeFacts, TorchFacts
from pymllm.instrument.reading import BYTES, Reading
from pymllm.text_file import cut

_LOOKS = 3  # at torch, NVML, and the rest
_WIDTH = 26
_SICK = 4
_GIB = 1 << 30
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)?", re.ASCII)
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_SHORTEST, _LONGEST = 0.1, 86_400.0

_HELP = """\
Show Python, torch, GPUs, the readings of NVML, and versions, for a bug report.

Each check runs in a process of its own, so a driver that hangs or crashes cannot stop the command. torch
is loaded, which takes a second or more, and CUDA is initialised if there is a device.

\b
Exit status:
  0  healthy; a missing or unreadable value is unknown, with the reason
  2  bad input
  4  sick: torch or NVML crashed or hung until the deadline; the driver or
     CUDA reports an error; a GPU was lost, or has uncorrected ECC errors or
     rows that could not be remapped; --require-gpu or --min-free is not met;
     --smoke found no GPU, or one that does not do what it is asked for
"""


def duration(value: object) -> float:
    """Read a time between a tenth of a second and a day: ``20s``, ``2m``, ``1.5h``, ``500ms``, ``20``."""
    found = _DURATION.fullmatch(str(value).strip())
    seconds = float(found[1]) * _SECONDS[found[2] or ""] if found else 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise click.BadParameter(
            f"{cut(str(value))!r} is not a time in {_SHORTEST}s..24h; write 20s, 2m or 500ms."
        )
    return seconds


@click.command("doctor", short_help="Check this machine: Python, torch, GPUs and their health.", help=_HELP)
@click.option(
    "--deadline",
    type=duration,
    metavar="TIME",
    default="2m",
    show_default=True,
    help="Longest time for all checks together, such as 20s or 2m; a check that takes longer counts as hung.",
)
@click.option("--require-gpu", is_flag=True, help="Count a machine without a CUDA device for torch as sick.")
@click.option(
    "--min-free",
    type=Amount(0, 1_000_000),
    metavar="GIB",
    help="Count a GPU with less free memory as sick.",
)
@click.option(
    "--smoke",
    is_flag=True,
    help="Try each GPU: allocate, launch, compile a kernel, copy back, compare; no GPU to try is sick.",
)
@options.json
@options.store
@options.progress
def doctor_command(
    deadline: float,
    require_gpu: bool,
    min_free: float | None,
    smoke: bool,
    as_json: bool,
    store: Path | None,
    progress: str,
) -> int:
    """Look at the machine, and print what was found."""
    from pymllm.instrument.machine_facts import look_at_machine  # and NVML: --help does without

    with progress_bar(progress, "loading torch, asking NVML", _LOOKS, "checks") as show:
        document = look_at_machine(
            show,
            deadline=deadline,
            require_gpu=require_gpu,
            min_free=None if min_free is None else round(min_free * _GIB),
            smoke=smoke,
        )
    if not any(probe.name == "NVML" and probe.reason for probe in document.probes):
        keep_run(store, document)
    elif store is not None:
        complain(f"--store {store}: nothing is kept, because a run needs the readings of NVML")
    tell(document, make_text, as_json)
    return _SICK if document.sick else 0


# -- as text -----------------------------------------------------------------------------------------------


def make_text(document: DoctorDocument) -> str:
    """Return lines of text: first known facts, then unknown ones with their reasons."""
    rows = [
        *(_row("sick", reason) for reason in document.sick),
        *([] if document.sick else [_row("healthy", "nothing wrong was found")]),
        "",
        _row("pymllm", document.pymllm),
        _row("Python", document.python),
        _row("platform", document.platform),
        _row(
            "processor",
            f"{document.processor}; {document.cores} cores, {document.usable_cores} for this process",
        ),
        _row("memory", f"{_size(document.memory)}, {_size(document.memory_available)} available"),
        *_torch_rows(document.torch),
        *_nvml_rows(document),
        *_smoke_rows(document.smoke),
        "",
        *(_row(name, version or "not installed") for name, version in document.packages.items()),
    ]
    if document.environment:
        rows += ["", *(_row(name, value) for name, value in document.environment.items())]
    return "\n".join(rows)


def _torch_rows(torch: TorchFacts) -> Iterator[str]:
    yield ""
    if torch.version is None:
        yield _row("torch", f"unknown ({torch.reason})")
        return
    build = (
        "CPU" if not (torch.cuda or torch.hip) else f"CUDA {torch.cuda}" if torch.cuda else f"HIP {torch.hip}"
    )
    yield _row("torch", f"{torch.version}, built for {build}; loaded in {torch.import_seconds:.1f} s")
    yield _row("  threads", f"{torch.threads}")
    if torch.cudnn is not None:
        yield _row("  cuDNN", f"{torch.cudnn}")
    if not torch.devices:
        yield _row("  CUDA devices", f"none ({torch.reason})")
    yield from _device_rows("  CUDA device", torch.devices)
    yield from _counter_rows(torch.counters)


def _nvml_rows(document: DoctorDocument) -> Iterator[str]:
    yield ""
    if document.nvml is None:
        yield _row("NVML", f"unknown ({document.nvml_reason})")
        return
    yield _row("NVML", document.nvml)
    yield from _device_rows("  device", document.nvml_devices)
    if document.nvml_reason is not None:
        yield _row("  more", f"unknown ({document.nvml_reason})")
    elif not document.nvml_devices:
        yield _row("  devices", "none")


def _smoke_rows(smoke: SmokeFacts | None) -> Iterator[str]:
    """Return a row for each device that was tried, with its steps."""
    if smoke is None:
        return
    yield ""
    for device in dict.fromkeys(step.device for step in smoke.steps):
        steps = [
            f"{step.name} {step.seconds:.2f} s" if step.reason is None else f"{step.name} FAILED"
            for step in smoke.steps
            if step.device == device
        ]
        yield _row(f"smoke, CUDA device {device}", ", ".join(steps))
    if smoke.reason is not None:
        yield _row("smoke", smoke.reason)


def _device_rows(label: str, devices: Sequence[Device]) -> Iterator[str]:
    for device in devices:
        if device.reason is not None:
            yield _row(f"{label} {device.index}", f"unknown ({device.reason})")
            continue
        told = [device.name, device.uuid or "no UUID"]
        if device.capability is not None:
            told.append(f"compute capability {device.capability}")
        if device.driver is not None:
            told.append(f"driver {device.driver}")
        if device.memory is not None:
            told.append(_size(device.memory))
        yield _row(f"{label} {device.index}", ", ".join(told))
        yield from _counter_rows(device.counters)


def _counter_rows(counters: Sequence[Counter]) -> Iterator[str]:
    """Return a row for each counter; those that are unknown for the same reason share a row."""
    known = [counter for counter in counters if counter.value is not None]
    for counter in known:
        yield _row(f"    {counter.name}", str(Reading(counter.value, counter.unit)))
    reasons: dict[str, list[str]] = {}
    for counter in counters:
        if counter.value is None:
            reasons.setdefault(str(counter.reason), []).append(counter.name)
    for reason, names in reasons.items():
        yield _row("    unknown", f"{', '.join(dict.fromkeys(names))}: {reason}")


def _row(name: str, value: str) -> str:
    return f"{name:{_WIDTH}}  {escaped(value)}"


def _size(count: int) -> str:
    return str(Reading(count, BYTES))
