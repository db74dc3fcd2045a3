"""Contexts of whole requests: what is told of them, step by step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from recorded_requests import (
    CONFIG,
    SEVEN,
    Change,
    law_of,
    play,
    result_with,
    sizes_with,
    two_served,
    words_of,
)

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AddRequest,
    EndTransfer,
    Fault,
    Inspect,
    Malformed,
    Operation,
    Pause,
    Release,
    Reset,
    Resume,
    RunStep,
    ScheduleChunk,
    TransferRequest,
    Truncate,
)
from pymllm.history.outcomes import INJECTED, Done, Effect, Failed, NoRoom, Outcome, RequestView, Result
from pymllm.oracle.judge import judge_steps, make_judge
from pymllm.oracle.models.cold_runs import ColdRuns

# -- The judge of whole requests: good programs, and what each wrong outcome of them breaks ------------------


LONG = (*SEVEN, 8)


def answer(result: Result) -> Change:
    return lambda outcome: dataclasses.replace(outcome, result=result)


def tells(*blocks: int) -> Change:
    return lambda outcome: dataclasses.replace(outcome, effects=(Effect("callback", blocks),))


def as_without(*program: Operation) -> Change:
    """Answer as if no fault were armed: what the same program answers that looks instead."""
    good = play(*(Inspect() if isinstance(step, Fault) else step for step in program)).steps[-1].outcome
    assert good is not None
    return lambda outcome: good


def as_without_reserve(limit: int) -> Change:
    """Answer as if nothing were to be left to others."""
    taken = play(AddRequest(SEVEN, limit)).steps[-1].outcome
    assert taken is not None
    return lambda outcome: taken


def first_block(block: int) -> Change:
    return result_with(blocks=lambda blocks: (block, *blocks[1:]))


DRAFTED = (AddRequest((1, 2, 3)), RunStep((9,)), RunStep((5,)), RunStep((6,)))
"""Five tokens are computed: 9 has made the second block whole, and 5 is in a third."""

BUILT_ON = (*DRAFTED, AddRequest((1, 2, 3, 9)), RunStep(), Release(5))
"""Another prompt ended with the second block, and has left its state there; six tokens are computed."""

GOOD: list[tuple[Operation, ...]] = [
    (*two_served(), RunStep(), RunStep(), Release(4), Release(4), Inspect(), Reset(), Inspect()),
    (
        AddRequest(SEVEN, 2),
        RunStep(),
        Pause(1),
        Pause(1),
        Resume(1),
        Resume(1),
        ScheduleChunk(1),
        ScheduleChunk(1),
    ),
    (
        AddRequest(LONG),
        AddRequest(LONG),
        Pause(1),
        AddRequest((7, 7)),
        RunStep(),
        RunStep(),
        Release(1),
        RunStep(),
    ),
    (AddRequest((1,)), AddRequest((2,)), AddRequest((3,)), AddRequest((4,)), RunStep(), Inspect()),
    (
        *two_served(),
        TransferRequest(4),
        TransferRequest(4),
        Release(4),
        EndTransfer(6),
        EndTransfer(6),
        Inspect(),
    ),
    (
        AddRequest(SEVEN),
        TransferRequest(1),
        Release(1),
        TransferRequest(1),
        Reset(),
        EndTransfer(2),
        Inspect(),
    ),
    (AddRequest(LONG, 2), AddRequest(LONG[::-1]), AddRequest((9, 9, 9)), RunStep(), ScheduleChunk(1)),
    (AddRequest((1, 2)), Release(1), Pause(1), Resume(1), ScheduleChunk(1), Inspect()),
    (AddRequest(()), AddRequest((-1,)), AddRequest((2**32,)), AddRequest((1,) * 9), AddRequest((1,), 0)),
    (Malformed("pause", "a stranger"), Malformed("commit_step", "no step")),
    (Fault("allocate_blocks"), AddRequest(SEVEN), Fault("no_blocks"), AddRequest(SEVEN), Inspect()),
    (*two_served()[:3], Fault("restore_state"), AddRequest(SEVEN), Inspect(), AddRequest(SEVEN), RunStep()),
    (
        AddRequest(SEVEN, 2),
        RunStep(),
        Fault("allocate_blocks"),
        ScheduleChunk(1),
        ScheduleChunk(1),
        RunStep(),
    ),
    (AddRequest(SEVEN, 2), RunStep(), Fault("no_blocks"), ScheduleChunk(1), ScheduleChunk(1, 0)),
    (AddRequest(SEVEN, 2, 4), AddRequest(SEVEN, 2, 3), AddRequest((9,), None, -1), AddRequest((9,), 1, 5)),
    (*two_served()[:3], AddRequest(SEVEN, None, 4), AddRequest(SEVEN, None, 3), Inspect()),
    (
        *DRAFTED,
        Truncate(1, 3, 7),
        RunStep((8,)),
        AddRequest((1, 2, 3, 9, 4)),
        Inspect(),
        Release(1),
        Inspect(),
    ),
    (*DRAFTED, Truncate(1, 2, 7), Truncate(1, 6, 7), Truncate(1, 5, -1), Truncate(1, 5, 2**32), Inspect()),
    (*DRAFTED, Truncate(1, 4, 7), AddRequest((1, 2, 3, 9)), Truncate(1, 3, 7), Truncate(1, 3, -1), RunStep()),
    (
        *DRAFTED,
        AddRequest((1, 2, 3, 9, 5, 6)),
        RunStep(),
        Truncate(1, 4, 8),
        RunStep(),
        Inspect(),
        Release(5),
    ),
    (*BUILT_ON, Truncate(1, 3, 7), Inspect(), RunStep(), Inspect(), AddRequest((1, 2, 3, 9))),
    (*BUILT_ON, Truncate(1, 5, 5), Inspect(), RunStep(), Inspect()),
    (
        *DRAFTED,
        Release(1),
        *DRAFTED,
        Truncate(6, 3, 7),
        RunStep(),
        RunStep(),
        Inspect(),
        AddRequest((1, 2, 3, 7)),
    ),
    (AddRequest((1,)), RunStep((9,)), RunStep(), Truncate(1, 1, 3), RunStep(), Inspect()),
    (*DRAFTED[:3], Pause(1), Truncate(1, 3, 7), Inspect(), Resume(1), RunStep(), Inspect()),
    (AddRequest(SEVEN, 2), Truncate(1, 0, 1), RunStep(), Truncate(1, 2, 1), Release(1), Truncate(1, 2, 1)),
    (Fault("tea"), Inspect(), AddRequest((1, 2)), Fault("forward", 2), RunStep(), RunStep((4, 5))),
]


@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
@pytest.mark.parametrize("program", GOOD, ids=range(len(GOOD)))
def test_a_good_program_breaks_nothing(program: tuple[Operation, ...], policy: str) -> None:
    """C1 to C9, E1 to E5, X1, X2, X4: whatever is refused or fails on the way."""
    history = play(*program, policy=policy)
    evidence, found = judge_steps(history.header, history.steps)
    assert found is None
    assert evidence.exercised


WRONG: list[tuple[tuple[Operation, ...], Change, str]] = [
    # Requests in.
    ((AddRequest(SEVEN),), answer(NoRoom()), "E4"),
    ((AddRequest(SEVEN, 2, 3),), answer(NoRoom()), "E4"),
    ((AddRequest(SEVEN, 2, 4),), as_without_reserve(2), "E4"),
    ((AddRequest(SEVEN, 2, 4),), tells(1), "E4"),
    ((AddRequest(SEVEN, 2, -1),), answer(NoRoom()), "X1"),
    ((AddRequest(SEVEN),), answer(Failed("RuntimeError")), "E4"),
    ((AddRequest(SEVEN),), answer(Failed(INJECTED)), "E4"),
    ((AddRequest(SEVEN),), result_with(blocks=(0, 1, 2)), "E2"),
    ((AddRequest(SEVEN),), result_with(blocks=(0, 1, 2, 2)), "C1"),
    ((AddRequest(SEVEN),), first_block(7), "C3"),
    ((AddRequest(SEVEN),), result_with(blocks=(0, 7, 2, 3)), "C1"),
    ((AddRequest(SEVEN),), result_with(region="waiting"), "E2"),
    ((AddRequest(SEVEN),), result_with(row=1), "E2"),
    ((AddRequest(SEVEN),), result_with(request=7), "E2"),
    ((AddRequest(SEVEN),), result_with(finished=1), "E2"),
    ((AddRequest(SEVEN),), result_with(state=(0, 1)), "E1"),
    ((AddRequest(SEVEN),), sizes_with(pool_avail=1), "C1"),
    ((AddRequest(SEVEN),), tells(0), "C1"),
    ((AddRequest(SEVEN[:2]), RunStep()), sizes_with(free_count=1), "C2"),
    ((AddRequest(SEVEN[:2]), RunStep()), sizes_with(pool_avail=1), "C1"),
    ((AddRequest(SEVEN[:2]), RunStep()), sizes_with(pool_avail=1, free_count=1), "C1"),
    (two_served(), first_block(5), "C3"),
    (two_served(), result_with(kv=lambda kv: (1, *kv[1:])), "E1"),
    (two_served(), result_with(state=(0, 0)), "E1"),
    ((AddRequest(()),), answer(Done()), "X1"),
    ((AddRequest(()),), tells(1), "X1"),
    ((AddRequest((1, 2)), AddRequest(())), sizes_with(pool_avail=-1), "X1"),
    ((*(AddRequest((n,)) for n in range(4)),), answer(Done()), "X4"),
    ((*(AddRequest((n,)) for n in range(4)),), tells(1), "X4"),
    ((AddRequest(LONG), AddRequest(LONG[::-1])), sizes_with(pool_avail=1), "X4"),
    ((Fault("no_blocks"), AddRequest(SEVEN)), tells(1), "X2"),
    ((Fault("allocate_blocks"), AddRequest(SEVEN)), tells(1), "X2"),
    ((Fault("allocate_blocks"), AddRequest(SEVEN)), sizes_with(pool_avail=-1), "X2"),
    ((AddRequest(SEVEN, 2), RunStep(), ScheduleChunk(1)), answer(NoRoom()), "E4"),
    ((AddRequest(SEVEN, 2), RunStep(), ScheduleChunk(1)), first_block(6), "E2"),
    ((AddRequest(SEVEN, 2), ScheduleChunk(1)), answer(Done()), "X1"),
    # Set aside, and out.
    ((AddRequest((1, 2)), Pause(1)), answer(NoRoom()), "C1"),
    ((AddRequest((1, 2)), Pause(1)), tells(0), "C1"),
    ((AddRequest(SEVEN), Pause(1)), answer(Done()), "C1"),
    ((AddRequest(SEVEN), Pause(1)), sizes_with(pool_avail=1), "X4"),
    ((AddRequest(SEVEN), TransferRequest(1)), sizes_with(pool_avail=1), "C1"),
    ((AddRequest(SEVEN), TransferRequest(1), Release(1)), sizes_with(pool_avail=1), "E3"),
    ((AddRequest(SEVEN), TransferRequest(1), Release(1), EndTransfer(2)), sizes_with(pool_avail=-1), "C1"),
    ((AddRequest(SEVEN), TransferRequest(1), EndTransfer(2), EndTransfer(2)), answer(Done()), "C1"),
    ((AddRequest((1, 2)), Pause(1), Pause(1)), answer(Done()), "X1"),
    ((AddRequest((1, 2)), Pause(1), Resume(1)), tells(0), "C1"),
    ((AddRequest((1, 2)), Pause(1), Resume(1)), answer(Failed("UsageError")), "C1"),
    ((AddRequest((1, 2)), Resume(1)), answer(Done()), "X1"),
    ((AddRequest((1, 2)), Release(1)), answer(Failed("UsageError")), "E3"),
    ((AddRequest((1, 2)), Release(1)), sizes_with(pool_avail=-1), "E3"),
    ((AddRequest((1, 2)), Release(1)), tells(), "C1"),
    (
        (AddRequest((1, 2)), Release(1)),
        lambda it: dataclasses.replace(it, effects=(Effect("free", (0,)),)),
        "C1",
    ),
    ((AddRequest((1, 2)), Release(1), Release(1)), answer(Done()), "X1"),
    ((AddRequest((1, 2)), Reset()), answer(Failed("RuntimeError")), "C9"),
    ((AddRequest((1, 2)), Reset()), tells(0), "X7"),
    ((AddRequest((1, 2)), Reset()), sizes_with(pool_avail=-1), "C9"),
    ((Reset(), Reset()), sizes_with(pool_avail=-1), "C9"),
    ((Reset(),), tells(0), "X7"),
    # Tails.
    ((*DRAFTED, Truncate(1, 3, 7)), answer(NoRoom()), "E2"),
    ((*DRAFTED, Truncate(1, 3, 7)), answer(Failed("RuntimeError")), "E2"),
    ((*DRAFTED, Truncate(1, 3, 7)), result_with(blocks=(0, 1, 2)), "E2"),
    ((*DRAFTED, Truncate(1, 3, 7)), result_with(region="paused"), "E2"),
    ((*DRAFTED, Truncate(1, 3, 7)), result_with(state=(0, 0)), "E1"),
    ((*DRAFTED, Truncate(1, 3, 7)), result_with(kv=lambda kv: (1, *kv[1:])), "E1"),
    ((*DRAFTED, Truncate(1, 3, 7)), tells(2), "C3"),
    ((*DRAFTED, Truncate(1, 3, 7)), tells(0, 1, 2), "C3"),
    ((*DRAFTED, Truncate(1, 3, 7)), tells(1), "C1"),
    ((*DRAFTED, Truncate(1, 4, 7)), tells(), "C1"),
    ((*DRAFTED, Truncate(1, 4, 7)), sizes_with(pool_avail=-1), "C1"),
    ((*BUILT_ON, Truncate(1, 3, 7)), sizes_with(pool_avail=-1), "C1"),
    ((*BUILT_ON, Truncate(1, 3, 7)), sizes_with(free_count=-1), "C6"),
    ((*DRAFTED, AddRequest((1, 2, 3, 9)), Truncate(1, 3, 7)), answer(Done()), "X1"),
    ((*DRAFTED, Truncate(1, 2, 7)), answer(Done()), "X1"),
    ((AddRequest(SEVEN, 2), RunStep(), Truncate(1, 2, 1)), answer(Done()), "X1"),
    # Looks, faults, misuse.
    ((Inspect(),), answer(Done()), "E2"),
    ((Inspect(),), tells(0), "X8"),
    ((Fault("forward"),), tells(0), "C6"),
    ((Fault("forward"),), answer(Failed("TypeError")), "X2"),
    ((Malformed("pause", "a stranger"),), answer(Done()), "X1"),
]


@pytest.mark.parametrize(
    "program",
    [
        (Fault("allocate_blocks"), AddRequest(SEVEN)),
        (Fault("no_blocks"), AddRequest(SEVEN)),
        (*two_served()[:-1], Fault("restore_state"), two_served()[-1]),
        (AddRequest(SEVEN, 2), RunStep(), Fault("allocate_blocks"), ScheduleChunk(1)),
        (AddRequest(SEVEN, 2), RunStep(), Fault("no_blocks"), ScheduleChunk(1)),
        (AddRequest(SEVEN[:6]), RunStep(), Fault("allocate_blocks"), RunStep()),
        (AddRequest(SEVEN[:6]), RunStep(), Fault("no_blocks"), RunStep()),
        (AddRequest(SEVEN[:6]), Fault("forward"), RunStep()),
        (AddRequest(SEVEN[:6]), AddRequest((9,)), Fault("forward", 2), RunStep()),
        (AddRequest(SEVEN[:6]), Fault("allocate_slots"), RunStep()),
        (AddRequest(SEVEN[:6]), Fault("store_states"), RunStep()),
    ],
)
def test_an_error_that_is_swallowed_breaks_its_law(program: tuple[Operation, ...]) -> None:
    """X2: a call that was let fail must show."""
    history = play(*program)
    _, found = judge_steps(history.header, history.steps)
    assert found is None
    assert law_of(history, as_without(*program)) == "X2"


def test_a_failure_that_cannot_have_come_is_refused() -> None:
    """X2: of a call that asks for nothing, or is not come to, nothing fails."""
    none = (AddRequest((1, 2)), Fault("restore_state"), AddRequest((7,)))
    assert law_of(play(*none), answer(Failed(INJECTED))) == "E4"
    late = (AddRequest((1, 2)), Fault("forward", 2), RunStep())
    assert law_of(play(*late), result_with(error=INJECTED, registered=(), kept=())) == "C7"


@pytest.mark.parametrize(("program", "change", "law"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_outcome_breaks_its_law(program: tuple[Operation, ...], change: Change, law: str) -> None:
    """C1, C3, C9, E1 to E4, X1, X2, X4: the last outcome of a good program, changed."""
    assert law_of(play(*program), change) == law


def test_what_is_kept_back_is_told() -> None:
    """E4: what the chunk needs, what must be left beside it, and the room for both."""
    said = words_of(play(AddRequest(SEVEN, 2, 4)), as_without_reserve(2))
    assert said.startswith("E4: 1 blocks of 7, with 7 to be left: expected no room, observed RequestView(")


def test_room_that_is_found_in_a_block_of_other_content_is_a_wrong_hit() -> None:
    """C3, and not X4: the block has the right hash."""
    weak = ColdRuns(2, 0, 0, hash_digits=1)
    rival = weak.find_rival(weak.nothing, LONG[:2])
    assert rival is not None
    history = play(AddRequest(LONG), RunStep(), AddRequest((*rival, *LONG[2:])), hash_digits=1)
    first, _, last = (step.outcome.result for step in history.steps if step.outcome is not None)
    assert isinstance(first, RequestView)
    assert last == NoRoom()
    found = replace(first, request=3)
    assert law_of(history, answer(found)) == "C3"
    assert law_of(history, answer(replace(found, blocks=found.blocks[::-1]))) == "X4"


def test_a_short_match_is_named_before_what_it_costs() -> None:
    """C3, and not C1 or X2: who finds too little asks for more blocks, and evicts for them."""
    history = play(*two_served())
    outcome = history.steps[-1].outcome
    assert outcome is not None
    view = outcome.result
    assert isinstance(view, RequestView)
    found = [*view.blocks[:1], 7, *view.blocks[2:]]
    evicting = [result_with(blocks=tuple(found)), tells(7)]
    assert law_of(history, lambda outcome: evicting[1](evicting[0](outcome))) == "C3"


def test_a_refusal_names_what_was_done() -> None:
    """C1, C9: a reset, or blocks."""
    reset = play(AddRequest((1, 2)), Reset())
    assert words_of(reset, answer(Failed("RuntimeError"))).startswith("C9: reset: ")
    words = words_of(play(AddRequest(SEVEN)), tells(5))
    assert words == "C1: blocks that are given up: expected [], observed [5]"


@pytest.mark.parametrize("prompt", [(1, 2, 5, 6, 7), SEVEN])
def test_no_other_content_is_met_where_no_hash_is_shared(prompt: tuple[int, ...]) -> None:
    """C3: a prompt that goes on elsewhere, or not at all, finds no block of its hash."""
    history = play(AddRequest(SEVEN), RunStep(), Release(1), AddRequest(prompt))
    evidence, found = judge_steps(history.header, history.steps)
    assert found is None
    assert not evidence.reached["a hash names a block of other content"]


def test_under_ref_zero_a_release_gives_up_what_was_cached() -> None:
    """C6: with its states; the law that the callback breaks says so."""
    history = play(AddRequest(SEVEN), RunStep(), Release(1), policy="ref_zero")
    assert history.steps[-1].outcome is not None
    assert sorted(block for effect in history.steps[-1].outcome.effects for block in effect.slots) == [
        0,
        1,
        2,
        3,
    ]
    assert law_of(history, tells(0, 1, 2)) == "C6"


@pytest.mark.parametrize(
    "operations",
    [
        (Release(1),),
        (AddRequest((1, 2)), Pause(2)),
        (AddRequest((1, 2)), Fault("forward"), RunStep(), Pause(1)),
        (AddRequest((1, 2)), Fault("forward"), RunStep(), RunStep()),
        (RunStep(()),),
        (RunStep((-1,)),),
        (Fault("forward", 0),),
        (AddRequest((1, 2)), EndTransfer(1)),
    ],
)
def test_what_makes_no_sense_is_not_judged(operations: tuple[Operation, ...]) -> None:
    """X1: a step that added nothing, a request that can only leave, a step without tokens."""
    *before, last = operations
    judge = make_judge(play().header)
    for number, operation in enumerate(before, 1):
        outcome = play(*before).steps[number - 1].outcome
        assert outcome is not None
        judge.judge(number, operation, outcome)
    with pytest.raises(ProgramError):
        judge.judge(9, last, Outcome(Done()))


def test_a_transfer_that_is_not_claimed_is_not_judged() -> None:
    """X9: a program asks for none where the adapter does not claim them."""
    header = play().header
    judge = make_judge(Header("x", header.kind, header.config, ("mamba",)))
    with pytest.raises(ProgramError, match="transfers are not claimed"):
        judge.judge(1, TransferRequest(1), Outcome(Done()))


def test_misuse_has_no_meaning_where_it_is_not_refused() -> None:
    """X1: an adapter that does not claim refusals is not asked for one."""
    header = play().header
    with pytest.raises(ProgramError, match="does not claim"):
        make_judge(Header("x", header.kind, header.config, ("mamba",))).judge(
            1, AddRequest(()), Outcome(Done())
        )


# -- What is seen between two steps: each part that is wrong breaks its law ----------------------------------


SIX = SEVEN[:6]
RUNNING = (AddRequest(SIX), AddRequest((9,)), RunStep(), Inspect())
CACHED = (AddRequest(SIX), RunStep(), Release(1), Inspect())
SPOILED = (AddRequest(SIX), Fault("forward"), RunStep(), Inspect())


def with_part(part: str, at: int, **fields: Any) -> Change:
    """Change fields of one request or block."""

    def change(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*parts[:at], dataclasses.replace(parts[at], **fields), *parts[at + 1 :])

    return result_with(**{part: change})


@pytest.mark.parametrize(
    ("program", "change", "law"),
    [
        (RUNNING, result_with(requests=lambda views: views[1:]), "E2"),
        (RUNNING, result_with(requests=lambda views: views[::-1]), "E2"),
        (RUNNING, with_part("requests", 0, row=1), "E2"),
        (RUNNING, with_part("requests", 0, region="paused"), "E2"),
        (RUNNING, with_part("requests", 0, blocks=(0, 1, 3)), "E2"),
        (RUNNING, with_part("requests", 0, finished=0), "E2"),
        (RUNNING, with_part("requests", 0, kv=(0, 0, 0)), "E1"),
        (RUNNING, with_part("requests", 1, kv=()), "E1"),
        (RUNNING, with_part("blocks", 3, state=(1, 1)), "C7"),
        (RUNNING, with_part("requests", 0, state=(0, 0)), "E1"),
        (RUNNING, result_with(blocks=lambda blocks: blocks[1:]), "C1"),
        (RUNNING, with_part("blocks", 0, references=2), "C1"),
        (RUNNING, with_part("blocks", 0, hash=-1), "C3"),
        (RUNNING, with_part("blocks", 3, hash=5), "C3"),
        (CACHED, with_part("blocks", 2, slot=-1), "C2"),
        (CACHED, with_part("blocks", 2, state=(1, 1)), "C7"),
        (CACHED, with_part("blocks", 0, references=1), "C1"),
    ],
)
def test_a_wrong_view_breaks_its_law(program: tuple[Operation, ...], change: Change, law: str) -> None:
    """C1, C2, C3, C7, E1, E2: one thing is told wrong."""
    assert law_of(play(*program), change) == law


def test_a_request_of_another_name_is_refused_by_it() -> None:
    """E2: the words say which was asked for."""
    words = words_of(play(AddRequest(SIX)), result_with(request=7))
    assert words == "E2: the request that is told of: expected 1, observed 7"


def test_of_a_request_whose_step_failed_no_content_is_known() -> None:
    """X2: its live state is what the forward pass left of it."""
    history = play(*SPOILED)
    assert law_of(history, with_part("requests", 0, state=(7, 7), kv=(0, 0, 0))) is None
    assert law_of(history, with_part("requests", 0, blocks=(0, 1))) == "E2"


def test_rows_are_in_the_order_of_their_regions() -> None:
    """E2: paused, decoding, scheduled, waiting."""
    history = play(AddRequest((1,)), RunStep(), AddRequest((2,)), AddRequest((3,)), Pause(3), Inspect())
    outcome = history.steps[-1].outcome
    assert outcome is not None
    assert [(view.request, view.region) for view in outcome.result.requests] == [  # type: ignore[union-attr]
        (3, "paused"),
        (1, "decode"),
        (4, "prefill"),
    ]


def test_a_row_of_another_region_is_refused() -> None:
    """E2: a request that is scheduled stands behind those that decode."""
    history = play(AddRequest((1,)), RunStep(), AddRequest((2,)))
    words = words_of(history, result_with(row=0))
    assert words == "E2: row of request 3: expected one of range(1, 2), observed 0"


def test_without_recurrent_layers_nothing_is_said_of_states() -> None:
    """C2, C7: a context that keeps none has nothing to compare."""
    history = play(*RUNNING, layers=0, mamba_slots=0)
    assert law_of(history, with_part("requests", 0, state=(7, 7))) is None
    assert law_of(history, with_part("blocks", 0, slot=3)) is None


def test_states_are_claimed_where_they_are_kept_and_nowhere_else() -> None:
    """C2: otherwise laws would be judged that nobody claims."""
    with pytest.raises(ProgramError, match="claims mamba"):
        make_judge(Header("x", "requests", CONFIG, ()))
    with pytest.raises(ProgramError, match="claims mamba"):
        make_judge(Header("x", "requests", {**CONFIG, "mamba_slots": 0}, ("mamba",)))
