"""The check of ``pymllm doctor --smoke`` that each GPU runs a first program.

It is done by a process of its own, since a driver that hangs would take whoever waits for it along.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from pymllm.instrument.documents import SmokeFacts, SmokeStep

COUNT: Final = 1 << 20
"""The number of values in the program, which take 4 MiB."""
_BLOCK: Final = 1024
Compile = Callable[[Any, Any], None]


def look_at_smoke() -> Iterator[SmokeFacts]:
    """Try every device that torch shows, and yield the steps so far after each new one."""
    try:
        torch = importlib.import_module("torch")
        there = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    except Exception as error:  # whatever a torch that does not fit raises
        yield SmokeFacts(reason=f"there is no GPU to try: {said(error)}")
        return
    if not there:
        yield SmokeFacts(reason="there is no GPU to try: torch.cuda.is_available() is False")
        return
    steps: tuple[SmokeStep, ...] = ()
    with tempfile.TemporaryDirectory() as folder:  # or an earlier compilation would be found
        os.environ["TRITON_CACHE_DIR"] = folder
        for index in there:
            for step in try_device(torch, torch.device("cuda", index), run_kernel):
                steps = (*steps, step)
                yield SmokeFacts(steps=steps)


def run_kernel(source: Any, target: Any) -> None:
    """Compile and run a Triton kernel, which needs a C compiler, Python.h, and a suitable driver."""
    from pymllm.instrument.smoke_kernel import add_one

    add_one[(COUNT // _BLOCK,)](source, target, _BLOCK)


def try_device(torch: Any, device: Any, compiled: Compile) -> Iterator[SmokeStep]:
    """Yield each step on a device, up to the first failure; each step is completed before the next."""
    tensors: dict[str, Any] = {}
    expected = torch.arange(1, COUNT + 1, dtype=torch.int32)

    def allocate() -> None:
        for name in ("source", "target"):
            tensors[name] = torch.empty(COUNT, dtype=torch.int32, device=device)

    def launch() -> None:
        torch.arange(COUNT, out=tensors["source"])

    def compile_() -> None:
        compiled(tensors["source"], tensors["target"])

    def copy_back() -> None:
        tensors["back"] = tensors["target"].cpu()

    def compare() -> None:
        wrong = int((tensors["back"] != expected).sum())
        if wrong:
            raise ValueError(f"{wrong} of {COUNT} numbers are wrong")

    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    for step in (allocate, launch, compile_, copy_back, compare):
        began, reason = time.perf_counter(), None
        try:
            step()
            if is_cuda:
                torch.cuda.synchronize(device)
        except Exception as error:
            reason = said(error)
        name = step.__name__.strip("_").replace("_", " ")
        seconds = round(time.perf_counter() - began, 3)
        yield SmokeStep(device=device.index or 0, name=name, seconds=seconds, reason=reason)
        if reason is not None:
            return


def said(error: Exception) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def smoke_trouble(facts: SmokeFacts) -> Iterator[str]:
    """Yield the failures of a smoke test, including one without any device to try."""
    if facts.reason is not None and not facts.reason.startswith(("it hung", "it died")):
        yield f"smoke: {facts.reason}"
    for step in facts.steps:
        if step.reason is not None:
            yield f"smoke: CUDA device {step.device}: {step.name}: {step.reason}"
