"""What an operation did, as plain data."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.history import outcomes as out
from pymllm.history.codec import decode, encode
from pymllm.history.outcomes import RESULTS, Effect, Outcome, Result

sizes = st.dictionaries(st.text(), st.integers(), max_size=2)
numbers = st.lists(st.integers()).map(tuple)
effects = st.builds(Effect, st.text(), numbers, numbers, st.none() | st.integers(), st.text(), sizes)
outcomes = st.builds(
    Outcome,
    st.sampled_from(RESULTS).flatmap(st.from_type),
    st.lists(effects, max_size=2).map(tuple),
    sizes,
)
VIEW = out.RequestView(1, 0, "decode", (2, 3), 5, (11, 12), (1, 2))
RUN = out.RequestRun(1, 0, (2, 3), 4, 2, ((4, 2),), (2,), True, (11, 12))


@given(outcomes)
def test_every_outcome_survives_the_way_through_json(outcome: Outcome) -> None:
    """What was seen can be stored and judged later."""
    again = decode(Outcome, json.loads(json.dumps(encode(outcome), allow_nan=True)))
    assert repr(again) == repr(outcome)  # by text, since a time that is no number is unequal to itself


def test_an_outcome_says_only_what_there_is() -> None:
    """No effects, no sizes and no fields that have their default take any room."""
    assert encode(Outcome(out.Slots((1,)))) == {"result": {"is": "slots", "slots": [1]}}
    assert "dropped" not in encode(Outcome(out.Ran((RUN,))))["result"]


@pytest.mark.parametrize(
    "result",
    [
        VIEW,
        out.Ran((RUN,), (2,), (out.BlockState(2, 0),), (3,), "InjectedFault"),
        out.ContextView((VIEW,), (out.ContextBlock(2, 1),)),
    ],
)
def test_an_answer_of_a_context_survives_the_way_through_json(result: Result) -> None:
    """X3: nested records come back as they were; only what can be of several kinds names its kind."""
    plain = json.loads(json.dumps(encode(Outcome(result))))
    assert decode(Outcome, plain).result == result
    assert json.dumps(plain).count('"is"') == 1


def test_every_kind_of_result_is_listed() -> None:
    """In the union and in the tuple."""
    assert typing.get_args(Result) == RESULTS


@pytest.mark.parametrize(
    "plain",
    [None, {}, {"result": {"is": "maybe"}}, {"result": {"is": "done"}, "more": 1}, {"sizes": {}}],
)
def test_what_is_no_outcome_is_refused(plain: object) -> None:
    """X1: with a message that begins with the place."""
    with pytest.raises(ValueError, match=r"^outcome"):
        decode(Outcome, plain, "outcome")


def test_the_message_of_an_error_is_for_people() -> None:
    """Two errors of one class are equal, whatever they say; it is kept all the same."""
    assert (
        out.Failed("ValueError", "no") == out.Failed("ValueError", "never") != out.Failed("TypeError", "no")
    )
    assert len({out.Failed("ValueError", "no"), out.Failed("ValueError")}) == 1
    assert Outcome(out.Failed("ValueError", "no")) == Outcome(out.Failed("ValueError"))
    assert out.Failed("ValueError") != out.Done()
    assert decode(Result, encode(out.Failed("ValueError", "no"))).message == "no"
