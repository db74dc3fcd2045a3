"""Every cache at every point, in this process or in others, with the same numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import pytest

from pymllm.cli import replay_grid
from pymllm.cli.replay_grid import find_ceiling, run_grid
from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_result import Ceiling, ReplayGrid
from pymllm.conformance.worker_process import Lost
from pymllm.conformance.workers import Workers
from pymllm.workloads.engine import EngineReport
from pymllm.workloads.serial import SerialReport

PLAN = ReplayPlan(
    workload="chat",
    mode="serial",
    caches=("radix", "chunk"),
    requests=30,
    seed=0,
    block_tokens=512,
    page_size=1,
    window=None,
    capacity=None,
    swa_capacity=None,
    track_slots=None,
    max_running=8,
    chunk=64,
    iteration_ms=50.0,
    content_check=None,
    check_every=0,
)


def points(*sizes: tuple[int, int]) -> list[ReplayPlan]:
    return [
        dataclasses.replace(PLAN, page_size=page_size, capacity=capacity) for page_size, capacity in sizes
    ]


def hits(grid: ReplayGrid) -> list[tuple[str, int, int, int]]:
    """What came of each run, without the times."""
    found = []
    for result in grid.results:
        [run] = result.runs
        assert isinstance(run, SerialReport)
        found.append((run.config.cache, run.config.page_size, run.config.capacity, run.hit_tokens))
    return found


def test_processes_change_no_count() -> None:
    """X3: in the order of the plans, and of the caches of each."""
    plans = points((1, 3000), (16, 8000))
    here, there = run_grid(plans, 1, "off"), run_grid(plans, 2, "off")
    assert hits(here) == hits(there)
    assert [one[:3] for one in hits(here)] == [
        ("radix", 1, 3000), ("chunk", 1, 3000), ("radix", 16, 8000), ("chunk", 16, 8000)
    ]  # fmt: skip
    assert here.ceilings == there.ceilings
    assert here.violation is None


def test_no_cache_hits_more_than_the_ceilings() -> None:
    """R2: over the same requests, those that are not longer than half the capacity."""
    grid = run_grid(points((4, 2000), (4, 6000), (4, 50_000)), 1, "off")
    for ceiling, result in zip(grid.ceilings, grid.results[::2], strict=True):
        [run] = result.runs
        assert run.prompt_tokens == ceiling.prompt_tokens
        assert ceiling.belady_hit_rate is not None
        assert run.token_hit_rate <= ceiling.belady_hit_rate <= ceiling.unlimited_hit_rate
    assert grid.ceilings[-1].belady_hit_rate == grid.ceilings[-1].unlimited_hit_rate > 0


def test_an_engine_has_no_bound_by_order() -> None:
    """It admits, retracts and finishes as memory allows."""
    (plan,) = points((1, 5000))
    ceiling = find_ceiling(dataclasses.replace(plan, mode="engine"), None)
    assert (ceiling.page_size, ceiling.capacity, ceiling.belady_hit_rate) == (1, 5000, None)
    assert ceiling.unlimited_hit_rate > 0


def test_an_engine_s_ceiling_leaves_out_what_it_rejects() -> None:
    """R2: or a cache hits more than one that never forgets."""
    plans = [dataclasses.replace(one, mode="engine") for one in points((1, 600), (1, 5000))]
    grid = run_grid(plans, 1, "off")
    for number, result in enumerate(grid.results):
        [run] = result.runs
        assert isinstance(run, EngineReport)
        ceiling = grid.ceilings[number // len(PLAN.caches)]
        assert (ceiling.prompt_tokens, ceiling.unlimited_hit_rate) == (
            run.prompt_tokens,
            run.ceiling_hit_rate,
        )
        assert bool(run.rejected) is (ceiling.capacity == 600)
        assert run.finished


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_one_run_ends_all(jobs: int) -> None:
    """Nothing half is printed."""
    (plan,) = points((1, 3000))
    with pytest.raises(ValueError, match="max_running"):
        run_grid([dataclasses.replace(plan, mode="engine", max_running=0)], jobs, "off")


def test_an_interrupt_waits_for_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: the run that goes on would take minutes."""

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def bar(*arguments: object) -> Iterator[Callable[[int], None]]:
        yield interrupt

    monkeypatch.setattr(replay_grid, "progress_bar", bar)
    short = dataclasses.replace(PLAN, caches=("radix",), capacity=3000)
    grid = run_grid([short, dataclasses.replace(short, requests=300_000)], 2, "off")
    assert isinstance(grid.interruption, KeyboardInterrupt)
    assert [result.requests for result in grid.results] == [30]
    long = dataclasses.replace(short, mode="serial", requests=300_000)
    monkeypatch.setattr(
        Workers, "map", lambda self, *rest: setattr(self, "interruption", KeyboardInterrupt()) or []
    )
    with pytest.raises(KeyboardInterrupt):
        run_grid([long], 1, "off")


def test_a_process_that_is_lost_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system ends a process that takes too much memory; nobody's bug, and no result."""
    monkeypatch.setattr(Workers, "map", lambda self, function, items, done: [Lost("killed by SIGKILL")])
    with pytest.raises(click.ClickException, match=r"a run has no result: killed by SIGKILL"):
        run_grid(points((1, 3000)), 2, "off")


def test_the_first_violation_is_the_grid_s() -> None:
    """There is none where there are no results."""
    assert ReplayGrid((), (Ceiling(1, 2, 3, 0.5, None),)).violation is None
