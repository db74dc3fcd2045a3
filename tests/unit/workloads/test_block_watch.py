"""Tests of a watch that writes and reads as a model would, and notices any other content or state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.errors import InvariantViolation
from pymllm.workloads.block_engine import MeasuredContext
from pymllm.workloads.block_watch import BlockRecurrent, BlockWatch, Snapshot, snapshots_of
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]


class Bench:
    """A context, its watch with a model of states, and requests that compute."""

    def __init__(self, context: MeasuredContext, config: Any) -> None:
        self.heard: list[Event] = []
        self.context = context
        self.watch = BlockWatch(config, context, lambda event, live: self.heard.append(event))

    @property
    def model(self) -> BlockRecurrent:
        """Return the model of a watch that checks contents."""
        assert self.watch.recurrent is not None
        return self.watch.recurrent

    def add(self, request: Request, limit: int | None = None) -> BlockRequest:
        """Take up a request."""
        live = BlockRequest(request, place=1)
        assert self.context.add_request(live, limit)
        return live

    def begin(self, request: Request) -> tuple[BlockRequest, ForwardBatch]:
        """Add a request and begin its first step."""
        return self.add(request), self.context.begin_step()

    def compute(self, batch: ForwardBatch | None = None) -> list[Snapshot]:
        """Run a step up to its commit, and return the snapshots that it leaves."""
        batch = batch or self.context.begin_step()
        left = snapshots_of(batch, 4)
        self.watch.compute(batch, left)
        stops = [step.start + len(step.tokens) for step in batch.requests]
        pairs = list(zip(batch.requests, stops, strict=True))
        self.context.commit_step([step.req.token_after(stop) for step, stop in pairs])
        for step, stop in pairs:
            step.req.length, step.req.is_unread = stop, False
        return left

    def step(self) -> int:
        """Run a step, and return how many states it has cached."""
        return self.model.note_commit(self.compute())

    def finish_step(self, batch: ForwardBatch) -> None:
        """Compute a step and take it over."""
        self.watch.note_commit(self.compute(batch))

    def check(self, live: BlockRequest) -> None:
        """Compare the live state of a request with that of a cold run."""
        row = self.context.requests.index(live)
        state = int(self.context.mamba_metadata.request_to_mamba_state_idx[row])
        self.model.check(live.request_id, state, live.tokens[: live.length])


BenchOf = Callable[..., Bench]


@pytest.fixture
def bench_of(context_of: Callable[..., MeasuredContext], block_config: Callable[..., Any]) -> BenchOf:
    return lambda **changes: Bench(context_of(**changes), block_config(**changes))


@pytest.fixture
def bench(bench_of: BenchOf) -> Bench:
    return bench_of()


# -- states ------------------------------------------------------------------------------------------------


def test_offsets_and_ends_of_prompts_are_left(bench: Bench, ask: Ask) -> None:
    """C8: inside a chunk at whole blocks, and at the end of a prompt that has only such; none in decode."""
    ragged, whole = bench.add(ask(0, 19, 9), 10), bench.add(ask(1, 16, 9))
    batch = bench.context.begin_step()
    blocks = {step.req: step.blocks for step in batch.requests}
    assert snapshots_of(batch, 4) == [
        Snapshot(ragged, blocks[ragged][1], 8),
        Snapshot(whole, blocks[whole][2], 12),
        Snapshot(whole, blocks[whole][3], 16),
    ]
    bench.compute(batch)
    assert bench.context.schedule_chunk(ragged)
    batch = bench.context.begin_step()
    assert [(each.live, each.depth) for each in snapshots_of(batch, 4)] == [(ragged, 16)]
    while whole.length < 20:
        bench.compute(batch)
        batch = bench.context.begin_step()
        assert snapshots_of(batch, 4) == []


def test_chunks_and_single_tokens_end_in_the_state_of_a_cold_run(bench: Bench, ask: Ask) -> None:
    """E1: of every request of a batch, whatever else is in it."""
    one, other = bench.add(ask(0, 19, 5), 7), bench.add(ask(1, 9, 9))
    cached = bench.step()
    assert bench.context.schedule_chunk(one)
    cached += bench.step()
    for _ in range(3):
        cached += bench.step()
    bench.check(one)
    bench.check(other)
    assert (one.length, other.length, bench.model.checked_states) == (22, 13, 2 + 2)  # both before they began
    assert cached == bench.context.cached_states() > 0
    bench.model.check_untouched()


def test_a_restored_state_is_that_of_a_cold_run(bench: Bench, ask: Ask) -> None:
    """E1, C7: through the cache and back."""
    first = bench.add(ask(0, 18, tokens=range(100, 118)))
    assert bench.step() == 1
    bench.context.release(first)
    second = bench.add(ask(1, 20, tokens=range(100, 118)))
    second.length = 16
    bench.check(second)


@pytest.mark.parametrize("name", ["mamba_conv_states", "mamba_ssm_states"])
def test_a_live_state_of_somebody_else_is_noticed(name: str, bench: Bench, ask: Ask) -> None:
    """E1, C7: by the request that has it, and by whoever looks at all."""
    live = bench.add(ask(0, 10))
    bench.step()
    states = getattr(bench.context, name)
    states[1, 0, 0] += 1
    with pytest.raises(InvariantViolation, match=rf"{name} after 10 tokens: at \(1, 0.* as a cold run has"):
        bench.check(live)
    with pytest.raises(InvariantViolation, match=rf"^C7: {name} of rows \[0\]: at \(1, 0, 0"):
        bench.model.check_untouched()


def test_a_row_that_was_given_back_is_anybodys(bench: Bench, ask: Ask) -> None:
    """C7: only states of live requests are compared."""
    live = bench.add(ask(0, 10))
    bench.step()
    bench.model.note_release(0)
    bench.context.release(live)
    assert bench.context.mamba_ssm_states is not None
    bench.context.mamba_ssm_states.zero_()
    bench.model.check_untouched()


@pytest.mark.parametrize("name", ["conv_states", "ssm_states"])
def test_a_wrong_copy_into_the_cache_is_noticed(name: str, bench: Bench, ask: Ask) -> None:
    """C7: at the commit, and at any later look."""
    bench.add(ask(0, 18))
    left = bench.compute()
    slots = bench.context.mamba_slot_allocator
    assert slots is not None
    states: torch.Tensor = getattr(slots, name)
    before = states.clone()
    states += 1
    with pytest.raises(InvariantViolation, match=rf"^C7: mamba_{name} cached for blocks \[3\]"):
        bench.model.note_commit(left)
    states.copy_(before)
    bench.model.check_untouched()
    states += 1
    with pytest.raises(InvariantViolation, match="C7"):
        bench.model.check_untouched()


def test_a_state_that_nobody_left_is_noticed(bench: Bench, ask: Ask) -> None:
    """C7: for a block that no step has named."""
    bench.add(ask(0, 18))
    bench.compute()
    with pytest.raises(InvariantViolation, match=r"^C7: blocks \[3\] have states that no request has left"):
        bench.model.check_untouched()


def test_states_that_were_dropped_are_not_missed(bench_of: BenchOf, ask: Ask) -> None:
    """C7: a commit keeps what fits."""
    bench = bench_of(track_slots=1)
    for number in range(2):
        bench.add(ask(number, 18))
    assert bench.step() == 1
    bench.model.check_untouched()


def test_a_model_whose_states_are_never_cached_still_advances(bench_of: BenchOf, ask: Ask) -> None:
    """E1: without slots there is nothing to extract, and nothing to compare but live states."""
    bench = bench_of(track_slots=0)
    live = bench.add(ask(0, 16, 3))
    bench.compute()
    bench.compute()
    bench.check(live)
    bench.model.check_untouched()
    assert bench.model.note_commit([]) == 0


# -- contents and trackers -----------------------------------------------------------------------------------


def test_what_is_computed_is_read_back(bench: Bench, ask: Ask) -> None:
    """E1: at the end of a chunk all of it, and nothing before the first."""
    live, batch = bench.begin(ask(0, 18))
    bench.finish_step(batch)
    assert bench.watch.tested["E1"] == 0
    bench.watch.check_step(batch.requests[0], 18)
    assert (
        bench.watch.content_tokens,
        bench.watch.tested["E1"],
        bench.watch.tested["C7"],
    ) == (18, 1, 1)
    bench.watch.check_invariants()
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
    bench.watch.check_invariants()
    assert (bench.watch.tested["E3"], bench.watch.tested["E2"]) == (3, 0)


def test_without_contents_there_is_nothing_to_read(bench_of: BenchOf, ask: Ask) -> None:
    """Checks that are off cost nothing and count nothing; trackers are still checked."""
    bench = bench_of(content_check=False)
    live, batch = bench.begin(ask(0, 18))
    bench.finish_step(batch)
    bench.watch.check_step(batch.requests[0], 18)
    bench.watch.check_invariants()
    bench.watch.note_release(live)
    bench.context.release(live)
    bench.watch.check_quiescent()
    assert (bench.watch.content_tokens, dict(bench.watch.tested)) == (
        0,
        {"E2": 1, "E3": 0},
    )
