"""The command ``pymllm trace``: statistics of a trace, and other traces made from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import escaped
from pymllm.cli.replay.reading import read_options, trace_options
from pymllm.cli.tables import draw, make_legend, make_table, progress_bar, tell
from pymllm.documents.traces import (
    ReuseRow,
    SpreadRow,
    TraceFacts,
    TraceInspectDocument,
    facts_of,
)
from pymllm.report.quantities import count_of

if TYPE_CHECKING:
    from pymllm.traces.registry import Trace
    from pymllm.workloads.request import Request

_BETWEEN = 500
"""The number of requests between two updates of a file's progress."""

requests_option = click.option(
    "--requests",
    type=options.whole(1, 2**31 - 1),
    show_default="all",
    help="Read the first N requests only.",
)


@click.group("trace", short_help="Inspect, convert, sample or synthesize a trace.")
def trace_command() -> None:
    """Inspect recorded requests, convert them, sample them, or generate similar ones.

    TRACE is a file in one of the formats of docs/traces.md, plain or gzip, - for standard input, or a folder
    of such files or of conversations.
    """


def open_or_refuse(path: str, requests: int | None, chosen: dict[str, Any]) -> Trace:
    """Open a trace with the options of `trace_options`, or refuse it."""
    form = chosen.pop("format")
    reading = read_options(**chosen)
    from pymllm.traces.registry import open_trace

    with options.refusing():
        return open_trace(path, format=form, requests=requests, options=reading)


def watched(trace: Trace, progress: str, label: str) -> Iterator[Request]:
    """Yield the requests of a trace, and show the progress through its file."""
    size = trace.lines.size
    total, unit = (None, "requests") if size is None else (max(1, size // 10**6), "MB")
    with options.refusing(), progress_bar(progress, f"{label} {trace.source}", total, unit) as show:
        for count, request in enumerate(trace, 1):
            yield request
            if show is not None and not count % _BETWEEN:
                show(count if size is None else trace.lines.position // 10**6)


@trace_command.command("inspect", short_help="Tell what a trace is like.")
@click.argument("trace", metavar="TRACE")
@requests_option
@trace_options
@options.json
@options.progress
def inspect_command(trace: str, *, requests: int | None, as_json: bool, progress: str, **chosen: Any) -> int:
    """Print the statistics of a trace, in one pass: lengths, arrivals, sharing, reuse, and working sets.

    Exit status: 0, 2 for bad input.
    """
    opened = open_or_refuse(trace, requests, chosen)
    from pymllm.traces.statistics import TraceStatistics

    found = TraceStatistics()
    for request in watched(opened, progress, "reading"):
        found.add(request)
    found.finish()
    document = TraceInspectDocument(name=trace, format=opened.format, facts=facts_of(found))
    return tell(document, make_text, as_json)


def make_text(document: TraceInspectDocument) -> str:
    """Return a trace's statistics as text."""
    it = document.facts
    size = count_of(it.block_tokens, "token")
    head = f"{escaped(document.name)}: {it.requests:,} requests, {document.format}, blocks of {size}"
    legend = {
        "shared": "tokens that an earlier prompt began with: what a cache without a limit serves",
        "footprint": "tokens of all prompts, each place of a prefix counted once",
        "reuse distance": "other tokens that were used between two uses of a token",
        "working set": "different tokens that were used in a window of time",
    }
    parts = [head, "", *compared([("", it)]), draw(make_legend(legend)).rstrip()]
    return "\n".join(parts)


def compared(columns: Sequence[tuple[str, TraceFacts]]) -> Iterator[str]:
    """Yield tables of the statistics of one trace, or of several traces side by side."""
    names, facts = [name for name, _ in columns], [it for _, it in columns]
    yield _table(
        ("what", *(name or "value" for name in names)),
        [(label, *map(show, facts)) for label, show in _SUMMARY],
    )
    turns = [it.turns for it in facts]
    spreads = [("prompt tokens", [it.prompt for it in facts]), ("output tokens", [it.output for it in facts])]
    if all(turns):
        spreads.append(("requests of a session", [it for it in turns if it is not None]))
    rows = [
        (f"{label} {name}".rstrip(), *_spread(row))
        for label, spread in spreads
        for name, row in zip(names, spread, strict=True)
    ]
    yield _table(("", "mean", "median", "p90", "p99", "most"), rows)
    yield _table(
        (
            "depth in tokens",
            *(f"tokens {n}".rstrip() for n in names),
            *(f"shared {n}".rstrip() for n in names),
        ),
        _depths(facts),
    )
    for title, of in (("reuse distance", _distances), ("reuse interval", _intervals)):
        yield _table((f"{title}, at most", *(f"shared tokens {n}".rstrip() for n in names)), of(facts))
    yield _table(
        ("window", *(f"{what} {n}".rstrip() for n in names for what in ("mean working set", "largest"))),
        _windows(facts),
    )
    if any(it.recorded for it in facts):
        yield _table(
            ("hits that were recorded", *(name or "value" for name in names)), list(_recorded(facts))
        )
    kinds = _kinds(facts)
    if kinds:
        yield _table(
            (
                "kind",
                *(f"{what} {n}".rstrip() for n in names for what in ("requests", "prompt tokens", "shared")),
            ),
            kinds,
        )


_SUMMARY = (
    ("requests", lambda it: f"{it.requests:,}"),
    ("prompt tokens", lambda it: f"{it.prompt_tokens:,}"),
    ("output tokens", lambda it: f"{it.output_tokens:,}"),
    ("shared", lambda it: _percent(it.shared_tokens, it.prompt_tokens)),
    ("footprint", lambda it: count_of(it.footprint_tokens, "token")),
    ("sessions", lambda it: "none" if it.sessions is None else f"{it.sessions:,}"),
    ("requests that wait for others", lambda it: f"{it.waiting:,}"),
    ("namespaces", lambda it: f"{it.namespaces:,}"),
    ("duration", lambda it: f"{it.seconds:,.1f} s"),
    ("arrivals", lambda it: f"{it.requests_per_second:,.3f} per second"),
    ("times between them, deviation / mean", lambda it: f"{it.gap_variation:.2f}"),
)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return draw(make_table(*head, right=head[1:], gap=2, rows=rows), fits_terminal=True)


def _spread(it: SpreadRow) -> tuple[str, ...]:
    return (f"{it.mean:,.1f}", *(f"{value:,}" for value in (it.median, it.p90, it.p99, it.most)))


def _depths(facts: Sequence[TraceFacts]) -> list[tuple[str, ...]]:
    found = [{(row.from_tokens, row.to_tokens): row for row in it.by_depth} for it in facts]
    return [
        (
            f"{low:,} to {high:,}",
            *(f"{rows[low, high].tokens:,}" if (low, high) in rows else "0" for rows in found),
            *(
                _percent(rows[low, high].shared_tokens, rows[low, high].tokens)
                if (low, high) in rows
                else "-"
                for rows in found
            ),
        )
        for low, high in sorted({key for rows in found for key in rows})
    ]


def _distances(facts: Sequence[TraceFacts]) -> list[tuple[str, ...]]:
    return _cumulated([it.by_reuse_distance for it in facts], lambda most: count_of(int(most), "token"))


def _intervals(facts: Sequence[TraceFacts]) -> list[tuple[str, ...]]:
    return _cumulated([it.by_reuse_interval for it in facts], lambda most: f"{most:,.3f} s")


def _cumulated(columns: Sequence[Sequence[ReuseRow]], show: Any) -> list[tuple[str, ...]]:
    """Return for each bound the fraction of shared tokens within it."""
    return [
        (
            show(most),
            *(
                _percent(
                    sum(row.tokens for row in rows if row.at_most <= most), sum(row.tokens for row in rows)
                )
                for rows in columns
            ),
        )
        for most in sorted({row.at_most for rows in columns for row in rows})
    ]


def _windows(facts: Sequence[TraceFacts]) -> list[tuple[str, ...]]:
    found = [{row.window_seconds: row for row in it.working_sets} for it in facts]
    return [
        (
            f"{width:,.0f} s",
            *(
                text
                for rows in found
                for text in (
                    (f"{rows[width].mean_tokens:,.0f}", f"{rows[width].most_tokens:,}")
                    if width in rows
                    else ("-", "-")
                )
            ),
        )
        for width in sorted({width for rows in found for width in rows})
    ]


_RECORDED = (
    ("requests", "requests"),
    ("tokens that the server found cached", "recorded_tokens"),
    ("tokens shared here", "replayed_tokens"),
    ("requests of which both are equal", "equal"),
    ("requests whose last block was computed again", "last_block"),
    ("requests with fewer than here", "fewer"),
    ("requests with more than here", "more"),
)


def _recorded(facts: Sequence[TraceFacts]) -> Iterator[tuple[str, ...]]:
    """Yield rows that compare a server's cached tokens with an unlimited cache's hits."""
    for label, name in _RECORDED:
        yield (label, *("-" if it.recorded is None else f"{getattr(it.recorded, name):,}" for it in facts))


def _kinds(facts: Sequence[TraceFacts]) -> list[tuple[str, ...]]:
    found = [{row.kind: row for row in it.kinds} for it in facts]
    return [
        (
            escaped(kind),
            *(
                text
                for rows in found
                for text in (
                    (
                        f"{rows[kind].requests:,}",
                        f"{rows[kind].prompt_tokens:,}",
                        _percent(rows[kind].shared_tokens, rows[kind].prompt_tokens),
                    )
                    if kind in rows
                    else ("0", "0", "-")
                )
            ),
        )
        for kind in dict.fromkeys(kind for rows in found for kind in rows)
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
