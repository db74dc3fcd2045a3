"""The events of a cache, and the message layouts in which servers send them.

A message has a number and events. A line of a recording is one message in one of these layouts:

- vLLM and sglang: ``{"topic": ..., "seq": N, "batch": [time, [event, ...], rank]}``. An event is a map with a
  ``type``, or an array with that first (sglang, vLLM before 0.26).
- TensorRT-LLM: ``{"event_id": N, "data": {"type": "stored", ...}}``.
- dynamo: ``{"worker_id": W, "event": {"event_id": N, "data": {"stored": ...}}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pymllm.errors import UsageError
from pymllm.text_file import cut

Hash = int | str
"""The hash of a block; bytes are written in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Place:
    """The pool of a block: a group of layers in one memory; ``""`` if a removal names none."""

    group: int
    medium: str

    def __str__(self) -> str:
        return ", ".join(filter(None, [f"group {self.group}", self.medium]))


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that were stored, each the child of the one before.

    ``tokens`` are those of all blocks, ``None`` where the layout tells none. ``keys`` tell blocks of equal
    tokens apart: a salt, an adapter, a hash of tokens. ``has_window`` tells whether only the last tokens of a
    prompt are kept in this group, so that a parent may be gone.
    """

    place: Place
    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[int, ...] | None
    block_size: int
    keys: tuple[str, ...]
    has_window: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that were removed."""

    place: Place
    hashes: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """The removal of all blocks of a producer."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its number, which counts up in each producer's stream, and its events."""

    producer: str
    number: int
    events: tuple[Event, ...]


def read_message(plain: Any) -> Message:
    """Read a message in any known layout; raise `UsageError` for another, with the content seen."""
    if isinstance(plain, dict):
        for has, read in _LAYOUTS:
            if has <= plain.keys():
                try:
                    return read(plain)
                except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
                    if isinstance(error, UsageError):
                        raise
                    why = f"no field {error}" if isinstance(error, KeyError) else str(error)
                    raise UsageError(
                        f"a message that cannot be read ({why}): {cut(repr(plain), 200)}"
                    ) from None
    layouts = "; ".join(", ".join(sorted(has)) for has, _ in _LAYOUTS)
    raise UsageError(f"a message of an unknown layout: {cut(repr(plain), 200)}; known ones have {layouts}")


def _whole(value: Any, name: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} must be a whole number, got {cut(repr(value))}")
    return value


def _hash(value: Any) -> Hash:
    if type(value) is bytes:
        return value.hex()
    if type(value) not in (int, str):
        raise ValueError(f"a hash is a number, a text or bytes, got {cut(repr(value))}")
    return value  # type: ignore[no-any-return]  # one of the two, as was just asked


def _hashes(values: Any) -> tuple[Hash, ...]:
    return tuple(_hash(value) for value in values)


def _optional(value: Any) -> Hash | None:
    return None if value is None else _hash(value)


# -- vLLM and sglang -----------------------------------------------------------------------------------------

_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""The fields of each event in order, for events that are sent as arrays."""


def _read_batch(plain: Mapping[str, Any]) -> Message:
    _, events, *rest = plain["batch"]
    rank = rest[0] if rest and rest[0] is not None else 0
    return Message(f"rank {rank}", _whole(plain["seq"], "seq"), tuple(_of_batch(it) for it in events))


def _of_batch(event: Any) -> Event:
    if isinstance(event, list):
        tag, *values = event
        event = {"type": tag, **dict(zip(_FIELDS.get(tag, ()), values, strict=False))}
    kind = event["type"]
    if kind == "AllBlocksCleared":
        return Cleared()
    place = Place(_whole(event.get("group_idx") or 0, "group_idx"), str(event.get("medium") or "GPU"))
    hashes = _hashes(event["block_hashes"])
    if kind == "BlockRemoved":
        return Removed(place, hashes)
    if kind != "BlockStored":
        raise ValueError(f"an event {cut(repr(kind))}; known ones are {', '.join(_FIELDS)}")
    size = _whole(event["block_size"], "block_size")
    tokens = tuple(_whole(token, "a token") for token in event["token_ids"])
    adapter = event.get("lora_name") or event.get("lora_id") or ""
    extra = event.get("extra_keys") or [None] * len(hashes)
    spec = event.get("kv_cache_spec_kind") or "full_attention"
    return Stored(
        place,
        hashes,
        _optional(event.get("parent_block_hash")),
        tokens if tokens or size else None,  # blocks on their way to another memory come without
        size,
        tuple(f"{adapter} {keys or ''}" for keys in extra),
        spec not in ("full_attention", "mla_attention"),
    )


# -- TensorRT-LLM --------------------------------------------------------------------------------------------


def _read_trt(plain: Mapping[str, Any]) -> Message:
    data, group = plain["data"], _whole(plain.get("window_size") or 0, "window_size")
    number = _whole(plain["event_id"], "event_id")
    return Message(f"rank {plain.get('attention_dp_rank') or 0}", number, tuple(_of_trt(data, group)))


def _of_trt(data: Mapping[str, Any], group: int) -> Iterator[Event]:
    kind = data["type"]
    if kind == "stored":
        blocks = data["blocks"]
        # Blocks of one event may lie in several memories; each is the child of the one before all the same.
        parent = _optional(data.get("parent_hash"))
        for block in blocks:
            own = _hash(block["block_hash"])
            told = tuple(_whole(it["token_id"], "token_id") for it in block["tokens"])
            extra = [it.get("token_extra_id") or 0 for it in block["tokens"]]
            place = Place(group, f"level {block.get('cache_level') or 0}")
            yield Stored(place, (own,), parent, told, len(told), (f"{block.get('lora_id') or ''} {extra}",))
            parent = own
    elif kind == "removed":
        yield Removed(Place(group, ""), _hashes(data["block_hashes"]))
    elif kind == "updated":
        level = data.get("cache_level")
        if level is not None:
            moved = (_hash(data["block_hash"]),)
            yield Removed(Place(group, f"level {level['old_value']}"), moved)
            yield Stored(Place(group, f"level {level['new_value']}"), moved, None, None, 0, ("",))
    elif kind != "created":
        raise ValueError(f"an event {cut(repr(kind))}; known ones are created, stored, removed, updated")


# -- dynamo --------------------------------------------------------------------------------------------------


def _read_dynamo(plain: Mapping[str, Any]) -> Message:
    event = plain["event"]
    producer = f"worker {plain['worker_id']}, rank {event.get('dp_rank') or 0}"
    return Message(producer, _whole(event["event_id"], "event_id"), tuple(_of_dynamo(event["data"])))


def _of_dynamo(data: Any) -> Iterator[Event]:
    place = Place(0, "GPU")
    if data == "cleared" or (isinstance(data, dict) and "cleared" in data):
        yield Cleared()
    elif "removed" in data:
        yield Removed(place, _hashes(data["removed"]["block_hashes"]))
    elif "stored" in data:
        blocks = data["stored"]["blocks"]
        hashes = _hashes(block["block_hash"] for block in blocks)
        keys = tuple(str(block["tokens_hash"]) for block in blocks)
        yield Stored(place, hashes, _optional(data["stored"].get("parent_hash")), None, 0, keys)
    else:
        raise ValueError(f"an event {cut(repr(data))}; known ones are stored, removed, cleared")


_LAYOUTS: tuple[tuple[frozenset[str], Callable[[Mapping[str, Any]], Message]], ...] = (
    (frozenset({"seq", "batch"}), _read_batch),
    (frozenset({"event_id", "data"}), _read_trt),
    (frozenset({"worker_id", "event"}), _read_dynamo),
)
"""The fields by which the messages of each layout are known, with the function that reads them."""
