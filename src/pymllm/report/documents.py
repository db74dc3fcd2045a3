"""What the report reads of documents: the records that commands return, and those that others write.

Logs of GPU memory and results of GPU benchmarks are written on machines that have no msgspec, so their
records are here: as few of the fields as are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pymllm.conformance.documents import DOCUMENTS as OF_COMMANDS
from pymllm.conformance.documents import (
    CompareDocument,
    FaultsDocument,
    ReplayDocument,
    SituationsDocument,
    SoakDocument,
    VerifyDocument,
)
from pymllm.instrument.machine_facts import DoctorDocument
from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.instrument.reading import Reading
from pymllm.report.store import read_as
from pymllm.text_file import cut


class LimitOfTest(Struct, frozen=True):
    """What is known of a test's limit."""

    limit: int
    outcome: str
    found: Reading


class CurveOfDevice(Struct, frozen=True):
    """Bytes of a device over seconds."""

    times: tuple[float, ...]
    used: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.times) != len(self.used):
            raise ValueError(f"a curve has {len(self.times)} times for {len(self.used)} values")


class WatchedDevice(Struct, frozen=True):
    """Which device was watched."""

    name: str


class NvmlOfTest(Struct, frozen=True):
    """A test as NVML saw it."""

    device: WatchedDevice | None
    reason: str | None
    used_start: Reading
    used_peak: Reading
    curve: CurveOfDevice


class TorchOfTest(Struct, frozen=True):
    """A test as torch's allocator saw it."""

    allocated_peak: Reading
    reserved_peak: Reading


class GpuMemoryDocument(Struct, frozen=True):
    """A line of ``pytest --gpu-memory-log``."""

    test: str
    worker: str
    limit: LimitOfTest | None
    nvml: NvmlOfTest
    torch: TorchOfTest


class SampledRow(Struct, frozen=True):
    """Microseconds of one contender: median and quartiles."""

    median_us: float
    low_us: float
    high_us: float


class GoalRow(Struct, frozen=True):
    """What a ratio of two times is to be."""

    what: str
    value: float
    bound: float
    is_least: bool
    is_met: bool


class GpuCase(Struct, frozen=True):
    """One case of a GPU benchmark; the first contender is ours."""

    name: str
    case: dict[str, int | str]
    mode: str
    times: dict[str, SampledRow]
    gigabytes_per_second: float
    goals: tuple[GoalRow, ...]


class GpuMachine(Struct, frozen=True):
    """Where GPU benchmarks ran."""

    device: str
    driver: str | None
    torch: str
    python: str
    memory_bytes: int | None = None


class GpuBenchmarksDocument(Struct, frozen=True):
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
    | PeerComparison
    | GpuBenchmarksDocument
)

_SHOWN = (
    VerifyDocument, CompareDocument, FaultsDocument, SoakDocument, SituationsDocument, ReplayDocument,
    DoctorDocument,
)  # fmt: skip
DOCUMENTS: dict[str, type[AnyDocument]] = {
    **{name: kind for name, kind in OF_COMMANDS.items() if kind in _SHOWN},
    "pymllm.gpu-memory": GpuMemoryDocument,
    "pymllm.peers": PeerComparison,
    "pymllm.gpu-benchmarks": GpuBenchmarksDocument,
}
"""What is read of each schema that a report shows."""

VERSION = 1
"""Of all of them."""


def read_document(plain: Mapping[str, Any]) -> AnyDocument:
    """Read what the report shows of a document, as JSON has it.

    `ValueError` where it is none that a report shows, of a version that is not read here, or not whole:
    which.
    """
    named = plain.get("schema")
    kind = DOCUMENTS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ValueError(f"a report shows no document {cut(repr(named))}; it shows {', '.join(DOCUMENTS)}")
    if plain.get("version") != VERSION:
        found = cut(repr(plain.get("version")))
        raise ValueError(f"version {found} of {named}; this version of pymllm reads {VERSION}")
    return read_as(kind, plain, str(named))
