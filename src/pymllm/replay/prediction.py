"""Predictions of a server's hits for each request, and the kinds of differences from real hits.

The model is that of `pymllm curve`: a radix tree with lru, of whole pages. Each request is served alone, in
the order in which they were sent, and leaves its prompt and its answer in the cache. A server computes at
least one token of a prompt, so that the last page of one that is cached whole is not predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymllm.documents.served import KINDS, ServedDifference, ServedKind, TimesToFirst
from pymllm.replay.serial import SerialConfig, SerialReplay
from pymllm.replay.served import Served, prompt_of
from pymllm.workloads.request import Request

_ENDED, _SENT = 1, 2
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Predicted:
    """An answered request with its predicted hits and the kind of difference, one of `KINDS`.

    - ``tokens``: What a server with the whole capacity, and one request at a time, would hit; ``None`` for a
      prompt of more than half the capacity.
    - ``curve_tokens``: The same without the token that a server has to compute.
    """

    request: Request
    served: Served
    tokens: int | None
    curve_tokens: int
    kind: str


def predict(
    requests: Mapping[int, Request], answered: Sequence[Served], *, seed: int, page_size: int, capacity: int
) -> list[Predicted]:
    """Predict the hits of answered requests, in the order in which they were sent."""
    in_order = sorted(answered, key=lambda it: (it.sent, it.request))
    config = SerialConfig(page_size=page_size, capacity=capacity)
    meanwhile = _while_under_way(requests, in_order, config, seed)
    cache = SerialReplay(config)
    found = []
    for it in in_order:
        request = requests[it.request]
        prompt = prompt_of(request, seed)
        if _is_long(it, request, capacity):
            found.append(Predicted(request, it, None, 0, "not predicted"))
            continue
        evicted = cache.evicted_tokens > 0
        hit = cache.serve(prompt, None)
        if it.produced > 1:
            cache.serve(_with_answer(prompt, it, request), None)
        tokens = _usable(hit, len(prompt), page_size)
        kind = _kind(it.cached, tokens, meanwhile[it.request], evicted)
        found.append(Predicted(request, it, tokens, hit, kind))
    return found


def _kind(cached: int | None, predicted: int, meanwhile: set[int], evicted: bool) -> str:
    if cached is None:
        return "not told"
    if cached == predicted:
        return "equal"
    if min(meanwhile) <= cached <= max(meanwhile):
        return "under way"
    if evicted:
        return "after evictions"
    return "more" if cached > predicted else "fewer"


def _while_under_way(
    requests: Mapping[int, Request], in_order: Sequence[Served], config: SerialConfig, seed: int
) -> dict[int, set[int]]:
    """Return the predicted hits of each request as it was sent, and just before its first token.

    A server takes a request up between the two. Prompts are cached by then whose first token had come, and
    answers that had ended.
    """
    cache = SerialReplay(config)
    by_request = {it.request: it for it in in_order}
    events = sorted(
        (at, rank, it.request)
        for it in in_order
        for rank, at in enumerate((it.first, it.end, it.sent))  # what came by then is cached
        if not _is_long(it, requests[it.request], config.capacity)
    )
    found: dict[int, set[int]] = {}
    for _, rank, number in events:
        it, prompt = by_request[number], prompt_of(requests[number], seed)
        if rank == _ENDED:
            if it.produced > 1:
                cache.serve(_with_answer(prompt, it, requests[number]), None)
            continue
        hit = cache.look(prompt) if rank == _SENT else cache.serve(prompt, None)
        found.setdefault(number, set()).add(_usable(hit, len(prompt), config.page_size))
    return found


def _is_long(it: Served, request: Request, capacity: int) -> bool:
    """Tell whether a request exceeds half of the capacity, the limit of the serial model."""
    return request.prompt_length + max(0, it.produced - 1) > capacity // 2


def _usable(hit: int, length: int, page_size: int) -> int:
    """Return the hits that a server can use: whole pages that leave at least one token to compute."""
    return min(hit, (length - 1) // page_size * page_size)


def _with_answer(prompt: np.ndarray, it: Served, request: Request) -> np.ndarray:
    """Return a prompt with its answer, except the last token, which is not computed; unknown ids are new."""
    if it.answer is not None and len(it.answer) == it.produced:
        answer = np.asarray(it.answer, dtype=prompt.dtype)
    else:
        answer = replace(request, output_length=it.produced).output().astype(prompt.dtype)
    return np.concatenate([prompt, answer[:-1]])


# -- summed up ---------------------------------------------------------------------------------------------


def kinds_of(predicted: Sequence[Predicted]) -> Iterator[ServedKind]:
    """Yield each kind of difference that occurs, with its requests and their tokens."""
    for kind in KINDS:
        its = [it for it in predicted if it.kind == kind]
        if its:
            cached = sum(it.served.cached or 0 for it in its)
            prompts = sum(it.request.prompt_length for it in its)
            yield ServedKind(kind, len(its), prompts, cached, sum(it.tokens or 0 for it in its))


def differences_in(predicted: Sequence[Predicted], most: int) -> Iterator[ServedDifference]:
    """Yield the first requests that differ, in sending order."""
    differing = [it for it in predicted if it.tokens is not None and it.kind not in ("equal", "not told")]
    for it in differing[:most]:
        yield ServedDifference(
            it.request.request_id, it.kind, it.request.prompt_length, it.served.cached or 0, it.tokens or 0
        )


def first_tokens_of(predicted: Sequence[Predicted]) -> Iterator[TimesToFirst]:
    """Yield times to the first token, grouped by the share of a prompt that hit."""
    low = -1.0
    for most in _SHARES:
        times = [
            it.served.first - it.served.sent
            for it in predicted
            if low < (it.served.cached or 0) / it.request.prompt_length <= most
        ]
        low = most
        if times:
            p90, p99 = (float(np.percentile(times, share)) for share in (90, 99))
            yield TimesToFirst(most, len(times), statistics.median(times), p90, p99)
