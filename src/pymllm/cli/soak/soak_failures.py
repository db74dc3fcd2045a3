"""The report on a failure in a campaign: the failure, its place, and commands to reproduce it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from pymllm.report.blocks import Card
from pymllm.report.findings import mistake_facts, run_facts, violation_facts
from pymllm.report.loading import Run
from pymllm.report.quantities import count_of
from pymllm.report.sections.campaigns import failure_card
from pymllm.search.program import write_program
from pymllm.soak.ledger import CampaignHeader, RunRecord
from pymllm.soak.results import SoakReport
from pymllm.soak.schedule import is_run_of
from pymllm.soak.totals import AdapterTotals

_FILES = ("short", "file")
_PROGRAM_LINES_MAX = 40
_UNFINISHED = "perhaps not the smallest: time was up (pymllm shrink continues from it)"


def failure_cards_of(report: SoakReport) -> dict[str, Card]:
    """Return the card of each failure by id, with its program and details missing in a document."""
    found = (_card(report, it, law) for it in report.totals.adapters.values() for law in it.failures)
    return {card.id: card for card in found}


def _card(report: SoakReport, adapter: AdapterTotals, law: str) -> Card:
    failure = adapter.failures[law]
    record, row = failure.first, failure.row()
    finding = (report.findings or {}).get((adapter.name, law))
    header = _header_of(report, record)
    files = {
        name: file and _place_of(report, file) for name, file in (("short", row.short), ("file", row.file))
    }
    found = run_facts(
        adapter.name,
        structs.replace(row, **files),
        header.audit,
        is_rerun=finding is None or finding.is_rerun,
        has_deviations=bool(header.deviations),
    )
    if finding is None:
        it, length = row.failure, max(record.operations, row.failure.step)
        facts = violation_facts(it.message, it.expected, it.observed, record.config, it.step, length)
        return failure_card(1, adapter.name, row, [*facts, *found])
    broken, history = finding.violation, finding.history
    where = history.header.config, finding.step, len(history)
    facts = violation_facts(broken.message, broken.expected, broken.observed, *where)
    card = failure_card(
        1, adapter.name, row, [*facts, *mistake_facts(finding.mistakes), *found], Run("", "", "", "")
    )
    program = "\n".join(_cut(write_program(history).splitlines()))
    return replace(card, program=program, note=_UNFINISHED if finding.is_unfinished else "")


def _cut(lines: list[str]) -> Iterator[str]:
    """Yield the first lines of a program, and the number of lines left out."""
    yield from lines[:_PROGRAM_LINES_MAX]
    if (rest := len(lines) - _PROGRAM_LINES_MAX) > 0:
        yield f"... and {count_of(rest, 'line')} more"


def _header_of(report: SoakReport, record: RunRecord) -> CampaignHeader:
    """Return the header of a run's campaign, which determines its seed."""
    found = (it for it in report.headers if is_run_of(it, record.number, record.seed))
    return next(found, report.headers[0])


def _place_of(report: SoakReport, file: str) -> str:
    """Return the path of a program; programs of merged campaigns stay in their folders."""
    folders = [folder for folder in (report.folder, *report.parts) if folder is not None]
    found = (folder / file for folder in folders if (folder / file).exists())
    return str(next(found, folders[0] / file if folders else file))
