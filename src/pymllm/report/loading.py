"""The loading of runs from files and folders into `Run` objects, for every format of a run."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pymllm.errors import TraceError
from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.report.documents import (
    AnyDocument,
    GpuBenchmarksDocument,
    is_benchmark_file,
    machine_of,
    machine_of_gpu,
    read_benchmark_file,
    read_document,
    read_ledger_file,
    time_of,
    utc,
)
from pymllm.report.program_files import files_of, open_regular, read_programs
from pymllm.report.quantities import count_of, show_time
from pymllm.report.records import Curve, Document, Figure, Histogram, Machine, Program, Record, RunHeader
from pymllm.report.store import SUFFIX, read_run
from pymllm.text_file import NotJSONError, read_json, read_text_file

_SUFFIXES = (".json", ".jsonl")
_SNIFFED = 65_536
_RUN = re.compile(rb'"format"\s*:\s*"pymllm-(run|soak)"|"schema"\s*:\s*"pymllm\.|"machine_info"')
_PROGRAM = re.compile(rb'"format"\s*:\s*"pymllm-history"')
_Made = TypeVar("_Made")
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Run:
    """A run from any kind of file; a fact that was not recorded is ``None``."""

    source: str  # its file
    identity: str  # digest of its contents
    kind: str
    time: str  # when it ended, in UTC
    machine: Machine | None = None
    pymllm: str | None = None
    commit: str | None = None
    modified: bool = False
    command: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    time_is_of_file: bool = False  # whether that is only when its file was last written
    documents: tuple[AnyDocument, ...] = ()
    figures: tuple[Figure, ...] = ()  # with the header's code where they have none of their own
    curves: tuple[Curve, ...] = ()
    histograms: tuple[Histogram, ...] = ()  # as the figures
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # lines by name of file
    unread: tuple[str, ...] = ()  # what of it was left out, and why

    @property
    def commit_words(self) -> str | None:
        """The commit, shortened, with a mark if tracked files differed from it."""
        return self.commit and f"{self.commit[:12]}{', modified' if self.modified else ''}"

    @property
    def hint(self) -> str:
        """The time and machine of the run, as a hint."""
        return f"{show_time(self.time)} UTC, {self.source}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file with the form or name of a run that could not be read."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedRuns:
    """The loaded runs in order of time, each once, with the number of copies that were ignored."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...] = ()
    copies: int = 0


def documents_of(runs: Iterable[Run], kind: type[_Made]) -> Iterator[tuple[_Made, Run]]:
    """Yield the documents of a kind, each with its run, in the order of the runs."""
    for run in runs:
        for document in run.documents:
            if isinstance(document, kind):
                yield document, run


def newest_document(runs: Sequence[Run], kind: type[_Made]) -> _Made | None:
    """Return the newest document of a kind; ``None`` where there is none."""
    return next((document for document, _ in documents_of(reversed(runs), kind)), None)


def grouped(items: Iterable[_Made], key: Callable[[_Made], _Key]) -> dict[_Key, list[_Made]]:
    """Return items grouped by a key, in the order of first appearance."""
    groups: dict[_Key, list[_Made]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def load_runs(paths: Iterable[Path]) -> LoadedRuns:
    """Load every run from files, which must be runs, and from folders, which are searched recursively.

    No link that leads out of a folder is followed. `TraceError` where a file that was named is no run, or a
    folder has none; `OSError` where one that was named cannot be read.
    """
    runs: dict[str, Run] = {}
    skipped: list[Skipped] = []
    copies = 0
    for path in paths:
        found = False
        for file in _files_of(path):
            found = True  # also where it turns out to be unreadable, which is told
            if isinstance(file, Skipped):
                skipped.append(file)
                continue
            try:
                run = _read_file(file)
            except (TraceError, OSError) as error:
                if file is path:
                    raise
                reason = error.message if isinstance(error, TraceError) else str(error.strerror or error)
                skipped.append(Skipped(str(file), reason))
                continue
            copies += run.identity in runs
            runs.setdefault(run.identity, run)
        if not found:
            why = "no run in this folder; pymllm verify --store FOLDER puts one there"
            raise TraceError(str(path), None, why)
    ordered = sorted(runs.values(), key=lambda run: (run.time, run.source))
    return LoadedRuns(tuple(ordered), tuple(skipped), copies)


# -- what lies in a folder -----------------------------------------------------------------------------------


def _files_of(path: Path) -> Iterator[Path | Skipped]:
    """Yield the files of runs, and the files to skip; a link out of the folder is never opened."""
    if not path.is_dir():
        if path.exists() and not path.is_file():  # who opens a pipe waits for its writer
            raise TraceError(str(path), None, "is no regular file, and only those are read; copy it into one")
        yield path
        return
    root = os.path.realpath(path)
    unlisted: list[OSError] = []
    entries = [
        Path(folder, name)
        for folder, folders, files in os.walk(path, onerror=unlisted.append)
        for name in (*folders, *files)
    ]
    for error in unlisted:
        if error.filename == str(path):
            raise error
        yield Skipped(str(error.filename), f"its files cannot be listed: {error.strerror}")
    for entry in sorted(entries):
        found = _judge_entry(entry, root)
        if found is not None:
            yield found


def _judge_entry(entry: Path, root: str) -> Path | Skipped | None:
    """Return a file that looks like a run, or the reason to skip it; ``None`` for other entries."""
    is_called_run = entry.name.endswith(SUFFIX)
    may_be_run = entry.suffix in _SUFFIXES
    if not may_be_run and not entry.is_symlink():
        return None
    try:
        real = os.path.realpath(entry, strict=True)
        mode = os.stat(real).st_mode
    except OSError as error:
        is_told = is_called_run or (may_be_run and isinstance(error, PermissionError))
        return Skipped(str(entry), str(error.strerror)) if is_told else None
    if not Path(real).is_relative_to(root):
        is_told = may_be_run or stat.S_ISDIR(mode)
        why = "is a link to a file outside of this folder; to read that file, name it"
        return Skipped(str(entry), why) if is_told else None
    if not stat.S_ISREG(mode):
        return Skipped(str(entry), "is no regular file") if is_called_run else None
    return entry if is_called_run or (may_be_run and _looks_like_a_run(real)) else None


def is_run_or_program(path: Path) -> bool:
    """Tell whether a file is a program or an input of a report, which must not be overwritten."""
    try:
        with open_regular(os.path.realpath(path)) as opened:
            begin = opened.read(_SNIFFED).lstrip()
    except OSError:
        return False
    return begin.startswith(b"{") and (_RUN.search(begin) or _PROGRAM.search(begin)) is not None


def _looks_like_a_run(file: str) -> bool:
    """Tell whether a file looks like a run, by its first bytes."""
    try:
        with open_regular(file) as opened:
            return _RUN.search(opened.read(_SNIFFED)) is not None
    except OSError:
        return True  # so that it is read, and found to be unreadable with the reason


# -- what a file is ------------------------------------------------------------------------------------------


def _read_file(path: Path) -> Run:
    text = read_text_file(path, errors="replace")
    try:
        first = read_json(text.split("\n", 1)[0])
    except ValueError:
        first = None
    first = first if isinstance(first, dict) else {}
    form = first.get("format")
    if form == "pymllm-run":
        return _of_store(path)
    if form == "pymllm-soak":
        ledger = read_ledger_file(path)
        run = _beside_programs(path, text, "soak", (ledger.document,))
        return replace(run, pymllm=ledger.version, versions=ledger.versions, curves=ledger.curves)
    if form == "pymllm-history":
        raise TraceError(str(path), None, "this is a program; pymllm rerun and pymllm judge take it")
    if not text.strip():
        raise TraceError(str(path), None, "the file is empty")
    try:
        if first.get("schema") == "pymllm.gpu-memory":
            return _of_documents(path, text, list(_lines_of(path, text)))
        plain = read_json(text)
        if isinstance(plain, dict) and is_benchmark_file(plain):
            return _of_records(path, _digest(text), *read_benchmark_file(plain))
        if isinstance(plain, dict) and "schema" in plain:
            return _of_documents(path, text, [plain])
        why = "no run: neither a document with a schema, nor a file of a store or of pytest-benchmark"
        raise TraceError(str(path), None, why)
    except TraceError:
        raise
    except ValueError as error:
        line = error.line if isinstance(error, NotJSONError) else None
        raise TraceError(str(path), line, str(error)) from None


def _lines_of(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                yield read_json(line)
        except ValueError as error:
            raise TraceError(str(path), number, str(error)) from None


def _of_store(path: Path) -> Run:
    stored = read_run(path)
    documents, unread = [], []
    for record in stored.records:
        if isinstance(record, Document):
            try:
                documents.append(read_document(record.document))
            except ValueError as error:
                unread.append(str(error))
    if stored.unknown:
        unread.append(f"this version does not know the kind of {count_of(stored.unknown, 'record')}")
    run = _of_records(path, stored.identity, stored.header, stored.records)
    return replace(run, documents=tuple(documents), unread=tuple(unread))


def _of_records(path: Path, identity: str, header: RunHeader, records: Sequence[Record]) -> Run:
    coded = [
        replace(it, code=header.code) if isinstance(it, Figure | Histogram) and not it.code else it
        for it in records
    ]
    of_header = {it.name: getattr(header, it.name) for it in fields(header) if it.name != "code"}
    return Run(
        str(path),
        identity,
        **of_header,
        figures=tuple(it for it in coded if isinstance(it, Figure)),
        curves=tuple(it for it in coded if isinstance(it, Curve)),
        histograms=tuple(it for it in coded if isinstance(it, Histogram)),
        programs={it.file: it.lines for it in coded if isinstance(it, Program)},
    )


def _of_documents(path: Path, text: str, plains: Sequence[Any]) -> Run:
    """Return a run that consists of documents alone, few of which name their time or machine."""
    if not all(isinstance(plain, dict) for plain in plains):
        raise ValueError("each line must be an object")
    documents = tuple(read_document(plain) for plain in plains)
    versions = plains[0].get("versions")
    versions = versions if isinstance(versions, dict) else {}
    run = _beside_programs(path, text, str(plains[0]["schema"]).removeprefix("pymllm."), documents)
    run = replace(run, pymllm=versions.get("pymllm"), versions=versions)
    match documents[0]:
        case PeerComparison(machine=machine):
            return replace(run, machine=machine_of(machine))
        case GpuBenchmarksDocument() as it:
            commit, _, modified = (it.commit or "").partition("-")
            return replace(
                run,
                time=time_of(it.date),
                time_is_of_file=False,
                machine=machine_of_gpu(it.machine),
                pymllm=it.pymllm,
                commit=commit or None,
                modified=bool(modified),
                versions={"python": it.machine.python, "torch": it.machine.torch},
            )
    return run


def _beside_programs(path: Path, text: str, kind: str, documents: tuple[AnyDocument, ...]) -> Run:
    """Return a run from a single file, with the programs beside the file that its documents name."""
    programs = read_programs((name for it in documents for name in files_of(it)), path.parent)
    return Run(
        str(path),
        _digest(text),
        kind,
        utc(datetime.fromtimestamp(path.stat().st_mtime, UTC)),
        time_is_of_file=True,
        documents=documents,
        programs=programs.lines,
        unread=programs.left_out,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
