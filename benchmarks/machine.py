"""The facts beside the code on which a result depends: processor, GPU, driver, clocks, torch."""

from __future__ import annotations

import os
import platform

import numpy
import psutil
import torch

from pymllm.instrument.machine_facts import look_at_nvml
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.provenance import find_processor
from pymllm.instrument.reading import Unreadable

__all__ = ["machine_facts"]

CLOCKS = {"graphics": 0, "memory": 2}  # NVML's numbers of clock domains


def machine_facts() -> dict[str, str]:
    """Return the facts of the machine; an unreadable fact is recorded as unknown, with the reason."""
    *_, found = look_at_nvml()
    facts = {
        "platform": platform.platform(),
        "processor": find_processor(),
        "processor_clock": processor_clock(),
        "usable_cores": str(len(os.sched_getaffinity(0))),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": numpy.__version__,
        "torch": str(torch.__version__),
        "torch_threads": str(torch.get_num_threads()),
        "torch_cuda": str(torch.version.cuda or "none: built without CUDA"),
        "nvml": found.version or f"unknown: {found.reason}",
    }
    for device in found.devices:
        told = f"{device.name}, driver {device.driver}, {gpu_clocks(device.index)}"
        facts[f"gpu_{device.index}"] = told if device.reason is None else f"unknown: {device.reason}"
    return facts


def processor_clock() -> str:
    """Return the highest clock: the present one differs from run to run, and so would every machine."""
    frequency = psutil.cpu_freq()
    return f"{frequency.max:.0f} MHz" if frequency and frequency.max else "unknown: not told"


def gpu_clocks(index: int) -> str:
    """Return the highest clocks of a device."""
    library = NvmlLibrary()
    try:
        library.open()
        device = library.call("nvmlDeviceGetHandleByIndex", index)
        highest = {
            name: library.call("nvmlDeviceGetMaxClockInfo", device, domain) for name, domain in CLOCKS.items()
        }
    except Unreadable as reason:
        return f"clocks unknown: {reason}"
    finally:
        library.close()
    return ", ".join(f"{name} up to {clock} MHz" for name, clock in highest.items())
