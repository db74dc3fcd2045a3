"""Replays at several sizes in parallel processes: a run for each cache, and an upper bound, per point.

Each is a task of its own. A file keeps what came of it as soon as that is known, and several machines may do
a part of the tasks each (`pymllm.work.kept`).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from pymllm.documents.replays import CeilingRow, ReplayDocument
from pymllm.documents.shards import BrokenLaw, ShardDocument
from pymllm.errors import UsageError
from pymllm.replay.cells import (
    Cell,
    KeptReplays,
    Replayed,
    Result,
    digest_content,
    digest_policies,
    versions_of_run,
)
from pymllm.replay.plan import ReplayPlan, SettledPlan
from pymllm.replay.replays import Show, cells_of, load_requests, run_plan, settle, unseen
from pymllm.work.carrying import Carrier
from pymllm.work.shards import Shard
from pymllm.work.workers import Lost, Workers
from pymllm.workloads.ceiling import HitCeiling, belady_hit_tokens
from pymllm.workloads.request import Request


@dataclass(frozen=True, slots=True)
class ReplayGrid:
    """Replays of every cache at every page size and capacity, with an upper bound of hits for each point.

    After an interrupt those that were done by then. ``kept`` of all were in a file before.
    """

    results: tuple[Replayed, ...]
    ceilings: tuple[CeilingRow, ...]
    interruption: KeyboardInterrupt | None = None
    kept: int = 0

    @property
    def document(self) -> ReplayDocument:
        """Return one document for all replays: the first one's, with the runs of all."""
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


def replay(
    plans: Sequence[ReplayPlan], jobs: int, show: Show = unseen, kept: KeptReplays | None = None
) -> Replayed | ReplayGrid:
    """Replay plans that differ in sizes, in parallel processes; at a single point one cache after another."""
    return run_grid(plans, jobs, show, kept) if is_grid(plans) else run_plan(plans[0], show, kept=kept)


def is_grid(plans: Sequence[ReplayPlan]) -> bool:
    """Tell whether plans have several sizes or policies, so that their table includes upper bounds."""
    return len(plans) > 1 or len(plans[0].eviction_policies) > 1


def run_grid(
    plans: Sequence[ReplayPlan], jobs: int, show: Show = unseen, kept: KeptReplays | None = None
) -> ReplayGrid:
    """Replay every plan with each of its caches, reusing the results in ``kept``.

    Several processes share the machine's memory bandwidth and caches: times in them are longer than alone.
    """
    cells = _lay_out(plans, show, kept)
    found = carry_out(plans[0].workload, cells, jobs, "runs and ceilings", show, kept)
    done = [found.results[cell] for cell in cells if cell in found.results]
    results = tuple(one for one in done if isinstance(one, Replayed))
    if found.interruption is not None and not results:
        raise found.interruption
    ceilings = tuple(_as_replayed(one, results) for one in done if isinstance(one, CeilingRow))
    return ReplayGrid(results, ceilings, found.interruption, found.kept)


def run_shard(
    plans: Sequence[ReplayPlan], shard: Shard, jobs: int, kept: KeptReplays, show: Show = unseen
) -> tuple[ShardDocument, KeyboardInterrupt | None]:
    """Play the cells of a shard, and store results in ``kept``, even those before an interrupt.

    Heavy tasks are dealt first, and each kind of them evenly. Caches at a single point are replayed one after
    another as by `run_plan`, so that their times compare.
    """
    begun = time.monotonic()
    cells = _lay_out(plans, show, kept)
    heavy_first = sorted(cells, key=lambda cell: cell.weight, reverse=True)
    own = list(shard.keep(heavy_first, lambda cell: cell.weight))
    several = is_grid(plans)
    unit = "runs and ceilings" if several else "runs"
    label = f"{plans[0].workload}, shard {shard}"
    found = carry_out(label, own, jobs if several else 1, unit, show, kept)
    broken = tuple(
        BrokenLaw(cell.title, result.document.violation.law, result.document.violation.message)
        for cell, result in found.results.items()
        if isinstance(result, Replayed) and result.document.violation is not None
    )
    document = ShardDocument(
        command="replay-serial" if plans[0].mode == "serial" else "replay",
        shard=str(shard),
        file=str(kept.path),
        tasks=len(own),
        total=len(cells),
        done=len(found.results),
        kept=found.kept,
        seconds=round(time.monotonic() - begun, 3),
        broken=broken,
        interrupted=found.interruption is not None,
        exit_status=1 if broken else 0,
    )
    return document, found.interruption


def count_cells(plans: Sequence[ReplayPlan]) -> int:
    """Return the number of runs and upper bounds in settled plans."""
    return sum(len(plan.columns) for plan in plans) + (len(plans) if is_grid(plans) else 0)


def source_of(plans: Sequence[ReplayPlan]) -> str:
    """Return the source of results besides the typed options: for a trace, the bytes of its file."""
    first = plans[0]
    digest = ""
    if not first.is_named:
        with open(first.workload, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{digest} {digest_policies(first)} {versions_of_run()}"


def _lay_out(plans: Sequence[ReplayPlan], show: Show, kept: KeptReplays | None) -> list[Cell]:
    """Return all runs and upper bounds, in the order of the document."""
    settled = [settle(plan) for plan in plans]
    first = settled[0]
    # A trace is read once, also from a pipe; a named workload's prompts depend on the capacity.
    shared = None
    if not first.is_named:
        with show(f"reading {first.workload}", 1, ""):
            shared = load_requests(first)
    content, sources = "", dict[str, str]()
    if kept is not None:
        content, sources = digest_content(first, shared or ()), digest_policies(first)
    cells = [cell for plan in settled for cell in cells_of(plan, shared, content, sources)]
    if is_grid(plans):
        points = (replace(plan, caches=(), eviction_policies=()) for plan in settled)
        cells += [Cell(point, shared, content) for point in points]
    return cells


# -- tasks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Carried:
    """The results of cells, the number taken from a file, and any interruption."""

    results: dict[Cell, Result]
    kept: int = 0
    interruption: KeyboardInterrupt | None = None


def carry_out(
    label: str,
    cells: Sequence[Cell],
    jobs: int,
    unit: str,
    show: Show,
    kept: KeptReplays | None = None,
) -> Carried:
    """Play cells in ``jobs`` processes, without those in ``kept``; store each new result there at once.

    `UsageError`: a process was lost. The others went on to their end before.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the processes that are started now
    with Workers(jobs) as workers:
        carrier = Carrier(workers, lambda label, total: show(label, total, unit), kept)
        answers = carrier.carry_out(label, _play, cells)
    lost = [answer for answer in answers if isinstance(answer, Lost)]
    if lost and workers.interruption is None:
        rest = "" if kept is None else f"; what the others came to is in {kept.path}"
        raise UsageError(f"a run has no result: {lost[0].message}{rest}")
    results = {
        cell: answer for cell, answer in zip(cells, answers, strict=True) if not isinstance(answer, Lost)
    }
    return Carried(results, carrier.taken, workers.interruption)


def _play(cell: Cell) -> Result:
    if cell.is_ceiling:
        return find_ceiling(cell.plan, cell.requests)
    return run_plan(cell.plan, requests=cell.requests)


def find_ceiling(plan: SettledPlan, requests: list[Request] | None) -> CeilingRow:
    """Return the upper bound of hit rates at one point of a grid."""
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
    """Return the upper bound from an engine that ran to its end, which knows the requests it rejected."""
    for run in (run for result in results for run in result.document.runs):
        point = run.config.page_size, run.config.capacity
        if run.finished is not None and point == (ceiling.page_size, ceiling.capacity):
            rate = run.ceiling_hit_rate
            return msgspec.structs.replace(ceiling, prompt_tokens=run.prompt_tokens, unlimited_hit_rate=rate)
    return ceiling
