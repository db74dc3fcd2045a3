"""The result of ``pymllm replay-server``, as a document."""

from __future__ import annotations

from typing import Literal

from pymllm.instrument.documents import Document, Row

KINDS = ("equal", "under way", "after evictions", "fewer", "more", "not predicted", "not told")
"""The kinds of differences between requests and predictions, in the order of checking."""
UNCOMPARED = ("not predicted", "not told")
"""The kinds of requests for which one of the two numbers is missing."""


class ServedKind(Row, frozen=True):
    """Requests with the same kind of difference, with their tokens: in prompts, hit, and predicted."""

    kind: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int


class TimesToFirst(Row, frozen=True):
    """The seconds from sending to the first token, for requests whose share of hits is in one range."""

    share_at_most: float
    requests: int
    median_s: float
    p90_s: float
    p99_s: float


class ServedDifference(Row, frozen=True):
    """A request of which the server hit another number of tokens than predicted."""

    request: int
    kind: str
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int


class ServedDocument(Document, frozen=True, kw_only=True, tag="pymllm.replay-server"):
    """The document that ``pymllm replay-server --json`` prints: a trace as a server answered it.

    ``predicted_tokens`` and ``curve_tokens`` are of the requests that are predicted and whose hits are told,
    ``cached_tokens`` of all. ``curve_tokens`` are the hits that a cache of this capacity has of these prompts
    and answers; the prediction of a request is less by the tokens that a server computes of a prompt that it
    has whole. ``late_s`` is the longest that a request was sent after its time.
    """

    name: str
    url: str
    api: str
    mode: Literal["clock", "serial"]
    seed: int
    speed: float
    page_size: int
    capacity: int
    requests: int
    answered: int
    refused: int
    kept: int
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    curve_tokens: int
    output_tokens: int
    most_at_once: int
    late_s: float
    seconds: float
    kinds: tuple[ServedKind, ...]
    first_tokens: tuple[TimesToFirst, ...]
    differences: tuple[ServedDifference, ...]
    refusal: str | None = None
    failure: str | None = None
    interrupted: bool = False
