"""What there is on a machine: torch, NVML, why what is missing is, and where a figure is from."""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pymllm
from pymllm.instrument import machine_facts
from pymllm.instrument import provenance as module
from pymllm.instrument.machine_facts import look_at_machine, look_at_nvml, look_at_torch
from pymllm.instrument.provenance import build_version
from tests.fake_nvml.machine import GIB, on_machine, say, users

PROPERTIES = SimpleNamespace(name="H100", uuid="0-1", major=9, minor=0, total_memory=80 * GIB)


def torch_with(**cuda: Any) -> SimpleNamespace:
    """A torch with CUDA that behaves like this."""
    return SimpleNamespace(
        __version__="2.13.0+cu130",
        version=SimpleNamespace(cuda="13.0", hip=None),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91000)),
        get_num_threads=lambda: 8,
        cuda=SimpleNamespace(
            **{
                "is_available": lambda: True,
                "device_count": lambda: 1,
                "get_device_properties": lambda index: PROPERTIES,
                "is_initialized": lambda: False,
                **cuda,
            }
        ),
    )


def raising(*arguments: object) -> Any:
    raise RuntimeError("CUDA error:\n  all devices are busy")


def warning() -> bool:
    warnings.warn("The NVIDIA driver on your system\nis too old", UserWarning, stacklevel=1)
    return False


def test_every_look_is_told() -> None:
    """A person who waits for torch sees that something goes on."""
    told: list[int] = []
    look_at_machine(told.append)
    assert told == [1, 2, 3]


def test_devices_of_torch_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, UUID, capability and memory."""
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    found = look_at_torch()
    assert (found.version, found.cuda, found.cudnn, found.threads) == ("2.13.0+cu130", "13.0", 91000, 8)
    (device,) = found.devices
    assert (device.name, device.uuid, device.capability, device.memory) == ("H100", "0-1", "9.0", 80 * GIB)
    assert {counter.reason for counter in found.counters} == {"CUDA is not initialised in this process"}


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [
        ({"is_available": lambda: False}, "torch.cuda.is_available() is False"),
        ({"is_available": warning}, "The NVIDIA driver on your system is too old"),
        ({"device_count": raising}, "RuntimeError: CUDA error: all devices are busy"),
    ],
)
def test_why_torch_sees_no_device_is_told(
    cuda: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, and torch's warning is the reason, not noise."""
    monkeypatch.setitem(sys.modules, "torch", torch_with(**cuda))
    found = look_at_torch()
    assert (found.reason, found.devices) == (reason, ())


def test_a_device_that_cannot_be_asked_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two is lost."""

    def properties(index: int) -> SimpleNamespace:
        return raising() if index == 0 else PROPERTIES  # type: ignore[no-any-return]  # raising never returns

    monkeypatch.setitem(
        sys.modules, "torch", torch_with(device_count=lambda: 2, get_device_properties=properties)
    )
    lost, fine = look_at_torch().devices
    assert (lost.reason, fine.name) == ("RuntimeError: CUDA error: all devices are busy", "H100")


@pytest.mark.parametrize("error", [ImportError("no torch"), OSError("libcudart.so.13: no such file")])
def test_a_torch_that_cannot_be_loaded_is_a_reason(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation is what bug reports are about."""

    def failing(name: str) -> None:
        raise error

    monkeypatch.setattr(machine_facts.importlib, "import_module", failing)
    found = look_at_torch()
    assert found.version is None
    assert found.reason == f"torch cannot be imported: {type(error).__name__}: {error}"


def test_a_cudnn_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch raises for it; the rest is still told."""
    torch = torch_with()
    torch.backends.cudnn.version = raising
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert look_at_torch().cudnn is None


@on_machine(utilization=30, total=8 * GIB)
def test_nvml_tells_its_devices_and_counters() -> None:
    """What each reads, with its unit."""
    version, reason, (device,) = look_at_nvml()
    assert reason is None
    assert version
    assert (device.name, device.uuid, device.memory) == ("Fake GPU", "GPU-00000000-fake", 8 * GIB)
    counters = {it.name: it for it in device.counters}
    assert (counters["utilization"].value, counters["utilization"].unit) == (30, "%")
    assert counters["in use (without reserved)"].value == GIB
    assert counters["in use by this process"].value is None
    assert "is not among the" in str(counters["in use by this process"].reason)
    assert users() == 0


@on_machine(fail__nvmlDeviceGetUUID=999)
def test_a_device_without_a_name_is_a_reason() -> None:
    """Nothing else can be asked of it."""
    _, _, (device,) = look_at_nvml()
    assert "nvmlDeviceGetUUID" in str(device.reason)
    assert users() == 0


@on_machine(gpus=2, gpu1__mig=2, mig__places=4)
def test_the_instances_of_a_divided_gpu_are_listed() -> None:
    """By the UUIDs that CUDA_VISIBLE_DEVICES and the tracker take; a whole GPU has none."""
    _, _, devices = look_at_nvml()
    assert [(it.index, str(it.uuid)[:4]) for it in devices] == [
        (0, "GPU-"), (1, "GPU-"), (1, "MIG-"), (1, "MIG-")
    ]  # fmt: skip
    assert len({it.uuid for it in devices}) == 4
    assert [it.reason for it in devices] == [None] * 4
    assert users() == 0


@on_machine(gpus=0)
def test_a_driver_without_devices_is_no_error() -> None:
    """Such as in a container that was given none."""
    version, reason, devices = look_at_nvml()
    assert (version is not None, reason, devices) == (True, None, ())


@on_machine()
def test_a_driver_that_breaks_is_a_reason() -> None:
    """The library loads, and refuses."""
    say(fail__nvmlDeviceGetCount_v2=999)
    version, reason, devices = look_at_nvml()
    assert (version, devices) == (None, ())
    assert "nvmlDeviceGetCount" in str(reason)
    assert users() == 0


def test_a_change_of_the_source_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: runs of different code are no duplicates."""
    package = tmp_path / "pymllm"
    (package / "instrument").mkdir(parents=True)
    shutil.copy(pymllm.__file__, package / "__init__.py")
    monkeypatch.setattr(module, "__file__", str(package / "instrument" / "provenance.py"))
    before = build_version.__wrapped__()
    assert before == build_version.__wrapped__()
    assert before.startswith(f"{pymllm.__version__}+")
    (package / "more.py").write_text("", encoding="utf-8")
    assert build_version.__wrapped__() != before
