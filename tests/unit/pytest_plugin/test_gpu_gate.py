"""One test at a time on a GPU, among processes, and what happens to the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable
from pymllm.pytest_plugin import gpu_gate
from pymllm.pytest_plugin.gpu_gate import FOLDER, GpuBusyError, GpuGate, GpuLock, why_no_cuda
from tests.fake_nvml.machine import on_machine

HOLD = """
import pathlib, sys, time
from pymllm.pytest_plugin.gpu_gate import GpuLock
lock = GpuLock("GPU-1", pathlib.Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
lock.release()
print("released", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()


def test_a_held_lock_is_refused_with_the_holders_number(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    """A lock that is held is refused with the number of the process that holds the GPU."""
    lock = GpuLock("GPU-1", tmp_path)
    with pytest.raises(GpuBusyError, match=f"GPU-1 is in use by process {holder.pid}; its lock is "):
        lock.acquire(wait=False)
    assert not lock.is_held
    GpuLock("GPU-2", tmp_path).acquire(wait=False)


def test_whoever_waits_gets_the_lock_when_it_is_released(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    """The wait is announced once, and ends while the holder lives on."""
    told: list[str] = []

    def let_go(who: str) -> None:
        told.append(who)
        assert holder.stdin is not None
        holder.stdin.close()

    lock = GpuLock("GPU-1", tmp_path)
    lock.acquire(before_waiting=let_go)
    assert lock.is_held
    assert holder.poll() is None
    assert told == [f"GPU-1 is in use by process {holder.pid}"]
    lock.release()
    assert not lock.is_held


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """A crash does not block a GPU until somebody removes a file."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock = GpuLock("GPU-1", tmp_path)
    lock.acquire(wait=False)
    assert lock.path.read_text(encoding="ascii") == f"process {os.getpid()}\n"
    lock.release()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A test that leaves a child behind does not block the next."""
    lock = GpuLock("GPU-1", tmp_path)
    lock.acquire()
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    lock.release()
    try:
        other = GpuLock("GPU-1", tmp_path)
        other.acquire(wait=False)
        assert other.is_held
        assert child.poll() is None
        other.release()
    finally:
        child.kill()
        child.wait()


def test_taking_and_releasing_twice_is_no_error(tmp_path: Path) -> None:
    """A test that fails half way is cleaned up like any other."""
    lock = GpuLock("GPU-1", tmp_path)
    lock.release()
    lock.acquire()
    lock.acquire()
    descriptors = len(os.listdir("/proc/self/fd"))
    lock.release()
    lock.release()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1


def test_an_error_while_waiting_leaves_nothing_open(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """Ctrl-C in the wait."""

    def interrupt(who: str) -> None:
        raise KeyboardInterrupt

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        GpuLock("GPU-1", tmp_path).acquire(before_waiting=interrupt)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_folder_is_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share a GPU can share a folder; a name cannot leave it."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert GpuLock("MIG-1/../2").path == tmp_path / "pymllm-MIG-1_.._2.lock"
    monkeypatch.delenv(FOLDER)
    assert GpuLock("GPU-1").path.name == "pymllm-GPU-1.lock"


def test_a_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """In a folder that everybody writes to, a link may lead anywhere."""
    (tmp_path / "pymllm-GPU-1.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        GpuLock("GPU-1", tmp_path).acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_of_another_user_can_be_taken(tmp_path: Path) -> None:
    """A lock file that may only be read serves as well, without the number of its holder."""
    lock = GpuLock("GPU-1", tmp_path)
    lock.path.write_bytes(b"")
    lock.path.chmod(0o444)
    lock.acquire(wait=False)
    began = time.monotonic()
    with pytest.raises(GpuBusyError):
        GpuLock("GPU-1", tmp_path).acquire(wait=False)
    assert time.monotonic() - began < 60
    lock.release()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))


def test_a_gate_lets_one_at_a_time_through() -> None:
    """Whoever comes second fails or, with the lock switched off, goes ahead."""
    first = GpuGate("wait", print, lambda: ["GPU-1"])
    first.enter()
    second = GpuGate("fail", print, lambda: ["GPU-1"])
    with pytest.raises(GpuBusyError):
        second.enter()
    GpuGate("off", print, lambda: 1 / 0).enter()  # type: ignore[arg-type, return-value]  # never called
    GpuGate("fail", print, lambda: ["GPU-2"]).enter()
    first.leave()
    second.enter()
    second.leave()


def test_leaving_without_entering_is_no_error() -> None:
    """A test that was skipped is torn down, too."""
    told: list[str] = []
    gate = GpuGate("wait", told.append, lambda: pytest.fail("nobody asks for the device"))
    gate.leave()
    gate.leave()
    assert told == []


@on_machine()
def test_the_device_is_named_by_its_uuid() -> None:
    """All programs of a machine know it by that, and neither torch nor CUDA is needed to ask."""
    assert gpu_gate.device_names() == ["GPU-00000000-fake"]
    assert "torch" not in sys.modules


def test_without_nvml_torch_names_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same names, so that both kinds of programs keep out of each other's way."""
    from tests.fake_cuda import FakeCuda  # Not at the top: the machines have no torch.

    FakeCuda().install(monkeypatch.setattr).set_device(1)
    monkeypatch.setattr(NvmlLibrary, "open", without_driver)
    assert gpu_gate.device_names() == ["GPU-00000001-fake", "GPU-00000000-fake"]


def test_a_gate_takes_all_gpus_or_none() -> None:
    """A gate that cannot have the second GPU lets the first go, and gates ask in the same order."""
    held = GpuLock("GPU-2")
    held.acquire()
    gate = GpuGate("fail", print, lambda: ["GPU-2", "GPU-1"])
    with pytest.raises(GpuBusyError, match="GPU-2 is in use"):
        gate.enter()
    first = GpuLock("GPU-1")
    first.acquire(wait=False)
    for lock in (first, held):
        lock.release()


def without_driver(library: NvmlLibrary, patience: float | None = None) -> None:
    raise Unreadable("no driver")


class Broken:
    """A torch for CUDA that finds no device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch  # Not at the top: the machines above have none.

        self.patch = monkeypatch
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.answer(False)

    def answer(self, found: bool, warning: str = "", error: str = "") -> None:
        """Let it say so when it is asked for a device."""
        import torch

        def is_available() -> bool:
            if error:
                raise RuntimeError(error)
            if warning:
                warnings.warn(warning, stacklevel=1)
            return found

        self.patch.setattr(torch.cuda, "is_available", is_available)

    def why(self) -> str:
        """Return the reason why CUDA is missing, in a run where warnings are errors."""
        why_no_cuda.cache_clear()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return str(why_no_cuda())
        finally:
            why_no_cuda.cache_clear()


def test_why_there_is_no_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cause of a missing device is named, with its remedy."""
    import torch

    why_no_cuda.cache_clear()
    if torch.version.cuda is None:
        wheel = f"torch {torch.__version__} is built without CUDA; pytorch.org/get-started has builds with it"
        assert why_no_cuda() == wheel
    broken = Broken(monkeypatch)
    broken.answer(True)
    assert broken.why() == "None"
    broken.answer(False, "The NVIDIA driver on your system is too old\n (found version 11040)")
    driver = "The NVIDIA driver on your system is too old (found version 11040)"
    assert broken.why() == f"CUDA does not start: {driver}"
    broken.answer(False, error="CUDA error: unknown")
    assert broken.why() == "CUDA cannot be asked: CUDA error: unknown"
    broken.answer(False)
    for shown in ("", "-1", "0,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        remedy = "shows no device; unset it, or name one, such as CUDA_VISIBLE_DEVICES=0"
        assert broken.why() == f"CUDA_VISIBLE_DEVICES={shown!r} {remedy}"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(NvmlLibrary, "open", without_driver)
    assert "the NVIDIA driver cannot be asked either (no driver): nvidia-smi must list" in broken.why()
    monkeypatch.setattr(NvmlLibrary, "open", lambda library, patience: None)
    monkeypatch.setattr(NvmlLibrary, "call", lambda library, name: 2)
    assert broken.why().endswith("is False; the driver lists 2 of them: pymllm doctor shows more")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert broken.why().startswith("torch cannot be imported")
