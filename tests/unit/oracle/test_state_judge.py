"""Prefix caches with states: spoiled outcomes, views and coverage goals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pagewise_states import PagewiseStates
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import (
    AllocTrack,
    Clear,
    CopyStates,
    Evict,
    FreeTrack,
    Inspect,
    Key,
    Lock,
    Match,
    Operation,
    ReadStates,
    Reset,
    ResetStates,
    Span,
    Unlock,
    WriteState,
)
from pymllm.history.outcomes import Done, Failed, Inspected, NodeView, NoRoom, Outcome, Result, Slots, States
from pymllm.oracle.coverage import expected_goals, expected_names, goals_of
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.laws import find_law, laws_of

# -- The judge of state pools: a good program, and what each wrong outcome of it breaks ----------------------


# Rows 0 (padding), 1 (working), 2 (a track slot); a state of two numbers and one of one.
CONFIG: dict[str, int | str | bool | None] = {
    **{"max_reqs": 1, "layers": 2, "v_heads": 1, "k_dim": 2, "v_dim": 1, "conv_dim": 1, "kernel": 2},
    **{"dtype": "bfloat16", "track_slots": 1},
}
HEADER = Header("x", "states", CONFIG, ("pool", "refusals"))
ZERO, Z = (0, 0), (0,)


def rows(*numbers: int) -> tuple[Span, ...]:
    return tuple(Span(0, number, number + 1) for number in numbers)


def states(
    recurrent: tuple[tuple[int, ...], ...] = (ZERO, ZERO, ZERO), conv: tuple[tuple[int, ...], ...] = (Z, Z, Z)
) -> States:
    return States(recurrent, conv, (3, 1, 1, 2), (3, 1, 1), "float32", "bfloat16")


WRITTEN = states((ZERO, (4, 6), ZERO), (Z, (7,), Z))
TAKEN = states((ZERO, (4, 6), (4, 6)), (Z, (7,), (7,)))
BOTH = states((ZERO, ZERO, (4, 6)), (Z, Z, (7,)))
TRACK = Span(1, 0, 1)

# Operation, result, and how many track slots are available then.
GOOD: list[tuple[Operation, Result, int]] = [
    (AllocTrack(), Slots((2,)), 0),
    (WriteState(0, rows(1)[0], 4, 7, 2), Done(), 0),
    (ReadStates(0), WRITTEN, 0),
    (ReadStates(1), states(), 0),
    (CopyStates(rows(1), (TRACK,)), Done(), 0),
    (ReadStates(0), TAKEN, 0),
    (ReadStates(1), states(), 0),
    (ResetStates(rows(1)), Done(), 0),
    (ReadStates(0), BOTH, 0),
    (AllocTrack(), NoRoom(), 0),
    (FreeTrack(rows(1)[0]), Failed("OwnershipError"), 0),
    (ReadStates(0), BOTH, 0),
    (FreeTrack(TRACK), Done(), 1),
    (FreeTrack(TRACK), Failed("OwnershipError"), 1),
    (ReadStates(0), states((ZERO, ZERO, (9, 9)), (Z, Z, (7,))), 1),
    (Clear(), Done(), 1),
    (ReadStates(0), states(), 1),
]


def steps_of(program: list[tuple[Operation, Result, int]]) -> list[Step]:
    return [
        Step(number, operation, Outcome(result, (), {"max_track_slots": 1, "available_track_slots": size}))
        for number, (operation, result, size) in enumerate(program, 1)
    ]


def judge(program: list[tuple[Operation, Result, int]], header: Header = HEADER) -> str | None:
    """Return the law that the last step breaks, if one is broken."""
    steps = steps_of(program)
    _, found = judge_steps(header, steps)
    if found is None:
        return None
    assert found[0] is steps[-1], found
    return found[1].law


def test_a_good_program_breaks_nothing() -> None:
    """P4, P5, X1, X4, X7, X8: and each is tested by it."""
    evidence, found = judge_steps(HEADER, steps_of(GOOD))
    assert found is None
    assert set(evidence.exercised) == {"P4", "P5", "X1", "X4", "X7", "X8"}
    assert "a track slot is freed twice" in set(evidence.reached) <= expected_goals(HEADER)


@pytest.mark.parametrize(
    ("number", "result", "law"),
    [
        (1, Slots((1,)), "P5"),
        (1, Slots((3,)), "P5"),
        (1, Slots((2, 2)), "P5"),
        (1, NoRoom(), "P5"),
        (2, Failed("RuntimeError"), "P4"),
        (3, states(), "P4"),
        (3, states((ZERO, (6, 4), ZERO), (Z, (7,), Z)), "P4"),
        (3, states((ZERO, (4, 6), ZERO), ((7,), (7,), Z)), "P4"),
        (3, dataclasses.replace(WRITTEN, recurrent_shape=(3, 1, 2, 1)), "P4"),
        (3, dataclasses.replace(WRITTEN, conv_shape=(3, 1, 2)), "P4"),
        (3, dataclasses.replace(WRITTEN, recurrent_dtype="bfloat16"), "P4"),
        (3, dataclasses.replace(WRITTEN, conv_dtype="float32"), "P4"),
        (3, dataclasses.replace(WRITTEN, conv=(Z, Z)), "P4"),
        (3, Done(), "P4"),
        (4, states((ZERO, (4, 6), ZERO)), "P4"),
        (5, Failed("IndexError"), "P5"),
        (6, WRITTEN, "P5"),
        (6, states((ZERO, (4, 6), (4, 6)), (Z, (7,), Z)), "P5"),
        (6, states((ZERO, ZERO, (4, 6)), (Z, (7,), (7,))), "P5"),
        (7, states((ZERO, ZERO, (4, 6))), "P5"),
        (8, Failed("IndexError"), "P5"),
        (9, TAKEN, "P5"),
        (9, states(), "P5"),
        (10, Slots((2,)), "X4"),
        (11, Done(), "P5"),
        (12, states(), "X1"),
        (13, Failed("OwnershipError"), "P5"),
        (14, Done(), "P5"),
        (14, Failed("KeyError"), "P5"),
        (15, states((ZERO, (1, 1), (4, 6)), (Z, Z, (7,))), "X1"),
        (16, Failed("RuntimeError"), "X7"),
        (17, BOTH, "X7"),
    ],
)
def test_a_wrong_result_breaks_its_law(number: int, result: Result, law: str) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    operation, _, size = GOOD[number - 1]
    assert judge([*GOOD[: number - 1], (operation, result, size)]) == law


@pytest.mark.parametrize(
    ("number", "law"), [(1, "P5"), (2, "P5"), (3, "P5"), (5, "P5"), (10, "X4"), (11, "X1"), (16, "X7")]
)
def test_a_wrong_size_breaks_the_law_of_its_step(number: int, law: str) -> None:
    """P5, X1, X4, X7: what is available is what is not handed out."""
    operation, result, size = GOOD[number - 1]
    assert judge([*GOOD[: number - 1], (operation, result, size + 1)]) == law


def test_a_dtype_that_cannot_be_told_is_not_judged() -> None:
    """P4: an adapter may leave the names out, not the shapes."""
    untold = dataclasses.replace(states(), recurrent_dtype="", conv_dtype="")
    assert judge([(ReadStates(0), untold, 1)]) is None


@pytest.mark.parametrize("fault", ["alloc", "free"])
def test_handing_a_slot_over_touches_no_other(fault: str) -> None:
    """P5: whatever is done to the slot itself between two owners."""
    program = [GOOD[0]] if fault == "alloc" else [GOOD[0], (FreeTrack(TRACK), Done(), 1)]
    size = program[-1][2]
    assert judge([*program, (ReadStates(0), states((ZERO, ZERO, (1, 1))), size)]) is None
    assert judge([*program, (ReadStates(0), states((ZERO, (1, 1), ZERO)), size)]) == "P5"


def test_a_copy_reads_all_rows_before_it_writes_one() -> None:
    """P5: two rows change places."""
    swap = CopyStates((*rows(1), TRACK), (TRACK, *rows(1)))
    program = [*GOOD[:6], (WriteState(0, TRACK, 1, 2), Done(), 0), (swap, Done(), 0)]
    good = states((ZERO, (1, 1), (4, 6)), (Z, (2,), (7,)))
    assert judge([*program, (ReadStates(0), good, 0)]) is None
    smeared = states((ZERO, (4, 6), (4, 6)), (Z, (7,), (7,)))
    assert judge([*program, (ReadStates(0), smeared, 0)]) == "P5"


def test_any_of_several_padded_copies_may_come_last() -> None:
    """P5: row 0 may repeat as a target, and holds one of what was copied there; if one is open, anything."""
    padded = (CopyStates((*rows(1), *rows(0)), rows(0, 0)), Done(), 0)
    read = [states((first, (4, 6), ZERO), (Z, (7,), Z)) for first in ((4, 6), ZERO, (5, 5))]
    program = [*GOOD[:4], padded]
    assert [judge([*program, (ReadStates(0), one, 0)]) for one in read] == [None, None, "P5"]
    unknown = (CopyStates((*rows(1), TRACK), rows(0, 0)), Done(), 0)
    program = [*GOOD[:2], unknown]
    assert judge([*program, (ReadStates(0), read[2], 0)]) is None


MISUSE: list[tuple[Operation, tuple[str, ...], str]] = [
    (FreeTrack(rows(0)[0]), ("OwnershipError",), "P5"),
    (FreeTrack(rows(1)[0]), ("OwnershipError",), "P5"),
    (FreeTrack(rows(2)[0]), ("OwnershipError",), "P5"),
    (FreeTrack(rows(3)[0]), ("OwnershipError",), "X1"),
    (FreeTrack(rows(-1)[0]), ("OwnershipError",), "X1"),
    (CopyStates(rows(3), rows(1)), ("IndexError", "OwnershipError"), "P5"),
    (CopyStates(rows(1), rows(-1)), ("IndexError", "OwnershipError"), "P5"),
    (CopyStates(rows(1, 1), rows(1)), ("ValueError",), "P5"),
    (CopyStates(rows(1), rows(1, 3)), ("IndexError", "OwnershipError", "ValueError"), "P5"),
    (ResetStates(rows(1, 3)), ("IndexError", "OwnershipError"), "P5"),
    (ReadStates(2), ("IndexError", "ValueError", "TypeError"), "X1"),
    (ReadStates(-1), ("IndexError", "ValueError", "TypeError"), "X1"),
]


@pytest.mark.parametrize(("operation", "errors", "law"), MISUSE)
def test_misuse_is_refused_and_leaves_no_trace(
    operation: Operation, errors: tuple[str, ...], law: str
) -> None:
    """P5, X1: with one of its errors and no other, and nothing in any layer."""
    for error in errors:
        assert judge([(operation, Failed(error), 1)]) is None
    for wrong in (Done(), Failed("RuntimeError")):
        assert judge([(operation, wrong, 1)]) == law
    for layer in (0, 1):
        read = (ReadStates(layer), states((ZERO, (1, 1), ZERO)), 1)
        assert judge([(operation, Failed(errors[0]), 1), read]) == "X1"


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (CopyStates(rows(1, 2), rows(1, 1)), "name one twice"),
        (WriteState(2, rows(1)[0], 0, 0), "leaves the states"),
        (WriteState(0, rows(3)[0], 0, 0), "leaves the states"),
        (WriteState(0, rows(1)[0], 128, 0), "every dtype"),
        (WriteState(0, rows(1)[0], 127, 0, 1), "every dtype"),
        (WriteState(0, rows(1)[0], 0, -129), "every dtype"),
    ],
)
def test_what_the_contract_leaves_open_has_no_meaning(operation: Operation, says: str) -> None:
    """P5: repeats of another row are the caller's error, and views have no rows but their own."""
    with pytest.raises(ProgramError, match=says):
        judge([(operation, Done(), 1)])


def test_a_pool_without_track_slots_has_no_room() -> None:
    """X4: it says so, every time."""
    header = dataclasses.replace(HEADER, config={**CONFIG, "track_slots": 0})
    steps = [Step(1, AllocTrack(), Outcome(NoRoom()))]
    evidence, found = judge_steps(header, steps)
    assert (found, set(evidence.exercised)) == (None, {"X4"})


# -- Nodes and lists that do not show the states there are are refused by the law that they break ------------


@pytest.fixture
def told() -> ToldProgram:
    """Cache (7, 7) with a state in track slot 2, held, and above it (7,) without one; the last step looks."""
    made = ToldProgram("mamba", **HYBRID)
    made(Lock(made.put_state(7, 7)))
    made(Inspect())
    made.put(7)
    made(Inspect())
    return made


def shown(told: ToldProgram, upper: dict[str, Any], lower: dict[str, Any]) -> tuple[NodeView, ...]:
    """Change the two nodes of the last look."""
    inspected = told.outcome(len(told.steps)).result
    assert isinstance(inspected, Inspected)
    return tuple(
        dataclasses.replace(node, **changes)
        for node, changes in zip(inspected.nodes, (upper, lower), strict=True)
    )


@pytest.mark.parametrize(
    ("upper", "lower", "law"),
    [
        ({}, {}, None),
        ({"state": 2}, {}, "M3"),
        ({"state": 2}, {"state": None}, "M3"),
        ({}, {"state": None}, "M1"),
        ({"state": 3}, {}, "M1"),
        ({}, {"state": 3}, "M1"),
        ({"state_lock_ref": 1}, {}, "M4"),
        ({}, {"state_lock_ref": 0}, "M4"),
        ({}, {"state_lock_ref": 2}, "M4"),
        ({"state_lock_ref": None}, {"state_lock_ref": None}, None),
    ],
)
def test_a_wrong_state_is_refused(
    told: ToldProgram, upper: dict[str, Any], lower: dict[str, Any], law: str | None
) -> None:
    """M1, M3, M4: where it is, and what locks it."""
    assert told.law(len(told.steps), nodes=shown(told, upper, lower)) == law


def test_a_split_that_leaves_the_state_is_noticed(told: ToldProgram) -> None:
    """M3: once, at the look after it."""
    told(Inspect())
    evidence = told.sound()
    assert evidence.exercised["M3"] == 1
    assert evidence.reached["a split of a held node leaves its state"] == 1
    assert evidence.exercised["M4"]


def test_a_split_that_nobody_holds_is_no_split_under_a_hold() -> None:
    """M3: it tests the law all the same."""
    made = ToldProgram("mamba", **HYBRID)
    made.put_state(7, 7)
    made(Inspect())
    made.put(7)
    made(Inspect())
    evidence = made.sound()
    assert evidence.exercised["M3"] == 1
    assert evidence.reached["a split of a held node leaves its state"] == 0


def test_who_shows_page_by_page_claims_no_law_of_splits() -> None:
    """M3: our nodes are split behind it, and nobody could see where the state went but by M1."""
    made = ToldProgram("pagewise_states:PagewiseStates", **PagewiseStates.CONFIGURATIONS[0])
    made(Lock(made.put_state(7, 7, 8, 8)))
    made(Inspect())
    made.put(7, 7, 9, 9)
    look = made(Inspect())
    evidence = made.sound()
    assert evidence.exercised["M4"]
    assert not evidence.exercised["M3"]
    inspected = made.outcome(look).result
    assert isinstance(inspected, Inspected)
    assert [len(node.tokens) for node in inspected.nodes] == [2, 2, 2]
    config, claims = made.header.config, made.header.capabilities
    applying = {law.id for law in laws_of("prefix") if law.applies_to(config, claims)}
    assert "M3" not in applying
    assert {"M1", "M2", "M4"} <= applying
    assert "a split of a held node leaves its state" not in expected_names("prefix", config, claims)
    assert find_law("M3").applies_to({**config, "splits": True}, claims)


@pytest.mark.parametrize(
    ("lists", "law"),
    [
        ({"full_lru": None, "mamba_lru": None}, None),
        ({"full_lru": ()}, "M8"),
        ({"mamba_lru": ()}, "M8"),
    ],
)
def test_a_list_lacks_nobody(told: ToldProgram, lists: dict[str, Any], law: str | None) -> None:
    """M8: each has exactly its members."""
    assert told.law(len(told.steps), **lists) == law


def test_a_list_is_in_order(told: ToldProgram) -> None:
    """M8: the most recent first, a parent behind its child of the same access."""
    look = told(Inspect())
    inspected = told.outcome(look).result
    assert isinstance(inspected, Inspected)
    upper, lower = (node.id for node in inspected.nodes)
    assert (inspected.full_lru, inspected.mamba_lru) == ((upper, lower), (lower,))
    assert told.law(look, full_lru=(lower, upper)) == "M8"
    assert told.law(look, full_lru=(upper, lower, upper)) == "M8"


def test_only_lists_of_several_nodes_are_evidence(told: ToldProgram) -> None:
    """M8: one node is in order whatever a cache does; the last look shows two, one of them with a state."""
    evidence, law = told.judged()
    assert (law, evidence.exercised["M8"]) == (None, 1)


def test_a_list_that_is_not_claimed_is_not_judged() -> None:
    """M8: whatever it says."""
    told = ToldProgram("mamba", without=("lru_lists",), **HYBRID)
    told.put(7)
    assert told.law(told(Inspect()), full_lru=()) is None


def test_a_node_ends_where_a_state_is(told: ToldProgram) -> None:
    """M1: the state of a place that no node ends at is nowhere."""
    whole = NodeView(9, None, (7, 7), None, (1, 2), lock_ref=1, hit_count=0, state=2, state_lock_ref=1)
    other = ToldProgram("mamba", without=("lru_lists",), **HYBRID)
    other.put(7, 7)
    other.put_state(7)
    look = other(Inspect())
    law = other.law(look, nodes=(dataclasses.replace(whole, id=1, state=None, lock_ref=0, state_lock_ref=0),))
    assert law == "M1"


# -- When the coverage goals of states count as met ----------------------------------------------------------


def test_what_states_meet_is_noticed() -> None:
    """M1, M4, M5: each once, where it happens."""
    told = ToldProgram("mamba", **HYBRID)
    lower = told.put(7, 7, 7)
    told(Lock(lower))
    told.put_state(7)
    told.put_state(7, 7)
    told.put_state(7, 7, 7)
    told(Inspect())
    told(Evict(0, 1))
    told(Evict(0, 9))
    evidence = told.sound()
    of_states = {one.name for one in goals_of("prefix") if "mamba" in one.needs}
    met = {name: count for name, count in evidence.reached.items() if name in of_states}
    assert met == {
        "a hold is taken where there is no state": 1,
        "a state arrives at its place": 3,
        "a state arrives under a hold": 1,
        "a state above does not count": 2,
        "several states lie on one path": 1,
        "a node keeps its KV without its state": 2,
        "a state goes while its KV is held": 2,
        "an eviction spares a locked state": 2,
        "a state is left for an older one": 1,
    }


def test_a_parent_that_has_no_state_goes_with_its_child() -> None:
    """M5: seen where nodes are."""
    told = ToldProgram("mamba", **HYBRID)
    told.put_state(7, 7)
    told.put(7)
    told(Inspect())
    told(Evict(0, 1))
    assert told.sound().reached["a stateless parent goes with its last child"] == 1


def test_what_was_there_before_a_state_is_noticed() -> None:
    """M1, M2, M4: several holds, a state that was evicted, and one that a match passes."""
    told = ToldProgram("mamba", **HYBRID)
    node = told.put(7)
    first, second = told(Lock(node)), told(Lock(node))
    told.put_state(7)
    told(Unlock(first))
    told(Unlock(second))
    told.put_state(7, 7)
    told(Match(Key((7, 7))))
    told(Evict(0, 1))  # the match has made the upper one the older
    told.put_state(7)
    evidence = told.sound()
    assert evidence.reached["a state arrives under several holds"] == 1
    assert evidence.reached["a match passes a state"] == 1
    assert evidence.reached["a state comes back to where one was evicted"] == 1
    told(Evict(0, 1))
    told(Reset())
    told.put_state(7)
    evidence, _ = told.judged()
    assert evidence.reached["a state comes back to where one was evicted"] == 1
