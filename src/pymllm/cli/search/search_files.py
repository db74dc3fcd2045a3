"""The program files of a search, beside those that other searches wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pymllm.cli import options
from pymllm.cli.store import save_program, save_text
from pymllm.history.files import History
from pymllm.report.quantities import count_of

if TYPE_CHECKING:
    from pymllm.search.results import SavedFiles, VerifyReport

_NAMED_SO = r"-([A-Z]\d+|crash\d+)-\d+(\.jsonl|-conversation\.txt)"
"""The pattern of a program file's name after the adapter's name."""
_EARLIER_NAMED = 3


def save_programs(report: VerifyReport, folder: Path) -> SavedFiles:
    """Write every program to its file, replacing files of equal names only."""
    from pymllm.search.results import SavedFiles

    files = SavedFiles()
    for adapter in report.adapters:
        name, seed = options.file_name_of(adapter.name), report.seed
        for finding in adapter.findings:
            history = _annotated(finding.history, report, str(finding.violation))
            path = save_program(history, folder / f"{name}-{finding.law}-{seed}.jsonl")
            if path is not None:
                files.programs[adapter.name, finding.law] = path
        for place, problem in enumerate(adapter.problems):
            begin = f"{name}-crash{place + 1}-{seed}"
            if problem.history is not None:
                history = _annotated(problem.history, report, problem.message)
                path = save_program(history, folder / f"{begin}.jsonl")
                if path is not None:
                    files.crashes[adapter.name, place] = path
            if problem.conversation is not None:
                path = save_text(problem.conversation.text, folder / f"{begin}-conversation.txt")
                if path is not None:
                    files.conversations[adapter.name, place] = path
    files.earlier.extend(_find_earlier(report, folder, files))
    return files


def _find_earlier(report: VerifyReport, folder: Path, files: SavedFiles) -> list[str]:
    """Return files of the same adapters from other searches in a folder, which are kept."""
    own = {*files.programs.values(), *files.crashes.values(), *files.conversations.values()}
    names = [re.escape(options.file_name_of(adapter.name)) for adapter in report.adapters]
    is_theirs = re.compile(f"({'|'.join(names)}){_NAMED_SO}").fullmatch
    found = (str(folder / path.name) for path in folder.glob("*") if is_theirs(path.name))
    return sorted(path for path in found if path not in own)


def earlier_notes(files: Sequence[str]) -> Iterator[str]:
    """Return notes on the files of other searches, which a reader could mistake for this search's."""
    if files:
        named = ", ".join(files[:_EARLIER_NAMED])
        rest = f" and {len(files) - _EARLIER_NAMED} more" if len(files) > _EARLIER_NAMED else ""
        yield f"earlier   {count_of(len(files), 'file')} of other searches in that folder: {named}{rest}"


def _annotated(history: History, report: VerifyReport, note: str) -> History:
    return History(replace(history.header, versions=report.versions, note=note), history.steps)
