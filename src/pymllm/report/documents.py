"""Readers of the documents, ledgers and benchmark files that a report shows.

Logs of GPU memory and results of GPU benchmarks are written on machines that have no msgspec, so their
records are here: as few of the fields as are shown.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.curves import CurveDocument
from pymllm.documents.faults import FaultsDocument, VectorsDocument
from pymllm.documents.probes import ProbeDocument
from pymllm.documents.replays import ReplayDocument
from pymllm.documents.runs import GoalsDocument
from pymllm.documents.searches import CompareDocument, VerifyDocument
from pymllm.documents.served import ServedDocument
from pymllm.documents.watches import WatchDocument
from pymllm.instrument.documents import DoctorDocument
from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.instrument.reading import Reading
from pymllm.oracle.verdicts import Verdict
from pymllm.report.records import Curve, Figure, Gpu, Histogram, Machine, RunHeader, make_machine
from pymllm.report.store import read_as
from pymllm.soak.drift import Drift, DriftVerdict, MemoryCourse
from pymllm.soak.merging import merge_ledgers
from pymllm.soak.totals import Totals
from pymllm.text_file import cut

# -- documents -----------------------------------------------------------------------------------------------


class LimitOfTest(Struct, frozen=True):
    """The limit of a test, its outcome, and the reading found."""

    limit: int
    outcome: str
    found: Reading


class CurveOfDevice(Struct, frozen=True):
    """The bytes in use on a device over seconds."""

    times: tuple[float, ...]
    used: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.times) != len(self.used):
            raise ValueError(f"a curve has {len(self.times)} times for {len(self.used)} values")


class WatchedDevice(Struct, frozen=True):
    """The device whose memory was watched."""

    name: str


class NvmlOfTest(Struct, frozen=True):
    """The GPU memory of a test, as NVML reported it."""

    device: WatchedDevice | None
    reason: str | None
    used_start: Reading
    used_peak: Reading
    curve: CurveOfDevice
    invalid: tuple[str, ...] = ()  # what happened to the device that spoils figures


class TorchOfTest(Struct, frozen=True):
    """The GPU memory of a test, as torch's allocator reported it."""

    allocated_peak: Reading
    reserved_peak: Reading


class GpuMemoryDocument(Struct, frozen=True):
    """A line of ``pytest --gpu-memory-log``."""

    test: str
    worker: str
    limit: LimitOfTest | None
    nvml: NvmlOfTest
    torch: TorchOfTest
    index: int | None = None  # CUDA's of the device, where several were watched

    @property
    def name(self) -> str:
        """The name of the test, with the device if there are several."""
        return self.test if self.index is None else f"{self.test} on cuda:{self.index}"


class SampledRow(Struct, frozen=True):
    """The microseconds of one contender: median and quartiles."""

    median_us: float
    low_us: float
    high_us: float


class GoalRow(Struct, frozen=True):
    """A goal for the ratio of two times: its value, its bound, and whether the bound is kept."""

    what: str
    value: float
    bound: float
    is_least: bool
    is_met: bool


class GpuCase(Struct, frozen=True):
    """One case of a GPU benchmark; the first contender is this package's."""

    name: str
    case: dict[str, int | str]
    mode: str
    times: dict[str, SampledRow]
    gigabytes_per_second: float
    goals: tuple[GoalRow, ...]


class GpuMachine(Struct, frozen=True):
    """The machine that ran GPU benchmarks."""

    device: str
    driver: str | None
    torch: str
    python: str
    memory_bytes: int | None = None


class GpuBenchmarksDocument(Struct, frozen=True):
    """The document of ``benchmarks/bench_gpu_*.py``; ``benchmarks`` is the hash of their code."""

    date: str
    commit: str | None
    pymllm: str
    benchmarks: str
    machine: GpuMachine
    results: tuple[GpuCase, ...]


AnyDocument = Any
"""A document of any kind that a report shows."""

_SHOWN = (
    VerifyDocument,
    CompareDocument,
    FaultsDocument,
    SoakDocument,
    GoalsDocument,
    ReplayDocument,
    CurveDocument,
    ServedDocument,
    DoctorDocument,
    VectorsDocument,
    WatchDocument,
    ProbeDocument,
)
DOCUMENTS: dict[str, type[AnyDocument]] = {
    **{str(kind.__struct_config__.tag): kind for kind in _SHOWN},
    "pymllm.gpu-memory": GpuMemoryDocument,
    "pymllm.peers": PeerComparison,
    "pymllm.gpu-benchmarks": GpuBenchmarksDocument,
}
"""The record class of each document schema that a report shows."""

VERSION = 1
"""The version of all these schemas."""


def read_document(plain: Mapping[str, Any]) -> AnyDocument:
    """Read a document that a report shows; raise `ValueError` with the reason for one that it does not.

    A run of a replay that contradicts itself is left out, and named as a violation (law E6).
    """
    named = plain.get("schema")
    kind = DOCUMENTS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ValueError(f"a report shows no document {cut(repr(named))}; it shows {', '.join(DOCUMENTS)}")
    if plain.get("version") != VERSION:
        found = cut(repr(plain.get("version")))
        raise ValueError(f"version {found} of {named}; this version of pymllm reads {VERSION}")
    document = read_as(kind, plain, str(named))
    return document.judged() if isinstance(document, ReplayDocument) else document


# -- the ledger of a soak ------------------------------------------------------------------------------------

_POINTS = 240
_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Ledger:
    """The summary of a ledger: its document, memory curves and versions."""

    document: SoakDocument
    curves: tuple[Curve, ...]  # memory of each process
    version: str | None  # of the package, where all campaigns were of one
    versions: Mapping[str, str]  # of the packages involved


def read_ledger_file(*paths: Path) -> Ledger:
    """Read a ledger, or several as one; raise errors as `pymllm.soak.ledger.read_ledger`."""
    merged = merge_ledgers(paths)
    headers, conflicts = merged.headers, merged.conflicts
    totals = Totals(headers)
    for run in merged:
        totals.add(run)
    for it in merged.differing.values():
        totals.differ(it.conflict.first, it.conflict.second, it.runs)
    drifts = totals.memory.estimate()
    is_unknown = totals.has_problems or not totals.runs
    verdict = Verdict.UNKNOWN if is_unknown else Verdict.HOLDS
    document = SoakDocument(
        verdict=Verdict.VIOLATED if totals.has_violations or conflicts else verdict,
        interrupted=False,
        seconds=sum(it.seconds for it in totals.adapters.values()),
        runs=totals.runs,
        operations=totals.operations,
        cpu_seconds=totals.cpu,
        peak_bytes=totals.memory.peak,
        adapters=tuple(it.row() for it in totals.adapters.values()),
        drifts=tuple(it.row() for it in drifts),
        conflicts=tuple(map(str, conflicts)),
    )
    versions = {header.version for header in headers}
    version = versions.pop() if len(versions) == 1 else None
    return Ledger(document, memory_curves(totals.memory, drifts), version, headers[0].versions)


def memory_curves(memory: MemoryCourse, drifts: Sequence[Drift]) -> tuple[Curve, ...]:
    """Return curves of the private memory of a campaign's first 16 processes, over operations."""
    verdict = next((it.verdict for it in drifts if it.measure == "uss"), DriftVerdict.TOO_SHORT)
    good = {DriftVerdict.FLAT: True, DriftVerdict.GROWS: False}.get(verdict)
    plot = "memory of a soak's processes, shared with no other process"
    curves = []
    for number, process in enumerate(memory.processes[:_PROCESSES], 1):
        series = memory.samples(process, "uss")
        stride = -(-len(series) // _POINTS)
        x, y = zip(*series[::-1][::stride][::-1], strict=True)
        at = tuple(map(float, x))
        name = f"process {number}"
        curves.append(Curve(name, "bytes", "operations", at, y, plot, None, verdict.value, good))
    return tuple(curves)


# -- what pytest-benchmark writes ----------------------------------------------------------------------------

_TIMES = {"ns": "ns", "us": "us", "ms": "ms", "s": "s", "seconds": "s"}
BUCKETS_PER_DOUBLING = 8
_LOWEST = -160  # a picosecond


def is_benchmark_file(plain: Mapping[str, Any]) -> bool:
    """Tell whether JSON data are a file of pytest-benchmark."""
    return isinstance(plain.get("benchmarks"), list) and isinstance(plain.get("machine_info"), dict)


def read_benchmark_file(plain: Mapping[str, Any]) -> tuple[RunHeader, tuple[Figure | Histogram, ...]]:
    """Read a file of pytest-benchmark; raise `ValueError` if a field is missing or of a wrong type.

    Of each benchmark there are the median with its quartiles, every number of its ``extra_info`` but the
    median, and a histogram where the file has samples; ``extra_info["code"]`` is its code's hash.
    """
    try:
        commit = plain.get("commit_info") or {}
        header = RunHeader(
            kind="benchmark",
            time=time_of(str(plain["datetime"])),
            machine=machine_of(plain["machine_info"]),
            pymllm=str(plain["machine_info"].get("pymllm", "not recorded")),
            commit=commit.get("id"),
            modified=bool(commit.get("dirty")),
            versions=_versions(plain),
        )
        records = tuple(record for benchmark in plain["benchmarks"] for record in _records(benchmark))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        why = (
            f"field {error} is missing"
            if isinstance(error, KeyError)
            else f"a field is of another type: {error}"
        )
        raise ValueError(f"no whole file of pytest-benchmark; {why}") from error
    return header, records


def time_of(text: str) -> str:
    """Convert a time with an offset, such as pytest-benchmark's, to UTC in the form of a run's time."""
    return utc(datetime.fromisoformat(text))


def utc(at: datetime) -> str:
    """Return a time as text in the form of a run's time, to the second."""
    return at.astimezone(UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def machine_of(info: Mapping[str, Any]) -> Machine:
    """Return the machine from the facts that pytest-benchmark and benchmarks/conftest.py recorded."""
    cpu = info.get("cpu") or {}
    is_told = "usable_cores" in info
    processor = info.get("processor") if is_told else cpu.get("brand_raw")
    gpus = sorted(key for key in info if re.fullmatch(r"gpu_\d+", key))
    return make_machine(
        processor=str(processor or info.get("processor") or info.get("machine")),
        cores=int(info.get("usable_cores") or cpu.get("count") or 1),
        memory=None,
        system=_system(info),
        gpus=tuple(_gpu(str(info[key])) for key in gpus if not str(info[key]).startswith("unknown")),
        gpu_reason=None if gpus else str(info.get("nvml", "the file does not tell")),
        name=info.get("machine_name"),
    )


def machine_of_gpu(told: GpuMachine) -> Machine:
    """Return the machine of GPU benchmarks, of which the results describe only the GPU."""
    gpu = Gpu(told.device, told.memory_bytes, told.driver)
    return make_machine("not recorded", 0, None, "not recorded", (gpu,))


def _gpu(told: str) -> Gpu:
    """Parse a GPU from a line such as "Some GPU, driver 580.1, graphics up to 1980 MHz"."""
    found = re.fullmatch(r"(.*?)(?:, driver ([^,]+).*)?", told, re.DOTALL)
    assert found is not None  # it matches everything
    return Gpu(found[1], None, found[2])


def _system(info: Mapping[str, Any]) -> str:
    """Return system and architecture, parsed from a platform's name: Linux-6.18-x86_64-with-glibc2.36."""
    if "system" in info and "machine" in info:
        return f"{info['system']} {info['machine']}"
    platform = str(info.get("platform", "unknown"))
    architecture = re.search(r"-([^-]+)-with-", platform)
    return f"{platform.split('-')[0]} {architecture[1] if architecture else ''}".strip()


def _versions(plain: Mapping[str, Any]) -> dict[str, str]:
    info = plain["machine_info"]
    found = {name: info.get(name) for name in ("torch", "numpy", "driver")}
    found |= {"python": info.get("python_version"), "pytest-benchmark": plain.get("version")}
    return {name: str(version) for name, version in found.items() if version is not None}


def _records(benchmark: Mapping[str, Any]) -> Iterator[Figure | Histogram]:
    name, stats = str(benchmark["fullname"]), benchmark["stats"]
    extra = benchmark.get("extra_info") or {}
    code = extra.get("code")
    code = None if code is None else str(code)
    value, low, high = (float(stats[key]) for key in ("median", "q1", "q3"))
    yield Figure(f"{name}: median", value, "s", "smaller", low, high, code=code, plot=name)
    for key, value in extra.items():
        if not key.startswith("p50") and isinstance(value, int | float) and not isinstance(value, bool):
            yield Figure(f"{name}: {_words(key)}", value, unit_of(key), better_of(key), code=code, plot=name)
    samples = stats.get("data")
    if samples:
        yield _histogram(name, [float(sample) for sample in samples], code)


def unit_of(key: str) -> str:
    """Return the unit at the end of a name such as ``p99_us`` or ``peak_bytes``; ``""`` if there is none."""
    words = re.split(r"[_ ]", key.lower())
    last = words[-1]
    if "per" in words[1:]:
        return "/".join((words[words.index("per") - 1], _TIMES.get("s" if last == "second" else last, last)))
    return _TIMES.get(last, last if last in ("bytes", "tokens", "operations", "nodes") else "")


def better_of(key: str) -> str | None:
    """Return the better direction of a figure such as ``p99_us``; ``None`` for a mere fact."""
    words = re.split(r"[_ ]", key.lower())
    if words[-1] == "rate" or "per" in words[1:]:
        return "bigger"
    return "smaller" if words[-1] in (*_TIMES, "bytes") else None


def _words(key: str) -> str:
    """Return a name without its unit, which stands beside the number."""
    words = key.split("_")
    return " ".join(words[:-1] if len(words) > 1 and words[-1] in _TIMES else words)


def _histogram(name: str, samples: list[float], code: str | None) -> Histogram:
    """Return a histogram of samples in seconds, in microsecond buckets that each grow by a tenth."""
    counts = Counter(bucket_of(sample * 1e6) for sample in samples)
    places = range(min(counts), max(counts) + 1)
    ends = tuple(round(2 ** (place / BUCKETS_PER_DOUBLING), 6) for place in places)
    return Histogram(name, "us", ends, tuple(counts[place] for place in places), name, code)


def bucket_of(value: float) -> int:
    """Return the index of the first bucket whose end is not below a value; zero is in the lowest."""
    if value <= 0:
        return _LOWEST
    return max(_LOWEST, math.ceil(math.log2(value) * BUCKETS_PER_DOUBLING - 1e-9))
