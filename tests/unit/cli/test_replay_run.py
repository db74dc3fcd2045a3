"""A plan is settled and carried out with the sizes that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest

from pymllm.cli import replay_run
from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_run import run_plan, settle
from pymllm.errors import InvariantViolation, TraceError
from pymllm.workloads.engine import EngineReport
from pymllm.workloads.request import Request
from pymllm.workloads.serial import SerialReport
from pymllm.workloads.synthetic import make_requests
from pymllm.workloads.trace_file import write_trace

PLAN = ReplayPlan(
    workload="chat",
    mode="engine",
    caches=("radix",),
    requests=6,
    seed=3,
    block_tokens=16,
    page_size=16,
    window=None,
    capacity=5000,
    swa_capacity=None,
    track_slots=None,
    max_running=4,
    chunk=64,
    iteration_ms=20.0,
    content_check=False,
    check_every=0,
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_trace(tmp_path / "trace.jsonl", make_requests("chat", 8))
    return str(tmp_path / "trace.jsonl")


def test_open_defaults_depend_on_the_workload(trace: str) -> None:
    """A named workload is checked and has a pool of its own; a trace is measured at a million slots."""
    open_plan = replace(PLAN, requests=None, capacity=None, content_check=None)
    named = settle(open_plan)
    assert (named.capacity, named.requests, named.content_check) == (8192, 200, True)
    recorded = settle(replace(open_plan, workload=trace))
    assert (recorded.capacity, recorded.requests, recorded.content_check) == (1_000_000, None, False)


def test_what_was_given_stays(trace: str) -> None:
    """Defaults replace nothing that was asked for."""
    assert settle(PLAN) == PLAN
    assert settle(replace(PLAN, workload=trace)).requests == 6


def test_a_default_capacity_must_hold_a_page_too() -> None:
    """X1: the check is made again once the capacity is known."""
    with pytest.raises(click.UsageError, match="--capacity 8192 holds no page of 10000"):
        settle(replace(PLAN, capacity=None, page_size=10_000))


def test_an_unknown_cache_is_refused() -> None:
    """X1: before any request is made."""
    with pytest.raises(click.UsageError, match="there is no cache 'radox'"):
        run_plan(replace(PLAN, caches=("radix", "radox")), "off")


def test_engine_and_serial_get_the_options() -> None:
    """What the user typed is what the report says was used."""
    plan = replace(PLAN, window=32, swa_capacity=3000, content_check=True, check_every=3)
    [run] = run_plan(plan, "off").runs
    assert isinstance(run, EngineReport)
    config = run.config
    assert (config.page_size, config.sliding_window_size) == (16, 32)
    assert (config.capacity, config.swa_capacity) == (4992, 2992)
    assert (config.max_running, config.chunk_tokens, config.iteration_ms) == (4, 64, 20.0)
    assert (config.content_check, config.check_every, config.seed) == (True, 3, 3)
    assert run.finished == 6
    assert run.invariant_checks > 0
    assert run.content_tokens > 0
    [run] = run_plan(replace(PLAN, mode="serial"), "off").runs
    assert isinstance(run, SerialReport)
    assert (run.config.capacity, run.config.check_ownership, run.invariant_checks) == (4992, False, 0)
    [run] = run_plan(replace(PLAN, mode="serial", check_every=2), "off").runs
    assert isinstance(run, SerialReport)
    assert run.config.check_ownership
    assert run.invariant_checks > 0


def test_a_context_gets_its_options() -> None:
    """What the user typed for blocks is what their engine used, and no other cache is told of it."""
    plan = replace(
        PLAN,
        caches=("blocks", "radix"),
        mamba_chunk_size=16,
        eviction_policy="ref-zero",
        track_slots=3,
        content_check=True,
        check_every=50,
    )
    blocks, radix = run_plan(plan, "off").runs
    assert isinstance(blocks, EngineReport)
    assert isinstance(radix, EngineReport)
    config = blocks.config
    assert (config.cache, config.page_size, config.capacity, config.track_slots) == ("blocks", 16, 4992, 3)
    assert (config.mamba_chunk_size, config.eviction_policy) == (16, "ref_zero")
    assert (blocks.finished, blocks.evict_calls) == (6, 0)
    assert blocks.content_tokens > blocks.prompt_tokens
    assert blocks.invariant_checks == blocks.cache_operations // 50 > 0
    assert radix.config.mamba_chunk_size is radix.config.eviction_policy is None
    [plain] = run_plan(replace(plan, caches=("blocks",), eviction_policy=None, check_every=0), "off").runs
    assert isinstance(plain, EngineReport)
    assert plain.config.eviction_policy == "lru"


def test_a_rejected_request_makes_no_row_longer(tmp_path: Path) -> None:
    """Section 2: the row table is as wide as the longest request that can ever have a row."""
    requests = [
        Request(0, 0.0, 40, 8, (0, 1, 2), 16),
        Request(1, 0.0, 4992 + 1, 4, tuple(range(313)), 16),
        Request(2, 0.0, 8, 2**31 - 1, (0,), 16),
    ]
    write_trace(tmp_path / "trace.jsonl", requests)
    plan = replace(PLAN, workload=str(tmp_path / "trace.jsonl"), requests=None)
    for capacity, columns, rejected in ((5000, 48, 2), (16, 1, 3), (1_000_000, 4997, 1)):
        [run] = run_plan(replace(plan, capacity=capacity), "off").runs
        assert isinstance(run, EngineReport)
        assert (run.config.max_context, run.rejected) == (columns, rejected)


def test_several_caches_run_over_the_same_requests(trace: str) -> None:
    """Columns of one table are comparable."""
    result = run_plan(replace(PLAN, workload=trace, caches=("radix", "chunk")), "off")
    radix, chunk = result.runs
    assert result.requests == radix.requests == chunk.requests == 6
    assert radix.prompt_tokens == chunk.prompt_tokens
    assert radix.hit_tokens > chunk.hit_tokens == 0


def test_a_broken_law_ends_the_replay_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before is still reported."""

    def break_law(self: object) -> None:
        raise InvariantViolation("E3", "one slot is gone")

    monkeypatch.setattr("pymllm.workloads.serial._SerialReplay.check_nothing_lost", break_law)
    result = run_plan(replace(PLAN, mode="serial", caches=("chunk", "radix")), "off")
    assert result.violation is not None
    assert (result.violation.cache, result.violation.law) == ("chunk", "E3")
    assert result.violation.message == "one slot is gone"
    assert result.runs == ()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """X1: the message names the two sizes that decide."""
    monkeypatch.setattr(replay_run, "replay_serially", _raiser(error))
    with pytest.raises(click.ClickException, match="--capacity 5000 and --max-running 4; give less"):
        run_plan(replace(PLAN, mode="serial"), "off")


def test_other_errors_of_a_run_are_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug keeps its own error."""
    monkeypatch.setattr(replay_run, "replay_serially", _raiser(RuntimeError("ours")))
    with pytest.raises(RuntimeError, match="ours"):
        run_plan(replace(PLAN, mode="serial"), "off")


def _raiser(error: Exception) -> Callable[..., SerialReport]:
    def run(*arguments: object, **options: object) -> SerialReport:
        raise error

    return run


def test_a_bad_trace_is_named(tmp_path: Path) -> None:
    """X1: the reader's own error comes through."""
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(TraceError, match=r"bad\.jsonl:1: not a request"):
        run_plan(replace(PLAN, workload=str(tmp_path / "bad.jsonl")), "off")


def test_versions_are_those_of_what_ran() -> None:
    """A number without its versions cannot be compared."""
    assert list(run_plan(replace(PLAN, requests=1), "off").versions) == ["pymllm", "python", "torch", "numpy"]
