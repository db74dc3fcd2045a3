"""The embedded server tells what its cache has, over ZeroMQ at 127.0.0.1, and the stream keeps every law."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

pytest.importorskip("uvicorn", reason="pymllm[servers] is not installed")
pytest.importorskip("httpx", reason="pymllm[servers] is not installed")
pytest.importorskip("zmq", reason="pyzmq of the extra servers is not installed")

import httpx
import zmq

from pymllm.errors import UsageError
from pymllm.mem_cache.cache_events import AllCleared, BlocksRemoved, BlocksStored, Part
from pymllm.oracle.verdicts import Verdict
from pymllm.probing.heard import Heard
from pymllm.serving.background import serving
from pymllm.serving.publisher import EventPublisher
from pymllm.serving.service import ServerConfig, Service
from pymllm.serving.tiny_model import ARCHITECTURES
from pymllm.watching.events import Stored, read_message
from pymllm.watching.judge import StreamJudge
from pymllm.watching.laws import LAWS
from pymllm.watching.listening import Listener

ANYWHERE = "tcp://127.0.0.1:*"
LONGEST = 20.0


@contextmanager
def publishing(replay: str | None = None) -> Iterator[EventPublisher]:
    publisher = EventPublisher(ANYWHERE, replay, window=24)
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def listening(publisher: EventPublisher) -> Iterator[Listener]:
    listener = Listener(publisher.address, replay=publisher.replay)
    try:
        assert publisher.await_listener(LONGEST)
        yield listener
    finally:
        listener.close()


def blocks_of(config: ServerConfig) -> int:
    """The blocks that the memory of a server has, in all groups."""
    pages = config.capacity // config.page_size
    if config.architecture == "window":
        pages += config.swa_capacity // config.page_size
    return pages + (config.track_slots if config.architecture == "hybrid" else 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_stream_of_the_server_keeps_every_law(architecture: str) -> None:
    """W1 to W8, with evictions, namespaces and a reset, from the first message on."""
    sizes = {"page_size": 8, "capacity": 256, "window": 24, "swa_capacity": 128, "max_context": 128}
    config = ServerConfig(architecture, track_slots=6, check=True, **sizes)
    judge = StreamJudge(blocks_of(config))
    chance = random.Random(5)
    with publishing() as publisher, closing(Heard(publisher.address)) as heard:
        assert publisher.await_listener(LONGEST)
        with (
            serving(Service(config, publisher)) as url,
            httpx.Client(base_url=url, trust_env=False, timeout=30) as client,
        ):
            for turn in range(40):
                prompt = [chance.randrange(3) for _ in range(3)] * chance.randint(3, 20)
                asked = {"prompt": prompt, "max_tokens": 3, "cache_salt": chance.choice([None, "a"])}
                chain = judge.longest_chain(prompt, asked["cache_salt"])
                answer = client.post("/v1/completions", json=asked)
                usage = answer.json()["usage"]
                judge.judge_hit(turn, usage["prompt_tokens_details"]["cached_tokens"], [chain])
                if turn == 30:
                    assert client.post("/reset_prefix_cache").status_code == 200
                for message in heard.take():
                    judge.feed(read_message(message))
    assert {judge.verdict_of(law) for law in LAWS} == {Verdict.HOLDS}, judge.first
    assert not judge.is_late
    assert judge.tests["W4"] > 20
    assert judge.tests["W8"] >= 38


def test_an_event_has_the_fields_of_vllm() -> None:
    """Namespaces stand at the first block of a prompt, windows and states in a group of their own."""
    with publishing() as publisher, listening(publisher) as listener:
        publisher.publish([])
        tokens = (1, 2, 3, 4)
        publisher.publish(
            [
                BlocksStored(Part.KV, ("0a", "0b"), None, tokens, 2, ("s", 7)),
                BlocksStored(Part.WINDOW, (258,), "0a", None, 0),
                BlocksRemoved(Part.STATE, ("0b",)),
                AllCleared(),
            ]
        )
        plain = next(iter(listener.messages(time.monotonic() + LONGEST)))
    assert isinstance(plain, dict)
    assert (plain["topic"], plain["seq"]) == ("", 0)
    whole, window, removed, cleared = plain["batch"][1]
    assert whole == {
        "type": "BlockStored",
        "block_hashes": [b"\x0a", b"\x0b"],
        "parent_block_hash": None,
        "token_ids": [*tokens],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [[["s", 7]], None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    assert (window["group_idx"], window["kv_cache_spec_kind"]) == (1, "sliding_window")
    assert window["kv_cache_spec_sliding_window"] == 24
    assert window["block_hashes"] == [(258).to_bytes(8, "big")]
    assert removed == {"type": "BlockRemoved", "block_hashes": [b"\x0b"], "medium": "GPU", "group_idx": 1}
    assert cleared == {"type": "AllBlocksCleared"}
    stored = read_message(plain).events[1]
    assert isinstance(stored, Stored)
    assert stored.has_window


def test_missed_messages_are_answered() -> None:
    """From the number that is asked for; a malformed question gets the end alone."""
    with publishing(replay=ANYWHERE) as publisher:
        for _ in range(5):
            publisher.publish([AllCleared()])
        context = zmq.Context()
        try:
            asker = context.socket(zmq.DEALER)
            asker.setsockopt(zmq.LINGER, 0)
            asker.connect(publisher.replay)
            for first, numbers in ((b"\0" * 7 + b"\3", [3, 4]), (b"what", [])):
                asker.send_multipart([b"", first])
                got = []
                while asker.poll(LONGEST * 1000):
                    _, number, payload = asker.recv_multipart()
                    if number == b"\xff" * 8:
                        break
                    assert payload
                    got.append(int.from_bytes(number, "big"))
                assert got == numbers
        finally:
            context.destroy(linger=0)


def test_an_address_that_cannot_be_had_is_refused() -> None:
    """With the address and the way out; nothing stays bound."""
    with publishing() as publisher:
        for addresses in ((publisher.address,), (ANYWHERE, publisher.address), ("nowhere",)):
            with pytest.raises(UsageError, match=f"cannot publish at {addresses[-1]}: "):
                EventPublisher(*addresses)


def test_nobody_listens_in_time() -> None:
    """Then it says so, and publishing goes on."""
    with publishing() as publisher:
        assert not publisher.await_listener(0.01)
        publisher.publish([AllCleared()])
