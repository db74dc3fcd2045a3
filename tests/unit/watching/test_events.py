"""Messages in the layouts of several servers."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.errors import UsageError
from pymllm.watching.events import Cleared, Event, Place, Removed, Stored, read_message

GPU = Place(0, "GPU")


def events(plain: Any) -> tuple[Event, ...]:
    return read_message(plain).events


def batch(*told: Any, **more: Any) -> dict[str, Any]:
    return {"topic": "kv", "seq": 3, "batch": [1.5, list(told), *more.values()]}


def test_maps_and_arrays_say_the_same() -> None:
    """The two forms of vLLM; sglang has the second."""
    told = {"block_hashes": [5, 6], "parent_block_hash": 4, "token_ids": [1, 2], "block_size": 1}
    expected = Stored(GPU, (5, 6), 4, (1, 2), 1, (" ", " "))
    assert events(batch({"type": "BlockStored", **told})) == (expected,)
    assert events(batch(["BlockStored", *told.values(), None, "GPU"])) == (expected,)
    assert events(batch(["BlockRemoved", [5], "CPU"], ["AllBlocksCleared"])) == (
        Removed(Place(0, "CPU"), (5,)),
        Cleared(),
    )
    message = read_message(batch(rank=2))
    assert (message.producer, message.number, message.events) == ("rank 2", 3, ())


def test_groups_windows_salts_and_bytes_are_read() -> None:
    """Bytes of a hash are written in hexadecimal; blocks on their way to another memory tell no tokens."""
    (it,) = events(
        batch(
            {
                "type": "BlockStored",
                "block_hashes": [b"\xab\xcd"],
                "token_ids": [],
                "block_size": 0,
                "medium": "CPU",
                "group_idx": 1,
                "extra_keys": [["salt"]],
                "lora_name": "a",
                "kv_cache_spec_kind": "sliding_window",
            }
        )
    )
    assert it == Stored(Place(1, "CPU"), ("abcd",), None, None, 0, ("a ['salt']",), True)


def test_tensorrt_llm_s_events_are_read() -> None:
    """A block that moves to another memory leaves the first; a removal does not say where."""
    block = {
        "block_hash": 7,
        "tokens": [{"token_id": 1}, {"token_id": 2, "token_extra_id": 3}],
        "cache_level": 0,
    }
    stored = {"event_id": 0, "data": {"type": "stored", "parent_hash": None, "blocks": [block]}}
    assert events(stored) == (Stored(Place(0, "level 0"), (7,), None, (1, 2), 2, (" [0, 3]",)),)
    moved = {"type": "updated", "block_hash": 7, "cache_level": {"old_value": 0, "new_value": 1}}
    assert events({"event_id": 1, "data": moved}) == (
        Removed(Place(0, "level 0"), (7,)),
        Stored(Place(0, "level 1"), (7,), None, None, 0, ("",)),
    )
    assert events({"event_id": 2, "data": {"type": "removed", "block_hashes": [7]}}) == (
        Removed(Place(0, ""), (7,)),
    )
    assert events({"event_id": 3, "data": {"type": "created"}}) == ()
    assert events({"event_id": 4, "data": {"type": "updated", "block_hash": 7, "priority": 1}}) == ()


def test_dynamo_s_events_are_read() -> None:
    """They tell a hash of the tokens, and which worker it is."""
    blocks = [{"block_hash": 7, "tokens_hash": 70}]
    plain = {
        "worker_id": 9,
        "event": {"event_id": 1, "data": {"stored": {"parent_hash": 3, "blocks": blocks}}},
    }
    message = read_message(plain)
    assert (message.producer, message.number) == ("worker 9, rank 0", 1)
    assert message.events == (Stored(GPU, (7,), 3, None, 0, ("70",)),)
    for data, expected in (
        ({"removed": {"block_hashes": [7]}}, Removed(GPU, (7,))),
        ("cleared", Cleared()),
        ({"cleared": None}, Cleared()),
    ):
        assert events({"worker_id": 9, "event": {"event_id": 2, "data": data}}) == (expected,)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ([1], "unknown layout"),
        ({"hello": 1}, "known ones have batch, seq; data, event_id; event, worker_id"),
        (batch({"type": "BlockMoved", "block_hashes": []}), "'BlockMoved'"),
        (batch({"type": "BlockStored"}), "no field 'block_hashes'"),
        (batch({"type": "BlockRemoved", "block_hashes": [1.5]}), "a hash is a number, a text or bytes"),
        (batch({"type": "BlockStored", "block_hashes": [1], "token_ids": ["x"], "block_size": 1}), "a token"),
        ({"seq": "3", "batch": [0, []]}, "seq must be a whole number"),
        ({"seq": 3, "batch": 5}, "cannot be read"),
        ({"event_id": 1, "data": {"type": "vanished"}}, "'vanished'"),
        ({"worker_id": 1, "event": {"event_id": 1, "data": {"lost": 1}}}, "stored, removed, cleared"),
    ],
)
def test_what_is_none_of_them_is_refused_with_what_was_seen(plain: Any, why: str) -> None:
    """In one line that names the value."""
    with pytest.raises(UsageError) as refused:
        read_message(plain)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
