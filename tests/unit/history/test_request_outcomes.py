"""What a context answers is plain data, with everything in it."""

from __future__ import annotations

import json

import pytest

from pymllm.history.outcomes import (
    BlockState,
    ContextBlock,
    ContextView,
    Outcome,
    Ran,
    RequestRun,
    RequestView,
    Result,
    outcome_from_plain,
    outcome_to_plain,
)

VIEW = RequestView(1, 0, "decode", (2, 3), 5, (11, 12), (1, 2))
RUN = RequestRun(1, 0, (2, 3), 4, 2, ((4, 2),), (2,), True, (11, 12))


@pytest.mark.parametrize(
    "result",
    [
        VIEW,
        Ran((RUN,), (2,), (BlockState(2, 0),), (3,), "InjectedFault"),
        ContextView((VIEW,), (ContextBlock(2, 1),)),
    ],
)
def test_an_answer_survives_the_way_through_json(result: Result) -> None:
    """X3: nested records come back as they were, and defaults take no room."""
    plain = json.loads(json.dumps(outcome_to_plain(Outcome(result))))
    assert outcome_from_plain(plain).result == result
    assert "dropped" not in outcome_to_plain(Outcome(Ran((RUN,))))["result"]  # type: ignore[operator]
