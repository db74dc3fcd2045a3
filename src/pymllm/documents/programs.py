"""The results of ``judge``, ``rerun``, ``shrink``, ``bisect`` and ``check-protocol`` on single programs."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from pymllm.documents.searches import Kind, LimitRow
from pymllm.history.files import Config
from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict


class OperationRow(Row, frozen=True):
    """The times of an operation in microseconds, with refusals apart."""

    operation: str
    is_refused: bool
    count: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


class JudgedViolation(Row, frozen=True):
    """A broken law: the value checked, its expected and observed content, and the step."""

    law: str
    message: str
    expected: str | None
    observed: str | None
    step: int


class JudgementDocument(Document, frozen=True, kw_only=True, tag="pymllm.judgement"):
    """The document that ``pymllm judge --json`` and ``pymllm rerun --json`` print.

    The verdict is unknown where nothing was tested.

    ``misfit`` says why a program could not be carried on, ``differences`` which steps have another outcome
    than the recorded one, ``times`` how long operations took where they were timed. ``limits`` are steps that
    were not done: where no limit was declared, which older files could not, nobody knows what they hide.
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
    limits: tuple[LimitRow, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the document without times, unless they were requested."""
        return {key: value for key, value in super().plain().items() if (key, value) != ("times", None)}


class ProgramSize(Row, frozen=True):
    """The size of a program: its operations, the tokens of keys and prompts, and sizes configured."""

    operations: int
    tokens: int
    config: Config


class ShrinkDocument(Document, frozen=True, kw_only=True, tag="pymllm.shrink"):
    """The document that ``pymllm shrink --json`` prints.

    ``again`` is null where nothing shows the violation again.

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


class ReleaseRow(Row, frozen=True):
    """The result of one release: its verdict, the law it is about, and the reason.

    Where the verdict is unknown, ``because`` says why, and the search passed the release over.
    """

    release: str
    verdict: Verdict
    law: str | None
    because: str
    seconds: float


class ReleaseChange(Row, frozen=True):
    """A change of the verdict between two releases, such as from ``violated R6`` to ``holds``.

    The releases ``between`` were passed over: any of them may be the first with the new verdict.
    """

    before: str
    after: str
    was: str
    now: str
    between: tuple[str, ...]


class BisectDocument(Document, frozen=True, kw_only=True, tag="pymllm.bisect"):
    """The document that ``pymllm bisect --json`` prints.

    ``verdict`` is that of the newest release that was judged.

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


class Exchange(Row, frozen=True, omit_defaults=True):
    """A message and its reply; ``line`` is the number, from 1, of the line that the program wrote.

    ``said`` and ``answered`` say what kind of message each was, and of an answer that is none how it begins;
    ``problem`` and ``advice`` what is wrong with it, and what to do.
    """

    line: int
    said: str
    answered: str
    problem: str | None = None
    advice: str | None = None


class Introduced(Row, frozen=True):
    """The introduction of a program: the name, kind and capabilities that it sent."""

    protocol: int
    name: str
    version: str
    language: str
    kind: str
    capabilities: tuple[str, ...]
    clock: bool
    audits: bool
    limits: dict[str, str] = field(default_factory=dict)


class ProgramRow(Row, frozen=True):
    """A conversation; ``program`` is null without an introduction, ``conversation`` a file of last lines.

    An exchange that is wrong in several ways stands there several times.
    """

    name: str
    program: Introduced | None
    answers: int
    problems: int
    exchanges: tuple[Exchange, ...]
    conversation: str | None


class ProtocolDocument(Document, frozen=True, kw_only=True, tag="pymllm.protocol-check"):
    """The document that ``pymllm check-protocol --json`` prints: unknown where any answer is wrong."""

    verdict: Verdict
    exit_status: int
    programs: tuple[ProgramRow, ...]
