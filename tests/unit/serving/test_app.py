"""The embedded server answers as OpenAI's API says, tells what it does, and outlives its clients."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="pymllm[servers] is not installed")
pytest.importorskip("httpx", reason="pymllm[servers] is not installed")

import httpx
import uvicorn

from pymllm.serving.app import make_app
from pymllm.serving.service import Ended, Job, ServerConfig, Service
from pymllm.workloads.engine import Engine

CONFIG = ServerConfig(page_size=8, capacity=512, window=24, swa_capacity=256, max_context=256, check=True)
PROMPT = [*b"a prompt of seven pages of eight tokens and one more, 57."]
assert len(PROMPT) == 57


@pytest.fixture
def service() -> Service:
    return Service(CONFIG)


@contextmanager
def serving(service: Service) -> Iterator[httpx.Client]:
    """A client of a server on a free port, which runs in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with serving(service) as client:
        yield client


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4, **fields})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def cached(document: dict[str, Any]) -> int:
    tokens: int = document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def figures(client: httpx.Client) -> dict[str, float]:
    lines = [line.split() for line in client.get("/metrics").text.splitlines() if line.startswith("pymllm:")]
    return {name.removeprefix("pymllm:"): float(value) for name, value in lines}


def rest(client: httpx.Client) -> dict[str, float]:
    """The figures once no request runs or waits."""
    deadline = time.monotonic() + 10
    while (now := figures(client))["num_requests_running"] or now["kv_cache_usage_perc"]:
        assert time.monotonic() < deadline, now
        time.sleep(0.01)
    return now


def test_a_second_request_is_warm_and_answers_alike(client: httpx.Client) -> None:
    """Whole pages short of the last token are cached; tokens and log-probabilities do not move."""
    cold, warm = (complete(client, logprobs=3, return_token_ids=True) for _ in range(2))
    assert (cached(cold), cached(warm)) == (0, 56)
    [first], [second] = cold["choices"], warm["choices"]
    assert first["token_ids"] == second["token_ids"]
    assert first["prompt_token_ids"] == PROMPT
    assert first["text"] == "".join(map(chr, first["token_ids"]))
    for name in ("token_logprobs", "tokens", "text_offset"):
        assert first["logprobs"][name] == pytest.approx(second["logprobs"][name], abs=1e-5)
    assert [len(top) for top in first["logprobs"]["top_logprobs"]] == [3] * 4
    assert cold["usage"]["total_tokens"] == len(PROMPT) + 4


def test_salts_share_nothing(client: httpx.Client) -> None:
    """A prompt is cold under each new salt."""
    assert [cached(complete(client, cache_salt=salt)) for salt in ("a", "b", "a", None)] == [0, 0, 56, 0]


def test_a_reset_makes_the_cache_cold(client: httpx.Client) -> None:
    """After it, nothing is cached, and all memory is free."""
    complete(client)
    rest(client)
    assert client.post("/reset_prefix_cache").json() == {"success": True}
    assert cached(complete(client)) == 0


def test_a_stream_has_each_token_in_an_event(client: httpx.Client) -> None:
    """The same tokens as the whole answer, the usage where it is asked for, and the end."""
    whole = complete(client, return_token_ids=True, logprobs=1)
    body = {"prompt": PROMPT, "max_tokens": 4, "return_token_ids": True, "logprobs": 1}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/completions", json={**body, **options}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    *events, last = map(json.loads, lines)
    assert [event["choices"][0]["token_ids"] for event in events] == [
        [token] for token in whole["choices"][0]["token_ids"]
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "length"]
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in events] == [[0], [1], [2], [3]]
    assert last["usage"]["completion_tokens"] == 4


def test_requests_at_one_time_answer_as_alone(client: httpx.Client) -> None:
    """Eight threads, more than fit at once."""
    prompts = [[*b"shared by all of them"] + [40 + at] * 40 for at in range(8)]
    alone = [
        complete(client, prompt=prompt, logprobs=1, cache_salt=str(at)) for at, prompt in enumerate(prompts)
    ]
    found: dict[int, dict[str, Any]] = {}

    def ask(at: int) -> None:
        found[at] = complete(client, prompt=prompts[at], logprobs=1)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, expected in enumerate(alone):
        one, other = expected["choices"][0]["logprobs"], found[at]["choices"][0]["logprobs"]
        assert one["token_logprobs"] == pytest.approx(other["token_logprobs"], abs=1e-5)
    assert rest(client)["request_success_total"] == 16


def test_a_temperature_draws_by_its_seed(client: httpx.Client) -> None:
    """Equal seeds draw alike, others do not."""
    drawn = [
        complete(client, max_tokens=12, temperature=1.5, seed=seed)["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_client_that_leaves_gives_its_memory_back(service: Service) -> None:
    """A job that is given up ends as such, its slots free; one that has ended is nobody's any more."""
    service.start()
    ended, begun = threading.Event(), threading.Event()
    told: list[object] = []

    def hear(one: object) -> None:
        told.append(one)
        begun.set()
        if isinstance(one, Ended):
            ended.set()

    number = service.submit(Job(PROMPT, 150, hear))
    assert begun.wait(10)
    service.abort(number)
    assert ended.wait(10)
    service.abort(number)
    assert told[-1] == Ended(0, "the request was given up")
    assert len(told) < 150
    done = threading.Event()
    results: list[bool] = []

    def note(is_done: bool) -> None:
        results.append(is_done)
        done.set()

    service.reset(note)
    assert done.wait(10)
    assert results == [True]
    assert (service.counters.aborted, service.counters.kv_in_use) == (1, 0)
    service.close()


def test_a_stream_that_is_dropped_ends_its_request(client: httpx.Client) -> None:
    """Before the first token or after some bytes: the slots come back, and the next answer is right."""
    expected = complete(client, logprobs=1)
    for count in (0, 1, 3):
        body = {"prompt": PROMPT, "max_tokens": 150, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for _, _line in zip(range(count), answer.iter_lines(), strict=False):
                pass
    assert rest(client)["request_aborted_total"] == 3
    found = complete(client, logprobs=1)
    one, other = (it["choices"][0]["logprobs"]["token_logprobs"] for it in (expected, found))
    assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [5, 128]}, "the prompt has token 128; tokens are 0..127"),
        ({"prompt": "na\u00efve"}, "the prompt has 'ï'; this model knows ASCII alone"),
        ({"prompt": [[1], [2]]}, "there are 2 prompts; send one at a time"),
        ({"prompt": [1, "a"]}, "a prompt is a text or a list of token ids"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"max_tokens": 9999}, "together at most 256 are possible"),
        ({"logprobs": 21}, "logprobs is 21; it must be in 0..20"),
        ({"temperature": -1}, "temperature is -1.0; it must be in 0..100"),
        ({"n": 2}, "n is 2; this server has only 1"),
        ({"echo": True}, "echo is True; this server has only False"),
        ({"stop": ["a"]}, "this server has no stop; leave it out"),
        ({"seed": -1}, "seed is -1; it must be in 0.."),
        ({"tokens": 1}, "unknown field `tokens`"),
    ],
)
def test_what_is_not_served_is_refused_in_one_line(
    client: httpx.Client, fields: dict[str, Any], words: str
) -> None:
    """With status 400, the value and the bound; the server goes on."""
    answer = client.post("/v1/completions", json={"prompt": PROMPT, **fields})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert words in message
    assert "\n" not in message
    complete(client)


def test_bodies_that_are_no_request_are_refused(client: httpx.Client) -> None:
    """No JSON, too long, or for another model."""
    answers = [
        client.post("/v1/completions", content=b"<html>"),
        client.post("/v1/completions", content=b" " * (1 << 20) + b"{}"),
        client.post("/v1/completions", json={"prompt": [1], "model": "gpt"}),
    ]
    assert [answer.status_code for answer in answers] == [400, 413, 404]
    assert client.get("/v1/models").json()["data"][0]["id"] == "pymllm-tiny"


def test_an_engine_that_fails_says_so_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests under way and later ones end with the error, and health is bad."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("pymllm.serving.runner.ModelRunner.compute", fail)
    with serving(Service(CONFIG)) as client:
        for _ in range(2):
            answer = client.post("/v1/completions", json={"prompt": PROMPT})
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "the engine has failed: RuntimeError: out of luck"
        assert client.get("/health").status_code == 500
        assert client.post("/reset_prefix_cache").status_code == 409


@pytest.mark.parametrize("architecture", ["dense", "window", "hybrid"])
def test_each_architecture_serves(architecture: str) -> None:
    """A prompt, the same warm, and another that shares a part of it."""
    config = ServerConfig(
        architecture, page_size=8, capacity=512, swa_capacity=256, max_context=256, check=True
    )
    with serving(Service(config)) as client:
        cold, warm = (complete(client, logprobs=1) for _ in range(2))
        assert cached(warm) == 56
        one, other = (it["choices"][0]["logprobs"]["token_logprobs"] for it in (cold, warm))
        assert one == pytest.approx(other, abs=1e-5)
        assert cached(complete(client, prompt=[*PROMPT[:30], *b"other words from here on"])) <= 24
        assert client.get("/health").json()["status"] == "ok"


def test_a_reset_in_which_the_engine_fails_is_answered(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody waits for ever: the cache was not emptied, and the failure is told from then on."""

    def fail(self: Engine) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Engine, "evict_everything", fail)
    with serving(service) as client:
        assert client.post("/reset_prefix_cache", timeout=10).status_code == 409
        assert "RuntimeError: out of order" in client.get("/health").text


def test_a_prompt_that_goes_on_with_an_answer_may_be_reset(client: httpx.Client) -> None:
    """E6: a hit on what the model has produced is none that an unlimited cache of prompts would lack."""
    body = {"prompt": PROMPT, "max_tokens": 16, "return_token_ids": True}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    longer = [*PROMPT, *choice["token_ids"], 65]
    usage = client.post("/v1/completions", json={"prompt": longer, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 72
    assert client.post("/reset_prefix_cache").json() == {"success": True}
