"""The record of dynamo's frontend: order, sessions, and the tokens that the server had cached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.errors import TraceError
from pymllm.traces.registry import open_trace, written_lines
from pymllm.workloads.recorded_hits import RecordedHits
from pymllm.workloads.request import Request
from tests.unit.cli.typed import typed
from tests.unit.traces.trace_words import SMALL, read

RECORD = SMALL / "request-trace.jsonl"


def record(name: str = "a", **changes: Any) -> dict[str, Any]:
    replay = {"trace_block_size": 4, "input_length": 6, "input_sequence_hashes": [1, 2]} | changes.pop(
        "replay", {}
    )
    top = {key: changes.pop(key) for key in ("event_time_unix_ms", "agent_context") if key in changes}
    request = {"request_id": name, "request_received_ms": 10, "output_tokens": 1, "replay": replay} | changes
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", **top, "request": request}


def read_records(tmp_path: Path, *records: dict[str, Any], **options: Any) -> list[Request]:
    path = tmp_path / "it.jsonl"
    path.write_text("".join(json.dumps(it) + "\n" for it in records), encoding="utf-8")
    return read(path, **options)


def test_requests_come_by_their_start_and_know_what_had_ended() -> None:
    """A session goes on from what had ended, the first of another from its parent; a parent waits for it."""
    plan, again, look, join, other, stranger = read(RECORD)
    assert plan == Request(0, 0.0, 128, 4, (0, 1), 64, session=0, cached_tokens=0)
    assert again == Request(
        1, 150.0, 128, 3, (0, 1), 64, session=0, wait_for=(0,), delay_ms=50.5, cached_tokens=64
    )
    # The other request of the parent was still under way.
    assert (look.wait_for, look.delay_ms, look.session, look.output_length) == ((0,), 100.5, 1, 1)
    assert (join.wait_for, join.delay_ms, join.block_ids) == ((1, 2), 500.0, (0, 1, 3, 4))
    assert (other.wait_for, other.session, other.cached_tokens) == ((), None, 128)
    assert stranger.block_ids == (6,)


def test_recorded_hits_stand_beside_those_of_a_replay() -> None:
    """By hand: equal 0/0, 0/0 and 128/128; the last block again 64/128; fewer 64/128; more 64/0."""
    wanted = {
        "requests": 6,
        "recorded_tokens": 0 + 64 + 0 + 64 + 128 + 64,
        "replayed_tokens": 0 + 128 + 0 + 128 + 128 + 0,
        "equal": 3,
        "last_block": 1,
        "fewer": 1,
        "more": 1,
    }
    inspected = json.loads(typed("trace", "inspect", RECORD, "--json").stdout)
    Draft202012Validator(make_schema("trace-inspect")).validate(inspected)
    assert inspected["facts"]["recorded"] == wanted
    assert json.loads(typed("replay-serial", RECORD, "--json").stdout)["runs"][0]["recorded"] == wanted
    shown = typed("replay-serial", RECORD).stdout
    for line in (
        "tokens that the server found cached",
        "both are equal",
        "the last block was computed again",
    ):
        assert line in shown
    assert (
        "recorded"
        not in json.loads(typed("replay-serial", SMALL / "mooncake.jsonl", "--json").stdout)["runs"][0]
    )
    # An engine holds the last token of a prompt back, as the server did: there the block is equal.
    run = json.loads(typed("replay", RECORD, "--max-running", 1, "--json").stdout)["runs"][0]["recorded"]
    assert (run["equal"], run["last_block"]) == (4, 0)
    assert "fewer than here" in typed("trace", "inspect", RECORD).stdout


@pytest.mark.parametrize(
    ("recorded", "hit", "field"),
    [
        (0, 3, "equal"),
        (4, 7, "equal"),
        (4, 8, "last_block"),
        (0, 8, "fewer"),
        (0, 4, "fewer"),
        (8, 4, "more"),
        (None, 4, None),
    ],
)
def test_hits_are_compared_in_whole_blocks(recorded: int | None, hit: int, field: str | None) -> None:
    """A server counts whole blocks of 4 tokens; of a prompt that it has whole, it computes the last again."""
    found = RecordedHits()
    found.add(Request(0, 0.0, 8, 1, (0, 1), 4, cached_tokens=recorded), hit)
    counts = {name: getattr(found, name) for name in ("equal", "last_block", "fewer", "more")}
    assert counts == {name: int(name == field) for name in counts}
    assert found.requests == (field is not None)


def test_our_own_form_keeps_them(tmp_path: Path) -> None:
    """Converted, and counted where a format has no field."""
    path = tmp_path / "it.jsonl"
    path.write_bytes(b"".join(written_lines(open_trace(RECORD), "pymllm")))
    assert read(path) == read(RECORD)
    said = typed("trace", "convert", RECORD, "--to", "dynamo", "-o", tmp_path / "d.jsonl").stderr
    assert "dynamo has no field for tokens that the server found cached: left out of 6 requests" in said


def test_models_share_nothing(tmp_path: Path) -> None:
    """Equal tokens are other contents for another model; one model is no namespace."""
    first, second = read_records(tmp_path, record("a", model="m"), record("b", model="n"))
    assert (first.namespace, second.namespace) == ("m", "n")
    assert read_records(tmp_path, record("a", model="m"), record("b", model="m"))[1].namespace is None


def test_ends_are_told_by_the_record_where_no_time_is(tmp_path: Path) -> None:
    """Without a duration a request ended when its record came; without either, at once."""
    agent = {"agent_context": {"session_id": "s"}}
    later = record("b", request_received_ms=50, **agent)
    for time, waits, delay in ((40, (0,), 10.0), (60, (), None), (None, (0,), 40.0)):
        first = record("a", **agent, **({} if time is None else {"event_time_unix_ms": time}))
        assert [(it.wait_for, it.delay_ms) for it in read_records(tmp_path, first, later)][1] == (
            waits,
            delay,
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replay": {"trace_block_size": 0}}, "trace_block_size is 0, must be in 1.."),
        (
            {"replay": {"trace_block_size": 8}},
            "trace_block_size is 8, must be the 4 of the requests before it",
        ),
        ({"replay": {"input_length": 9}}, "input_length 9 does not fit 2 hash_ids of 4 tokens"),
        ({"replay": {"input_length": 0}}, "input_length is 0, must be in 1.."),
        ({"output_tokens": None}, "output_tokens is missing"),
        ({"request_received_ms": None}, "request_received_ms is missing"),
        ({"request_received_ms": -1}, "request_received_ms is -1.0, must be in 0.."),
        ({"total_time_ms": -1}, "total_time_ms is -1.0, must be in 0.."),
        ({"cached_tokens": 7}, "cached_tokens is 7, must be in 0..6, the prompt"),
        ({"request_id": "a"}, "request_id 'a' is that of line 1, too"),
        ({"request_id": ""}, "request_id has 0 characters"),
        ({"agent_context": {"session_id": ""}}, "session_id has 0 characters"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """X1: by its line, though it is not the first to come."""
    changes = {"request_received_ms": 20, **changes}
    with pytest.raises(TraceError) as caught:
        read_records(tmp_path, record("a"), record("b", **changes))
    assert f":2: {words}" in str(caught.value)


def test_a_record_without_hashes_says_what_is_missing(tmp_path: Path) -> None:
    """X1: nothing could be replayed of it; without any request there is no trace."""
    without = record()
    del without["request"]["replay"]
    for it, words in (
        (without, "request.replay is missing"),
        ({**without, "request": None}, "request is missing"),
    ):
        with pytest.raises(TraceError, match=words):
            read_records(tmp_path, it)
    with pytest.raises(TraceError, match="holds no request"):
        read_records(tmp_path, {**without, "event_type": "tool_end"})
    with pytest.raises(TraceError, match="trace_block_size is 4, must be the 16 of --block-tokens"):
        read_records(tmp_path, record(), block_tokens=16)
