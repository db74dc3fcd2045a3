"""The section of traces sent to servers: real and predicted hits, and times to the first token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pymllm.documents.served import UNCOMPARED, ServedDifference, ServedDocument, ServedKind, TimesToFirst
from pymllm.report.blocks import BAD, TERMINAL, UNKNOWN, Column, Part, Text, Tile, make_table, number
from pymllm.report.loading import Run, documents_of
from pymllm.report.quantities import count_of, show, show_count, show_share

_Row = TypeVar("_Row", ServedKind, TimesToFirst, ServedDifference)


@dataclass(frozen=True, slots=True)
class _Of(Generic[_Row]):
    """A row of a document, with the document."""

    document: ServedDocument
    row: _Row

    @property
    def name(self) -> str:
        """The name of the trace, and of the server that received it."""
        it = self.document
        return f"{it.name} to {it.url}, {'one by one' if it.mode == 'serial' else f'speed {it.speed:g}'}"


def find_served(runs: Sequence[Run]) -> list[ServedDocument]:
    """Return the newest replay of each trace against each server, for each way of sending."""
    found: dict[tuple[object, ...], ServedDocument] = {}
    for it, _ in documents_of(runs, ServedDocument):
        found[it.name, it.url, it.mode, it.speed, it.capacity, it.page_size] = it
    return list(found.values())


def make_served_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of replays against servers: hits by difference, first-token times, and requests."""
    found = find_served(runs)
    for it in found:
        yield from (Text(line, only=TERMINAL) for line in _heading(it))
        if it.failure is not None:
            yield Text(f"The server failed: {it.failure}", BAD)
        if it.interrupted:
            yield Text(f"The replay of {it.name} was interrupted: its numbers are of a part.", UNKNOWN)
        if it.refusal is not None:
            yield Text(f"{count_of(it.refused, 'request')} refused, such as: {it.refusal}", UNKNOWN)
    if not found:
        return
    named = Column("trace and server", lambda it: it.name)
    yield make_table(
        "Hits of servers beside those predicted",
        [_Of(it, row) for it in found for row in it.kinds],
        [
            named,
            Column("compared", lambda it: it.row.kind),
            number("requests", lambda it: show_count(it.row.requests)),
            number("hit by the server", lambda it: count_of(it.row.cached_tokens, "token")),
            number("predicted", lambda it: count_of(it.row.predicted_tokens, "token")),
        ],
    )
    yield make_table(
        "Time to the first token",
        [_Of(it, row) for it in found for row in it.first_tokens],
        [
            named,
            Column("share that was hit, at most", lambda it: show_share(it.row.share_at_most)),
            number("requests", lambda it: show_count(it.row.requests)),
            number("median", lambda it: show(it.row.median_s, "s")),
            number("p90", lambda it: show(it.row.p90_s, "s")),
            number("p99", lambda it: show(it.row.p99_s, "s")),
        ],
    )
    differing = [_Of(it, row) for it in found for row in it.differences]
    if differing:
        yield make_table(
            "Requests that differ",
            differing,
            [
                named,
                number("request", lambda it: f"{it.row.request:,}"),
                Column("why", lambda it: it.row.kind),
                number("prompt", lambda it: count_of(it.row.prompt_tokens, "token")),
                number("hit by the server", lambda it: count_of(it.row.cached_tokens, "token")),
                number("predicted", lambda it: count_of(it.row.predicted_tokens, "token")),
            ],
        )
    yield Tile(show_count(sum(it.answered for it in found)), "requests replayed against servers")


def _heading(it: ServedDocument) -> Iterator[str]:
    """Yield the number of requests sent, and their hits."""
    how = "one by one" if it.mode == "serial" else f"by its clock, {it.speed:g} times as fast"
    yield f"{it.name} to {it.url} ({it.api}), {how}, tokens of seed {it.seed}"
    kept = f", {it.kept:,} of them kept from before" if it.kept else ""
    yield (
        f"{it.answered:,} of {count_of(it.requests, 'request')} answered in {show(it.seconds, 's')}{kept}; "
        f"at most {it.most_at_once:,} at once, sent {show(it.late_s, 's')} late at most"
    )
    both = [kind for kind in it.kinds if kind.kind not in UNCOMPARED]
    compared, prompts = sum(kind.requests for kind in both), sum(kind.prompt_tokens for kind in both)
    cached = sum(kind.cached_tokens for kind in both)
    of = f"; of {count_of(compared, 'compared request')} {_rate(cached, prompts)}"
    yield (
        f"hit rate {_rate(it.cached_tokens, it.prompt_tokens)}{of if compared < it.answered else ''}; "
        "predicted for "
        f"{count_of(it.capacity, 'slot')} in pages of {it.page_size}: "
        f"{_rate(sum(kind.predicted_tokens for kind in both), prompts)}, and "
        f"{_rate(it.curve_tokens, prompts)} as by pymllm curve, which computes no token again"
    )


def _rate(tokens: int, prompts: int) -> str:
    return show_share(tokens / prompts if prompts else 0.0)
