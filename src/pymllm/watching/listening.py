"""A listener to a publisher over ZeroMQ, which also requests missed messages.

A message on the wire has three parts: a topic, a number of 8 bytes with the highest first, and MessagePack.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from pymllm.errors import UsageError
from pymllm.text_file import cut

MESSAGE_LIMIT = 2**26
"""The greatest size of a message in bytes, enough for a batch of ten thousand blocks."""
REPLAY_SECONDS = 10.0
"""The longest wait for missed messages, in seconds."""
DROP_SECONDS = 1.0
"""The longest wait for the reason of a disconnection; ZeroMQ reconnects within 0.1 s."""
_MOST_PORT = 65535
_END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class Silence:
    """A second without any message."""

    seconds: float  # since the last message, or the beginning


class Listener:
    """A subscription to one address.

    Parameters
    ----------
    address : str
        Such as ``"tcp://127.0.0.1:5557"``.
    bind : bool
        Whether to wait at the address for a publisher that connects, as vLLM does where its endpoint has no
        ``*``; otherwise the publisher waits there, and this connects.
    replay : str, optional
        Where the publisher answers for messages that were missed.

    Raises
    ------
    UsageError
        If ZeroMQ refuses an address, or its port is above 65535.
    """

    def __init__(self, address: str, *, bind: bool = False, replay: str | None = None) -> None:
        for each in (address, replay or ""):
            _, _, port = each.rpartition(":")
            if each.startswith("tcp://") and port.isdecimal() and int(port) > _MOST_PORT:
                raise UsageError(f"{each}: a port is at most {_MOST_PORT}, got {cut(port)}")
        self._context = zmq.Context()
        self._replay = replay
        self._address = address
        # A subscriber connects again where the publisher has ended, and does not where it has refused bytes
        # itself. One that waits is connected to again at once where it refused them.
        self._tells = zmq.EVENT_ACCEPTED if bind else zmq.EVENT_CONNECT_RETRIED
        self._is_refused_where_told = bind
        self.asked = self.recovered = 0
        try:
            self._socket = self._context.socket(zmq.SUB)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT)
            self._socket.setsockopt(zmq.RCVHWM, 100_000)
            self._socket.setsockopt(zmq.SUBSCRIBE, b"")
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | self._tells)
            (self._socket.bind if bind else self._socket.connect)(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            way = (
                "--bind waits there for a publisher that connects" if not bind else "another one waits there"
            )
            raise UsageError(f"{address}: {error}; {way}") from None

    def close(self) -> None:
        """End the subscription."""
        self._context.destroy(linger=0)

    def messages(self, until: float | None = None) -> Iterator[dict[str, Any] | Silence]:
        """Yield messages as they arrive, and each second without one, until a time of `time.monotonic`.

        Missed messages are asked for where a replay address is known, and stand in their place.

        Raises
        ------
        UsageError
            If a message cannot be read, or ZeroMQ refused one, such as one that is too long.
        """
        last: dict[str, int] = {}
        heard = told = time.monotonic()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while until is None or time.monotonic() < until:
            left = 1.0 if until is None else min(1.0, until - time.monotonic())
            ready = dict(poller.poll(max(1, int(left * 1000))))
            if self._monitor in ready:
                if self._next_event() == zmq.EVENT_DISCONNECTED and self._is_refused():
                    waiting = []
                    while self._socket.poll(0):  # what came before, and nothing of a connection made anew
                        waiting.append(self._socket.recv_multipart())
                    for parts in waiting:
                        yield from self._take(last, parts)
                    raise UsageError(
                        f"{self._address}: ZeroMQ refused a message and ended the connection: a message has "
                        f"at most {MESSAGE_LIMIT:,} bytes; nothing behind it was heard"
                    )
            elif ready:
                heard = time.monotonic()
                yield from self._take(last, self._socket.recv_multipart())
                told = time.monotonic()
            if not ready or time.monotonic() - told >= 1.0:  # each try to connect again is an event, too
                told = time.monotonic()
                yield Silence(told - heard)

    def _take(self, last: dict[str, int], parts: list[bytes]) -> Iterator[dict[str, Any]]:
        """Yield the messages missed before a message, and then the message; ``last`` has numbers by topic."""
        plain = read_parts(parts)
        topic, number = plain["topic"], plain["seq"]
        if topic in last and number > last[topic] + 1 and self._replay is not None:
            yield from self._ask(topic, last[topic] + 1, number)
        last[topic] = number
        yield plain

    def _is_refused(self) -> bool:
        """Tell whether this side closed a connection because of a message that it received."""
        is_told = self._monitor.poll(int(DROP_SECONDS * 1000)) and self._next_event() == self._tells
        return bool(is_told) == self._is_refused_where_told

    def _next_event(self) -> int:
        return int(parse_monitor_message(self._monitor.recv_multipart())["event"])

    def _ask(self, topic: str, first: int, end: int) -> Iterator[dict[str, Any]]:
        """Yield the messages in a range of numbers that the publisher still has.

        An address where nobody answers in time is not asked again: each wait would let more messages queue.
        """
        self.asked += end - first
        before = self.recovered
        asker = self._context.socket(zmq.DEALER)
        try:
            asker.setsockopt(zmq.LINGER, 0)
            asker.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT)
            with suppress(zmq.ZMQError):  # an address that nobody can connect to answers nothing
                asker.connect(self._replay or "")
            asker.send_multipart([b"", first.to_bytes(8, "big")], zmq.NOBLOCK)
            deadline = time.monotonic() + REPLAY_SECONDS
            while (left := deadline - time.monotonic()) > 0 and asker.poll(int(left * 1000) + 1):
                *_, number, payload = asker.recv_multipart()
                if number == _END or int.from_bytes(number, "big") >= end:
                    return
                self.recovered += 1
                yield read_parts([topic.encode(), number, payload])
            if self.recovered == before:
                self._replay = None
        except zmq.Again:
            return
        finally:
            asker.close(0)


def read_parts(parts: list[bytes]) -> dict[str, Any]:
    """Return a message's topic, number and batch; raise `UsageError` for any other message."""
    if len(parts) != 3 or len(parts[1]) != 8:
        lengths = ", ".join(str(len(part)) for part in parts[:8])
        raise UsageError(
            f"a message of {len(parts)} parts ({lengths} bytes); topic, 8 bytes and a batch are known"
        )
    topic, number, payload = parts
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"a message that is no MessagePack ({error}): {cut(payload[:40].hex())}") from None
    return {"topic": topic.decode("utf-8", "replace"), "seq": int.from_bytes(number, "big"), "batch": batch}
