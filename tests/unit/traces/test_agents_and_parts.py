"""Formats without ids of blocks: lengths of turns (Applied Compute), parts of prompts (RAGPulse)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pymllm.errors import TraceError
from pymllm.traces.registry import open_trace
from pymllm.traces.statistics import TraceStatistics
from pymllm.workloads.request import Request
from tests.unit.cli.typed import typed
from tests.unit.traces.trace_words import SMALL, read

RAGPULSE = Path(__file__).with_name("ragpulse")
AGENTS = SMALL / "applied-compute.jsonl"
AGENT = json.loads(AGENTS.read_bytes().splitlines()[0])


def test_turns_grow_by_answers_and_outputs_of_tools() -> None:
    """Prompts of 900, 900 + 50 + 200 and 1,150 + 60 + 10 tokens; the other conversation runs beside it."""
    first, other, second, third = read(AGENTS)
    assert first == Request(0, 0.0, 900, 50, (0, 1), 512, session=0)
    assert other == Request(1, 0.0, 512, 1, (2,), 512, session=1)
    assert second == Request(2, 0.0, 1150, 60, (0, 1, 3), 512, session=0, wait_for=(0,), delay_ms=1500.0)
    assert third == Request(3, 0.0, 1220, 300, (0, 1, 3), 512, session=0, wait_for=(2,), delay_ms=250.0)
    found = TraceStatistics()
    for request in (first, other, second, third):
        found.add(request)
    assert (found.prompt_tokens, found.shared_tokens) == (900 + 512 + 1150 + 1220, 900 + 1150)


def test_conversations_take_turns_in_lanes() -> None:
    """With one lane the second begins where the first has ended; a setting says how many there are."""
    requests = read(AGENTS, conversations=1, block_tokens=64)
    assert [it.session for it in requests] == [0, 0, 0, 1]
    assert (requests[3].wait_for, requests[3].delay_ms) == ((2,), 0.0)
    document = typed(
        "trace", "inspect", AGENTS, "--format", "applied-compute,conversations=1", "--json"
    ).stdout
    assert json.loads(document)["facts"]["waiting"] == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_turns": 3}, "assistant_response_length has 2 values, must have 3, as num_turns says"),
        ({"tool_call_latency": [1]}, "tool_call_latency has 1 values, must have 2, as num_turns says"),
        ({"tool_call_latency": [1, -1]}, "tool_call_latency is -1000.0, must be in 0.."),
        ({"input_prompt_length": 0}, "input_prompt_length is 0, must be in 1.."),
        ({"input_prompt_length": 1 << 30}, "a prompt of it has 1073741824 tokens, must be in 1..33554432"),
        ({"assistant_response_length": [-1, 2]}, "assistant_response_length is -1, must be in 0.."),
        ({"final_assistant_response_length": -1}, "final_assistant_response_length is -1, must be in 0.."),
    ],
)
def test_a_bad_conversation_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """X1: by its line, whatever turn it is."""
    path = tmp_path / "it.jsonl"
    path.write_text(json.dumps(AGENT) + "\n" + json.dumps(AGENT | changes) + "\n", encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read(path)
    assert f":2: {words}" in str(caught.value)


@pytest.mark.parametrize("place", [RAGPULSE, RAGPULSE / "0_trace.jsonl"])
def test_parts_are_put_together_token_by_token(place: Path) -> None:
    """In blocks of 16: 16 + 4 + 12 tokens are whole blocks, 2 or more at the end are nobody else's."""
    opened = open_trace(place)
    first, second, third = opened
    assert opened.format == "ragpulse"
    # 16 | 4 + 12 | 3 + 2 + 8 left
    assert first == Request(0, 27_000.0, 45, 7, (0, 1, 2), 16, session=0)
    # 16 | 4 + 10 + 2 of 3 | 1 + 2 + 8
    assert second == Request(1, 29_500.0, 43, 9, (0, 3, 4), 16, session=1)
    # 16 | 4 + 12 | 6 + 2 + 8
    assert third == Request(2, 30_000.0, 48, 1, (0, 1, 5), 16, session=0)


def test_parts_have_lengths_and_fit(tmp_path: Path) -> None:
    """X1: each refusal names the file, the line and the value."""
    for content, words in (
        (
            {"1_sys_prompt.jsonl": '{"sys_prompt_id": 8, "token_length": 0}\n'},
            "jsonl:1: token_length is 0",
        ),
        (
            {"1_sys_prompt.jsonl": '{"sys_prompt_id": 8}\n'},
            "jsonl:1: a part must have one field ..._id",
        ),
        ({"1_sys_prompt.jsonl": '{"sys_prompt_id": "8", "token_length": 1}\n'}, "both whole numbers"),
        (
            {"3_history.jsonl": ""},
            "0_trace.jsonl:1: hash_ids has 30, whose token_length no file of the folder",
        ),
        (
            {"2_passages.jsonl": '{"passage_id": 1, "token_length": 21}\n'},
            ":1: input_length is 45, must be at least the 46 tokens of its parts",
        ),
    ):
        folder = tmp_path / "data"
        shutil.copytree(RAGPULSE, folder)
        for name, text in content.items():
            (folder / name).write_text(text, encoding="utf-8")
        with pytest.raises(TraceError) as caught:
            read(folder)
        assert words in str(caught.value)
        shutil.rmtree(folder)
    alone = tmp_path / "0_trace.jsonl"
    shutil.copy(RAGPULSE / "0_trace.jsonl", alone)
    with pytest.raises(TraceError, match=r"such as 2_passages\.jsonl, and none is there"):
        read(alone)


def test_times_that_begin_anew_are_the_next_week(tmp_path: Path) -> None:
    """As in the published file; a line that is only out of order is refused."""
    folder = tmp_path / "data"
    shutil.copytree(RAGPULSE, folder)
    lines = [json.loads(line) for line in (RAGPULSE / "0_trace.jsonl").read_bytes().splitlines()]
    for times, weeks in (((1, 500_000, 3), 1), ((1, 500_000, 400_000), None)):
        text = "".join(
            json.dumps({**it, "timestamp": str(at)}) + "\n" for it, at in zip(lines, times, strict=True)
        )
        (folder / "0_trace.jsonl").write_text(text, encoding="utf-8")
        if weeks is None:
            with pytest.raises(TraceError, match=":3: timestamp 400000 lies before 500000"):
                read(folder)
        else:
            assert read(folder)[2].arrival_ms == (weeks * 604_800 + 3) * 1000
