"""One test at a time, and what happens to the others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable
from pymllm.testing import gpu_gate
from pymllm.testing.gpu_gate import FOLDER, GpuBusyError, GpuGate, GpuLock, why_no_cuda
from tests.fake_nvml.machine import on_machine


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))


def test_a_gate_lets_one_at_a_time_through() -> None:
    """Whoever comes second fails or, with the lock switched off, goes ahead."""
    first = GpuGate("wait", print, lambda: "GPU-1")
    first.enter()
    second = GpuGate("fail", print, lambda: "GPU-1")
    with pytest.raises(GpuBusyError):
        second.enter()
    GpuGate("off", print, lambda: 1 / 0).enter()  # type: ignore[arg-type, return-value]  # never called
    GpuGate("fail", print, lambda: "GPU-2").enter()
    first.leave()
    second.enter()
    second.leave()


def test_whoever_waits_says_so() -> None:
    """A run that stands still tells why."""
    holder = GpuLock("GPU-1")
    holder.acquire()
    told: list[str] = []

    def say(who: str) -> None:
        told.append(who)
        holder.release()

    gate = GpuGate("wait", say, lambda: "GPU-1")
    gate.enter()
    assert len(told) == 1
    gate.leave()


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
    assert gpu_gate.device_name() == "GPU-00000000-fake"
    assert "torch" not in sys.modules


def test_without_nvml_torch_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same name, so that both kinds of programs keep out of each other's way."""
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"0-{index}"))
    monkeypatch.setattr(gpu_gate.NvmlLibrary, "open", without_driver)
    assert gpu_gate.device_name() == "GPU-0-1"


def without_driver(library: NvmlLibrary) -> None:
    raise Unreadable("no driver")


def test_why_there_is_no_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, without CUDA, and with it."""
    import torch  # Not at the top: the machines below have none.

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    why_no_cuda.cache_clear()
    assert why_no_cuda() == "torch.cuda.is_available() is False"
    why_no_cuda.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert why_no_cuda() is None
    why_no_cuda.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        assert str(why_no_cuda()).startswith("torch cannot be imported")
    why_no_cuda.cache_clear()
