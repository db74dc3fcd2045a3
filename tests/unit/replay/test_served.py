"""Traces sent to a server: prompts, the clock, predictions, and what a file keeps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from pymllm.errors import TraceError, UsageError
from pymllm.probing.clients import CLIENTS, ServerFailed, connect, make_http
from pymllm.replay.prediction import Predicted, differences_in, first_tokens_of, kinds_of, predict
from pymllm.replay.served import (
    PlayPlan,
    Served,
    ServedHead,
    ask,
    digest_of,
    play,
    prompt_of,
    read_served,
)
from pymllm.serving.background import serving
from pymllm.serving.service import ServerConfig, Service
from pymllm.workloads.request import Request


def trace(count: int, seed: int = 0, **changes: Any) -> list[Request]:
    """Prompts of 3 or 4 blocks of 32 tokens that begin alike, in bursts."""
    draw, made, now = np.random.default_rng(seed), [], 0.0
    for number in range(count):
        ids: tuple[int, ...] = (
            int(draw.integers(2)),
            10 + int(draw.integers(3)),
            100 + int(draw.integers(5)),
        )
        ids += (1000 + number,) * int(draw.integers(2))
        length = 32 * len(ids) - int(draw.choice([0, 0, 3, 20]))
        now += float(draw.choice([0, 1, 10]))
        made.append(Request(number, now, length, int(draw.integers(1, 4)), ids, 32, **changes))
    return made


# -- prompts -------------------------------------------------------------------------------------------------


def test_equal_blocks_are_equal_tokens() -> None:
    """At any place, whole or partial; others differ, as do those of other seeds and namespaces."""
    whole = Request(0, 0.0, 64, 1, (7, 8), 32)
    part = Request(1, 0.0, 40, 1, (8, 7), 32)
    first, second = prompt_of(whole, 3), prompt_of(part, 3)
    assert (len(first), len(second)) == (64, 40)
    assert (first[32:] == second[:32]).all()
    assert (first[:8] == second[32:]).all()
    assert 32 <= first.min() <= first.max() <= 126
    for other in (prompt_of(whole, 4), prompt_of(replace(whole, namespace="a"), 3)):
        assert (first != other).any()
    assert prompt_of(Request(0, 0.0, 3, 1, (1,), 1 << 30), 0).shape == (3,)


# -- a server of our own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [4096, 512])
def test_one_by_one_every_request_hits_what_was_predicted(capacity: int) -> None:
    """All of them, to the token, with room for all and where most is evicted."""
    requests = trace(40)
    service = Service(ServerConfig("dense", capacity=capacity))
    with serving(service) as url, make_http(url, 60) as http:
        done = play(http, connect(http, "auto"), requests, PlayPlan(speed=None))
    assert (done.failure, done.most_at_once, len(done.results)) == (None, 1, 40)
    by_number = {it.request_id: it for it in requests}
    found = predict(by_number, [*done.results.values()], seed=0, page_size=16, capacity=capacity)
    assert [(it.served.cached, it.kind) for it in found] == [(it.tokens, "equal") for it in found]
    assert sum(it.tokens or 0 for it in found) > 0
    assert all(it.served.sent <= it.served.first <= it.served.end for it in found)
    assert [it.served.produced for it in found] == [it.output_length for it in requests]


def test_beside_each_other_differences_have_a_kind() -> None:
    """Nothing is evicted, so that each is equal, or depends on when the server took it up."""
    requests = trace(30, seed=2)
    service = Service(ServerConfig("dense", capacity=8192))
    with serving(service) as url, make_http(url, 120) as http:
        done = play(http, connect(http, "auto"), requests, PlayPlan(speed=2.0, max_tokens=2))
    assert done.failure is None
    assert done.most_at_once > 1
    by_number = {it.request_id: it for it in requests}
    found = predict(by_number, [*done.results.values()], seed=0, page_size=16, capacity=8192)
    assert {it.kind for it in found} <= {"equal", "under way"}
    assert max(it.served.produced for it in found) <= 2


# -- the clock -----------------------------------------------------------------------------------------------


class _Fake(BaseHTTPRequestHandler):
    """A server that streams what a test wants, and notes when it was asked."""

    asked: list[tuple[float, int]]
    stream: list[str]
    status = 200
    seconds = 0.0

    def do_GET(self) -> None:
        body = b'{"data": [{"id": "m", "owned_by": "vllm"}]}' if self.path == "/v1/models" else b"{}"
        self._send(200 if self.path == "/v1/models" else 404, body)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        if self.path != "/v1/completions":
            self._send(404, b"")
            return
        body = json.loads(self.rfile.read(length))
        assert body["stream_options"] == {"include_usage": True}
        assert "logprobs" not in body
        type(self).asked.append((time.monotonic(), len(body["prompt"])))
        time.sleep(type(self).seconds)
        self._send(type(self).status, "".join(f"{line}\n\n" for line in type(self).stream).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


GOOD = [
    'data: {"choices": [{"text": "x", "token_ids": [5]}]}',
    ": a comment",
    'data: {"choices": [{"text": "y", "token_ids": [6]}]}',
    'data: {"usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}}',
    "data: [DONE]",
]


@contextmanager
def fake(
    stream: list[str], status: int = 200, seconds: float = 0.0
) -> Iterator[tuple[httpx.Client, type[_Fake]]]:
    handler = type("Handler", (_Fake,), {"asked": [], "stream": stream, "status": status, "seconds": seconds})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            with make_http(f"http://127.0.0.1:{server.server_port}", 10) as http:
                yield http, handler
        finally:
            server.shutdown()
            thread.join()


def test_requests_come_at_their_times_and_after_those_that_they_wait_for() -> None:
    """The second 300 ms after the first at twice the speed; the third its delay after the first has ended."""
    requests = [
        Request(0, 1000.0, 10, 1, (0,), 16),
        Request(1, 1600.0, 20, 1, (0, 1), 16),
        Request(2, 1000.0, 30, 1, (0, 1), 16, wait_for=(0,), delay_ms=100.0),
        Request(3, 1800.0, 40, 1, (0, 1, 2), 16, wait_for=(0,)),
    ]
    with fake(GOOD) as (http, handler):
        done = play(http, connect(http, "auto"), requests, PlayPlan(speed=2.0))
    order = [length for _, length in handler.asked]
    assert order == [10, 30, 20, 40]
    assert [done.results[number].cached for number in range(4)] == [16] * 4
    assert done.results[0].answer == (5, 6)
    for number, earliest in ((1, 0.3), (2, done.results[0].end + 0.05), (3, 0.4)):
        assert done.results[number].sent >= earliest - 0.001


def test_no_more_are_under_way_than_allowed() -> None:
    """And none begins after its time is over; what was under way then is waited for."""
    requests = [Request(number, 0.0, 10, 1, (0,), 16) for number in range(6)]
    with fake(GOOD, seconds=0.15) as (http, handler):
        client = connect(http, "auto")
        done = play(http, client, requests, PlayPlan(most_running=2))
        assert (done.most_at_once, len(done.results)) == (2, 6)
        handler.asked.clear()
        over = play(http, client, requests, PlayPlan(most_running=2, minutes=0.1 / 60))
    assert len(over.results) == len(handler.asked) == 2
    assert over.failure is None


def test_a_refused_request_is_counted_and_a_failing_server_ends_the_play() -> None:
    """A prompt that is too long is no reason to stop."""
    requests = [Request(number, 0.0, 10, 1, (0,), 16) for number in range(3)]
    with fake(["no"], status=400) as (http, _):
        done = play(http, connect(http, "auto"), requests, PlayPlan(speed=None))
        assert {it.refusal for it in done.results.values()} == {"POST /v1/completions answered 400: no"}
    with fake(["no"], status=500) as (http, _):
        done = play(http, connect(http, "auto"), requests, PlayPlan(speed=None))
        assert (done.failure, done.results) == ("POST /v1/completions answered 500: no", {})


def test_an_interrupt_keeps_what_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is handed on, with the results so far."""

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    requests = [Request(number, 0.0, 10, 1, (0,), 16) for number in range(5)]
    with fake(GOOD) as (http, _):
        done = play(http, connect(http, "auto"), requests, PlayPlan(speed=None), show=stop)
    assert isinstance(done.interruption, KeyboardInterrupt)
    assert len(done.results) == 2


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ([], "answered an empty stream"),
        (["data: {"], "answered a stream that is none of openai"),
        (["data: [1]"], "'[1]' is no object"),
        (['data: {"choices": 3}'], "none of openai"),
        (['data: {"error": {"message": "out of memory"}}'], "out of memory"),
        (
            ['data: {"usage": {"completion_tokens": -3}}'],
            "figures that are none: Expected `int` >= 0",
        ),
        (
            ['data: {"usage": {"completion_tokens": {"a": 1}}}'],
            "figures that are none: Expected `int`",
        ),
    ],
)
def test_a_stream_that_is_none_is_one_line(stream: list[str], words: str) -> None:
    """X1: whatever the server sends."""
    with fake(stream) as (http, _):
        client = connect(http, "auto")
        with pytest.raises(ServerFailed) as caught:
            ask(http, client, 0, [1], 1, 0.0)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with make_http("http://127.0.0.1:9", 1) as nobody, pytest.raises(ServerFailed, match="ConnectError"):
        ask(nobody, client, 0, [1], 1, 0.0)


@pytest.mark.parametrize(
    ("api", "events", "wanted"),
    [
        (
            "llama.cpp",
            [{"tokens": [1]}, {"tokens": [2], "tokens_predicted": 2, "timings": {"cache_n": 7}}],
            (7, 2, (1, 2)),
        ),
        (
            "sglang",
            [
                {"meta_info": {"cached_tokens": 3, "completion_tokens": 1}, "output_ids": [4]},
                {"meta_info": {"cached_tokens": 3, "completion_tokens": 2}, "output_ids": [4, 9]},
            ],
            (3, 2, (4, 9)),
        ),
        ("openai", [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}], (None, 2, None)),
    ],
)
def test_each_api_tells_hits_in_its_own_way(
    api: str, events: list[dict[str, Any]], wanted: tuple[int | None, int, tuple[int, ...] | None]
) -> None:
    """The cached tokens, how many were produced, and which, where that is told."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    with httpx.Client(base_url="http://x", transport=transport) as http:
        served = ask(http, CLIENTS[api](http, api, "m"), 5, [1, 2], 4, 0.0)
    assert (served.cached, served.produced, served.answer) == wanted
    assert served.request == 5


# -- predictions ---------------------------------------------------------------------------------------------


def served(number: int, at: float, cached: int | None, produced: int = 1, first: float = 0.1) -> Served:
    return Served(number, at, at + first, at + first + 0.1, cached, produced)


def test_kinds_of_differences_by_hand() -> None:
    """Pages of 16, prompts of 64 tokens and 32 of them alike; 512 slots."""
    requests = {n: Request(n, 0.0, 64, 1, (0, n) if n != 5 else (0, 1), 32) for n in range(7)}
    requests[6] = Request(6, 0.0, 300, 1, tuple(range(50, 60)), 32)
    answered = [
        served(0, 0.0, 0),
        served(1, 1.0, 32),
        served(2, 1.05, 32),
        served(3, 2.0, 16),
        served(4, 3.0, 48),
        served(5, 4.0, 48),  # the prompt of request 1, of which the last page is computed again
        served(6, 5.0, 0),
    ]
    found = predict(requests, answered, seed=0, page_size=16, capacity=512)
    assert [it.kind for it in found] == ["equal", "equal", "equal", "fewer", "more", "equal", "not predicted"]
    assert [it.tokens for it in found] == [0, 32, 32, 32, 32, 48, None]
    assert found[5].curve_tokens == 64
    # The first had not begun to answer when the second came, so that nothing was cached.
    early = [served(0, 0.0, 0, first=2.0), served(1, 1.0, 0), replace_cached(served(2, 1.0, 0), None)]
    kinds = [it.kind for it in predict(requests, early, seed=0, page_size=16, capacity=512)]
    assert kinds == ["equal", "under way", "not told"]


def replace_cached(it: Served, cached: int | None) -> Served:
    return Served(it.request, it.sent, it.first, it.end, cached, it.produced)


@pytest.mark.parametrize("cached", [16, 64])
def test_what_was_evicted_in_the_prediction_explains_a_difference(cached: int) -> None:
    """128 slots are two prompts of 64 tokens; the first is evicted by the third."""
    requests = {n: Request(n, 0.0, 64, 1, (2 * n, 2 * n + 1), 32) for n in range(3)}
    requests[3] = Request(3, 0.0, 64, 1, (4, 5), 32)
    answered = [*(served(n, float(n), 0) for n in range(3)), served(3, 3.0, cached)]
    found = predict(requests, answered, seed=0, page_size=16, capacity=128)
    assert [it.kind for it in found] == ["equal", "equal", "equal", "after evictions"]
    assert found[3].tokens == 48


def test_answers_stay_cached() -> None:
    """A prompt that continues an answer hits it if the answer's tokens are known, and not otherwise."""
    first = Request(0, 0.0, 32, 17, (1,), 32)
    prompt = prompt_of(first, 0)
    again = Request(1, 0.0, 64, 1, (1, 2), 32)
    ids = tuple(int(token) for token in prompt_of(again, 0)[32:49])
    known = Served(0, 0.0, 0.1, 0.2, 0, 17, ids)
    for it, hit in ((known, 48), (replace_answer(known), 32)):
        found = predict({0: first, 1: again}, [it, served(1, 1.0, hit)], seed=0, page_size=16, capacity=512)
        assert [each.kind for each in found] == ["equal", "equal"]
    assert len(prompt) == 32


def replace_answer(it: Served) -> Served:
    return Served(it.request, it.sent, it.first, it.end, it.cached, it.produced)


def test_results_are_summed_up_by_hand() -> None:
    """Kinds in order, times by share, and the first that differ."""
    request = Request(0, 0.0, 64, 1, (0, 1), 32)
    its = [
        Predicted(request, served(0, 0.0, 0, first=0.5), 0, 0, "equal"),
        Predicted(request, served(0, 0.0, 16, first=0.25), 32, 32, "fewer"),
        Predicted(request, served(0, 0.0, 64, first=0.125), 32, 32, "more"),
    ]
    kinds = [
        (it.kind, it.requests, it.prompt_tokens, it.cached_tokens, it.predicted_tokens)
        for it in kinds_of(its)
    ]
    assert kinds == [("equal", 1, 64, 0, 0), ("fewer", 1, 64, 16, 32), ("more", 1, 64, 64, 32)]
    assert [(it.share_at_most, it.median_s) for it in first_tokens_of(its)] == [
        (0.0, 0.5),
        (0.25, 0.25),
        (1.0, 0.125),
    ]
    assert [it.kind for it in differences_in(its, 1)] == ["fewer"]


# -- what a file keeps ---------------------------------------------------------------------------------------


def kept(path: Path, requests: list[Request], *lines: Served | dict[str, Any], cut: int = 0) -> Path:
    """Write a file of results, without its last bytes."""
    head = ServedHead(digest_of(requests, PlayPlan()))
    path.write_bytes(b"".join(msgspec.json.encode(it) + b"\n" for it in (head, *lines)))
    path.write_bytes(path.read_bytes()[: -cut or None])
    return path


def test_a_file_gives_its_results_back(tmp_path: Path) -> None:
    """Of these requests alone; what an interrupted run left of its last line is left out."""
    path, requests = tmp_path / "run.jsonl", trace(3)
    assert read_served(path, requests, PlayPlan()) == {}
    its = {0: served(0, 0.0, 16), 1: Served(1, 1.0, 1.0, 1.0, None, 0, refusal="no")}
    kept(path, requests, *its.values(), served(2, 2.0, 16), cut=9)
    assert read_served(path, requests, PlayPlan()) == its
    kept(path, requests, *its.values())
    for others, plan in ((requests[:2], PlayPlan()), (requests, PlayPlan(seed=1))):
        with pytest.raises(UsageError, match="has results of other requests, or of another --seed"):
            read_served(path, others, plan)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request": 9}, ":2: request is 9, which the trace does not have"),
        (
            {"request": -1},
            ":2: not a result of a request: Expected `int` >= 0 - at `$.request`; name",
        ),
        ({"first": 0.5}, ":2: sent, first and end are 1.0, 0.5, 1.2, must be in this order"),
        ({"end": 1e11}, ":2: not a result of a request: Expected `float` <= 10000000000.0"),
        ({"cached": -1}, ":2: not a result of a request: Expected `int` >= 0"),
        ({"produced": 1 << 31}, ":2: not a result of a request: Expected `int` <= 2147483647"),
        ({"answer": [1 << 64]}, ":2: not a result of a request: Expected `int` <= 2147483647"),
        ({"op": "head"}, ":2: not a result of a request: Invalid value 'head'"),
    ],
)
def test_a_file_that_was_edited_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """X1: with the line and the bound; a whole last line was not cut off."""
    line = {"op": "served", "request": 1, "sent": 1.0, "first": 1.1, "end": 1.2, "cached": 0, "produced": 1}
    path = kept(tmp_path / "run.jsonl", trace(3), line | change)
    with pytest.raises(TraceError) as caught:
        read_served(path, trace(3), PlayPlan())
    assert words in str(caught.value)


@pytest.mark.parametrize("head", ['{"schema": "pymllm.served", "digest": "x", "version": 2}\n', "{}\n", "\n"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, head: str) -> None:
    """X1: another version, and what is no file of results, with a way out."""
    path = tmp_path / "run.jsonl"
    path.write_text(head, encoding="utf-8")
    with pytest.raises(
        TraceError, match=r"jsonl:1: not the first line of a file of results: .*; name another"
    ):
        read_served(path, trace(3), PlayPlan())
