"""The engine over block contexts ends every request, gives everything back, and notices a wrong context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.core.inference.contexts.forward_batch import ForwardBatch
from pymllm.errors import CapacityError, InvariantViolation
from pymllm.mem_cache.base_prefix_cache import hash_token_ids
from pymllm.workloads.block_engine import BlockEngine, MeasuredContext, make_block_context
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.request import Request
from pymllm.workloads.source import RandomSource, Stage

Ask = Callable[..., Request]
EngineOf = Callable[..., BlockEngine]
Script = Callable[..., Any]

KINDS: list[dict[str, Any]] = [
    {"page_size": 1, "mamba_chunk_size": 1},
    {"page_size": 4, "mamba_chunk_size": 2},
    {"page_size": 4, "mamba_chunk_size": 2, "track_slots": 1, "eviction_policy": "ref_zero"},
    {"page_size": 4, "mamba_chunk_size": 3, "track_slots": 3, "paused_capacity": 0},
    {"page_size": 4, "mamba_chunk_size": 2, "track_slots": 0},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


@pytest.fixture
def blocks_of(engine_of: EngineOf) -> EngineOf:
    """Make a small engine over block contexts that checks everything."""
    return lambda source, **changes: engine_of(source, **({"cache": "blocks", "page_size": 4} | changes))


# -- every exit gives everything back (E3) ---------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(
    ("stage", "times_asked"),
    [(Stage.QUEUED, 2), (Stage.PREFILL, 2), (Stage.DECODE, 1), (Stage.DECODE, 6)],
)
def test_aborted_request_leaves_nothing_behind(
    kind: dict[str, Any], stage: Stage, times_asked: int, blocks_of: EngineOf, ask: Ask, script: Script
) -> None:
    """E3: exit by abort while queued, between chunks and in decode; the others go on."""
    prompt = range(100, 120)
    requests = [ask(0, 22, 9, tokens=prompt), ask(1, 24, 9, tokens=prompt), ask(2, 9, 2)]
    source = script(requests, aborts={(1, stage): times_asked}, chunk=5)
    report = blocks_of(source, capacity=128, max_running=1 if stage is Stage.QUEUED else 4, **kind).run()
    assert (report.aborted, report.finished) == (1, 2)


# -- memory runs out -------------------------------------------------------------------------------------


def heard_of(engine_config: EngineConfig, source: Any, **options: Any) -> tuple[EngineReport, list[Any]]:
    """Run an engine, and tell which events it told of which request."""
    heard: list[Any] = []
    engine = BlockEngine(
        engine_config,
        source,
        onlooker=lambda event, live: heard.append((event, live.request_id)),
        **options,
    )
    return engine.run(), heard


def config_of(**changes: Any) -> EngineConfig:
    sizes = {"page_size": 4, "capacity": 64, "mamba_chunk_size": 2, "max_running": 4, "decode_headroom": 0}
    return EngineConfig(cache="blocks", content_check=True, check_every=1, **(sizes | changes))


def test_the_youngest_is_set_aside_and_goes_on_where_it_was(ask: Ask, script: Script) -> None:
    """C1, E1: a paused request keeps its blocks and its state, and computes nothing twice."""
    report, heard = heard_of(config_of(paused_capacity=40), script([ask(0, 14, 20), ask(1, 10, 20)]))
    assert report.retractions == 0
    assert report.pauses == 1
    assert [each for each in heard if each[0] in (Event.PAUSED, Event.RESUMED, Event.FINISHED)] == [
        (Event.PAUSED, 1),
        (Event.FINISHED, 0),
        (Event.RESUMED, 1),
        (Event.FINISHED, 1),
    ]
    assert report.computed_tokens == 24


def test_who_may_not_be_set_aside_is_thrown_out(ask: Ask, script: Script) -> None:
    """E3, E4: beyond the limit a request goes back into the queue, and resumes from what it left cached."""
    report, heard = heard_of(config_of(paused_capacity=0), script([ask(n, 14, 20) for n in range(2)]))
    assert (report.pauses, report.retractions, report.finished) == (0, 1, 2)
    assert (Event.RETRACTED, 1) in heard
    assert heard.count((Event.ADMITTED, 1)) == 2
    assert report.prompt_tokens == 28


def test_one_that_is_set_aside_is_thrown_out_for_the_last_that_runs(ask: Ask, script: Script) -> None:
    """E4: blocks that paused requests keep are not in the way of whoever is alone."""
    requests = [ask(0, 14, 40), ask(1, 14, 40)]
    report, heard = heard_of(config_of(paused_capacity=64), script(requests))
    assert (report.pauses, report.retractions, report.finished) == (1, 1, 2)
    assert heard.index((Event.PAUSED, 1)) < heard.index((Event.RETRACTED, 1))


@pytest.mark.parametrize("victim", [1, 0], ids=["its own", "another"])
def test_a_chunk_without_blocks_sets_a_request_aside(victim: int, ask: Ask, script: Script) -> None:
    """E4: its own or the one that the source chooses; the chunk is then given what has become free."""
    source = script([ask(0, 4, 50), ask(1, 48, 2)], chunk=4, victims=[] if victim else [0])
    report, heard = heard_of(config_of(paused_capacity=0, chunk_tokens=4, capacity=56), source)
    assert (Event.RETRACTED, victim) in heard
    assert report.finished == 2


def test_waiting_requests_do_not_take_the_room_of_admitted_ones(blocks_of: EngineOf, ask: Ask) -> None:
    """E4: what a prompt will still take is promised, and so is the headroom of those that decode."""
    engine = blocks_of([ask(0, 40, 9), ask(1, 20, 2)], chunk_tokens=8)
    engine.step()
    assert [live.request_id for live in engine.running] == [0]
    assert engine.run().finished == 2
    requests = [ask(0, 40, 25), ask(1, 20, 2, arrival_ms=50.0)]
    engine = blocks_of(requests, chunk_tokens=64, decode_headroom=24)
    engine.step()
    engine.step()
    assert [live.request_id for live in engine.running] == [0]
    assert engine.run().retractions == 0


def test_rows_bound_who_runs(blocks_of: EngineOf, ask: Ask) -> None:
    """E4: without a row nobody is asked about memory."""
    engine = blocks_of([ask(n, 4, 3) for n in range(3)], max_running=2)
    engine.step()
    assert len(engine.running) == 2
    assert engine.run().finished == 3


# -- hits ------------------------------------------------------------------------------------------------


def test_a_prompt_resumes_where_another_left_a_state(blocks_of: EngineOf, ask: Ask) -> None:
    """E4, C8: a full hit still leaves the last block to compute; states are at whole blocks."""
    prompt = range(100, 118)
    requests = [ask(n, 18, tokens=prompt, arrival_ms=100.0 * n) for n in range(2)]
    report = blocks_of(requests, mamba_chunk_size=2, chunk_tokens=32).run()
    assert (report.hit_tokens, report.ceiling_tokens, report.computed_tokens) == (16, 16, 20)
    assert (report.stateless_tokens, report.evicted_states, report.skipped_snapshots) == (0, 0, 0)


def test_kv_without_a_state_is_computed_again(blocks_of: EngineOf, ask: Ask) -> None:
    """E4: what is lost for want of a state is counted once, at the first admission."""
    prompt = range(100, 118)
    requests = [ask(n, 18, tokens=prompt, arrival_ms=100.0 * n) for n in range(2)]
    report = blocks_of(requests, mamba_chunk_size=3, chunk_tokens=32).run()
    assert (report.hit_tokens, report.ceiling_tokens, report.stateless_tokens) == (0, 16, 16)


@every_kind
@pytest.mark.parametrize("seed", range(2))
def test_random_lives_break_no_law(kind: dict[str, Any], seed: int, blocks_of: EngineOf) -> None:
    """E1-E5, C1-C8: everything at once, watched after every operation."""
    source = RandomSource(seed, requests=40, max_prompt=48, namespaces=(None, 1, "1"))
    engine = blocks_of(source, capacity=128, max_running=5, **kind)
    report = engine.run()
    assert report.finished + report.aborted + report.rejected == report.requests == 40
    assert report.hit_tokens <= report.ceiling_tokens
    assert report.peak_states_held is not None
    assert report.peak_states_held <= kind.get("track_slots", 20)
    assert min(engine.watch.tested[law] for law in ("E1", "E2", "E3", "E4", "E5")) > 0


@pytest.mark.parametrize("digits", [1, 2])
def test_colliding_hashes_share_nothing_wrong(digits: int) -> None:
    """C3: with hashes of 4 and 8 bits, every hit is still the content that was asked for."""

    def weak_hash(tokens: Any, prior: str | None) -> str:
        return hash_token_ids(tokens, prior)[:digits].rjust(16, "0")

    config = config_of(capacity=128).rounded()
    report = BlockEngine(
        config, RandomSource(3, requests=80), context=make_block_context(config, weak_hash)
    ).run()
    assert report.hit_tokens > 0


# -- wrong contexts are noticed ----------------------------------------------------------------------------


class OthersState(MeasuredContext):
    """Restores a state, and leaves another's in its place."""

    def note_hit(self, req: Any) -> None:
        super().note_hit(req)
        assert self.mamba_ssm_states is not None
        self.mamba_ssm_states[:, self._rows.state_of(self._live_by_id[id(req)])] = 3.0


class ForeignBlocks(MeasuredContext):
    """Believes in hashes alone."""

    def note_hit(self, req: Any) -> None:
        super().note_hit(req)
        live = self._live_by_id[id(req)]
        live.blocks[: live.matched] = live.blocks[: live.matched][::-1]


class ForgetsToRelease(MeasuredContext):
    """Keeps one reference to each block of a request that leaves."""

    def release(self, req: Any) -> None:
        self.kv_block_allocator.retain_memory_blocks(self._live_by_id[id(req)].blocks)
        super().release(req)


class WritesShared(MeasuredContext):
    """Lets a request write what it shares."""

    def begin_step(self) -> ForwardBatch:
        for live in self._rows:
            if live.matched:
                live.matched = 0
        return super().begin_step()


class WrongSlot(MeasuredContext):
    """Caches a state, and another where it should be."""

    def commit_step(self, next_tokens: Any) -> None:
        super().commit_step(next_tokens)
        assert self.mamba_slot_allocator is not None
        self.mamba_slot_allocator.conv_states.fill_(7.0)


class TouchesLive(MeasuredContext):
    """Moves the live state of somebody else when a request leaves."""

    def release(self, req: Any) -> None:
        super().release(req)
        assert self.mamba_conv_states is not None
        self.mamba_conv_states.zero_()


class LeavesStates(MeasuredContext):
    """Does not hear that blocks with states went."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.kv_block_allocator.on_blocks_deregistered = None


class RefusesAll(MeasuredContext):
    """Has no room for anybody."""

    def add_request(self, req: Any, max_tokens: int | None = None, *, reserve: int | None = None) -> bool:
        return False


class NeverGrows(MeasuredContext):
    """A context without a block for requests that decode."""

    def begin_step(self) -> ForwardBatch:
        if self.batch_dimensions.decode_req_count:
            raise CapacityError("no block")
        return super().begin_step()


class StaleTokens(MeasuredContext):
    """Computes a token again that it has computed."""

    def begin_step(self) -> ForwardBatch:
        batch = super().begin_step()
        for step in batch.requests:
            object.__setattr__(step, "tokens", step.tokens[::-1].copy())
        return batch


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (OthersState, "E1"),
        (ForeignBlocks, "E2"),
        (ForgetsToRelease, "E3"),
        (WritesShared, "E2"),
        (WrongSlot, "C7"),
        (TouchesLive, "C7"),
        (RefusesAll, "E4"),
        (NeverGrows, "E4"),
        (StaleTokens, "E1"),
    ],
)
def test_wrong_context_is_noticed(
    wrong: type[MeasuredContext], law: str, monkeypatch: pytest.MonkeyPatch, ask: Ask, script: Script
) -> None:
    """E1-E4, C7: by the law that it breaks."""
    monkeypatch.setattr("pymllm.workloads.block_engine.MeasuredContext", wrong)
    prompt = range(100, 122)
    requests = [ask(n, 26, 2 + 3 * n, tokens=prompt, arrival_ms=120.0 * n) for n in range(3)]
    engine = BlockEngine(config_of(capacity=256), script(requests))
    with pytest.raises(InvariantViolation) as caught:
        engine.run()
    assert caught.value.law == law


def test_states_of_blocks_that_went_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: a free block has no state; the walk after the next operation says so."""
    monkeypatch.setattr("pymllm.workloads.block_engine.MeasuredContext", LeavesStates)
    with pytest.raises(InvariantViolation) as caught:
        BlockEngine(config_of(), RandomSource(0, requests=40)).run()
    assert caught.value.law in ("C4", "C6")


def test_a_context_that_keeps_what_it_should_evict_is_noticed(
    monkeypatch: pytest.MonkeyPatch, blocks_of: EngineOf, ask: Ask
) -> None:
    """E3: after the last request everything can be evicted."""
    engine = blocks_of([ask(0, 20)])
    engine.run()
    monkeypatch.setattr(engine._context.kv_block_allocator, "allocate_memory_blocks", lambda n: None)
    with pytest.raises(InvariantViolation, match="16 blocks are free or evictable, and not given"):
        engine.evict_everything()


def test_states_on_a_device_are_those_of_a_cold_run(device: torch.device) -> None:
    """E1, C7: live, extracted and cached states are on the device, and all trackers on the host."""
    config = config_of(capacity=128, device=str(device))
    report = BlockEngine(config, RandomSource(4, requests=60)).run()
    assert report.hit_tokens > 0
