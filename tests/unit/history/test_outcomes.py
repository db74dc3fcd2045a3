"""What an operation did, as plain data."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.history.outcomes import (
    RESULTS,
    Effect,
    Outcome,
    Result,
    Slots,
    outcome_from_plain,
    outcome_schema,
    outcome_to_plain,
)

outcomes = st.builds(
    Outcome,
    st.sampled_from(RESULTS).flatmap(st.from_type),
    st.lists(st.from_type(Effect), max_size=2).map(tuple),
    st.dictionaries(st.text(), st.integers(), max_size=2),
)


@given(outcomes)
def test_every_outcome_survives_the_way_through_json(outcome: Outcome) -> None:
    """What was seen can be stored and judged later."""
    plain = json.loads(json.dumps(outcome_to_plain(outcome), allow_nan=True))
    again = outcome_from_plain(plain)
    assert repr(again) == repr(outcome)  # by text, since a time that is no number is unequal to itself


def test_an_outcome_says_only_what_there_is() -> None:
    """No effects and no sizes take no room."""
    assert outcome_to_plain(Outcome(Slots((1,)))) == {"result": {"is": "slots", "slots": [1]}}


def test_every_kind_of_result_is_listed() -> None:
    """The union and the tuple of kinds agree."""
    assert set(typing.get_args(Result)) == set(RESULTS)
    assert len(outcome_schema()["properties"]["result"]["oneOf"]) == len(RESULTS)  # type: ignore[index]


@pytest.mark.parametrize(
    "plain",
    [None, {}, {"result": {"is": "maybe"}}, {"result": {"is": "done"}, "more": 1}, {"sizes": {}}],
)
def test_what_is_no_outcome_is_refused(plain: object) -> None:
    """X1: with a message that begins with the place."""
    with pytest.raises(ValueError, match=r"^outcome"):
        outcome_from_plain(plain)
