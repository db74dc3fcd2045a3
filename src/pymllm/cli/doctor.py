"""``pymllm doctor``: what this machine has, for bug reports and for the logs of runners.

Whatever is missing or broken becomes a reason.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from pymllm import __version__
from pymllm.cli.options import json_option, progress_option, store_option
from pymllm.cli.program import escaped, say
from pymllm.cli.store import keep_run, refuse_unwritable_store
from pymllm.cli.tables import progress_bar, say_document
from pymllm.conformance.documents import Counter, Device, DoctorDocument, TorchFacts
from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_device import mig_uuids
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import NvmlRecord
from pymllm.instrument.reading import BYTES, Reading, Unreadable
from pymllm.instrument.torch_memory import TorchAllocator, TorchMemory, read_torch_memory

_LOOKS = 3  # at torch, NVML, and the rest
_WIDTH = 26
_PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "nvidia-ml-py",
    "click",
    "rich",
    "msgspec",
    "psutil",
    "hypothesis",
    "pytest",
    "pytest-benchmark",
    "pytest-xdist",
    "jinja2",
    "plotly",
)
_VARIABLES = ("CUDA_", "NVIDIA_", "PYTORCH_", "PYMLLM_", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
_FIGURES = ("allocated", "reserved", "active", "inactive_split", "alloc_retries", "ooms")


@click.command("doctor", short_help="Show what this machine has.")
@json_option
@store_option
@progress_option
def doctor_command(as_json: bool, store: Path | None, progress: str) -> None:
    """Show Python, torch, GPUs, what NVML reads, and versions: what a bug report needs.

    What is missing, or cannot be read, is unknown with the reason, and no error: the command ends with 0.
    Torch is loaded for it, which takes a second or more, and CUDA initialised where there is a device.
    """
    refuse_unwritable_store(store)
    with progress_bar(progress, "loading torch, asking NVML", _LOOKS, "looks") as show:
        document = look_at_machine(show)
    keep_run(store, document)
    if as_json:
        say_document(document)
    else:
        say(make_text(document))


# -- looking -----------------------------------------------------------------------------------------------


def look_at_machine(done: Callable[[int], None] | None = None) -> DoctorDocument:
    """Look everywhere.

    Cost: loading torch, a second or more, and initialising CUDA where there is a device.
    """
    tell = done or (lambda count: None)
    import psutil  # type: ignore[import-untyped]  # for this command only

    from pymllm.report.machine import find_processor

    torch = look_at_torch()
    tell(1)
    nvml, reason, devices = look_at_nvml()
    tell(2)
    memory = psutil.virtual_memory()
    document = DoctorDocument(
        pymllm=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=platform.platform(),
        processor=find_processor(),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        memory=memory.total,
        memory_available=memory.available,
        torch=torch,
        nvml=nvml,
        nvml_reason=reason,
        nvml_devices=devices,
        packages={name: _version_of(name) for name in _PACKAGES},
        environment={name: os.environ[name] for name in sorted(os.environ) if name.startswith(_VARIABLES)},
    )
    tell(3)
    return document


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def look_at_torch() -> TorchFacts:
    """Load torch and ask it what it is and sees."""
    began = time.perf_counter()
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a library that does not fit raises OSError, others whatever they like
        why = f"torch cannot be imported: {_said(error)}"
        return TorchFacts(import_seconds=_since(began), reason=why)
    seconds = _since(began)
    reason, devices = _cuda_devices(torch)
    memory = read_torch_memory(TorchAllocator())
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        cudnn=_or_none(torch.backends.cudnn.version),
        threads=torch.get_num_threads(),
        import_seconds=seconds,
        reason=reason,
        devices=devices,
        counters=tuple(_allocator_counters(memory)),
    )


def _cuda_devices(torch: Any) -> tuple[str | None, tuple[Device, ...]]:
    """Return why torch sees no CUDA device, or those that it sees."""
    with warnings.catch_warnings(
        record=True
    ) as said:  # torch warns where it finds a driver that does not fit
        warnings.simplefilter("always")
        try:
            if torch.cuda.is_available():
                return None, tuple(_cuda_device(torch, index) for index in range(torch.cuda.device_count()))
        except Exception as error:
            return _said(error), ()
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built without CUDA", ()
    told = " ".join(" ".join(str(it.message).split()) for it in said)
    return told or "torch.cuda.is_available() is False", ()


def _cuda_device(torch: Any, index: int) -> Device:
    try:
        it = torch.cuda.get_device_properties(index)
    except Exception as error:
        return Device(index=index, name="unknown", reason=_said(error))
    uuid = str(it.uuid) if hasattr(it, "uuid") else None
    capability = f"{it.major}.{it.minor}"
    return Device(index=index, name=it.name, uuid=uuid, capability=capability, memory=it.total_memory)


def _allocator_counters(memory: TorchMemory) -> Iterator[Counter]:
    for name in _FIGURES:
        yield _counter(name.replace("_", " "), getattr(memory, name))


def look_at_nvml() -> tuple[str | None, str | None, tuple[Device, ...]]:
    """Return NVML's version, why it cannot be asked, and its devices with what each counter reads."""
    library = NvmlLibrary()
    try:
        library.open()
    except Unreadable as reason:
        return None, str(reason), ()
    try:
        told = str(library.call("nvmlSystemGetNVMLVersion"))
        count = int(library.call("nvmlDeviceGetCount"))
        return told, None, tuple(it for index in range(count) for it in _nvml_devices(library, index))
    except Unreadable as reason:
        return None, str(reason), ()
    finally:
        library.close()


def _nvml_devices(library: NvmlLibrary, index: int) -> Iterator[Device]:
    """Give a GPU, and the MIG instances that it is divided into: CUDA shows those in its place."""
    try:
        gpu = library.call("nvmlDeviceGetHandleByIndex", index)
        uuid = str(library.call("nvmlDeviceGetUUID", gpu))
    except Unreadable as reason:
        yield Device(index=index, name="unknown", reason=str(reason))
        return
    yield _nvml_device(index, uuid)
    for instance in mig_uuids(library, gpu):
        yield _nvml_device(index, instance)


def _nvml_device(index: int, uuid: str) -> Device:
    with NvmlTracker(uuid) as tracker:
        pass
    record = tracker.summary()
    if record.device is None:
        return Device(index=index, name="unknown", uuid=uuid, reason=record.reason)
    counters = tuple(_counter(name, reading) for name, reading in _nvml_readings(record).items())
    unwatched = tuple(Counter("health", None, "", reason) for reason in record.unwatched)
    identity = record.device
    return Device(
        index=index,
        name=identity.name,
        uuid=uuid,
        driver=identity.driver,
        memory=record.total.value,
        counters=counters + unwatched,
    )


def _nvml_readings(record: NvmlRecord) -> Mapping[str, Reading]:
    return {
        "memory": record.total,
        "reserved by the driver": record.reserved,
        f"in use ({record.used_means.value})": record.used_end,
        "in use by this process": record.process_end,
        "utilization": record.utilization_peak,
        "new ECC errors, corrected": record.health.ecc_corrected,
        "new ECC errors, uncorrected": record.health.ecc_uncorrected,
        "newly remapped rows": record.health.remapped_rows,
        "a sample takes": Reading(record.cost.longest_ns, "ns"),
    }


def _counter(name: str, reading: Reading) -> Counter:
    return Counter(name, reading.value, "bytes" if reading.unit == BYTES else reading.unit, reading.reason)


def _or_none(ask: Callable[[], int | None]) -> int | None:
    with suppress(Exception):  # torch raises RuntimeError where cuDNN is older than it was built for
        return ask()
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)


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
