"""Carrying out replays: requests, one run per cache over them, and several sizes in parallel processes."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import TypeVar

import msgspec
import numpy
import torch

from pymllm import __version__
from pymllm.conformance.documents import (
    AskedRow,
    CeilingRow,
    ReplayDocument,
    ReplayRun,
    ReplayViolation,
    WorkloadRow,
)
from pymllm.conformance.recorded import open_recorded
from pymllm.conformance.replay_plan import ReplayPlan, column_of, pick_name
from pymllm.conformance.workers import Lost, Workers
from pymllm.errors import InvariantViolation, UsageError
from pymllm.mem_cache.tree.victim_order import RankedOrder
from pymllm.text_file import cut
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.ceiling import HitCeiling, belady_hit_tokens
from pymllm.workloads.engine import Engine, EngineConfig, EngineReport
from pymllm.workloads.engine_config import BLOCKS, CACHES_OF_STATES
from pymllm.workloads.engine_pools import CACHE_MAKERS, find_policy
from pymllm.workloads.engine_report import CutShort
from pymllm.workloads.request import Request
from pymllm.workloads.serial import SerialConfig, SerialReport, replay_serially
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import WORKLOADS, make_requests
from pymllm.workloads.traces.registry import read_requests

T = TypeVar("T")
Task = tuple[Callable[..., T], tuple[object, ...]]
_Progress = Callable[[int], None] | None
Show = Callable[[str, int, str], AbstractContextManager[_Progress]]
"""Shows how far something is: a label, how many of what; it gives a function that takes the number done."""

_TRACE_CAPACITY = 1_000_000
_NAMED_REQUESTS = 200


@dataclass(frozen=True, slots=True)
class Replayed:
    """A finished, broken-off or interrupted replay; of its plan no default is open any more.

    An interrupt leaves the run that it ended as far as it came.
    """

    plan: ReplayPlan
    document: ReplayDocument
    interruption: KeyboardInterrupt | None = None


@dataclass(frozen=True, slots=True)
class ReplayGrid:
    """Every cache with every page size and capacity, of one run each, and a ceiling for each point.

    After an interrupt those that were done by then.
    """

    results: tuple[Replayed, ...]
    ceilings: tuple[CeilingRow, ...]
    interruption: KeyboardInterrupt | None = None

    @property
    def document(self) -> ReplayDocument:
        """Return one record of all: that of the first, with the runs of all."""
        first, documents = self.results[0].document, [one.document for one in self.results]
        plans = [one.plan for one in self.results]
        requests = max(one.workload.requests for one in documents)
        return msgspec.structs.replace(
            first,
            workload=msgspec.structs.replace(first.workload, requests=requests),
            asked=msgspec.structs.replace(
                first.asked,
                capacities=tuple(dict.fromkeys(plan.capacity for plan in plans)),
                page_sizes=tuple(dict.fromkeys(plan.page_size for plan in plans)),
            ),
            runs=tuple(run for one in documents for run in one.runs),
            ceilings=self.ceilings,
            violation=next((one.violation for one in documents if one.violation is not None), None),
            interrupted=self.interruption is not None,
        )


def unseen(label: str, total: int, unit: str) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


def settle(plan: ReplayPlan) -> ReplayPlan:
    """Fill in what depends on the workload; an unknown cache, or sizes that do not fit, are refused."""
    for cache in plan.caches:
        pick_name(cache, (*CACHE_MAKERS, BLOCKS), "cache")
    for policy in plan.eviction_policies:
        if ":" in policy:
            find_policy(policy)
    capacity, requests = plan.capacity, plan.requests
    if capacity is None:
        capacity = WORKLOADS[plan.workload].capacity if plan.is_named else _TRACE_CAPACITY
    if requests is None and plan.is_named:
        requests = _NAMED_REQUESTS
    content_check = plan.content_check
    if content_check is None:
        content_check = plan.is_named
    settled = replace(plan, capacity=capacity, requests=requests, content_check=content_check)
    settled.check()
    return settled


def run_plan(plan: ReplayPlan, show: Show = unseen, requests: list[Request] | None = None) -> Replayed:
    """Replay one workload through each cache of a plan, one after another.

    torch gets one thread: the tensors of a replay are too small to gain from more.
    """
    plan = settle(plan)
    if requests is None:
        with show(f"reading {plan.workload}", 1, ""):
            requests = load_requests(plan)
    torch.set_num_threads(1)
    runs: list[EngineReport | SerialReport] = []
    violation, interruption = None, None
    for cache, policy in plan.columns:
        column = column_of(cache, policy)
        try:
            with show(f"{plan.workload} {column}", len(requests), "requests") as done:
                runs.append(_run_cache(plan, cache, policy, requests, done))
        except InvariantViolation as error:
            violation = ReplayViolation(column, error.law, error.message)
            break
        except CutShort as ended:
            runs.append(ended.report)
            interruption = ended.interruption
            break
    document = ReplayDocument(
        versions=versions_of_run(),
        workload=WorkloadRow(
            name=plan.workload,
            kind="named" if plan.is_named else "trace",
            requests=len(requests),
            seed=plan.seed,
            block_tokens=None if plan.is_named else requests[0].block_tokens,
        ),
        mode="serial" if plan.mode == "serial" else "engine",
        asked=AskedRow(capacity=plan.capacity, swa_capacity=plan.swa_capacity),
        runs=tuple(msgspec.convert(run, ReplayRun, from_attributes=True) for run in runs),
        violation=violation,
        interrupted=interruption is not None,
    )
    return Replayed(plan, document, interruption)


def load_requests(plan: ReplayPlan) -> list[Request]:
    """Return the requests of a settled plan; those of a named workload depend on its capacity."""
    if plan.is_named:
        assert plan.requests is not None
        return make_requests(plan.workload, plan.requests, seed=plan.seed, capacity=plan.capacity)
    return read_requests(open_recorded(plan))


def _run_cache(
    plan: ReplayPlan, cache: str, policy: str | None, requests: list[Request], show: _Progress
) -> EngineReport | SerialReport:
    try:
        if plan.mode == "serial":
            return replay_serially(requests, _serial_config(plan, cache, policy), progress=show)
        config, source = _engine_config(plan, cache, policy, requests), TraceSource(requests)
        if cache == BLOCKS:
            return BlockEngine(config, source, progress=show).run()
        return Engine(config, source, progress=show).run()
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise UsageError(
                f"this machine has no memory for --capacity {plan.capacity} and --max-running "
                f"{plan.max_running}; give less"
            ) from error
        if any(frame.f_code in _RANKING for frame, _ in walk_tb(error.__traceback__)):
            raise UsageError(
                f"eviction policy {cut(str(policy))!r} cannot rank a leaf: {type(error).__name__}: {error}"
            ) from error
        raise


_RANKING = {RankedOrder.first.__code__, RankedOrder.first_of_both.__code__}
"""Where a stranger's policy is asked, and its ranks are compared; our own policies raise nothing there."""


def _engine_config(plan: ReplayPlan, cache: str, policy: str | None, requests: list[Request]) -> EngineConfig:
    assert plan.capacity is not None
    assert plan.content_check is not None
    return EngineConfig(
        cache=cache,
        page_size=plan.page_size,
        sliding_window_size=plan.window,
        capacity=plan.capacity,
        swa_capacity=plan.swa_capacity,
        track_slots=plan.track_slots if cache in CACHES_OF_STATES else None,
        max_running=plan.max_running,
        max_context=_longest_that_fits(requests, plan.capacity // plan.page_size * plan.page_size),
        chunk_tokens=plan.chunk,
        iteration_ms=plan.iteration_ms,
        content_check=plan.content_check,
        check_every=plan.check_every,
        seed=plan.seed,
        mamba_chunk_size=plan.mamba_chunk_size if cache == BLOCKS else None,
        eviction_policy=policy if policy is None or cache != BLOCKS else policy.replace("-", "_"),
    )


def _longest_that_fits(requests: list[Request], slots: int) -> int:
    """Return the columns that the row table needs: a request that is longer than the pool gets no row."""
    lengths = (request.prompt_length + request.output_length for request in requests)
    # The last token of an output gets no slot (`pymllm.workloads.live_request`).
    return max((length for length in lengths if length - 1 <= slots), default=1)


def _serial_config(plan: ReplayPlan, cache: str, policy: str | None) -> SerialConfig:
    assert plan.capacity is not None
    # Whoever checks wants to know whose each slot is; whoever measures does not want to pay for it.
    checked = plan.check_every > 0
    return SerialConfig(
        cache, plan.page_size, plan.capacity, checked, plan.check_every, eviction_policy=policy
    )


def versions_of_run() -> dict[str, str]:
    """Return what a replay's numbers may depend on."""
    return {
        "pymllm": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


# -- several sizes -------------------------------------------------------------------------------------------
def run_grid(plans: Sequence[ReplayPlan], jobs: int, show: Show = unseen) -> ReplayGrid:
    """Replay every plan with each of its caches.

    Several processes share the machine's memory bandwidth and caches: times in them are longer than alone.
    """
    settled = [settle(plan) for plan in plans]
    # A trace is read once, also from a pipe; a named workload's prompts depend on the capacity.
    shared = None
    if not settled[0].is_named:
        with show(f"reading {settled[0].workload}", 1, ""):
            shared = load_requests(settled[0])
    runs: list[Task[Replayed]] = [
        (
            run_plan,
            (replace(plan, caches=(cache,), eviction_policies=(policy,) if policy else ()), unseen, shared),
        )
        for plan in settled
        for cache, policy in plan.columns
    ]
    ceilings: list[Task[CeilingRow]] = [(find_ceiling, (plan, shared)) for plan in settled]
    tasks: list[Task[object]] = [*runs, *ceilings]
    with show(settled[0].workload, len(tasks), "runs and ceilings") as tell:
        done, interruption = carry_out(tasks, min(jobs, len(tasks)), tell)
    results = tuple(one for one in done if isinstance(one, Replayed))
    if interruption is not None and not results:
        raise interruption
    found = (one for one in done if isinstance(one, CeilingRow))
    return ReplayGrid(results, tuple(_as_replayed(ceiling, results) for ceiling in found), interruption)


def find_ceiling(plan: ReplayPlan, requests: list[Request] | None) -> CeilingRow:
    """Return what could be hit at most at one point of a grid."""
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
    return CeilingRow(
        page_size=plan.page_size,
        capacity=capacity,
        prompt_tokens=tokens,
        unlimited_hit_rate=unlimited.hit_rate,
        belady_hit_rate=rate,
    )


def _as_replayed(ceiling: CeilingRow, results: Sequence[Replayed]) -> CeilingRow:
    """Take the ceiling of an engine that ran to its end: it knows what it had to reject."""
    for run in (run for result in results for run in result.document.runs):
        point = run.config.page_size, run.config.capacity
        if run.finished is not None and point == (ceiling.page_size, ceiling.capacity):
            rate = run.ceiling_hit_rate
            return msgspec.structs.replace(ceiling, prompt_tokens=run.prompt_tokens, unlimited_hit_rate=rate)
    return ceiling


def carry_out(
    tasks: list[Task[object]], jobs: int, show: Callable[[int], None] | None
) -> tuple[list[object], KeyboardInterrupt | None]:
    """Return what each task returned, in their order, and the interrupt that some were lost to."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the processes that are started now
    with Workers(jobs) as workers:
        done = workers.map(_act, tasks, show)
    if workers.interruption is None:
        for one in done:
            if isinstance(one, Lost):
                raise UsageError(f"a run has no result: {one.message}")
    return list(done), workers.interruption


def _act(task: Task[object]) -> object:
    act, arguments = task
    return act(*arguments)
