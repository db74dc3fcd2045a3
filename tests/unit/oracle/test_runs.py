"""The counters of a run are judged as they are told: by the lines of law E6 alone."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.oracle.runs import find_contradiction

RUN: dict[str, int | float | None] = {
    **{"requests": 10, "finished": 7, "rejected": 1, "aborted": 2, "retractions": 3, "skipped": None},
    **{"prompt_tokens": 1000, "hit_tokens": 300, "ceiling_tokens": 400},
    **{"token_hit_rate": 0.3, "ceiling_hit_rate": 0.4},
    **{"computed_tokens": 750, "recomputed_tokens": 100, "uncomputed_tokens": 50, "output_tokens": 70},
}
CALM = RUN | {"finished": 9, "aborted": 0, "retractions": 0}
EARLIER = {"recomputed_tokens": None, "uncomputed_tokens": None}
"""Fields that earlier versions did not have."""


def found(run: dict[str, Any]) -> tuple[str, object, object]:
    """Return what is wrong with a run of ten requests, and both values."""
    wrong = find_contradiction(run, 10)
    assert wrong is not None
    return wrong.what, wrong.expected, wrong.observed


@pytest.mark.parametrize(
    "run",
    [
        RUN,
        CALM | {"computed_tokens": 700, "recomputed_tokens": 0, "uncomputed_tokens": 0},
        CALM | EARLIER | {"computed_tokens": 700},
        RUN | EARLIER | {"computed_tokens": 1},
        {"requests": 0, "prompt_tokens": 0, "token_hit_rate": 0.0, "ceiling_hit_rate": 0.0},
        {"requests": 10, "prompt_tokens": 1000, "token_hit_rate": 0.3, "ceiling_hit_rate": 0.4},
        RUN | {"token_hit_rate": 0.3 + 1e-12},
        RUN | {"token_hit_rate": None, "ceiling_hit_rate": None},
        RUN | {"finished": None, "computed_tokens": None},
    ],
    ids=[
        "whole",
        "calm",
        "earlier",
        "earlier, with retractions",
        "empty",
        "rates",
        "rounded",
        "counts",
        "serial",
    ],
)
def test_a_run_that_adds_up_is_sound(run: dict[str, Any]) -> None:
    """E6: also where an earlier version, or a replay without an engine, told less."""
    assert find_contradiction(run, run["requests"]) is None


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"requests": 9, "skipped": 2}, ("requests and skipped", 10, 11)),
        ({"finished": 8}, ("finished, rejected and aborted requests", 10, 11)),
        ({"hit_tokens": 401}, ("hit_tokens", "0 to 400", 401)),
        ({"hit_tokens": -1}, ("hit_tokens", "0 to 400", -1)),
        ({"ceiling_tokens": 1001}, ("ceiling_tokens", "0 to 1000", 1001)),
        ({"prompt_tokens": 0}, ("ceiling_tokens", "0 to 0", 400)),
        ({"token_hit_rate": 0.5}, ("token_hit_rate", "0 to 0.4", 0.5)),
        ({"ceiling_hit_rate": 1.5}, ("ceiling_hit_rate", "0 to 1", 1.5)),
        ({"token_hit_rate": 0.2}, ("token_hit_rate", 0.3, 0.2)),
        ({"ceiling_hit_rate": 0.5}, ("ceiling_hit_rate", 0.4, 0.5)),
        ({"recomputed_tokens": 751}, ("recomputed_tokens", "0 to 750", 751)),
        ({"retractions": 0}, ("recomputed_tokens", "0 to 0", 100)),
        ({"uncomputed_tokens": -1}, ("uncomputed_tokens", "0 to 1000", -1)),
        (CALM | {"recomputed_tokens": 0}, ("uncomputed_tokens", "0 to 0", 50)),
    ],
)
def test_a_run_that_contradicts_itself_is_told(
    changes: dict[str, Any], wrong: tuple[str, object, object]
) -> None:
    """E6: which line does not hold, with both sides."""
    assert found(RUN | changes) == wrong


@pytest.mark.parametrize(
    ("run", "prompts", "made"),
    [
        (RUN | {"computed_tokens": 749}, 1000, 999),
        (RUN | {"uncomputed_tokens": 51}, 1000, 1001),
        (RUN | {"prompt_tokens": 1100, "token_hit_rate": 3 / 11, "ceiling_hit_rate": 4 / 11}, 1100, 1000),
        (CALM | EARLIER | {"computed_tokens": 750}, 1000, 1050),
    ],
    ids=["a chunk is missing", "left twice", "a prompt counts again", "earlier"],
)
def test_hits_and_computed_tokens_make_the_prompts(run: dict[str, Any], prompts: int, made: int) -> None:
    """E6: where one of the four differs, the sum does."""
    what = "tokens that were hits, computed at first and left uncomputed"
    assert found(run) == (what, prompts, made)


def test_how_many_requests_there_were_to_be_may_be_unknown() -> None:
    """E6: then it is not asked."""
    assert find_contradiction(RUN | {"requests": 12, "finished": 9}) is None
