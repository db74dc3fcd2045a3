"""What long campaigns came to, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from pymllm.conformance.documents import DriftRow, FailureRow, SoakDocument, SoakedAdapter
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import Block, Card, Fact, Section, Tile, anchor_of
from pymllm.report.loading import Run, documents_of
from pymllm.report.picture import picture_of
from pymllm.report.plots import Choice, Plot, legend
from pymllm.report.quantities import show, show_count, show_share, show_time
from pymllm.report.sections.laws import config_words, seen_facts
from pymllm.report.tables import BAD, GOOD, QUIET, UNKNOWN, Cell, Column, Table, make_table, number

_SHARES = {
    "adapter": "the implementation behind its adapter",
    "judge": "the oracle",
    "walks": "walks from inside",
    "again": "the end of a run, parts played again",
    "driver": "choosing and writing down, and the simulated engine",
}
_VERDICTS = {
    Verdict.HOLDS: ("✓ holds", GOOD),
    Verdict.VIOLATED: ("✗ violated", BAD),
    Verdict.UNKNOWN: ("? unknown", UNKNOWN),
}
_DRIFTS = {"flat": GOOD, "grows": BAD}

_Campaign = tuple[SoakDocument, Run]


def make_soak_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the campaigns; ``None`` where there is none."""
    campaigns = _campaigns(runs)
    if not campaigns:
        return None
    newest = campaigns[-1][0]
    blocks: list[Block] = [_history(campaigns)]
    if played := [it for it in newest.adapters if it.operations]:
        blocks.append(_plot(played))
    if newest.adapters:
        blocks.append(_adapters(newest))
    cards = [
        _card(place, run, adapter, failure)
        for place, (document, run) in enumerate(campaigns, 1)
        for adapter in document.adapters
        for failure in adapter.failures
    ]
    found = f"{len(cards)} failures" if len(cards) != 1 else "1 failure"
    operations = show_count(sum(document.operations for document, _ in campaigns))
    return Section(
        "soak",
        "Soak",
        "Long seeded campaigns: pools that fill, age and drain, every operation judged by the oracle, "
        "memory looked at between runs. A campaign is a line of the first table; below it, the newest one "
        "by implementation.",
        [*blocks, *cards],
        [Tile(operations, f"operations soaked, {found}", BAD if cards else GOOD)],
    )


def _campaigns(runs: Sequence[Run]) -> list[_Campaign]:
    """Return each campaign once: its ledger and the document that it printed are two files of one."""
    found: dict[tuple[int, int, float], _Campaign] = {}
    for document, run in documents_of(runs, SoakDocument):
        key = document.runs, document.operations, round(document.cpu_seconds, 1)
        if key not in found or not found[key][1].curves:
            found[key] = document, run
    return list(found.values())


def _history(campaigns: Sequence[_Campaign]) -> Table:
    columns = [
        Column("ended (UTC)", lambda it: Cell(show_time(it[1].time), hint=it[1].source), is_word=True),
        Column(
            "machine", lambda it: it[1].machine.fingerprint if it[1].machine else "not recorded", is_word=True
        ),
        Column("version", lambda it: it[1].pymllm or "not recorded", is_word=True),
        number("runs", lambda it: show_count(it[0].runs)),
        number("operations", lambda it: show_count(it[0].operations)),
        number("operations per CPU second", lambda it: _speed(it[0])),
        number("most memory", lambda it: show(it[0].peak_bytes, "bytes")),
        Column("verdict", lambda it: _verdict(it[0])),
        Column("memory over operations", lambda it: _drift(it[0].drifts)),
    ]
    return make_table("Campaigns", campaigns, columns)


def _speed(it: SoakDocument) -> str:
    return f"{it.operations / it.cpu_seconds:,.0f}" if it.cpu_seconds else "unknown"


def _verdict(it: SoakDocument) -> Cell:
    text, tone = _VERDICTS.get(it.verdict, (it.verdict.value, None))
    return Cell(f"{text}, interrupted" if it.interrupted else text, tone)


def _drift(drifts: Sequence[DriftRow]) -> Cell:
    """Sum the measures up: one that grows outweighs, all must be flat to be flat."""
    verdicts = {it.verdict for it in drifts}
    verdict = "grows" if "grows" in verdicts else "flat" if verdicts == {"flat"} else "too short to tell"
    hint = "; ".join(f"{it.measure}: {_slope(it)}, {it.verdict}" for it in drifts)
    return Cell(verdict, _DRIFTS.get(verdict, UNKNOWN), hint=hint or None)


def _slope(it: DriftRow) -> str:
    return "unknown" if it.slope is None else f"{show(it.slope, it.unit)} per million operations"


def _plot(played: Sequence[SoakedAdapter]) -> Plot:
    adapters = sorted(played, key=lambda it: it.operations_per_cpu_second)
    names = [it.name for it in adapters]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [it.shares.get(name, 0.0) * 100 for it in adapters],
            "hovertemplate": "%{y}: %{x:.1f} %<extra>" + what + "</extra>",
        }
        for name, what in _SHARES.items()
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "share of the processor's time, %"}, "range": [0, 100.5]},
        "yaxis": {"automargin": True},
        "height": 150 + 26 * len(names),
        "legend": {**legend(above=True)["legend"], "traceorder": "normal"},
    }
    shares = "; ".join(f"{name}: {what}" for name, what in _SHARES.items())
    return Plot(
        "plot-soak",
        "What took the processor's time, newest campaign",
        f"For each implementation, shares of the processor's time: {shares}.",
        [Choice("all", traces, layout)],
    )


def _adapters(document: SoakDocument) -> Table:
    columns = [
        Column("implementation", lambda it: it.name),
        number("runs", lambda it: show_count(it.runs)),
        number("operations", lambda it: show_count(it.operations)),
        number("operations per CPU second", lambda it: _measured(it, f"{it.operations_per_cpu_second:,.0f}")),
        *(_share_column(name, what) for name, what in _SHARES.items()),
        number(
            "laws tested",
            lambda it: _reached(sum(count > 0 for count in it.tests.values()), it.untested_laws),
        ),
        number("situations", lambda it: _reached(len(it.situations), it.missing_situations, "; ")),
        number("runs that failed", _failed),
    ]
    return make_table("Newest campaign, by implementation", document.adapters, columns)


def _share_column(name: str, what: str) -> Column:
    return number(name, lambda it: _measured(it, show_share(it.shares.get(name, 0.0))), what)


def _measured(it: SoakedAdapter, text: str) -> Cell:
    return Cell(text) if it.operations else Cell("not measured", QUIET)


def _reached(count: int, missing: Sequence[str], between: str = ", ") -> Cell:
    text = f"{count} of {count + len(missing)}"
    return Cell(text, UNKNOWN, hint=between.join(missing)) if missing else Cell(text, GOOD)


def _failed(it: SoakedAdapter) -> Cell:
    failed = sum(failure.runs for failure in it.failures)
    return Cell(show_count(failed), BAD if failed else GOOD) if it.runs else Cell("none ran", UNKNOWN)


def _card(place: int, run: Run, adapter: SoakedAdapter, row: FailureRow) -> Card:
    failure = row.failure
    file = row.short or row.file
    lines = run.programs.get(file or "", ())
    where = f"seed {row.seed} in {row.machine} ({config_words(row.config)})"
    facts = [
        *seen_facts(failure.message, failure.expected, failure.observed),
        Fact("in", f"{row.runs} runs; first with {where}"),
    ]
    if file is not None:
        again = f"pymllm rerun {quote(file)} --adapter {quote(adapter.name)}"
        facts += [Fact("program", file, is_code=True), Fact("again", again, is_code=True)]
    what = f"{failure.law} violated by" if failure.law else "problem with"
    return Card(
        anchor_of("soak", str(place), adapter.name, failure.law or "problem", str(row.seed)),
        f"{what} {adapter.name} in a soak",
        BAD if failure.law else UNKNOWN,
        facts,
        file=(file or "").rsplit("/", 1)[-1] if lines else "",
        lines=lines,
        picture=picture_of(lines),
    )
