"""A block request names its tokens to a context, namespace included, and says what it was given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymllm.workloads.fingerprint import prefix_fingerprints
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]


def test_prompt_grows_by_what_was_produced(ask: Ask) -> None:
    """E3: a context computes again what a retracted request had produced."""
    live = BlockRequest(ask(0, 5, 4), place=1)
    assert live.prompt_tokens.tolist() == live.tokens[:5].tolist()
    live.length = 6
    assert live.is_prefilled
    live.keep_produced()
    live.forget_memory()
    assert (live.prompt_tokens.size, live.length, live.is_prefilled, live.is_unread) == (7, 0, False, True)


def test_the_model_chooses_the_requests_own_tokens(ask: Ask) -> None:
    """E1: the last one is never read, so it may be anything."""
    live = BlockRequest(ask(0, 3, 2), place=1)
    assert [live.token_after(length) for length in (3, 4)] == [live.tokens[3], 0]


def test_hits_are_what_was_resumed_and_the_rest_was_lost(ask: Ask) -> None:
    """C3, E4: KV beyond the restored state was cached in vain."""
    live = BlockRequest(ask(0, 30), place=1, cached_tokens=24, resumed_tokens=8)
    assert (live.hit_tokens, live.stateless_tokens) == (8, 16)


def test_namespaces_make_other_tokens(ask: Ask) -> None:
    """K1: a context has none, so equal prompts of different ones share no block."""
    lives = [BlockRequest(ask(0, 8, 3, namespace=name), place=1) for name in (None, "None", "1", 1, "a", "a")]
    heads = [tuple(live.tokens[:4].tolist()) for live in lives]
    assert len(set(heads)) == 5
    assert heads[4] == heads[5]
    plain, named = lives[0], lives[2]
    assert plain.tokens.tolist() == [*range(1000, 1008), *plain.request.output()[:2].tolist()]
    assert named.tokens.dtype == np.uint32
    assert np.array_equal(named.fingerprints, prefix_fingerprints(named.tokens))
