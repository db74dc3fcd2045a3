"""The lines of a look at a machine."""

from __future__ import annotations

from dataclasses import replace

from pymllm.cli.doctor_document import SCHEMA, VERSION, Counter, Device, Document, Torch
from pymllm.cli.doctor_table import make_text

GIB = 1 << 30
COUNTERS = (
    Counter("memory", 8 * GIB, "bytes", None),
    Counter("a", None, "bytes", "no permission"),
    Counter("b", None, "count", "no permission"),
)
GPU = Device(0, "Fake GPU", "GPU-1", "599", "9.0", 8 * GIB, None, COUNTERS)
LOST = Device(1, "unknown", None, None, None, None, "it is lost", ())
TORCH = Torch("2.13", "13.0", None, 91000, 8, 1.25, None, (GPU, LOST), ())
DOCUMENT = Document(
    schema=SCHEMA,
    version=VERSION,
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


def words(document: Document) -> list[str]:
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
    bare = Torch(None, None, None, None, None, 0.0, "there is none", (), ())
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
