"""The HTTP application of the embedded server: completions with token ids, metrics, and a cache reset."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pymllm import __version__
from pymllm.serving.service import TOP_LOGPROBS, Ended, Job, Produced, Service, Told
from pymllm.serving.tiny_model import VOCABULARY

MODEL = "pymllm-tiny"
"""The name of the only model."""

_BODY_BYTES = 1 << 20


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class CompletionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/completions``, with the fields of OpenAI's that this server supports.

    A field that this server has not is taken at the value that changes nothing. ``cache_salt`` and
    ``return_token_ids`` are vLLM's. ``temperature`` is 0 unless it is given.
    """

    prompt: str | list[int | str | list[int]]
    model: str = MODEL
    max_tokens: int = 16
    temperature: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    cache_salt: str | None = None
    return_token_ids: bool = False
    user: str | None = None
    n: int = 1
    best_of: int = 1
    echo: bool = False
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: list[str] | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None


_ONLY = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
_UNSET = ("stop", "suffix", "logit_bias")


class _Refused(Exception):
    """Raised for a request that this server does not support, with the status and the field."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


def make_app(service: Service) -> Starlette:
    """Return the application for a service, which the application starts and closes."""
    registry = CollectorRegistry()
    registry.register(_ServiceCollector(service))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)

    async def complete(request: Request) -> Response:
        try:
            asked = _read(await _body(request))
            prompt = _tokens_of(asked)
        except _Refused as error:
            return _error(str(error), error.status, error.field)
        return await _Completion(service, asked, prompt).answer(request)

    async def list_models(request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "pymllm"}]}
        )

    async def tell_health(request: Request) -> Response:
        if service.failure is not None:
            return _error(service.failure, 500)
        return JSONResponse({"status": "ok", "version": __version__})

    async def tell_metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    async def reset(request: Request) -> Response:
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(is_done: bool) -> None:
            loop.call_soon_threadsafe(done.set_result, is_done)

        service.reset(tell)
        if await done:
            return JSONResponse({"success": True})
        return _error("requests run or wait, so the cache was not emptied; try again once none does", 409)

    return Starlette(
        routes=[
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/health", tell_health),
            Route("/metrics", tell_metrics),
            Route("/reset_prefix_cache", reset, methods=["POST"]),
        ],
        lifespan=lifespan,
    )


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _BODY_BYTES:
            raise _Refused(f"the body has more than {_BODY_BYTES} bytes", status=413)
    return bytes(body)


def _read(body: bytes) -> CompletionRequest:
    try:
        asked = msgspec.json.decode(body, type=CompletionRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _Refused(f"the body is no completion request: {error}") from error
    if asked.model != MODEL:
        raise _Refused(f"model is {asked.model!r}; there is only {MODEL!r}", "model", 404)
    for name, only in _ONLY.items():
        if getattr(asked, name) != only:
            raise _Refused(f"{name} is {getattr(asked, name)}; this server has only {only}", name)
    for name in _UNSET:
        if getattr(asked, name):
            raise _Refused(f"this server has no {name}; leave it out", name)
    if asked.max_tokens < 1:
        raise _Refused(f"max_tokens is {asked.max_tokens}; it must be at least 1", "max_tokens")
    if not 0 <= asked.temperature <= 100:
        raise _Refused(f"temperature is {asked.temperature}; it must be in 0..100", "temperature")
    if not 0 <= asked.seed < 1 << 63:
        raise _Refused(f"seed is {asked.seed}; it must be in 0..{(1 << 63) - 1}", "seed")
    if asked.logprobs is not None and not 0 <= asked.logprobs <= TOP_LOGPROBS:
        raise _Refused(f"logprobs is {asked.logprobs}; it must be in 0..{TOP_LOGPROBS}", "logprobs")
    return asked


def _tokens_of(asked: CompletionRequest) -> list[int]:
    prompt: Any = asked.prompt
    if isinstance(prompt, list) and prompt and not any(isinstance(part, int) for part in prompt):
        if len(prompt) > 1:
            raise _Refused(f"there are {len(prompt)} prompts; send one at a time", "prompt")
        [prompt] = prompt
    if isinstance(prompt, list) and not all(isinstance(part, int) for part in prompt):
        raise _Refused("a prompt is a text or a list of token ids", "prompt")
    if isinstance(prompt, str):
        if not prompt.isascii():
            wrong = next(char for char in prompt if not char.isascii())
            raise _Refused(f"the prompt has {wrong!r}; this model knows ASCII alone", "prompt")
        prompt = [*prompt.encode()]
    if not prompt:
        raise _Refused("the prompt is empty; it must have at least one token", "prompt")
    for token in prompt:
        if not 0 <= token < VOCABULARY:
            raise _Refused(f"the prompt has token {token}; tokens are 0..{VOCABULARY - 1}", "prompt")
    tokens: list[int] = prompt
    return tokens


def _error(message: str, status: int, field: str | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": field, "code": status}}, status)


class _Completion:
    """One completion request while the engine serves it."""

    def __init__(self, service: Service, asked: CompletionRequest, prompt: list[int]) -> None:
        self._asked = asked
        self._prompt = prompt
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[Told] = asyncio.Queue()
        self._head = {"object": "text_completion", "created": int(time.time()), "model": MODEL}
        job = Job(
            prompt,
            asked.max_tokens,
            self._hear,
            salt=asked.cache_salt,
            temperature=asked.temperature,
            seed=asked.seed,
            top=asked.logprobs or 0,
        )
        self._number = service.submit(job)
        self._head["id"] = f"cmpl-{self._number}"

    def _hear(self, told: Told) -> None:
        # The loop is closed where the server ends before its last request does.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told.put_nowait, told)

    async def answer(self, request: Request) -> Response:
        """Answer as a whole, or as a stream after the first token; cancel the job if the client leaves."""
        leaving = asyncio.ensure_future(_until_disconnect(request))
        try:
            first = await self._next(leaving)
            if isinstance(first, Ended) and first.error is not None:
                return _error(first.error, 400 if first.is_refused else 500)
            if self._asked.stream:
                return StreamingResponse(self._stream(first), media_type="text/event-stream")
            produced: list[Produced] = []
            told = first
            while isinstance(told, Produced):
                produced.append(told)
                told = await self._next(leaving)
            if told.error is not None:
                return _error(told.error, 500)
            choice = self._choice(produced, 0, "length")
            if self._asked.return_token_ids:
                choice["prompt_token_ids"] = self._prompt
            return JSONResponse({**self._head, "choices": [choice], "usage": self._usage(produced, told)})
        finally:
            leaving.cancel()

    async def _next(self, leaving: asyncio.Future[None]) -> Told:
        """Wait for the next token or the end; cancel the job if the client leaves."""
        telling = asyncio.ensure_future(self._told.get())
        either: list[asyncio.Future[Any]] = [telling, leaving]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not telling.done():
            self._service.abort(self._number)
        return await telling

    async def _stream(self, first: Told) -> AsyncIterator[str]:
        told, count, produced = first, 0, []
        try:
            while isinstance(told, Produced):
                produced.append(told)
                is_last = len(produced) == self._asked.max_tokens
                choice = self._choice([told], count, "length" if is_last else None)
                yield _event({**self._head, "choices": [choice]})
                count += 1
                told = await self._told.get()
        finally:
            self._service.abort(self._number)
        if told.error is not None:
            yield _event(
                {"error": {"message": told.error, "type": "server_error", "param": None, "code": 500}}
            )
            return
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            yield _event({**self._head, "choices": [], "usage": self._usage(produced, told)})
        yield "data: [DONE]\n\n"

    def _choice(self, produced: list[Produced], offset: int, reason: str | None) -> dict[str, Any]:
        tokens = [told.token for told in produced]
        choice: dict[str, Any] = {"index": 0, "text": "".join(map(chr, tokens)), "finish_reason": reason}
        choice["logprobs"] = None
        if self._asked.logprobs is not None:
            choice["logprobs"] = {
                "text_offset": [offset + at for at in range(len(tokens))],
                "tokens": [chr(token) for token in tokens],
                "token_logprobs": [told.logprob for told in produced],
                "top_logprobs": [{chr(token): value for token, value in told.top} for told in produced],
            }
        if self._asked.return_token_ids:
            choice["token_ids"] = tokens
        return choice

    def _usage(self, produced: list[Produced], ended: Ended) -> dict[str, Any]:
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": len(produced),
            "total_tokens": len(self._prompt) + len(produced),
            "prompt_tokens_details": {"cached_tokens": ended.cached_tokens},
        }


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _ServiceCollector:
    """The metrics of a service for Prometheus, with vLLM's names after this package's prefix."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> list[Metric]:
        """Yield the present metrics."""
        now = self._service.counters
        gauges = {
            "num_requests_running": ("Requests that own a row.", now.running),
            "num_requests_waiting": ("Requests that wait for memory or a row.", now.waiting),
            "kv_cache_usage_perc": ("Share of the slots that requests hold, 0 to 1.", now.kv_in_use),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens of admitted requests.", now.prompt_tokens),
            "cached_tokens": ("Prompt tokens that the cache served.", now.cached_tokens),
            "generation_tokens": ("Tokens produced.", now.produced_tokens),
            "request_success": ("Requests that were finished.", now.finished),
            "request_aborted": ("Requests that were given up.", now.aborted),
            "num_preemptions": ("Requests put back for want of memory.", now.preemptions),
        }
        return [
            *(GaugeMetricFamily(f"pymllm:{name}", text, value) for name, (text, value) in gauges.items()),
            *(CounterMetricFamily(f"pymllm:{name}", text, value) for name, (text, value) in counters.items()),
        ]
