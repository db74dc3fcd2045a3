"""dynamo's agentic traces with a header: dependencies on ends and dispatches, and earliest times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymllm.errors import TraceError
from pymllm.traces.records import ReadOptions
from pymllm.traces.registry import open_trace
from pymllm.workloads.request import Request
from tests.unit.traces.trace_words import SMALL, read

HEAD = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4}
ROW = {"request_id": "a", "input_length": 6, "output_length": 1, "hash_ids": [1, 2], "not_before_ms": 7}


def after(name: str, trigger: str = "completion", delay: float = 0.0) -> dict[str, Any]:
    return {"request_id": name, "trigger": trigger, "delay_ms": delay, "relation": "sequence"}


def written(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "it.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_dependencies_become_waits() -> None:
    """On an end as it stands; on a dispatch, what that waited for; in order of the earliest time of each."""
    plan, look, deeper, join, beside = read(SMALL / "agentic-mooncake.jsonl")
    assert plan == Request(0, 0.0, 64, 9, (0,), 64, session=0)
    # Sent 12 ms after the plan was, which was at 0: a time of its own, and no end to wait for.
    assert look == Request(1, 12.0, 100, 9, (0, 1), 64, session=1)
    assert join == Request(3, 42.0, 150, 5, (0, 2, 3), 64, session=0, wait_for=(0, 1), delay_ms=30.0)
    # Sent 5 ms after the join was, which is 35 ms after both ends.
    assert (beside.wait_for, beside.delay_ms, beside.session) == ((0, 1), 35.0, 2)
    # Not before 40 ms, and not before the end.
    assert (deeper.wait_for, deeper.delay_ms, deeper.arrival_ms) == ((1,), None, 40.0)


def test_what_requests_cannot_say_is_counted(tmp_path: Path) -> None:
    """One delay after the last end: of several the longest, and none beside a time."""
    rows = (
        ROW,
        {**ROW, "request_id": "b"},
        {**ROW, "request_id": "c", "dependencies": [after("a", delay=5), after("b", delay=9)]},
        {
            **ROW,
            "request_id": "d",
            "not_before_ms": 0,
            "dependencies": [after("a", delay=5), after("b", delay=5)],
        },
    )
    opened = open_trace(written(tmp_path, HEAD, *rows), options=ReadOptions())
    found = {len(it.wait_for): it.delay_ms for it in opened}
    assert found == {0: None, 2: 9.0}
    assert dict(opened.corrected) == {
        "dependencies with delays of their own, taken as the longest of them": 1,
        "not_before_ms beside a delay, left out": 1,
    }


def test_a_dispatch_without_a_time_of_its_own_adds_none(tmp_path: Path) -> None:
    """A request sent together with a waiting one waits for the same, until the same time."""
    rows = (
        {**ROW, "not_before_ms": 0},
        {**ROW, "request_id": "b", "not_before_ms": 20, "dependencies": [after("a")]},
        {**ROW, "request_id": "c", "not_before_ms": 0, "dependencies": [after("b", "dispatch")]},
    )
    _, second, third = read(written(tmp_path, HEAD, *rows))
    assert (third.wait_for, third.delay_ms, third.arrival_ms) == ((0,), None, 20.0)
    assert second.arrival_ms == 20.0


def test_models_share_nothing(tmp_path: Path) -> None:
    """Equal blocks are other contents for another model."""
    rows = ({**ROW, "model": "m"}, {**ROW, "request_id": "b", "model": "n"})
    assert [it.namespace for it in read(written(tmp_path, HEAD, *rows))] == ["m", "n"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (({**HEAD, "version": 1}, ROW), ":1: not the first line: Invalid enum value 1"),
        (({**HEAD, "hash_id_scope": "play"}, ROW), ":1: not the first line: Invalid enum value 'play'"),
        (({**HEAD, "block_size": 0}, ROW), ":1: block_size is 0, must be in 1.."),
        ((ROW,), ":1: not the first line: Object missing required field `version`"),
        (
            ({**ROW, "timestamp": 0, "dependencies": [after("b")]},),
            ":1: not the first line: Object missing required field `version`",
        ),
        ((HEAD, {**ROW, "request_id": ""}), ":2: request_id has 0 characters"),
        ((HEAD, {**ROW, "session_id": ""}), ":2: session_id has 0 characters"),
        ((HEAD, {**ROW, "not_before_ms": -1}), ":2: not_before_ms is -1.0, must be in 0.."),
        ((HEAD, {**ROW, "dependencies": [after("a", delay=-1)]}), ":2: delay_ms is -1.0, must be in 0.."),
        (
            (HEAD, {**ROW, "dependencies": [after("b")]}),
            ":2: it waits for 'b', which is the request_id of no line",
        ),
        (
            (HEAD, {**ROW, "dependencies": [after("a")]}),
            ":2: requests that wait for each other never begin: 'a'",
        ),
        (
            (HEAD, {**ROW, "dependencies": [after("a", "start")]}),
            ":2: not a request: Invalid enum value 'start'",
        ),
        ((HEAD, {**ROW, "input_length": 9}), ":2: input_length 9 does not fit 2 hash_ids of 4 tokens"),
        ((HEAD, {**ROW, "output_length": -1}), ":2: output_length is -1, must be in 0.."),
        ((HEAD, ROW, ROW), ":3: request_id 'a' is that of line 2, too"),
        ((HEAD,), "holds no request"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: tuple[dict[str, Any], ...], words: str) -> None:
    """X1: one sentence, with the line's number."""
    with pytest.raises(TraceError) as caught:
        read(written(tmp_path, *lines))
    assert words in str(caught.value)


def test_the_size_of_blocks_is_that_of_the_file(tmp_path: Path) -> None:
    """X1: two answers to one question are a mistake."""
    with pytest.raises(TraceError, match=":1: block_size is 4, must be the 5 of --block-tokens"):
        read(written(tmp_path, HEAD, ROW), block_tokens=5)
