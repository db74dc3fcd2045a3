"""The execution of replays: loading requests, and running each cache over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from traceback import walk_tb

import msgspec
import torch

from pymllm.documents.replays import (
    AskedRow,
    ReplayDocument,
    ReplayRun,
    ReplayViolation,
    WorkloadRow,
    column_of,
)
from pymllm.errors import InvariantViolation, UsageError
from pymllm.mem_cache.tree.victims import RankedOrder
from pymllm.replay.cells import (
    Cell,
    KeptReplays,
    Replayed,
    digest_content,
    digest_policies,
    versions_of_run,
)
from pymllm.replay.plan import ReplayPlan, SettledPlan, pick_name
from pymllm.replay.recorded import open_recorded
from pymllm.replay.serial import SerialConfig, SerialReport, replay_serially
from pymllm.text_file import cut
from pymllm.traces.registry import read_requests
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine, EngineConfig, EngineReport
from pymllm.workloads.engine_config import BLOCKS, CACHES_OF_STATES
from pymllm.workloads.engine_pools import CACHE_MAKERS, find_policy
from pymllm.workloads.engine_report import CutShort
from pymllm.workloads.request import Request
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import WORKLOADS, make_requests

_Progress = Callable[[int], None] | None
Show = Callable[[str, int, str], AbstractContextManager[_Progress]]
"""A function of a label, a total and a unit that shows progress, and yields a function to report it."""

_TRACE_CAPACITY = 1_000_000
_NAMED_REQUESTS = 200


def unseen(label: str, total: int, unit: str) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


def settle(plan: ReplayPlan) -> SettledPlan:
    """Fill in settings that depend on the workload; raise an error for unknown caches or misfitting sizes.

    A plan is settled once: one that is comes back as it is.
    """
    if isinstance(plan, SettledPlan):
        return plan
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
    given = {field.name: getattr(plan, field.name) for field in fields(plan)}
    filled_in = {"capacity": capacity, "requests": requests, "content_check": content_check}
    settled = SettledPlan(**given | filled_in)
    settled.check()
    return settled


def cells_of(
    plan: SettledPlan, requests: list[Request] | None, content: str, sources: Mapping[str, str]
) -> list[Cell]:
    """Return the cells of a settled plan: one for each cache and policy."""
    return [
        Cell(
            replace(plan, caches=(cache,), eviction_policies=(policy,) if policy else ()),
            requests,
            content,
            sources.get(policy or "", ""),
        )
        for cache, policy in plan.columns
    ]


def run_plan(
    plan: ReplayPlan,
    show: Show = unseen,
    requests: list[Request] | None = None,
    kept: KeptReplays | None = None,
) -> Replayed:
    """Replay one workload through each cache of a plan in turn, reusing the results in ``kept``.

    torch gets one thread: the tensors of a replay are too small to gain from more.
    """
    settled = settle(plan)
    if requests is None:
        with show(f"reading {settled.workload}", 1, ""):
            requests = load_requests(settled)
    torch.set_num_threads(1)
    results: list[Replayed] = []
    before = 0
    content, sources = (
        ("", {}) if kept is None else (digest_content(settled, requests), digest_policies(settled))
    )
    for cell in cells_of(settled, requests, content, sources):
        found = None if kept is None else kept.find(cell)
        if isinstance(found, Replayed):
            before += 1
        else:
            found = _run_cell(cell, requests, show)
            if kept is not None:
                kept.keep(cell, found)
        results.append(found)
        if found.document.violation is not None or found.interruption is not None:
            break
    first, last = results[0].document, results[-1]
    runs = tuple(run for one in results for run in one.document.runs)
    ended, violation = last.interruption, last.document.violation
    document = msgspec.structs.replace(first, runs=runs, violation=violation, interrupted=ended is not None)
    return Replayed(settled, document, ended, before)


def _run_cell(cell: Cell, requests: list[Request], show: Show) -> Replayed:
    plan, [(cache, policy)] = cell.plan, cell.plan.columns
    column = column_of(cache, policy)
    run: EngineReport | SerialReport | None = None
    violation, interruption = None, None
    try:
        with show(f"{plan.workload} {column}", len(requests), "requests") as done:
            run = _run_cache(plan, cache, policy, requests, done)
    except InvariantViolation as error:
        violation = ReplayViolation(column, error.law, error.message)
    except CutShort as ended:
        run, interruption = ended.report, ended.interruption
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
        runs=() if run is None else (msgspec.convert(run, ReplayRun, from_attributes=True),),
        violation=violation,
        interrupted=interruption is not None,
    )
    return Replayed(plan, document.judged(), interruption)


def load_requests(plan: SettledPlan) -> list[Request]:
    """Return the requests of a settled plan, which for a named workload depend on the capacity."""
    if plan.is_named:
        assert plan.requests is not None
        return make_requests(plan.workload, plan.requests, seed=plan.seed, capacity=plan.capacity)
    return read_requests(open_recorded(plan))


def _run_cache(
    plan: SettledPlan, cache: str, policy: str | None, requests: list[Request], show: _Progress
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
"""The code in which an outside policy's ranks are computed and compared, and where its errors arise."""


def _engine_config(
    plan: SettledPlan, cache: str, policy: str | None, requests: list[Request]
) -> EngineConfig:
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
    """Return the width of the row table: the tokens of the longest request that fits the pool."""
    lengths = (request.prompt_length + request.output_length for request in requests)
    # The last token of an output gets no slot (`pymllm.workloads.live_request`).
    return max((length for length in lengths if length - 1 <= slots), default=1)


def _serial_config(plan: SettledPlan, cache: str, policy: str | None) -> SerialConfig:
    # Whoever checks wants to know whose each slot is; whoever measures does not want to pay for it.
    checked = plan.check_every > 0
    return SerialConfig(
        cache, plan.page_size, plan.capacity, checked, plan.check_every, eviction_policy=policy
    )
