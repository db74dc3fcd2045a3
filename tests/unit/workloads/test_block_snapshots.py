"""What a step leaves is named by the block that ends where the state is taken."""

from __future__ import annotations

from collections.abc import Callable

from pymllm.workloads.block_memory import MeasuredContext
from pymllm.workloads.block_watch import Snapshot, snapshots_of
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request


def test_offsets_and_ends_of_prompts_are_left(
    context_of: Callable[..., MeasuredContext], ask: Callable[..., Request]
) -> None:
    """C8: inside a chunk at whole blocks, and at the end of a prompt that has only such."""
    context = context_of()
    ragged, whole = (BlockRequest(ask(n, length, 3), place=n) for n, length in enumerate((19, 16)))
    assert context.add_request(ragged, 10)
    assert context.add_request(whole)
    batch = context.begin_step()
    blocks = {step.req: step.blocks for step in batch.requests}
    left = snapshots_of(batch, 4)
    assert left == [
        Snapshot(ragged, blocks[ragged][1], 8),
        Snapshot(whole, blocks[whole][2], 12),
        Snapshot(whole, blocks[whole][3], 16),
    ]
    context.commit_step([None, 7])
    ragged.length, whole.length = 10, 16
    assert context.schedule_chunk(ragged)
    batch = context.begin_step()
    assert [(each.live, each.depth) for each in snapshots_of(batch, 4)] == [(ragged, 16)]


def test_a_decoding_request_leaves_nothing(
    context_of: Callable[..., MeasuredContext], ask: Callable[..., Request]
) -> None:
    """C8: not even where it fills a block."""
    context = context_of()
    live = BlockRequest(ask(0, 7, 3), place=1)
    assert context.add_request(live)
    context.step(lambda batch: [5])
    batch = context.begin_step()
    assert batch.requests[0].start + 1 == 8
    assert snapshots_of(batch, 4) == []
