"""Tests of the comparison of an answer with a vector, rule by rule; the runner does the same."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from pymllm.vectors.expectations import Given, Mismatch, OtherWay, check_expectation, match
from tests.unit.vectors.runners import IN_PYTHON

SPAN = {"step": 1, "start": 1, "stop": 3}
NEW = {"$new": 4, "page": 2, "least": 2, "most": 9, "but": {"$of": [SPAN]}}
CALLS = {"$calls": {"free": {"$of": [SPAN]}, "callback": 1}, "inside": {"size": 2}}
FREE, BACK = {"call": "free", "slots": [5, 4]}, {"call": "callback", "slots": [], "sizes": {"size": 2}}
MAY = {"$may": {"result": {"is": "evicted", "full": 1}}, "or": [{"result": {"is": "evicted", "full": 3}}]}


def of_result(**fields: Any) -> dict[str, Any]:
    return {"result": {"is": "any", **fields}}


def compare(expect: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    """Both ways; step 1 has answered with slots 7, 4, 5 and halves 1, 2, 3."""
    given = Given()
    given.record(1, {"slots": [7, 4, 5], "swa_slots": [1, 2, 3]})
    try:
        match(expect, seen, given)
        verdict = "passed"
    except OtherWay:
        verdict = "other way"
    except Mismatch:
        verdict = "failed"
    try:
        expected = IN_PYTHON.resolve(expect, [{"slots": [7, 4, 5], "swa_slots": [1, 2, 3]}])
        by_runner = "passed" if IN_PYTHON.is_like(expected, copy.deepcopy(dict(seen))) else "failed"
    except IN_PYTHON.OtherWay:
        by_runner = "other way"
    assert by_runner == verdict
    return verdict


@pytest.mark.parametrize(
    ("expect", "seen", "verdict"),
    [
        (of_result(), of_result(), "passed"),
        (of_result(), {"result": {}}, "failed"),
        (of_result(), {"result": {"is": "other"}}, "failed"),
        (of_result(prefix_len=2), of_result(), "passed"),
        (of_result(prefix_len=2), of_result(prefix_len=3), "failed"),
        (of_result(), of_result(prefix_len=3), "passed"),
        (of_result(adopted=[[0, 2]]), of_result(adopted=[[0, 2]]), "passed"),
        (of_result(adopted=[[0, 2]]), of_result(adopted=[[0, 3]]), "failed"),
        (of_result(adopted=[[0, 2]]), of_result(adopted=[]), "failed"),
        (of_result(adopted=[[0, 2]]), of_result(adopted=None), "failed"),
        ({"effects": []}, {}, "passed"),
        ({"effects": []}, {"effects": [FREE]}, "failed"),
        ({"sizes": {"total_size": 1}}, {}, "passed"),
        ({"sizes": {"total_size": 1}}, {"sizes": {"total_size": 2}}, "failed"),
        (of_result(slots={"$of": [SPAN]}), of_result(slots=[4, 5]), "passed"),
        (of_result(slots={"$of": [SPAN]}), of_result(slots=[5, 4]), "failed"),
        (of_result(slots={"$of": [{"step": 0, "start": 4, "stop": 6}]}), of_result(slots=[4, 5]), "passed"),
        (of_result(state={"$of": [{**SPAN, "stop": 2}]}), of_result(state=4), "passed"),
        (of_result(state={"$of": [{**SPAN, "stop": 2}]}), of_result(state=5), "failed"),
        (of_result(swa_slots={"$halves": [SPAN]}), of_result(swa_slots=[2, 3]), "passed"),
        (of_result(swa_slots={"$halves": [SPAN]}), of_result(swa_slots=[4, 5]), "failed"),
        (of_result(slots=NEW), of_result(slots=[2, 3, 8, 9]), "passed"),
        (of_result(slots={**NEW, "$new": 3}), of_result(slots=[8, 9, 2]), "passed"),
        (of_result(slots=NEW), of_result(slots=[2, 3, 8]), "failed"),
        (of_result(slots=NEW), of_result(slots=[2, 3, 2, 3]), "failed"),
        (of_result(slots=NEW), of_result(slots=[2, 3, 4, 5]), "failed"),
        (of_result(slots=NEW), of_result(slots=[2, 3, 9, 8]), "failed"),
        (of_result(slots=NEW), of_result(slots=[3, 4, 8, 9]), "failed"),
        (of_result(slots=NEW), of_result(slots=[0, 1, 8, 9]), "failed"),
        (of_result(slots=NEW), of_result(slots=[8, 9, 10, 11]), "failed"),
        (
            of_result(blocks={"$set": [{"id": 1}, {"id": 2}]}),
            of_result(blocks=[{"id": 2}, {"id": 1}]),
            "passed",
        ),
        (
            of_result(blocks={"$set": [{"id": 1}, {"id": 2}]}),
            of_result(blocks=[{"id": 2}, {"id": 2}]),
            "failed",
        ),
        (of_result(blocks={"$set": [{"id": 1}]}), of_result(blocks=[{"id": 1}, {"id": 1}]), "failed"),
        (of_result(error={"$any": ["A", "B"]}), of_result(error="B"), "passed"),
        (of_result(error={"$any": ["A", "B"]}), of_result(error="C"), "failed"),
        (of_result(rows=[{"$free": True}, 2]), of_result(rows=[9, 2]), "passed"),
        (of_result(rows=[{"$free": True}, 2]), of_result(rows=[9, 3]), "failed"),
        ({"effects": CALLS}, {"effects": [FREE, BACK]}, "passed"),
        ({"effects": CALLS}, {"effects": [BACK, {**FREE, "slots": [4]}, {**FREE, "slots": [5]}]}, "passed"),
        ({"effects": CALLS}, {"effects": [FREE]}, "failed"),
        ({"effects": CALLS}, {"effects": [BACK, {**FREE, "slots": [4]}]}, "failed"),
        ({"effects": CALLS}, {"effects": [FREE, {**BACK, "sizes": {"size": 1}}]}, "failed"),
        ({"effects": CALLS}, {"effects": [FREE, BACK, {"call": "free_swa", "slots": [1]}]}, "failed"),
        ({"effects": {"$calls": {}}}, {"effects": [BACK]}, "passed"),
        (of_result(full={"$may": 2}), of_result(full=2), "passed"),
        (of_result(full={"$may": 2}), of_result(full=3), "other way"),
        (MAY, {"result": {"is": "evicted", "full": 1}}, "passed"),
        (MAY, {"result": {"is": "evicted", "full": 3}}, "other way"),
        (MAY, {"result": {"is": "evicted", "full": 2}}, "failed"),
    ],
)
def test_an_answer_is_compared_by_the_rules(
    expect: dict[str, Any], seen: dict[str, Any], verdict: str
) -> None:
    """Each rule, kept and broken."""
    check_expectation(expect, "step 1")
    assert compare(expect, seen) == verdict


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        ({"outcome": {}}, "expects 'outcome'"),
        (of_result(full={"$some": 1}), "has '$some'"),
        (of_result(slots={"$of": [{"step": 1}]}), "spans are"),
        (of_result(slots={"$of": [{**SPAN, "stop": -1}]}), "spans are"),
        (of_result(slots={"$of": [{**SPAN, "stop": 1 << 30}]}), "spans are"),
        (of_result(slots={"$halves": 3}), "spans are"),
        (of_result(slots={**NEW, "page": 0}), "needs the integers"),
        (of_result(slots={"$new": 1}), "needs the integers"),
        (of_result(slots={**NEW, "but": []}), "needs but, the numbers that it excludes"),
        (of_result(slots={"$set": 1}), "needs a list"),
        (of_result(error={"$any": "A"}), "needs a list"),
        ({"effects": {"$calls": {"free": "all"}}}, "a number or spans"),
        ({"$may": {"result": {}}, "or": [{"answer": 1}]}, "expects 'answer'"),
        (of_result(rows=[[{"$some": 1}]]), "has '$some'"),
    ],
)
def test_what_nobody_could_compare_with_is_refused(expect: dict[str, Any], words: str) -> None:
    """When it is read, and not when it is played."""
    with pytest.raises(ValueError, match="step 1") as error:
        check_expectation(expect, "step 1")
    assert words in str(error.value)
