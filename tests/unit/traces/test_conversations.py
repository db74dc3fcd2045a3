"""Conversations of texts: ShareGPT's, vLLM's, lists of turns, OpenAI's batches; one token is one word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymllm.errors import TraceError
from pymllm.traces.statistics import TraceStatistics
from pymllm.workloads.request import Request
from tests.unit.traces.trace_words import encode, read

TEXTS = Path(__file__).with_name("text_traces")


def read_texts(path: Path) -> list[Request]:
    return read(path, tokenizer=encode, block_tokens=2)


@pytest.mark.parametrize("name", ["sharegpt.json", "vllm-multi-turn.json"])
def test_a_turn_is_asked_behind_all_before_it(name: str) -> None:
    """2 words asked, 3 answered, 1 asked, 2 answered: prompts of 2 and 6 tokens, outputs of 3 and 2."""
    first, second, other = read_texts(TEXTS / name)
    assert first == Request(0, 0.0, 2, 3, (0,), 2, session=0)
    assert second == Request(1, 0.0, 6, 2, (0, 1, 2), 2, session=0, wait_for=(0,), delay_ms=0.0)
    assert other == Request(2, 0.0, 4, 1, (0, 3), 2, session=1)
    found = TraceStatistics()
    for request in (first, second, other):
        found.add(request)
    assert (found.prompt_tokens, found.shared_tokens) == (12, 4)


def test_turns_without_answers_are_what_the_user_says() -> None:
    """As texts, as objects with delays, or as messages."""
    requests = read_texts(TEXTS / "turns.jsonl")
    assert [
        (it.session, it.prompt_length, it.output_length, it.wait_for, it.delay_ms) for it in requests
    ] == [
        (0, 2, 1, (), None),
        (0, 5, 1, (0,), 0.0),
        (1, 2, 1, (), None),
        (1, 3, 1, (2,), 400.0),
        (2, 1, 2, (), None),
    ]
    assert requests[1].block_ids[0] == requests[2].block_ids[0]


def test_batches_of_openai_are_requests() -> None:
    """Chats, prompts, and prompts as tokens; the most tokens to answer are taken for the answer."""
    requests = read_texts(TEXTS / "openai-batch.jsonl")
    assert [(it.prompt_length, it.output_length, it.session) for it in requests] == [
        (3, 20, None),
        (2, 9, None),
        (4, 1, None),
    ]
    assert requests[1].block_ids == requests[0].block_ids[:1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            {"conversations": ["x"]},
            "conversations has 'x', must be a message with role and content, or from and",
        ),
        ({"messages": [3, {"role": "assistant", "content": "x"}]}, "messages has '3', must be a message"),
        (
            {"turns": [{"texts": ["a"]}]},
            "turns has \"{'texts': ['a']}\", must be a text, or have one as text",
        ),
        ({"turns": [{"text": "a", "delay": "1"}]}, "delay is '1', must be a number of milliseconds"),
        ({"turns": [{"text": "a", "delay": -1}]}, "delay is -1, must be in 0.."),
        ({"turns": "x"}, "not a request: Expected `array | null`, got `str` - at `$.turns`"),
        ({"body": {}}, "body must have one of messages and prompt"),
        ({"body": {"prompt": 7}}, "body must have one of messages and prompt"),
        ({"body": {"prompt": "a", "max_tokens": "x"}}, "body.max_tokens is 'x', must be a whole number"),
        (
            {"messages": [{"role": "user", "content": "a"}], "message_mode": "delta"},
            "message_mode is delta: the",
        ),
        ({"prompt": [[1, 2]]}, "not a request: Expected `int`, got `array`"),
    ],
)
def test_a_bad_conversation_is_named(tmp_path: Path, line: dict[str, Any], words: str) -> None:
    """X1: one sentence, with the line's number."""
    (tmp_path / "it.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_texts(tmp_path / "it.jsonl")
    assert f":1: {words}" in str(caught.value)


def test_answers_that_are_no_texts_count(tmp_path: Path) -> None:
    """A call of a tool is tokenized as a message is; answers that follow each other ask nothing."""
    line = {
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "the weather"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "assistant", "content": "one moment"},
            {"role": "tool", "content": "rain"},
            {"role": "assistant", "content": "it rains"},
        ],
    }
    (tmp_path / "it.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")

    def words(said: Any) -> list[int]:
        texts = [said] if isinstance(said, str) else [str(it["content"]) for it in said]
        return [len(word) for text in texts for word in text.split()]

    [only] = read(tmp_path / "it.jsonl", tokenizer=words)
    assert (only.prompt_length, only.output_length, only.session) == (4, 1, 0)


NOTHING: tuple[dict[str, list[dict[str, str]]], ...] = (
    {"conversations": []},
    {"conversations": [{"from": "gpt", "value": "good day"}]},
    {"messages": []},
    {"messages": [{"role": "system", "content": "be good"}, {"role": "assistant", "content": "yes"}]},
    {"turns": []},
)
"""Conversations without a question, as ShareGPT's published files have them."""


def test_a_conversation_without_a_question_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no request, and no reason to refuse the others, whose numbers and sessions have no gaps."""
    silent = {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "what is it?"}]}
    silent["conversations"].append({"from": "human", "value": "good day"})
    hello = {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "good day"}]}
    path = tmp_path / "it.json"
    path.write_text(json.dumps([*NOTHING, silent, NOTHING[0], hello]), encoding="utf-8")
    second, third = read_texts(path)
    assert (second.request_id, second.session, second.prompt_length, second.wait_for) == (0, 0, 5, ())
    assert (third.request_id, third.session, third.prompt_length, third.output_length) == (1, 1, 1, 2)
    assert caplog.messages == [
        f"{path}: conversations without a message of a user, left out: 6",
        f"{path}: turns of a conversation without a token, left out: 1",
    ]


def test_a_file_of_nothing_but_such_conversations_holds_no_request(tmp_path: Path) -> None:
    """X1: and the reason is told in the same line."""
    path = tmp_path / "it.json"
    path.write_text(json.dumps(NOTHING), encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_texts(path)
    assert str(caught.value) == (
        f"{path}: the file holds no request; conversations without a message of a user, left out: 5"
    )
