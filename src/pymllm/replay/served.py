"""A trace sent to a running server: prompts made from block ids, on the trace's clock or one by one.

Nothing of the recorded texts is known, so a prompt is made of its block ids: equal blocks have equal tokens,
drawn from a seed, and others have others. Ids are those of `pymllm.probing.programs.TOKENS`, which servers
know. Answers are streamed, so that the time to the first token is told.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import msgspec
import numpy as np

from pymllm.errors import TraceError, UsageError
from pymllm.probing.clients import Client, ServerFailed
from pymllm.probing.programs import TOKENS
from pymllm.text_file import cut, read_lines
from pymllm.traces.lines import UNREADABLE, reason
from pymllm.workloads.request import ARRIVAL_MS_MAX, LENGTH_MAX, Request

_REFUSALS = (400, 413, 422)
_SAID = 300  # letters of what a server says, which has its own bound in them
_LOOK_SECONDS = 0.2
"""The longest sleep in seconds, so that an interrupt is noticed."""

_UNUSED = ("logprobs", "n_probs", "return_logprob", "top_logprobs_num", "logprob_start_len")
"""Request fields that only a probe needs."""


def prompt_of(request: Request, seed: int) -> np.ndarray:
    """Return the tokens of a prompt (int64); equal blocks in equal namespaces have equal tokens."""
    digest = hashlib.blake2b(repr(request.namespace).encode(), digest_size=8).digest()
    space = int.from_bytes(digest, "big")
    size = min(request.block_tokens, request.prompt_length)
    blocks = [
        np.random.default_rng((seed, space, block)).integers(TOKENS.start, TOKENS.stop, size)
        for block in request.block_ids
    ]
    return np.concatenate(blocks)[: request.prompt_length]


_Seconds = Annotated[float, msgspec.Meta(ge=0, le=ARRIVAL_MS_MAX / 1000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=LENGTH_MAX)]


class Served(msgspec.Struct, frozen=True, tag="served", tag_field="op"):
    """The result of a request. Times are seconds since the first one was sent, without pauses between runs.

    ``cached`` is what the server says that it hit; ``answer`` are ids, where the server tells them.
    ``refusal`` is what it said instead of an answer.
    """

    request: _Count
    sent: _Seconds
    first: _Seconds
    end: _Seconds
    cached: _Count | None
    produced: _Count
    answer: tuple[_Count, ...] | None = None
    refusal: str | None = None


class ServedHead(msgspec.Struct, frozen=True, tag="pymllm.served", tag_field="schema"):
    """The first line of a file of results: a digest of the requests, and the seed of their tokens."""

    digest: str
    version: Literal[1] = 1


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Served).decode


# -- one request -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Told:
    """The content received from a stream so far."""

    cached: int | None = None
    produced: int = 0
    answer: list[int] | None = None


def _read_openai(plain: Any, told: _Told) -> None:
    for choice in plain.get("choices") or ():
        ids = choice.get("token_ids")
        told.produced += len(ids) if ids is not None else bool(choice.get("text"))
        if ids is not None:
            told.answer = [*(told.answer or ()), *ids]
    usage = plain.get("usage") or {}
    told.produced = usage.get("completion_tokens") or told.produced
    told.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", told.cached)


def _read_llama(plain: Any, told: _Told) -> None:
    told.answer = [*(told.answer or ()), *(plain.get("tokens") or ())]
    told.cached = (plain.get("timings") or {}).get("cache_n", told.cached)
    told.produced = plain.get("tokens_predicted") or len(told.answer)


def _read_sglang(plain: Any, told: _Told) -> None:
    meta = plain["meta_info"]
    told.cached = meta.get("cached_tokens", told.cached)
    told.produced = meta.get("completion_tokens", told.produced)
    if plain.get("output_ids"):
        told.answer = plain["output_ids"]


_READERS: dict[str, Callable[[Any, _Told], None]] = {
    "openai": _read_openai,
    "llama.cpp": _read_llama,
    "sglang": _read_sglang,
}


def ask(
    http: httpx.Client, client: Client, number: int, prompt: Sequence[int], max_tokens: int, begin: float
) -> Served:
    """Send a request and read its streamed answer; a server that fails raises `ServerFailed`."""
    body = client.body(prompt, max_tokens, None, is_cold=False, stream=True)
    body = {name: value for name, value in body.items() if name not in _UNUSED}
    if client.api == "openai":
        body["stream_options"] = {"include_usage": True}
    told, where = _Told(), f"POST {client.path}"
    sent = time.monotonic()
    first = None
    try:
        with http.stream("POST", client.path, json=body) as response:
            if response.status_code != 200:
                said = cut(" ".join(response.read().decode(errors="replace").split()), _SAID)
                refusal = f"{where} answered {response.status_code}: {said}"
                if response.status_code not in _REFUSALS:
                    raise ServerFailed(refusal)
                now = time.monotonic() - begin
                return Served(number, sent - begin, now, now, None, 0, refusal=refusal)
            for plain in _events(response.iter_lines()):
                if first is None:
                    first = time.monotonic()
                if plain.get("error"):
                    raise ServerFailed(f"{where} answered {cut(json.dumps(plain['error']))}")
                _READERS[client.api](plain, told)
    except httpx.HTTPError as error:
        raise ServerFailed(f"{where}: {type(error).__name__}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ServerFailed(f"{where} answered a stream that is none of {client.api}: {error}") from error
    if first is None:
        raise ServerFailed(f"{where} answered an empty stream")
    end, answer = time.monotonic(), None if told.answer is None else tuple(told.answer)
    found = Served(number, sent - begin, first - begin, end - begin, told.cached, told.produced, answer)
    try:  # it may say anything, and a file of results must be readable again
        return _DECODE(_ENCODE(found))
    except (*UNREADABLE, TypeError, OverflowError) as error:
        raise ServerFailed(f"{where} answered figures that are none: {reason(error)}") from error


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        name, _, data = (part.strip() for part in line.partition(":"))
        if name == "data" and data != "[DONE]":
            plain = json.loads(data)
            if not isinstance(plain, dict):
                raise ValueError(f"{cut(data)!r} is no object")
            yield plain


# -- all of them -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Play:
    """The result of sending a trace: one result per request, and the delay of the client."""

    results: dict[int, Served] = field(default_factory=dict)
    most_at_once: int = 0
    late_s: float = 0.0
    failure: str | None = None
    interruption: KeyboardInterrupt | None = None


@dataclass(frozen=True, slots=True)
class PlayPlan:
    """The plan by which a trace is sent.

    ``speed`` divides its times; ``None`` sends one request after another. At most ``most_running`` are under
    way; ``max_tokens`` bounds answers; after ``minutes`` no further request is sent.
    """

    seed: int = 0
    speed: float | None = 1.0
    most_running: int = 256
    max_tokens: int | None = None
    minutes: float | None = None


def play(
    http: httpx.Client,
    client: Client,
    requests: Sequence[Request],
    plan: PlayPlan,
    *,
    results: Mapping[int, Served] | None = None,
    keep: Callable[[Served], None] = lambda it: None,
    show: Callable[[int], None] | None = None,
) -> Play:
    """Send the requests that have no result yet, and return all results; ``keep`` receives each new one.

    A request that waits for others is sent once they have ended, its delay later. A server that fails ends
    the play, as does an interrupt, and what was answered until then is returned.
    """
    done = Play(dict(results or {}))
    clock = _Clock([it for it in requests if it.request_id not in done.results], plan, done)
    begin = time.monotonic() - clock.offset  # what was answered before comes before
    running: dict[Future[Served], int] = {}
    pool = ThreadPoolExecutor(1 if plan.speed is None else plan.most_running, "request")
    try:
        while clock.has_more or running:
            now = time.monotonic() - begin
            is_over = plan.minutes is not None and now - clock.offset > 60 * plan.minutes
            while not is_over and len(running) < pool._max_workers and (it := clock.take(now)) is not None:
                done.late_s = max(done.late_s, clock.late)
                most = it.output_length if plan.max_tokens is None else min(it.output_length, plan.max_tokens)
                tokens = prompt_of(it, plan.seed).tolist()
                running[pool.submit(ask, http, client, it.request_id, tokens, most, begin)] = it.request_id
            done.most_at_once = max(done.most_at_once, len(running))
            if is_over and not running:
                break
            if not running:
                time.sleep(min(_LOOK_SECONDS, max(0.0, clock.next_at - now)))
                continue
            soon = _LOOK_SECONDS if is_over else min(_LOOK_SECONDS, max(0.001, clock.next_at - now))
            for future in wait(running, soon, FIRST_COMPLETED).done:
                del running[future]
                served = future.result()
                done.results[served.request] = served
                keep(served)
                clock.end(served)
                if show is not None:
                    show(len(done.results))
    except ServerFailed as error:
        done.failure = str(error)
    except KeyboardInterrupt as interruption:
        done.interruption = interruption
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return done


class _Clock:
    """The schedule of requests, in seconds since sending began."""

    def __init__(self, requests: Sequence[Request], plan: PlayPlan, done: Play) -> None:
        self._is_serial = plan.speed is None
        self._scale = 1000 * (plan.speed or 1.0)
        self.offset = max((it.end for it in done.results.values()), default=0.0)
        self._begin = requests[0].arrival_ms if requests else 0.0
        self._requests = {it.request_id: it for it in requests}
        self._awaited = {
            it.request_id: {other for other in it.wait_for if other in self._requests} for it in requests
        }
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        self._due: list[tuple[float, int]] = []
        self.late = 0.0
        for it in requests:
            for other in self._awaited[it.request_id]:
                self._children[other].append(it.request_id)
            if self._is_serial or not self._awaited[it.request_id]:
                # What it waited for was answered in an earlier run.
                waited = bool(it.wait_for) and it.delay_ms is not None
                at = self.offset if self._is_serial or waited else self._at(it)
                heapq.heappush(self._due, (at, it.request_id))
        self._left = len(requests)

    @property
    def has_more(self) -> bool:
        """Whether any request has not been taken."""
        return bool(self._left)

    @property
    def next_at(self) -> float:
        """The time at which the next request is due, or infinity if none is known."""
        return self._due[0][0] if self._due else float("inf")

    def take(self, now: float) -> Request | None:
        """Return the next request that is due, or ``None``."""
        if not self._due or self._due[0][0] > now:
            return None
        due, number = heapq.heappop(self._due)
        self.late = 0.0 if self._is_serial else now - due
        self._left -= 1
        return self._requests[number]

    def end(self, served: Served) -> None:
        """Record that a request ended, which may make others due."""
        if self._is_serial:
            return
        for number in self._children.pop(served.request, ()):
            awaited, it = self._awaited[number], self._requests[number]
            awaited.discard(served.request)
            if not awaited:
                after = served.end + (it.delay_ms or 0.0) / self._scale
                at = after if it.delay_ms is not None else max(after, self._at(it))
                heapq.heappush(self._due, (at, number))

    def _at(self, request: Request) -> float:
        return self.offset + max(0.0, request.arrival_ms - self._begin) / self._scale


# -- what a file keeps -------------------------------------------------------------------------------------


def digest_of(requests: Sequence[Request], plan: PlayPlan) -> str:
    """Return a digest of requests and of the seed of their tokens, which identifies results."""
    digest, encoder = hashlib.sha256(f"{plan.seed} {plan.max_tokens}".encode()), msgspec.msgpack.Encoder()
    for request in requests:
        digest.update(encoder.encode(request))
    return digest.hexdigest()


def read_served(path: Path, requests: Sequence[Request], plan: PlayPlan) -> dict[int, Served]:
    """Return the results in a file by request, without an incomplete last line.

    A file of other requests is a `UsageError`; one that has something else in it, a `TraceError`.
    """
    if not path.exists():
        return {}
    known = {it.request_id for it in requests}
    found: dict[int, Served] = {}
    lines = list(read_lines(path))
    for number, text in lines:
        try:
            if number == 1:
                head = msgspec.json.decode(text, type=ServedHead)
                if head.digest != digest_of(requests, plan):
                    raise UsageError(
                        f"--keep {path} has results of other requests, or of another --seed or --max-tokens; "
                        "name another file"
                    )
                continue
            served = _DECODE(text)
        except UNREADABLE as error:
            if number == len(lines) > 1 and not text.endswith("\n"):
                break
            what = "the first line of a file of results" if number == 1 else "a result of a request"
            raise TraceError(str(path), number, f"not {what}: {reason(error)}; name another file") from error
        if served.request not in known:
            raise TraceError(str(path), number, f"request is {served.request}, which the trace does not have")
        if not served.sent <= served.first <= served.end:
            times = f"{served.sent}, {served.first}, {served.end}"
            raise TraceError(str(path), number, f"sent, first and end are {times}, must be in this order")
        found[served.request] = served
    return found
