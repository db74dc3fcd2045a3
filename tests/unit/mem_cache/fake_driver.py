"""Prepare and launch the kernel through Triton itself, with a driver that only writes down: a program.

What is real: Triton's compiler, its reading of arguments, and how a compiled kernel is launched. What is not:
the GPU. Printed are the types that the kernel was compiled for, and the launches, as JSON.
"""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from pymllm.mem_cache.kernels import fused_rows

SHAPES = ((16, 8, 4, 256), (2, 2, 64, 16))


def main() -> None:
    types: list[dict[str, str]] = []
    launches: list[tuple[Any, ...]] = []

    class Launcher:
        def __init__(self, source: Any, metadata: Any) -> None:
            types.append(dict(source.signature))

        def __call__(self, *arguments: Any) -> None:
            programs, _, _, stream, function, _, _, _, _, *numbers = arguments
            launches.append((programs, stream, function, numbers[:23], len(numbers)))

    utils = SimpleNamespace(
        load_binary=lambda *_: ("module", "function", 32, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 232448},
        unload_module=lambda module: None,
    )
    fake: Any = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 7,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=Launcher,
        utils=utils,
    )
    driver.set_active(fake)
    current = [0]
    entered: list[str] = []

    def device(place: torch.device) -> contextlib.AbstractContextManager[None]:
        entered.append(str(place))
        return contextlib.nullcontext()

    torch.cuda.device = device  # type: ignore[assignment, misc]
    torch.cuda.current_device = lambda: current[0]
    launch = fused_rows._compiled(torch.device("cuda", 0), SHAPES, False, False, 4)
    numbers = [3, 5, 1, 0, 0, 0, 2**40, 4, 1, *[256, 2**41, 0, 256, 2**42, 0, 256] * 2]
    launch(8, tuple(numbers))
    current[0] = 1
    launch(2**20, (1, 0, 1, *[0] * 20))
    print(json.dumps({"types": types, "launches": launches, "devices": entered, "numbers": numbers}))


if __name__ == "__main__":
    main()
