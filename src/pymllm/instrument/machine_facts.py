"""The facts about this machine for bug reports, with a reason for each missing or broken part.

Torch and NVML are asked in processes of their own: a driver that hangs or crashes takes no more than those.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from pymllm import __version__
from pymllm.instrument.documents import Counter, Device, DoctorDocument, Probe, Row, SmokeFacts, TorchFacts
from pymllm.instrument.gpu_smoke import look_at_smoke, smoke_trouble
from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_device import mig_uuids, part_uuids, usable_uuids
from pymllm.instrument.nvml_library import NvmlFailure, NvmlLibrary
from pymllm.instrument.nvml_record import NvmlRecord
from pymllm.instrument.provenance import find_processor
from pymllm.instrument.reading import BYTES, Reading, Unreadable
from pymllm.instrument.torch_memory import TorchAllocator, TorchMemory, read_torch_memory
from pymllm.torch_extra import collector_aside

_PACKAGES = (
    *("torch", "triton", "numpy", "nvidia-ml-py", "click", "rich", "msgspec", "psutil", "hypothesis"),
    *("pytest", "pytest-benchmark", "pytest-xdist", "jinja2", "plotly"),
)
_VARIABLES = ("CUDA_", "NVIDIA_", "PYTORCH_", "PYMLLM_", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
_FIGURES = ("allocated", "reserved", "active", "inactive_split", "alloc_retries", "ooms")


DEADLINE = 120.0
"""The seconds after which a check of torch or NVML counts as hung; loading torch may take many."""

_NO_DEVICE = "torch.cuda.is_available() is False"
# Of NVML's errors those that say what there is not, or may not be seen: not supported, no permission, not
# found, no driver, no library, no such function. Others are of a driver in trouble.
_MISSING = {3, 4, 6, 9, 12, 13}


class NvmlFacts(Row, frozen=True, kw_only=True):
    """The facts about NVML: its answers, the reason for having none, and faults of its GPUs."""

    version: str | None = None
    reason: str | None = None
    devices: tuple[Device, ...] = ()
    usable: tuple[str, ...] = ()  # UUIDs of the GPUs and MIG instances that this process may use
    sick: tuple[str, ...] = ()


def look_at_machine(
    done: Callable[[int], None] | None = None,
    *,
    deadline: float = DEADLINE,
    require_gpu: bool = False,
    min_free: int | None = None,
    smoke: bool = False,
) -> DoctorDocument:
    """Check torch and NVML within so many seconds; a hanging check is abandoned and reported.

    It is sick, too, where a driver is in trouble, without a CUDA device under ``require_gpu``, and where a
    GPU has not ``min_free`` bytes free; with ``smoke``, where a first program on a GPU fails. Only GPUs that
    this process may use count. Cost: loading torch, a second or more, and initialising CUDA, with ``smoke``
    twice.
    """
    tell = done or (lambda count: None)
    import psutil  # type: ignore[import-untyped]  # for this command only

    with ExitStack() as stack:
        until = time.monotonic() + deadline
        nvml_look = _Look("NVML", NvmlFacts, until, deadline)
        stack.callback(nvml_look.leave)
        # One after the other, or torch's context counts as memory in use; unless the first takes too long.
        nvml_look.wait(deadline / 2)
        torch_look = _Look("torch", TorchFacts, until, deadline)
        stack.callback(torch_look.leave)
        torch, torch_probe = torch_look.end()
        tell(1)
        nvml, nvml_probe = nvml_look.end()
        probes = [nvml_probe, torch_probe]
        tried: SmokeFacts | None = None
        if smoke:
            smoke_look = _Look("smoke", SmokeFacts, until, deadline)
            stack.callback(smoke_look.leave)
            tried, smoke_probe = smoke_look.end()
            probes.append(smoke_probe)
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
        nvml=nvml.version,
        nvml_reason=nvml.reason,
        nvml_devices=nvml.devices,
        packages={name: _version_of(name) for name in _PACKAGES},
        environment={name: os.environ[name] for name in sorted(os.environ) if name.startswith(_VARIABLES)},
        probes=tuple(probes),
        smoke=tried,
    )
    found = smoke_trouble(tried) if tried is not None else ()
    sick = (*_trouble(facts), *nvml.sick, *found, *_unmet(facts, require_gpu, min_free, nvml.usable))
    tell(3)
    return replace(facts, sick=sick)


# -- in processes of their own -----------------------------------------------------------------------------

Facts = TypeVar("Facts", TorchFacts, NvmlFacts, SmokeFacts)

_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pymllm.instrument.machine_facts import answer
answer(sys.argv[2], float(sys.argv[3]))
"""
_FRAME = re.compile(r"^  File .*, line \d+ in (\S+)$", re.MULTILINE)


class _Look(Generic[Facts]):
    """A check in a process that is abandoned after the deadline, since it may hang in the kernel."""

    def __init__(self, name: str, kind: type[Facts], until: float, deadline: float) -> None:
        self._name, self._until, self._deadline = name, until, deadline
        self._kind: type[Facts] = kind
        self._began = time.monotonic()
        self._output, self._errors = b"", b""
        says_where = until - deadline / 10  # in which call it is, while it can still say so
        command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), name, str(says_where)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def wait(self, seconds: float) -> bool:
        """Wait a limited time for the end of the process, and return whether it ended."""
        if self._process.returncode is not None:
            return True
        try:
            self._output, self._errors = self._process.communicate(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired as late:
            self._output, self._errors = late.stdout or b"", late.stderr or b""
            return False
        return True

    def end(self) -> tuple[Facts, Probe]:
        """Return all facts found before the deadline, and how the process ended."""
        has_ended = self.wait(self._until - time.monotonic())
        seconds, status = round(time.monotonic() - self._began, 3), self._process.returncode
        lines = self._output.splitlines(keepends=True)
        found = [line for line in lines if line.endswith(b"\n")]
        facts = msgspec.json.decode(found[-1], type=self._kind) if found else self._kind()
        if status == 0:
            return facts, Probe(name=self._name, seconds=seconds, outcome="answered")
        errors = self._errors.decode("utf-8", "replace")
        if not has_ended:
            outcome, reason = "hung", f"no answer within {self._deadline:g} s{_place(errors)}"
        else:
            last = "".join(f", {line.strip()}" for line in errors.splitlines()[-1:])
            how = f"status {status}{last}"
            if status < 0:
                how = f"signal {-status} ({signal.strsignal(-status)}){_place(errors)}"
            outcome, reason = "died", f"its process ended with {how}"
        probe = Probe(name=self._name, seconds=seconds, outcome=outcome, reason=reason)
        return replace(facts, reason=f"it {outcome}: {reason}"), probe

    def leave(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _place(errors: str) -> str:
    """Return the function that a process was in, by its last output."""
    frames = _FRAME.findall(errors)
    where = next((name for name in frames if name.startswith("nvml")), *frames[:1] or [None])
    return "" if where is None else f", in {where}"


def answer(name: str, says_where: float) -> None:
    """Print the facts of a check from its own process, a line at each new fact."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(0.05, says_where - time.monotonic()))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    looks: dict[str, Callable[[], Iterator[Row]]] = {
        "torch": look_at_torch,
        "NVML": look_at_nvml,
        "smoke": look_at_smoke,
    }
    with output:
        for facts in looks[name]():
            output.write(msgspec.json.encode(facts) + b"\n")
            output.flush()


# -- what is wrong -----------------------------------------------------------------------------------------


def _trouble(facts: DoctorDocument) -> Iterator[str]:
    """Yield failed checks and complaints of CUDA; a missing device is no complaint."""
    failed = {it.name: f"{it.name} {it.outcome}: {it.reason}" for it in facts.probes if it.reason}
    yield from failed.values()
    torch = facts.torch
    if (torch.cuda or torch.hip) and torch.reason not in (None, _NO_DEVICE) and "torch" not in failed:
        yield f"torch: {torch.reason}"
    yield from (f"CUDA device {it.index}: {it.reason}" for it in torch.devices if it.reason)


def _unmet(
    facts: DoctorDocument, require_gpu: bool, min_free: int | None, usable: Sequence[str]
) -> Iterator[str]:
    """Yield the requirements that the machine does not meet."""
    if require_gpu and not any(device.reason is None for device in facts.torch.devices):
        yield f"no CUDA device for torch: {facts.torch.reason or 'none can be asked'}"
    if min_free is None:
        return
    wanted = f"{Reading(min_free, BYTES)} free are wanted"
    devices = [device for device in facts.nvml_devices if device.uuid in usable]
    for device in devices:
        free = next((it for it in device.counters if it.name == "free"), None)
        if free is None or free.value is None:
            yield f"GPU {device.uuid or device.index}: {wanted}, and NVML does not tell"
        elif free.value < min_free:
            yield f"GPU {device.uuid or device.index}: {wanted}, there are {Reading(free.value, BYTES)}"
    if not devices:
        mine = " that this process may use" if facts.nvml_devices else ""
        yield f"{wanted}, and NVML tells of no GPU{mine}"


def _nvml_trouble(where: str, reason: Unreadable) -> Iterator[str]:
    if isinstance(reason, NvmlFailure) and reason.code not in _MISSING:
        yield f"{where}: {reason}"


def _gpu_trouble(library: NvmlLibrary, index: int) -> Iterator[str]:
    """Yield a GPU's faults that need a person, according to NVML: a lost GPU, or failing memory."""
    where = f"GPU {index}"
    try:
        gpu = library.call("nvmlDeviceGetHandleByIndex", index)
        where = f"GPU {index} ({library.call('nvmlDeviceGetUUID', gpu)})"
    except Unreadable as reason:
        yield from _nvml_trouble(where, reason)
        return
    uncorrected = [library.constant(f"NVML_{it}") for it in ("MEMORY_ERROR_TYPE_UNCORRECTED", "VOLATILE_ECC")]
    try:
        if errors := library.call("nvmlDeviceGetTotalEccErrors", gpu, *uncorrected):
            yield f"{where}: {errors} uncorrected ECC errors since the driver was loaded"
    except Unreadable as reason:
        yield from _nvml_trouble(where, reason)
    try:
        if library.call("nvmlDeviceGetRemappedRows", gpu)[3]:  # corrected, uncorrected, pending, failed
            yield f"{where}: a row of memory could not be remapped"
    except Unreadable as reason:
        yield from _nvml_trouble(where, reason)


# -- the looks ---------------------------------------------------------------------------------------------


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def look_at_torch() -> Iterator[TorchFacts]:
    """Load torch and yield facts about it, then also about the devices that it shows."""
    began = time.perf_counter()
    try:
        with collector_aside():
            torch = importlib.import_module("torch")
    except Exception as error:  # a library that does not fit raises OSError, others whatever they like
        why = f"torch cannot be imported: {_said(error)}"
        yield TorchFacts(import_seconds=_since(began), reason=why)
        return
    facts = TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        threads=torch.get_num_threads(),
        import_seconds=_since(began),
    )
    yield facts
    reason, devices = _cuda_devices(torch)
    memory = read_torch_memory(TorchAllocator())
    yield replace(
        facts,
        cudnn=_or_none(torch.backends.cudnn.version),
        reason=reason,
        devices=devices,
        counters=tuple(_allocator_counters(memory)),
    )


def _cuda_devices(torch: Any) -> tuple[str | None, tuple[Device, ...]]:
    """Return the CUDA devices that torch shows, or the reason why it shows none."""
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
    return told or _NO_DEVICE, ()


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


def look_at_nvml() -> Iterator[NvmlFacts]:
    """Yield NVML's version, then also each GPU in turn, or the reason why NVML is unavailable."""
    library = NvmlLibrary()
    try:
        library.open(None)  # in a process of its own, which tells its parent in which call it hangs
        facts = NvmlFacts(version=str(library.call("nvmlSystemGetNVMLVersion")))
        count = int(library.call("nvmlDeviceGetCount"))
        yield facts
        shown = usable_uuids(library, os.environ)
        for index in range(count):
            usable = _parts(library, index)
            if shown is not None:
                usable = [uuid for uuid in usable if uuid in shown]
            if usable or shown is None:  # of another GPU no trouble is this process's
                facts = replace(facts, sick=(*facts.sick, *_gpu_trouble(library, index)))
            facts = replace(
                facts,
                devices=(*facts.devices, *_nvml_devices(library, index)),
                usable=(*facts.usable, *usable),
            )
            yield facts
    except Unreadable as reason:
        yield NvmlFacts(reason=str(reason), sick=tuple(_nvml_trouble("NVML", reason)))
    finally:
        library.close()


def _parts(library: NvmlLibrary, index: int) -> list[str]:
    """Return the UUIDs under which CUDA may show a GPU: its own, or those of its MIG instances."""
    try:
        return part_uuids(library, library.call("nvmlDeviceGetHandleByIndex", index))
    except Unreadable:
        return []


def _nvml_devices(library: NvmlLibrary, index: int) -> Iterator[Device]:
    """Yield a GPU and its MIG instances, which CUDA shows instead of it."""
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
    free = record.total.minus(record.used_end)
    return {
        "memory": record.total,
        "reserved by the driver": record.reserved,
        f"in use ({record.used_means.value})": record.used_end,
        "free": free.minus(record.reserved) if record.reserved.is_known else free,
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
