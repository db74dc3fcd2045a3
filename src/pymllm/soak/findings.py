"""The findings of campaigns: one entry for each pair of a broken law and a small program.

Many runs meet the same bug. Their programs are made small, as many of an adapter and law as somebody asks
for, and two that differ in names only are one (`pymllm.soak.program_digest`). Runs whose programs
nobody made small are one entry for each adapter and law. What an earlier merge found is known: it is told
with the version that saw it first, and only what is not known is news.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pymllm.documents.campaigns import FindingRow, FindingsDocument
from pymllm.documents.runs import read_as
from pymllm.errors import PymllmError, TraceError
from pymllm.history.files import History, load_history, write_history
from pymllm.search.runner import versions
from pymllm.search.shrinker import Finding, ShrinkTask, make_finding, run_shrink
from pymllm.soak.ledger import FILE, RunRecord
from pymllm.soak.merging import merge_ledgers
from pymllm.soak.program_digest import digest_program
from pymllm.text_file import read_json, read_text_file, write_text_file
from pymllm.work.carrying import Progress, unseen
from pymllm.work.workers import Lost, Workers

FINDINGS_FILE = "findings.json"
"""The name of the file of findings beside a merged ledger."""
PROGRAMS = "programs"
"""The folder of failing programs beside a ledger."""
SECONDS = 60.0
"""The most seconds that the shrinking of one program may take."""


@dataclass(slots=True)
class _Failing:
    """The failing runs of an adapter and a law."""

    runs: int = 0
    first: list[RunRecord] = field(default_factory=list)  # of which programs may be made small


class Findings:
    """A collection of the failing runs of a merge, in memory that does not grow with them.

    Of each adapter and law the first runs are kept, ``most`` of them, and one where none is made small.
    ``small`` has, by adapter and law, the first of them whose program was made small by `settle`, with the
    place of the program.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self.small: dict[tuple[str, str], tuple[RunRecord, Finding]] = {}
        self._of: dict[tuple[str, str], _Failing] = {}

    def add(self, record: RunRecord) -> None:
        """Add a run that broke a law; runs must come in ascending order of numbers."""
        if record.failure is None or record.failure.law is None:
            return
        failing = self._of.setdefault((record.adapter, record.failure.law), _Failing())
        failing.runs += 1
        if len(failing.first) < max(self._most, 1):
            failing.first.append(record)
        elif record.short is not None and all(it.short is None for it in failing.first):
            failing.first[-1] = record  # that of a campaign that one machine played is small already

    def adapters(self) -> set[str]:
        """Return the adapters whose programs `settle` would shrink."""
        return {adapter for adapter, _ in self._of}

    def settle(
        self,
        folders: Sequence[Path],
        output: Path | None = None,
        jobs: int = 1,
        progress: Progress = unseen,
    ) -> tuple[FindingRow, ...]:
        """Shrink programs if requested, and merge equal ones; return the findings, smallest first.

        Programs are looked for in ``folders``, and copied to ``output``. `KeyboardInterrupt` ends it.
        """
        chosen = [record for it in self._of.values() for record in it.first]
        programs = {id(record): _read(record.short, folders) for record in chosen}
        made: dict[int, Finding] = {}
        if self._most:
            played = {id(it): _read(it.file, folders) for it in chosen if programs[id(it)] is None}
            left = [it for it in chosen if played.get(id(it)) is not None]
            tasks = [(played[id(it)], it.adapter, it.failure and it.failure.law) for it in left]
            with Workers(jobs) as workers, progress("programs to make small", len(tasks)) as done:
                answers = workers.map(_make_small, tasks, done)
            if workers.interruption is not None:
                raise workers.interruption
            for record, answer in zip(left, answers, strict=True):
                if answer is not None and not isinstance(answer, Lost):
                    made[id(record)], programs[id(record)] = answer, answer.history
        rows: dict[tuple[str, str], FindingRow] = {}
        for _, failing in sorted(self._of.items()):
            small = [it for it in failing.first if programs[id(it)] is not None]
            for record in small:
                history = programs[id(record)]
                assert history is not None  # as just looked up
                row = _row_of(record, history, output)
                _put(rows, row)
                if (finding := made.get(id(record))) is not None:
                    kept = (replace(record, short=row.program), finding)
                    self.small.setdefault((record.adapter, row.law), kept)
            if failing.runs > len(small):
                first = next((it for it in failing.first if it not in small), failing.first[0])
                row = _row_of(first, None, None)
                _put(rows, replace(row, runs=failing.runs - len(small)))
        return tuple(sorted(rows.values(), key=_order))


def _make_small(task: tuple[Any, str, Any]) -> Finding | None:
    """Shrink a program; return ``None`` if it cannot be run, or does not break its law again."""
    history, adapter, law = task
    try:
        run = run_shrink(ShrinkTask(history, adapter, (law,), SECONDS))
    except PymllmError:
        return None
    if run.best is None:
        return None
    best = make_finding(run.best)
    header = replace(best.history.header, versions=versions(), note=str(best.violation))
    return dataclasses.replace(best, history=History(header, best.history.steps))


def _order(row: FindingRow) -> tuple[bool, int, str, str]:
    return row.operations is None, row.operations or 0, row.law, row.id


def _put(rows: dict[tuple[str, str], FindingRow], row: FindingRow) -> None:
    there = rows.get((row.law, row.id))
    if there is not None:
        names = tuple(sorted({*there.adapters, *row.adapters}))
        row = replace(there, adapters=names, runs=there.runs + row.runs, last_seen=row.last_seen)
    rows[row.law, row.id] = row


def _row_of(record: RunRecord, history: History | None, output: Path | None) -> FindingRow:
    assert record.failure is not None  # it is counted as one
    law = record.failure.law or ""
    digest = "" if history is None else digest_program(history)
    program = None
    if history is not None and output is not None:
        # A ledger may be anybody's, and name as a law what would be a path.
        program = f"{PROGRAMS}/{re.sub(r'[^A-Za-z0-9]+', '-', law)[:20]}-{digest}.jsonl"
        (output / PROGRAMS).mkdir(parents=True, exist_ok=True)
        write_history(history, output / program)
    return FindingRow(
        id=digest or f"not small, {record.adapter}",
        law=law,
        adapters=(record.adapter,),
        message=record.failure.message,
        operations=None if history is None else len(history),
        runs=1,
        program=program,
        first_seen=record.version,
        last_seen=record.version,
    )


def _read(name: str | None, folders: Sequence[Path]) -> History | None:
    """Read the program of a run from the first folder that has its file; paths in ledgers are not trusted."""
    for folder in folders:
        path = folder / (name or "")
        if name is None or not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            continue
        try:
            return load_history(path)
        except (TraceError, OSError):
            return None
    return None


# -- what is known -----------------------------------------------------------------------------------------


def read_baseline(path: Path) -> tuple[FindingRow, ...]:
    """Read the findings of an earlier merge from its folder, its findings file, or any ledger.

    `TraceError` and `OSError` where it is none of these.
    """
    if path.is_dir():
        path = next((it for name in (FINDINGS_FILE, FILE) if (it := path / name).exists()), path / FILE)
    if path.suffix == ".json":
        text = read_text_file(path)
        try:
            return read_as(FindingsDocument, read_json(text)).findings
        except ValueError as error:
            raise TraceError(str(path), None, f"no findings of pymllm merge: {error}") from None
    findings = Findings()
    for record in merge_ledgers([path]):
        findings.add(record)
    return findings.settle([path.parent])


def compare_findings(found: Iterable[FindingRow], known: Sequence[FindingRow]) -> tuple[FindingRow, ...]:
    """Mark new findings and date known ones; put known ones that were not seen again at the end.

    A program is news where no known one of its law is equal. Where nobody made programs small, of what is
    found or of what is known, it is news that an adapter breaks a law.
    """
    by_id = {(row.law, row.id): row for row in known}
    broken = {(adapter, row.law) for row in known for adapter in row.adapters}
    small = {(adapter, row.law) for row in known if row.operations is not None for adapter in row.adapters}
    rows = []
    for row in found:
        before = by_id.pop((row.law, row.id), None)
        told = broken if row.operations is None else broken - small
        is_known = before is not None or all((adapter, row.law) in told for adapter in row.adapters)
        first = row.first_seen if before is None else before.first_seen
        rows.append(replace(row, new=not is_known, first_seen=first))
    rows += [replace(row, new=False, runs=0, program=None) for row in by_id.values()]
    return tuple(sorted(rows, key=lambda row: (not row.new, not row.runs, *_order(row))))


def write_findings(rows: tuple[FindingRow, ...], folder: Path) -> None:
    """Write the findings beside a merged ledger."""
    text = json.dumps(FindingsDocument(findings=rows).plain(), indent=1)
    write_text_file(folder / FINDINGS_FILE, f"{text}\n")
