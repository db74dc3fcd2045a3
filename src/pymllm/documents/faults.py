"""The results of planted faults and of vectors, as records."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pymllm.documents.searches import Kind
from pymllm.history.files import Config
from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict

SEARCHERS = ("machine", "life-cycle machine", "invariants", "sweep")
"""Searchers for faults: random programs; an engine; audits during either; and failures of single calls."""

VERIFICATION = "verification"
"""The searcher of `pymllm faults verify`, beside `SEARCHERS`."""
CAMPAIGN = "campaign"
"""The searcher of `pymllm faults soak`, beside `SEARCHERS`."""
PROBE = "probe"
"""The searcher of `pymllm faults probe`, whose operations are requests."""


class Detection(Row, frozen=True):
    """The detection of a fault from one seed; the program's length is null if it was not shrunk.

    ``operations`` are those of the searcher that saw it, in all its programs until then; ``seconds`` went by
    in all. Where one program was made smaller, it is the one that was shortest to begin with.
    """

    seed: int
    law: str
    message: str
    searcher: Annotated[str, Meta(extra_json_schema={"enum": [*SEARCHERS, VERIFICATION, CAMPAIGN, PROBE]})]
    adapter: str
    config: Config
    operations: int
    seconds: float
    program: int | None


class BugRow(Row, frozen=True):
    """The engine that had a fault as a real bug, with absolute links to reports of it."""

    id: str
    engine: str
    version: str | None
    links: tuple[str, ...]
    mechanism: str
    seen: str
    evidence: str


class FaultRow(Row, frozen=True):
    """The results of a fault; medians are null if it was never caught, and ``bug`` if it is no real bug.

    ``missed`` counts the operations that were played from the seeds from which it was not caught.
    """

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
    missed: int = 0


class FaultsDocument(Document, frozen=True, kw_only=True, tag="pymllm.faults"):
    """The document that ``pymllm faults hunt --json`` prints.

    ``kept`` results are of an earlier run, and took no time.
    """

    versions: dict[str, str]
    seeds: tuple[int, ...]
    jobs: int = 0
    seconds: float
    kept: int = 0
    caught: int
    missed: int
    exit_status: int = 0
    faults: tuple[FaultRow, ...]


class VectorRow(Row, frozen=True):
    """The result of a vector (``passed``, ``failed``, ``other way`` or ``skipped``), with step and reason.

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
    """The document that ``pymllm vectors run --json`` prints.

    It has an implementation, and what became of each vector.

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


class ShownRow(Row, frozen=True):
    """A planted fault, with the playable vectors that show it, if any."""

    id: str
    title: str
    laws: tuple[str, ...]
    vectors: tuple[str, ...]


class VectorFaultsDocument(Document, frozen=True, kw_only=True, tag="pymllm.vectors-faults"):
    """The document that ``pymllm vectors faults --json`` prints.

    It has claims, the vectors for them, and the faults of the kind.

    ``claims`` is null where everything is claimed, and ``page_size`` where pages of any size are had.
    ``available`` counts the vectors of the kind, ``shown`` the faults that some of ``vectors`` show.
    """

    kind: Kind
    claims: tuple[str, ...] | None
    page_size: int | None
    vectors_version: str
    exit_status: int = 0
    available: int
    vectors: tuple[str, ...]
    shown: int
    faults: tuple[ShownRow, ...]
