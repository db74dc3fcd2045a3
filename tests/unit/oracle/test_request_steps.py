"""The judge of steps: what each wrong outcome of one breaks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from recorded_requests import SEVEN, Change, law_of, play, result_with, two_served

from pymllm.errors import ProgramError
from pymllm.history.files import History
from pymllm.history.operations import AddRequest, Fault, Operation, Release, RunStep, ScheduleChunk
from pymllm.history.outcomes import BlockState, Done, Effect, Failed, Outcome, Ran
from pymllm.oracle.judge import judge_steps

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
    (CROWDED, tells(0), "X2"),
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
