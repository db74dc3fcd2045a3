"""The files of a verification: each program that breaks a law, and each that a search came to grief with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pymllm.cli.conversation_file import save_conversation
from pymllm.cli.file_names import file_name_of
from pymllm.cli.program import complain
from pymllm.conformance.results import AdapterResult, VerifyReport
from pymllm.history.files import History, write_history

__all__ = ["SavedFiles", "save_programs"]


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """Where programs were written.

    Parameters
    ----------
    programs : dict
        File by adapter and law; what could not be written is missing.
    crashes : dict
        File by adapter and place among its problems.
    conversations : dict
        File of the last lines that a program said, by the same.
    """

    programs: dict[tuple[str, str], str] = field(default_factory=dict)
    crashes: dict[tuple[str, int], str] = field(default_factory=dict)
    conversations: dict[tuple[str, int], str] = field(default_factory=dict)


def save_programs(report: VerifyReport, folder: Path) -> SavedFiles:
    """Write every program that there is to look at, and make the folder if there is one.

    Parameters
    ----------
    report : VerifyReport
        Of the verification.
    folder : Path
        Files of the same name in it are replaced.

    Returns
    -------
    SavedFiles
        What could be written. A file that cannot be is complained of: the result matters more.
    """
    files = SavedFiles()
    for adapter in report.adapters:
        for finding in adapter.findings:
            path = folder / f"{file_name_of(adapter.name)}-{finding.law}-{report.seed}.jsonl"
            if _write(_annotate(finding.history, report, str(finding.violation)), path):
                files.programs[adapter.name, finding.law] = str(path)
        for place, history, message in _crashed(adapter):
            path = folder / f"{file_name_of(adapter.name)}-crash{place + 1}-{report.seed}.jsonl"
            if _write(_annotate(history, report, message), path):
                files.crashes[adapter.name, place] = str(path)
        for place, text in _ended(adapter):
            name = f"{file_name_of(adapter.name)}-crash{place + 1}-{report.seed}-conversation.txt"
            saved = save_conversation(text, folder / name)
            if saved is not None:
                files.conversations[adapter.name, place] = saved
    return files


def _crashed(adapter: AdapterResult) -> Iterator[tuple[int, History, str]]:
    for place, problem in enumerate(adapter.problems):
        if problem.history is not None:
            yield place, problem.history, problem.message


def _ended(adapter: AdapterResult) -> Iterator[tuple[int, str]]:
    for place, problem in enumerate(adapter.problems):
        if problem.conversation is not None:
            yield place, problem.conversation.text


def _annotate(history: History, report: VerifyReport, note: str) -> History:
    return History(replace(history.header, versions=report.versions, note=note), history.steps)


def _write(history: History, path: Path) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_history(history, path)
    except OSError as error:
        complain(f"{path}: cannot be written: {error.strerror or error}")
        return False
    return True
