"""What the report reads of each document: the fields that it shows, whatever else a document has.

A document's own module says everything that is in it. These records have the parts that a page, a feed or a
trend needs, with the same names; a field that an older document lacks has a default here.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from pymllm.oracle.history import Config
from pymllm.oracle.records import decode

__all__ = [
    "DOCUMENTS",
    "AnyDocument",
    "CacheTime",
    "CeilingRow",
    "Contender",
    "DetectionRow",
    "DoctorDocument",
    "DriftRow",
    "EngineRun",
    "FaultRow",
    "FaultsDocument",
    "GpuBenchmarksDocument",
    "GpuCase",
    "GpuMemoryDocument",
    "LawRow",
    "MachineRow",
    "PeersDocument",
    "ProblemRow",
    "Reading",
    "ReplayDocument",
    "ScenarioRow",
    "SearchedAdapter",
    "SituationDocumentRow",
    "SituationRow",
    "SituationsDocument",
    "SoakDocument",
    "SoakFailureRow",
    "SoakedAdapter",
    "Standing",
    "VerifyDocument",
    "ViolationRow",
    "read_document",
]


@dataclass(frozen=True, slots=True)
class LawRow:
    """A law of one adapter."""

    id: str
    sentence: str
    source: str
    verdict: str
    tests: int
    walks: int


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A state machine on one adapter."""

    name: str
    programs: int
    steps: int
    seconds: float
    steps_per_second: float


@dataclass(frozen=True, slots=True)
class SituationRow:
    """How often a state machine met a situation."""

    name: str
    machine: str
    times: int
    unmet: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViolationRow:
    """A broken law and its program."""

    law: str
    message: str
    expected: str | None
    observed: str | None
    config: Config
    step: int
    steps: int
    program: str
    file: str | None
    rerun_shows_it: bool
    judge_shows_it: bool
    smallest: bool


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """Why something is unknown."""

    message: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class SearchedAdapter:
    """What a search found of an adapter."""

    name: str
    kind: str | None
    verdict: str
    laws: tuple[LawRow, ...]
    machines: tuple[MachineRow, ...]
    violations: tuple[ViolationRow, ...]
    problems: tuple[ProblemRow, ...]


@dataclass(frozen=True, slots=True)
class VerifyDocument:
    """Of ``verify`` and of ``compare``."""

    versions: dict[str, str]
    profile: str
    seed: int
    seconds: float
    verdict: str
    interrupted: bool
    adapters: tuple[SearchedAdapter, ...]
    situations: tuple[SituationRow, ...] = ()
    examples: int | None = None


@dataclass(frozen=True, slots=True)
class DetectionRow:
    """How a fault was caught from one seed."""

    seed: int
    law: str
    message: str
    searcher: str
    adapter: str
    operations: int
    seconds: float
    program: int | None


@dataclass(frozen=True, slots=True)
class FaultRow:
    """What became of a fault."""

    id: str
    title: str
    laws: tuple[str, ...]
    caught: bool
    unlisted: tuple[str, ...]
    operations: float | None
    seconds: float | None
    program: int | None
    detections: tuple[DetectionRow, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultsDocument:
    """Of ``faults``."""

    versions: dict[str, str]
    seeds: tuple[int, ...]
    seconds: float
    caught: int
    missed: int
    faults: tuple[FaultRow, ...]


@dataclass(frozen=True, slots=True)
class SoakFailure:
    """A broken law, or a problem where it is null."""

    law: str | None
    message: str
    expected: str | None = None
    observed: str | None = None
    step: int = 0


@dataclass(frozen=True, slots=True)
class SoakFailureRow:
    """The first run that met a failure, and how many did."""

    runs: int
    config: Config
    machine: str
    seed: int
    limit: int
    failure: SoakFailure
    file: str | None
    short: str | None


@dataclass(frozen=True, slots=True)
class SoakedAdapter:
    """What a campaign came to for an adapter."""

    name: str
    kind: str
    runs: int
    operations: int
    seconds: float
    operations_per_cpu_second: float
    shares: dict[str, float]
    tests: dict[str, int]
    untested_laws: tuple[str, ...]
    situations: dict[str, int]
    missing_situations: tuple[str, ...]
    failures: tuple[SoakFailureRow, ...]


@dataclass(frozen=True, slots=True)
class DriftRow:
    """How memory changes with operations."""

    measure: str
    unit: str
    slope: float | None
    low: float | None
    high: float | None
    bound: float
    samples: int
    verdict: str


@dataclass(frozen=True, slots=True)
class SoakDocument:
    """Of ``soak``."""

    verdict: str
    interrupted: bool
    seconds: float
    runs: int
    operations: int
    cpu_seconds: float
    peak_bytes: int
    adapters: tuple[SoakedAdapter, ...]
    drifts: tuple[DriftRow, ...]
    conflicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SituationDocumentRow:
    """A state worth reaching."""

    name: str
    kind: str
    laws: tuple[str, ...]
    bugs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SituationsDocument:
    """Of ``situations``."""

    situations: tuple[SituationDocumentRow, ...]


@dataclass(frozen=True, slots=True)
class CacheTime:
    """Microseconds of a request in one kind of cache operation."""

    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """What a cache was replayed with."""

    cache: str
    page_size: int
    capacity: int
    sliding_window_size: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One cache over a workload; of a serial replay, too."""

    config: ReplayConfig
    requests: int
    prompt_tokens: int
    token_hit_rate: float
    ceiling_hit_rate: float
    evicted_tokens: int
    match: CacheTime
    insert: CacheTime
    evict: CacheTime
    lock: CacheTime
    peak_tokens_stored: int
    peak_rss_bytes: int | None
    wall_seconds: float
    finished: int | None = None
    retractions: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What was replayed."""

    name: str
    kind: str
    requests: int
    seed: int


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """What caches of one size could hit at most; the best choice is null for an engine."""

    page_size: int
    capacity: int
    unlimited_hit_rate: float
    belady_hit_rate: float | None


@dataclass(frozen=True, slots=True)
class ReplayViolation:
    """A law that a replay found broken."""

    cache: str
    law: str
    message: str


@dataclass(frozen=True, slots=True)
class ReplayDocument:
    """Of ``replay``."""

    versions: dict[str, str]
    workload: Workload
    mode: str
    runs: tuple[EngineRun, ...]
    violation: ReplayViolation | None = None
    ceilings: tuple[CeilingRow, ...] = ()


@dataclass(frozen=True, slots=True)
class DoctorDevice:
    """A GPU, as NVML knows it."""

    name: str
    driver: str | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class DoctorTorch:
    """What torch is."""

    version: str | None
    cuda: str | None


@dataclass(frozen=True, slots=True)
class DoctorDocument:
    """Of ``doctor``."""

    pymllm: str
    python: str
    platform: str
    processor: str
    usable_cores: int
    memory: int
    torch: DoctorTorch
    nvml_reason: str | None
    nvml_devices: tuple[DoctorDevice, ...]
    packages: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """A number, or the reason why there is none."""

    value: int | float | None
    unit: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LimitOfTest:
    """What is known of a test's limit."""

    limit: int
    outcome: str
    found: Reading
    by: str


@dataclass(frozen=True, slots=True)
class CurveOfDevice:
    """Bytes of a device over seconds."""

    times: tuple[float, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WatchedDevice:
    """Which device was watched."""

    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class NvmlOfTest:
    """A test as NVML saw it."""

    device: WatchedDevice | None
    reason: str | None
    seconds: float
    total: Reading
    used_start: Reading
    used_peak: Reading
    invalid: tuple[str, ...]
    curve: CurveOfDevice


@dataclass(frozen=True, slots=True)
class TorchOfTest:
    """A test as torch's allocator saw it."""

    allocated_peak: Reading
    reserved_peak: Reading


@dataclass(frozen=True, slots=True)
class GpuMemoryDocument:
    """A line of ``pytest --gpu-memory-log``."""

    test: str
    worker: str
    limit: LimitOfTest | None
    nvml: NvmlOfTest
    torch: TorchOfTest


@dataclass(frozen=True, slots=True)
class Contender:
    """An implementation that could take part."""

    name: str
    package: str
    version: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What one contender came to in a scenario."""

    contender: str
    value: float
    samples: int
    p50: float
    p95: float
    p99: float
    longest: float
    facts: dict[str, float]


@dataclass(frozen=True, slots=True)
class RatioRow:
    """Ours to the best peer."""

    value: float
    low: float
    high: float
    confidence: float
    rounds: int


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """A scenario of a comparison with peers."""

    id: str
    title: str
    unit: str
    statistic: str
    target: float | None
    limit: float | None
    limit_of: str
    code: str
    standings: tuple[Standing, ...]
    best_peer: str | None
    ratio: RatioRow | None
    verdict: str
    reached: bool


@dataclass(frozen=True, slots=True)
class PeersDocument:
    """Of ``tox -e bench-peers``."""

    versions: dict[str, str]
    machine: dict[str, str]
    clock: str
    slice: str
    seconds: float
    contenders: tuple[Contender, ...]
    scenarios: tuple[ScenarioRow, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class SampledRow:
    """Microseconds of one contender: median and quartiles."""

    median_us: float
    low_us: float
    high_us: float
    samples: int


@dataclass(frozen=True, slots=True)
class GoalRow:
    """What a ratio of two times is to be."""

    what: str
    value: float
    bound: float
    is_least: bool
    is_met: bool


@dataclass(frozen=True, slots=True)
class GpuCase:
    """One case of a GPU benchmark; the first contender is ours."""

    name: str
    case: dict[str, int | str]
    mode: str
    times: dict[str, SampledRow]
    gigabytes_per_second: float
    goals: tuple[GoalRow, ...]


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """Where GPU benchmarks ran."""

    device: str
    driver: str | None
    torch: str
    python: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuBenchmarksDocument:
    """Of ``benchmarks/bench_gpu_*.py``; ``benchmarks`` is the hash of their code."""

    date: str
    commit: str | None
    pymllm: str
    benchmarks: str
    machine: GpuMachine
    results: tuple[GpuCase, ...]


AnyDocument = (
    VerifyDocument
    | FaultsDocument
    | SoakDocument
    | SituationsDocument
    | ReplayDocument
    | DoctorDocument
    | GpuMemoryDocument
    | PeersDocument
    | GpuBenchmarksDocument
)

DOCUMENTS: dict[str, tuple[int, type]] = {
    "pymllm.verify": (1, VerifyDocument),
    "pymllm.compare": (1, VerifyDocument),
    "pymllm.faults": (1, FaultsDocument),
    "pymllm.soak": (1, SoakDocument),
    "pymllm.situations": (1, SituationsDocument),
    "pymllm.replay": (1, ReplayDocument),
    "pymllm.doctor": (1, DoctorDocument),
    "pymllm.gpu-memory": (1, GpuMemoryDocument),
    "pymllm.peers": (1, PeersDocument),
    "pymllm.gpu-benchmarks": (1, GpuBenchmarksDocument),
}
"""By name: the version that is read, and what is read of it."""


def read_document(plain: Mapping[str, Any]) -> AnyDocument:
    """Read what the report shows of a document.

    Parameters
    ----------
    plain : mapping
        The document, as JSON has it.

    Raises
    ------
    ValueError
        It is none that a report shows, of a version that is not read here, or not whole; says which.
    """
    named = plain.get("schema")
    known = DOCUMENTS.get(named) if isinstance(named, str) else None
    if known is None:
        raise ValueError(f"a report shows no document {named!r}; it shows {', '.join(DOCUMENTS)}")
    version, kind = known
    if plain.get("version") != version:
        raise ValueError(
            f"version {plain.get('version')!r} of {named}; this version of pymllm reads {version}"
        )
    document: AnyDocument = decode(kind, _pruned(kind, plain), str(named))
    return document


def _pruned(kind: Any, plain: Any) -> Any:
    """Leave out what the records of a type do not have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(plain, Mapping):
        hints = typing.get_type_hints(kind)
        names = {it.name for it in fields(kind)}
        return {name: _pruned(hints[name], value) for name, value in plain.items() if name in names}
    if origin is tuple and isinstance(plain, list):
        return [_pruned(arguments[0], item) for item in plain]
    if origin is dict and isinstance(plain, Mapping):
        return {name: _pruned(arguments[1], value) for name, value in plain.items()}
    if origin is types.UnionType and plain is not None:
        records = [option for option in arguments if is_dataclass(option)]
        return _pruned(records[0], plain) if records else plain
    return plain
