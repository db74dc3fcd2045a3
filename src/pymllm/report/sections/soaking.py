"""The section that a terminal shows for a campaign: failures, gaps, tables, and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymllm.documents.campaigns import CampaignRow, SoakDocument
from pymllm.report.blocks import BAD, BRIEF, ENDING, UNKNOWN, VERBOSE, Part, Text
from pymllm.report.findings import audit_rate, known_texts, undone_steps
from pymllm.report.loading import Run
from pymllm.report.quantities import count_of, show_duration
from pymllm.report.sections.campaigns import campaign_tables, failure_cards

_MOST = 20
"""The greatest number of lines of a list."""
_MOST_FINDINGS = 50


def make_campaign_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of one campaign, or of several merged ones."""
    (it,) = runs[0].documents
    yield from map(Text, _settings(it))
    yield from known_texts(it.deviations)
    yield from failure_cards([(it, runs[0])], {})
    for name, reason in it.refused.items():
        yield Text(f"{name} could not be examined: {reason}", UNKNOWN)
    yield from _given_up(it)
    for folder in it.without_ledger:
        yield Text(f"{folder}: no ledger; what it was to have counts as missing", UNKNOWN)
    yield from (Text(_missing(it, row), UNKNOWN) for row in it.campaigns if row.missing_runs)
    for adapter in it.adapters:
        for limit in adapter.limits:
            steps = undone_steps(limit.not_done, limit.done)
            run = f"run {limit.seed} of {limit.limit:,} operations of the {limit.machine}"
            yield Text(f"{adapter.name} {limit.operation}: {steps} ({limit.reason}); {run} has one", UNKNOWN)
    if it.conflicts:
        yield Text(f"the same run gave other results (X3): {count_of(_differing(it), 'run')}", BAD)
        yield from map(Text, _first(it.conflicts, _MOST, "    "))
    if it.has_baseline:
        yield from map(Text, _first([*_findings(it)], _MOST_FINDINGS))
    yield from _goals(it)
    if it.adapters:
        yield from campaign_tables(it)
        yield Text("--verbose explains the words of these tables", only=BRIEF)
    yield Text(f"{it.verdict.value}: {'; '.join(_sum_up(it))}", ENDING)


def _settings(it: SoakDocument) -> Iterator[str]:
    for row in it.campaigns:
        yield "  ".join(f"{name} {version}" for name, version in row.versions.items())
        amount = "" if row.operations is None else f", {row.operations:,} operations"
        amount += "" if row.shard is None else f", shard {row.shard}"
        yield f"source {row.source}, seed {row.seed}{amount}, audit {audit_rate(row.audit)}"
    if it.seconds:
        processes = count_of(it.jobs, "process", "processes")
        yield f"{show_duration(it.seconds)} in {processes}, ledger in {it.folder}"
    yield ""


def _given_up(it: SoakDocument) -> Iterator[Text]:
    if it.given_up:
        yield Text(f"given up: {count_of(len(it.given_up), 'shard')}, whose runs are missing", UNKNOWN)
    lines = [f"{shard:10} {reason}" for shard, reason in it.given_up.items()]
    yield from map(Text, _first(lines, _MOST, "    "))


def _first(lines: Sequence[str], most: int, indent: str = "") -> Iterator[str]:
    yield from (f"{indent}{line}" for line in lines[:most])
    if len(lines) > most:
        yield f"{indent}... and {len(lines) - most:,} more; --json lists all"


def _missing(it: SoakDocument, row: CampaignRow) -> str:
    same = {other.source for other in it.campaigns if other.seed == row.seed}
    source = f" of {row.source}" if len(same) > 1 else ""
    ranges = [f"{first}-{last}" if last > first else f"{first}" for first, last in row.missing]
    is_all = row.missing_runs == sum(last - first + 1 for first, last in row.missing)
    shown = ", ".join(ranges[:_MOST]) + ("" if is_all and len(ranges) <= _MOST else ", ...")
    return f"seed {row.seed}{source}: {row.missing_runs:,} of {row.runs:,} runs are missing: {shown}"


def _differing(it: SoakDocument) -> int:
    """Return a text that counts the runs with different results when repeated."""
    met = sum(row.runs for adapter in it.adapters for row in adapter.failures if row.failure.law == "X3")
    return max(met, len(it.conflicts))


def _findings(it: SoakDocument) -> Iterator[str]:
    """Yield findings by kind, new kinds first, after a merge that compared them with known ones."""
    for row in it.findings:
        word = "NEW" if row.new else "known" if row.runs else "not seen"
        size = "not made small"
        if row.operations is not None:
            size = f"program of {count_of(row.operations, 'step')}"
        since = f"since {row.first_seen}" if row.runs else f"last seen in {row.last_seen}"
        runs = f", {count_of(row.runs, 'run')}" if row.runs else ""
        yield f"{word:8}  {row.law} of {', '.join(row.adapters)}, {size}{runs}, {since}: {row.message}"


def _goals(it: SoakDocument) -> Iterator[Text]:
    for adapter in it.adapters:
        if missing := adapter.missing_goals:
            told = f"{adapter.name}: {count_of(len(missing), 'coverage goal')}"
            named = "; ".join(missing)
            if it.strict:
                yield Text(f"{told} NEVER REACHED: {named}", BAD)
            else:
                yield Text(f"{told} not reached: {named}", only=VERBOSE)
                yield Text(f"{told} not reached; --verbose names them", only=BRIEF)


def _sum_up(it: SoakDocument) -> Iterator[str]:
    """Return a summary of how the campaign ended."""
    failures = [row for adapter in it.adapters for row in adapter.failures]
    tested = {law for adapter in it.adapters for law in adapter.tests}
    broken = {row.failure.law for row in failures if row.failure.law}
    met = sum(bool(row.programs) for row in it.deviations)
    but = f" but for {count_of(met, 'known deviation')}" if met else ""
    reached = sum(len(adapter.goals) for adapter in it.adapters)
    missing = sum(len(adapter.missing_goals) for adapter in it.adapters)
    yield f"{it.operations:,} operations in {it.runs:,} runs"
    yield f"{show_duration(it.cpu_seconds)} of CPU time"
    yield f"{len(tested)} laws tested, {len(broken)} broken{but}"
    yield f"{reached} of {reached + missing} coverage goals reached, counted for each adapter"
    if problems := sum(row.failure.law is None for row in failures) + len(it.refused):
        yield f"{count_of(problems, 'error')} of adapters"
    if it.given_up:
        yield f"{count_of(len(it.given_up), 'shard')} given up"
    if it.conflicts:
        yield f"{count_of(_differing(it), 'run')} that differed when repeated"
    if lacking := sum(row.missing_runs for row in it.campaigns):
        yield f"{count_of(lacking, 'run')} missing"
    if it.has_baseline:
        yield f"{count_of(sum(row.new for row in it.findings), 'finding')} not in the baseline"
    if it.strict:
        yield from _strictly(it, missing)


def _strictly(it: SoakDocument, missing: int) -> Iterator[str]:
    """Return the reasons other than laws for which ``--strict`` fails a campaign."""
    if missing:
        yield f"failed by --strict: {count_of(missing, 'coverage goal')} never reached"
    if gone := sum(row.status == "gone" for row in it.deviations):
        yield f"failed by --strict: {count_of(gone, 'known deviation')} met by no program"
    if growing := [row.measure for row in it.drifts if row.verdict == "grows"]:
        yield f"failed by --strict: memory grows ({', '.join(growing)})"
