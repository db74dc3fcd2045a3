"""The NVML device that corresponds to a CUDA device of this process, found by UUID."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pymllm.instrument.nvml_library import NvmlLibrary, ask_nvml
from pymllm.instrument.reading import Unreadable

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"\s*([+-]?\d+)")


def is_uuid(name: str) -> bool:
    """Tell whether a name is the UUID of a GPU or MIG instance, or the beginning of one."""
    return name.startswith(("GPU-", "MIG-"))


def visible_name(index: int, environment: Mapping[str, str]) -> int | str:
    """Return the index or UUID for NVML of the device to which CUDA gives an index.

    As CUDA reads the variable: unset means all, empty means none, a UUID may be cut short, a negative or
    malformed entry ends the list, and a device named twice empties it.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return index
    names = shown_names(text)
    if not names and _names(text):
        raise Unreadable(f"{VARIABLE}={text!r} names a device twice, for which CUDA shows none")
    if index >= len(names):
        devices = "1 device" if len(names) == 1 else f"{len(names)} devices"
        raise Unreadable(f"{VARIABLE}={text!r} shows {devices}, so none has index {index}")
    return names[index]


def shown_names(text: str) -> list[int | str]:
    """Return the indices and UUIDs in a value of ``CUDA_VISIBLE_DEVICES``, in CUDA's order."""
    names = _names(text)
    return names if len(set(names)) == len(names) else []


def _names(text: str) -> list[int | str]:
    """Return the entries before the first invalid one."""
    names: list[int | str] = []
    for entry in text.split(","):
        name = entry.strip()
        if is_uuid(name):
            names.append(name)
            continue
        number = _NUMBER.match(name)
        if number is None or int(number[1]) < 0:
            break
        names.append(int(number[1]))
    return names


_ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """The identity of a device, for a record.

    ``gpu_uuid`` is that of the GPU that a MIG instance is a part of, else ``uuid``; versions may be unknown.
    """

    uuid: str
    name: str
    is_mig: bool
    gpu_uuid: str
    driver: str
    nvml: str


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """The handles of a GPU or MIG instance for its memory, and of the GPU for clocks and errors."""

    identity: DeviceIdentity
    handle: Any
    gpu: Any
    instance: int | None


def device_index(device: Any) -> int | str:
    """Return CUDA's index of a device (``"cuda"``, ``"cuda:1"``, a torch.device), or the UUID that names it.

    ``None`` is CUDA's current device where CUDA is in use, else its first; the beginning of a UUID will do.
    """
    if device is None or str(device) == "cuda":
        return _current_index()
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    else:
        text = str(device)
        if not isinstance(device, str) and type(device).__module__ != "torch":
            raise TypeError(f"device must be an index, a name, a torch.device or None, got {device!r}")
        if is_uuid(text):
            return text
        kind, _, number = text.partition(":")
        if kind != "cuda" or not number.isdecimal():
            raise ValueError(f"device {text!r} is no CUDA device; say cuda, cuda:0, GPU-... or MIG-...")
        index = int(number)
    if index < 0:
        raise ValueError(f"device must be at least 0, got {index}")
    return index


def visible_devices() -> list[int]:
    """Return CUDA's indices of the devices for this process, at least one, with the current first.

    A torch that is loaded knows their number, else ``CUDA_VISIBLE_DEVICES`` or NVML; nothing is initialised.
    """
    current = _current_index()
    return sorted(range(max(1, current + 1, _count_visible())), key=lambda index: index != current)


def _count_visible() -> int:
    torch = sys.modules.get("torch")
    with suppress(RuntimeError):  # of a driver that torch cannot ask
        if torch is not None and (count := int(torch.cuda.device_count())):
            return count
    text = os.environ.get(VARIABLE)
    if text is not None:
        return len(shown_names(text))
    with suppress(Unreadable):
        return int(ask_nvml(lambda library: library.call("nvmlDeviceGetCount")))
    return 0


def device_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names for each device of this process that ``CUDA_VISIBLE_DEVICES`` may contain.

    Those in the variable, or the UUIDs of all GPUs and MIG instances; `Unreadable` without NVML.
    """
    text = environment.get(VARIABLE)
    if text is not None:
        return [str(name) for name in shown_names(text)]
    return ask_nvml(lambda library: [uuid for gpu in _gpus(library) for uuid in part_uuids(library, gpu)])


def part_uuids(library: NvmlLibrary, gpu: Any) -> list[str]:
    """Return the UUID of a GPU or those of its MIG instances; none if unreadable."""
    if _is_divided(library, gpu):
        return list(mig_uuids(library, gpu))
    with suppress(Unreadable):
        return [str(library.call("nvmlDeviceGetUUID", gpu))]
    return []


def usable_uuids(library: NvmlLibrary, environment: Mapping[str, str]) -> list[str] | None:
    """Return the UUIDs of the devices that ``CUDA_VISIBLE_DEVICES`` shows; ``None`` for all, or in doubt."""
    text = environment.get(VARIABLE)
    if text is None:
        return None
    try:
        return [_find_named(library, name).identity.uuid for name in shown_names(text)]
    except Unreadable:
        return None


def _find_named(library: NvmlLibrary, name: int | str) -> NvmlDevice:
    return _by_uuid(library, name) if isinstance(name, str) else _by_index(library, name)


def cuda_uuid(index: int) -> str | None:
    """Return the bare UUID of a device; ``None`` unless CUDA is in use, as nothing is initialised."""
    torch = _torch_in_use()
    if torch is None or index >= torch.cuda.device_count():
        return None
    return str(torch.cuda.get_device_properties(index).uuid)


def find_device(
    library: NvmlLibrary, device: int | str, uuid_of: Callable[[int], str | None] = cuda_uuid
) -> NvmlDevice:
    """Find a device by its index in this process or its UUID as CUDA would, without initialising CUDA.

    CUDA counts the fastest device first and NVML by PCI address, so among different models an index alone
    does not tell (`Unreadable`), unless CUDA is in use and says the UUID, or
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    if isinstance(device, str):
        return _by_uuid(library, device)
    uuid = uuid_of(device)
    if uuid is not None:
        found = _by_uuid(library, f"GPU-{uuid}", f"MIG-{uuid}")
        if found.identity.is_mig or not _is_divided(library, found.gpu):
            return found
        return _instance_of(library, found.gpu, device)  # CUDA has told the UUID of what it is part of
    return _find_named(library, visible_name(device, os.environ))


def _instance_of(library: NvmlLibrary, gpu: Any, index: int) -> NvmlDevice:
    """Return the MIG instance that CUDA uses, by its name or by its amount of memory."""
    with suppress(Unreadable):
        name = visible_name(index, os.environ)
        if isinstance(name, str) and name.startswith("MIG-"):
            return _by_uuid(library, name)
    total = _torch_in_use().cuda.get_device_properties(index).total_memory
    instances = list(_instances(library, gpu))
    sizes = [int(library.call("nvmlDeviceGetMemoryInfo", it).total) for it in instances]
    alike = [it for it, size in zip(instances, sizes, strict=True) if abs(size - total) <= size * _ALIKE]
    if len(alike) != 1:
        raise Unreadable(
            f"CUDA device {index} is one of {len(instances)} MIG instances, and CUDA tells the UUID of the"
            f" whole GPU; {len(alike)} of them have its {total} bytes: name it by its UUID in {VARIABLE}"
        )
    return _described(library, alike[0], gpu)


_ALIKE = 0.05  # by which CUDA's number of bytes may differ from NVML's, which has the driver's reserve


def _torch_in_use() -> Any:
    """Return torch if this process has loaded it and CUDA is initialised, without loading it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _current_index() -> int:
    torch = _torch_in_use()
    return 0 if torch is None else torch.cuda.current_device()


def _by_index(library: NvmlLibrary, index: int) -> NvmlDevice:
    """Return the device with an index of the machine, or its only MIG instance."""
    count = library.call("nvmlDeviceGetCount")
    if index >= count:
        devices = "1 device" if count == 1 else f"{count} devices"
        raise Unreadable(f"the driver shows {devices}, so none has index {index}")
    if count > 1 and os.environ.get(_ORDER) != "PCI_BUS_ID":
        handles = list(_gpus(library))
        names = {library.call("nvmlDeviceGetName", handle) for handle in handles}
        if len(handles) < count:
            names.add("one that may not be looked at")
        if len(names) > 1:
            raise Unreadable(
                f"index {index} is ambiguous among {', '.join(sorted(names))}: set {_ORDER}=PCI_BUS_ID, or"
                " name the device by its UUID"
            )
    gpu = library.call("nvmlDeviceGetHandleByIndex", index)
    if not _is_divided(library, gpu):
        return _described(library, gpu, gpu)
    instances = list(_instances(library, gpu))
    if len(instances) != 1:
        raise Unreadable(
            f"the GPU of index {index} is divided into {len(instances)} MIG instances; name one by its UUID"
        )
    return _described(library, instances[0], gpu)


def _by_uuid(library: NvmlLibrary, *beginnings: str) -> NvmlDevice:
    """Return the only device whose UUID begins with a text."""
    found = [
        (handle, gpu)
        for handle, gpu in _everything(library)
        if _or_reason(library, "nvmlDeviceGetUUID", handle).startswith(beginnings)
    ]
    if not found and "/" in beginnings[0]:
        return _by_former_name(library, beginnings[0])
    if len(found) != 1:
        how = "no device has" if not found else f"{len(found)} devices have"
        raise Unreadable(f"{how} a UUID that begins with {beginnings[0]}")
    return _described(library, *found[0])


def _by_former_name(library: NvmlLibrary, name: str) -> NvmlDevice:
    """Return the MIG instance with a name of the older form ``MIG-GPU-.../1/0``."""
    handle = library.call("nvmlDeviceGetHandleByUUID", name)
    return _described(library, handle, library.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle))


def _gpus(library: NvmlLibrary) -> Iterator[Any]:
    """Yield each accessible GPU; a container may list others that it forbids."""
    for index in range(library.call("nvmlDeviceGetCount")):
        with suppress(Unreadable):
            yield library.call("nvmlDeviceGetHandleByIndex", index)


def _everything(library: NvmlLibrary) -> Iterator[tuple[Any, Any]]:
    """Yield each GPU and each MIG instance, with the GPU that it belongs to."""
    for gpu in _gpus(library):
        yield gpu, gpu
        if _is_divided(library, gpu):
            for instance in _instances(library, gpu):
                yield instance, gpu


def _is_divided(library: NvmlLibrary, gpu: Any) -> bool:
    """Tell whether MIG is on; a GPU or driver without MIG counts as whole."""
    try:
        current, _ = library.call("nvmlDeviceGetMigMode", gpu)
    except Unreadable:
        return False
    return bool(current == library.constant("NVML_DEVICE_MIG_ENABLE"))


def mig_uuids(library: NvmlLibrary, gpu: Any) -> Iterator[str]:
    """Yield the UUID of each MIG instance of a GPU; none if MIG is off."""
    if _is_divided(library, gpu):
        for instance in _instances(library, gpu):
            with suppress(Unreadable):
                yield str(library.call("nvmlDeviceGetUUID", instance))


def _instances(library: NvmlLibrary, gpu: Any) -> Iterator[Any]:
    """Yield the MIG instances of a GPU, whose indices may have gaps."""
    try:
        places = library.call("nvmlDeviceGetMaxMigDeviceCount", gpu)
    except Unreadable:
        return
    for place in range(places):
        with suppress(Unreadable):
            yield library.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, place)


def _described(library: NvmlLibrary, handle: Any, gpu: Any) -> NvmlDevice:
    """Return a device with its identity from NVML."""
    is_mig = handle is not gpu
    identity = DeviceIdentity(
        uuid=library.call("nvmlDeviceGetUUID", handle),
        name=_or_reason(library, "nvmlDeviceGetName", handle),
        is_mig=is_mig,
        gpu_uuid=library.call("nvmlDeviceGetUUID", gpu),
        driver=_or_reason(library, "nvmlSystemGetDriverVersion"),
        nvml=_or_reason(library, "nvmlSystemGetNVMLVersion"),
    )
    instance = None
    if is_mig:
        with suppress(Unreadable):
            instance = int(library.call("nvmlDeviceGetGpuInstanceId", handle))
    return NvmlDevice(identity, handle, gpu, instance)


def _or_reason(library: NvmlLibrary, name: str, *arguments: Any) -> str:
    try:
        return str(library.call(name, *arguments))
    except Unreadable as reason:
        return f"unknown ({reason})"
