"""Forward passes as graphs over a block context: every live, cached and restored state is a cold run's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from pymllm.core.inference.contexts import DynamicInferenceContext, ForwardBatch, MambaSlotAllocator
from pymllm.errors import CapacityError
from pymllm.invariants.blocks import check_dynamic_context
from tests.stress.card import Card, Rounds

BLOCK_SIZE, BLOCKS_EACH, CHUNK, LAYERS, PLACES = 4, 12, 16, 2, 3
LONGEST = BLOCK_SIZE * BLOCKS_EACH - 1
# Two recurrences whose numbers each dtype holds exactly: factor and modulus.
SSM, CONV = (31, 65_521), (7, 251)


@dataclass(eq=False)
class Request:
    """The attributes that a context asks of a request, and all tokens of the request."""

    prompt_tokens: list[int]
    finished_chunk_token_count: int = 0
    tokens: list[int] = field(default_factory=list)
    has_begun: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_tokens)

    def state_after(self, count: int, recurrence: tuple[int, int]) -> int:
        """Return the state of a cold run after ``count`` tokens."""
        factor, modulus = recurrence
        state = 0
        for token in self.tokens[:count]:
            state = (state * factor + token + 1) % modulus
        return state


class ForwardGraph:
    """A forward pass for up to ``size`` requests, captured once, with its batch in static buffers.

    Rows of padding compute nothing: they have a live row that no request has, and the last row of outputs.
    """

    def __init__(self, card: Card, context: DynamicInferenceContext, size: int) -> None:
        self._context = context
        self._slots = slots_of(context)
        offsets, counts = self._slots.get_intermediate_gpu_data()
        assert offsets is not None
        assert counts is not None
        rows = context.max_requests
        # The buffers that all steps refresh, and not only the rows of this one.
        self._offsets = offsets.as_strided((rows, PLACES), (PLACES, 1))
        self._counts = counts.as_strided((rows,), (1,))
        self._size = size
        self._numbers = torch.zeros((4, size), dtype=torch.int64, device=card.device)
        self._tokens = torch.zeros((size, CHUNK), dtype=torch.int64, device=card.device)
        self._fill(ForwardBatch(()))
        self._replay = card.capture(self._compute)

    def run(self, batch: ForwardBatch) -> None:
        """Refresh what the graph reads, and replay it."""
        self._slots.get_intermediate_gpu_data()
        self._fill(batch)
        self._replay()

    def _fill(self, batch: ForwardBatch) -> None:
        used = self._context.mamba_metadata.request_to_mamba_state_idx.tolist()
        spare = min(set(range(self._context.max_requests)) - set(used))
        numbers = torch.zeros((4, self._size), dtype=torch.int64)
        numbers[0] = spare
        tokens = torch.zeros((self._size, CHUNK), dtype=torch.int64)
        decoding = self._context.batch_dimensions.decode_req_count
        for row, step in enumerate(batch.requests):
            place, prefills = max(row - decoding, 0), row >= decoding
            numbers[:, row] = torch.tensor([step.state_idx, len(step.tokens), place, prefills])
            tokens[row, : len(step.tokens)] = torch.from_numpy(step.tokens.astype("int64"))
        # Out of memory that is not pinned, these are read before the call returns, and nothing waits.
        self._numbers.copy_(numbers, non_blocking=True)
        self._tokens.copy_(tokens, non_blocking=True)

    def _compute(self) -> None:
        state_rows, lengths, places, prefills = self._numbers
        counts = self._counts[places] * prefills
        outputs = (counts.cumsum(0) - counts)[:, None] + torch.arange(PLACES, device=counts.device)
        for live, extracted, (factor, modulus) in (
            (self._context.mamba_ssm_states, self._slots.intermediate_ssm_out, SSM),
            (self._context.mamba_conv_states, self._slots.intermediate_conv_out, CONV),
        ):
            assert live is not None
            state = live[0, state_rows].flatten(1)[:, 0].long()
            left = torch.zeros((self._size, PLACES), dtype=torch.int64, device=state.device)
            for at in range(CHUNK):
                state = torch.where(at < lengths, (state * factor + self._tokens[:, at] + 1) % modulus, state)
                left = torch.where(self._offsets[places] == at + 1, state[:, None], left)
            self._write(live, state_rows, state)
            is_left = torch.arange(PLACES, device=counts.device) < counts[:, None]
            targets = torch.where(is_left, outputs, extracted.shape[1] - 1)
            self._write(extracted, targets.flatten(), left.flatten())

    @staticmethod
    def _write(target: torch.Tensor, rows: torch.Tensor, states: torch.Tensor) -> None:
        """Spread each state over all elements of its row, in each layer one more."""
        layers = torch.arange(LAYERS, device=states.device)[:, None]
        values = (states + layers).to(target.dtype).view(LAYERS, -1, *[1] * (target.dim() - 2))
        target.index_copy_(1, rows, values.expand(LAYERS, len(rows), *target.shape[2:]).contiguous())


def slots_of(context: DynamicInferenceContext) -> MambaSlotAllocator:
    assert context.mamba_slot_allocator is not None
    return context.mamba_slot_allocator


class Server:
    """Requests that share stems, chunked, paused, released when memory is short, and computed by graphs."""

    def __init__(self, card: Card, seed: int) -> None:
        self.card, self.draw = card, random.Random(seed)
        self.most = 63 if card.is_cuda else 11
        self.context = DynamicInferenceContext(
            max_requests=self.most + 1,  # a live row is left for padding
            num_blocks=3 * self.most,
            max_blocks_per_request=BLOCKS_EACH,
            block_size_tokens=BLOCK_SIZE,
            mamba_chunk_size=2,
            mamba_slots=2 * self.most,
            num_mamba_layers=LAYERS,
            conv_states_shape=(6, 3),
            ssm_states_shape=(2, 4, 4),
            conv_states_dtype=torch.bfloat16,
            paused_limit=self.most,
            device=card.device,
        )
        self.slots = slots_of(self.context)
        self.stems = [[self.draw.randrange(1 << 16) for _ in range(LONGEST)] for _ in range(4)]
        self.graphs: dict[int, ForwardGraph] = {}
        self.cached = self.restored = self.short = 0

    def new_request(self) -> Request:
        shared = self.draw.randrange(LONGEST - 12)
        own = [self.draw.randrange(1 << 16) for _ in range(self.draw.randrange(1, 10))]
        return Request([*self.draw.choice(self.stems)[:shared], *own])

    def chunk(self) -> int:
        return self.draw.randrange(1, CHUNK + 1)

    def schedule(self) -> None:
        """Let requests come, go on, pause and resume."""
        while len(self.context.requests) < self.most and self.draw.random() < 0.7:
            if not self.context.add_request(self.new_request(), self.chunk()):
                break
        for req in self.context.waiting_requests:
            self.context.schedule_chunk(req, self.chunk())
        for act in (self.context.pause, self.context.resume):
            paused = self.context.requests[: self.context.paused_request_count]
            others = self.context.requests[self.context.paused_request_count :]
            choices = others if act == self.context.pause else paused
            if choices and self.draw.random() < 0.2:
                act(self.draw.choice(choices))

    def step(self) -> None:
        """Take a step without a call that waits for the device, then check its results."""
        with self.card.never_waiting():
            self.schedule()
            try:
                batch = self.context.begin_step()
            except CapacityError:
                self.short += 1
                self.context.release(self.draw.choice(self.context.requests))
                return
        size = next(size for size in (4, self.most + 1) if size >= len(batch))
        if size not in self.graphs and any(step.offsets for step in batch.requests):
            self.graphs[size] = ForwardGraph(self.card, self.context, size)
        if size not in self.graphs:
            self.context.abort_step()
            return
        with self.card.never_waiting():
            self.graphs[size].run(batch)
            tokens = [self.draw.randrange(1 << 16) for _ in batch.requests]
            self.context.commit_step(tokens)
        self.check(batch)
        for step, token in zip(batch.requests, tokens, strict=True):
            if step.is_sampled:
                step.req.tokens.append(token)
            if len(step.req.tokens) >= LONGEST or (step.is_sampled and self.draw.random() < 0.04):
                with self.card.never_waiting():
                    self.context.release(step.req)

    def check(self, batch: ForwardBatch) -> None:
        """Compare the live states, and the cached ones of blocks that ended here, with those of cold runs."""
        rows, cached = [], []
        for step in batch.requests:
            stop = step.start + len(step.tokens)
            self.restored += step.start > 0 and not step.req.has_begun
            step.req.has_begun = True
            rows.append((step.state_idx, step.req, stop))
            ends = {step.start + offset for offset in step.offsets} | {stop // BLOCK_SIZE * BLOCK_SIZE}
            for end in ends:
                block = step.blocks[end // BLOCK_SIZE - 1] if step.start < end else -1
                if block >= 0 and self.slots.has_state(block):
                    cached.append((int(self.slots.get_slot(block)), step.req, end))
        self.cached += len(cached)
        self.compare(self.context.mamba_ssm_states, rows, SSM)
        self.compare(self.context.mamba_conv_states, rows, CONV)
        self.compare(self.slots.ssm_states, cached, SSM)
        self.compare(self.slots.conv_states, cached, CONV)

    def compare(
        self,
        states: torch.Tensor | None,
        rows: Sequence[tuple[int, Request, int]],
        recurrence: tuple[int, int],
    ) -> None:
        assert states is not None
        index = torch.tensor([row for row, _, _ in rows], dtype=torch.int64, device=states.device)
        found = states.index_select(1, index).cpu().double().flatten(2)
        cold = torch.tensor([req.state_after(count, recurrence) for _, req, count in rows]).double()
        expected = cold + torch.arange(LAYERS)[:, None]
        assert torch.equal(found, expected[:, :, None].expand_as(found)), rows


@pytest.mark.gpu_memory_limit("512 MiB")
def test_states_are_those_of_cold_runs(card: Card, rounds: Rounds, seed: int) -> None:
    """C6-C8, E1, E4: through padding, chunks, pauses, hits, evictions and releases; no step waits."""
    server = Server(card, seed)
    for number in rounds(200 if not card.is_cuda else 1_000):
        server.step()
        if number % 50 == 0:
            check_dynamic_context(server.context)
    check_dynamic_context(server.context)
    assert min(server.cached, server.restored, server.short, len(server.graphs)) > 0
    for req in server.context.requests:
        server.context.release(req)
    check_dynamic_context(server.context)


def test_a_state_of_somebody_else_is_noticed(card: Card, seed: int) -> None:
    """The comparison can fail, for live states and for cached ones."""
    server = Server(card, seed)
    while not server.cached:
        server.step()
    req = Request([1, 2, 3])
    rows = [(0, req, 3)]
    for states in (server.context.mamba_ssm_states, server.slots.ssm_states):
        assert states is not None
        states[:, 0] = float(req.state_after(3, SSM)) + torch.arange(LAYERS, device=card.device).view(
            -1, 1, 1, 1
        )
        server.compare(states, rows, SSM)
        states[1, 0, -1, -1, -1] += 1
        with pytest.raises(AssertionError):
            server.compare(states, rows, SSM)
