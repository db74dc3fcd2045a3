"""Listening over ZeroMQ at 127.0.0.1: messages, silence, gaps that are asked for, and bad messages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.cli.typed import refused, typed
from tests.unit.watching.producer import Producer

zmq = pytest.importorskip("zmq", reason="pyzmq of the extra servers is not installed")

from pymllm.errors import UsageError  # noqa: E402
from pymllm.watching.listening import Listener, Silence, read_parts  # noqa: E402

LONGEST = 20.0


def parts_of(plain: dict[str, Any]) -> list[bytes]:
    return [plain["topic"].encode(), plain["seq"].to_bytes(8, "big"), msgspec.msgpack.encode(plain["batch"])]


@contextmanager
def publishing(parts: list[list[bytes]], *, connects_to: str = "", lives: float = 0.0) -> Iterator[str]:
    """A publisher that tells all of its messages once somebody listens; yields its address.

    ``lives``: so many seconds behind the last message it ends, if not 0.
    """
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.LINGER, 0)
    if connects_to:
        socket.connect(connects_to)
    port = None if connects_to else socket.bind_to_random_port("tcp://127.0.0.1")

    def publish() -> None:
        if socket.poll(LONGEST * 1000):
            socket.recv()  # a subscription
            for it in parts:
                socket.send_multipart(it)
            if lives:
                time.sleep(lives)
                socket.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield connects_to or f"tcp://127.0.0.1:{port}"
    finally:
        thread.join()
        context.destroy(linger=0)


@contextmanager
def answering(kept: list[list[bytes]]) -> Iterator[str]:
    """A replay endpoint as vLLM's, which has kept some messages; it answers once."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def answer() -> None:
        if socket.poll(LONGEST * 1000):
            client, _, start = socket.recv_multipart()
            for _, number, payload in kept:
                if number >= start:
                    socket.send_multipart([client, b"", number, payload])
            socket.send_multipart([client, b"", (-1).to_bytes(8, "big", signed=True), b""])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        thread.join()
        context.destroy(linger=0)


def heard(address: str, count: int, **options: Any) -> tuple[list[dict[str, Any]], Listener]:
    """Listen until so many messages have come."""
    listener = Listener(address, **options)
    found: list[dict[str, Any]] = []
    for it in listener.messages(time.monotonic() + LONGEST):
        if not isinstance(it, Silence):
            found.append(it)
            if len(found) == count:
                break
    listener.close()
    return found, listener


MESSAGES = list(Producer(0).messages(80))


def test_messages_come_as_they_were_told() -> None:
    """In their order, with their numbers."""
    with publishing([parts_of(it) for it in MESSAGES]) as address:
        found, _ = heard(address, len(MESSAGES))
    assert found == MESSAGES


def test_a_publisher_that_connects_is_waited_for() -> None:
    """As vLLM does where its endpoint has no ``*``."""
    with zmq.Context() as context, context.socket(zmq.PUB) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    address = f"tcp://127.0.0.1:{port}"
    listener = Listener(address, bind=True)
    with publishing([parts_of(it) for it in MESSAGES], connects_to=address):
        messages = (it for it in listener.messages(time.monotonic() + LONGEST) if not isinstance(it, Silence))
        assert [next(messages) for _ in MESSAGES] == MESSAGES
    listener.close()


def test_missed_messages_are_asked_for_and_stand_in_their_place() -> None:
    """Those that the publisher still has; the others leave a gap."""
    all_parts = [parts_of(it) for it in MESSAGES]
    told = all_parts[:5] + all_parts[15:]
    with publishing(told) as address, answering(all_parts[8:]) as replay:
        found, listener = heard(address, len(MESSAGES) - 3, replay=replay)
    assert found == MESSAGES[:5] + MESSAGES[8:]
    assert (listener.asked, listener.recovered) == (10, 7)


def test_a_replay_address_without_an_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gap behind the first one would cost a wait."""
    monkeypatch.setattr("pymllm.watching.listening.REPLAY_SECONDS", 0.2)
    told = [parts_of(it) for it in MESSAGES[:20:2]]
    with zmq.Context() as context, context.socket(zmq.DEALER) as silent:
        replay = f"tcp://127.0.0.1:{silent.bind_to_random_port('tcp://127.0.0.1')}"
        with publishing(told) as address:
            found, listener = heard(address, len(told), replay=replay)
    assert found == MESSAGES[:20:2]
    assert (listener.asked, listener.recovered) == (1, 0)


@pytest.mark.parametrize("bind", [False, True])
def test_a_message_that_is_too_long_ends_the_stream(bind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what came before it: ZeroMQ drops the connection, and nothing of it is heard any more."""
    monkeypatch.setattr("pymllm.watching.listening.MESSAGE_LIMIT", 5000)
    all_parts = [parts_of(it) for it in MESSAGES]
    told = [*all_parts[:10], [b"kv", b"12345678", b"\x91" * 6000]]
    with zmq.Context() as context, context.socket(zmq.PUB) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    waits = f"tcp://127.0.0.1:{port}" if bind else ""
    listener = Listener(waits, bind=True) if bind else None
    with publishing(told, connects_to=waits) as address:
        listener = listener or Listener(address)
        messages = (it for it in listener.messages(time.monotonic() + LONGEST) if not isinstance(it, Silence))
        assert [next(messages) for _ in range(10)] == MESSAGES[:10]
        with pytest.raises(UsageError, match=f"{address}: .* at most 5,000 bytes"):
            next(messages)
        listener.close()


@pytest.mark.parametrize("bind", [False, True])
def test_a_publisher_that_ends_may_come_again(bind: bool) -> None:
    """Its end is no fault; nobody knows yet whether another one comes."""
    with zmq.Context() as context, context.socket(zmq.PUB) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    waits = f"tcp://127.0.0.1:{port}" if bind else ""
    listener = Listener(waits, bind=True) if bind else None
    with publishing([parts_of(it) for it in MESSAGES], connects_to=waits, lives=0.2) as address:
        listener = listener or Listener(address)
        told = listener.messages(time.monotonic() + LONGEST)
        messages = (it for it in told if not isinstance(it, Silence))
        assert [next(messages) for _ in MESSAGES] == MESSAGES
        assert isinstance(next(told), Silence)
        assert isinstance(next(told), Silence)
        listener.close()


def test_silence_is_told_each_second() -> None:
    """So that whoever listens can say that nothing comes."""
    with zmq.Context() as context, context.socket(zmq.PUB) as quiet:
        port = quiet.bind_to_random_port("tcp://127.0.0.1")
        listener = Listener(f"tcp://127.0.0.1:{port}")
        found = list(listener.messages(time.monotonic() + 1.2))
        listener.close()
    assert found
    assert all(isinstance(it, Silence) for it in found)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([b"kv", b"12345678"], "a message of 2 parts"),
        ([b"kv", b"1", b""], "a message of 3 parts (2, 1, 0 bytes)"),
        ([b"kv", b"12345678", b"\xc1"], "no MessagePack"),
        ([b"kv", b"12345678", b"\x91" * 100_000], "no MessagePack"),
    ],
)
def test_other_messages_are_refused_with_what_was_seen(parts: list[bytes], why: str) -> None:
    """Their parts, or the bytes at their beginning."""
    with pytest.raises(UsageError) as caught:
        read_parts(parts)
    assert why in str(caught.value)


def test_an_address_that_cannot_be_had_is_refused() -> None:
    """One that somebody waits at cannot be bound."""
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        address = f"tcp://127.0.0.1:{other.bind_to_random_port('tcp://127.0.0.1')}"
        with pytest.raises(UsageError, match="Address already in use"):
            Listener(address, bind=True)


@pytest.mark.parametrize("role", ["address", "replay"])
def test_a_port_that_no_host_has_is_refused(role: str) -> None:
    """ZeroMQ takes it, and connects nowhere."""
    addresses = {"address": "tcp://127.0.0.1:5557", role: "tcp://127.0.0.1:65536"}
    with pytest.raises(UsageError, match=r"tcp://127.0.0.1:65536: a port is at most 65535, got 65536"):
        Listener(**addresses)


# -- as a command ------------------------------------------------------------------------------------------


def test_a_stream_is_recorded_and_judged(tmp_path: Path) -> None:
    """The recording says the same again; it is not written over."""
    file = tmp_path / "events.jsonl"
    with publishing([parts_of(it) for it in MESSAGES]) as address:
        live = typed(
            "watch", address, "--messages", str(len(MESSAGES)), "--record", str(file), "--blocks", "40"
        )
    assert live.exit_code == 0, live.output
    assert "holds     all 7 laws that apply" in live.stdout
    again = typed("watch", str(file), "--blocks", "40")
    assert (again.exit_code, again.stdout.splitlines()[2:]) == (0, live.stdout.splitlines()[2:])
    refused("watch", address, "--record", file, words="exists; name a new file")


def test_a_message_that_cannot_be_read_ends_the_stream_and_loses_nothing(tmp_path: Path) -> None:
    """What came before is judged and recorded, and so is why it ended: the recording says the same again."""
    file = tmp_path / "events.jsonl"
    told = [*(parts_of(it) for it in MESSAGES[:10]), [b"kv", b"12345678", b"\xc1"]]
    with publishing(told) as address:
        ended = typed("watch", address, "--record", str(file), "--for", "20")
    assert ended.exit_code == 3
    assert "ended early: a message that is no MessagePack" in ended.stdout
    *messages, _ = file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(it) for it in messages] == MESSAGES[:10]
    again = typed("watch", str(file))
    assert (again.exit_code, again.stdout.count("ended early: a message that is no MessagePack")) == (3, 1)


def test_silence_is_said_with_the_way_out() -> None:
    """Once, on standard error; nothing was tested, so all is unknown."""
    with zmq.Context() as context, context.socket(zmq.PUB) as quiet:
        port = quiet.bind_to_random_port("tcp://127.0.0.1")
        ended = typed("watch", f"tcp://127.0.0.1:{port}", "--for", "6.5")
    assert ended.exit_code == 3
    assert ended.stderr.count("nothing has come for 5 s") == 1
    assert "--bind" in ended.stderr
