"""What there is on this machine, for bug reports; whatever is missing or broken becomes a reason."""

from __future__ import annotations

import importlib
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pymllm import __version__
from pymllm.instrument.documents import Counter, Device, DoctorDocument, TorchFacts
from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_device import mig_uuids
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import NvmlRecord
from pymllm.instrument.provenance import find_processor
from pymllm.instrument.reading import BYTES, Reading, Unreadable
from pymllm.instrument.torch_memory import TorchAllocator, TorchMemory, read_torch_memory

_PACKAGES = (
    *("torch", "triton", "numpy", "nvidia-ml-py", "click", "rich", "msgspec", "psutil", "hypothesis"),
    *("pytest", "pytest-benchmark", "pytest-xdist", "jinja2", "plotly"),
)
_VARIABLES = ("CUDA_", "NVIDIA_", "PYTORCH_", "PYMLLM_", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
_FIGURES = ("allocated", "reserved", "active", "inactive_split", "alloc_retries", "ooms")


def look_at_machine(done: Callable[[int], None] | None = None) -> DoctorDocument:
    """Look everywhere; that loads torch, a second or more, and initialises CUDA where there is a device."""
    tell = done or (lambda count: None)
    import psutil  # type: ignore[import-untyped]  # for this command only

    torch = look_at_torch()
    tell(1)
    nvml, reason, devices = look_at_nvml()
    tell(2)
    memory = psutil.virtual_memory()
    facts = DoctorDocument(
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
    return facts


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
    with warnings.catch_warnings(record=True) as said:  # torch warns of a driver that does not fit
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
