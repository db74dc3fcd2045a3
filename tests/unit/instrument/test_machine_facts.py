"""Tests of the facts of a machine: torch, NVML, the reasons for missing facts, the source of figures."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import pymllm
from pymllm.instrument import machine_facts
from pymllm.instrument import provenance as module
from pymllm.instrument.documents import Device, Probe, TorchFacts
from pymllm.instrument.machine_facts import NvmlFacts, look_at_machine, look_at_nvml, look_at_torch
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


def torch_facts() -> TorchFacts:
    """All that a look at torch finds."""
    return list(look_at_torch())[-1]


def nvml_facts() -> NvmlFacts:
    """All that a look at NVML finds."""
    return list(look_at_nvml())[-1]


def test_every_look_is_told() -> None:
    """A person who waits for torch sees that something goes on."""
    told: list[int] = []
    look_at_machine(told.append)
    assert told == [1, 2, 3]


def test_devices_of_torch_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, UUID, capability and memory."""
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    found = torch_facts()
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
    found = torch_facts()
    assert (found.reason, found.devices) == (reason, ())


def test_a_device_that_cannot_be_asked_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two is lost."""

    def properties(index: int) -> SimpleNamespace:
        return raising() if index == 0 else PROPERTIES  # type: ignore[no-any-return]  # raising never returns

    monkeypatch.setitem(
        sys.modules, "torch", torch_with(device_count=lambda: 2, get_device_properties=properties)
    )
    lost, fine = torch_facts().devices
    assert (lost.reason, fine.name) == ("RuntimeError: CUDA error: all devices are busy", "H100")


@pytest.mark.parametrize("error", [ImportError("no torch"), OSError("libcudart.so.13: no such file")])
def test_a_torch_that_cannot_be_loaded_is_a_reason(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation is what bug reports are about."""

    def failing(name: str) -> None:
        raise error

    monkeypatch.setattr(machine_facts.importlib, "import_module", failing)
    found = torch_facts()
    assert found.version is None
    assert found.reason == f"torch cannot be imported: {type(error).__name__}: {error}"


def test_a_cudnn_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch raises for it; the rest is still told."""
    torch = torch_with()
    torch.backends.cudnn.version = raising
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch_facts().cudnn is None


@on_machine(utilization=30, total=8 * GIB)
def test_nvml_tells_its_devices_and_counters() -> None:
    """Each counter of a device has its value and unit, or its reason."""
    facts = nvml_facts()
    (device,) = facts.devices
    assert (facts.reason, facts.sick) == (None, ())
    assert facts.version
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
    facts = nvml_facts()
    assert "nvmlDeviceGetUUID" in str(facts.devices[0].reason)
    assert ["nvmlDeviceGetUUID" in it for it in facts.sick] == [True]
    assert users() == 0


@on_machine(gpus=2, gpu1__mig=2, mig__places=4)
def test_the_instances_of_a_divided_gpu_are_listed() -> None:
    """By the UUIDs that CUDA_VISIBLE_DEVICES and the tracker take; a whole GPU has none."""
    devices = nvml_facts().devices
    assert [(it.index, str(it.uuid)[:4]) for it in devices] == [
        (0, "GPU-"), (1, "GPU-"), (1, "MIG-"), (1, "MIG-")
    ]  # fmt: skip
    assert len({it.uuid for it in devices}) == 4
    assert [it.reason for it in devices] == [None] * 4
    assert users() == 0


@on_machine(gpus=0)
def test_a_driver_without_devices_is_no_error() -> None:
    """Such as in a container that was given none."""
    facts = nvml_facts()
    assert facts == NvmlFacts(version=facts.version)
    assert facts.version


@on_machine()
def test_a_driver_that_breaks_is_a_reason() -> None:
    """The library loads, and refuses."""
    say(fail__nvmlDeviceGetCount_v2=999)
    facts = nvml_facts()
    assert (facts.version, facts.devices) == (None, ())
    assert "nvmlDeviceGetCount" in str(facts.reason)
    assert facts.sick == (f"NVML: {facts.reason}",)
    say(init=12)
    facts = nvml_facts()
    assert "nvmlInit" in str(facts.reason)
    assert facts.sick == ()
    assert users() == 0


@on_machine(gpus=4)
def test_a_gpu_that_calls_for_a_person_is_sick() -> None:
    """A GPU that is lost, or with failing memory, is sick; a forbidden value is no complaint."""
    say(gpus=4, gpu0__lost=1, gpu1__ecc__uncorrected=2, gpu2__remapped__failed=1, gpu3__forbidden=1)
    lost, ecc, rows = nvml_facts().sick
    assert lost.startswith("GPU 0: nvmlDeviceGetUUID: ")
    assert ecc == "GPU 1 (GPU-00000001-fake): 2 uncorrected ECC errors since the driver was loaded"
    assert rows == "GPU 2 (GPU-00000002-fake): a row of memory could not be remapped"
    assert users() == 0


@on_machine(gpus=4)
def test_the_trouble_of_others_gpus_is_not_ours() -> None:
    """Trouble of a GPU that CUDA hides from this process is ignored; in doubt it counts."""
    state: dict[str, object] = {"gpus": 4, "gpu0__lost": 1, "gpu1__ecc__uncorrected": 2, "gpu2__mig": 1}
    say(**state)
    os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-00000003"
    assert (nvml_facts().sick, nvml_facts().usable) == ((), ("GPU-00000003-fake",))
    os.environ["CUDA_VISIBLE_DEVICES"] = "MIG-00000002"
    assert (nvml_facts().sick, nvml_facts().usable) == ((), ("MIG-00000002-0000-fake",))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    assert (nvml_facts().sick, nvml_facts().usable) == ((), ())
    for shown in ("GPU-00000001", "GPU-0"):  # the one that fails, and a name that could be many
        os.environ["CUDA_VISIBLE_DEVICES"] = shown
        assert "2 uncorrected ECC errors" in nvml_facts().sick[-1]
    del os.environ["CUDA_VISIBLE_DEVICES"]
    assert nvml_facts().usable == ("GPU-00000001-fake", "MIG-00000002-0000-fake", "GPU-00000003-fake")
    assert len(nvml_facts().sick) == 2


def test_a_cuda_that_complains_makes_a_machine_sick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A complaint of CUDA makes a machine sick, and a missing device only if it was asked for."""

    class Look:
        """A look that has found what a test wants."""

        found = TorchFacts(version="2.13", cuda="13.0", reason="torch.cuda.is_available() is False")

        def __init__(self, name: str, kind: type[Any], until: float, deadline: float) -> None:
            self.name, self.kind = name, kind

        def wait(self, seconds: float) -> bool:
            return True

        def end(self) -> tuple[Any, Probe]:
            facts = self.found if self.kind is TorchFacts else self.kind()
            return facts, Probe(name=self.name, seconds=0.0, outcome="answered")

        def leave(self) -> None: ...

    monkeypatch.setattr(machine_facts, "_Look", Look)
    assert look_at_machine().sick == ()
    no_device = "no CUDA device for torch: torch.cuda.is_available() is False"
    assert look_at_machine(require_gpu=True).sick == (no_device,)
    assert look_at_machine(min_free=GIB).sick == ("1.0 GiB free are wanted, and NVML tells of no GPU",)
    Look.found = replace(Look.found, reason="The NVIDIA driver on your system is too old")
    assert look_at_machine().sick == ("torch: The NVIDIA driver on your system is too old",)
    Look.found = replace(Look.found, reason=None, devices=(Device(name="unknown", reason="all are busy"),))
    assert look_at_machine().sick == ("CUDA device 0: all are busy",)


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
