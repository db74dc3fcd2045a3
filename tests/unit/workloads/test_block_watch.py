"""A watch writes what a model would, reads what a request would, and counts what it has tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.errors import InvariantViolation
from pymllm.workloads.block_memory import MeasuredContext
from pymllm.workloads.block_watch import BlockWatch, snapshots_of
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]


class Bench:
    """A context and its watch."""

    def __init__(self, context: MeasuredContext, config: Any) -> None:
        self.heard: list[Event] = []
        self.context = context
        self.watch = BlockWatch(config, context, lambda event, live: self.heard.append(event))

    def begin(self, request: Request) -> tuple[BlockRequest, ForwardBatch]:
        """Add a request and begin its first step."""
        live = BlockRequest(request, place=1)
        assert self.context.add_request(live)
        return live, self.context.begin_step()

    def finish_step(self, batch: ForwardBatch) -> None:
        """Compute a step and take it over."""
        left = snapshots_of(batch, 4)
        self.watch.compute(batch, left)
        stops = [step.start + len(step.tokens) for step in batch.requests]
        pairs = list(zip(batch.requests, stops, strict=True))
        self.context.commit_step([step.req.token_after(stop) for step, stop in pairs])
        self.watch.note_commit(left)
        for step in batch.requests:
            step.req.length = step.start + len(step.tokens)


@pytest.fixture
def bench(context_of: Callable[..., MeasuredContext], block_config: Callable[..., Any]) -> Bench:
    return Bench(context_of(), block_config())


def test_what_is_computed_is_read_back(bench: Bench, ask: Ask) -> None:
    """E1: at the end of a chunk all of it, and nothing before the first."""
    live, batch = bench.begin(ask(0, 18))
    bench.finish_step(batch)
    assert bench.watch.tested["E1"] == 0
    bench.watch.check_step(batch.requests[0], 18)
    assert (bench.watch.content_tokens, bench.watch.tested["E1"], bench.watch.tested["C7"]) == (18, 1, 1)
    bench.watch.check_books()
    assert bench.watch.tested["E2"] == 1
    bench.watch.note_release(live)
    bench.context.release(live)
    bench.watch.check_quiescent()
    assert bench.watch.tested["E5"] == 1


def test_what_is_shared_is_computed_into_the_dummy_block(bench: Bench, ask: Ask) -> None:
    """E5: padding, and tokens that are computed for their states alone, leave no trace elsewhere."""
    prompt = range(100, 114)
    _, batch = bench.begin(ask(0, 14, 3, tokens=prompt))
    bench.finish_step(batch)
    _, batch = bench.begin(ask(1, 9, tokens=prompt[:9]))
    [_, step] = batch.requests
    assert (step.kv_slots[:8] >= 64).all()
    bench.finish_step(batch)
    bench.watch.check_step(step, 9)
    assert bench.watch.forward is not None
    bench.watch.forward.check_untouched()


@pytest.mark.parametrize(
    ("change", "law", "words"),
    [
        ({"tokens": np.empty(0, np.uint32)}, "E4", "request 0 has no token left to compute"),
        ({"tokens": np.arange(10, dtype=np.uint32)}, "E1", r"other tokens than its own 0\.\.10"),
        ({"kv_slots": np.arange(20, 30)}, "E2", r"is to write blocks \[5, 6, 7\], which are not its alone"),
    ],
)
def test_a_wrong_plan_is_noticed(
    change: dict[str, Any], law: str, words: str, bench: Bench, ask: Ask
) -> None:
    """E1, E2, E4: before anything is written."""
    _, batch = bench.begin(ask(0, 10))
    bench.context.kv_block_allocator.retain_memory_blocks(batch.requests[0].blocks)
    wrong = ForwardBatch((dataclasses.replace(batch.requests[0], **change),))
    with pytest.raises(InvariantViolation, match=words) as caught:
        bench.watch.compute(wrong, [])
    assert caught.value.law == law
    assert bench.watch.forward is not None
    assert bench.watch.forward.unchecked_writes == 0


def test_wrong_kv_is_noticed_before_it_is_used(bench: Bench, ask: Ask) -> None:
    """E1: a request that resumes reads all that it was given."""
    prompt = range(100, 118)
    first, batch = bench.begin(ask(0, 18, tokens=prompt))
    bench.finish_step(batch)
    bench.watch.note_release(first)
    bench.context.release(first)
    _, batch = bench.begin(ask(1, 18, tokens=prompt))
    [step] = batch.requests
    assert step.start == 16
    blocks = (*step.blocks[1:4], step.blocks[0], step.blocks[4])
    with pytest.raises(InvariantViolation, match="E1: request 1: position 0"):
        bench.watch.compute(ForwardBatch((dataclasses.replace(step, blocks=blocks),)), [])


def test_what_is_left_is_noticed(bench: Bench, ask: Ask) -> None:
    """E3: rows and references, free and evictable blocks, and what an emptied cache still has."""
    live, batch = bench.begin(ask(0, 18))
    bench.finish_step(batch)
    with pytest.raises(InvariantViolation, match=r"^E3: no request lives, but 1 rows and blocks \[0, 1, 2, "):
        bench.watch.check_quiescent()
    bench.watch.note_release(live)
    bench.context.release(live)
    with pytest.raises(InvariantViolation, match=r"12 of 16 blocks are free, and 1 states are still cached"):
        bench.watch.check_emptied()
    kv = bench.context.kv_block_allocator
    kv.pool_avail -= 1
    with pytest.raises(InvariantViolation, match=r"11 blocks are free and 4 evictable, 15 of 16"):
        bench.watch.check_quiescent()
    kv.pool_avail += 1
    blocks = kv.allocate_memory_blocks(16)
    assert blocks is not None
    kv.release_memory_blocks(blocks)
    bench.watch.check_emptied()
    assert bench.watch.tested["E3"] == 1


def test_exits_count_once_books_were_walked(bench: Bench, ask: Ask) -> None:
    """E3: an exit is tested by the next walk; whatever happens is told."""
    live = BlockRequest(ask(0, 5), place=1)
    events = [Event.ADMITTED, Event.PAUSED, Event.RETRACTED, Event.ABORTED, Event.FINISHED]
    for event in events:
        bench.watch.notice(event, live)
    assert (bench.heard, bench.watch.tested["E3"]) == (events, 0)
    bench.watch.check_books()
    assert (bench.watch.tested["E3"], bench.watch.tested["E2"]) == (3, 0)


def test_without_contents_there_is_nothing_to_read(
    context_of: Callable[..., MeasuredContext], block_config: Callable[..., Any], ask: Ask
) -> None:
    """Checks that are off cost nothing and count nothing; books are still walked."""
    bench = Bench(context_of(), block_config(content_check=False))
    live, batch = bench.begin(ask(0, 18))
    bench.finish_step(batch)
    bench.watch.check_step(batch.requests[0], 18)
    bench.watch.check_books()
    bench.watch.note_release(live)
    bench.context.release(live)
    bench.watch.check_quiescent()
    assert (bench.watch.content_tokens, dict(bench.watch.tested)) == (0, {"E2": 1, "E3": 0})


def test_an_unheard_watch_still_counts(
    context_of: Callable[..., MeasuredContext], block_config: Callable[..., Any], ask: Ask
) -> None:
    """E3: an onlooker is for those who want to know."""
    watch = BlockWatch(block_config(), context_of())
    watch.notice(Event.FINISHED, BlockRequest(ask(0, 5), place=1))
    watch.check_quiescent()
    assert watch.tested["E3"] == 1
