"""The engine ends every request, gives everything back, and notices a cache that serves wrong KV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pymllm.errors import InvariantViolation, LockError, OwnershipError, StaleNodeError
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.workloads import engine_pools
from pymllm.workloads.engine import AdmissionRule, Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.request import Request
from pymllm.workloads.source import RandomSource, Stage

KINDS = [
    {"cache": "radix", "page_size": 1},
    {"cache": "radix", "page_size": 4},
    {"cache": "radix", "page_size": 1, "sliding_window_size": 4},
    {"cache": "radix", "page_size": 4, "sliding_window_size": 6},
    {"cache": "radix", "page_size": 4, "sliding_window_size": 6, "release_window_early": True},
    {"cache": "chunk", "page_size": 4},
    {"cache": "chunk", "page_size": 4, "sliding_window_size": 6},
    {"cache": "mamba", "page_size": 1},
    {"cache": "mamba", "page_size": 4, "track_slots": 3},
]
BLOCKS = {"cache": "blocks", "page_size": 4, "mamba_chunk_size": 2}
any_cache = pytest.mark.parametrize(
    "kind", [*KINDS, BLOCKS], ids=lambda kind: "-".join(map(str, kind.values()))
)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine]
Script = Callable[..., Any]


# -- every exit gives everything back (E3) ---------------------------------------------------------------


@pytest.mark.notices("B17", when="radix-4-6", shows_as=LockError)
@pytest.mark.notices("B157", when="radix-4-6-True")
@pytest.mark.notices("B110", "B154", when="radix-4")
@every_kind
def test_finished_requests_leave_nothing_behind(kind: dict[str, Any], engine_of: EngineOf, ask: Ask) -> None:
    """E3: exit by finishing, with sharing, over several chunks and pages."""
    prompt = range(100, 121)
    requests = [ask(n, 22 + n, 3 + 5 * n, tokens=prompt[: 21 - 6 * n]) for n in range(3)]
    report = engine_of(requests, **kind).run()
    assert (report.finished, report.output_tokens) == (3, 3 + 8 + 13)
    assert (report.hit_tokens > 0) == (kind["cache"] == "radix")


@pytest.mark.notices("B97", when="radix-4", shows_as=OwnershipError)
@any_cache
def test_request_may_finish_inside_its_first_chunk(
    kind: dict[str, Any], engine_of: EngineOf, ask: Ask
) -> None:
    """E3: one output token needs no decode step at all."""
    engine = engine_of([ask(0, 10, 1), ask(1, 1, 1)], **kind)
    assert engine.step()
    engine.check_quiescent()
    report = engine.run()
    assert (report.finished, report.iterations, report.computed_tokens) == (2, 1, 11)


@pytest.mark.notices("B67", when="Stage.HELD-1-radix-1")
@pytest.mark.notices("B113", when="Stage.PREFILL-2-chunk-4")
@pytest.mark.notices("B109", when="Stage.PREFILL-2-radix-4")
@pytest.mark.notices("B104", when="Stage.PREFILL-2-radix-4", shows_as=OwnershipError)
@every_kind
@pytest.mark.parametrize(
    ("stage", "times_asked"),
    [(Stage.QUEUED, 2), (Stage.HELD, 1), (Stage.PREFILL, 2), (Stage.DECODE, 1), (Stage.DECODE, 6)],
)
def test_aborted_request_leaves_nothing_behind(
    kind: dict[str, Any], stage: Stage, times_asked: int, engine_of: EngineOf, ask: Ask, script: Script
) -> None:
    """E3: exit by abort while queued, held, between chunks and in decode; the others go on."""
    prompt = range(100, 120)
    requests = [ask(0, 22, 9, tokens=prompt), ask(1, 24, 9, tokens=prompt), ask(2, 9, 2)]
    source = script(requests, aborts={(1, stage): times_asked}, chunk=5)
    engine = engine_of(source, max_running=1 if stage is Stage.QUEUED else 4, **kind)
    report = engine.run()
    assert (report.aborted, report.finished) == (1, 2)


@pytest.mark.notices("B98", when="radix-4")
@pytest.mark.notices("B68", when="radix-4", shows_as=OwnershipError)
@every_kind
def test_retracted_request_comes_back_and_finishes(
    kind: dict[str, Any], engine_of: EngineOf, ask: Ask, script: Script
) -> None:
    """E3: exit by retraction; what was produced is kept, so every output has its full length."""
    source = script([ask(n, 12, 30) for n in range(3)])
    report = engine_of(source, **kind).run()
    assert report.retractions > 0
    assert (report.finished, report.output_tokens) == (3, 90)
    assert all(candidates == sorted(candidates) for candidates in source.candidates)
    assert report.prompt_tokens == 36 < report.computed_tokens


@pytest.mark.notices("B106", when="radix-4")
@every_kind
def test_request_may_be_retracted_between_its_chunks(
    kind: dict[str, Any], engine_of: EngineOf, ask: Ask, script: Script
) -> None:
    """E3: a victim that has no row any more is left alone by the prefill that was under way."""
    source = script([ask(0, 8, 40), ask(1, 40, 2)], chunk=1)
    report = engine_of(source, capacity=52, chunk_tokens=2, **kind).run()
    assert [1] in [candidates[-1:] for candidates in source.candidates]
    assert (report.finished, report.retractions) == (2, len(source.candidates))


@pytest.mark.notices("B121", "B52", when="radix-4")
@pytest.mark.notices("B112", "B134", "B64", when="radix-1")
@every_kind
def test_failed_admission_gives_everything_back(kind: dict[str, Any], engine_of: EngineOf, ask: Ask) -> None:
    """E3: a request that must wait holds nothing meanwhile, and is admitted later."""
    prompt = range(100, 130)
    engine = engine_of([ask(0, 32, 9, tokens=prompt), ask(1, 63, 2, tokens=prompt)], chunk_tokens=64, **kind)
    engine.step()
    assert [live.request_id for live in engine.queue] == [1]
    assert engine.queue[0].held_node is None
    engine.drain()
    engine.check_quiescent()
    report = engine_of(
        [ask(0, 32, 9, tokens=prompt), ask(1, 63, 2, tokens=prompt)], chunk_tokens=64, **kind
    ).run()
    assert (report.finished, report.retractions) == (2, 0)


@any_cache
def test_request_that_can_never_fit_is_rejected(kind: dict[str, Any], engine_of: EngineOf, ask: Ask) -> None:
    """E4: it is counted, and does not stop those behind it."""
    report = engine_of([ask(0, 60, 6), ask(1, 65, 1), ask(2, 8, 2)], **kind).run()
    assert (report.rejected, report.finished, report.prompt_tokens) == (2, 1, 8)


# -- random lives ------------------------------------------------------------------------------------------


@pytest.mark.notices("B187", when="0-radix-1")
@pytest.mark.notices("B172", "B37", when="0-radix-1-4")
@pytest.mark.notices("B164", when="0-radix-4-6", shows_as=StaleNodeError)
@every_kind
@pytest.mark.parametrize("seed", [0, 1])
def test_random_lives_break_no_law(kind: dict[str, Any], seed: int, engine_of: EngineOf) -> None:
    """E1, E2, E3: pressure, sharing, aborts, namespaces and odd chunks, with every check after every step."""
    source = RandomSource(
        seed, requests=40, max_prompt=40, max_output=24, namespaces=(None, "a"), mean_gap_ms=20.0
    )
    report = engine_of(source, capacity=72, max_running=6, chunk_tokens=24, **kind).run()
    assert report.finished + report.aborted == report.requests == 40
    assert min(report.retractions, report.aborted, report.content_tokens) > 0
    assert report.invariant_checks == report.cache_operations > 0
    assert report.hit_tokens <= report.ceiling_tokens


# -- the schedule ------------------------------------------------------------------------------------------


def test_iteration_makes_one_alloc_and_one_table_write_for_all(engine_of: EngineOf, ask: Ask) -> None:
    """Deliverable of the engine: decode costs calls per iteration and not per request."""
    engine = engine_of([ask(n, 5, 12) for n in range(4)], max_running=4, chunk_tokens=20)
    engine.step()
    assert len(engine.decoding) == 4
    pools, calls = engine.memory.pools, Counter[str]()
    alloc, write = pools.allocator.alloc, pools.rows.write

    def counted_alloc(need_size: int) -> torch.Tensor | None:
        calls["alloc"] += 1
        return alloc(need_size)

    def counted_write(*arguments: Any) -> None:
        calls["write"] += 1
        write(*arguments)

    pools.allocator.alloc = counted_alloc  # type: ignore[method-assign]
    pools.rows.write = counted_write  # type: ignore[method-assign]
    for _ in range(5):
        engine.step()
    assert calls == {"alloc": 5, "write": 5}


@pytest.mark.notices("B115")
def test_full_hit_leaves_a_token_to_compute(engine_of: EngineOf, ask: Ask) -> None:
    """E4: the last page is computed again although all of the prompt is cached."""
    prompt = range(100, 116)
    report = engine_of(
        [ask(0, 16, tokens=prompt), ask(1, 16, tokens=prompt)], page_size=4, chunk_tokens=16
    ).run()
    assert (report.hit_tokens, report.ceiling_tokens, report.computed_tokens) == (12, 12, 20)


@pytest.mark.notices("B245-radix")
def test_an_admission_counts_a_held_prefix_as_no_room(engine_of: EngineOf) -> None:
    """E4: free and evictable must suffice without the prefix that the request has just found and holds."""
    report = engine_of(RandomSource(seed=1), capacity=64, decode_headroom=4).run()
    assert report.finished > 0


@pytest.mark.parametrize("times", [0, 2])
def test_an_engine_that_keeps_back_otherwise_than_it_declares_is_noticed(
    times: int, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: memory that nobody asked to keep back is out of reach, and what is promised must be there."""
    suffices = AdmissionRule.suffices

    def misjudge(rule: AdmissionRule, live: Any, prefilling: Any, headroom: int) -> bool:
        return suffices(rule, live, prefilling, headroom * times)

    monkeypatch.setattr(AdmissionRule, "suffices", misjudge)
    with pytest.raises(InvariantViolation, match=r"E4: request .* prompts need .* kept back for decoding"):
        engine_of(RandomSource(seed=1), capacity=64, decode_headroom=4).run()


# -- wrong caches are noticed ------------------------------------------------------------------------------


class ForeignSlots(RadixCache):
    """Returns the right number of slots, in the wrong order."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        found = super().match_prefix(key)
        found.indices = found.indices.roll(1)
        return found


class OneNamespace(RadixCache):
    """Takes equal tokens for equal content, whatever the namespace."""

    def match_prefix(self, key: RadixKey) -> MatchResult:
        return super().match_prefix(RadixKey(key.token_ids))

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        return super().insert(RadixKey(key.token_ids), value, **kwargs)


class NeverHolds(RadixCache):
    """Evicts what requests are using."""

    def inc_lock_ref(self, node: Any) -> None:
        """Hold nothing."""

    def dec_lock_ref(self, node: Any, swa_boundary_id: int | None = None, **kwargs: Any) -> None:
        """Release nothing."""


class NeverReleases(RadixCache):
    """Keeps every hold for ever."""

    def dec_lock_ref(self, node: Any, swa_boundary_id: int | None = None, **kwargs: Any) -> None:
        """Release nothing."""


class HidesAdoption(RadixCache):
    """Takes slots without saying so, and the caller frees them too."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        found = super().insert(key, value, **kwargs)
        found.adopted = ()
        return found


class ForgetsDuplicates(RadixCache):
    """A cache that claims to have adopted duplicates, so that no caller gives them back."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        found = super().insert(key, value, **kwargs)
        found.adopted = ((0, len(key)),)
        return found


class EvictsNothing(RadixCache):
    """Promises evictable tokens and keeps them."""

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        return EvictResult()


class KeepsDeadWindows(RadixCache):
    """Takes dead window pages for alive ones."""

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        return super().insert(key, value, **(kwargs | {"swa_evicted_seqlen": 0}))


def planted(monkeypatch: pytest.MonkeyPatch, cache_class: type[RadixCache]) -> None:
    """Let the engine's radix cache be a wrong one, without white-box checks, which would see it first."""

    def make(config: EngineConfig, allocator: Any) -> engine_pools.CacheKind:
        sound = engine_pools._make_radix(config, allocator)
        wrong = cache_class(config.page_size, config.sliding_window_size, allocator)
        return replace(sound, cache=wrong, check=lambda: None, cached_slots=list, path_slots=lambda node: [])

    monkeypatch.setitem(engine_pools.CACHE_MAKERS, "radix", make)


@pytest.mark.parametrize(
    ("cache_class", "expected"),
    [
        (ForeignSlots, r"E1: request 1: position 0"),
        (OneNamespace, r"E1: request 1: position 0"),
        (NeverHolds, r"E1: request \d"),
        (NeverReleases, r"E4: request \d fits and is alone"),
        (ForgetsDuplicates, r"E3: full slots"),
        (EvictsNothing, r"E4: \d+ tokens are needed"),
    ],
)
def test_wrong_cache_is_noticed(
    cache_class: type[RadixCache],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    engine_of: EngineOf,
    ask: Ask,
    script: Script,
) -> None:
    """E1-E4: each planted fault is noticed by the law that it breaks, although totals may balance."""
    planted(monkeypatch, cache_class)
    prompt = range(100, 120)
    requests = [ask(n, 22 + n, 4, tokens=prompt, namespace="ab"[n % 2] * (n > 3)) for n in range(6)]
    requests[1:1] = [ask(9, 22, 4, tokens=prompt, namespace="c")] if cache_class is OneNamespace else []
    requests = [replace(request, request_id=at) for at, request in enumerate(requests)]
    engine = engine_of(script(requests, chunk=7), check_every=0, max_running=3)
    with pytest.raises(InvariantViolation, match=expected):
        engine.run()


def test_hidden_adoption_is_a_double_free(
    monkeypatch: pytest.MonkeyPatch, engine_of: EngineOf, ask: Ask
) -> None:
    """R4: the pool refuses to take back what the tree gave back before, or content is lost."""
    planted(monkeypatch, HidesAdoption)
    with pytest.raises((InvariantViolation, OwnershipError)):
        engine_of([ask(n, 22, 4, tokens=range(100, 120)) for n in range(6)], check_every=0).run()


def test_forgotten_window_boundary_is_noticed(
    monkeypatch: pytest.MonkeyPatch, engine_of: EngineOf, ask: Ask
) -> None:
    """S7: what the request has returned must not be cached as alive."""
    planted(monkeypatch, KeepsDeadWindows)
    with pytest.raises((InvariantViolation, OwnershipError)):
        engine_of([ask(0, 22, 14), ask(1, 22, 14)], check_every=0, sliding_window_size=4).run()


def test_hold_that_is_never_released_is_noticed_at_the_end(
    monkeypatch: pytest.MonkeyPatch, engine_of: EngineOf, ask: Ask
) -> None:
    """E3: a single request leaves enough room for everybody, and its hold behind."""
    planted(monkeypatch, NeverReleases)
    with pytest.raises(InvariantViolation, match="E3: no request lives, but 20 cached tokens are locked"):
        engine_of([ask(0, 20, 2)], check_every=0).run()


def test_request_that_is_alone_and_cannot_grow_is_noticed(
    monkeypatch: pytest.MonkeyPatch, engine_of: EngineOf, ask: Ask
) -> None:
    """E4: it was admitted with all that it needs to start, and nobody else lives whom it could wait for."""
    planted(monkeypatch, NeverReleases)
    requests = [ask(0, 20, 2), ask(1, 30, 20, arrival_ms=1000.0)]
    with pytest.raises(InvariantViolation, match="E4: request 1 is alone and fits, but cannot grow"):
        engine_of(requests, check_every=0).run()


def test_request_that_waits_for_nobody_is_noticed(engine_of: EngineOf, ask: Ask) -> None:
    """E4: whom it waited for has left and gave nothing back; an engine that never asks again never ends."""
    engine = engine_of([ask(0, 20, 10), ask(1, 25, 2)], capacity=32, page_size=4, check_every=0)
    while not engine.decoding:
        engine.step()
    engine.step()
    assert engine.queue
    engine.decoding.remove(engine.decoding.requests)
    with pytest.raises(InvariantViolation, match="E4: request 1 fits and is alone"):
        engine.step()
