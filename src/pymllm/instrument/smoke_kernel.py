"""The kernel of ``pymllm doctor --smoke``; importing this module loads Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_one(source, target, count: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add one to each number of the source, and write the sums."""
    place = tl.program_id(0) * count + tl.arange(0, count)
    tl.store(target + place, tl.load(source + place) + 1)
