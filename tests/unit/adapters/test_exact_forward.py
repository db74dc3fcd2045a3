"""A forward pass that computes exactly, as the definition says and as a cold run would."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.adapters.exact_forward import ExactForward, ExactState, read_rows
from pymllm.adapters.failing_calls import InjectedFault
from pymllm.adapters.own_requests import Prompted, Requests
from pymllm.history.operations import CONV_PRIME, SSM_PRIME
from pymllm.oracle.cold_runs import ColdRuns, Prefix

CONFIG = dict(Requests.CONFIGURATIONS[0])
TOKENS = (5, 0, 7, 4_294_967_295, 5, 3, 3, 1, 2)


@pytest.mark.parametrize("prime", [CONV_PRIME, SSM_PRIME])
def test_a_folded_chunk_is_the_loop_over_its_tokens(prime: int) -> None:
    """E1: however the tokens are cut, and depending on their order."""
    model, tokens = ExactState(3, prime), np.array(TOKENS, np.int64)
    state = np.zeros(3, np.int64)
    for token in tokens:
        state = model.advance(state, np.array([token]))
    for cut in range(len(tokens) + 1):
        head = model.advance(np.zeros(3, np.int64), tokens[:cut])
        assert np.array_equal(model.advance(head, tokens[cut:]), state)
    assert not np.array_equal(model.advance(np.zeros(3, np.int64), tokens[::-1]), state)


def test_what_it_leaves_is_what_the_oracle_computes_by_itself() -> None:
    """E1: KV, live states and extracted states; two implementations of one definition."""
    context = Requests("x", CONFIG).context
    forward, request = ExactForward(context), Prompted(list(TOKENS))
    assert context.add_request(request)
    batch = context.begin_step()
    assert forward.offsets(batch) == [(8,)]
    forward.compute(batch)
    cold, prefixes = ColdRuns(4, 4, 4), list[Prefix]()
    cold.extend(prefixes, TOKENS)
    blocks = batch.requests[0].blocks
    assert forward.read_kv(blocks, len(TOKENS)) == cold.kv_until(prefixes, TOKENS, len(TOKENS))
    assert forward.read_lives([0])[0] == cold.state_at(prefixes, TOKENS, len(TOKENS))
    slots = context.mamba_slot_allocator
    assert slots is not None
    outputs = read_rows(slots.intermediate_conv_out, slots.intermediate_ssm_out)
    assert outputs[0] == cold.state_at(prefixes, TOKENS, 8)
    assert forward.kv[-1].any(), "padding goes to the dummy"


def test_it_fails_at_the_request_that_it_was_told() -> None:
    """X2: what came before is computed, what comes after is not."""
    context = Requests("x", CONFIG).context
    forward = ExactForward(context)
    for token in (1, 2):
        assert context.add_request(Prompted([token]))
    forward.fails_at = 2
    with pytest.raises(InjectedFault, match="at request 2"):
        context.step(lambda batch: forward.compute(batch) or [])  # type: ignore[func-returns-value]
    assert forward.done == 1
    assert [any(row) for row in forward.kv[:2].tolist()] == [True, False]


def test_rows_of_states_are_read_part_by_part() -> None:
    """E1: all layers of the first part, then of the second."""
    conv = torch.arange(4, dtype=torch.bfloat16).view(2, 2, 1)
    ssm = torch.arange(10, 18, dtype=torch.float32).view(2, 2, 1, 2)
    assert read_rows(conv, ssm) == [(0, 2, 10, 11, 14, 15), (1, 3, 12, 13, 16, 17)]
