"""Requests, before they run and while they live, and the sources that give them and answer questions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.mem_cache import MambaRadixCache, RadixCache, RadixKey
from pymllm.workloads.cache_probe import CacheProbe, CacheTimes
from pymllm.workloads.exact_values import prefix_fingerprints
from pymllm.workloads.live_request import BlockRequest, DecodeBatch, LiveRequest
from pymllm.workloads.request import ARRIVAL_MS_MAX, BLOCK_ID_MAX, LENGTH_MAX, OUTPUT_TOKEN_BASE, Request
from pymllm.workloads.source import RandomSource, Stage, TraceSource


def make_request(**changes: object) -> Request:
    """Build a request of ten tokens in blocks of four, changed as wanted."""
    fields: dict[str, object] = {
        "request_id": 1,
        "arrival_ms": 0.0,
        "prompt_length": 10,
        "output_length": 3,
        "block_ids": (5, 0, 7),
        "block_tokens": 4,
    }
    return Request(**(fields | changes))  # type: ignore[arg-type]


def test_prompt_is_its_blocks_cut_to_length() -> None:
    """Block b is b * block_tokens onwards, and the last block is cut."""
    tokens = make_request().prompt()
    assert tokens.dtype == np.uint32
    assert tokens.tolist() == [20, 21, 22, 23, 0, 1, 2, 3, 28, 29]


def test_a_prompt_much_shorter_than_its_block_costs_what_it_is() -> None:
    """Cost: O(prompt_length); a block of two thousand million tokens is never spelt out."""
    request = make_request(prompt_length=3, block_ids=(0,), block_tokens=LENGTH_MAX, output_length=LENGTH_MAX)
    tokens = request.prompt()
    assert tokens.tolist() == [0, 1, 2]
    assert tokens.base is None or tokens.base.size <= 3


def test_the_clock_moves_at_the_latest_arrival() -> None:
    """A hundredth of a millisecond, the shortest iteration, still makes a difference there."""
    latest = make_request(arrival_ms=ARRIVAL_MS_MAX).arrival_ms
    assert latest + 0.01 > latest


def test_output_is_deterministic_and_no_prompt_token() -> None:
    """Output tokens depend on the request id only and lie above every prompt token."""
    first, again = make_request().output(), make_request(prompt_length=9).output()
    assert first.dtype == np.uint32
    assert first.shape == (3,)
    assert first.tolist() == again.tolist()
    assert first.min() >= OUTPUT_TOKEN_BASE


def test_no_two_requests_begin_their_output_alike() -> None:
    """E1: a shared first output token would let one request match another one's output."""
    firsts = {int(make_request(request_id=number).output()[0]) for number in range(5000)}
    assert len(firsts) == 5000


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"request_id": -1}, "request_id is -1"),
        ({"request_id": OUTPUT_TOKEN_BASE}, "request_id is"),
        ({"arrival_ms": -0.5}, "arrival_ms is -0.5"),
        ({"arrival_ms": float("nan")}, "arrival_ms is nan"),
        ({"arrival_ms": float("inf")}, r"arrival_ms is inf; it must be in 0\.\.10000000000000$"),
        ({"arrival_ms": 1.1 * ARRIVAL_MS_MAX}, "arrival_ms is"),
        ({"prompt_length": 0}, r"prompt_length is 0; it must be in 1\.\.2147483647"),
        ({"output_length": 0}, "output_length is 0"),
        ({"output_length": LENGTH_MAX + 1}, "output_length is 2147483648"),
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"block_tokens": LENGTH_MAX + 1}, "block_tokens is 2147483648"),
        ({"prompt_length": 13}, "take exactly 4"),
        ({"prompt_length": 8}, "take exactly 2"),
        ({"block_ids": (0, -1, 2)}, "run from -1"),
        ({"block_ids": (0, BLOCK_ID_MAX + 1, 2)}, r"must be in 0\.\.2147483647$"),
        ({"wait_for": (0, 1)}, "wait_for has 1; it must be the id of another request"),
        ({"wait_for": (-1,)}, "wait_for has -1"),
        ({"delay_ms": -0.5}, "delay_ms is -0.5"),
        ({"delay_ms": float("nan")}, "delay_ms is nan"),
    ],
)
def test_impossible_request_is_refused(changes: dict[str, object], named: str) -> None:
    """X1: the message names the value that is out of bounds."""
    with pytest.raises(ValueError, match=named):
        make_request(**changes)


def test_blocks_beyond_what_an_engine_can_name_have_no_tokens() -> None:
    """X1: a trace may have them, and nobody is given the tokens of another block instead."""
    last = OUTPUT_TOKEN_BASE // 4 - 1
    assert make_request(block_ids=(0, last, 2)).prompt().max() == OUTPUT_TOKEN_BASE - 1
    beyond = make_request(block_ids=(0, last + 1, 2))
    assert not beyond.has_tokens
    with pytest.raises(ValueError, match=rf"block_ids run to {last + 1}; .* can name 0\.\.{last}$"):
        beyond.prompt()


def drain(source: RandomSource) -> list[Request]:
    """Take every request of a source."""
    taken = []
    while (request := source.next_request()) is not None:
        taken.append(request)
    return taken


def test_trace_source_replays_as_recorded() -> None:
    """A trace comes in order, whole, without aborts, and the youngest is retracted."""
    requests = [Request(number, float(number), 4, 2, (number,), 4) for number in range(3)]
    source = TraceSource(requests)
    assert [source.next_request() for _ in range(4)] == [*requests, None]
    assert not source.may_abort
    assert not source.abort(0, Stage.QUEUED)
    assert source.chunk_limit(0, 7) == 7
    assert source.retract_victim([4, 9]) == 9


def test_random_source_repeats_itself_from_its_seed() -> None:
    """X3: two sources of one seed agree in every answer."""
    first, second = (RandomSource(7, namespaces=(None, "a", 1)) for _ in range(2))
    assert drain(first) == drain(second)
    answers = [[(s.abort(1, Stage.DECODE), s.chunk_limit(1, 9)) for _ in range(50)] for s in (first, second)]
    assert answers[0] == answers[1]
    assert {limit for _, limit in answers[0]} <= set(range(1, 10))
    assert first.retract_victim([1, 2, 3]) == second.retract_victim([1, 2, 3])


def test_random_source_orders_arrivals_and_shares_prefixes() -> None:
    """Arrivals never go back, and some prompts begin alike."""
    requests = drain(RandomSource(3, requests=200))
    assert len(requests) == 200
    arrivals = [request.arrival_ms for request in requests]
    assert arrivals == sorted(arrivals)
    assert len({request.block_ids[:3] for request in requests if len(request.block_ids) >= 3}) < 60


def test_random_source_aborts_with_its_chance() -> None:
    """A chance of 0 never aborts and says so, a chance of 1 always does."""
    never, always = RandomSource(0, abort_chance=0.0), RandomSource(0, abort_chance=1.0)
    assert (never.may_abort, always.may_abort) == (False, True)
    assert not any(never.abort(1, stage) for stage in Stage)
    assert all(always.abort(1, stage) for stage in Stage)


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
