"""The computation of curves: one pass for all capacities, and replays for all other numbers."""

from __future__ import annotations

import itertools
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import msgspec
import numpy

from pymllm import __version__
from pymllm.documents.curves import (
    CheckpointPoint,
    CurveDocument,
    CurveGroup,
    CurveOfCheckpoints,
    CurveOfPolicy,
    CurveRow,
    ModelRow,
    PolicyPoint,
    SampleRow,
)
from pymllm.documents.replays import CeilingRow, WorkloadRow
from pymllm.errors import UsageError
from pymllm.replay.curve import CurvePoint, LruCurve
from pymllm.replay.curve_plan import MOST_HELD, NAMED_REQUESTS, CurvePlan
from pymllm.replay.keeping import Keeping
from pymllm.replay.kv_size import GIB
from pymllm.replay.recorded import open_recorded
from pymllm.replay.sampling import (
    PARTS,
    SampledCurve,
    SampledPoint,
    TraceExtent,
    least_capacity,
)
from pymllm.replay.state_curve import StateCurve
from pymllm.torch_extra import without_collector
from pymllm.traces.registry import replayable
from pymllm.workloads.peak_memory import peak_rss_bytes
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import WORKLOADS

# Not at the top: what replays are made of loads torch, four times as long as the pass over a usual trace.

_TELL_EVERY: Final = 256
_LRU: Final = "lru"
_CHUNK: Final = 1 << 20
_SLOT_MAX: Final = 2**31 - 1


Show = Callable[[str, int, str], AbstractContextManager[Callable[[int], None] | None]]
"""A function that shows progress, like `pymllm.replay.replays.Show`."""


def _unseen(label: str, total: int, unit: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Curve:
    """A finished or interrupted curve."""

    plan: CurvePlan
    document: CurveDocument
    interruption: KeyboardInterrupt | None = None


def run_curve(plan: CurvePlan, jobs: int, show: Show = _unseen) -> Curve:
    """Count the hits of several capacities in one pass; an interrupt keeps the requests read so far.

    A trace is read twice if its capacities are to be chosen. Belady's rule and other policies need all of its
    requests, which are held in memory, and run for each point by itself, in ``jobs`` processes.
    """
    plan.check()
    began, cpu_began = perf_counter(), process_time()
    total = _count_requests(plan)
    held = _hold(plan, show, total) if plan.is_held else None
    if not plan.capacities:
        plan, total = _with_capacities(plan, held, total, show)
    pass_over = _Pass(plan)
    interruption: KeyboardInterrupt | None = None
    try:
        with (
            without_collector(),  # a forest of a million nodes has no cycles that anybody let go of
            show(f"{plan.workload}", total, "requests") as tell,
        ):
            for request in _told(_requests(plan, held), tell):
                pass_over.add(request)
    except KeyboardInterrupt as interrupt:
        if not pass_over.requests:
            raise
        interruption = interrupt
    cpu_seconds = process_time() - cpu_began
    ceilings: dict[int, float | None] = {}
    policies: tuple[CurveOfPolicy, ...] = ()
    if held is not None and interruption is None:
        ceilings, policies, interruption = _replay(plan, held, pass_over.capacities, jobs, show)
    document = pass_over.document(ceilings, policies)
    document = msgspec.structs.replace(
        document,
        seconds=perf_counter() - began,
        cpu_seconds=cpu_seconds,
        peak_rss_bytes=peak_rss_bytes(sys.platform),
        interrupted=interruption is not None,
    )
    return Curve(plan, document, interruption)


# -- requests ------------------------------------------------------------------------------------------------


def _requests(plan: CurvePlan, held: Sequence[Request] | None) -> Iterable[Request]:
    if held is not None:
        return held
    if plan.is_named:
        workload = WORKLOADS[plan.workload]
        endless = workload.generate(plan.seed, workload.capacity)
        return itertools.islice(endless, plan.requests or NAMED_REQUESTS)
    trace = open_recorded(plan.replays(None))
    return replayable(trace) if plan.is_held else trace


def _hold(plan: CurvePlan, show: Show, total: int) -> list[Request]:
    with show(f"reading {plan.workload}", total, "requests") as tell:
        held = list(itertools.islice(_told(_requests(plan, None), tell), MOST_HELD + 1))
    if len(held) > MOST_HELD:
        option = "--belady" if plan.belady else "--eviction-policy"
        raise UsageError(
            f"{option} holds all requests in memory, and there are more than {MOST_HELD:,}; give --requests "
            f"{MOST_HELD} or less, or leave {option} out."
        )
    return held


def _told(requests: Iterable[Request], tell: Callable[[int], None] | None) -> Iterator[Request]:
    """Yield requests unchanged, and report their number from time to time."""
    done = 0
    for done, request in enumerate(requests, 1):
        yield request
        if tell is not None and not done % _TELL_EVERY:
            tell(done)
    if tell is not None:
        tell(done)


def _count_requests(plan: CurvePlan) -> int:
    """Return an upper bound on the number of requests for a progress bar; 0 if unknown before reading."""
    if plan.is_named:
        return plan.requests or NAMED_REQUESTS
    path, lines = Path(plan.workload), 0
    if not path.is_file():
        return plan.requests or 0
    try:
        with path.open("rb") as stream:
            if stream.read(2) == b"\x1f\x8b":
                return plan.requests or 0
            stream.seek(0)
            while chunk := stream.read(_CHUNK):
                lines += chunk.count(b"\n")
    except OSError:  # whoever reads it says so, with the reason
        return plan.requests or 0
    return min(lines, plan.requests) if plan.requests else lines


def _with_capacities(
    plan: CurvePlan, held: Sequence[Request] | None, total: int, show: Show
) -> tuple[CurvePlan, int]:
    """Return the plan with capacities chosen for its trace, and the number of requests.

    A pass needs its capacities from the first request on, and they depend on the last one. Reading again is
    the smaller part: a seventh of the whole, where keeping the requests would take 1 KiB for each.
    """
    extent = TraceExtent(is_sampled=plan.sample is not None)
    with show(f"measuring {plan.workload}", total, "requests") as tell:
        for request in _told(_requests(plan, held), tell):
            extent.add(request)
    return replace(plan, capacities=tuple(_choose(plan, extent))), extent.requests


def _choose(plan: CurvePlan, extent: TraceExtent) -> list[int]:
    found = extent.choose_capacities(plan.points, plan.page_size)
    if plan.sample is not None:
        least = least_capacity(plan.sample, plan.page_size, extent.block_tokens)
        found = [capacity for capacity in found if capacity >= least]
        if not found:
            raise UsageError(
                f"--sample {plan.sample:g} can tell of capacities from {least:,} tokens on, and "
                f"{plan.workload} fits into less; leave --sample out."
            )
    return [
        min(capacity, _SLOT_MAX - plan.page_size) // plan.page_size * plan.page_size for capacity in found
    ]


# -- the pass ------------------------------------------------------------------------------------------------


class _Pass:
    """The caches of all capacities, and facts about the requests read."""

    def __init__(self, plan: CurvePlan) -> None:
        self._plan = plan
        self._extent_first = self._extent_last = 0.0
        self._longest = 0
        self.requests = 0
        self._curve: LruCurve | SampledCurve | None = None
        self._of_states: dict[tuple[Keeping, int], StateCurve] = {}
        self._block_tokens = plan.block_tokens

    @property
    def capacities(self) -> list[int]:
        """The capacities in whole pages, in order."""
        page_size = self._plan.page_size
        return sorted({capacity // page_size * page_size for capacity in self._plan.capacities})

    def add(self, request: Request) -> None:
        """Have every cache read a request; the first request sets the block length."""
        if self._curve is None:
            self._extent_first = request.arrival_ms
            self._block_tokens = request.block_tokens
            self._curve = self._make(request.block_tokens)
            self._of_states = self._make_of_states(request.block_tokens)
        self.requests += 1
        self._extent_last = request.arrival_ms
        if request.prompt_length > self._longest:
            self._longest = request.prompt_length
        if isinstance(self._curve, LruCurve):
            self._curve.add(request, self._label(request))
        else:
            self._curve.add(request)
        for curve in self._of_states.values():
            curve.add(request)

    def _make(self, block_tokens: int) -> LruCurve | SampledCurve:
        plan, capacities = self._plan, self.capacities
        if plan.sample is None:
            return LruCurve(capacities, plan.page_size, block_tokens, unlimited=plan.unlimited)
        least = least_capacity(plan.sample, plan.page_size, block_tokens)
        if capacities[0] < least:
            raise UsageError(
                f"--sample {plan.sample:g} leaves less than a block of {block_tokens} tokens of --capacity "
                f"{capacities[0]} to each of {PARTS} parts; give at least {least}, or a larger --sample."
            )
        if block_tokens % plan.page_size:
            raise UsageError(
                f"--sample draws whole blocks of {block_tokens} tokens, and --page-size {plan.page_size} "
                "does not divide them; give one that does."
            )
        return SampledCurve(capacities, plan.page_size, block_tokens, rate=plan.sample, seed=plan.seed)

    def _make_of_states(self, block_tokens: int) -> dict[tuple[Keeping, int], StateCurve]:
        """Return a curve for each kind of checkpoints, at the capacities with room for a block."""
        largest = self.capacities[-1]
        for keeping, tokens in self._plan.checkpoints:
            if largest < tokens:
                raise UsageError(
                    f"--checkpoints {keeping}={tokens} has blocks of {tokens} tokens, and the largest "
                    f"capacity is {largest}; give --capacity {tokens} or more."
                )
        return {
            (keeping, tokens): StateCurve(
                [it for it in self.capacities if it >= tokens], tokens, block_tokens, keeping=keeping
            )
            for keeping, tokens in self._plan.checkpoints
        }

    def _label(self, request: Request) -> str | None:
        match self._plan.by:
            case "kind":
                kind: str | None = getattr(request, "kind", None)
                return "none" if kind is None else kind
            case "namespace":
                return "none" if request.namespace is None else str(request.namespace)
            case "length":
                return _length_class(request.prompt_length)
        return None

    def document(
        self, ceilings: dict[int, float | None], policies: tuple[CurveOfPolicy, ...]
    ) -> CurveDocument:
        """Return the document of the curve, in which the caller fills in the times."""
        plan, curve = self._plan, self._curve
        assert curve is not None
        groups: tuple[CurveGroup, ...] = ()
        if isinstance(curve, LruCurve):
            rows = self._rows(curve.points(), ceilings)
            labels = sorted(curve.labels, key=_order_of) if plan.by else []
            groups = tuple(CurveGroup(label, self._rows(curve.points(label), {})) for label in labels)
        else:
            rows = self._rows(curve.points(), ceilings)
        shape = plan.shape
        return CurveDocument(
            versions={
                "pymllm": __version__,
                "python": platform.python_version(),
                "numpy": numpy.__version__,
            },
            workload=WorkloadRow(
                name=plan.workload,
                kind="named" if plan.is_named else "trace",
                requests=self.requests,
                seed=plan.seed,
                block_tokens=None if plan.is_named else self._block_tokens,
            ),
            page_size=plan.page_size,
            method="exact" if plan.sample is None else "sampled",
            sample=None if plan.sample is None else SampleRow(plan.sample, PARTS),
            model=None
            if shape is None
            else ModelRow(
                name=shape.name,
                layers=shape.layers,
                counted_layers=shape.counted_layers,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                latent_dim=shape.latent_dim,
                dtype=plan.dtype,
                bytes_per_token=shape.bytes_per_token(plan.dtype),
                source=shape.source,
            ),
            prefill_rate=plan.prefill_rate,
            trace_seconds=(self._extent_last - self._extent_first) / 1000,
            longest_prompt=self._longest,
            rows=rows,
            by=plan.by,
            groups=groups,
            policies=policies,
            checkpoints=tuple(self._checkpoints(rows)),
            seconds=0.0,
            cpu_seconds=0.0,
        )

    def _checkpoints(self, rows: Sequence[CurveRow]) -> Iterator[CurveOfCheckpoints]:
        for (keeping, tokens), curve in self._of_states.items():
            found = {it.capacity: it for it in curve.state_points()}
            points = []
            for row in rows:
                point = found.get(row.capacity // tokens * tokens)
                if point is not None:
                    rate = point.hit_tokens / max(1, point.prompt_tokens)
                    lost = 1 - rate / row.token_hit_rate if row.hit_tokens else None
                    points.append(
                        CheckpointPoint(
                            row.capacity,
                            point.hit_tokens,
                            rate,
                            lost,
                            point.evicted_tokens,
                            point.peak_states,
                        )
                    )
            yield CurveOfCheckpoints(keeping, tokens, tuple(points))

    def _rows(
        self, points: Sequence[CurvePoint | SampledPoint], ceilings: dict[int, float | None]
    ) -> tuple[CurveRow, ...]:
        plan = self._plan
        gpus = {it // plan.page_size * plan.page_size: count for it, count in plan.gpus.items()}
        sizes = [self._bytes(point.capacity, gpus.get(point.capacity)) for point in points]
        rows = []
        for place, point in enumerate(points):
            size, larger = sizes[place], points[place + 1] if place + 1 < len(points) else None
            row = CurveRow(
                capacity=point.capacity,
                gpus=gpus.get(point.capacity),
                requests=point.requests,
                skipped=point.skipped,
                prompt_tokens=point.prompt_tokens,
                hit_tokens=point.hit_tokens,
                token_hit_rate=point.token_hit_rate,
                belady_hit_rate=ceilings.get(point.capacity),
                kv_bytes=size,
                prefill_seconds_saved=self._seconds(point.hit_tokens),
            )
            if isinstance(point, SampledPoint):
                row = msgspec.structs.replace(row, low=point.low, high=point.high)
            else:
                ceiling = point.ceiling_tokens
                row = msgspec.structs.replace(
                    row,
                    ceiling_tokens=ceiling,
                    ceiling_hit_rate=None if ceiling is None else ceiling / max(1, point.prompt_tokens),
                    evict_calls=point.evict_calls,
                    evicted_tokens=point.evicted_tokens,
                )
            if larger is not None and size is not None:
                gibs = ((sizes[place + 1] or 0) - size) / GIB
                gained = (larger.hit_tokens - point.hit_tokens) / gibs
                row = msgspec.structs.replace(
                    row, next_gib_tokens=gained, next_gib_seconds=self._seconds(gained)
                )
            rows.append(row)
        return tuple(rows)

    def _bytes(self, capacity: int, gpus: int | None) -> int | None:
        shape = self._plan.shape
        return None if shape is None else round(shape.bytes_per_token(self._plan.dtype, gpus or 1) * capacity)

    def _seconds(self, tokens: float) -> float | None:
        rate = self._plan.prefill_rate
        return None if rate is None else tokens / rate


_LENGTHS: Final = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
_LENGTH_NAMES: Final = ("below 1Ki", "1Ki to 4Ki", "4Ki to 16Ki", "16Ki to 64Ki", "64Ki and more")


def _length_class(tokens: int) -> str:
    return _LENGTH_NAMES[sum(tokens >= length for length in _LENGTHS)]


def _order_of(label: str) -> tuple[int, str]:
    """Return the sort key of a label: lengths sort by length, other labels by name."""
    return (_LENGTH_NAMES.index(label) if label in _LENGTH_NAMES else 0), label


# -- replays beside it ---------------------------------------------------------------------------------------


def _replay(
    plan: CurvePlan, held: list[Request], capacities: Sequence[int], jobs: int, show: Show
) -> tuple[dict[int, float | None], tuple[CurveOfPolicy, ...], KeyboardInterrupt | None]:
    """Compute Belady's hit rates and replay other policies, at each capacity."""
    from pymllm.replay.cells import Cell, Replayed
    from pymllm.replay.grid import carry_out
    from pymllm.replay.replays import settle

    policies = [policy for policy in plan.eviction_policies if policy != _LRU]
    cells: list[Cell] = []
    if plan.belady:
        cells += [Cell(replace(settle(plan.replays(capacity)), caches=()), held) for capacity in capacities]
    for policy in policies:
        cells += [Cell(settle(plan.replays(capacity, (policy,))), held) for capacity in capacities]
    if not cells:
        return {}, (), None
    found = carry_out(f"{plan.workload} beside it", cells, jobs, "runs", show)
    done = [found.results[cell] for cell in cells if cell in found.results]
    ceilings = {it.capacity: it.belady_hit_rate for it in done if isinstance(it, CeilingRow)}
    curves = []
    for policy in policies:
        runs = [
            run
            for it in done
            if isinstance(it, Replayed) and it.plan.eviction_policies == (policy,)
            for run in it.document.runs
        ]
        points = [
            PolicyPoint(run.config.capacity, run.hit_tokens, run.token_hit_rate, run.evicted_tokens)
            for run in runs
        ]
        curves.append(CurveOfPolicy(policy, tuple(points)))
    return ceilings, tuple(curves), found.interruption
