"""The adapter of whole requests, where no program of tests/properties looks, and its forward pass."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.adapters.exact_forward import ExactForward, ExactState, read_rows
from pymllm.adapters.own_requests import MALFORMED_CALLS, Prompted, Requests
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm.oracle.models.cold_runs import ColdRuns, Prefix

CONFIG: Config = {
    **{
        "max_requests": 3,
        "num_blocks": 8,
        "max_blocks": 4,
        "paused_limit": 3,
        "block_size": 2,
        "chunk_size": 2,
    },
    **{"layers": 1, "conv_width": 1, "ssm_width": 1, "mamba_slots": 2, "policy": "lru", "hash_digits": None},
}
SIX = (1, 2, 3, 4, 5, 6)


def make(**config: int | str | None) -> Requests:
    return Requests("x", {**CONFIG, **config})


def play(adapter: Requests, *operations: ops.Operation) -> list[out.Outcome]:
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


def test_a_fault_is_forgotten_after_the_operation_that_follows_it() -> None:
    """X2: and one that a context does not know is not taken."""
    adapter = make()
    play(adapter, ops.AddRequest((1,)), ops.Fault("forward"), ops.Inspect())
    assert adapter.apply(9, ops.RunStep()).result.error == ""  # type: ignore[union-attr]
    assert isinstance(adapter.apply(10, ops.Fault("tea")).result, out.Unsupported)


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_every_malformed_call_is_refused(call: str, wrong: str) -> None:
    """X1: with an error, and nothing has changed."""
    outcome = make().apply(1, ops.Malformed(call, wrong))
    assert isinstance(outcome.result, out.Failed)
    assert outcome.sizes == make().sizes()


def test_what_it_cannot_do_it_says() -> None:
    """X1: unknown calls, steps that added nothing, and sizes that are none."""
    assert isinstance(make().apply(1, ops.Malformed("tea", "cold")).result, out.Unsupported)
    with pytest.raises(ProgramError, match="step 7 added no request"):
        make().apply(1, ops.Release(7))
    with pytest.raises(ValueError, match="num_blocks"):
        make(num_blocks="many")


def test_claims_and_walks_follow_the_configuration() -> None:
    """C2: without cached states nothing is claimed or looked at; a look needs no walk."""
    assert "mamba" in make().capabilities
    assert "C2" in make().audit()
    bare = make(layers=0, mamba_slots=0)
    assert "mamba" not in bare.capabilities
    assert "C2" not in bare.audit()
    play(bare, ops.AddRequest(SIX), ops.RunStep(), ops.Inspect())
    assert bare.audit() == ()


def test_a_walk_sees_what_is_broken_inside() -> None:
    """E2: whatever the outcomes say."""
    adapter = make()
    play(adapter, ops.AddRequest(SIX))
    adapter.context.request_to_kv_block_ids[0, 0] = 5
    with pytest.raises(InvariantViolation, match="E2"):
        adapter.audit()


def test_a_weak_hash_makes_few_hashes() -> None:
    """C3: of two digits there are 256, in every block."""
    adapter = make(hash_digits=2)
    play(adapter, ops.AddRequest(SIX), ops.RunStep())
    hashes = [value for value in adapter.context.kv_block_allocator.block_hashes.tolist() if value >= 0]
    assert hashes
    assert all(1 <= value < 256 for value in hashes)


def test_nothing_is_shared_where_caching_is_off() -> None:
    """C3, E3: no block is registered, none matched, and each is free again once its request has left."""
    adapter = make(caching=False, mamba_slots=0)
    _, ran, again, left = play(
        adapter, ops.AddRequest(SIX), ops.RunStep((9,)), ops.AddRequest(SIX), ops.Release(1)
    )
    assert isinstance(ran.result, out.Ran)
    assert ran.result.registered == ()
    assert isinstance(again.result, out.RequestView)
    assert again.result.blocks == (3, 4, 5)
    assert (left.sizes["pool_avail"], left.sizes["evictable_blocks"]) == (4, 0)


def test_states_are_on_the_device_that_is_named() -> None:
    """C7: live states, cached ones, and what a step extracts."""
    context = make(device="meta").context
    slots = context.mamba_slot_allocator
    assert slots is not None
    assert context.mamba_conv_states is not None
    states = (context.mamba_conv_states, slots.ssm_states, slots.conv_states, slots.intermediate_ssm_out)
    assert {each.device.type for each in states} == {"meta"}


# -- A forward pass that computes exactly, as the definition says and as a cold run would --------------------


CONFIG_EXACT_FORWARD = dict(Requests.CONFIGURATIONS[0])
TOKENS = (5, 0, 7, 4_294_967_295, 5, 3, 3, 1, 2)


@pytest.mark.parametrize("prime", [ops.CONV_PRIME, ops.SSM_PRIME])
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
    context = Requests("x", CONFIG_EXACT_FORWARD).context
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
