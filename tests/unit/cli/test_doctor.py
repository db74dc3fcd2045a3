"""``pymllm doctor``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, ValidationError
from msgspec.structs import replace

from pymllm.cli import main
from pymllm.cli.doctor import duration, make_text
from pymllm.cli.schema import make_schema
from pymllm.instrument.documents import Counter, Device, DoctorDocument, TorchFacts
from tests.fake_nvml.machine import GIB, FakeNvml


def test_the_document_keeps_to_its_schema() -> None:
    """The document of any machine keeps to its schema: no field is left out, and none is added."""
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


Doctor = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def doctor(fake_nvml: FakeNvml, tmp_path: Path) -> Doctor:
    """Runs the command on such a machine: status, lines with single spaces, what it complained of."""
    (tmp_path / "torch.py").write_text("raise ImportError('it takes long to load')")

    def run(*options: str, **state: object) -> tuple[int, list[str], str]:
        command = [sys.executable, "-m", "pymllm", "doctor", *options]
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = fake_nvml.run(command, fake_nvml.built(), {"PYTHONPATH": os.pathsep.join(paths)}, **state)
        return done.returncode, [" ".join(line.split()) for line in done.stdout.splitlines()], done.stderr

    return run


def test_a_driver_that_hangs_is_named_at_the_deadline(doctor: Doctor, tmp_path: Path) -> None:
    """The machine is sick, what was known before is told, and nothing asks the driver again."""
    options = ("--deadline", "15s", "--json", "--store", str(tmp_path / "store"))
    status, lines, complaint = doctor(*options, gpus=2, **{"gpu1.hang.nvmlDeviceGetMemoryInfo_v2": 1})
    assert status == 4
    document = json.loads("\n".join(lines))
    Draft202012Validator(make_schema("doctor")).validate(document)
    reason = "no answer within 15 s, in nvmlDeviceGetMemoryInfo"
    assert document["sick"] == [f"NVML hung: {reason}"]
    nvml, torch = document["probes"]
    assert (nvml["name"], nvml["outcome"], nvml["reason"]) == ("NVML", "hung", reason)
    assert (torch["name"], torch["outcome"], torch["reason"]) == ("torch", "answered", None)
    assert [it["uuid"] for it in document["nvml_devices"]] == ["GPU-00000000-fake"]
    assert document["nvml_reason"] == f"it hung: {reason}"
    assert not (tmp_path / "store").exists()
    assert complaint.startswith("pymllm: --store ")


def test_a_library_that_crashes_does_not_take_the_command_along(doctor: Doctor) -> None:
    """It is named with its signal, and torch is looked at all the same."""
    status, lines, _ = doctor(**{"crash.nvmlDeviceGetCount_v2": 1})
    assert status == 4
    assert lines[0] == "sick NVML died: its process ended with signal 6 (Aborted), in nvmlDeviceGetCount"
    assert "torch unknown (torch cannot be imported: ImportError: it takes long to load)" in lines


# Torch as it is where a driver hangs: it sees one GPU, and the first launch never returns.
HANGING_TORCH = """
import time
__version__ = "2.13.0+cu130"
class version: cuda = "13.0"; hip = None
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    is_initialized = staticmethod(lambda: False)
    set_device = synchronize = staticmethod(lambda device: None)
    @staticmethod
    def get_device_properties(index): raise RuntimeError("not asked here")
class backends:
    class cudnn: version = staticmethod(lambda: None)
class device:
    type = "cuda"
    def __init__(self, kind, index): self.index = index
int32 = "int32"
get_num_threads = lambda: 1
empty = lambda *shape, **options: []
def arange(*ends, out=None, **options):
    def launch_kernel(): time.sleep(600)
    if out is not None: launch_kernel()
"""


def test_a_gpu_that_hangs_in_its_first_launch_is_named(doctor: Doctor, tmp_path: Path) -> None:
    """With the steps before, within the deadline, by a process that nobody waits for."""
    (tmp_path / "torch.py").write_text(HANGING_TORCH)
    status, lines, _ = doctor("--smoke", "--deadline", "8s")
    assert status == 4
    assert "sick smoke hung: no answer within 8 s, in launch_kernel" in lines
    (row,) = (line for line in lines if line.startswith("smoke, CUDA device 0"))
    assert row.startswith("smoke, CUDA device 0 allocate 0.0")
    assert "launch" not in row


def test_where_there_is_no_gpu_smoke_says_so(doctor: Doctor) -> None:
    """What was not tried is not sound; without the option nobody asks."""
    reason = "there is no GPU to try: ImportError: it takes long to load"
    status, lines, _ = doctor("--smoke")
    assert (status, lines[0]) == (4, f"sick smoke: {reason}")
    assert f"smoke {reason}" in lines
    status, lines, _ = doctor()
    assert status == 0
    assert not any(line.startswith("smoke") for line in lines)


@pytest.mark.parametrize(
    ("options", "state", "status", "first"),
    [
        ((), {}, 0, "healthy nothing wrong was found"),
        ((), {"lost": 1}, 4, "sick GPU 0: nvmlDeviceGetUUID: "),
        (("--min-free", "6.5"), {}, 0, "healthy"),
        (("--min-free", "6.6"), {}, 4, "sick GPU GPU-00000000-fake: 6.6 GiB free are wanted, there are 6.5"),
        (("--min-free", "1"), {"fail.nvmlDeviceGetMemoryInfo_v2": 13, "v1.used": "all"}, 4,
         "sick GPU GPU-00000000-fake: 1.0 GiB free are wanted, and NVML does not tell"),
        (("--min-free", "6"), {"mig": 1, "gpu0.v1.used": "all", "gpu0.fail.nvmlDeviceGetMemoryInfo_v2": 13,
          "gpu0.mig0.fail.nvmlDeviceGetMemoryInfo_v2": 0}, 0, "healthy"),
        (("--require-gpu",), {}, 4, "sick no CUDA device for torch: "),
    ],
)  # fmt: skip
def test_the_status_says_whether_the_machine_is_sick(
    doctor: Doctor, options: tuple[str, ...], state: dict[str, object], status: int, first: str
) -> None:
    """The first line says why; what is merely missing is no reason."""
    found, lines, _ = doctor(*options, **state)
    assert found == status
    assert lines[0].startswith(first)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20.0), ("2m", 120.0), ("1.5h", 5400.0), ("500ms", 0.5), (" 20 ", 20.0), ("24h", 86_400.0)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    """With a unit, or in seconds as other limits."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "20x", "-1s", "0s", "25h", "nan", "1e3", "9" * 5000])
def test_what_is_no_time_is_refused(text: str) -> None:
    """X1: with the bounds, and how to write one."""
    result = CliRunner().invoke(main, ["doctor", "--deadline", text])
    assert result.exit_code == 2
    assert result.stderr.startswith("pymllm: Invalid value for '--deadline': ")
    assert "is not a time in 0.1s..24h; write 20s, 2m or 500ms." in result.stderr


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
    nvml_reason="it hung",
    nvml_devices=(GPU,),
    sick=("NVML hung",),
    packages={"torch": "2.13", "triton": None},
    environment={"CUDA_VISIBLE_DEVICES": "0\n1"},
)


def words(document: DoctorDocument) -> list[str]:
    return [" ".join(line.split()) for line in make_text(document).splitlines()]


def test_everything_has_its_line() -> None:
    """Each fact has its line, and facts that are unknown for the same reason share a line."""
    lines = words(DOCUMENT)
    for line in (
        "sick NVML hung",
        "more unknown (it hung)",
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
    lines = words(replace(DOCUMENT, torch=rocm, nvml_reason=None, nvml_devices=()))
    assert "torch 2.13, built for HIP 6.4; loaded in 1.2 s" in lines
    assert "CUDA devices none (none there)" in lines
    assert "devices none" in lines
    assert not any(line.startswith("cuDNN") for line in lines)
    assert any("built for CPU" in it for it in words(replace(DOCUMENT, torch=replace(rocm, hip=None))))
