"""What must stand in slots and live states."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.outcomes import States
from pymllm.oracle.block_states import BlockStates
from pymllm.oracle.evidence import Evidence

CONFIG: dict[str, int | str | bool | None] = {
    **{"layers": 2, "slots": 2, "requests": 2, "ssm_heads": 1, "ssm_dim": 2, "conv_dim": 1, "conv_width": 1},
    **{"ssm_dtype": "float32", "conv_dtype": "float16"},
}
ZEROS, Z = (0, 0), (0,)


def read(*rows: tuple[tuple[int, ...], tuple[int, ...]]) -> States:
    recurrent, conv = zip(*rows, strict=True)
    return States(recurrent, conv, (len(rows), 1, 2), (len(rows), 1, 1), "float32", "float16")


BLANK, FULL = (ZEROS, Z), ((5, 7), (3,))


@pytest.fixture
def states() -> BlockStates:
    """Slot 0 holds something in layer 1."""
    made = BlockStates(CONFIG)
    made.store(1, 0, made.contents(5, 3, 2))
    return made


def law(states: BlockStates, what: States, layer: int = 1, is_live: bool = False) -> str | None:
    try:
        (states.test_live if is_live else states.test_cached)(Evidence(), layer, what)
    except InvariantViolation as violation:
        return violation.law
    return None


def test_a_store_is_of_one_layer_and_one_slot(states: BlockStates) -> None:
    """C7: the rest stays blank."""
    assert law(states, read(FULL, BLANK)) is None
    assert law(states, read(FULL, FULL)) == "C7"
    assert law(states, read(BLANK, BLANK), layer=0) is None


def test_copies_go_both_ways_in_all_layers(states: BlockStates) -> None:
    """C7: into a live state, from there into a slot."""
    states.restore(0, 0)
    assert law(states, read(FULL, BLANK), is_live=True) is None
    states.save([1], [0])
    assert law(states, read(FULL, FULL)) is None
    assert law(states, read(BLANK, FULL), layer=0) == "C7"


def test_a_live_state_is_written_by_its_request(states: BlockStates) -> None:
    """C7: and by nobody else."""
    states.write(0, 1, states.contents(5, 3, 2))
    assert law(states, read(BLANK, FULL), layer=0, is_live=True) is None


def test_what_changes_hands_may_hold_anything(states: BlockStates) -> None:
    """C2: until somebody writes to it."""
    states.release([0])
    assert law(states, read(((9, 9), (9,)), BLANK)) is None


def test_what_must_not_change_blames_the_suspect(states: BlockStates) -> None:
    """X1, C9: whatever was done last."""
    assert law(states, read(FULL, BLANK)) is None
    states.suspect("X1")
    assert law(states, read(FULL, FULL)) == "X1"
    states.wipe("C9")
    assert law(states, read(FULL, BLANK)) == "C9"


@pytest.mark.parametrize(
    "wrong",
    [
        {"recurrent_shape": (2, 2, 1)},
        {"conv_shape": (2, 1)},
        {"conv_dtype": "float32"},
        {"conv": (Z,)},
    ],
)
def test_the_form_is_that_of_the_configuration(states: BlockStates, wrong: dict[str, Any]) -> None:
    """C7: a dtype that cannot be told is not judged."""
    good = read(FULL, BLANK)
    assert law(states, dataclasses.replace(good, recurrent_dtype="", conv_dtype="")) is None
    assert law(states, dataclasses.replace(good, **wrong)) == "C7"


def test_numbers_fit_every_dtype(states: BlockStates) -> None:
    """X1: a program that writes others is none."""
    with pytest.raises(ProgramError, match="every dtype"):
        states.contents(127, 0, 1)


@pytest.mark.parametrize("key", ["layers", "slots", "requests", "conv_dim"])
def test_the_configuration_must_be_complete(key: str) -> None:
    """X1: the message names what is missing."""
    with pytest.raises(ProgramError, match=f"{key} is None"):
        BlockStates({**CONFIG, key: None})
