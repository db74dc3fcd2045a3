"""The laws of servers: a function for each, over one answer or over metrics.

The docstring is the law's whole text, as of the laws of `pymllm.oracle.laws`: a sentence, what is demanded,
and the sections "Why", "Choices", "Caller" and "Engines". ``docs/specification/servers.md`` is printed from
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.laws.law import Broken, Found, TextCheck, TextLaw, demand, enter_in
from pymllm.probing.comparison import LARGEST, Compared
from pymllm.probing.records import Answer, Figures, Way


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """The circumstances of one answer that a law is checked on.

    ``own`` and ``any`` are the longest prefixes of its prompt that its namespace, and any namespace, has
    seen since the cache was emptied; ``None`` where earlier contents of the cache are unknown. ``before`` is
    as ``own``, with what came before that; ``None`` where nothing was emptied. ``beside`` is how many others
    ran at the same time. ``compared`` is its distance from the same request asked cold and alone, once that
    is known. ``lead`` is how many tokens the server puts before each prompt; ``None`` where texts were sent.
    """

    request: int
    answer: Answer
    beside: int
    own: int | None = None
    any: int | None = None
    before: int | None = None
    cold: Way | None = None  # the way in which it was made cold; None: as anybody asks
    has_salts: bool = False
    compared: Compared | None = None
    tolerance: float = 0.0
    lead: int | None = None

    @property
    def prompt(self) -> int:
        """The number of prompt tokens, including tokens that the server puts in front."""
        return max(len(self.answer.prompt), self.answer.prompt_tokens or 0)

    @property
    def added(self) -> int:
        """The number of tokens that the server put before the prompt, such as a start token."""
        return self.prompt - len(self.answer.prompt)

    @property
    def is_left_over(self) -> bool:
        """Whether more is cached than its namespace has seen since the reset, but no more than before it."""
        cached, seen, before = self.answer.cached, self.own, self.before
        if cached is None or seen is None or before is None:
            return False
        return seen + self.added < cached <= before + self.added


@dataclass(frozen=True, slots=True)
class FiguresSeen:
    """The metrics of a server, with the sums of the requests since the first reading.

    Sums lie between two bounds where streams were dropped: nobody tells how far those came.
    """

    first: Figures
    now: Figures
    requests: int
    prompt_tokens: tuple[int, int]
    generated: tuple[int, int]


LAWS: dict[str, TextLaw] = {}
"""The laws by id, in the specification's order."""

_law = enter_in(LAWS)

EXACT_REUSE = "exact-reuse"
"""The claim that everything served from the cache is a prefix, exactly as it was computed."""
CLAIMS: dict[str, tuple[str, ...]] = {EXACT_REUSE: ("V1", "V5")}
"""Claims that a server may not make, with the laws that then do not apply; V3 keeps its first half."""


@_law
def v1(seen: AnswerSeen) -> Found:
    """An answer does not depend on what the cache holds.

    A request that is served from the cache, in whole or in part, gets the same answer as the same request
    cold and alone. At each position the log-probabilities of the best tokens are equal, up to the tolerance,
    and so is the token, unless its lead over the second token is within the tolerance. Only a request that
    was served from the cache is a test: an answer with 0 reported cached tokens is no test.

    Why
    ---
    Every error of a cache shows here: a slot reused too early, a table with another request's block, a state
    of other tokens, a window whose first half is gone. The answer is fluent and wrong.

    Choices
    -------
    How much is served from the cache. Rounding: another order of sums gives another last bit, and the
    tolerance is measured.

    Caller
    ------
    Greedy decoding, the same model in both requests, and no change of weights or adapters between them.

    Engines
    -------
    vLLM and llama.cpp in float32 keep this law to 1e-5 for dense models, llama.cpp to 1e-3 for Gemma 3. With
    half precision, flash attention or a quantised cache the differences reach 1.5e-2. llama.cpp breaks the
    law with `--swa-full` and its prompt cache in memory; and by design with `--cache-reuse`, which shifts
    keys.
    """
    found, answer = seen.compared, seen.answer
    if seen.cold is not None or answer.cached == 0:
        return None
    return _close(seen, found, "served from the cache" if answer.cached else "perhaps served from the cache")


@_law
def v2(seen: AnswerSeen) -> Found:
    """An answer does not depend on what runs beside it.

    A request without a cached prefix gets the same answer beside other requests as alone, compared as in V1.

    Why
    ---
    Requests share a batch. If one request frees memory that another still reads, the second gets a wrong
    answer: a row of the table with two owners, a mask that is one too long, a step that writes beyond its own
    end.

    Choices
    -------
    The order in which requests run. Kernels that sum in another order for another batch size: their spread
    beside other requests is measured separately.

    Caller
    ------
    As of V1.

    Engines
    -------
    vLLM in float32 on a CPU differs by 5e-6 between a burst and a request alone; with half precision on a GPU
    its answers depend on the batch unless batch invariance is on.
    """
    if not seen.beside or (seen.cold is None and seen.answer.cached != 0):
        return None
    return _close(seen, seen.compared, f"beside {seen.beside} more")


@_law
def v3(seen: AnswerSeen) -> Found:
    """Cached tokens are fewer than the prompt, and no more than the longest prefix that was seen before.

    At least one token of a prompt is computed, since the logits after its last token have no other source.
    And no more tokens can be cached than an earlier prompt, with its answer, has in common with this prompt.

    Why
    ---
    Users pay by this count, and operators plan by it. If it is too high, the bill is too low, or the prefix
    was not matched by its tokens: a hash collided, or a page's end was rounded up.

    Choices
    -------
    Any smaller number: only whole pages are cached, and evicted pages are gone.

    Caller
    ------
    The cache has nothing of the prompts when the probe begins: namespaces are new, or the cache was emptied
    or just started. Otherwise, and where exact reuse is not claimed, only the first half is judged.

    Engines
    -------
    vLLM reports cached tokens with `--enable-prompt-tokens-details`; an aligned prompt computes its last
    block again. llama.cpp reports `timings.cache_n`, which with `--cache-reuse` counts shifted pieces, too;
    sglang `meta_info.cached_tokens`.
    """
    cached = seen.answer.cached
    if cached is None:
        return None
    if cached >= seen.prompt:
        return Broken("cached tokens of the whole prompt", f"at most {seen.prompt - 1}", cached)
    if seen.any is None or seen.cold is not None or seen.is_left_over:
        return True if seen.cold is None else None
    what = "cached tokens beyond every prompt and answer so far"
    return demand(cached <= seen.any + seen.added, what, f"at most {seen.any + seen.added}", cached)


_LEFT = "a reset of the cache succeeded, and left cached tokens of an earlier request"


@_law
def v4(seen: AnswerSeen) -> Found:
    """A cold request has no cached tokens.

    The same applies to a request that turns the cache off, to the first request after the cache was emptied,
    and to the first of a namespace. A later request after a reset has no more cached tokens than the requests
    since then explain.

    Why
    ---
    A server empties its cache when its weights change. If the cache then serves old KV, answers of the old
    model are returned as answers of the new model.

    Choices
    -------
    None.

    Caller
    ------
    The cache is emptied while no request runs.

    Engines
    -------
    sglang empties by `POST /flush_cache`, vLLM by `POST /reset_prefix_cache` in its development mode.
    llama.cpp takes `cache_prompt: false` in a request.
    """
    cached = seen.answer.cached
    if seen.cold is None and seen.is_left_over:
        return Broken(_LEFT, f"at most {(seen.own or 0) + seen.added}", cached)
    if cached is None or seen.cold in (None, "other") or (seen.cold == "reset" and seen.beside):
        return None
    return demand(not cached, _LEFT if seen.cold == "reset" else "cached tokens of a cold request", 0, cached)


@_law
def v5(seen: AnswerSeen) -> Found:
    """Namespaces share nothing.

    There are no more cached tokens than in the longest prefix that prompts and answers of the same namespace
    have in common with the prompt; the first request of a namespace has none.

    Why
    ---
    Namespaces keep tenants apart: a client that sees a cached prefix knows that another client has sent it.

    Choices
    -------
    Whether requests without a namespace have one of their own. The probe gives each request one.

    Caller
    ------
    As of V3.

    Engines
    -------
    vLLM takes `cache_salt`, which is a part of the first block's hash. llama.cpp has no namespaces.
    """
    cached = seen.answer.cached
    if cached is None or not seen.has_salts or seen.own is None or seen.any is None:
        return None
    if seen.is_left_over or cached > seen.any + seen.added:
        return None  # more than anybody's, or what a reset has left: V3 and V4 say so
    own = seen.own + seen.added if seen.own else 0
    return demand(cached <= own, "cached tokens of another namespace's prompts", f"at most {own}", cached)


@_law
def v6(seen: FiguresSeen) -> Found:
    """After load the server comes to rest.

    Within seconds after every answer has come and every dropped stream was noticed, no request runs or waits,
    and requests hold no memory.

    Why
    ---
    A hold left behind by an aborted request is lost memory: the cache shrinks day by day
    until the server is restarted.

    Choices
    -------
    How soon a dropped stream is noticed, up to ten seconds. Cached memory is not held by requests.

    Caller
    ------
    Nobody else uses the server.

    Engines
    -------
    vLLM reports `vllm:num_requests_running`, `vllm:num_requests_waiting` and `vllm:kv_cache_usage_perc`,
    llama.cpp `llamacpp:requests_processing` and `llamacpp:requests_deferred` with `--metrics`, sglang
    `sglang:num_running_reqs` and `sglang:num_queue_reqs`.
    """
    now = seen.now
    told = {"running": now.running, "waiting": now.waiting, "memory in use": now.memory}
    told = {name: value for name, value in told.items() if value is not None}
    if not told or not seen.requests:
        return None
    observed = ", ".join(f"{name} {value:g}" for name, value in told.items())
    return demand(now.rests, "the server at rest", ", ".join(f"{name} 0" for name in told), observed)


@_law
def v7(seen: FiguresSeen) -> Found:
    """Usage counts the prompt that was sent, and its sums are those of the metrics.

    Where token ids are sent, an answer reports exactly as many prompt tokens, whatever was cached. Since the
    first look at the metrics, their prompt tokens and generated tokens have grown by the sums of the answers.
    A dropped stream adds between none and all of its tokens.

    Why
    ---
    Bills use the answers' counts, dashboards use the metrics. This law shows a request that is counted again
    after a preemption, and a prompt whose cached tokens are left out.

    Choices
    -------
    When a dropped stream counts. Tokens before each prompt: as many for every request as for the first.

    Caller
    ------
    Nobody else uses the server: if it has finished more requests than the probe has made, no sum is judged.

    Engines
    -------
    vLLM reports `vllm:prompt_tokens_total`, `vllm:generation_tokens_total` and `vllm:request_success_total`.
    llama.cpp does not report the number of finished requests, so its sums cannot be compared.
    """
    tested = False
    for name, (low, high) in (("prompt_tokens", seen.prompt_tokens), ("generated", seen.generated)):
        before, now = getattr(seen.first, name), getattr(seen.now, name)
        if before is None or now is None or not seen.requests:
            continue
        tested = True
        if not low <= now - before <= high:
            expected = str(low) if low == high else f"{low} to {high}"
            return Broken(f"the sum of {name.replace('_', ' ')}", expected, f"{now - before:g}")
    return True if tested else None


def _counts_prompt(seen: AnswerSeen) -> Found:
    """Check the part of law V7 that a single answer can break."""
    told = seen.answer.prompt_tokens
    if told is None or seen.lead is None:
        return None
    expected = len(seen.answer.prompt) + seen.lead
    return demand(told == expected, f"prompt tokens in the usage of request {seen.request}", expected, told)


OF_ANSWERS: dict[str, TextCheck] = {"V3": v3, "V5": v5, "V4": v4, "V7": _counts_prompt}
"""The laws about an answer's own reports, in the order in which they are checked."""
OF_COMPARED: dict[str, TextCheck] = {"V2": v2, "V1": v1}
"""The laws that compare an answer with the same request made cold and alone, in order."""
OF_FIGURES: dict[str, TextCheck] = {"V6": v6, "V7": v7}
"""The laws of metrics."""


def _close(seen: AnswerSeen, found: Compared | None, where: str) -> Found:
    if found is None or not found.places or seen.tolerance > LARGEST:
        return None
    what = f"request {seen.request} {where}, token {found.place + 1} of the answer, off by {found.size:.2g}"
    return demand(found.size <= seen.tolerance, what, found.expected, found.observed)
