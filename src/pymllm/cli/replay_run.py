"""Carrying out a replay: the requests, and one run per cache over them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy
import torch

from pymllm import __version__
from pymllm.cli.program import escaped
from pymllm.cli.progress import progress_bar
from pymllm.cli.replay_plan import ReplayPlan, pick_name
from pymllm.cli.replay_result import ReplayResult, Violation
from pymllm.errors import InvariantViolation
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine, EngineConfig, EngineReport
from pymllm.workloads.engine_config import BLOCKS, CACHES_OF_STATES
from pymllm.workloads.engine_pools import CACHE_MAKERS
from pymllm.workloads.engine_report import CutShort
from pymllm.workloads.request import Request
from pymllm.workloads.serial import SerialConfig, SerialReport, replay_serially
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import WORKLOADS, make_requests
from pymllm.workloads.trace_file import read_trace

__all__ = ["load_requests", "run_plan", "settle"]

_Progress = Callable[[int], None] | None

_TRACE_CAPACITY = 1_000_000
_NAMED_REQUESTS = 200


def settle(plan: ReplayPlan) -> ReplayPlan:
    """Fill in the defaults that depend on the workload.

    Parameters
    ----------
    plan : ReplayPlan
        Checked.

    Returns
    -------
    ReplayPlan
        Only ``requests`` of a whole trace and options of a single cache may still be ``None``.

    Raises
    ------
    click.UsageError
        A cache has an unknown name, or the settled capacity does not fit the page size.
    """
    for cache in plan.caches:
        pick_name(cache, (*CACHE_MAKERS, BLOCKS), "cache")
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


def run_plan(plan: ReplayPlan, progress: str, requests: list[Request] | None = None) -> ReplayResult:
    """Replay one workload through each cache of a plan, one after another.

    Parameters
    ----------
    plan : ReplayPlan
        Checked.
    progress : str
        ``"auto"``, ``"on"`` or ``"off"``, as in `progress_bar`.
    requests : list of Request, optional
        What `load_requests` returned for this workload.

    Returns
    -------
    ReplayResult
        With the violation or the interrupt that ended it, if one did.

    Raises
    ------
    click.ClickException
        Sizes for which this machine has no memory, or names that do not exist.
    TraceError
        The trace cannot be read.

    Notes
    -----
    torch gets one thread: the tensors of a replay are too small to gain from more.
    """
    plan = settle(plan)
    if requests is None:
        requests = load_requests(plan)
    torch.set_num_threads(1)
    runs: list[EngineReport | SerialReport] = []
    violation, interruption = None, None
    for cache in plan.caches:
        try:
            with progress_bar(progress, f"{escaped(plan.workload)} {cache}", len(requests)) as show:
                runs.append(_run_cache(plan, cache, requests, show))
        except InvariantViolation as error:
            violation = Violation(cache, error.law, error.message)
            break
        except CutShort as cut:
            runs.append(cut.report)
            interruption = cut.interruption
            break
    return ReplayResult(plan, len(requests), _versions(), tuple(runs), violation, interruption)


def load_requests(plan: ReplayPlan) -> list[Request]:
    """Return the requests of a settled plan; those of a named workload depend on its capacity."""
    if plan.is_named:
        assert plan.requests is not None
        return make_requests(plan.workload, plan.requests, seed=plan.seed, capacity=plan.capacity)
    return read_trace(plan.workload, requests=plan.requests, block_tokens=plan.block_tokens)


def _run_cache(
    plan: ReplayPlan, cache: str, requests: list[Request], show: _Progress
) -> EngineReport | SerialReport:
    try:
        if plan.mode == "serial":
            return replay_serially(requests, _serial_config(plan, cache), progress=show)
        config, source = _engine_config(plan, cache, requests), TraceSource(requests)
        if cache == BLOCKS:
            return BlockEngine(config, source, progress=show).run()
        return Engine(config, source, progress=show).run()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise click.ClickException(
                f"this machine has no memory for --capacity {plan.capacity} and --max-running "
                f"{plan.max_running}; give less"
            ) from error
        raise


def _engine_config(plan: ReplayPlan, cache: str, requests: list[Request]) -> EngineConfig:
    assert plan.capacity is not None
    assert plan.content_check is not None
    of_blocks = {} if cache != BLOCKS else _block_options(plan)
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
        **of_blocks,
    )


def _block_options(plan: ReplayPlan) -> dict[str, Any]:
    policy = plan.eviction_policy
    return {
        "mamba_chunk_size": plan.mamba_chunk_size,
        "eviction_policy": None if policy is None else policy.replace("-", "_"),
    }


def _longest_that_fits(requests: list[Request], slots: int) -> int:
    """Return the columns that the row table needs: a request that is longer than the pool gets no row."""
    lengths = (request.prompt_length + request.output_length for request in requests)
    # The last token of an output gets no slot (`pymllm.workloads.live_request`).
    return max((length for length in lengths if length - 1 <= slots), default=1)


def _serial_config(plan: ReplayPlan, cache: str) -> SerialConfig:
    assert plan.capacity is not None
    # Whoever checks wants to know whose each slot is; whoever measures does not want to pay for it.
    checked = plan.check_every > 0
    return SerialConfig(cache, plan.page_size, plan.capacity, checked, plan.check_every)


def _versions() -> dict[str, str]:
    return {
        "pymllm": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }
