"""The simulated recurrent model over a context notices any state that is not what was computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.errors import InvariantViolation
from pymllm.workloads.block_memory import MeasuredContext
from pymllm.workloads.block_watch import BlockRecurrent, Snapshot, snapshots_of
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]


class Bench:
    """A context, a model over it, and requests that compute."""

    def __init__(self, context: MeasuredContext) -> None:
        self.context = context
        self.model = BlockRecurrent(context)

    def add(self, request: Request, limit: int | None = None) -> BlockRequest:
        """Take up a request."""
        live = BlockRequest(request, place=1)
        assert self.context.add_request(live, limit)
        return live

    def compute(self) -> tuple[ForwardBatch, list[Snapshot]]:
        """Run a step up to its commit."""
        batch = self.context.begin_step()
        left = snapshots_of(batch, 4)
        self.model.decode([step for step in batch.requests if step.req.is_prefilled])
        for step in batch.requests:
            if not step.req.is_prefilled:
                self.model.prefill(step, [each for each in left if each.live is step.req])
        stops = [step.start + len(step.tokens) for step in batch.requests]
        pairs = list(zip(batch.requests, stops, strict=True))
        self.context.commit_step([step.req.token_after(stop) for step, stop in pairs])
        for step, stop in pairs:
            step.req.length = stop
        return batch, left

    def step(self) -> int:
        """Run a step, and return how many states it has cached."""
        return self.model.note_commit(self.compute()[1])

    def check(self, live: BlockRequest) -> None:
        """Compare the live state of a request with that of a cold run."""
        row = self.context.requests.index(live)
        state = int(self.context.mamba_metadata.request_to_mamba_state_idx[row])
        self.model.check(live.request_id, state, live.tokens[: live.length])


@pytest.fixture
def bench(context_of: Callable[..., MeasuredContext]) -> Bench:
    return Bench(context_of())


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
    assert (one.length, other.length, bench.model.checked_states) == (22, 13, 2)
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
    _, left = bench.compute()
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


def test_states_that_were_dropped_are_not_missed(
    context_of: Callable[..., MeasuredContext], ask: Ask
) -> None:
    """C7: a commit keeps what fits."""
    bench = Bench(context_of(track_slots=1))
    for number in range(2):
        bench.add(ask(number, 18))
    assert bench.step() == 1
    bench.model.check_untouched()


def test_a_model_whose_states_are_never_cached_still_advances(
    context_of: Callable[..., MeasuredContext], ask: Ask
) -> None:
    """E1: without slots there is nothing to extract, and nothing to compare but live states."""
    bench = Bench(context_of(track_slots=0))
    live = bench.add(ask(0, 16, 3))
    bench.compute()
    bench.compute()
    bench.check(live)
    bench.model.check_untouched()
    assert bench.model.note_commit([]) == 0
