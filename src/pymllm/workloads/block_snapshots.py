"""Which states a step leaves for the cache, as its requests know it."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.workloads.block_request import BlockRequest

__all__ = ["Snapshot", "snapshots_of"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state that a request leaves.

    Parameters
    ----------
    live : BlockRequest
        The request.
    block : int
        The block that ends there.
    depth : int
        Tokens that the state has taken in.
    """

    live: BlockRequest
    block: int
    depth: int


def snapshots_of(batch: ForwardBatch, block_size: int) -> list[Snapshot]:
    """List the states that a step is to leave.

    Parameters
    ----------
    batch : ForwardBatch
        Of `BlockRequest`; nothing is committed yet.
    block_size : int
        Tokens per block.

    Returns
    -------
    list of Snapshot
        At the extracted offsets, and at the end of a prompt of whole blocks. Two requests that share a block
        may both leave its state.

    Notes
    -----
    Law: C8.
    """
    return [
        Snapshot(step.req, step.blocks[depth // block_size - 1], depth)
        for step in batch.requests
        for depth in _depths(step, block_size)
    ]


def _depths(step: RequestStep, block_size: int) -> list[int]:
    depths = [step.start + offset for offset in step.offsets]
    stop = step.start + len(step.tokens)
    if stop == step.req.prompt_length and stop % block_size == 0:
        depths.append(stop)
    return depths
