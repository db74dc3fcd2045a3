"""The report of a soak on a failure: the failure, its place, and the commands that show it again."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from pymllm.cli.tables import fact_lines, program_lines
from pymllm.oracle.laws import find_law
from pymllm.report.findings import mistake_facts, run_facts, violation_facts
from pymllm.report.quantities import count_of
from pymllm.search.program import write_program
from pymllm.soak.ledger import CampaignHeader, RunRecord
from pymllm.soak.results import SoakReport
from pymllm.soak.schedule import is_run_of
from pymllm.soak.totals import AdapterTotals

_PROGRAM_LINES_MAX = 40
_UNFINISHED = "    perhaps not the smallest: time was up (pymllm shrink continues from it)"


def failure_lines(report: SoakReport, adapter: AdapterTotals) -> Iterator[str]:
    """Say how runs of an adapter failed, law by law, and how to see it again."""
    for law, failure in adapter.failures.items():
        record = failure.first
        runs = count_of(failure.runs, "run")
        if law:
            yield from ("", f"{law}  VIOLATED by {adapter.name} in {runs}: {_sentence(law)}")
        else:
            yield from ("", f"{adapter.name}  ended with an error in {runs}")
        yield from _explain(report, adapter, law, record)


def _sentence(law: str) -> str:
    """Return the sentence of a law; a ledger may name a law that this version does not know."""
    try:
        return find_law(law).sentence
    except ValueError:
        return "a law that this version does not know"


def _explain(report: SoakReport, adapter: AdapterTotals, law: str, record: RunRecord) -> Iterator[str]:
    finding = (report.findings or {}).get((adapter.name, law))
    row, header, mistakes = adapter.failures[law].row(), _header_of(report, record), tuple[str, ...]()
    if finding is not None:
        it, history, mistakes = finding.violation, finding.history, finding.mistakes
        where = history.header.config, finding.step, len(history)
        facts = violation_facts(it.message, it.expected, it.observed, *where)
    else:
        met, length = row.failure, max(record.operations, row.failure.step)
        where = record.config, met.step, length
        facts = violation_facts(met.message, met.expected, met.observed, *where)
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
    yield from fact_lines([*facts, *mistake_facts(mistakes), *found])
    if finding is not None:
        yield f"    program{_UNFINISHED if finding.is_unfinished else ''}"
        yield from program_lines("\n".join(_cut(write_program(finding.history).splitlines())))


def _cut(lines: list[str]) -> Iterator[str]:
    """Yield the first lines of a program, and the number of lines left out."""
    yield from lines[:_PROGRAM_LINES_MAX]
    if (rest := len(lines) - _PROGRAM_LINES_MAX) > 0:
        yield f"... and {count_of(rest, 'line')} more"


def _header_of(report: SoakReport, record: RunRecord) -> CampaignHeader:
    """Return the header of the campaign that a run is of: its seed follows from that."""
    found = (it for it in report.headers if is_run_of(it, record.number, record.seed))
    return next(found, report.headers[0])


def _place_of(report: SoakReport, file: str) -> str:
    """Return the path of a program: those of merged campaigns stay where they are."""
    folders = [folder for folder in (report.folder, *report.parts) if folder is not None]
    found = (folder / file for folder in folders if (folder / file).exists())
    return str(next(found, folders[0] / file if folders else file))
