"""Recordings as programs: names, groups, media, namespaces, numbers, and what an index makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pymllm.history import operations as ops
from pymllm.history.files import read_history
from pymllm.history.outcomes import Leading
from pymllm.search.program import RerunResult, rerun_history
from pymllm.watching.events import read_message
from pymllm.watching.programs import ProgramWriter
from tests.unit.watching.producer import Producer


def message(number: int, *events: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    """Make a message of events."""
    return {"seq": number, "batch": [0.0, list(events), rank]}


def stored(
    *hashes: int, parent: int | None = None, tokens: Iterable[int] = (), **more: Any
) -> dict[str, Any]:
    """Store blocks of one token, which is the last two digits of the hash."""
    told = [*tokens] or [hash % 100 for hash in hashes]
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": told}
    return {**event, "block_size": 1, **more}


def removed(*hashes: int, **more: Any) -> dict[str, Any]:
    """Remove blocks."""
    return {"type": "BlockRemoved", "block_hashes": hashes, **more}


def operations(*messages: dict[str, Any], plain: bool = False) -> list[ops.Operation]:
    """Convert messages."""
    writer = ProgramWriter(plain)
    return [operation for it in messages for operation in writer.operations(read_message(it))]


def rerun(messages: Iterable[dict[str, Any]], adapter: str, plain: bool) -> RerunResult:
    """Convert messages and play them on an index."""
    writer = ProgramWriter(plain)
    lines = [writer.header("x"), *(line for it in messages for line in writer.lines(read_message(it)))]
    history = read_history((f"{line}\n" for line in lines), "x")
    config = history.header.config if adapter == history.header.adapter else {"own_hashes": False}
    result = rerun_history(history, adapter, dict(config))
    assert (result.violation, result.misfit) == (None, None)
    assert writer.steps == len(history)
    return result


def answers(result: RerunResult) -> list[int]:
    """Return what each search found of worker 0."""
    found = (step.outcome.result for step in result.history.steps if step.outcome is not None)
    return [dict(it.workers).get(0, 0) for it in found if isinstance(it, Leading)]


@pytest.mark.parametrize(("adapter", "plain"), [("index-events", False), ("index-dict", True)])
@pytest.mark.parametrize(
    "fault", ["", "gap", "twice", "second copy", "one hash", "two hashes", "lost parent"]
)
def test_any_stream_is_a_program(adapter: str, plain: bool, fault: str) -> None:
    """One that breaks laws of producers, too: the index is judged by what it was told."""
    result = rerun(Producer(1, fault=fault).messages(60), adapter, plain)
    assert result.exercised["I1"] > (2 if fault == "lost parent" else 20)


def test_a_copy_that_is_left_is_found_by_who_counts() -> None:
    """I10: of a prompt whose last block is stored twice, and removed once."""
    stream = [
        message(0, stored(101, 102, 103)),
        message(1, stored(103, parent=102)),
        message(2, removed(103)),
    ]
    assert answers(rerun(stream, "index-events", False)) == [3, 3, 3]
    assert answers(rerun(stream, "index-dict", True)) == [3, 3, 2]


def test_hashes_and_tokens_get_numbers_and_searches_go_to_the_end() -> None:
    """Of each event the sequence that it was about, as far as it is known."""
    assert operations(message(0, stored(101, 102)), message(1, removed(101, 999)), plain=True) == [
        ops.StoreBlocks(0, ((1, 1), (2, 2))),
        ops.FindBlocks((1, 2)),
        ops.RemoveBlocks(0, (1, 3)),
        ops.FindBlocks((1, 2)),
    ]


def test_a_block_stands_where_it_was_told_with_its_tokens() -> None:
    """Events whose tokens do not fit are told by the hashes, wherever another group has placed them."""
    window = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    stream = message(
        0,
        stored(103, 777, parent=101, tokens=(1, 2, 3, 4), **window),
        stored(101, 102, 103, group_idx=1),
        removed(103, group_idx=0),
    )
    assert operations(stream) == [
        ops.StoreBlocks(0, ((3, 3),), 2, 0, "GPU", None, 0),
        ops.FindBlocks((1, 2, 3)),
        ops.StoreBlocks(0, ((1, 1), (2, 2), (3, 3)), None, 1, "GPU", None, 1),
        ops.FindBlocks((1, 2, 3), group=1),
        ops.RemoveBlocks(0, (3,), 0, "GPU", 2),
        ops.FindBlocks((1, 2, 3)),
    ]
    assert [type(it) for it in operations(stream, plain=True)] == [ops.StoreBlocks, ops.FindBlocks]
    writer = ProgramWriter(plain=True)
    list(writer.operations(read_message(stream)))
    assert writer.left_out == 2


def test_namespaces_are_those_of_first_blocks() -> None:
    """A salt, or an adapter; in a plain program it is a part of the tokens."""
    stream = (
        message(0, stored(101, 102), stored(201, 202, extra_keys=[["salt"], None])),
        message(1, stored(203, parent=202)),
    )
    told = [it for it in operations(*stream) if isinstance(it, ops.StoreBlocks)]
    assert [it.extra_key for it in told] == [None, "['salt']", "['salt']"]
    assert told[0].blocks[0][1] == told[1].blocks[0][1]
    plain = [it for it in operations(*stream, plain=True) if isinstance(it, ops.StoreBlocks)]
    assert [it.extra_key for it in plain] == [None] * 3
    assert plain[0].blocks[0][1] != plain[1].blocks[0][1]


def test_media_are_told_and_found_where_a_removal_names_none() -> None:
    """TensorRT-LLM moves a block from one level to another, and removes it wherever it is."""
    block = {"block_hash": 5, "tokens": [{"token_id": 1}]}
    stream = [
        {"event_id": 0, "data": {"type": "stored", "parent_hash": None, "blocks": [block]}},
        {
            "event_id": 1,
            "data": {"type": "updated", "block_hash": 5, "cache_level": {"old_value": 0, "new_value": 1}},
        },
        {"event_id": 2, "data": {"type": "removed", "block_hashes": [5]}},
        {"event_id": 3, "data": {"type": "removed", "block_hashes": [5]}},
    ]
    told = [it for it in operations(*stream) if not isinstance(it, ops.FindBlocks)]
    assert [it.medium for it in told] == ["level 0", "level 0", "level 1", "level 1", ""]
    plain = [it for it in operations(*stream, plain=True) if not isinstance(it, ops.FindBlocks)]
    assert [it.medium for it in plain] == [""] * 5
    assert answers(rerun(stream, "index-events", False))[-2:] == [0, 0]


def test_events_are_numbered_as_messages_are() -> None:
    """Repeated ones have the same numbers, 0 begins anew, and behind a gap a worker is a new one."""
    one, two = message(4, stored(101), stored(102, parent=101)), message(5, removed(102))
    cleared = {"type": "AllBlocksCleared"}
    stream = (one, two, one, message(6, cleared), message(8, stored(103)), message(0, stored(101)))
    told = [it for it in operations(*stream) if not isinstance(it, ops.FindBlocks)]
    assert [getattr(it, "number", "none") for it in told] == [0, 1, 2, 0, 1, 3, "none", 0, 0]
    plain = [type(it) for it in operations(*stream, plain=True) if not isinstance(it, ops.FindBlocks)]
    store, remove, clear, drop = ops.StoreBlocks, ops.RemoveBlocks, ops.ClearWorker, ops.DropWorker
    assert plain == [store, store, remove, clear, drop, store, drop, store]
    unknown = (message(9, stored(101)), message(3, stored(102)))
    assert [it.worker for it in operations(*unknown) if isinstance(it, store)] == [0]


def test_producers_are_workers() -> None:
    """Each in the order in which it is first heard."""
    stream = (message(0, stored(101), rank=3), message(0, stored(101), rank=1), message(1, rank=3))
    assert [it.worker for it in operations(*stream) if isinstance(it, ops.StoreBlocks)] == [0, 1]


def test_dynamos_events_are_told_by_their_hashes_of_tokens() -> None:
    """They have no tokens of their own."""
    blocks = [{"block_hash": 11, "tokens_hash": 7}, {"block_hash": 12, "tokens_hash": 8}]
    event = {"event_id": 0, "data": {"stored": {"parent_hash": None, "blocks": blocks}}}
    told = operations({"worker_id": 1, "event": event})
    assert told == [ops.StoreBlocks(0, ((1, 1), (2, 2)), number=0, medium="GPU"), ops.FindBlocks((1, 2))]


def test_what_has_no_place_is_left_out() -> None:
    """A block below itself, one that only its way to another memory tells, and searches for neither."""
    writer = ProgramWriter()
    stream = (
        message(0, stored(106, parent=105)),
        message(1, stored(105, parent=106)),
        message(2, stored(107, parent=107)),
        message(3, stored(108, tokens=(1, 2))),
    )
    made = [it for each in stream for it in writer.operations(read_message(each))]
    assert made == [ops.StoreBlocks(0, ((2, 1),), 1, 0, "GPU", None, 0)]
    assert writer.left_out == 6  # each block, and each event that came to nothing
