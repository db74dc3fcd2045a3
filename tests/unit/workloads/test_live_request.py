"""What an engine knows of a request: its tokens, what it was given, its times, and its place in a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.mem_cache import MambaRadixCache, RadixCache, RadixKey
from pymllm.workloads.cache_probe import CacheProbe, CacheTimes
from pymllm.workloads.fingerprint import prefix_fingerprints
from pymllm.workloads.live_request import BlockRequest, DecodeBatch, LiveRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]


# -- tokens ------------------------------------------------------------------------------------------------


def test_tokens_are_the_prompt_and_all_but_the_last_output(ask: Ask) -> None:
    """E1: the last output token is produced but never read, so it gets no KV; a key is a view of them."""
    request = ask(3, 5, 4, namespace="a")
    live = LiveRequest(request, place=1)
    assert (live.prompt_length, live.final_length) == (5, 8)
    assert live.tokens.tolist() == [*request.prompt().tolist(), *request.output()[:3].tolist()]
    assert live.tokens.dtype == np.uint32
    assert np.array_equal(live.fingerprints, prefix_fingerprints(live.tokens, "a"))
    assert live.tokens is live.tokens
    assert live.fingerprints is live.fingerprints
    key = live.key(3)
    assert (list(key), key.extra_key) == (request.prompt().tolist()[:3], "a")
    assert np.shares_memory(key.token_ids, live.tokens)


@pytest.mark.parametrize("kind", [LiveRequest, BlockRequest])
def test_produced_tokens_become_prompt(kind: type[LiveRequest | BlockRequest], ask: Ask) -> None:
    """E3: what a retracted request has produced is not lost, the token without KV included; all else is."""
    live = kind(ask(0, 5, 4), place=1)
    for length, prompt in ((3, 5), (6, 7)):
        live.length = length
        live.keep_produced()
        assert live.prompt_length == prompt
    live.forget_memory()
    assert (live.length, live.prompt_length) == (0, 7)
    if isinstance(live, BlockRequest):
        assert (live.prompt_tokens.tolist(), live.is_unread) == (live.tokens[:7].tolist(), True)
        assert [live.token_after(length) for length in (7, 8)] == [live.tokens[7], 0]


def test_hits_are_what_can_be_used_and_the_rest_was_lost(ask: Ask) -> None:
    """C3, E4, M2: KV beyond the prefix that has a state was cached in vain."""
    live = LiveRequest(ask(0, 9), place=1, held_length=4)
    assert (live.hit_tokens, live.stateless_tokens) == (4, 0)
    live.branching_length = 7
    assert (live.hit_tokens, live.stateless_tokens) == (4, 3)
    blocks = BlockRequest(ask(0, 30), place=1, cached_tokens=24, resumed_tokens=8)
    assert (blocks.hit_tokens, blocks.stateless_tokens) == (8, 16)


def test_namespaces_make_other_tokens_of_a_context(ask: Ask) -> None:
    """K1: a context has none, so equal prompts of different ones share no block."""
    lives = [BlockRequest(ask(0, 8, 3, namespace=name), place=1) for name in (None, "None", "1", 1, "a", "a")]
    heads = [tuple(live.tokens[:4].tolist()) for live in lives]
    assert len(set(heads)) == 5
    assert heads[4] == heads[5]
    plain, named = lives[0], lives[2]
    assert plain.tokens.tolist() == [*range(1000, 1008), *plain.request.output()[:2].tolist()]
    assert named.tokens.dtype == np.uint32
    assert np.array_equal(named.fingerprints, prefix_fingerprints(named.tokens))


# -- decoding together -------------------------------------------------------------------------------------


def joined(ask: Ask, page_size: int, *lengths: int) -> tuple[DecodeBatch, list[LiveRequest]]:
    """Make a batch of requests with so many tokens each and 5 steps to come."""
    batch, lives = DecodeBatch(page_size), []
    for number, length in enumerate(lengths):
        live = LiveRequest(ask(number, length, 6), place=number)
        live.row, live.length, live.last_slot, live.released_length = number + 1, length, 40 + 10 * number, 0
        batch.add(live)
        lives.append(live)
    return batch, lives


def test_leaving_requests_take_their_numbers_along(ask: Ask) -> None:
    """The batch's columns are the truth until a request leaves."""
    batch, lives = joined(ask, 4, 5, 6, 7)
    batch.released[1] = 4
    batch.step(np.array([], dtype=np.int64))
    assert lives[1].length == 6
    batch.remove([lives[1]])
    assert (lives[1].length, lives[1].last_slot, lives[1].released_length) == (7, 51, 4)
    assert batch.requests == [lives[0], lives[2]]
    assert (len(batch), batch.rows.tolist(), batch.lengths.tolist()) == (2, [1, 3], [6, 8])
    batch.remove(lives)
    assert not batch


def test_headroom_counts_new_pages_of_the_steps_to_come(ask: Ask) -> None:
    """E4: what is left of a page needs no allocation, and nobody needs more than remains."""
    batch, _ = joined(ask, 4, 5, 8)
    assert [batch.headroom(steps) for steps in (0, 1, 3, 4, 5, 99)] == [0, 4, 4, 8, 12, 12]
    assert DecodeBatch(4).headroom(9) == 0


# -- times -------------------------------------------------------------------------------------------------


def test_operations_reach_the_cache_and_their_time_the_request() -> None:
    """Each kind of operation has a clock of its own in the request's times."""
    probe, times = CacheProbe(RadixCache(), lambda: None, 0), CacheTimes()
    key = RadixKey([1, 2, 3])
    inserted = probe.insert(key, torch.tensor([1, 2, 3]), times)
    assert times.insert_ns > 0 == times.match_ns
    matched = probe.match(key, times)
    assert (matched.prefix_len, matched.last_node) == (3, inserted.last_node)
    assert times.match_ns > 0 == times.lock_ns
    token = probe.lock(matched.last_node, times)
    assert probe.cache.protected_size() == 3
    locked_ns = times.lock_ns
    probe.unlock(matched.last_node, token, times)
    assert times.lock_ns > locked_ns > 0 == times.evict_ns
    assert probe.cache.protected_size() == 0


def test_common_eviction_is_shared_evenly() -> None:
    """Requests that are short together pay together; what went is counted once."""
    payers = [CacheTimes(), CacheTimes()]
    probe = CacheProbe(RadixCache(sliding_window_size=2), lambda: None, 0)
    probe.insert(RadixKey([1, 2, 3]), torch.tensor([1, 2, 3]), payers[0])
    probe.evict(2, 0, payers)
    assert payers[0].evict_ns == payers[1].evict_ns > 0
    assert (probe.evict_calls, probe.evicted_tokens, probe.evicted_swa_tokens) == (1, 3, 3)
    hybrid = CacheProbe(MambaRadixCache(), lambda: None, 0)
    for token in (1, 2, 3):
        hybrid.insert(RadixKey([token]), torch.tensor([token]), payers[0], mamba_value=torch.tensor([token]))
    hybrid.evict(0, 2, payers)
    assert (hybrid.evict_calls, hybrid.evicted_tokens, hybrid.evicted_states) == (1, 2, 2)
