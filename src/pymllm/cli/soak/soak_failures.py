"""What a soak says of a failure: what was met, where, and the commands that show it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import quote

from pymllm.cli.tables import explain, mistake_lines, program_lines
from pymllm.oracle.laws import find_law
from pymllm.report.quantities import count_of
from pymllm.search.program import write_program
from pymllm.soak.ledger import CampaignHeader, RunRecord
from pymllm.soak.results import SoakReport
from pymllm.soak.schedule import is_run_of
from pymllm.soak.totals import AdapterTotals

_PROGRAM_LINES_MAX = 40
_UNFINISHED = "    perhaps not the smallest: time was up (pymllm shrink continues from it)"


def audit_rate(audit: int) -> str:
    """Write how often an implementation is walked, as ``--audit`` takes it."""
    return {0: "off", 1: "every"}.get(audit, f"1/{audit}")


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
    """Say what a law demands; a ledger may be of another version, or anybody's."""
    try:
        return find_law(law).sentence
    except ValueError:
        return "a law that this version does not know"


def _explain(report: SoakReport, adapter: AdapterTotals, law: str, record: RunRecord) -> Iterator[str]:
    assert record.failure is not None  # it is counted as one
    finding = (report.findings or {}).get((adapter.name, law))
    if finding is not None:
        it, history = finding.violation, finding.history
        where = history.header.config, finding.step, len(history)
        yield from explain(it.message, it.expected, it.observed, *where)
        yield from mistake_lines(finding.mistakes)
    else:
        met, length = record.failure, max(record.operations, record.failure.step)
        yield from explain(met.message, met.expected, met.observed, record.config, met.step, length)
    config = json.dumps(record.config)
    yield f"    found      {record.version}, {config}, seed {record.seed}, step {record.failure.step}"
    command = f"pymllm repeat {record.seed} --adapter {quote(adapter.name)} --config {quote(config)}"
    rate = audit_rate(_header_of(report, record).audit)
    rest = f"--operations {record.limit} --machine {quote(record.machine)} --audit {rate}"
    rest += " --deviations FILE" if _header_of(report, record).deviations else ""
    yield f"    the run    {command} {rest}"
    for word, file in (("again", record.short), ("as played", record.file)):
        if file is not None:
            path = _place_of(report, file)
            # What an engine does wrong, its operations do not show, run again: the acts in the file do.
            command = "rerun" if finding is None or finding.is_rerun else "shrink"
            yield f"    {word:11}pymllm {command} {quote(path)} --adapter {quote(adapter.name)}"
    if finding is not None:
        yield f"    program{_UNFINISHED if finding.is_unfinished else ''}"
        yield from program_lines("\n".join(_cut(write_program(finding.history).splitlines())))


def _cut(lines: list[str]) -> Iterator[str]:
    """Leave out what is too long to be read."""
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
