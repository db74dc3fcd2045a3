"""The section of cache event streams: the laws of each producer, and the first event that broke each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymllm.documents.watches import WatchDocument, WatchedLaw, WatchFinding
from pymllm.instrument.openmetrics import Family, Sample
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    ENDING,
    GOOD,
    PAGE,
    TERMINAL,
    UNKNOWN,
    Card,
    Cell,
    Column,
    Fact,
    Part,
    Text,
    Tile,
    anchor_of,
    make_table,
    number,
)
from pymllm.report.findings import TONES, verdict_cell
from pymllm.report.loading import Run, documents_of
from pymllm.report.outcomes import Case, Outcome, Suite, counted
from pymllm.report.quantities import count_of, show_count, show_duration

_OUTCOMES = {Verdict.UNKNOWN: "error", Verdict.NOT_CLAIMED: "skipped"}


def newest_streams(runs: Sequence[Run]) -> list[WatchDocument]:
    """Return the newest result of each stream."""
    return list({document.source: document for document, _ in documents_of(runs, WatchDocument)}.values())


def make_streams_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of streams: a card for each broken law, and all laws with their test counts."""
    streams = newest_streams(runs)
    for it in streams:
        yield Text(_heard(it), only=TERMINAL)
        yield Text("", only=TERMINAL)
        yield Text(_sum_up(it), TONES[it.verdict], only=TERMINAL)
        if it.failure is not None:
            yield Text(f"{it.source}: ended early: {it.failure}", UNKNOWN)
        if it.late:
            yield Text(
                "The beginning, or a part since then, was not heard; nothing is blamed for it.", UNKNOWN
            )
    for it in streams:
        yield from (_card(it, finding) for finding in it.findings)
    if streams:
        rows = [(it, law) for it in streams for law in it.laws]
        yield make_table("Laws of streams", rows, _COLUMNS)
        broken = sum(law.verdict is Verdict.VIOLATED for _, law in rows)
        yield Tile(show_count(broken), "laws of streams violated", BAD if broken else GOOD)
    for it in streams:
        yield Text(_ended(it), ENDING, only=TERMINAL)


_COLUMNS = (
    Column("stream", lambda it: it[0].source, only=PAGE),
    Column("law", lambda it: it[1].id),
    Column("demands that", lambda it: it[1].sentence),
    Column("verdict", lambda it: verdict_cell(it[1].verdict)),
    number("tests", lambda it: _tests(it[1])),
)


def _tests(it: WatchedLaw) -> Cell:
    if it.broken:
        return Cell(f"{it.broken:,} of {it.tests:,} broke it", BAD)
    return Cell(show_count(it.tests))


def _heard(it: WatchDocument) -> str:
    restarts = f", {count_of(it.restarts, 'new beginning')}" if it.restarts else ""
    missed = f", {it.recovered:,} of {it.missed:,} missed ones came when asked for" if it.missed else ""
    return (
        f"{it.source}: {count_of(it.messages, 'message')}, {count_of(it.events, 'event')} of "
        f"{count_of(it.producers, 'producer')} in {show_duration(it.seconds)}{restarts}{missed}"
    )


def _sum_up(it: WatchDocument) -> str:
    claimed = [law for law in it.laws if law.verdict is not Verdict.NOT_CLAIMED]
    of = [law.id for law in claimed if law.verdict is it.verdict]
    if it.verdict is Verdict.HOLDS:
        return f"holds     all {count_of(len(claimed), 'law')} that apply"
    if not of:
        return f"UNKNOWN   the stream ended early; none of {len(claimed)} laws that apply was broken before"
    return f"{it.verdict.value.upper():8}  {len(of)} of {len(claimed)} laws that apply: {', '.join(of)}"


def _ended(it: WatchDocument) -> str:
    room = "" if it.capacity is None else f" of {it.capacity:,}"
    return f"{count_of(it.blocks, 'block')} there at the end, {it.most_blocks:,}{room} at most"


def _card(document: WatchDocument, it: WatchFinding) -> Card:
    law = next(law for law in document.laws if law.id == it.law)
    where = f"message {it.number} of {it.producer}" + (f", event {it.event}, {it.place}" if it.event else "")
    told = " and ".join(f"message {number}" for number in it.told_in)
    facts = [
        Fact("looked at", it.what),
        Fact("expected", it.expected),
        Fact("observed", it.observed),
        Fact("at", where),
        *([Fact("told in", told)] if told else []),
        *([Fact("again", document.again, is_code=True)] if document.again else []),
    ]
    title = f"{it.law}  VIOLATED by {document.source}: {law.sentence}"
    return Card(anchor_of("stream", document.source, it.law), title, BAD, facts)


def tell_streams(runs: Sequence[Run]) -> Outcome:
    """Return the outcome of the newest result of each stream."""
    streams = newest_streams(runs)
    rows = [(it, law) for it in streams for law in it.laws]
    broken = [row for row in rows if row[1].verdict is Verdict.VIOLATED]
    unknown = counted(
        sum(law.verdict is Verdict.UNKNOWN for _, law in rows), "law of a stream", "laws of streams"
    )
    columns = [
        Column("law", lambda it: it[1].id, is_word=True),
        Column("stream", lambda it: it[0].source),
        Column("demands that", lambda it: it[1].sentence),
        number("tests", lambda it: show_count(it[1].tests)),
        number("broken", lambda it: show_count(it[1].broken)),
    ]
    counts = tuple(
        Sample(count, {"stream": it.source, "law": law.id, "outcome": outcome})
        for it, law in rows
        for outcome, count in (("kept", law.tests - law.broken), ("broken", law.broken))
    )
    return Outcome(
        bad=counted(len(broken), "law of a stream violated", "laws of streams violated"),
        unknown="".join(f"{words} not tested" for words in unknown),
        good="all laws of streams hold" if streams else "",
        parts=[make_table("Streams", broken, columns)],
        suites=[
            Suite(f"stream {it.source}", it.seconds, [_case(it, law) for law in it.laws]) for it in streams
        ],
        families=[Family("pymllm_stream_tests", "gauge", "", "Tests of the laws of event streams.", counts)],
    )


def _case(document: WatchDocument, law: WatchedLaw) -> Case:
    name = f"{law.id} {law.sentence}"
    found = next((it for it in document.findings if it.law == law.id), None)
    if found is not None:
        why = f"{found.what}: expected {found.expected}, observed {found.observed}"
        return Case(document.source, name, "failure", why, f"{why}\nmessage {found.number}")
    return Case(document.source, name, _OUTCOMES.get(law.verdict), law.verdict.value)
