"""The result of ``watch``, as a document."""

from __future__ import annotations

from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict


class WatchedLaw(Row, frozen=True):
    """The verdict on one law of producers, with the numbers of its tests and of its violations."""

    id: str
    sentence: str
    verdict: Verdict
    tests: int
    broken: int


class WatchFinding(Row, frozen=True):
    """The first event that broke a law, and the earlier messages about the block, ``told_in``."""

    law: str
    producer: str
    number: int
    event: int
    place: str
    what: str
    expected: str
    observed: str
    told_in: tuple[int, ...]


class WatchDocument(Document, frozen=True, kw_only=True, tag="pymllm.watch"):
    """The document that ``pymllm watch --json`` prints.

    ``late`` tells that the beginning of a stream, or a part since then, was not heard, so that whatever may
    have been told then is blamed on nobody. ``failure`` says what ended the stream early: all before it was
    judged. ``missed`` messages were asked for again, of which ``recovered`` came.
    """

    source: str
    seconds: float
    verdict: Verdict
    exit_status: int
    producers: int
    messages: int
    events: int
    restarts: int
    blocks: int
    most_blocks: int
    capacity: int | None
    late: bool
    laws: tuple[WatchedLaw, ...]
    findings: tuple[WatchFinding, ...] = ()
    missed: int = 0
    recovered: int = 0
    recording: str | None = None
    failure: str | None = None
    again: str | None = None
