"""The clients, by what real servers have answered them."""

from __future__ import annotations

import socket
from threading import Thread

import httpx

from pymllm.probing.clients import LlamaCpp, OpenAI, make_http, read_figures, request_json
from pymllm.probing.records import Figures, Place

PROMPT = (65, 66, 67, 68, 69, 70)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}"


def test_a_connection_that_the_server_gives_up_is_not_used_again() -> None:
    """A server that hangs up at the second request of a connection, as at one that it found idle too long."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    while not connection.recv(1 << 16).endswith(b"}"):
                        continue
                    connection.sendall(ANSWER)
                    connection.recv(1 << 16)  # until the client leaves, or asks for more

        thread = Thread(target=serve, daemon=True)
        thread.start()
        with make_http(f"http://127.0.0.1:{listening.getsockname()[1]}", 10) as http:
            assert [request_json(http, "POST", "/", {"at": at}) for at in range(2)] == [{}, {}]
        thread.join(10)


# Answers of llama.cpp 11434 and vLLM 0.32.0 to prompts of these tests' own, without what nobody reads.


def entry(id: int, logprob: float, *others: dict[str, object]) -> dict[str, object]:
    """Return what llama.cpp says of one token, beside the best ones at its place if any."""
    told: dict[str, object] = {"id": id, "token": chr(id), "bytes": [id], "logprob": logprob}
    return told | ({"top_logprobs": [told, *others]} if others else {})


def test_an_answer_of_llama_cpp() -> None:
    """Its cached tokens are those of the prompt, and not what the slot has by now."""
    plain = {
        "index": 0,
        "content": "hubl",
        "tokens": [300, 135],
        "stop": True,
        "tokens_predicted": 2,
        "tokens_evaluated": 6,
        "stop_type": "limit",
        "tokens_cached": 7,
        "timings": {"cache_n": 5, "prompt_n": 1, "predicted_n": 2},
        "completion_probabilities": [
            entry(300, -2.74513578414917, entry(58, -2.786102771759033)),
            entry(135, -2.3497474193573, entry(215, -3.1956968307495117)),
        ],
    }
    with httpx.Client() as http:
        answer = LlamaCpp(http, "llamacpp").read(PROMPT, plain)
    assert answer.places == (
        Place(300, ((300, -2.74513578414917), (58, -2.786102771759033))),
        Place(135, ((135, -2.3497474193573), (215, -3.1956968307495117))),
    )
    assert (answer.cached, answer.prompt_tokens, answer.generated, answer.is_stopped) == (5, 6, 2, False)


def test_an_answer_of_vllm() -> None:
    """Tokens are ids; alternatives have names that are made of ids, for two tokens may have one text."""
    tops = [
        {"token_id:186": -2.49979305267334, "token_id:215": -2.617328643798828},
        {"token_id:40": -3.0451815128326416, "token_id:181": -3.069852590560913},
    ]
    choice = {
        "index": 0,
        "text": "dk(",
        "logprobs": {"tokens": ["token_id:186", "token_id:40"], "top_logprobs": tops},
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [186, 40],
    }
    details = {"cached_tokens": 32, "created_cache_tokens": None, "multimodal_tokens": None}
    usage = {
        "prompt_tokens": 35,
        "total_tokens": 37,
        "completion_tokens": 2,
        "prompt_tokens_details": details,
    }
    with httpx.Client() as http:
        answer = OpenAI(http, "vllm", "m").read(PROMPT, {"choices": [choice], "usage": usage})
    assert answer.tokens == (186, 40)
    assert [place.top for place in answer.places] == [(*tops[0].items(),), (*tops[1].items(),)]
    assert (answer.cached, answer.prompt_tokens, answer.generated, answer.is_stopped) == (32, 35, 2, False)


def test_metrics_of_both() -> None:
    """Lines of parts are no sums, nor are times of creation; llama.cpp tells only what runs and waits."""
    engine, creation = 'vllm:{}{{engine="0",model_name="m"{}}} {}', "1.7959460829856486e+09"
    lines = [
        engine.format("num_requests_running", "", "0.0"),
        engine.format("num_requests_waiting", "", "0.0"),
        engine.format("num_requests_waiting_by_reason", ',reason="capacity"', "3.0"),
        engine.format("kv_cache_usage_perc", "", "0.0"),
        engine.format("prompt_tokens_total", "", "35.0"),
        engine.format("prompt_tokens_created", "", creation),
        engine.format("prompt_tokens_by_source_total", ',source="local_compute"', "3.0"),
        engine.format("prompt_tokens_cached_total", "", "32.0"),
        engine.format("generation_tokens_total", "", "2.0"),
        engine.format("request_success_total", ',finished_reason="stop"', "1.0"),
        engine.format("request_success_total", ',finished_reason="length"', "2.0"),
        engine.format("request_success_created", ',finished_reason="stop"', creation),
    ]
    told = Figures(running=0, waiting=0, memory=0, prompt_tokens=35, generated=2, finished=3)
    assert read_figures("\n".join(lines)) == told
    names = ("prompt_tokens_total 7", "prompt_tokens_cached_total 5", "tokens_predicted_total 4")
    lines = [f"llamacpp:{line}" for line in (*names, "requests_processing 1", "requests_deferred 0")]
    assert read_figures("\n".join(lines)) == Figures(running=1, waiting=0)
