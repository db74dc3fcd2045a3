"""A live request knows its tokens, and what of them is prompt after a retraction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymllm.workloads.fingerprint import prefix_fingerprints
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request


def test_tokens_are_the_prompt_and_all_but_the_last_output(ask: Callable[..., Request]) -> None:
    """The last output token is produced but never read, so it gets no KV."""
    request = ask(3, 5, 4, namespace="a")
    live = LiveRequest(request, place=1)
    assert (live.prompt_length, live.final_length) == (5, 8)
    assert live.tokens.tolist() == [*request.prompt().tolist(), *request.output()[:3].tolist()]
    assert live.tokens.dtype == np.uint32
    assert np.array_equal(live.fingerprints, prefix_fingerprints(live.tokens, "a"))
    assert live.tokens is live.tokens
    assert live.fingerprints is live.fingerprints


def test_key_names_the_first_tokens_in_the_namespace(ask: Callable[..., Request]) -> None:
    """A key is a view of the tokens, so it costs nothing per token."""
    live = LiveRequest(ask(0, 5, 1, namespace=7), place=1)
    key = live.key(3)
    assert (list(key), key.extra_key) == ([1000, 1001, 1002], 7)
    assert np.shares_memory(key.token_ids, live.tokens)


def test_produced_tokens_become_prompt(ask: Callable[..., Request]) -> None:
    """E3: what a retracted request has produced is not lost, the token without KV included."""
    live = LiveRequest(ask(0, 5, 4), place=1)
    live.length = 3
    live.keep_produced()
    assert live.prompt_length == 5
    live.length = 6
    live.keep_produced()
    assert live.prompt_length == 7
    live.forget_memory()
    assert (live.length, live.row, live.held_length, live.held_node) == (0, 0, 0, None)
