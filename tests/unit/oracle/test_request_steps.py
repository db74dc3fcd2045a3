"""Steps of contexts: what they compute and register, and the model that predicts it."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest
from recorded_requests import CONFIG, SEVEN, Change, law_of, play, result_with, two_served

from pymllm.errors import ProgramError
from pymllm.history.files import Config, History
from pymllm.history.operations import (
    CONV_PRIME,
    KV_FACTOR,
    KV_PRIME,
    SSM_PRIME,
    AddRequest,
    Fault,
    Operation,
    Pause,
    Release,
    RunStep,
    ScheduleChunk,
)
from pymllm.history.outcomes import BlockState, Done, Effect, Failed, Outcome, Ran
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.models.cold_runs import ColdRuns, Prefix
from pymllm.oracle.models.request_model import DECODE, PAUSED, WAITING, RequestModel, ServedRequest

# -- The judge of steps: what each wrong outcome of one breaks -----------------------------------------------


SIX, EIGHT = SEVEN[:6], (*SEVEN, 8)


def run_with(**fields: Any) -> Change:
    """Change fields of what is told of the first request."""

    def change(runs: tuple[Any, ...]) -> tuple[Any, ...]:
        values = {
            name: value(getattr(runs[0], name)) if callable(value) else value
            for name, value in fields.items()
        }
        return (dataclasses.replace(runs[0], **values), *runs[1:])

    return result_with(requests=change)


def answer(result: Any) -> Change:
    return lambda outcome: dataclasses.replace(outcome, result=result)


def tells(*blocks: int) -> Change:
    return lambda outcome: dataclasses.replace(outcome, effects=(Effect("callback", blocks),))


ONE = (AddRequest(SEVEN), RunStep())
TWO = (AddRequest(SIX), AddRequest(SIX), RunStep())
AGAIN = (*two_served(), RunStep())  # shares three blocks and resumes behind the second or third
CHUNK = (AddRequest(SEVEN, 2), RunStep(), ScheduleChunk(1), RunStep())
GROWN = (AddRequest(SIX), RunStep(), RunStep())  # decodes into a new block
LONGEST = (AddRequest(EIGHT), RunStep(), RunStep())
CROWDED = (AddRequest(SIX), AddRequest(SIX[::-1]), AddRequest((9,)), RunStep(), RunStep())
FAILING = (AddRequest(SIX), Fault("store_states"), RunStep())
CUT_SHORT = (AddRequest(SIX), AddRequest((9,)), Fault("forward", 2), RunStep())
# Three prompts of six tokens, one after the other: the third takes the slots of the first.
USED = tuple(
    step
    for number, first in ((1, 1), (4, 11), (7, 21))
    for step in (AddRequest(tuple(range(first, first + 6))), RunStep(), Release(number))
)[:-1]

WRONG: list[tuple[tuple[Operation, ...], Change, str]] = [
    (ONE, answer(Failed("CapacityError")), "E4"),
    (ONE, answer(Done()), "E4"),
    (ONE, tells(4), "C1"),
    (ONE, result_with(requests=()), "E2"),
    (TWO, result_with(requests=lambda runs: runs[::-1]), "E2"),
    (ONE, run_with(blocks=lambda blocks: blocks[::-1]), "E2"),
    (ONE, run_with(start=1), "E1"),
    (ONE, run_with(count=6), "E1"),
    (ONE, run_with(count=0), "E4"),
    (ONE, run_with(is_sampled=False), "E1"),
    (ONE, run_with(state=(1, 0)), "E1"),
    (ONE, run_with(kv=lambda kv: (*kv[:-1], 0)), "E1"),
    (ONE, run_with(kv=lambda kv: (*kv, 0)), "E1"),
    (ONE, run_with(offsets=(2,)), "C8"),
    (ONE, run_with(writes=lambda writes: writes[:-1]), "E2"),
    (ONE, run_with(writes=lambda writes: ((8, 2), *writes[1:])), "E2"),
    (ONE, run_with(writes=lambda writes: ((14, 2), *writes[1:])), "E5"),
    (ONE, run_with(writes=lambda writes: ((0, 7),)), "E2"),
    (ONE, run_with(writes=lambda writes: (*writes, (8, 1))), "E2"),
    (ONE, result_with(registered=(0, 1)), "C3"),
    (ONE, result_with(registered=(0, 1, 2, 3)), "C3"),
    (ONE, result_with(kept=()), "C8"),
    (ONE, result_with(kept=lambda kept: (*kept, BlockState(0, 1))), "C8"),
    (ONE, result_with(kept=lambda kept: tuple(BlockState(each.block, 2) for each in kept)), "C2"),
    (ONE, result_with(dropped=(0,)), "C6"),
    (ONE, result_with(error="CapacityError"), "C7"),
    (ONE, result_with(error="InjectedFault"), "C7"),
    (TWO, result_with(registered=lambda blocks: tuple(block + 4 for block in blocks)), "C3"),
    (AGAIN, run_with(start=0), "E1"),
    (CHUNK, run_with(offsets=()), "C8"),
    (GROWN, run_with(blocks=lambda blocks: (*blocks[:-1], 7)), "C1"),
    (GROWN, run_with(blocks=lambda blocks: blocks[:-1]), "E2"),
    (LONGEST, answer(Ran(())), "X1"),
    (LONGEST, tells(0), "X1"),
    (CROWDED, answer(Ran(())), "X4"),
    (CROWDED, tells(0), "X4"),
    (FAILING, result_with(registered=(0,)), "X2"),
    (FAILING, result_with(kept=(BlockState(2, 0),)), "X2"),
    (FAILING, result_with(dropped=(5,)), "X2"),
    (FAILING, result_with(error="RuntimeError"), "C7"),
    (CUT_SHORT, result_with(registered=(0, 1, 2)), "X2"),
    (CUT_SHORT, result_with(dropped=(1,)), "X2"),
    (CUT_SHORT, result_with(requests=lambda runs: runs[:1]), "E2"),
    ((AddRequest(SIX), RunStep(), Fault("allocate_blocks"), RunStep()), tells(1), "X2"),
    ((AddRequest(SIX), RunStep(), Fault("no_blocks"), RunStep()), tells(1), "X2"),
]


@pytest.mark.parametrize(("program", "change", "law"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_step_breaks_its_law(program: tuple[Operation, ...], change: Change, law: str) -> None:
    """C1 to C3, C6 to C8, E1, E2, E4, E5, X1, X2, X4: the last step of a good program, changed."""
    assert law_of(play(*program), change) == law


def test_shared_tokens_that_are_computed_again_may_go_to_their_place_or_to_the_dummy() -> None:
    """E5: the KV is the same in both cases; anywhere else it would be somebody's."""
    history = play(*two_served(EIGHT), RunStep(), mamba_slots=1)  # the only state is at the prompt's end
    (run,) = ran(history).requests
    assert run.start == 0
    assert run.writes[0][0] == 14
    assert law_of(history, run_with(writes=lambda writes: ((run.blocks[0] * 2, 2), *writes[1:]))) is None
    assert law_of(history, run_with(writes=lambda writes: ((run.blocks[1] * 2, 2), *writes[1:]))) == "E5"


def ran(history: History) -> Ran:
    """The answer of the last step."""
    outcome = history.steps[-1].outcome
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.result, Ran)
    return outcome.result


def test_a_commit_that_is_short_of_slots_is_judged_by_priority() -> None:
    """C7: the state at the end of the prompt is kept, the one inside is not."""
    history = play(AddRequest(SIX), RunStep(), mamba_slots=1)
    assert ran(history).kept == (BlockState(2, 0),)
    assert law_of(history, result_with(kept=(BlockState(1, 0),))) == "C7"
    assert law_of(history, result_with(kept=())) == "C7"


@pytest.mark.parametrize(
    ("between", "second", "is_met"),
    [
        ((Pause(1),), (1, 2, 9), True),
        ((Pause(1),), (8, 2, 9), False),  # another first block
        ((Pause(1),), (1, 2, 9, 9, 9), False),  # a block more
        ((), (1, 2, 9), False),  # two at once
    ],
)
def test_lone_decodes_in_a_row_that_differ_behind_their_first_block_are_counted(
    between: tuple[Operation, ...], second: tuple[int, ...], is_met: bool
) -> None:
    """E2: whoever tells tables apart by length and first block takes one for the other."""
    history = play(
        AddRequest((1, 2, 3)), RunStep(), RunStep(), *between, AddRequest(second), RunStep(), RunStep()
    )
    evidence, found = judge_steps(history.header, history.steps)
    assert found is None
    assert bool(evidence.reached["two lone decodes in a row differ behind the first block alone"]) is is_met


def test_released_blocks_lose_their_slots_in_the_order_of_their_release() -> None:
    """C6: the first prompt's states go, not those of the second."""
    history = play(*USED, num_blocks=16, mamba_slots=1)
    evidence, found = judge_steps(history.header, history.steps)
    assert found is None
    assert evidence.reached["a commit takes slots from released blocks"] >= 1
    assert law_of(history, result_with(dropped=())) == "C6"


def test_a_decode_evicts_what_is_cached_with_its_state() -> None:
    """C1, C6: and the step tells of both."""
    program = (AddRequest((1, 2)), RunStep(), Release(1), AddRequest(EIGHT[::-1]), RunStep(), RunStep())
    history = play(*program, num_blocks=6, max_blocks=5, mamba_slots=3)
    dropped, effects = ran(history).dropped, history.steps[-1].outcome
    assert effects is not None
    gone = {block for effect in effects.effects for block in effect.slots}
    assert set(dropped) == gone == {0}
    assert law_of(history, tells(4)) == "C1"
    assert law_of(history, result_with(dropped=())) == "C6"


def test_tokens_are_sampled_in_the_order_in_which_requests_were_added() -> None:
    """E1: whatever the rows; from the start again where there are more requests than tokens."""
    history = play(AddRequest((1,)), AddRequest((2,)), AddRequest((3,)), RunStep((7, 8)), RunStep((5,)))
    requests = {run.request: run.kv for run in ran(history).requests}
    prompts = {1: (1, 7), 2: (2, 8), 3: (3, 7)}
    for request, tokens in prompts.items():
        alone = play(AddRequest(tokens), RunStep())
        assert ran(alone).requests[0].kv == requests[request]


def test_a_step_fails_alike_where_no_states_are_kept() -> None:
    """X2: blocks that it registers would be told of tokens that were never computed."""
    history = play(*CUT_SHORT, layers=0, mamba_slots=0)
    assert law_of(history, result_with(registered=(0,))) == "X2"
    assert law_of(history, result_with(error="")) == "E1"


def test_the_smallest_and_the_largest_token_may_come_next() -> None:
    """E1: what a request decodes is any token of 32 bits, and the one after it is none."""
    assert len(play(AddRequest((1,)), RunStep((0, 2**32 - 1)), RunStep())) == 3
    with pytest.raises(ProgramError, match="next_tokens must name one token at least"):
        play(AddRequest((1,)), RunStep((2**32,)))


# -- The model of whole requests: what a configuration must have, offsets, and what is skipped ---------------


def served(
    model: RequestModel, step: int, tokens: tuple[int, ...], limit: int | None = None
) -> ServedRequest:
    """Take a request up, with the lowest free blocks."""
    request = model.meet(step, tokens, limit)
    missing = model.missing(request)
    model.blocks.retain(request.blocks)
    model.served[step] = request
    model.extend(request, [*model.blocks.free][:missing])
    return request


def registered(model: RequestModel, request: ServedRequest) -> list[int]:
    """Register what a request computes next; return the blocks that are."""
    offers = model.plan_registration([(request, request.blocks)])
    model.register(offers)
    return [one.block for offer in offers for one in offer.made]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_requests", 0),
        ("num_blocks", 1),
        ("block_size", None),
        ("paused_limit", -1),
        ("mamba_slots", "2"),
        ("hash_digits", 0),
        ("hash_digits", "2"),
        ("policy", "fifo"),
    ],
)
def test_a_configuration_that_makes_no_context_is_refused(key: str, value: int | str | None) -> None:
    """X1: by its key."""
    with pytest.raises(ProgramError, match=f"configuration's {key}"):
        RequestModel({**CONFIG, key: value})


@pytest.mark.parametrize(
    ("prompt", "limit", "chunk", "offsets"),
    [
        (7, None, 2, (6,)),  # the last block of the prompt, and of the chunk
        (8, None, 2, (6,)),  # the end of the prompt itself is not strictly inside
        (8, 5, 2, (4,)),  # the last block of the chunk
        (7, None, 4, ()),  # 6 is no multiple of 4
        (3, None, 2, (2,)),
        (1, None, 2, ()),
    ],
)
def test_offsets_of_a_first_chunk(
    prompt: int, limit: int | None, chunk: int, offsets: tuple[int, ...]
) -> None:
    """C8: relative to the first token computed, strictly inside, multiples of the kernel's chunk."""
    model = RequestModel({**CONFIG, "chunk_size": chunk})
    assert model.offsets(served(model, 1, tuple(range(prompt)), limit)) == offsets


def test_offsets_of_a_later_chunk_begin_where_it_does() -> None:
    """C8: what is finished counts, and the boundary of what was matched."""
    model = RequestModel(CONFIG)
    request = served(model, 1, SEVEN, 2)
    model.finish_step(request, 9)
    assert (request.region, request.start) == (WAITING, 2)
    request.chunk = request.plan_chunk(None)
    assert model.offsets(request) == (4,)


def test_a_hit_is_skipped_up_to_its_last_state() -> None:
    """E4: and never to the end of the prompt."""
    model = RequestModel(CONFIG)
    first = served(model, 1, SEVEN)
    assert registered(model, first) == [0, 1, 2]
    assert registered(model, first) == []
    assert model.meet(2, SEVEN, None).start == 0
    model.slots.slot_of.update({1: 0, 2: 1})
    assert [model.meet(2, SEVEN[:count], None).start for count in (7, 6, 5, 4, 3)] == [6, 4, 4, 0, 0]
    assert model.meet(2, SEVEN, 1).stop == 7
    attention = RequestModel({**CONFIG, "layers": 0, "mamba_slots": 0})
    alone = served(attention, 1, SEVEN)
    registered(attention, alone)
    assert [attention.meet(2, SEVEN[:count], None).start for count in (7, 6, 2, 1)] == [6, 4, 0, 0]


def test_the_first_to_register_a_hash_keeps_it() -> None:
    """C3: what follows a block that came too late stays unregistered, even with a hash of its own."""
    model = RequestModel({**CONFIG, "num_blocks": 12})
    one, two = served(model, 1, SEVEN), served(model, 2, (*SEVEN[:4], 9, 9, 9))
    assert registered(model, one) == [0, 1, 2]
    assert registered(model, two) == []
    assert not two.is_known


def test_what_is_computed_again_is_not_registered_again() -> None:
    """C3: a hit without a state, computed in two chunks; the block behind it is registered."""
    model = RequestModel({**CONFIG, "num_blocks": 12})
    registered(model, served(model, 1, SEVEN[:4]))
    again = served(model, 2, SEVEN, 2)
    assert (again.matched, registered(model, again)) == (2, [])
    model.finish_step(again, 9)
    again.chunk = again.plan_chunk(None)
    model.extend(again, [*model.blocks.free][: model.missing(again)])
    assert registered(model, again) == [again.blocks[2]]


def test_paused_requests_count_shared_blocks_once() -> None:
    """C1: with the one that is about to be paused."""
    model = RequestModel({**CONFIG, "num_blocks": 12})
    one = served(model, 1, SEVEN)
    registered(model, one)
    two = served(model, 2, SEVEN)
    one.region = PAUSED
    assert model.paused_with(two) == 5
    assert [request.step for request in model.of(PAUSED)] == [1]


def test_sizes_follow_requests_and_a_reset() -> None:
    """C1, C9: everything is free again, and requests are gone."""
    model = RequestModel(CONFIG)
    fresh = model.sizes()
    request = served(model, 1, SEVEN)
    model.finish_step(request, 5)
    assert (request.region, request.tokens[-1]) == (DECODE, 5)
    assert model.sizes() == fresh | {"pool_avail": 3, "request_count": 1, "decode_req_count": 1}
    model.clear()
    assert (model.sizes(), model.gone) == (fresh, {1})
    config: Config = {**CONFIG, "layers": 0}
    assert "free_count" not in RequestModel(config).sizes()


def test_nothing_is_kept_where_caching_is_off() -> None:
    """C3, E3: what a request computed is offered to nobody, and goes with it."""
    model = RequestModel({**CONFIG, "caching": False})
    request = served(model, 1, SEVEN)
    assert registered(model, request) == []
    assert not model.meet(2, SEVEN, None).blocks
    model.release(request)
    assert len(model.blocks.free) == model.blocks.usable


# -- What a cold run computes, against the definition and by hand --------------------------------------------


TOKENS = (5, 0, 7, 4_294_967_295, 5)


def prefixes_of(cold: ColdRuns, tokens: tuple[int, ...]) -> list[Prefix]:
    prefixes: list[Prefix] = []
    cold.extend(prefixes, tokens)
    return prefixes


def kv_of(tokens: tuple[int, ...]) -> list[int]:
    numbers = [0]
    for token in tokens:
        numbers.append((numbers[-1] * KV_FACTOR + token + 1) % KV_PRIME)
    return numbers[1:]


def element(e: int, prime: int, tokens: tuple[int, ...]) -> int:
    x = 0
    for token in tokens:
        a = 1 + (token + 1) * (e + 3) * 7919 % (prime - 1)
        x = (a * x + (token + 1) * (e + 5) * 104_729 + e) % prime
    return x


def test_kv_is_summed_up_block_by_block() -> None:
    """E1: each number times its place in the block, the last block as far as it goes."""
    cold = ColdRuns(2, 0, 0)
    prefixes = prefixes_of(cold, TOKENS)
    numbers = kv_of(TOKENS)
    assert cold.kv_until(prefixes, TOKENS, 5) == (
        numbers[0] + 2 * numbers[1],
        numbers[2] + 2 * numbers[3],
        numbers[4],
    )
    assert cold.kv_until(prefixes, TOKENS, 2) == (numbers[0] + 2 * numbers[1],)
    assert cold.kv_until(prefixes, TOKENS, 1) == (numbers[0],)


def test_a_state_is_the_same_however_it_is_asked_for() -> None:
    """E1: whole blocks first or not, further on or back."""
    cold = ColdRuns(2, 2, 1)
    prefixes = prefixes_of(cold, TOKENS)
    for stop in (0, 1, 3, 5, 4, 3, 2, 1, 0):
        wanted = (
            *(element(e, CONV_PRIME, TOKENS[:stop]) for e in (0, 1)),
            element(0, SSM_PRIME, TOKENS[:stop]),
        )
        assert cold.state_at(prefixes, TOKENS, stop) == wanted
    other = (5, 1)
    assert cold.state_at([], other, 1) == cold.state_at([], TOKENS, 1)
    assert cold.state_at(prefixes_of(cold, other), other, 2)[0] == element(0, CONV_PRIME, other)


def test_another_path_to_a_partial_block_is_computed_anew() -> None:
    """E1: what was asked for last is of use only where the tokens go on from it."""
    cold = ColdRuns(4, 1, 1)
    assert cold.state_at([], (1, 2, 3), 3)[0] == element(0, CONV_PRIME, (1, 2, 3))
    assert cold.state_at([], (1, 9, 3), 3)[0] == element(0, CONV_PRIME, (1, 9, 3))


def test_hashes_chain_and_may_be_weak() -> None:
    """C3, H1: SHA-256 of the prior digest and four bytes per token; -1 and 0 are no hashes."""
    first, second = prefixes_of(ColdRuns(2, 0, 0), TOKENS)
    wanted = hashlib.sha256((5).to_bytes(4, "little") + (0).to_bytes(4, "little")).digest()
    assert first.digest == wanted.hex()
    assert first.hash == int.from_bytes(wanted[:8], "big") & (2**63 - 1)
    tail = (7).to_bytes(4, "little") + (2**32 - 1).to_bytes(4, "little")
    assert second.digest == hashlib.sha256(wanted + tail).hexdigest()
    weak, _ = prefixes_of(ColdRuns(2, 0, 0, hash_digits=2), TOKENS)
    assert weak.digest == wanted.hex()[:2].rjust(16, "0")
    assert Prefix(None, 0, 0, 0, (), "0" * 16).hash == 1


def test_a_rival_has_the_same_weak_hash_below_the_same_prefix() -> None:
    """C3: it differs in its last token; of a whole hash nobody finds one."""
    weak = ColdRuns(2, 0, 0, hash_digits=1)
    first, second = prefixes_of(weak, (1, 2, 3, 4))
    for above, block, prefix in ((weak.nothing, (1, 2), first), (first, (3, 4), second)):
        rival = weak.find_rival(above, block)
        assert rival is not None
        assert (rival[0], rival != block) == (block[0], True)
        stem = (1, 2)[: above.length]
        assert prefixes_of(weak, (*stem, *rival))[-1].hash == prefix.hash
    assert weak.find_rival(weak.nothing, (1, 0), tries=1) is None
    assert ColdRuns(2, 0, 0).find_rival(first, (3, 4)) is None


def test_a_prefix_is_one_object() -> None:
    """C3: so that equal content is identity."""
    cold = ColdRuns(2, 0, 0)
    assert prefixes_of(cold, (1, 2, 3, 4))[0] is prefixes_of(cold, (1, 2, 9))[0]
    assert prefixes_of(cold, (1, 2, 3, 4))[1] is not prefixes_of(cold, (3, 4))[0]


def test_a_state_is_the_same_however_many_were_asked_for_before() -> None:
    """Requests in one block ask for theirs in turns, more of them than are remembered."""
    prompts = [tuple(range(request, request + 90)) for request in range(2)]
    cold = ColdRuns(100, 3, 5)
    for stop in (*range(90), *range(90, 0, -7)):
        for tokens in prompts:
            assert cold.state_at([], tokens, stop) == ColdRuns(100, 3, 5).state_at([], tokens, stop)
