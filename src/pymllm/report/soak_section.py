"""What long campaigns came to, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from pymllm.report.blocks import (
    BAD,
    GOOD,
    QUIET,
    UNKNOWN,
    Block,
    Card,
    Cell,
    Choice,
    Column,
    Fact,
    Plot,
    Section,
    Table,
    Tile,
    anchor_of,
)
from pymllm.report.loading import Run
from pymllm.report.quantities import show, show_count, show_share, show_time
from pymllm.report.search_documents import DriftRow, SoakDocument, SoakedAdapter, SoakFailureRow

__all__ = ["make_soak_section"]

_ID = "soak"
_SHARES = {
    "adapter": "the implementation behind its adapter",
    "judge": "the oracle",
    "walks": "walks from inside",
    "again": "the end of a run, parts played again",
    "driver": "choosing and writing down, and the simulated engine",
}
_VERDICTS = {"holds": ("✓ holds", GOOD), "violated": ("✗ violated", BAD), "unknown": ("? unknown", UNKNOWN)}
_DRIFTS = {"flat": GOOD, "grows": BAD}


@dataclass(frozen=True, slots=True)
class _Campaign:
    document: SoakDocument
    run: Run


def make_soak_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the campaigns; ``None`` where there is none."""
    campaigns = _campaigns(runs)
    if not campaigns:
        return None
    newest = campaigns[-1].document
    blocks: list[Block] = [_history(campaigns)]
    if newest.adapters:
        played = [it for it in newest.adapters if it.operations]
        blocks += [*([_plot(played)] if played else []), _adapters(newest)]
    cards = [
        _card(number, it, adapter, failure)
        for number, it in enumerate(campaigns, 1)
        for adapter in it.document.adapters
        for failure in adapter.failures
    ]
    found = f"{len(cards)} failures" if len(cards) != 1 else "1 failure"
    operations = sum(it.document.operations for it in campaigns)
    return Section(
        _ID,
        "Soak",
        "Long seeded campaigns: pools that fill, age and drain, every operation judged by the oracle, "
        "memory looked at between runs. A campaign is a line of the first table; below it, the newest one "
        "by implementation.",
        [*blocks, *cards],
        (Tile(show_count(operations), f"operations soaked, {found}", BAD if cards else GOOD, f"#{_ID}"),),
    )


def _campaigns(runs: Sequence[Run]) -> list[_Campaign]:
    """Return each campaign once: its ledger and the document that it printed are two files of one."""
    found: dict[tuple[int, int, float], _Campaign] = {}
    for run in runs:
        for document in run.documents:
            if isinstance(document, SoakDocument):
                key = document.runs, document.operations, round(document.cpu_seconds, 1)
                known = found.get(key)
                if known is None or not known.run.curves:
                    found[key] = _Campaign(document, run)
    return list(found.values())


def _history(campaigns: Sequence[_Campaign]) -> Table:
    columns = (
        Column("ended (UTC)", is_word=True),
        Column("machine", is_word=True),
        Column("version", is_word=True),
        Column("runs", True),
        Column("operations", True),
        Column("operations per CPU second", True),
        Column("most memory", True),
        Column("verdict"),
        Column("memory over operations"),
    )
    return Table("Campaigns", columns, tuple(map(_campaign_row, campaigns)))


def _campaign_row(it: _Campaign) -> tuple[Cell, ...]:
    document, run = it.document, it.run
    text, tone = _VERDICTS.get(document.verdict, (document.verdict, None))
    if document.interrupted:
        text += ", interrupted"
    speed = document.operations / document.cpu_seconds if document.cpu_seconds else None
    return (
        Cell(show_time(run.time), hint=run.source),
        Cell(run.machine.fingerprint if run.machine else "not recorded"),
        Cell(run.pymllm or "not recorded"),
        Cell(show_count(document.runs)),
        Cell(show_count(document.operations)),
        Cell("unknown" if speed is None else f"{speed:,.0f}"),
        Cell(show(document.peak_bytes, "bytes")),
        Cell(text, tone),
        _drift_cell(document.drifts),
    )


def _drift_cell(drifts: Sequence[DriftRow]) -> Cell:
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
    traces = tuple(
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [it.shares.get(name, 0.0) * 100 for it in adapters],
            "hovertemplate": "%{y}: %{x:.1f} %<extra>" + what + "</extra>",
        }
        for name, what in _SHARES.items()
    )
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "share of the processor's time, %"}, "range": [0, 100.5]},
        "yaxis": {"automargin": True},
        "height": 150 + 26 * len(names),
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    }
    return Plot(
        "plot-soak",
        "What took the processor's time, newest campaign",
        "For each implementation, shares of the processor's time: "
        + "; ".join(f"{name}: {what}" for name, what in _SHARES.items())
        + ".",
        (Choice("all", traces, layout),),
    )


def _adapters(document: SoakDocument) -> Table:
    columns = (
        Column("implementation"),
        Column("runs", True),
        Column("operations", True),
        Column("operations per CPU second", True),
        *(Column(name, True, hint=what) for name, what in _SHARES.items()),
        Column("laws tested", True),
        Column("situations", True),
        Column("runs that failed", True),
    )
    return Table("Newest campaign, by implementation", columns, tuple(map(_adapter_row, document.adapters)))


def _adapter_row(it: SoakedAdapter) -> tuple[Cell, ...]:
    failed = sum(failure.runs for failure in it.failures)
    tested = sum(count > 0 for count in it.tests.values())
    expected = len(it.situations) + len(it.missing_situations)
    return (
        Cell(it.name),
        Cell(show_count(it.runs)),
        Cell(show_count(it.operations)),
        *_speed_cells(it),
        Cell(
            f"{tested} of {tested + len(it.untested_laws)}",
            UNKNOWN if it.untested_laws else GOOD,
            hint=", ".join(it.untested_laws) or None,
        ),
        Cell(
            f"{len(it.situations)} of {expected}",
            UNKNOWN if it.missing_situations else GOOD,
            hint="; ".join(it.missing_situations) or None,
        ),
        Cell(show_count(failed), BAD if failed else GOOD) if it.runs else Cell("none ran", UNKNOWN),
    )


def _speed_cells(it: SoakedAdapter) -> tuple[Cell, ...]:
    if not it.operations:
        return tuple(Cell("not measured", QUIET) for _ in range(1 + len(_SHARES)))
    shares = (Cell(show_share(it.shares.get(name, 0.0))) for name in _SHARES)
    return Cell(f"{it.operations_per_cpu_second:,.0f}"), *shares


def _card(number: int, it: _Campaign, adapter: SoakedAdapter, row: SoakFailureRow) -> Card:
    failure = row.failure
    file = row.short or row.file
    lines = it.run.programs.get(file or "", ())
    config = ", ".join(f"{key} {value}" for key, value in row.config.items()) or "no configuration"
    facts = [Fact("looked at", failure.message)]
    for name, value in (("expected", failure.expected), ("observed", failure.observed)):
        if value is not None:
            facts.append(Fact(name, value))
    facts.append(Fact("in", f"{row.runs} runs; first with seed {row.seed} in {row.machine} ({config})"))
    if file is not None:
        facts.append(Fact("program", file, is_code=True))
        facts.append(
            Fact("again", f"pymllm rerun {quote(file)} --adapter {quote(adapter.name)}", is_code=True)
        )
    what = f"{failure.law} violated" if failure.law else "problem with"
    return Card(
        anchor_of("soak", str(number), adapter.name, failure.law or "problem", str(row.seed)),
        f"{what} {'by ' if failure.law else ''}{adapter.name} in a soak",
        BAD if failure.law else UNKNOWN,
        tuple(facts),
        file=(file or "").rsplit("/", 1)[-1] if lines else "",
        lines=lines,
    )
