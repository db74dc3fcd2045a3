"""Decode steps as graphs with padding rows: thousands of replays, every row of every buffer compared."""

from __future__ import annotations

import random

import pytest
import torch

from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool
from tests.stress.bit_patterns import any_bits, same_bits
from tests.stress.card import Card, Rounds

LAYERS, K_ROW, V_ROW = 2, (2, 8), (3, 4)
BUCKETS = (1, 2, 4, 16, 64)
REQUESTS, CONTEXT, SNAPSHOTS = 64, 128, 16


class Pools:
    """All tensors that a step writes to, and their expected contents, kept by torch's plainest means."""

    def __init__(self, card: Card, slots: int, dtype: torch.dtype) -> None:
        self.kv = KVPool(slots, LAYERS, *K_ROW, card.device, dtype, *V_ROW)
        self.rows = ReqToTokenPool(REQUESTS, CONTEXT, card.device)
        self.states = GDNPool(REQUESTS, LAYERS, 2, 4, 4, 6, 4, card.device, max_track_slots=SNAPSHOTS)
        assert len(self.rows.alloc(REQUESTS) or ()) == REQUESTS
        self.states.recurrent_state.copy_(torch.rand(self.states.recurrent_state.shape))
        self.states.conv_state.copy_(torch.rand(self.states.conv_state.shape))
        self.expected = [tensor.clone() for tensor in self.tensors()]

    def tensors(self) -> list[torch.Tensor]:
        """All that a step could reach, in a fixed order; the row of padding is the first of each."""
        table = self.rows.req_to_token
        states = (self.states.recurrent_state.transpose(0, 1), self.states.conv_state.transpose(0, 1))
        return [*self.kv.k_buffer, *self.kv.v_buffer, table, *states]

    def check(self) -> None:
        """Compare every row but that of padding, which has what the last padded token left."""
        for place, (found, expected) in enumerate(zip(self.tensors(), self.expected, strict=True)):
            assert same_bits(found[1:].contiguous(), expected[1:].contiguous()), f"tensor {place}"


class Step:
    """A decode step for up to ``size`` requests, captured once; the numbers change between replays."""

    def __init__(self, card: Card, pools: Pools, size: int, index_dtype: torch.dtype) -> None:
        dtype = pools.kv.dtype
        self.size = size
        self.slots = torch.zeros(size, dtype=index_dtype, device=card.device)
        self.at_rows, self.positions, self.src, self.dst = (
            torch.zeros(size, dtype=torch.int64, device=card.device) for _ in range(4)
        )
        self.k = torch.zeros((LAYERS, size, *K_ROW), device=card.device).to(dtype)
        self.v = torch.zeros((LAYERS, size, *V_ROW), device=card.device).to(dtype)

        def work() -> None:
            pools.rows.write((self.at_rows, self.positions), self.slots)
            for layer in range(LAYERS):
                pools.kv.set_kv_buffer(layer, self.slots, self.k[layer], self.v[layer])
            pools.states.copy_states(self.src, self.dst)

        # On the CPU the values of indices are looked at, as they are all padding here: nothing but row 0.
        self.replay = card.capture(work)


def play(pools: Pools, step: Step, draw: random.Random, bits: torch.Generator) -> None:
    """One step of fewer requests than the graph has room for; the rest of its rows is padding."""
    count = draw.randrange(step.size + 1)
    slots = torch.tensor(draw.sample(range(1, pools.kv.size + 1), count), dtype=torch.int64)
    at_rows = torch.tensor(draw.sample(range(1, REQUESTS + 1), count), dtype=torch.int64)
    positions = torch.tensor(draw.choices(range(CONTEXT), k=count), dtype=torch.int64)
    kept = min(count, SNAPSHOTS)
    moved = torch.tensor(draw.sample(range(1, REQUESTS + SNAPSHOTS + 1), 2 * kept), dtype=torch.int64)
    numbers = ((step.slots, slots), (step.at_rows, at_rows), (step.positions, positions))
    for static, given in (*numbers, (step.src, moved[:kept]), (step.dst, moved[kept:])):
        static.zero_()
        static[: len(given)].copy_(given)
    k, v = (any_bits(tuple(static.shape), static.dtype, bits) for static in (step.k, step.v))
    step.k.copy_(k)
    step.v.copy_(v)
    step.replay()

    buffers, table, recurrent, conv = (
        pools.expected[: 2 * LAYERS],
        pools.expected[-3],
        pools.expected[-2],
        pools.expected[-1],
    )
    for layer in range(LAYERS):
        for buffer, given in ((buffers[layer], k), (buffers[LAYERS + layer], v)):
            buffer[slots.to(buffer.device)] = given[layer, :count].to(buffer.device)
    table[at_rows.to(table.device), positions.to(table.device)] = slots.to(table)
    for state in (recurrent, conv):
        src, dst = moved[:kept].to(state.device), moved[kept:].to(state.device)
        state[dst] = state[src]


@pytest.mark.gpu_memory_limit("1 GiB")
@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [(torch.bfloat16, torch.int32), (torch.bfloat16, torch.int64), (torch.uint8, torch.int32)],
    ids=lambda it: str(it).removeprefix("torch."),
)
def test_replayed_steps_change_the_named_rows_and_no_other(
    card: Card,
    rounds: Rounds,
    seed: int,
    dtype: torch.dtype,
    index_dtype: torch.dtype,
) -> None:
    """P2, P3, P5, E5: through batches of every size, padded to graphs of a few."""
    draw, bits = random.Random(seed), torch.Generator().manual_seed(seed)
    pools = Pools(card, 512 if not card.is_cuda else 65_536, dtype)
    steps = [Step(card, pools, size, index_dtype) for size in BUCKETS]
    for number in rounds(500 if not card.is_cuda else 2_000):
        play(pools, draw.choice(steps), draw, bits)
        if number % 50 == 0:
            pools.check()
    pools.check()


def test_a_row_that_is_off_by_one_is_noticed(card: Card, seed: int) -> None:
    """The comparison above can fail, wherever the wrong row is."""
    draw, bits = random.Random(seed), torch.Generator().manual_seed(seed)
    pools = Pools(card, 64, torch.bfloat16)
    play(pools, Step(card, pools, 4, torch.int32), draw, bits)
    pools.check()
    for tensor in pools.tensors():
        row = draw.randrange(1, len(tensor))
        before = tensor[row].clone()
        tensor[row] = tensor[row] + 1
        with pytest.raises(AssertionError):
            pools.check()
        tensor[row] = before
    pools.check()
