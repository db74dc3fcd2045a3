"""What a cold run keeps of the states of one request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pymllm.mem_cache.bit_view import bit_view
from pymllm.mem_cache.memory_pool import GDNPool
from pymllm.workloads.engine_forward import SimulatedRecurrent
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.recurrence import RecurrentStates
from pymllm.workloads.request import Request


def test_it_has_the_state_of_every_prefix_in_each_buffer(ask: Callable[..., Request]) -> None:
    """E1: bit for bit what each buffer's own model says of as many tokens, and what each token adds."""
    pool = GDNPool(9, 2, 1, 2, 2, 2, 2, device="cpu", max_track_slots=2)
    model = SimulatedRecurrent(pool, seed=0)
    live = LiveRequest(ask(0, 20, namespace="a"), place=1)
    live.row, live.length = 3, 1
    model.prefill(live, 0)
    run = live.cold_run
    assert run is not None
    kinds = [RecurrentStates((2, 4), torch.float32, 1), RecurrentStates((2, 2), torch.bfloat16, 2)]
    for kind, bits in zip(kinds, run.bits, strict=True):
        for length in range(len(live.tokens) + 1):
            expected = bit_view(kind.cold(live.tokens[:length], "a")).numpy()
            assert np.array_equal(bits[:, length], expected)
    inputs = [kind.recurrence.inputs(live.tokens, "a") for kind in kinds]
    assert np.array_equal(run.inputs, np.concatenate(inputs, axis=1))
