"""The gates of the redesign can say no: each sort of difference is one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.conformance.program import run_program
from pymllm.history.files import dump_history
from pymllm.history.operations import Alloc, Free, Span
from tests.reference import __main__ as gates


@pytest.fixture
def answer() -> dict[str, Any]:
    """What the reference says of a program of three operations."""
    operations = [Alloc(2), Alloc(1), Free((Span(1, 0, 2),))]
    config = dict(load_adapter(find_adapter("token-slots")).CONFIGURATIONS[0])
    history = run_program("token-slots", config, operations)
    verdict = json.loads(json.dumps(gates.judge(history)))
    return {
        "adapter": "token-slots",
        "lines": list(dump_history(history)),
        "verdict": verdict,
        "read_s": 0.0,
        "judge_s": 0.0,
    }


def differences(answer: dict[str, Any]) -> list[str]:
    tally = gates.Tally()
    gates.compare_answers([answer], tally, replay=True)
    assert tally.counts == {"operations": 3, "files": 1, "judging": 1, "playing": 1}
    return [line.partition(":")[0] for line in tally.different]


def test_what_is_as_it_was_is_no_difference(answer: dict[str, Any]) -> None:
    """Read, written, judged and played."""
    assert differences(answer) == []


def test_another_verdict_is_a_difference(answer: dict[str, Any]) -> None:
    """Of law and step."""
    assert differences({**answer, "verdict": ["A1", 2]}) == ["judging"]


def test_another_answer_is_a_difference(answer: dict[str, Any]) -> None:
    """The reference handed out other slots, which were as good."""
    other = copy.deepcopy(answer)
    other["lines"] = [line.replace("[3]", "[4]") for line in answer["lines"]]
    assert other["lines"] != answer["lines"]
    assert "playing" in differences(other)


def test_what_is_written_otherwise_is_a_difference(answer: dict[str, Any]) -> None:
    """A field that has its default was written by the reference."""
    lines = answer["lines"][:]
    lines[0] = json.dumps({**json.loads(lines[0]), "note": ""})
    assert differences({**answer, "lines": lines}) == ["files"]


@pytest.mark.parametrize("lost", [["--mistyped"], ["badge", "mistyped"]])
def test_a_lost_word_is_a_difference(lost: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An option, or a choice of one."""
    tally = gates.Tally()
    known = [["pymllm verify", "profile", ["--profile"], []], ["pymllm report", "format", ["--format"], lost]]

    class Before(gates.Reference):
        def run(self, *command: str, **options: Any) -> Any:
            yield json.dumps(known)

    gates.compare_words(Before(gates.ROOT), tally)
    assert [line.partition(":")[0] for line in tally.different] == ["words"]
    assert "mistyped" in tally.different[0]
