"""The operations that a careful caller of a block allocator makes instead of careless ones.

Such a caller holds a block only with all blocks before it, registers no hash twice and nothing below a block
that it does not hold, stamps what it retains, never sets the clock back, asks for slots of its own registered
blocks only, and names them at once. A request that goes through a context does all of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pymllm.history import operations as ops
from pymllm.history.operations import Operation, Span
from pymllm.oracle.models.block_model import BlockModel

Names = Callable[[Sequence[int]], tuple[Span, ...]]
"""A function that names blocks by the steps that gave them."""


def made_careful(
    operation: Operation, blocks: BlockModel, named: Sequence[int], names: Names
) -> tuple[Operation, ...]:
    """Return a careful caller's operations in place of another, whose blocks are ``named``."""
    if isinstance(operation, ops.RetainBlocks):
        chains = [above for block in named for above in _chain(blocks, block)]
        return ops.RetainBlocks(names(chains)), ops.StampBlocks(names([*dict.fromkeys(chains)]))
    if isinstance(operation, ops.ReleaseBlocks):
        return (ops.ReleaseBlocks(names(_with_children(blocks, named))),)
    if isinstance(operation, ops.RegisterBlocks):
        return _registered(operation, blocks, named, names)
    if isinstance(operation, ops.AllocSlots):
        own = [block for block in named if blocks.refs[block] and block in blocks.hash_of]
        return (ops.AllocSlots(names(own)),) if own else ()
    is_back = isinstance(operation, ops.SetClock) and operation.clock < blocks.clock
    return () if is_back or isinstance(operation, (ops.EvictSlots, ops.DropStates)) else (operation,)


def _chain(blocks: BlockModel, block: int) -> Iterable[int]:
    """Yield a registered block and all its ancestors."""
    above: int | None = block
    while above is not None:
        yield above
        above = blocks.parent_of.get(above)


def _with_children(blocks: BlockModel, released: Sequence[int]) -> list[int]:
    """Extend a release by all references to the descendants of each block that loses its last one."""
    times = Counter(released)
    pending = [block for block in times if times[block] == blocks.refs[block]]
    for block in pending:
        for child in blocks.children(block):
            if blocks.refs[child] > times[child]:
                times[child] = blocks.refs[child]
                pending.append(child)
    return [*times.elements()]


def _registered(
    operation: ops.RegisterBlocks, blocks: BlockModel, named: Sequence[int], names: Names
) -> tuple[Operation, ...]:
    """Return a registration without known blocks, taken hashes, and blocks below an unreferenced parent."""
    parents = operation.parents
    if parents is None:
        parents = (0, *operation.hashes)[: len(operation.hashes)]
    usable = {value for value, block in blocks.block_of.items() if blocks.refs[block]} | {0}
    taken = {*blocks.block_of}
    kept: list[tuple[int, int, int]] = []
    for block, value, above in zip(named, operation.hashes, parents, strict=True):
        is_new = block not in blocks.hash_of and all(block != other for other, _, _ in kept)
        if is_new and value not in taken and above in usable and blocks.is_caching:
            kept.append((block, value, above))
            taken.add(value)
            usable.add(value)
    if not kept:
        return ()
    own, hashes, above_them = zip(*kept, strict=True)
    return (ops.RegisterBlocks(names(own), hashes, above_them),)
