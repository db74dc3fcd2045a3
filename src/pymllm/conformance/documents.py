"""What commands find, as records: ``--json`` prints them, a store keeps them, report and ``diff`` read them.

A result is declared here and nowhere else: who has one live (`VerifyReport`, `SoakReport`, ...) makes its
record with ``document``, and a schema is made from the record. The name in ``schema`` tells which record a
document is. ``version`` counts up when a field goes away or changes its meaning; a new field does not change
it, and has a default here, so that older documents are still read. Neither torch nor Hypothesis is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, field

from pymllm.conformance.replay_plan import column_of
from pymllm.conformance.soak.ledger import Failure
from pymllm.faults.fault import SEARCHERS
from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.instrument.documents import DoctorDocument, Document, Row
from pymllm.oracle.verdicts import Verdict

Kind = Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]


# -- verify and compare --------------------------------------------------------------------------------------
class LawRow(Row, frozen=True):
    """What is known of a law: tests that it passed, walks from inside, and tests that broke it."""

    id: str
    sentence: str
    source: str
    verdict: Verdict
    tests: int
    walks: int
    broken: int = 0


class InvariantRow(Row, frozen=True):
    """What is known of an invariant by its name, and the laws that it is made of."""

    name: str
    laws: tuple[str, ...]
    verdict: Verdict


class MachineRow(Row, frozen=True, kw_only=True):
    """What a machine did over all configurations of an adapter.

    Coverage goals by how often they were met; unmet are those that it should have met and never did. Fewer
    programs than promised were played where a search took much too long and was cut short.
    """

    name: str
    configurations: int = 0
    programs: int
    steps: int
    seconds: float
    steps_per_second: float
    goals: dict[str, int] = field(default_factory=dict, name="situations")
    unmet: tuple[str, ...] = ()
    promised: int = 0


class CoverageRow(Row, frozen=True):
    """How often a machine met a coverage goal, and the adapters with which it should have and never did."""

    name: str
    machine: str
    times: int
    unmet: tuple[str, ...]


class ViolationRow(Row, frozen=True):
    """A broken law and a program for it; it is the smallest as far as a search to its end can tell.

    ``played_again`` says whether the acts in its file show what its operations alone do not; ``mistakes`` are
    this package's own, made while a smaller program was looked for.
    """

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
    played_again: bool = False
    mistakes: tuple[str, ...] = ()
    operation: str = ""


class DeviationRow(Row, frozen=True):
    """What became of a known deviation: whether it shows, in how many programs, of which adapters.

    ``status`` is ``shows``, ``gone``, ``not searched`` or ``other version``.
    """

    name: str
    law: str
    kind: str
    reason: str
    link: str
    status: str
    programs: int
    adapters: tuple[str, ...]


class ProblemRow(Row, frozen=True):
    """Why something is unknown, and the program that was running.

    Of a program in another process also how the conversation ended, and the file with its last lines.
    """

    message: str
    file: str | None = None
    ended: str | None = None
    conversation: str | None = None


class AdapterRow(Row, frozen=True):
    """What is known of an adapter; its kind is null where it could not be loaded."""

    name: str
    kind: Kind | None
    verdict: Verdict
    laws: tuple[LawRow, ...]
    machines: tuple[MachineRow, ...]
    violations: tuple[ViolationRow, ...]
    problems: tuple[ProblemRow, ...]


class SearchedRelease(Row, frozen=True):
    """The release of a package that was examined, as the caller named it."""

    package: str
    version: str


class VerifyDocument(Document, frozen=True, kw_only=True, tag="pymllm.verify"):
    """What ``pymllm verify --json`` prints; after an interrupt the command's status is the signal's.

    ``versions`` are of what took part, other projects' packages among them. ``passed_over`` counts the
    programs that broke a law which nobody asked for, by law; ``release`` is null where the caller named none.
    ``kept`` results were taken from the file of ``--keep``.
    """

    versions: dict[str, str]
    profile: str
    seed: int
    examples: int | None = None
    acts_max: int = 0
    jobs: int | None = None
    seconds: float
    verdict: Verdict
    exit_status: int = 0
    interrupted: bool
    strict: bool = False
    laws: tuple[LawRow, ...] = ()
    invariants: tuple[InvariantRow, ...] = ()
    goals: tuple[CoverageRow, ...] = field(default=(), name="situations")
    adapters: tuple[AdapterRow, ...]
    programs: int = 0
    promised: int = 0
    deviations: tuple[DeviationRow, ...] = ()
    passed_over: dict[str, int] = field(default_factory=dict)
    release: SearchedRelease | None = None
    kept: int = 0


class MatrixCell(Row, frozen=True):
    """What is known of a law of one implementation; no cell where the law is about another kind."""

    adapter: str
    verdict: Verdict
    tests: int
    walks: int


class MatrixRow(Row, frozen=True):
    """One law, and a cell for each implementation that it is about."""

    id: str
    sentence: str
    cells: tuple[MatrixCell, ...]


class CompareDocument(VerifyDocument, frozen=True, kw_only=True, tag="pymllm.compare"):
    """What ``pymllm compare --json`` prints: what verify prints, and a matrix of laws by implementation."""

    matrix: tuple[MatrixRow, ...] = ()


# -- judge, rerun and shrink ---------------------------------------------------------------------------------
class OperationRow(Row, frozen=True):
    """How long an operation took, in microseconds; refusals are kept apart."""

    operation: str
    is_refused: bool
    count: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


class JudgedViolation(Row, frozen=True):
    """A broken law: what was looked at, what it demands, what there was, at which step."""

    law: str
    message: str
    expected: str | None
    observed: str | None
    step: int


class JudgementDocument(Document, frozen=True, kw_only=True, tag="pymllm.judgement"):
    """What ``pymllm judge --json`` and ``pymllm rerun --json`` print; unknown, where nothing was tested.

    ``misfit`` says why a program could not be carried on, ``differences`` which steps have another outcome
    than the recorded one, ``times`` how long operations took where they were timed.
    """

    command: Literal["judge", "rerun"]
    file: str
    adapter: str
    kind: Kind
    config: Config
    steps: int
    verdict: Verdict
    exit_status: int
    tests: dict[str, int]
    walks: dict[str, int]
    violation: JudgedViolation | None
    misfit: str | None
    differences: tuple[int, ...]
    times: tuple[OperationRow, ...] | None = None

    def plain(self) -> dict[str, Any]:
        """Leave out times where nobody asked for them."""
        return {key: value for key, value in super().plain().items() if (key, value) != ("times", None)}


class ProgramSize(Row, frozen=True):
    """How large a program is: operations, tokens of keys and prompts, and what is configured."""

    operations: int
    tokens: int
    config: Config


class ShrinkDocument(Document, frozen=True, kw_only=True, tag="pymllm.shrink"):
    """What ``pymllm shrink --json`` prints; ``again`` is null where nothing shows the violation again.

    ``misfits`` counts programs that could not be run, by error; ``mistakes`` are this package's own.
    """

    file: str
    output: str | None
    adapter: str
    kind: Kind
    law: str
    message: str
    expected: str | None
    observed: str | None
    before: ProgramSize
    after: ProgramSize
    finished: bool
    programs: int
    seconds: float
    program: str
    again: str | None
    misfits: dict[str, int]
    mistakes: tuple[str, ...]


# -- bisect --------------------------------------------------------------------------------------------------
class ReleaseRow(Row, frozen=True):
    """What is known of one release: the law that its verdict is about, and what was looked at.

    Where the verdict is unknown, ``because`` says why, and the search passed the release over.
    """

    release: str
    verdict: Verdict
    law: str | None
    because: str
    seconds: float


class ReleaseChange(Row, frozen=True):
    """A verdict that changed from one release to another, such as from ``violated R6`` to ``holds``.

    The releases ``between`` were passed over: any of them may be the first with the new verdict.
    """

    before: str
    after: str
    was: str
    now: str
    between: tuple[str, ...]


class BisectDocument(Document, frozen=True, kw_only=True, tag="pymllm.bisect"):
    """What ``pymllm bisect --json`` prints; ``verdict`` is that of the newest release that was judged.

    ``releases`` counts those that were to be searched, ``rows`` has those that were tried, oldest first. Only
    where all were tried are the ``changes`` all that there are. After an interrupt the status is the
    signal's, 130 or 143.
    """

    package: str
    adapter: str
    file: str
    kind: Kind
    config: Config
    first: str
    last: str
    releases: int
    rows: tuple[ReleaseRow, ...]
    changes: tuple[ReleaseChange, ...]
    verdict: Verdict
    exit_status: int
    seconds: float
    interrupted: bool


# -- faults ------------------------------------------------------------------------------------------------
VERIFICATION = "verification"
"""Who caught a fault where `verify --cabinet` did, beside `pymllm.faults.fault.SEARCHERS`."""
CAMPAIGN = "campaign"
"""The same of `soak --cabinet`."""


class Detection(Row, frozen=True):
    """How a fault was caught from one seed; the program's length is null where nobody made it smaller.

    ``operations`` are those of the searcher that saw it, in all its programs until then; ``seconds`` went by
    in all. Where one program was made smaller, it is the one that was shortest to begin with.
    """

    seed: int
    law: str
    message: str
    searcher: Annotated[str, Meta(extra_json_schema={"enum": [*SEARCHERS, VERIFICATION, CAMPAIGN]})]
    adapter: str
    config: Config
    operations: int
    seconds: float
    program: int | None


class BugRow(Row, frozen=True):
    """Whose bug a fault was, and where it is written down; links are absolute."""

    id: str
    engine: str
    version: str | None
    links: tuple[str, ...]
    mechanism: str
    seen: str
    evidence: str


class FaultRow(Row, frozen=True):
    """What became of a fault; medians are null where it was never caught, and ``bug`` where it is of none."""

    id: str
    title: str
    laws: tuple[str, ...]
    caught: bool
    unlisted: tuple[str, ...]
    operations: float | None
    seconds: float | None
    program: int | None
    detections: tuple[Detection, ...]
    problems: tuple[str, ...]
    bug: BugRow | None = None


class FaultsDocument(Document, frozen=True, kw_only=True, tag="pymllm.faults"):
    """What ``pymllm faults --json`` prints; ``kept`` results are of an earlier run, and take no seconds."""

    versions: dict[str, str]
    seeds: tuple[int, ...]
    jobs: int = 0
    seconds: float
    kept: int = 0
    caught: int
    missed: int
    exit_status: int = 0
    faults: tuple[FaultRow, ...]


# -- vectors -------------------------------------------------------------------------------------------------
class VectorRow(Row, frozen=True):
    """What became of a vector: ``passed``, ``failed``, ``other way`` or ``skipped``, at which step, and why.

    ``known`` is the reason that a file of known deviations gives for it.
    """

    id: str
    law: str
    says: str
    verdict: Literal["passed", "failed", "other way", "skipped"]
    step: int
    why: str
    known: str = ""


class VectorsDocument(Document, frozen=True, kw_only=True, tag="pymllm.vectors-run"):
    """What ``pymllm vectors run --json`` prints: an implementation, and what became of each vector.

    ``unknown`` counts the failures that no file lists; ``unexpected`` names what it lists and did not fail.
    """

    adapter: str
    kind: Kind
    vectors_version: str
    verdict: Verdict
    exit_status: int = 0
    passed: int
    failed: int
    other_way: int
    skipped: int
    unknown: int
    unexpected: tuple[str, ...]
    vectors: tuple[VectorRow, ...]


# -- soak ----------------------------------------------------------------------------------------------------
class CampaignRow(Row, frozen=True):
    """A campaign: what to type to play it again, which part this is, and what a merge found missing.

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
    """A broken law, or a problem where its ``law`` is null: the first run that met it, and how many did."""

    runs: int
    source: str = ""
    config: Config
    machine: str
    seed: int
    limit: int
    failure: Failure
    file: str | None
    short: str | None


class SoakedAdapter(Row, frozen=True, kw_only=True):
    """What is known of an adapter; shares are parts of the processor's time."""

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


class DriftRow(Row, frozen=True, kw_only=True):
    """How memory changes: units per million operations, null where there are too few samples."""

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
    """A law and a program that breaks it, and how many runs did; what merges know of it.

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
    """What ``pymllm soak merge`` writes beside its ledger: new findings first, and the smallest of them."""

    findings: tuple[FindingRow, ...]


class SoakDocument(Document, frozen=True, kw_only=True, tag="pymllm.soak"):
    """What ``pymllm soak --json`` prints; after an interrupt the command's status is the signal's.

    - ``refused``: Adapters that could not be examined, with the reason.
    - ``conflicts``: The first runs that gave other results when they were played again.
    - ``given_up``: Shards that no machine played to its end, as ``2/8``, with the reason.
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


# -- replay --------------------------------------------------------------------------------------------------
class WorkloadRow(Row, frozen=True, kw_only=True):
    """What was replayed: one of our own workloads by its name, or a trace."""

    name: str
    kind: Literal["named", "trace"]
    requests: int
    seed: int
    block_tokens: int | None = None


class AskedRow(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Sizes as they were asked for, before they were rounded; lists where there are several."""

    capacity: int | None
    swa_capacity: int | None
    capacities: tuple[int | None, ...] = ()
    page_sizes: tuple[int, ...] = ()


class CacheTime(Row, frozen=True):
    """Microseconds of a request in one kind of cache operation, over its whole life."""

    median_us: float
    p99_us: float


class ReplayConfig(Row, frozen=True, kw_only=True):
    """What a cache was replayed with, as used: capacities are rounded to whole pages.

    As of `pymllm.workloads.engine_config.EngineConfig`, and of `pymllm.workloads.serial.SerialConfig` where
    there was no engine: what only one of them has is not there with the other.
    """

    cache: str
    page_size: int
    sliding_window_size: int | None = None
    capacity: int
    swa_capacity: int | None = None
    track_slots: int | None = None
    mamba_chunk_size: int | None = None
    eviction_policy: str | None = None
    paused_capacity: int | None = None
    max_running: int | None = None
    max_context: int | None = None
    chunk_tokens: int | None = None
    iteration_ms: float | None = None
    decode_headroom: int | None = None
    release_window_early: bool | None = None
    content_check: bool | None = None
    check_ownership: bool | None = None
    check_every: int = 0
    seed: int | None = None
    device: str = "cpu"

    @property
    def column(self) -> str:
        """Return what the cache is called beside others: with its policy, where somebody chose it."""
        is_own = (self.cache, self.eviction_policy) == (
            "blocks",
            "lru",
        )  # told of blocks that were given none
        return column_of(self.cache, None if is_own else self.eviction_policy)


class ReplayRun(Row, frozen=True, kw_only=True):
    """One cache over a workload; what only an engine or a serial replay has is not there with the other.

    As of `pymllm.workloads.engine_report.EngineReport` and `pymllm.workloads.serial.SerialReport`. Null is
    what the cache has not.
    """

    config: ReplayConfig
    requests: int
    finished: int | None = None
    rejected: int | None = None
    aborted: int | None = None
    retractions: int | None = None
    pauses: int | None = None
    skipped: int | None = None
    prompt_tokens: int
    hit_tokens: int = 0
    ceiling_tokens: int = 0
    token_hit_rate: float
    ceiling_hit_rate: float
    computed_tokens: int | None = None
    output_tokens: int | None = None
    evict_calls: int = 0
    evicted_tokens: int
    evicted_swa_tokens: int | None = None
    dead_window_tokens: int | None = None
    stateless_tokens: int | None = None
    peak_states_held: int | None = None
    evicted_states: int | None = None
    skipped_snapshots: int | None = None
    match: CacheTime
    insert: CacheTime
    evict: CacheTime
    lock: CacheTime
    allocator: CacheTime | None = None
    total: CacheTime | None = None
    total_mean_us: float | None = None
    cache_operations: int = 0
    invariant_checks: int = 0
    content_tokens: int | None = None
    peak_tokens_held: int | None = None
    peak_tokens_stored: int
    peak_rss_bytes: int | None
    iterations: int | None = None
    virtual_seconds: float | None = None
    wall_seconds: float


_OF_SERIAL = {"skipped", "allocator", "total", "total_mean_us", "check_ownership"}
_OF_ENGINE = {
    *("finished", "rejected", "aborted", "retractions", "pauses", "computed_tokens", "output_tokens"),
    *("evicted_swa_tokens", "dead_window_tokens", "stateless_tokens", "peak_states_held", "evicted_states"),
    *("skipped_snapshots", "content_tokens", "peak_tokens_held", "iterations", "virtual_seconds"),
    *("sliding_window_size", "swa_capacity", "track_slots", "mamba_chunk_size"),
    *("paused_capacity", "max_running", "max_context", "chunk_tokens", "iteration_ms", "decode_headroom"),
    *("release_window_early", "content_check", "seed"),
}


class ReplayViolation(Row, frozen=True):
    """A law that a run found broken."""

    cache: str
    law: str
    message: str


class CeilingRow(Row, frozen=True, kw_only=True):
    """What caches of one size could hit at most; the best choice that knows the future is null for an engine.

    ``prompt_tokens`` are those of the requests that are replayed with this size.
    """

    page_size: int
    capacity: int
    prompt_tokens: int = 0
    unlimited_hit_rate: float
    belady_hit_rate: float | None


class ReplayDocument(Document, frozen=True, kw_only=True, tag="pymllm.replay"):
    """What ``pymllm replay --json`` prints; there are ceilings where there are several sizes."""

    versions: dict[str, str]
    workload: WorkloadRow
    mode: Literal["engine", "serial"]
    asked: AskedRow = AskedRow(capacity=None, swa_capacity=None)
    runs: tuple[ReplayRun, ...]
    violation: ReplayViolation | None = None
    interrupted: bool = False
    ceilings: tuple[CeilingRow, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Leave out of the runs what an engine, or a serial replay, does not have at all."""
        plain = super().plain()
        absent = _OF_ENGINE if self.mode == "serial" else _OF_SERIAL
        for run in (run for kept in plain["runs"] for run in (kept, kept["config"])):
            for name in absent & run.keys():
                del run[name]
        if not self.asked.page_sizes:
            del plain["ceilings"]
        return plain


# -- curves --------------------------------------------------------------------------------------------------
class ModelRow(Row, frozen=True, kw_only=True):
    """A model as far as the bytes of a token's keys and values depend on it, and where the numbers are from.

    ``counted_layers`` of its ``layers`` keep something of every token. ``latent_dim`` numbers are kept of a
    token instead of heads; it is null where heads are kept.
    """

    name: str
    layers: int
    counted_layers: int
    kv_heads: int | None
    head_dim: int | None
    latent_dim: int | None
    dtype: str
    bytes_per_token: float
    source: str


class SampleRow(Row, frozen=True):
    """A sample: the share of all blocks, and the parts of it that its error is told by."""

    rate: float
    parts: int


class CurveRow(Row, frozen=True, kw_only=True):
    """What a serial replay counts at one capacity; null is what nobody asked for, or no sample can tell.

    ``low`` and ``high`` are around the hit rate of a sample. ``next_gib_tokens`` and ``next_gib_seconds`` are
    what a GiB more saves on the way to the next capacity.
    """

    capacity: int
    requests: int
    skipped: int
    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float
    low: float | None = None
    high: float | None = None
    ceiling_tokens: int | None = None
    ceiling_hit_rate: float | None = None
    belady_hit_rate: float | None = None
    evict_calls: int | None = None
    evicted_tokens: int | None = None
    kv_bytes: int | None = None
    prefill_seconds_saved: float | None = None
    next_gib_tokens: float | None = None
    next_gib_seconds: float | None = None


class CurveGroup(Row, frozen=True):
    """The requests that have something in common, and what is counted of them."""

    name: str
    rows: tuple[CurveRow, ...]


class PolicyPoint(Row, frozen=True):
    """What a replay with an eviction policy counted at one capacity."""

    capacity: int
    hit_tokens: int
    token_hit_rate: float
    evicted_tokens: int


class CurveOfPolicy(Row, frozen=True):
    """The replays with one eviction policy."""

    eviction_policy: str
    points: tuple[PolicyPoint, ...]


class CurveDocument(Document, frozen=True, kw_only=True, tag="pymllm.curve"):
    """What ``pymllm curve --json`` prints; rows are of ``lru``, by capacity.

    ``by`` says what the ``groups`` have in common; ``trace_seconds`` is the time between the first and the
    last arrival, ``cpu_seconds`` what the pass took of the processor, reading included.
    """

    versions: dict[str, str]
    workload: WorkloadRow
    page_size: int
    method: Literal["exact", "sampled"]
    sample: SampleRow | None = None
    model: ModelRow | None = None
    prefill_rate: float | None = None
    trace_seconds: float
    longest_prompt: int
    rows: tuple[CurveRow, ...]
    by: Literal["kind", "namespace", "length"] | None = None
    groups: tuple[CurveGroup, ...] = ()
    policies: tuple[CurveOfPolicy, ...] = ()
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int | None = None
    interrupted: bool = False


# -- coverage goals ------------------------------------------------------------------------------------------
class WorthReaching(Row, frozen=True, kw_only=True):
    """A coverage goal: what is at stake, the capabilities it needs, and what a configuration must be like."""

    name: str
    kind: Kind
    of_engine: bool = False
    laws: tuple[str, ...]
    bugs: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    configuration: tuple[str, ...] = ()


class GoalsDocument(Document, frozen=True, kw_only=True, tag="pymllm.situations"):
    """What ``pymllm goals --json`` prints."""

    goals: tuple[WorthReaching, ...] = field(name="situations")


# -- diff ----------------------------------------------------------------------------------------------------
class LawChange(Row, frozen=True):
    """A law of one implementation with another verdict than before."""

    subject: str
    law: str
    before: Verdict
    after: Verdict
    worse: bool


class FindingChange(Row, frozen=True):
    """A broken law, or a problem where that is null, that one run alone has; new is that of the later one."""

    subject: str
    law: str | None
    message: str
    new: bool


class FigureChange(Row, frozen=True):
    """A figure with another value; where its spreads overlap, or nothing tells of noise, it is not judged.

    ``test`` says why: the spreads (quartiles, or an interval of confidence) are apart or overlap, there are
    no samples, or the machine or the code that measured is another.
    """

    name: str
    unit: str
    before: float
    after: float
    test: str
    verdict: Literal["worse", "better", "changed"] | None


FAIL_ON = ("law", "finding", "figure", "any")
"""What ``pymllm diff --fail-on`` may name."""


class DiffDocument(Document, frozen=True, kw_only=True, tag="pymllm.diff"):
    """What ``pymllm diff --json`` prints: the worse comes first; ``failed_on`` are the reasons for status 1.

    Laws are compared where both runs know them: ``only_before`` and ``only_after`` are subjects of one alone.
    """

    before: str
    after: str
    kind: str
    laws: tuple[LawChange, ...]
    findings: tuple[FindingChange, ...]
    figures: tuple[FigureChange, ...]
    goals_lost: tuple[str, ...] = field(name="situations_lost")
    faults_missed: tuple[str, ...]
    faults_caught: tuple[str, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    failed_on: tuple[str, ...]
    exit_status: int


# -- conversations with programs -----------------------------------------------------------------------------
class Exchange(Row, frozen=True, omit_defaults=True):
    """One message and its answer; ``line`` counts from 1 what the program wrote.

    ``said`` and ``answered`` say what kind of message each was, and of an answer that is none how it begins;
    ``problem`` and ``advice`` what is wrong with it, and what to do.
    """

    line: int
    said: str
    answered: str
    problem: str | None = None
    advice: str | None = None


class Introduced(Row, frozen=True):
    """What a program said of itself."""

    protocol: int
    name: str
    version: str
    language: str
    kind: str
    capabilities: tuple[str, ...]
    clock: bool
    audits: bool


class ProgramRow(Row, frozen=True):
    """One conversation; ``program`` is null without a hello, ``conversation`` the file with its last lines.

    An exchange that is wrong in several ways stands there several times.
    """

    name: str
    program: Introduced | None
    answers: int
    problems: int
    exchanges: tuple[Exchange, ...]
    conversation: str | None


class ProtocolDocument(Document, frozen=True, kw_only=True, tag="pymllm.protocol-check"):
    """What ``pymllm verify --check-protocol --json`` prints: unknown where any answer is wrong."""

    verdict: Verdict
    exit_status: int
    programs: tuple[ProgramRow, ...]


# -- all of them ---------------------------------------------------------------------------------------------
AnyDocument = (
    VerifyDocument
    | CompareDocument
    | JudgementDocument
    | ShrinkDocument
    | FaultsDocument
    | SoakDocument
    | ReplayDocument
    | GoalsDocument
    | ProtocolDocument
    | DoctorDocument
)
DOCUMENTS: dict[str, type[Document]] = {str(it.__struct_config__.tag): it for it in get_args(AnyDocument)}
"""The record of each schema."""

_OMITTING = {
    it.__name__
    for it in (AskedRow, Exchange, Failure, JudgementDocument, ReplayConfig, ReplayDocument, ReplayRun)
}  # leave out what has its default, or is not theirs
_D = TypeVar("_D", bound=Document)


def read_as(record: type[_D], plain: Mapping[str, Any]) -> _D:
    """Read a document, as JSON has it; `ValueError` says what of it is missing or of another type."""
    try:
        return msgspec.convert(plain, record)
    except msgspec.ValidationError as error:
        raise ValueError(f"{record.__struct_config__.tag}: {error}") from None


def schema_of_document(record: type[Document], title: str) -> dict[str, Any]:
    """Describe what is written of a document as a JSON schema (draft 2020-12)."""
    (found,), parts = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    for part in parts.values():
        if part.get("type") == "object" and "properties" in part:
            # A field has a default for older documents; whoever writes one now writes all of them.
            always = part["required"] if part["title"] in _OMITTING else part["properties"]
            part["required"] = [it for it in part["properties"] if it in {"schema", "version", *always}]
            part["additionalProperties"] = False
            for described in part["properties"].values():
                described.pop("default", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": title,
        "$defs": parts,
    }
