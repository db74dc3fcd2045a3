"""The growth of memory with each run of the same work, and the allocations that stay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pymllm.pytest_plugin.promises import note_unjudged
from pymllm.pytest_plugin.settings import needs_gpu

if TYPE_CHECKING:
    from pymllm.instrument.leaks import LeakVerdict


def judge_epochs(item: pytest.Item, work: Callable[[], object], **options: Any) -> LeakVerdict:
    """Run work in epochs, put the verdict into the report, and fail the test if a layer leaks."""
    from pymllm.instrument.leaks import Layer, Outcome, run_epochs, why_unknown

    __tracebackhide__ = True  # an error is in the test's own code
    verdict = run_epochs(work, **options)
    section = str(verdict)
    if verdict.leaking:
        from pymllm.pytest_plugin.gpu_use import process_name, who_holds

        section += f"\nin {process_name(os.getpid())}; of the GPU's memory: {who_holds()}"
    item.add_report_section("call", "leaks", section)
    if verdict.leaking:
        found = "; ".join(map(str, verdict.leaking))
        said = f"memory leaks: {found}; in process {os.getpid()}, test {item.nodeid}"
        pytest.fail("\n".join([said, *_named(verdict, work, options)]), pytrace=False)
    reason = why_unknown(verdict)
    device = verdict.of(Layer.DEVICE)
    if reason is not None:
        note_unjudged(item, f"leaks: {reason}")
    elif device.outcome is Outcome.UNKNOWN and needs_gpu(item):
        # What other layers hold was judged; a leak beside torch must not pass without a word.
        note_unjudged(item, f"leaks: {device}", is_partly_judged=True)
    return verdict


def _named(verdict: LeakVerdict, work: Callable[[], object], options: dict[str, Any]) -> Iterator[str]:
    """Yield, for each device on which a layer of torch leaks, the allocations that stay."""
    from pymllm.instrument.allocations import name_allocations
    from pymllm.instrument.leaks import OF_TORCH
    from pymllm.instrument.torch_memory import TorchAllocator

    for device in dict.fromkeys(it.device for it in verdict.leaking if it.layer in OF_TORCH):
        source = options.get("source") or TorchAllocator(device or options.get("device"))
        yield name_allocations(work, source)
