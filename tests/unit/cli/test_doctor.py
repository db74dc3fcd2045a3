"""``pymllm doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, ValidationError
from msgspec.structs import replace

from pymllm.cli import main
from pymllm.cli.doctor import make_text
from pymllm.cli.schema import make_schema
from pymllm.instrument import machine_facts
from pymllm.instrument.machine_facts import (
    Counter,
    Device,
    DoctorDocument,
    TorchFacts,
    look_at_machine,
    look_at_nvml,
    look_at_torch,
)
from tests.fake_nvml.machine import GIB, FakeNvml, on_machine, say, users


def test_the_document_keeps_to_its_schema() -> None:
    """Whatever this machine has; nothing is left out where it is unknown, and nothing is added."""
    result = CliRunner().invoke(main, ["doctor", "--json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    validator, document = Draft202012Validator(make_schema("doctor")), json.loads(result.stdout)
    validator.validate(document)
    for key in ("torch", "nvml_reason", "packages"):
        with pytest.raises(ValidationError):
            validator.validate({name: value for name, value in document.items() if name != key})
    with pytest.raises(ValidationError):
        validator.validate({**document, "more": 1})


def test_the_table_is_for_people() -> None:
    """With progress asked for, that goes to standard error."""
    result = CliRunner().invoke(main, ["doctor", "--progress", "on"], catch_exceptions=False)
    assert result.exit_code == 0
    for word in ("pymllm", "Python", "torch", "NVML", "triton"):
        assert f"\n{word} " in f"\n{result.stdout}"
    assert "loading torch" in result.stderr
    assert "loading torch" not in result.stdout


def test_each_counter_of_a_device_is_read(fake_nvml: FakeNvml) -> None:
    """On a machine with a GPU: its memory, and why what cannot be read cannot."""
    command = [sys.executable, "-W", "error", "-m", "pymllm", "doctor"]
    state: dict[str, object] = {
        "used": GIB,
        "total": 8 * GIB,
        "reserved": GIB // 2,
        "processes": f"{os.getpid()}:5",
    }
    state["fail.nvmlDeviceGetUtilizationRates"] = 3
    done = fake_nvml.run(command, fake_nvml.built(), {}, **state)
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("Fake GPU, GPU-00000000-fake, driver 599.01, 8.0 GiB", "in use (without reserved) 1.0 GiB"):
        assert line in " ".join(done.stdout.split())
    assert "utilization: nvmlDeviceGetUtilizationRates: Not Supported" in done.stdout


def test_a_closed_output_is_status_2() -> None:
    """X1: as of every command, before anything is looked at."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m pymllm doctor >&-"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


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


COUNTERS = (
    Counter("memory", 8 * GIB, "bytes", None),
    Counter("a", None, "bytes", "no permission"),
    Counter("b", None, "count", "no permission"),
)
GPU = Device(name="Fake GPU", uuid="GPU-1", driver="599", capability="9.0", memory=8 * GIB, counters=COUNTERS)
LOST = Device(index=1, name="unknown", reason="it is lost")
TORCH = TorchFacts(
    version="2.13", cuda="13.0", cudnn=91000, threads=8, import_seconds=1.25, devices=(GPU, LOST)
)
DOCUMENT = DoctorDocument(
    pymllm="1",
    python="CPython 3.12",
    platform="Linux",
    processor="One",
    cores=8,
    usable_cores=2,
    memory=GIB,
    memory_available=GIB // 2,
    torch=TORCH,
    nvml="13",
    nvml_reason=None,
    nvml_devices=(GPU,),
    packages={"torch": "2.13", "triton": None},
    environment={"CUDA_VISIBLE_DEVICES": "0\n1"},
)


def words(document: DoctorDocument) -> list[str]:
    return [" ".join(line.split()) for line in make_text(document).splitlines()]


def test_everything_has_its_line() -> None:
    """What is unknown for one reason stands together."""
    lines = words(DOCUMENT)
    for line in (
        "processor One; 8 cores, 2 for this process",
        "memory 1.0 GiB, 512.0 MiB available",
        "torch 2.13, built for CUDA 13.0; loaded in 1.2 s",
        "cuDNN 91000",
        "CUDA device 0 Fake GPU, GPU-1, compute capability 9.0, driver 599, 8.0 GiB",
        "CUDA device 1 unknown (it is lost)",
        "device 0 Fake GPU, GPU-1, compute capability 9.0, driver 599, 8.0 GiB",
        "unknown a, b: no permission",
        "triton not installed",
        r"CUDA_VISIBLE_DEVICES 0\n1",
    ):
        assert line in lines


def test_a_machine_without_anything_has_reasons() -> None:
    """No torch, no NVML, nothing set."""
    bare = TorchFacts(reason="there is none")
    lines = words(replace(DOCUMENT, torch=bare, nvml=None, nvml_reason="no driver", environment={}))
    assert "torch unknown (there is none)" in lines
    assert "NVML unknown (no driver)" in lines


def test_other_builds_and_no_devices_are_told() -> None:
    """HIP, CPU only, a driver without devices."""
    rocm = replace(TORCH, cuda=None, hip="6.4", cudnn=None, devices=(), reason="none there")
    lines = words(replace(DOCUMENT, torch=rocm, nvml_devices=()))
    assert "torch 2.13, built for HIP 6.4; loaded in 1.2 s" in lines
    assert "CUDA devices none (none there)" in lines
    assert "devices none" in lines
    assert not any(line.startswith("cuDNN") for line in lines)
    assert any("built for CPU" in it for it in words(replace(DOCUMENT, torch=replace(rocm, hip=None))))
