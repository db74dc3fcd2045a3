"""What a report shows of what was measured: of replays, machines, GPU memory and GPU benchmarks.

As of `pymllm.report.documents`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CacheTime",
    "CeilingRow",
    "CurveOfDevice",
    "DoctorDevice",
    "DoctorDocument",
    "DoctorTorch",
    "EngineRun",
    "GoalRow",
    "GpuBenchmarksDocument",
    "GpuCase",
    "GpuMachine",
    "GpuMemoryDocument",
    "LimitOfTest",
    "NvmlOfTest",
    "Reading",
    "ReplayConfig",
    "ReplayDocument",
    "ReplayViolation",
    "SampledRow",
    "TorchOfTest",
    "WatchedDevice",
    "Workload",
]


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

    def __post_init__(self) -> None:
        if len(self.times) != len(self.used):
            raise ValueError(f"a curve has {len(self.times)} times for {len(self.used)} values")


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
