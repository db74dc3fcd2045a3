"""A live request names its tokens to a cache, and says what it was given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request


def test_key_names_the_first_tokens_in_the_namespace(ask: Callable[..., Request]) -> None:
    """A key is a view of the tokens, so it costs nothing per token."""
    live = LiveRequest(ask(0, 5, 1, namespace=7), place=1)
    key = live.key(3)
    assert (list(key), key.extra_key) == ([1000, 1001, 1002], 7)
    assert np.shares_memory(key.token_ids, live.tokens)


def test_hit_is_what_is_held_and_the_rest_was_lost(ask: Callable[..., Request]) -> None:
    """M2: KV beyond the held prefix was cached in vain; where nothing is known of it, nothing is lost."""
    live = LiveRequest(ask(0, 9), place=1, held_length=4)
    assert (live.hit_tokens, live.stateless_tokens) == (4, 0)
    live.branching_length = 7
    assert (live.hit_tokens, live.stateless_tokens) == (4, 3)


def test_forgotten_memory_is_owned_no_more(ask: Callable[..., Request]) -> None:
    """E3: whoever gave everything back begins anew."""
    live = LiveRequest(ask(0, 5, 4), place=1, length=6, row=2, held_length=3, held_node="node")
    live.forget_memory()
    assert (live.length, live.row, live.held_length, live.held_node) == (0, 0, 0, None)
