"""The result of ``probe``, as a document."""

from __future__ import annotations

from typing import Literal

from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict


class ProbedLaw(Row, frozen=True):
    """The verdict on one law of servers, with its number of tests or the reason for none."""

    id: str
    sentence: str
    verdict: Verdict
    tests: int
    reason: str | None


class ProbeTolerance(Row, frozen=True):
    """The differences of log-probabilities that count, with the measured spreads behind them.

    They are those of requests alone, in company, and served from the cache. A spread is null where nothing
    was measured, because the tolerance was given.
    """

    judged: float
    judged_company: float
    alone: float | None
    company: float | None
    warm: float | None
    judged_warm: float | None = None


class ProbeDifference(Row, frozen=True):
    """The largest difference of an answer from the same request made cold and alone.

    ``kind`` is "warm" if some of the prompt was served from the cache, or nobody tells; "computed" if nothing
    was; "cold" if the answer was asked cold, too. ``token`` is its place in the answer, counted from 1, and
    ``beside`` counts the requests at the same time.
    """

    request: int
    kind: Literal["warm", "computed", "cold"]
    beside: int
    cached: int | None
    token: int
    size: float
    tolerance: float


class ProbeViolation(Row, frozen=True):
    """The first broken law; ``step`` and ``request`` are those of the smallest program, if there is one."""

    law: str
    message: str
    expected: str
    observed: str
    step: int
    request: int


class ProbeDocument(Document, frozen=True, kw_only=True, tag="pymllm.probe"):
    """The document that ``pymllm probe --json`` prints.

    ``url`` is null where no server was asked, and of ``--demo``, whose architecture is ``demo``.
    ``failure`` says what ended the probe early: laws are judged on what came before. ``program`` has the
    smallest program in words, and ``unshrunk`` why there is none; ``output`` is the file that keeps it.
    ``places`` counts tokens that were compared, ``left_out`` those that could not be; ``differences`` has
    each answer that was compared, at most the first 10,000.
    """

    server: str
    api: str
    model: str | None
    url: str | None
    demo: str | None = None
    cold: str
    seed: int | None
    requests: int
    seconds: float
    verdict: Verdict
    exit_status: int
    tolerance: ProbeTolerance
    places: int
    left_out: int
    largest: float
    laws: tuple[ProbedLaw, ...]
    violation: ProbeViolation | None = None
    program: tuple[str, ...] = ()
    tries: int = 0
    unshrunk: str | None = None
    failure: str | None = None
    notes: tuple[str, ...] = ()
    differences: tuple[ProbeDifference, ...] = ()
    output: str | None = None
    again: str | None = None
