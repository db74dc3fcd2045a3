"""The results of ``pymllm soak``, as records."""

from __future__ import annotations

from msgspec import Struct, field

from pymllm.documents.searches import DeviationRow
from pymllm.history.files import Config
from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict


class Failure(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A broken law, or a problem with the adapter where ``law`` is ``None``.

    - ``law``: Its id.
    - ``message``, ``expected``, ``observed``: Of the violation.
    - ``step``: Of the run's program.
    """

    law: str | None
    message: str
    expected: str | None = None
    observed: str | None = None
    step: int = 0


class CampaignRow(Row, frozen=True):
    """A campaign: the command to repeat it, the part that this run played, and gaps found by a merge.

    ``missing`` has the first hundred stretches of runs, each with its first and last number.
    """

    source: str
    versions: dict[str, str]
    seed: int
    operations: int | None
    longest: int
    audit: int
    places: int
    runs: int | None = None
    shard: str | None = None
    missing_runs: int = 0
    missing: tuple[tuple[int, int], ...] = ()


class FailureRow(Row, frozen=True, kw_only=True):
    """A broken law (or a problem if ``law`` is null), the first run that showed it, and how many did."""

    runs: int
    source: str = ""
    config: Config
    machine: str
    seed: int
    limit: int
    failure: Failure
    file: str | None
    short: str | None


class SoakedLimit(Row, frozen=True, kw_only=True):
    """Steps of an operation that were not done and that were (X9), with the shortest run lacking one."""

    operation: str
    reason: str
    not_done: int
    done: int | None
    config: Config
    machine: str
    seed: int
    limit: int


class SoakedAdapter(Row, frozen=True, kw_only=True):
    """The results of an adapter in a campaign; shares are fractions of processor time."""

    name: str
    kind: str
    places: int = 0
    places_played: int = 0
    runs: int
    operations: int
    seconds: float
    cpu_seconds: float = 0.0
    operations_per_cpu_second: float
    shares: dict[str, float]
    tests: dict[str, int]
    walks: dict[str, int] = field(default_factory=dict)
    untested_laws: tuple[str, ...]
    goals: dict[str, int] = field(name="situations")
    missing_goals: tuple[str, ...] = field(name="missing_situations")
    failures: tuple[FailureRow, ...]
    limits: tuple[SoakedLimit, ...] = ()


class DriftRow(Row, frozen=True, kw_only=True):
    """The growth of a memory measure: units per million operations, null if there are too few samples."""

    measure: str
    unit: str
    slope: float | None
    low: float | None
    high: float | None
    bound: float
    samples: int
    processes: int = 0
    verdict: str


class FindingRow(Row, frozen=True, kw_only=True):
    """A finding: a law, a program that breaks it, the number of runs that did, and the dates of merges.

    ``operations`` and ``program`` are null where nobody has made a program small, and ``runs`` is 0 where an
    earlier merge saw it and this one did not. Versions are those of the runs.
    """

    id: str
    law: str
    adapters: tuple[str, ...]
    message: str
    operations: int | None
    runs: int
    program: str | None
    first_seen: str
    last_seen: str
    new: bool = True


class FindingsDocument(Document, frozen=True, kw_only=True, tag="pymllm.findings"):
    """The findings file of ``pymllm merge``: new findings first, the smallest of them on top."""

    findings: tuple[FindingRow, ...]


class SoakDocument(Document, frozen=True, kw_only=True, tag="pymllm.soak"):
    """The document that ``pymllm soak --json`` prints.

    After an interrupt the command's status is the signal's.

    - ``refused``: Adapters that could not be examined, with the reason.
    - ``conflicts``: The first runs that gave other results when they were played again.
    - ``given_up``: Shards that no machine played to its end, as ``2/8``, with the reason.
    - ``without_ledger``: Folders that were to be merged, and in which nothing was played.
    """

    campaigns: tuple[CampaignRow, ...] = ()
    strict: bool = False
    verdict: Verdict
    exit_status: int = 0
    interrupted: bool
    seconds: float
    jobs: int = 0
    folder: str | None = None
    runs: int
    operations: int
    cpu_seconds: float
    peak_bytes: int
    adapters: tuple[SoakedAdapter, ...]
    drifts: tuple[DriftRow, ...]
    refused: dict[str, str] = field(default_factory=dict)
    conflicts: tuple[str, ...]
    deviations: tuple[DeviationRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    has_baseline: bool = False
    given_up: dict[str, str] = field(default_factory=dict)
    without_ledger: tuple[str, ...] = ()
