"""``pymllm doctor``: what this machine has, for bug reports and logs; what is missing becomes a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pymllm.cli import options
from pymllm.cli.program import escaped
from pymllm.cli.store import keep_run
from pymllm.cli.tables import progress_bar, tell
from pymllm.instrument.documents import Counter, Device, DoctorDocument, TorchFacts
from pymllm.instrument.reading import BYTES, Reading

_LOOKS = 3  # at torch, NVML, and the rest
_WIDTH = 26


@click.command("doctor", short_help="Show what this machine has.")
@options.json
@options.store
@options.progress
def doctor_command(as_json: bool, store: Path | None, progress: str) -> None:
    """Show Python, torch, GPUs, what NVML reads, and versions: what a bug report needs.

    What is missing, or cannot be read, is unknown with the reason, and no error: the command ends with 0.
    Torch is loaded for it, which takes a second or more, and CUDA initialised where there is a device.
    """
    from pymllm.instrument.machine_facts import look_at_machine  # and NVML: --help does without

    with progress_bar(progress, "loading torch, asking NVML", _LOOKS, "looks") as show:
        document = look_at_machine(show)
    keep_run(store, document)
    tell(document, make_text, as_json)


# -- as text -----------------------------------------------------------------------------------------------


def make_text(document: DoctorDocument) -> str:
    """Return lines for people: facts first, and what is unknown with its reason."""
    rows = [
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
    if not document.nvml_devices:
        yield _row("  devices", "none")
    yield from _device_rows("  device", document.nvml_devices)


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
    """Give a row for each counter; what is unknown for one reason stands together."""
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
