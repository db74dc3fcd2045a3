"""The results of ``pymllm curve``, as records."""

from __future__ import annotations

from typing import Literal

from pymllm.documents.replays import WorkloadRow
from pymllm.instrument.documents import Document, Row


class ModelRow(Row, frozen=True, kw_only=True):
    """A model, as far as the size of a token's keys and values depends on it, and the source of the numbers.

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
    """A sample: its share of all blocks, and the number of its parts, from which its error is estimated."""

    rate: float
    parts: int


class CurveRow(Row, frozen=True, kw_only=True):
    """The counts of a serial replay at one capacity; null if not requested, or unknown from a sample.

    ``gpus`` have room for it, where their memory was given; ``kv_bytes`` are then on all of them together.

    ``low`` and ``high`` are around the hit rate of a sample. ``next_gib_tokens`` and ``next_gib_seconds`` are
    what a GiB more saves on the way to the next capacity.
    """

    capacity: int
    gpus: int | None = None
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
    """A group of requests with their counts."""

    name: str
    rows: tuple[CurveRow, ...]


class PolicyPoint(Row, frozen=True):
    """The counts of a replay with an eviction policy at one capacity."""

    capacity: int
    hit_tokens: int
    token_hit_rate: float
    evicted_tokens: int


class CurveOfPolicy(Row, frozen=True):
    """The replays of one eviction policy."""

    eviction_policy: str
    points: tuple[PolicyPoint, ...]


class CheckpointPoint(Row, frozen=True):
    """The counts of a hybrid model at one capacity, in tokens; ``peak_states`` is the most kept at once.

    ``lost_share`` is the part that is lost of the hit rate of full attention with the same capacity and the
    page size of the document; null where that rate is 0.
    """

    capacity: int
    hit_tokens: int
    token_hit_rate: float
    lost_share: float | None
    evicted_tokens: int
    peak_states: int


class CurveOfCheckpoints(Row, frozen=True):
    """The hits of a hybrid model that keeps states at multiples of ``tokens``, chosen by ``keeping``."""

    keeping: Literal["every", "last", "branch"]
    tokens: int
    points: tuple[CheckpointPoint, ...]


class CurveDocument(Document, frozen=True, kw_only=True, tag="pymllm.curve"):
    """The document that ``pymllm curve --json`` prints; rows are of ``lru``, by capacity.

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
    checkpoints: tuple[CurveOfCheckpoints, ...] = ()
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int | None = None
    interrupted: bool = False
