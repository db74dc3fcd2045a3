"""The torch allocations that remain after repeated work, with the stacks that made them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.torch_memory import AllocatorSource

MORE_EPOCHS = 3
"""The number of further repetitions by which remaining allocations are found."""

_MOST = 5  # allocations that are named
_FRAMES = 4  # of a stack, the innermost that are not torch's own
_UNKNOWN = "by no Python code that is known"


def name_allocations(work: Callable[[], object], source: AllocatorSource) -> str:
    """Repeat work with stacks recorded, and return the largest remaining allocations, a line each.

    Cost: recorded stacks make allocations slower, so this is for work that is known to leak.
    """
    why = source.why_not()
    if why is not None:
        return f"which allocations stayed is unknown: {why}"
    was_recording = source.is_recording()
    if not was_recording:
        source.record_stacks(True)
    try:
        before = _blocks(source)
        for _ in range(MORE_EPOCHS):
            work()
        after = _blocks(source)
    except Exception as error:
        return f"which allocations stayed is unknown: the work failed when it was repeated: {error!r}"
    finally:
        if not was_recording:
            source.record_stacks(False)
    return _told(after[key] for key in after.keys() - before.keys())


def _blocks(source: AllocatorSource) -> dict[tuple[int, int, str], Mapping[str, Any]]:
    """Return the memory blocks in use at rest; a block that was freed and reused counts as new."""
    gc.collect()
    source.settle()
    return {
        (block["address"], block["size"], _stack(block)): block
        for segment in source.segments()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def _told(blocks: Iterable[Mapping[str, Any]]) -> str:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in blocks:
        stack = _stack(block)
        sizes[stack] += block["size"]
        counts[stack] += 1
    if not sizes:
        return f"no allocation stayed in {MORE_EPOCHS} more epochs"
    lines = [
        f"{Reading(size, BYTES)} in {counts[stack]} {'block' if counts[stack] == 1 else 'blocks'}, {stack}"
        for stack, size in sizes.most_common(_MOST)
    ]
    more = f"\nand {len(sizes) - _MOST} smaller ones" if len(sizes) > _MOST else ""
    return f"the largest allocations that stayed in {MORE_EPOCHS} more epochs:\n" + "\n".join(lines) + more


def _stack(block: Mapping[str, Any]) -> str:
    """Return the stack of a block's allocation, innermost frame first."""
    frames = [it for it in block.get("frames", ()) if "/torch/" not in it["filename"].replace("\\", "/")]
    told = [f"{it['filename']}:{it['line']} in {it['name']}" for it in frames[:_FRAMES]]
    return f"by {', called from '.join(told)}" if told else _UNKNOWN
