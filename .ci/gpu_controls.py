"""A fault for each tool of compute-sanitizer, which it must see: else its silence means nothing.

``gpu_controls.py TOOL`` plants it, on a GPU. Status 77: it cannot be planted here, with the reason; 78: there
is no GPU. For memcheck and initcheck it is a kernel of Triton, as ours are. Triton places barriers and shared
memory by itself, so that what racecheck and synccheck look for cannot be said in it: theirs is CUDA, compiled
by the NVRTC that torch brings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LEFT_OUT = 77
NO_GPU = 78

# One thread writes what the other warp reads, with no barrier between them.
RACE = """extern "C" __global__ void fault(int* out) {
    __shared__ int cell;
    if (threadIdx.x == 0) cell = 7;
    out[threadIdx.x] = cell;
}"""
# Half of each warp waits for a barrier that the other half never comes to.
BARRIER = """extern "C" __global__ void fault(int* out) {
    if (threadIdx.x % 2) __syncthreads();
    out[threadIdx.x] = 1;
}"""


if triton is not None:

    @triton.jit
    def add_one(source, target, count: tl.constexpr):  # type: ignore[no-untyped-def]
        """Read numbers, and write what is one more."""
        place = tl.arange(0, count)
        tl.store(target + place, tl.load(source + place) + 1)


def outside() -> None:
    """Write behind the end of a tensor."""
    add_one[(1,)](numbers(1024), numbers(256), 1024)


def unwritten() -> None:
    """Read what nobody has written."""
    add_one[(1,)](torch.empty(1024, dtype=torch.int32, device="cuda"), numbers(1024), 1024)


def numbers(count: int) -> torch.Tensor:
    """Return zeros on the device."""
    return torch.zeros(count, dtype=torch.int32, device="cuda")


def in_cuda(source: str) -> Callable[[], None]:
    """Return what launches a kernel of two warps."""

    def launch() -> None:
        fault = torch.cuda._compile_kernel(source, "fault")
        fault((1, 1, 1), (64, 1, 1), [numbers(64)])

    return launch


FAULTS: dict[str, Callable[[], None]] = {
    "memcheck": outside,
    "racecheck": in_cuda(RACE),
    "initcheck": unwritten,
    "synccheck": in_cuda(BARRIER),
}


def main(tool: str) -> int:
    """Plant the fault of a tool."""
    if not torch.cuda.is_available():
        print(f"the fault for {tool} is not planted: there is no GPU")
        return NO_GPU
    torch.cuda.init()
    try:
        FAULTS[tool]()
    except (
        ImportError,
        AttributeError,
        OSError,
    ) as error:  # no Triton, no NVRTC, or a torch that has moved it
        print(f"the fault for {tool} is not planted: {error!r}")
        return LEFT_OUT
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:  # the tool stops a kernel that it has found at fault
        print(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
