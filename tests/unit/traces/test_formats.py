"""Every format of traces: what its fields come to, how a file is told, and what is refused."""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.errors import TraceError, UsageError
from pymllm.replay.plan import NESTED_TIMES, TRACE_FORMATS, WRITTEN_FORMATS
from pymllm.traces import lines as trace_lines
from pymllm.traces import weka
from pymllm.traces.lines import Rejected, TraceLines
from pymllm.traces.numbering import BlockNumbers
from pymllm.traces.own import trace_schema
from pymllm.traces.records import ReadOptions, make_request
from pymllm.traces.registry import FORMATS, WRITTEN, detect, open_trace, written_lines
from pymllm.traces.text import find_tokenizer
from pymllm.workloads.request import Request
from tests.unit.traces.trace_words import SMALL, encode, random_trace, read, renumbered


def refusal(tmp_path: Path, content: object, format: str = "auto", **options: Any) -> str:
    """The one sentence that a file is refused with, after its name."""
    path = tmp_path / "it.jsonl"
    if isinstance(content, list):
        content = "".join(json.dumps(line) + "\n" for line in content).encode()
    assert isinstance(content, bytes)
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read(path, format, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(str(path))
    return said.removeprefix(str(path))


# -- which there are -----------------------------------------------------------------------------------------


def test_the_formats_of_options_are_those_that_there_are() -> None:
    """The lists are written twice, because the other ones load NumPy."""
    assert tuple(FORMATS) == TRACE_FORMATS
    assert WRITTEN == WRITTEN_FORMATS
    assert weka.NESTED_TIMES == NESTED_TIMES


@pytest.mark.parametrize("path", sorted(SMALL.iterdir()), ids=lambda path: path.name)
def test_a_file_tells_its_format(path: Path) -> None:
    """A file is known by its first line, not by its name."""
    opened = open_trace(path)
    opened.close()
    assert opened.format == path.stem.removesuffix("-sessions")


@pytest.mark.parametrize(
    ("line", "format"),
    [
        (b'{"hash_ids": [1], "timestamp": 0, "input_length": 3}', "mooncake"),
        (b'{"hash_ids": [1], "input_length": 3}', "kvsim"),
        (b'{"hash_ids": [1], "timestamp": 0, "block_size": 4}', "kvsim"),
        (b'{"hash_ids": [1], "timestamp": 0, "session_id": "a"}', "dynamo"),
        (b'{"hash_ids": [1], "block_size": 4, "session_id": "a"}', "kvsim"),
        (b'{"schema": "pymllm.trace"}', "pymllm"),
        (b"{\n", "weka"),
        (b'{"schema": "pymllm.replay"}', None),
        (b'{"timestamp": 0}', None),
        (b"1", None),
        (b"{", "weka"),
        (b"\xff\xfe", None),
        (b'{"a\xdf": 1}', None),
        (b"[" * 100_000, None),
    ],
)
def test_a_line_tells_a_format_or_none(line: bytes, format: str | None) -> None:
    """The most telling field decides."""
    assert detect(line) == format


def test_a_file_of_no_format_is_refused_with_their_names(tmp_path: Path) -> None:
    """X1: what to type is in the sentence."""
    said = refusal(tmp_path, [{"prompts": "x", "hash_ids": []}])
    assert said.startswith(":1: no format has these fields: weka lacks requests and hash_id_scope; ")
    assert "; bailian lacks one of chat_id, parent_chat_id; " in said
    assert "; mooncake lacks timestamp; " in said
    assert "; kvsim lacks input_length; " in said
    assert said.endswith("""; got '{"prompts": "x", "hash_ids": []}'""")
    assert "--format" not in said  # none would help
    assert refusal(tmp_path, b"a,b\n").startswith(":1: not a JSON object (JSON is malformed")


def test_unknown_formats_and_numbers_are_refused(tmp_path: Path) -> None:
    """X1: before anything is opened."""
    with pytest.raises(UsageError, match="format is 'csv'; choose one of auto, mooncake"):
        open_trace(tmp_path / "nowhere", format="csv")
    with pytest.raises(ValueError, match="requests must be at least 1, got 0"):
        open_trace(tmp_path / "nowhere", requests=0)
    with pytest.raises(TraceError, match=r"the folder has no file \*\.jsonl"):
        open_trace(tmp_path, format="kvsim")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_of_no_format_is_refused(tmp_path: Path, content: bytes) -> None:
    """X1: an empty trace would report zeros."""
    assert "holds no request" in refusal(tmp_path, content)


# -- what fields come to -------------------------------------------------------------------------------------


def test_bailian_counts_seconds_and_knows_parents() -> None:
    """A request is in its parent's session, waits for it, and has its type as kind."""
    first, image, second, third, orphan = read(SMALL / "bailian.jsonl")
    assert first == Request(0, 500.0, 40, 8, (0, 1, 2), 16, session=0, kind="text")
    assert image == Request(1, 1250.0, 16, 1, (3,), 16, session=1, kind="image")  # 0 tokens count as 1
    assert second == Request(2, 3000.0, 64, 2, (0, 1, 4, 5), 16, session=0, wait_for=(0,), kind="text")
    assert third.block_ids == (0, 1, 4, 5, 6)
    assert (third.wait_for, third.session, third.kind) == ((2,), 0, "search")
    assert (orphan.wait_for, orphan.session, orphan.block_ids) == ((), 2, (3,))


def test_weka_knows_what_had_ended() -> None:
    """A request waits for the last of its agent that had ended when it began, and for agents beneath."""
    first, look, parent, again, last = read(SMALL / "weka.json")
    assert first == Request(0, 0.0, 130, 10, (0, 1, 2), 64, session=0, kind="main")
    assert look == Request(
        1, 4500.0, 64, 3, (3,), 64, session=0, wait_for=(0,), delay_ms=2500.0, kind="Explore"
    )
    assert (parent.arrival_ms, parent.block_ids, parent.wait_for) == (5000.0, (0, 1, 4), (0,))
    assert parent.delay_ms == 3000.0
    assert (again.arrival_ms, again.output_length, again.wait_for) == (6000.0, 1, (1,))
    assert again.delay_ms == pytest.approx(500.0)
    # It began when the parent (8 s) and the agent (7.5 s) had ended; what it read is not known.
    assert (last.arrival_ms, last.wait_for, last.delay_ms) == (10_000.0, (2, 3), 2000.0)
    assert last.block_ids == (6,)


def test_conversations_share_nothing_and_run_beside_each_other(tmp_path: Path) -> None:
    """Ids mean something in their own conversation only."""
    requests = read(SMALL / "weka.jsonl")
    assert [it.session for it in requests] == [0, 1, 0, 0, 0, 0, 1]
    blocks = [{id for it in requests if it.session == n for id in it.block_ids} for n in (0, 1)]
    assert not blocks[0] & blocks[1]
    assert requests[-1].wait_for == (1,)
    assert requests[-1].delay_ms == 4000.0  # its think_time: nobody says how long the first one took
    for number, line in enumerate((SMALL / "weka.jsonl").read_bytes().splitlines()):
        (tmp_path / f"trace_{number}.json").write_bytes(line)
    assert read(tmp_path) == requests


def test_one_lane_runs_conversations_after_each_other() -> None:
    """Where one has ended the next begins, and waits for it."""
    requests = read(SMALL / "weka.jsonl", conversations=1)
    assert [it.session for it in requests] == [0, 0, 0, 0, 0, 1, 1]
    first = requests[5]
    assert (first.arrival_ms, first.wait_for, first.delay_ms) == (10_000.0, (4,), 0.0)


def _nested(*times: float, marker: float = 10.0) -> list[dict[str, Any]]:
    inner = [{"t": t, "type": "n", "in": 64, "out": 1, "hash_ids": [5], "api_time": 0.1} for t in times]
    own = {"t": 0.0, "type": "n", "in": 64, "out": 1, "hash_ids": [1], "api_time": 1.0}
    agent = {"t": marker, "type": "subagent", "requests": inner}
    return [{"block_size": 64, "hash_id_scope": "local", "requests": [own, agent]}]


@pytest.mark.parametrize(
    ("times", "convention", "arrivals"),
    [
        ((0.0, 4.0), "auto", [0.0, 10_000.0, 14_000.0]),
        ((10.5, 12.0), "auto", [0.0, 10_500.0, 12_000.0]),
        ((10.5, 12.0), "relative", [0.0, 20_500.0, 22_000.0]),
        ((0.5, 4.0), "absolute", [0.0, 500.0, 4000.0]),
    ],
)
def test_both_conventions_of_nested_times_are_read(
    tmp_path: Path, times: tuple[float, ...], convention: str, arrivals: list[float]
) -> None:
    """Where an agent's requests lie before its own time, they count from that."""
    path = tmp_path / "it.jsonl"
    path.write_text(json.dumps(_nested(*times)[0]), encoding="utf-8")
    assert [it.arrival_ms for it in read(path, nested_times=convention)] == arrivals


def test_ids_of_global_scope_mean_the_same_everywhere(tmp_path: Path) -> None:
    """Then conversations share what they have alike."""
    line = {**_nested(0.0)[0], "hash_id_scope": "global"}
    path = tmp_path / "it.jsonl"
    path.write_text(2 * (json.dumps(line) + "\n"), encoding="utf-8")
    assert [it.block_ids for it in read(path)] == [(0,), (0,), (1,), (1,)]


def test_dynamo_puts_children_after_those_that_they_wait_for() -> None:
    """A line may wait for one below it; delays are summed, and branches begin with their parent."""
    plan, look, join, other = read(SMALL / "dynamo.jsonl")
    assert plan == Request(0, 0.0, 512, 20, (0,), 512, session=0)
    assert look == Request(1, 100.0, 100, 40, (1,), 512, session=1, wait_for=(0,), delay_ms=5.0)
    assert join == Request(2, 900.0, 1200, 30, (0, 2, 3), 512, session=0, wait_for=(0, 1), delay_ms=50.5)
    assert other == Request(3, 400.0, 10, 1, (4,), 512, session=2)


def test_turns_of_a_session_wait_for_each_other() -> None:
    """By their delay, or by how far their timestamps are apart."""
    first, second, third, fourth, alone = read(SMALL / "dynamo-sessions.jsonl")
    assert (first.wait_for, first.arrival_ms, first.output_length) == ((), 1000.0, 8)
    assert (second.wait_for, second.delay_ms, second.arrival_ms) == ((0,), 250.0, 1250.0)
    assert (third.session, fourth.wait_for, fourth.delay_ms) == (1, (2,), 490.0)
    assert (alone.session, alone.wait_for) == (None, ())


def test_kvsim_has_ids_of_any_kind_and_sizes_of_its_own() -> None:
    """Texts, numbers as texts, negative ones; a tail without an id is nobody else's."""
    first, second, third = read(SMALL / "kvsim.jsonl")
    assert first == Request(0, 0.0, 128, 1, (0, 1), 64)
    assert second == Request(1, 12.5, 150, 4, (0, 2, 3), 64)
    assert third == Request(2, 12.5, 130, 1, (0, 2, 4), 64)


def test_ours_has_every_field() -> None:
    """Each field of a line in our format becomes a field of a request."""
    first, second, third = read(SMALL / "pymllm.jsonl")
    assert first == Request(0, 0.0, 20, 5, (0, 1), 16, session=0)
    assert second == Request(1, 900.0, 33, 5, (0, 1, 2), 16, "a", 0, (0,), 250.0, "chat")
    assert third == Request(2, 10.0, 16, 1, (0,), 16, 7)


def test_a_tokenizer_makes_blocks_of_texts() -> None:
    """Equal tokens at equal places of blocks are equal blocks."""
    first, second, third = read(SMALL / "text.jsonl", tokenizer=encode, block_tokens=2)
    assert first == Request(0, 0.0, 5, 3, (0, 1, 2), 2, session=0, kind="prose")
    assert second == Request(1, 40.0, 4, 1, (0, 3), 2)
    assert third == Request(2, 40.0, 6, 1, (0, 1, 4), 2)


def test_a_tokenizer_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: what it is not is said in one line."""
    (tmp_path / "my_words_of_traces.py").write_text(
        "def encode(text): return [1]\nsize = 3\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert find_tokenizer("my_words_of_traces:encode")("x") == [1]
    for name, words in (
        ("my_words_of_traces", "write module:function"),
        ("my_words_of_traces:decode", "AttributeError"),
        ("no_such_module_here:encode", "ModuleNotFoundError"),
        ("my_words_of_traces:size", "is int, must be a function"),
    ):
        with pytest.raises(UsageError, match=words):
            find_tokenizer(name)
    with pytest.raises(UsageError, match="need a tokenizer; give --format text,tokenizer="):
        read(SMALL / "text.jsonl")


# -- what is refused -----------------------------------------------------------------------------------------

CHAT = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 1,
    "input_length": 16,
    "output_length": 1,
    "hash_ids": [1],
}
ROW = {"request_id": "a", "timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1]}
SIM = {"block_size": 4, "input_length": 6, "hash_ids": [1, 2]}
HEAD = {"schema": "pymllm.trace", "block_tokens": 4}
OURS = {"arrival_ms": 5, "prompt_length": 6, "output_length": 1, "block_ids": [1, 2]}
CALL = {"t": 0, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}


def agent(*requests: object, **changes: object) -> dict[str, object]:
    return {"block_size": 64, "hash_id_scope": "local", "requests": [*requests]} | changes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([CHAT, {**CHAT, "chat_id": 2, "timestamp": 0.5}], ":2: timestamp 0.5 lies before 1 of the request"),
        (
            [{**CHAT, "timestamp": 1e11}],
            ":1: timestamp is 100000000000.0, must be in 0..10000000000 (seconds)",
        ),
        ([CHAT, CHAT], ":2: chat_id 1 is that of request 0, too"),
        (
            [{**CHAT, "input_length": 40}],
            ":1: input_length 40 does not fit 1 hash_ids of 16 tokens (possible",
        ),
        ([{**CHAT, "input_length": 40}], "(possible lengths: 1..31)"),
        ([{**CHAT, "output_length": -1}], ":1: output_length is -1, must be in 0..2147483647 (tokens)"),
        ([{**CHAT, "type": ""}], ":1: type has 0 characters, must have 1..200"),
        ([{**CHAT, "hash_ids": [-1]}], ":1: hash_ids has -1, must be at least 0"),
        ([{**CHAT, "chat_id": "x"}], ":1: not a request: Expected `int`, got `str` - at `$.chat_id`"),
        ([ROW, ROW], ":2: request_id 'a' is that of line 1, too"),
        ([{**ROW, "wait_for": ["b"]}], ":1: it waits for 'b', which is the request_id of no line"),
        (
            [{**ROW, "wait_for": ["b"]}, {**ROW, "request_id": "b", "wait_for": ["a"]}],
            ":1: requests that wait for each other never begin: 'a', 'b'",
        ),
        (
            [ROW, *({**ROW, "request_id": f"r{n}", "wait_for": [f"r{(n + 1) % 9}"]} for n in range(9))],
            "'r0', 'r1', 'r2', 'r3', 'r4', and 4 more",
        ),
        ([{**ROW, "request_id": "b", "wait_for": ["b"]}], "never begin: 'b'"),
        ([{**ROW, "timestamp": None}], ":1: timestamp is missing, of a request that waits for no other"),
        ([{**ROW, "input_length": None}], ":1: input_length is missing"),
        ([{**ROW, "delay": -1}], ":1: delay is -1.0, must be in 0..10000000000000 (milliseconds)"),
        ([{**ROW, "tool_wait_ms": 1e14}], ":1: tool_wait_ms is 100000000000000.0, must be in"),
        (
            [ROW, {**ROW, "request_id": "b", "wait_for": ["a"], "timestamp": -1}],
            ":2: timestamp is -1.0, must be",
        ),
        ([{**ROW, "request_id": ""}], ":1: request_id has 0 characters, must have 1..200"),
        (
            [
                {"session_id": "s", **ROW, "request_id": None},
                {"session_id": "s", **ROW, "request_id": None, "timestamp": 0},
            ],
            ":2: timestamp 0 lies before 1 of the request above it in its session",
        ),
        ([{**SIM, "block_size": 0}], ":1: block_size is 0, must be in 1..2147483647 (tokens per block)"),
        ([SIM, {**SIM, "block_size": 8}], ":2: block_size is 8, must be the 4 of the lines above it"),
        ([{"input_length": 6, "hash_ids": [1, 2]}], ":1: block_size is missing; give --block-tokens"),
        ([{**SIM, "input_length": 13}], "does not fit 2 hash_ids of 4 tokens (possible lengths: 5..11)"),
        ([{**SIM, "input_length": 3}], "does not fit 2 hash_ids of 4 tokens"),
        (
            [{**SIM, "block_tokens": [4]}],
            ":1: block_tokens has 1 numbers, must have 2, one for each of hash_ids",
        ),
        (
            [{**SIM, "block_tokens": [4, 4]}],
            ":1: block_tokens has 4 at place 1, must be 2: blocks have 4 tokens",
        ),
        ([{**SIM, "hash_ids": ["", 1]}], ":1: hash_ids has 0 characters, must have 1..200"),
        ([{**SIM, "timestamp": -1}], ":1: timestamp is -1.0"),
        ([{**HEAD, "block_tokens": 0}], ":1: not the first line of a trace"),
        ([{**HEAD, "version": 2}], ":1: not the first line of a trace: Invalid enum value 2"),
        ([HEAD, {**OURS, "wait_for": [0]}], ":2: wait_for has 0, must be in none: it is the first request"),
        (
            [HEAD, OURS, {**OURS, "wait_for": [1]}],
            ":3: wait_for has 1, must be in 0..0, of a request above it",
        ),
        ([HEAD, OURS, {**OURS, "arrival_ms": 4}], ":3: arrival_ms 4 lies before 5"),
        ([HEAD, {**OURS, "delay_ms": -1}], ":2: delay_ms is -1.0, must be in"),
        ([HEAD, {**OURS, "kind": "x" * 201}], ":2: kind has 201 characters, must have 1..200"),
        ([HEAD, {**OURS, "namespace": ""}], ":2: namespace has 0 characters"),
        ([HEAD, {**OURS, "prompt_length": 9}], ":2: prompt_length 9 does not fit 2 hash_ids of 4 tokens"),
        ([HEAD], "holds no request"),
        ([agent(CALL, hash_id_scope="mine")], ":1: hash_id_scope is 'mine', must be local or global"),
        ([agent(CALL, block_size=0)], ":1: block_size is 0, must be in 1.."),
        ([agent(CALL), agent(CALL, block_size=32)], ":2: block_size is 32, must be the 64 above it"),
        ([agent({**CALL, "t": -1})], ":1: requests[0]: t is -1.0, must be in 0..10000000000 (seconds)"),
        ([agent({**CALL, "type": "x"})], ":1: requests[0]: type is 'x', must be one of n, s, subagent"),
        ([agent({**CALL, "api_time": -2})], ":1: requests[0]: api_time is -2.0, must be in"),
        ([agent(CALL, {**CALL, "in": 500})], ":1: requests[1]: in 500 does not fit 1 hash_ids of 64 tokens"),
        (
            [agent({**CALL, "in": 1 << 30, "hash_ids": []})],
            ":1: requests[0]: in is 1073741824 without hash_ids, must be in 1..4194304 (tokens)",
        ),
        ([agent({**CALL, "in": None})], ":1: requests[0]: in is missing"),
        ([agent({**CALL, "hash_ids": [-7]})], ":1: requests[0]: hash_ids has -7, must be at least 0"),
        (
            [agent({"t": 0, "type": "subagent", "requests": [CALL, {**CALL, "out": -1}]})],
            ":1: requests[0].requests[1]: out is -1, must be in 0..",
        ),
        (
            [agent(*({"t": 5, "type": "subagent", "requests": [{**CALL, "t": t}]} for t in (1, 9)))],
            ":1: requests[0] has requests before its own time, and requests[1] has none; "
            "give --format weka,nested-times=relative, or =absolute",
        ),
        (b'{"hash_id_scope": 1, "requests": [], "\xe4": 2}\n', ":1: not a conversation: "),
        (
            json.dumps(SIM).encode() + b'\n{"hash_ids": ["\xe4"]}\n',
            ":2: not a request: 'utf-8' codec can't decode byte 0xe4",
        ),
        ([agent(requests=3)], ":1: not a conversation: Expected `array`, got `int`"),
        ([agent()], "holds no request"),
        (
            b'{\n"block_size": 64,\n"hash_id_scope": "local"',
            ":1: not a conversation: Input data was truncated",
        ),
    ],
)
def test_a_bad_line_is_named_with_field_value_and_bound(tmp_path: Path, content: Any, words: str) -> None:
    """X1: one sentence, with the line's number."""
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({}, ":1: a line must have one of text, prompt, messages, conversations, turns, body; it has none"),
        ({"text": "a", "messages": []}, "; it has text and messages"),
        ({"text": " "}, ":1: the tokenizer gave no token for it, must be at least 1"),
        (
            {"messages": [{"role": "user"}]},
            ":1: the tokenizer gave no whole numbers for it: TypeError: sequence item 0: expected str",
        ),
        ({"text": "a", "session_id": ""}, ":1: session_id has 0 characters"),
        ({"text": "a", "output_length": -1}, ":1: output_length is -1, must be in 0.."),
    ],
)
def test_a_bad_line_of_text_is_named(tmp_path: Path, line: object, words: str) -> None:
    """X1: also where a stranger's tokenizer fails."""
    assert words in refusal(tmp_path, [line], "text", tokenizer=encode)


def test_agents_within_agents_have_a_bound(tmp_path: Path) -> None:
    """X1: a file cannot make us go as deep as it likes."""
    item: dict[str, object] = CALL
    for _ in range(20):
        item = {"t": 0, "type": "subagent", "requests": [item]}
    assert "more than 16 agents stand inside each other" in refusal(tmp_path, [agent(item)])


@pytest.mark.parametrize("name", ["kvsim", "pymllm", "weka.json"])
def test_a_size_that_a_file_declares_is_not_overridden(name: str) -> None:
    """X1: two answers to one question are a mistake."""
    path = next(path for path in SMALL.iterdir() if path.name.startswith(name))
    with pytest.raises(TraceError, match=r":1: block_(size|tokens) is \d+, must be the 5 of --block-tokens"):
        read(path, block_tokens=5)


def test_a_folder_without_conversations_is_refused(tmp_path: Path) -> None:
    """X1: it names what it looked for."""
    with pytest.raises(TraceError, match=r"has no file \*\.jsonl, and no \*\.json of a conversation"):
        read(tmp_path)


def test_a_conversation_is_not_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: many short lines are as long as one."""
    monkeypatch.setattr(weka, "DOCUMENT_BYTES_MAX", 300)
    said = refusal(tmp_path, b"{\n" + b'"x":\n' * 100)
    assert "longer than 300 bytes, the most of a conversation" in said


def test_a_line_of_one_request_keeps_its_own_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: only a line marked as a conversation may be as long as one; few bytes of gzip may be many."""
    assert trace_lines.LINE_BYTES_MAX == 1 << 24
    monkeypatch.setattr(trace_lines, "LINE_BYTES_MAX", 300)
    monkeypatch.setattr(trace_lines, "DOCUMENT_BYTES_MAX", 1_000)
    line = json.dumps(SIM).encode()
    assert ":2: longer than 300 bytes" in refusal(tmp_path, line + b"\n" + b" " * 400)
    assert ":1: longer than 300 bytes" in refusal(tmp_path, gzip.compress(b"0" * 400))
    marked = b'{"hash_id_scope": "local", "requests": []' + b" " * 300
    assert ":2: longer than 300 bytes" in refusal(tmp_path, line + b"\n" + marked + b"}")
    assert "not a conversation" in refusal(tmp_path, marked + b"}")
    assert ":1: longer than 1,000 bytes" in refusal(tmp_path, marked + b" " * 1_000)


# -- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1, 3, 1 << 21, 1 << 40])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_numbered_by_first_appearance(spread: int, seed: int) -> None:
    """Dense or sparse ids, in order or not, with blocks between that nobody names."""
    draw = random.Random(f"{spread} {seed}")
    numbers, slow, count = BlockNumbers(), dict[int, int](), 0
    for step in range(300):
        if spread > 1 and draw.random() < 0.1:
            assert numbers.fresh() == count
            count += 1
            continue
        ids = [spread * draw.randrange(1 + step) for _ in range(draw.randint(1, 6))]
        if spread == 1:
            ids = [min(id, count + place) for place, id in enumerate(ids)]
        wanted = []
        for id in ids:
            if id not in slow:
                slow[id], count = count, count + 1
            wanted.append(slow[id])
        assert numbers.numbers(ids) == tuple(wanted)
        assert numbers.count == count


def test_as_long_as_ids_are_their_numbers_nothing_is_kept() -> None:
    """Memory of a published trace of any length: a count."""
    numbers = BlockNumbers()
    for start in range(0, 100_000, 100):
        ids = (0, *range(start, start + 100))
        assert numbers.numbers(ids) == ids
    assert (len(numbers._dense), len(numbers._sparse), numbers.count) == (0, 0, 100_000)


def test_numbers_and_requests_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: no trace is longer than ids can count."""
    monkeypatch.setattr("pymllm.traces.numbering.BLOCK_ID_MAX", 2)
    numbers = BlockNumbers()
    assert numbers.numbers((0, 1)) == (0, 1)
    with pytest.raises(Rejected, match="this is block 4 of the trace, of at most 3"):
        numbers.numbers((0, 1, 2, 3))
    monkeypatch.setattr("pymllm.traces.records.REQUESTS_MAX", 3)
    with pytest.raises(Rejected, match="this is request 4 of the trace, of at most 3"):
        make_request(3, 0.0, 1, 1, (0,))


# -- writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_our_own_form_loses_nothing(tmp_path: Path, seed: int) -> None:
    """A trace in our form is read back equal, but for renumbering, and each line keeps to the schema."""
    path = tmp_path / "it.jsonl"
    made = random_trace(seed, namespaces=(None, "a", 3))
    path.write_bytes(b"".join(written_lines(made, "pymllm")))
    assert read(path) == renumbered(made)
    validator = Draft202012Validator(trace_schema())
    for line in path.read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"arrival_ms": -1, "prompt_length": 1, "output_length": 1, "block_ids": []})


@pytest.mark.parametrize("format", [name for name in WRITTEN if name != "pymllm"])
@pytest.mark.parametrize("seed", range(5))
def test_the_other_forms_keep_what_they_say(tmp_path: Path, format: str, seed: int) -> None:
    """Lengths, blocks and arrivals always; of the rest, what `Format.keeps` lists."""
    path = tmp_path / "it.jsonl"
    keeps = FORMATS[format].keeps
    made = [
        replace(it, wait_for=it.wait_for[:1] if format == "bailian" else it.wait_for)
        for it in random_trace(seed)
    ]
    path.write_bytes(b"".join(written_lines(made, format)))
    size = None if format == "kvsim" else 4
    for back, wanted in zip(read(path, block_tokens=size), renumbered(made), strict=True):
        assert (back.arrival_ms, back.prompt_length, back.output_length) == (
            pytest.approx(wanted.arrival_ms),
            wanted.prompt_length,
            wanted.output_length,
        )
        assert back.block_ids == wanted.block_ids
        assert back.wait_for == (wanted.wait_for if "wait_for" in keeps else ())
        if "delay_ms" in keeps and wanted.delay_ms is not None:
            assert back.delay_ms == wanted.delay_ms
        if "kind" in keeps:
            assert back.kind == (wanted.kind or "text")


# -- where it lies -------------------------------------------------------------------------------------------


def test_any_format_comes_through_a_pipe_and_packed(tmp_path: Path) -> None:
    """The first line is looked at without rewinding."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    packed = gzip.compress((SMALL / "bailian.jsonl").read_bytes())
    writer = threading.Thread(target=pipe.write_bytes, args=(packed,))
    writer.start()
    try:
        assert read(pipe) == read(SMALL / "bailian.jsonl")
    finally:
        writer.join()


def test_lines_tell_how_far_they_are(tmp_path: Path) -> None:
    """For a bar; what cannot tell says nothing."""
    path = tmp_path / "it.jsonl"
    path.write_bytes(b"{}\n" * 10)
    lines = TraceLines(path)
    assert (lines.size, lines.position, lines.is_read_once) == (30, 0, False)
    assert lines.peek() == (1, b"{}\n")
    assert [number for number, _ in lines] == list(range(1, 11))
    assert lines.peek() is None
    lines.close()
    assert (TraceLines("-").size, TraceLines("-").is_read_once) == (None, True)


# -- corrections, and what is no trace -----------------------------------------------------------------------

LINE = {"timestamp": 5, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}


@pytest.mark.parametrize("more", [{}, {"session_id": "a", "request_id": "r"}])
def test_a_lenient_reader_takes_what_both_have(
    tmp_path: Path, more: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As dynamo's: a length above its blocks is cut, one that is missing is theirs; counted, and said."""
    monkeypatch.setattr(logging.getLogger("pymllm.traces"), "propagate", True)
    above, below = {**LINE, "input_length": 1025}, {**LINE, "input_length": 100}
    missing = {name: value for name, value in LINE.items() if name != "input_length"}
    lines = [
        {**line, **{name: f"{value}{n}" for name, value in more.items()}}
        for n, line in enumerate((LINE, above, below, missing, missing))
    ]
    path = tmp_path / "it.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    opened = open_trace(path, options=ReadOptions(lenient=True))
    assert [it.prompt_length for it in opened] == [1000, 1024, 100, 1024, 1024]
    assert sorted(opened.corrected.values()) == [1, 1, 2]
    assert f"{path}: input_length missing, taken as that of its blocks: 2 of 5 requests" in caplog.messages
    assert "missing; give --lenient" in refusal(tmp_path, [missing | more])
    assert "--lenient to cut" in refusal(tmp_path, [below | more])


def test_a_lenient_reader_takes_times_that_go_back(tmp_path: Path) -> None:
    """They are the time above; strictly read, the way out is named."""
    lines = [{**LINE, "timestamp": time} for time in (5, 3, 4, 6)]
    assert "or give --lenient" in refusal(tmp_path, lines)
    assert [it.arrival_ms for it in read(tmp_path / "it.jsonl", lenient=True)] == [5, 5, 5, 6]


@pytest.mark.parametrize(("length", "ids"), [(33, [1, 2, 3]), (20, [1, 2]), (48, [4, 5, 6])])
def test_blocks_of_another_size_are_told(tmp_path: Path, length: int, ids: list[int]) -> None:
    """X1: what the ids would fit is proposed, where one size does."""
    said = refusal(tmp_path, [{**LINE, "input_length": length, "hash_ids": ids}])
    assert said.endswith("give --block-tokens 16, which would fit, or --lenient to cut the longer of both")
    assert "give the tokens of a block" in refusal(tmp_path, [{**LINE, "input_length": 9000}])


@pytest.mark.parametrize("magic", [b"PAR1\x15\x04", b"ARROW1\x00\x00"])
def test_binary_tables_say_how_to_convert_them(tmp_path: Path, magic: bytes) -> None:
    """X1: parquet is what data sets come in."""
    assert "to_json(NEW, orient='records', lines=True)" in refusal(tmp_path, magic + b"\x00" * 50)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "Azure's traces of LLM inference"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "BurstGPT"),
        ('\ufeff"Timestamp","Session ID","Model","Request tokens","Response tokens"', "BurstGPT"),
    ],
)
def test_tables_without_prefixes_are_named(tmp_path: Path, head: str, name: str) -> None:
    """X1: converting them would not help."""
    said = refusal(tmp_path, f"{head}\n0,1,2\n".encode())
    assert f"this is CSV as of {name}: times and lengths, and no ids of blocks" in said
