"""A short conversation with a program that is being written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.adapters.process import VERDICTS
from pymllm.adapters.process.conversation import answer_limit
from pymllm.conformance import protocol_check
from pymllm.conformance.protocol_check import check_protocol
from pymllm.errors import AdapterError, UsageError

EXAMPLES = Path(__file__).parents[3] / "examples" / "protocol"


def test_a_right_program_is_asked_everything_and_nothing_is_wrong() -> None:
    """Each configuration one by one and in a batch, what it cannot know, the clock, and the end."""
    report = check_protocol(f"command:{shlex.join([sys.executable, '-S', str(EXAMPLES / 'page_cache.py')])}")
    assert report.problems == ()
    assert report.program is not None
    assert report.program.name == "page-cache"
    told = [(exchange.said, exchange.answered) for exchange in report.exchanges]
    assert told.count(("start", "started")) == 4
    assert told.count(("malformed", "outcome, unsupported")) == 2
    assert told.count(("insert", "outcome, inserted")) == 2  # a batch names no slots
    assert told.count(("reset", "outcome, done")) == 4
    assert told.count(("advance", "advanced")) == sum(
        said not in ("hello", "start", "advance", "bye") for said, _ in told
    )
    assert told[-1] == ("bye", "status 0")
    assert [exchange.line for exchange in report.exchanges] == list(range(1, len(told) + 1))


def test_a_program_that_audits_is_asked_for_one(tiny_program: Callable[..., str]) -> None:
    """Of another kind."""
    report = check_protocol(f"command:{tiny_program()}")
    said = [exchange.said for exchange in report.exchanges]
    assert "audit" in said
    assert said.count("hash_bytes") == 2
    # It does one operation of its kind only, and says so: what is claimed must be there.
    assert {exchange.said for exchange in report.problems} == {
        "slice_key",
        "pick_token",
        "hash_page",
        "hash_int64",
    }


@pytest.mark.parametrize(
    ("where", "behaviour", "said", "answered", "words", "advice"),
    [
        ("hello", "garbage", "hello", "no JSON", "'so what?' is not JSON", "nothing else; logs go to stderr"),
        ("hello", "no-object", "hello", "no message", "must be an object", "pymllm schema protocol"),
        ("hello", "no-kind", "hello", "no message", "kind is 'teapot'", "pymllm schema protocol"),
        ("hello", "protocol-9", "hello", "hello", "protocol is 9; it must be 1", "speak protocol 1"),
        ("hello", "no-claim", "hello", "hello", "'flying' is no capability", "there are pool"),
        ("hello", "kill", "hello", "nothing", "was ended by SIGKILL", "run it by hand"),
        ("hello", "hang", "hello", "nothing", "gave no answer", "flush standard output"),
        ("start", "error", "start", "error", "cannot go on: no more", "the result unsupported"),
        ("start", "other", "start", "advanced", "started was due", "answer in order"),
        ("op", "wrong-step", "slice_key", "outcome, done", "step is 99; it must be 1", "answer in order"),
        ("op", "wrong-form", "slice_key", "no message", "field 'value' is missing", "pymllm schema protocol"),
        ("op", "wrong-result", "slice_key", "outcome, done", "it must be Tokens", "claim only what is there"),
        ("op", "wrong-result", "malformed", "outcome, done", "answered Done()", "answer unsupported"),
        ("bye", "status-3", "bye", "status 3", "after bye there was status 3", "end with status 0"),
        ("bye", "hang", "bye", "no end", "after bye there was no end", "end with status 0"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    tiny_program: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    behaviour: str,
    said: str,
    answered: str,
    words: str,
    advice: str,
) -> None:
    """And with the line that has it."""
    if behaviour == "hang":
        monkeypatch.setattr("pymllm.adapters.process.channel._FAREWELL", 0.2)
    with answer_limit(0.8 if behaviour == "hang" and where == "hello" else 20):
        report = check_protocol(f"command:{tiny_program(where, behaviour)}")
    assert any(
        words in (found.problem or "") and advice in (found.advice or "")
        for found in report.problems
        if (found.said, found.answered) == (said, answered)
    )
    assert report.conversation.startswith('> {"say":"hello"') or report.conversation.startswith("# ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('cache.clock += message["ticks"]', "pass"), "the clock shows 0; it must show 1"),
        (('"capabilities": claims', '"capabilities": ["flying", *claims]'), "'flying' is no capability"),
        (('"slots": taken[: op["tokens"]]', '"slots": ["one"]'), "must be an integer"),
        (('"slots": 48', '"slots": 47'), "slots is 47; it must be a multiple of page_size, 4"),
        (('"window": None', '"window": 3'), "nothing can be judged: a cache with a window claims swa"),
    ],
)
def test_the_rest_is_asked_whatever_is_wrong_with_one_answer(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    """What names slots that no answer gave is left out."""
    text = (EXAMPLES / "page_cache.py").read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / "wrong.py").write_text(text.replace(*change), encoding="utf-8")
    report = check_protocol(f"command:{shlex.join([sys.executable, '-S', str(tmp_path / 'wrong.py')])}")
    assert any(words in (problem.problem or "") for problem in report.problems)
    assert report.exchanges[-1].said == "bye"


def test_an_answer_may_be_wrong_in_two_ways(tiny_program: Callable[..., str]) -> None:
    """Each stands there, with the same line."""
    report = check_protocol(f"command:{tiny_program('op', 'wrong-step')}")
    first, second = [problem for problem in report.problems if problem.said == "slice_key"][:2]
    assert first.line == second.line
    assert first.problem != second.problem


def test_there_is_advice_for_every_verdict() -> None:
    """Whatever a program does instead of answering."""
    assert set(protocol_check._ADVICE) == set(VERDICTS)


def test_what_cannot_be_started_cannot_be_checked() -> None:
    """X1: that is no matter of the protocol."""
    with pytest.raises(AdapterError, match="cannot be started"):
        check_protocol("command:no-such-program-anywhere")
    with pytest.raises(UsageError, match="names no program"):
        check_protocol("command:")
