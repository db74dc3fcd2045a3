"""A live sequence knows its tokens, and what of them is prompt after a retraction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pymllm.workloads.fingerprint import prefix_fingerprints
from pymllm.workloads.live_request import LiveRequest, LiveSequence
from pymllm.workloads.request import Request


def test_tokens_are_the_prompt_and_all_but_the_last_output(ask: Callable[..., Request]) -> None:
    """E1: the last output token is produced but never read, so it gets no KV."""
    request = ask(3, 5, 4, namespace="a")
    live = LiveRequest(request, place=1)
    assert (live.prompt_length, live.final_length) == (5, 8)
    assert live.tokens.tolist() == [*request.prompt().tolist(), *request.output()[:3].tolist()]
    assert live.tokens.dtype == np.uint32
    assert np.array_equal(live.fingerprints, prefix_fingerprints(live.tokens, "a"))
    assert live.tokens is live.tokens
    assert live.fingerprints is live.fingerprints


def test_produced_tokens_become_prompt(ask: Callable[..., Request]) -> None:
    """E3: what a retracted request has produced is not lost, the token without KV included."""
    live = LiveRequest(ask(0, 5, 4), place=1)
    live.length = 3
    live.keep_produced()
    assert live.prompt_length == 5
    live.length = 6
    live.keep_produced()
    assert live.prompt_length == 7


def test_what_was_hit_is_up_to_whoever_keeps_the_kv(ask: Callable[..., Request]) -> None:
    """E1: a sequence by itself cannot say it, so there is none by itself."""
    with pytest.raises(TypeError, match="abstract"):
        LiveSequence(ask(0, 5), 1)  # type: ignore[abstract]
