"""What a report shows of searches: of verify and compare, faults, soak and situations.

As of `pymllm.report.documents`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.history.files import Config

__all__ = [
    "DetectionRow",
    "DriftRow",
    "FaultRow",
    "FaultsDocument",
    "LawRow",
    "MachineRow",
    "ProblemRow",
    "SearchedAdapter",
    "SituationDocumentRow",
    "SituationRow",
    "SituationsDocument",
    "SoakDocument",
    "SoakFailure",
    "SoakFailureRow",
    "SoakedAdapter",
    "VerifyDocument",
    "ViolationRow",
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
    jobs: int | None = None


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
