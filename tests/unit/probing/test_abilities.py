"""What a server of unknown making can do, found out by asking servers that are made up here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from pymllm.faults.plant import planted
from pymllm.faults.table import SERVERS, find_faults
from pymllm.oracle.verdicts import Verdict
from pymllm.probing.abilities import find_abilities, speak_alike
from pymllm.probing.clients import Client, LlamaCpp, OpenAI, Sglang, connect, make_http
from pymllm.probing.laws import LAWS
from pymllm.probing.search import ProbePlan, Servers, probe, shrink
from pymllm.serving.background import serving
from pymllm.serving.service import ServerConfig, Service

Answer = Callable[[dict[str, Any], list[Any]], tuple[int, dict[str, Any]]]


def complete(
    body: dict[str, Any],
    seen: list[Any],
    *,
    refuses: Sequence[str] = (),
    reads_salt: bool = True,
    caches: bool = True,
    added: int = 0,
) -> tuple[int, dict[str, Any]]:
    """Answer as a server that caches whole prompts, in namespaces if it reads them."""
    if {*refuses} & {*body} or ("ids" in refuses and isinstance(body["prompt"], list)):
        return 422, {"detail": "no"}
    is_text = isinstance(body["prompt"], str)
    key = (body.get("cache_salt") if reads_salt else None, str(body["prompt"]))
    cached = len(body["prompt"]) - 1 if caches and key in seen else 0
    seen.append(key)
    choice = {"text": "a", "logprobs": {"tokens": ["a"], "top_logprobs": [{"a": -0.1, "b": -3.0}]}}
    if body.get("return_token_ids"):
        choice["token_ids"] = [97]
    usage = {
        "prompt_tokens": len(body["prompt"]) + (0 if is_text else added),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return 200, {"choices": [choice], "usage": usage}


def found(longest: int = 160, claims: bool = False, **how: Any) -> tuple[OpenAI, list[Any]]:
    """Return a client that has asked such a server, and what that has seen."""
    seen = list[Any]()

    def handle(request: httpx.Request) -> httpx.Response:
        status, plain = complete(json.loads(request.content), seen, **how)
        return httpx.Response(status, json=plain)

    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://here") as http:
        client = OpenAI(http, "stranger", "m")
        find_abilities(client, longest, claims_namespaces=claims)
    return client, seen


def test_a_stranger_gets_what_it_can_do() -> None:
    """Token ids both ways, and namespaces that it keeps apart, by eight requests that share no beginning."""
    client, seen = found()
    assert (client.has_ids, client.returns_ids, client.has_salts, client.ways) == (
        True,
        True,
        True,
        ("salt",),
    )
    assert len(seen) == 8
    assert all(prompt.startswith("[10, ") for _, prompt in seen)
    short, seen = found(longest=32)
    assert short.has_salts
    assert {len(json.loads(prompt)) for _, prompt in seen} == {32}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"refuses": ["cache_salt"]}, "the server refuses cache_salt, or tells no cached tokens"),
        ({"caches": False}, "a prompt that was asked twice with the same cache_salt was not served"),
        ({"reads_salt": False}, "the server takes cache_salt, and serves what another one has asked; --api"),
    ],
)
def test_namespaces_that_are_not_seen_are_not_used(how: dict[str, Any], why: str) -> None:
    """A field that is taken and ignored is no fault, unless the server claims namespaces."""
    client, _ = found(**how)
    assert not client.has_salts
    assert client.no_salts.startswith(why)
    assert "cache_salt" not in client.body((33,), 1, "a", is_cold=False)
    claimed, _ = found(claims=True, **how)
    assert (claimed.has_salts, claimed.no_salts) == (True, "")


@pytest.mark.parametrize("how", [{"refuses": ["ids"]}, {"added": 300}, {"added": -2}])
def test_prompts_are_texts_where_token_ids_are_refused_or_miscounted(how: dict[str, Any]) -> None:
    """Then tokens of answers are texts, too."""
    client, _ = found(**how)
    assert (client.has_ids, client.returns_ids) == (False, False)
    assert client.body((72, 105), 1, None, is_cold=False)["prompt"] == "Hi"
    choice = {"text": "a", "token_ids": [97], "logprobs": {"tokens": ["a"]}}
    assert client.read((72,), {"choices": [choice]}).tokens is None


def test_a_token_before_each_prompt_is_no_miscount() -> None:
    """Such as the beginning of a sequence; and a server may tell no ids of its answers."""
    client, _ = found(added=1, refuses=["return_token_ids"])
    assert (client.has_ids, client.returns_ids, client.has_salts) == (True, False, True)
    assert "return_token_ids" not in client.body((33,), 1, "a", is_cold=False)


def test_a_failure_is_left_to_the_probe() -> None:
    """Nothing is found out, and the probe meets the same failure."""

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, text="loading")

    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://here") as http:
        client = OpenAI(http, "stranger", "m")
        find_abilities(client, 160)
    assert (client.has_ids, client.has_salts) == (True, False)


def test_sglang_is_asked_for_its_field_and_llama_cpp_for_nothing() -> None:
    """`extra_key` where two of them share nothing."""
    asked, seen = list[dict[str, Any]](), set[tuple[str, str]]()

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body)
        key = (body["extra_key"], str(body["input_ids"]))
        cached = 100 * (key in seen)
        seen.add(key)
        meta = {"output_token_logprobs": [[-0.5, 7, None]], "cached_tokens": cached}
        return httpx.Response(200, json={"meta_info": meta})

    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://here") as http:
        clients: list[Client] = [Sglang(http, "sglang"), LlamaCpp(http, "llamacpp")]
        for client in clients:
            find_abilities(client, 160)
    assert [client.has_salts for client in clients] == [True, False]
    assert len(asked) == 6
    assert clients[0].body((33,), 1, "a", is_cold=False)["extra_key"] == "a"
    assert clients[0].ways == ("salt", "reset")


def test_two_servers_are_asked_in_the_form_that_both_have() -> None:
    """Their answers are compared token by token."""
    one, other = found()[0], found(refuses=["ids"])[0]
    speak_alike(one, other)
    assert [(it.has_ids, it.returns_ids) for it in (one, other)] == [(False, False)] * 2


def test_texts_are_probed_as_token_ids_are() -> None:
    """Warm answers are cold ones; what needs the number of tokens is not claimed, and nothing is unknown."""
    with serving(Service(ServerConfig())) as url, make_http(url, 60) as http:
        client = connect(http, "auto")
        client.has_ids = False
        done = probe(Servers(client), ProbePlan(requests=15, longest=96, max_tokens=2, seed=1))
    verdicts = {law: done.judgement.verdict_of(law) for law in LAWS}
    assert (done.failure, done.history.head.has_ids) == (None, False)
    assert verdicts.pop("V5") is verdicts.pop("V7") is Verdict.NOT_CLAIMED
    assert {*verdicts.values()} == {Verdict.HOLDS}
    assert done.judgement.largest < 1e-5


def test_a_strangers_namespaces_are_judged_if_it_keeps_or_claims_them() -> None:
    """With a salt that is ignored V5 is not claimed; with the claim it is broken, and shrunk."""
    plan = ProbePlan(requests=15, longest=96, max_tokens=2)
    (fault,) = find_faults(["B273-server"], SERVERS)

    def probed(claims: bool = False) -> Any:
        with serving(Service(ServerConfig())) as url, make_http(url, 60) as http:
            client = connect(http, "auto")
            stranger = OpenAI(http, "stranger", client.model)
            stranger.reset_path = client.reset_path
            find_abilities(stranger, plan.longest, claims_namespaces=claims)
            done = probe(Servers(stranger), plan)
            if done.judgement.violation is not None:
                shrink(Servers(stranger), done, 5)
            return done

    assert probed().judgement.verdict_of("V5") is Verdict.HOLDS
    with planted(fault.edits):
        ignored, claimed = probed(), probed(claims=True)
    assert ignored.judgement.violation is None
    assert ignored.judgement.verdict_of("V5") is Verdict.NOT_CLAIMED
    assert ignored.judgement.reasons["V5"].startswith("the server takes cache_salt, and serves")
    assert ignored.history.head.cold == "reset"
    assert claimed.judgement.violation.law == "V5"
    assert len(claimed.smallest.steps) == 2
