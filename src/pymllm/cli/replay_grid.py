"""Replaying several caches at several page sizes and capacities, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import click

from pymllm.cli.program import escaped
from pymllm.cli.progress import progress_bar
from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_result import Ceiling, ReplayGrid, ReplayResult
from pymllm.cli.replay_run import load_requests, run_plan, settle
from pymllm.conformance.worker_process import Lost
from pymllm.conformance.workers import Workers
from pymllm.workloads.ceiling import HitCeiling, belady_hit_tokens
from pymllm.workloads.engine import EngineReport
from pymllm.workloads.request import Request

__all__ = ["find_ceiling", "run_grid"]

T = TypeVar("T")
_Task = tuple[Callable[..., T], tuple[object, ...]]


def run_grid(plans: Sequence[ReplayPlan], jobs: int, progress: str) -> ReplayGrid:
    """Replay every plan with each of its caches.

    Parameters
    ----------
    plans : sequence of ReplayPlan
        Checked; they differ in page size and capacity only, and at least one.
    jobs : int
        Processes beside this one.
    progress : str
        ``"auto"``, ``"on"`` or ``"off"``, as in `progress_bar`.

    Returns
    -------
    ReplayGrid
        In the order of the plans, and of the caches of each; after an interrupt what was done by then.

    Raises
    ------
    click.ClickException, TraceError
        As `run_plan`; and a process was lost.
    KeyboardInterrupt
        It came before any run was done.

    Notes
    -----
    Several processes share the machine's memory bandwidth and caches: times in them are longer than alone.
    """
    settled = [settle(plan) for plan in plans]
    # A trace is read once, also from a pipe; a named workload's prompts depend on the capacity.
    shared = None if settled[0].is_named else load_requests(settled[0])
    runs: list[_Task[ReplayResult]] = [
        (run_plan, (replace(plan, caches=(cache,)), "off", shared))
        for plan in settled
        for cache in plan.caches
    ]
    ceilings: list[_Task[Ceiling]] = [(find_ceiling, (plan, shared)) for plan in settled]
    tasks: list[_Task[object]] = [*runs, *ceilings]
    with progress_bar(progress, escaped(settled[0].workload), len(tasks), "runs") as show:
        done, interruption = _carry_out(tasks, min(jobs, len(tasks)), show)
    results = tuple(one for one in done if isinstance(one, ReplayResult))
    if interruption is not None and not results:
        raise interruption
    found = (one for one in done if isinstance(one, Ceiling))
    return ReplayGrid(results, tuple(_as_replayed(ceiling, results) for ceiling in found), interruption)


def find_ceiling(plan: ReplayPlan, requests: list[Request] | None) -> Ceiling:
    """Return what could be hit at most at one point of a grid.

    Parameters
    ----------
    plan : ReplayPlan
        Settled.
    requests : list of Request or None
        Of a trace; a named workload's are made here.
    """
    assert plan.capacity is not None
    capacity = plan.capacity // plan.page_size * plan.page_size
    in_order = plan.mode == "serial"
    replayed = [
        request
        for request in requests or load_requests(plan)
        if not in_order or request.prompt_length <= capacity // 2
    ]
    # An engine computes the last token of a prompt whatever is cached.
    unlimited = HitCeiling(plan.page_size, held_back=0 if in_order else 1)
    for request in replayed:
        unlimited.add(request)
    belady = belady_hit_tokens(replayed, plan.page_size, capacity) if in_order else None
    tokens = unlimited.prompt_tokens
    rate = None if belady is None else belady / max(1, tokens)
    return Ceiling(plan.page_size, capacity, tokens, unlimited.hit_rate, rate)


def _as_replayed(ceiling: Ceiling, results: Sequence[ReplayResult]) -> Ceiling:
    """Take the ceiling of an engine that ran to its end: it knows what it had to reject."""
    for run in (run for result in results for run in result.runs):
        if isinstance(run, EngineReport) and (run.config.page_size, run.config.capacity) == (
            ceiling.page_size,
            ceiling.capacity,
        ):
            return replace(ceiling, prompt_tokens=run.prompt_tokens, unlimited_hit_rate=run.ceiling_hit_rate)
    return ceiling


def _carry_out(
    tasks: list[_Task[object]], jobs: int, show: Callable[[int], None] | None
) -> tuple[list[object], KeyboardInterrupt | None]:
    """Return what each task returned, in their order, and the interrupt that some were lost to."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the processes that are started now
    with Workers(jobs) as workers:
        done = workers.map(_act, tasks, show)
    if workers.interruption is None:
        for one in done:
            if isinstance(one, Lost):
                raise click.ClickException(f"a run has no result: {one.message}")
    return list(done), workers.interruption


def _act(task: _Task[object]) -> object:
    act, arguments = task
    return act(*arguments)
