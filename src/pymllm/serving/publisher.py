"""The publisher of an embedded server's cache events over ZeroMQ, in vLLM's message layout.

A message has three parts: a topic, a number of 8 bytes with the highest first, and MessagePack. The topic is
empty, as vLLM's is by default.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from pymllm.errors import UsageError
from pymllm.mem_cache.base_prefix_cache import Namespace
from pymllm.mem_cache.cache_events import BlockHash, BlocksRemoved, BlocksStored, CacheEvent, Part

KEPT_MESSAGES = 10_000
"""The number of last messages kept for replay, as in vLLM."""
_END = (-1).to_bytes(8, "big", signed=True)
_KINDS = {Part.KV: "full_attention", Part.WINDOW: "sliding_window", Part.STATE: "mamba"}


class EventPublisher:
    """A publisher of cache events, perhaps with an address for requests of missed messages.

    One thread publishes; requests for missed messages are answered on a thread of its own.

    Parameters
    ----------
    address : str
        Where it waits for listeners, such as ``"tcp://127.0.0.1:5557"``; a port of ``*`` is a free one.
    replay : str, optional
        Where it answers for the last `KEPT_MESSAGES` messages.
    window : int, optional
        Tokens of the sliding window, which events of window blocks tell.

    Attributes
    ----------
    address, replay : str
        The addresses with their ports.

    Raises
    ------
    UsageError
        If ZeroMQ refuses an address.
    """

    def __init__(self, address: str, replay: str | None = None, window: int | None = None) -> None:
        self._context = zmq.Context()
        self._window = window
        self._number = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_MESSAGES)
        self._is_closing = False
        # XPUB hears of subscriptions, so that a test or a probe can wait for its own.
        self._socket = self._bind(zmq.XPUB, address)
        self.address = _bound(self._socket)
        self.replay = None
        self._answers: threading.Thread | None = None
        if replay is not None:
            router = self._bind(zmq.ROUTER, replay)
            self.replay = _bound(router)
            self._answers = threading.Thread(target=self._answer, args=(router,), name="replay", daemon=True)
            self._answers.start()

    def _bind(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)  # a message that is dropped is a gap that no index recovers from
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UsageError(
                f"cannot publish at {address}: {zmq.strerror(error.errno or 0)}; give an address such as tcp://127.0.0.1:5557"
            ) from None
        return socket

    def await_listener(self, seconds: float) -> bool:
        """Wait until a listener subscribes; return whether one did in time."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Publish events as one message; without events, send no message."""
        if not events:
            return
        batch = msgspec.msgpack.encode([time.time(), [self._as_map(event) for event in events], 0])
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._kept.append((number, batch))
        self._socket.send_multipart((b"", number, batch))

    def close(self) -> None:
        """Close the sockets, dropping messages in transit."""
        self._is_closing = True
        if self._answers is not None:
            self._answers.join()
        self._context.destroy(linger=0)

    def _as_map(self, event: CacheEvent) -> dict[str, Any]:
        if isinstance(event, BlocksStored):
            stored = {
                "type": "BlockStored",
                "block_hashes": [_as_bytes(it) for it in event.hashes],
                "parent_block_hash": None if event.parent is None else _as_bytes(event.parent),
                "token_ids": event.tokens or (),
                "block_size": event.block_size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": _extra_keys(event),
                "group_idx": int(event.part is not Part.KV),
                "kv_cache_spec_kind": _KINDS[event.part],
            }
            if event.part is Part.WINDOW:
                stored["kv_cache_spec_sliding_window"] = self._window
            return stored
        if isinstance(event, BlocksRemoved):
            return {
                "type": "BlockRemoved",
                "block_hashes": [_as_bytes(it) for it in event.hashes],
                "medium": "GPU",
                "group_idx": int(event.part is not Part.KV),
            }
        return {"type": "AllBlocksCleared"}

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        """Answer requests for messages from a number on; a malformed request gets only the end mark."""
        with router:
            while not self._is_closing:
                if not router.poll(100):
                    continue
                who, *_, first = router.recv_multipart()
                if len(first) == 8:
                    for number, batch in self._kept.copy():
                        if number >= first:  # of equal length, with the highest byte first: as the numbers
                            router.send_multipart((who, b"", number, batch))
                router.send_multipart((who, b"", _END, b""))


def _bound(socket: zmq.Socket[bytes]) -> str:
    address: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
    return address.rstrip(b"\x00").decode()


def _as_bytes(hash: BlockHash) -> bytes:
    return bytes.fromhex(hash) if isinstance(hash, str) else hash.to_bytes(8, "big")


def _extra_keys(event: BlocksStored) -> list[list[Any] | None]:
    """Return the values besides tokens that distinguish blocks: the namespace, at a prompt's first block."""
    first = [_plain(event.namespace)] if event.parent is None and event.namespace is not None else None
    return [first, *[None] * (len(event.hashes) - 1)]


def _plain(namespace: Namespace) -> Any:
    return list(namespace) if isinstance(namespace, tuple) else namespace
