"""The check of a whole run's counters, as a server or an engine reports them (law E6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from pymllm.oracle.laws.law import Broken, Found, demand, same

Counts = Mapping[str, int | float | None]
"""Counters of a run by their names in law E6; ``None`` or missing means not reported."""

_CLOSE = 1e-9  # of two rates, which another program may have rounded


def find_contradiction(run: Counts, requests: int | None = None) -> Broken | None:
    """Return the first contradiction between the counters of a run, or ``None`` (law E6).

    Every request of the run has ended. ``requests`` is how many there were to be, where that is known.
    """
    for found in chain(_of_requests(run, requests), _of_hits(run), _of_computed(run)):
        if isinstance(found, Broken):
            return found
    return None


def _number(run: Counts, name: str) -> int | float:
    return run.get(name) or 0


def _bounded(what: str, low: float, number: float, high: float) -> Found:
    return demand(low <= number <= high, what, f"{low} to {high}", number)


def _of_requests(run: Counts, requests: int | None) -> Iterator[Found]:
    if requests is not None:
        yield same("requests and skipped", requests, _number(run, "requests") + _number(run, "skipped"))
    if run.get("finished") is not None:
        ended = sum(_number(run, name) for name in ("finished", "rejected", "aborted"))
        yield same("finished, rejected and aborted requests", run["requests"], ended)


def _of_hits(run: Counts) -> Iterator[Found]:
    prompts, hits, ceiling = (_number(run, f"{name}_tokens") for name in ("prompt", "hit", "ceiling"))
    hit_rate, ceiling_rate = _number(run, "token_hit_rate"), _number(run, "ceiling_hit_rate")
    yield _bounded("hit_tokens", 0, hits, ceiling)
    yield _bounded("ceiling_tokens", 0, ceiling, prompts)
    yield _bounded("token_hit_rate", 0, hit_rate, ceiling_rate)
    yield _bounded("ceiling_hit_rate", 0, ceiling_rate, 1)
    if ceiling and run.get("token_hit_rate") is not None:  # earlier versions told rates alone
        for name, rate, tokens in (("token", hit_rate, hits), ("ceiling", ceiling_rate, ceiling)):
            share = tokens / prompts
            yield demand(abs(rate - share) < _CLOSE, f"{name}_hit_rate", share, rate)


def _of_computed(run: Counts) -> Iterator[Found]:
    if run.get("computed_tokens") is None:
        return
    is_even = not _number(run, "retractions") and not _number(run, "aborted")
    again, left = run.get("recomputed_tokens"), run.get("uncomputed_tokens")
    if again is None or left is None:
        if not is_even:
            return
        again = left = 0  # earlier versions told neither
    computed = _number(run, "computed_tokens")
    yield _bounded("recomputed_tokens", 0, again, computed if _number(run, "retractions") else 0)
    yield _bounded("uncomputed_tokens", 0, left, 0 if is_even else _number(run, "prompt_tokens"))
    made = _number(run, "hit_tokens") + computed - again + left
    yield same("tokens that were hits, computed at first and left uncomputed", run.get("prompt_tokens"), made)
