"""Turns of sessions: whole prompts, or what is new in each; never guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymllm.errors import TraceError
from pymllm.traces.numbering import BlockNumbers, Pieces
from pymllm.traces.statistics import TraceStatistics
from tests.unit.traces.trace_words import SMALL, read

DELTAS = Path(__file__).with_name("delta_traces")


def counted(path: Path, **options: Any) -> tuple[int, int]:
    """The prompt tokens of a trace, and those that are shared."""
    found = TraceStatistics()
    for request in read(path, **options):
        found.add(request)
    return found.prompt_tokens, found.shared_tokens


def written(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "it.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["mooncake-delta.jsonl", "aiperf.jsonl"])
def test_turns_that_share_nothing_are_not_guessed(name: str) -> None:
    """Read as whole prompts they would be 2,048 tokens of which none is shared, in silence."""
    with pytest.raises(
        TraceError, match=r":2: this turn of session_id 'a' shares no block .* give --deltas;"
    ):
        read(DELTAS / name)
    assert counted(DELTAS / name, turns="cumulative") == (2048, 0)


@pytest.mark.parametrize("name", ["mooncake-delta.jsonl", "aiperf.jsonl"])
def test_deltas_are_put_behind_earlier_turns(name: str) -> None:
    """Three turns of blocks [1, 2], [3], [4]: 1,024 + 1,536 + 2,048 tokens, 1,024 + 1,536 of them shared."""
    assert counted(DELTAS / name, turns="deltas") == (4608, 2560)
    first, second, third = read(DELTAS / name, turns="deltas")
    assert (first.block_ids, second.block_ids, third.block_ids) == ((0, 1), (0, 1, 2), (0, 1, 2, 3))
    assert (second.wait_for, third.wait_for) == ((0,), (1,))


def test_whole_prompts_are_not_asked_about() -> None:
    """Their later turns begin as the first did; lines with names say by them what they go on from."""
    for name in ("dynamo.jsonl", "dynamo-sessions.jsonl"):
        assert read(SMALL / name) == read(SMALL / name, turns="cumulative")


def test_deltas_of_any_length_are_put_together_token_by_token(tmp_path: Path) -> None:
    """600 tokens, then 500 and 10 more, in blocks of 512; another session that begins alike shares 600."""
    turn = {"session_id": "a", "timestamp": 0, "output_length": 9}
    path = written(
        tmp_path,
        {**turn, "input_length": 600, "hash_ids": [7, 8]},
        {**turn, "input_length": 500, "hash_ids": [9]},
        {**turn, "input_length": 10, "hash_ids": [5]},
        {**turn, "session_id": "b", "input_length": 600, "hash_ids": [7, 8]},
        {**turn, "session_id": "b", "input_length": 30, "hash_ids": [4]},
        {"timestamp": 0, "output_length": 1, "input_length": 512, "hash_ids": [7]},
    )
    requests = read(path, turns="deltas")
    assert [it.prompt_length for it in requests] == [600, 1100, 1110, 600, 630, 512]
    # The 88 tokens behind the first block go on in session a as block 1; b's go on otherwise, in a new block.
    assert [it.block_ids for it in requests] == [(0, 1), (0, 1, 2), (0, 1, 2), (0, 1), (0, 3), (0,)]
    assert counted(path, turns="deltas")[1] == 600 + 1100 + 600 + 512 + 512


def test_a_delta_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """X1: as every line; a session's prompts have the bound of a prompt."""
    turn = {"session_id": "a", "timestamp": 0, "output_length": 9}
    path = written(tmp_path, {**turn, "input_length": 600, "hash_ids": [7]})
    with pytest.raises(TraceError, match="input_length 600 does not fit 1 hash_ids of 512 tokens"):
        read(path, turns="deltas")
    half = {**turn, "input_length": 1 << 30, "hash_ids": [1, 2]}
    path = written(tmp_path, half, half)
    with pytest.raises(TraceError, match="input_length of all turns so far is 2147483648, must be in 1"):
        read(path, turns="deltas", block_tokens=1 << 29)


def test_sessions_in_mooncake_are_sent_to_dynamo(tmp_path: Path) -> None:
    """X1: as a Mooncake trace, a session's turns would be requests of their own, in silence."""
    line = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}
    path = written(tmp_path, line, {**line, "session_id": "a"})
    with pytest.raises(TraceError, match=r":2: session_id is 'a'; mooncake has no sessions, give --format"):
        read(path)
    assert [it.session for it in read(path, "dynamo")] == [None, 0]


def test_pieces_keep_blocks_that_are_alike() -> None:
    """Equal parts at equal places are equal blocks; a block that was not full goes on once."""
    pieces = Pieces(BlockNumbers(), 4)
    assert pieces.blocks([("a", 6)]) == (0, 1)
    assert pieces.blocks([("a", 6), ("b", 1)]) == (0, 1)
    assert pieces.blocks([("a", 6), ("c", 1)]) == (0, 2)
    assert pieces.blocks([("a", 6), ("b", 1), ("c", 3)]) == (0, 1, 3)
    assert pieces.blocks([("b", 1), ("a", 6)]) == (4, 5)
    assert pieces.blocks([("a", 4), ("a", 4)]) == (0, 0)
