"""What a request computes in a step, and where its KV goes."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.core.inference.contexts.forward_batch import ForwardBatch, plan_step
from pymllm.core.inference.contexts.live_request import LiveRequest


def make_live(**state: int) -> LiveRequest:
    live = LiveRequest(object(), np.arange(100, 110, dtype=np.uint32), [7, 3, 5], [], matched=2)
    for name, value in state.items():
        setattr(live, name, value)
    live.generated = [200, 201]
    return live


def test_tokens_in_shared_blocks_go_to_the_dummy() -> None:
    """E2, E5: what is computed again for its state is not written again; block 9 takes it."""
    step = plan_step(make_live(skip=4, chunk=10, row=2), 1, 4, 9, (2, 4), 6)
    assert step.start == 4
    assert step.tokens.tolist() == [104, 105, 106, 107, 108, 109]
    assert step.kv_slots.tolist() == [36, 37, 38, 39, 20, 21]
    assert (step.row, step.state_idx, step.blocks) == (2, 1, (7, 3, 5))
    assert (step.offsets, step.first_output) == ((2, 4), 6)
    assert step.is_sampled


@pytest.mark.parametrize(
    ("state", "tokens", "slots", "is_sampled"),
    [
        ({"computed": 8, "chunk": 1}, [108], [20], False),
        ({"computed": 8, "chunk": 2}, [108, 109], [20, 21], True),
        ({"computed": 10}, [200], [22], True),
        ({"computed": 11}, [201], [23], True),
    ],
)
def test_a_step_is_a_chunk_or_one_token(
    state: dict[str, int], tokens: list[int], slots: list[int], is_sampled: bool
) -> None:
    """A next token is chosen where the prompt ends, and from then on."""
    step = plan_step(make_live(**state), 0, 4, 9)
    assert step.tokens.tolist() == tokens
    assert step.kv_slots.tolist() == slots
    assert step.is_sampled is is_sampled
    assert len(ForwardBatch((step, step))) == 2
