"""Probes that hear the events of the cache: the embedded server, planted faults, and what is no test."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

zmq = pytest.importorskip("zmq", reason="pyzmq of the extra servers is not installed")

from pymllm.faults.plant import planted  # noqa: E402
from pymllm.faults.table import SERVERS, find_faults  # noqa: E402
from pymllm.oracle.verdicts import Verdict  # noqa: E402
from pymllm.probing import heard, player  # noqa: E402
from pymllm.probing.clients import connect, make_http  # noqa: E402
from pymllm.probing.heard import Heard  # noqa: E402
from pymllm.probing.judge import Judgement, judge  # noqa: E402
from pymllm.probing.records import (  # noqa: E402
    Answer,
    Ask,
    Burst,
    Cold,
    Drop,
    Figures,
    Head,
    History,
    Look,
    Step,
    read_history,
    write_history,
)
from pymllm.probing.search import ProbePlan, Servers, play_again, probe, shrink  # noqa: E402
from pymllm.serving.background import serving  # noqa: E402
from pymllm.serving.publisher import EventPublisher  # noqa: E402
from pymllm.serving.service import ServerConfig, Service  # noqa: E402
from pymllm.watching.laws import LAWS  # noqa: E402
from tests.unit.cli.typed import refused, typed  # noqa: E402

ANYWHERE = "tcp://127.0.0.1:*"
PLAN = ProbePlan(requests=20, longest=96, max_tokens=2)
HEAD = Head(server="vllm", api="openai", cold="salt", has_salts=True, is_clean=True, hears_events=True)
PROMPT = (1, 1, 2, 2, 3)


@contextmanager
def embedded(**sizes: Any) -> Iterator[Servers]:
    """A server of our own that publishes its events, and a client of both."""
    with closing(EventPublisher(ANYWHERE)) as publisher, closing(Heard(publisher.address)) as hearing:
        service = Service(ServerConfig(**sizes), publisher)
        with serving(service) as url, make_http(url, 60) as http:
            yield Servers(connect(http, "auto"), heard=hearing)


def stored(*blocks: int, parent: int | None = None, salt: str | None = "s", **more: Any) -> dict[str, Any]:
    """An event of blocks of two tokens, each twice its number, by which they are named."""
    keys = [[salt] if parent is None and salt is not None else None, *[None] * (len(blocks) - 1)]
    return {
        "type": "BlockStored",
        "block_hashes": [*blocks],
        "parent_block_hash": parent,
        "token_ids": [it for block in blocks for it in (block, block)],
        "block_size": 2,
        "extra_keys": keys,
        **more,
    }


def message(number: int, *events: dict[str, Any]) -> dict[str, Any]:
    return {"topic": "kv", "seq": number, "batch": [0.0, [*events], 0]}


def ask(id: int, cached: int | None, *messages: Any, prompt: tuple[int, ...] = PROMPT) -> Step:
    answer = Answer(prompt=prompt, places=(), cached=cached)
    return Step(operation=Ask(id, prompt, 1), answers=(answer,), messages=messages, salts=("s",))


def judged(*steps: Step, head: Head = HEAD) -> Judgement:
    return judge(History(head, steps), without=("V3", "V5"))


def test_a_right_server_tells_what_is_hit() -> None:
    """W1 to W8, of every request, also where prefixes are evicted."""
    with embedded(capacity=512) as servers:
        done = probe(servers, PLAN)
    told = done.judgement
    assert (done.failure, told.violation) == (None, None)
    assert {told.verdict_of(law) for law in LAWS if law != "W7"} == {Verdict.HOLDS}, told.reasons
    assert told.verdict_of("W7") is Verdict.NOT_CLAIMED
    answers = sum(len(step.answers) for step in done.history.steps)
    assert answers - 2 <= told.tests["W8"] <= answers


def test_a_planted_fault_is_found_and_shrunk(tmp_path: Path) -> None:
    """Its law is named; the smallest program shows it again, and is judged so from its file alone."""
    (fault,) = find_faults(["server-late-events"], SERVERS)
    with planted(fault.edits), embedded() as servers:
        done = probe(servers, PLAN)
        assert done.judgement.violation is not None
        assert done.judgement.violation.law == "W8"
        shrink(servers, done, 20)
        assert done.smallest is not None, done.unshrunk
        again = play_again(servers, done.smallest, PLAN).judgement.violation
    assert again is not None
    assert again.law == "W8"
    assert len(done.smallest.steps) <= 6
    write_history(done.smallest, file := tmp_path / "probe.jsonl")
    found = judge(read_history(file)).violation
    assert found == judge(done.smallest).violation
    assert found is not None


def test_a_request_hits_what_was_told_when_it_was_sent() -> None:
    """W8: no less and no more; what it stores itself comes later."""
    told = message(0, stored(1, 2))
    first = ask(1, 0, told)
    assert judged(first, ask(2, 4)).tests["W8"] == 1
    found = judged(first, ask(2, 2)).violation
    assert found is not None
    assert (found.law, found.expected, found.observed) == ("W8", "4", "2")
    assert (found.message, found.step, found.request) == ("tokens that request 2 hit", 2, 2)
    other = judged(first, ask(2, 0, prompt=(9, 9, 9)), ask(3, 2, prompt=(9, 9, 9))).violation
    assert other is not None
    assert other.expected == "0"


def test_requests_beside_others_have_a_bound() -> None:
    """W8: hits are at most the blocks reported until then; cold requests after a reset likewise."""
    answers = tuple(Answer(prompt=PROMPT, places=(), cached=it) for it in (0, 4))
    asks = (Ask(2, PROMPT, 1), Ask(3, PROMPT, 1))
    burst = Step(
        operation=Burst(asks), answers=answers, salts=("s", "s"), messages=(message(1, stored(1, 2)),)
    )
    first = ask(1, 0, message(0, {"type": "AllBlocksCleared"}, stored(7)))
    assert judged(first, burst).violation is None
    more = Answer(prompt=PROMPT, places=(), cached=4)
    short = (message(1, stored(1)),)
    found = judged(first, Step(operation=Burst(asks), answers=(more, more), salts=("s", "s"), messages=short))
    assert found.violation is not None
    assert found.violation.expected == "at most 2"
    cold = Step(
        operation=Cold((1,)),
        answers=(Answer(prompt=PROMPT, places=(), cached=0),),
        salts=("s",),
        messages=(message(1, {"type": "AllBlocksCleared"}),),
    )
    reset = Head(**{**{it: getattr(HEAD, it) for it in HEAD.__struct_fields__}, "cold": "reset"})
    assert judged(ask(1, 0, message(0, stored(1, 2))), cold, head=reset).violation is None
    elsewhere = Head(**{**{it: getattr(HEAD, it) for it in HEAD.__struct_fields__}, "cold": "other"})
    assert judged(ask(1, 0, message(0, stored(1, 2))), cold, head=elsewhere).tests.get("W8", 0) == 0


def test_a_broken_law_of_the_stream_ends_the_judgement() -> None:
    """With the message and the event that broke it; one that is not claimed does not."""
    steps = [ask(1, 0, message(0, stored(1)), message(2, stored(2, parent=1)))]
    found = judged(*steps).violation
    assert found is not None
    assert (found.law, found.step, found.request) == ("W1", 1, 0)
    assert found.message.startswith("message 2, ")
    doubled = [ask(1, 0, message(0, stored(1), stored(1), {"type": "BlockRemoved", "block_hashes": [1]}))]
    found = judged(*doubled).violation
    assert found is not None
    assert (found.law, found.message) == ("W5", "message 0, event 3, the removal of 1")
    assert judge(History(HEAD, tuple(doubled)), without=("W5",)).violation is None


@pytest.mark.parametrize(
    ("steps", "law", "reason"),
    [
        ((ask(1, 0),), "W8", "no event was heard; is it the address of its publisher"),
        ((ask(1, 0, message(5, stored(1))), ask(2, 0)), "W8", "the beginning of the stream was not heard"),
        ((ask(1, 0, {"odd": 1}),), "W1", "message 1: a message of an unknown layout"),
        ((ask(1, None, message(0, stored(1))),), "W8", "the server tells no cached tokens"),
        ((ask(1, 0, message(0, stored(1))),), "W7", "the number of blocks in the memory is unknown"),
    ],
)
def test_what_was_not_tested_has_its_reason(steps: tuple[Step, ...], law: str, reason: str) -> None:
    """Silence, a late listener, another layout, and what a server does not tell."""
    found = judged(*steps)
    assert found.verdict_of(law) in (Verdict.UNKNOWN, Verdict.NOT_CLAIMED)
    assert found.reasons[law].startswith(reason)


def test_a_prompt_that_the_server_changes_is_no_test() -> None:
    """W8: the server adds a beginning, or takes texts, whose token ids are unknown."""
    longer = Answer(prompt=PROMPT, places=(), cached=0, prompt_tokens=len(PROMPT) + 1)
    step = Step(operation=Ask(2, PROMPT, 1), answers=(longer,), salts=("s",))
    first = ask(1, 0, message(0, stored(1, 2)))
    assert judged(first, step).tests.get("W8", 0) == 0
    texts = Head(**{**{it: getattr(HEAD, it) for it in HEAD.__struct_fields__}, "has_ids": False})
    assert judged(first, ask(2, 0), head=texts).tests.get("W8", 0) == 0


class Talker:
    """A listener to a stream that tells something all the time, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.goes_on = True

    def monotonic(self) -> float:
        return self.now

    def messages(self, until: float) -> Iterator[dict[str, Any]]:
        self.now = max(self.now, until)
        if self.goes_on:
            yield message(0)

    def close(self) -> None:
        pass


def test_a_stream_that_never_becomes_quiet_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then only as long as silence takes, until it was quiet."""
    talker = Talker()
    monkeypatch.setattr(heard, "Listener", lambda *_, **__: talker)
    monkeypatch.setattr(heard, "time", talker)
    hearing = Heard("tcp://127.0.0.1:1")
    waited = []
    for goes_on in (True, True, True, False, True):
        talker.goes_on, begun = goes_on, talker.now
        assert bool(hearing.take()) is goes_on
        assert hearing.is_quiet is not goes_on
        waited.append(talker.now - begun)
    longest, silence = pytest.approx(heard.LONGEST_SECONDS), pytest.approx(heard.QUIET_SECONDS)
    assert waited == [longest, silence, silence, silence, longest]


class Busy(Talker):
    """A server that others keep at work, and the quiet stream of its events."""

    is_quiet = True

    def figures(self) -> Figures:
        return Figures(running=1.0)

    def drop(self, *_: object) -> None:
        pass

    def take(self) -> tuple[Any, ...]:
        return ()

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_server_that_others_use_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first look; a dropped stream may then still go on, so that its step is noisy."""
    busy: Any = Busy()
    monkeypatch.setattr(player, "time", busy)
    playing = player.Player(busy, "salt", heard=busy)
    playing.play([Look()])
    assert busy.now == pytest.approx(player.REST_SECONDS, abs=0.1)
    begun = busy.now
    playing.play([Drop(Ask(1, PROMPT, 1), 1), Look()])
    assert busy.now == begun
    assert [step.is_noisy for step in playing.steps] == [False, True, False]


def test_a_stream_that_never_becomes_quiet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a note; what requests hit by it is unknown, since events may come behind a later request."""
    monkeypatch.setattr(heard, "LONGEST_SECONDS", 0.2)
    ends = threading.Event()
    with serving(Service(ServerConfig())) as url, zmq.Context() as context, context.socket(zmq.PUB) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def talk() -> None:
            number = 0
            while not ends.wait(0.001):
                batch = msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}], 0])
                socket.send_multipart([b"kv", number.to_bytes(8, "big"), batch])
                number += 1

        talks = threading.Thread(target=talk)
        talks.start()
        try:
            words = ("probe", url, "--requests", 2, "--json", "--progress", "off", "--shrink-seconds", 0)
            result = typed(*words, "--events", f"tcp://127.0.0.1:{port}", "--without", "W1")
        finally:
            ends.set()
            talks.join()
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"]) == (3, "unknown"), result.output
    assert any("the stream of events did not become quiet" in note for note in document["notes"])
    (law,) = [law for law in document["laws"] if law["id"] == "W8"]
    assert (law["verdict"], law["tests"]) == ("unknown", 0)
    assert law["reason"].startswith("the stream of events did not become quiet")


def test_what_a_noisy_stream_leaves_for_later_is_no_test() -> None:
    """Neither in its own step nor in the next one; behind a quiet one requests are judged again."""
    first = ask(1, 0, message(0, stored(1)))
    noisy = Step(operation=Ask(2, PROMPT, 1), answers=first.answers, salts=("s",), is_noisy=True)
    late = ask(3, 4, message(1, stored(2, parent=1)))
    found = judged(first, noisy, late)
    assert (found.violation, found.tests.get("W8", 0)) == (None, 0)
    found = judged(first, noisy, late, ask(4, 0))
    assert found.violation is not None
    assert (found.violation.law, found.violation.step) == ("W8", 4)


def test_the_command_tells_both(tmp_path: Path) -> None:
    """The laws of streams stand beside the others; without the option they are no subject."""
    words = ("probe", "--demo", "--requests", 10, "--json", "--progress", "off")
    result = typed(*words, "--events", ANYWHERE, "--without", "W2", "--output", tmp_path)
    document = json.loads(result.stdout)
    assert result.exit_code in (0, 3), result.output  # 3 where nothing was removed, so that W4 was not tested
    verdicts = {law["id"]: law["verdict"] for law in document["laws"]}
    assert [verdicts[law] for law in ("W1", "W2", "W7", "W8")] == [
        "holds",
        "not claimed",
        "not claimed",
        "holds",
    ]
    (file,) = tmp_path.glob("*.jsonl")
    told = json.loads(typed("probe", "--judge", file, "--json").stdout)
    assert {law["id"]: law["verdict"] for law in told["laws"]} == verdicts
    refused("probe", "--judge", file, "--events", ANYWHERE, words="--events: --judge measures nothing")
    refused("probe", "--demo", "--events", "nowhere", words="cannot publish at nowhere")


def test_pyzmq_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where events are asked for."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "zmq" else find(name))
    refused("probe", "http://127.0.0.1:9", "--events", ANYWHERE, words="pyzmq is not installed")
