"""What is seen between two steps: each part that is wrong breaks its law."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from recorded_requests import SEVEN, Change, law_of, play, result_with, words_of

from pymllm.history.operations import AddRequest, Fault, Inspect, Operation, Pause, Release, RunStep

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
