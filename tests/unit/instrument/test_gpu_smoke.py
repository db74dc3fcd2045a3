"""Tests of the steps of ``pymllm doctor --smoke`` on a GPU; the CPU stands in for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.instrument.documents import SmokeFacts, SmokeStep
from pymllm.instrument.gpu_smoke import COUNT, look_at_smoke, run_kernel, smoke_trouble, try_device

STEPS = ["allocate", "launch", "compile", "copy back", "compare"]
CPU = torch.device("cpu")


def plain(source: torch.Tensor, target: torch.Tensor) -> None:
    torch.add(source, 1, out=target)


def refuse(source: torch.Tensor, target: torch.Tensor) -> None:
    raise RuntimeError("Failed to find C compiler.\nPlease specify it")


def idle(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def test_a_device_that_computes_passes_every_step() -> None:
    """Allocate, launch, compile, copy back, compare."""
    steps = list(try_device(torch, CPU, plain))
    assert [(step.name, step.reason) for step in steps] == [(name, None) for name in STEPS]
    assert all(step.seconds >= 0 for step in steps)


@pytest.mark.parametrize(
    ("compiled", "name", "reason"),
    [
        (refuse, "compile", "RuntimeError: Failed to find C compiler. Please specify it"),
        (idle, "compare", f"ValueError: {COUNT} of {COUNT} numbers are wrong"),
    ],
)
def test_the_step_that_fails_is_the_last(
    compiled: Callable[[Any, Any], None], name: str, reason: str
) -> None:
    """Without a compiler, and with a kernel that does nothing; the reason is one line."""
    steps = list(try_device(torch, CPU, compiled))
    assert [step.name for step in steps] == STEPS[: STEPS.index(name) + 1]
    assert steps[-1].reason == reason
    assert list(smoke_trouble(SmokeFacts(steps=tuple(steps)))) == [f"smoke: CUDA device 0: {name}: {reason}"]


def test_every_device_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device is tried after one that fails, and each step is told before the next begins."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("TRITON_CACHE_DIR", "before")
    asked = []

    def tried(torch_: Any, device: torch.device, compiled: object) -> Any:
        asked.append((device.index, compiled))
        yield SmokeStep(device=device.index, name="allocate", seconds=0.1)
        yield SmokeStep(device=device.index, name="launch", seconds=0.1, reason="RuntimeError: lost")

    monkeypatch.setattr("pymllm.instrument.gpu_smoke.try_device", tried)
    found = list(look_at_smoke())
    assert [len(facts.steps) for facts in found] == [1, 2, 3, 4]
    assert asked == [(0, run_kernel), (1, run_kernel)]
    assert list(smoke_trouble(found[-1])) == [
        f"smoke: CUDA device {index}: launch: RuntimeError: lost" for index in (0, 1)
    ]


def test_nothing_to_try_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing GPU is told as trouble, and a look that hung is not told twice."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (facts,) = look_at_smoke()
    told = "there is no GPU to try: torch.cuda.is_available() is False"
    assert facts == SmokeFacts(reason=told)
    assert list(smoke_trouble(facts)) == [f"smoke: {told}"]
    assert list(smoke_trouble(SmokeFacts(reason="it hung: no answer within 20 s"))) == []

    def fail() -> bool:
        raise RuntimeError("CUDA unknown error")

    monkeypatch.setattr(torch.cuda, "is_available", fail)
    (facts,) = look_at_smoke()
    assert facts.reason == "there is no GPU to try: RuntimeError: CUDA unknown error"


@pytest.mark.gpu
def test_a_gpu_passes() -> None:
    """Triton compiles, and the driver loads what it made."""
    steps = list(try_device(torch, torch.device("cuda", 0), run_kernel))
    assert [(step.name, step.reason) for step in steps] == [(name, None) for name in STEPS]
