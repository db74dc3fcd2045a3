"""The files that a command writes: refusals before the work, and the run in a store."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli.output import UNWRITTEN, WORDS, complain
from pymllm.history.files import History, dump_history
from pymllm.instrument.documents import Document
from pymllm.text_file import write_text_file

if TYPE_CHECKING:
    from pymllm.report.records import Record


def refuse_unwritable(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written, before minutes of work; create none yet."""
    at = folder.absolute()
    try:
        while not at.exists():
            at = at.parent
        # An attempt, because what permissions say of /proc is not true for root.
        with tempfile.TemporaryFile(dir=at):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise click.UsageError(f"{option} {folder}: cannot write in {at}: {reason}.") from None


def refuse_own_input(option: str, path: Path | None, *inputs: str | Path) -> None:
    """Refuse an output file that is also an input under any name, except a pipe or terminal."""
    for it in inputs:
        if path is not None and _are_one_file(path, Path(it)):
            raise click.UsageError(
                f"{option} {path}: this is {it}, which the command reads; name another file."
            )


def _are_one_file(path: Path, other: Path) -> bool:
    # os.path takes a name that is too long, or a link in a circle, for one that is not there.
    if os.path.exists(path) and os.path.exists(other):
        return path.is_file() and path.samefile(other)
    return os.path.realpath(path) == os.path.realpath(other)


def refuse_run_or_program(option: str, path: Path | None) -> None:
    """Refuse an output file, if given, that holds a run or a program."""
    from pymllm.report.loading import is_run_or_program

    if path is not None and is_run_or_program(path):
        raise click.UsageError(f"{option} {path}: it has a run or a program in it; name another file.")


def save_text(text: str, path: Path, option: str = "") -> str | None:
    """Write a file and its folder; report an error without failing, since the result matters more.

    A command that would end with 0 ends with 2 then.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_file(path, text)
    except OSError as error:
        _complain_of_unwritten(f"{option} {path}".lstrip(), error)
        return None
    return str(path)


def _complain_of_unwritten(what: str, error: OSError) -> None:
    complain(f"{what}: cannot be written: {error.strerror or error}")
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[UNWRITTEN] = True


def save_program(history: History, path: Path) -> str | None:
    """Write a program's file; report an error without failing."""
    return save_text("".join(f"{line}\n" for line in dump_history(history)), path)


def keep_run(
    store: Path | None,
    document: Document,
    records: Iterable[Record] = (),
    programs: Collection[str] = (),
    folders: Sequence[Path] | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Store a document with further records and its programs, and report the file on standard error.

    Programs must lie in ``folders``; by default wherever their names say, for a command that has just written
    them. A store that cannot be written is complained of, as by `save_text`.
    """
    if store is None:
        return
    from pymllm.report.program_files import read_programs
    from pymllm.report.records import Document as StoredDocument
    from pymllm.report.records import Program
    from pymllm.report.store import make_header, write_run

    if folders is None:
        folders = list({Path(name).parent for name in programs})
    kept = read_programs(programs, *folders)
    for reason in kept.left_out:
        complain(f"--store {store}: left out: {reason}")
    words = click.get_current_context().meta.get(WORDS, ("pymllm",))
    header = make_header(
        document.schema.removeprefix("pymllm."),
        command=[shlex.quote(word) for word in words],  # so that a shell reads it again
        versions=versions or getattr(document, "versions", None) or {},
    )
    found = [StoredDocument(document.plain()), *records]
    found += [Program(name, lines) for name, lines in kept.lines.items()]
    try:
        path = write_run(store, header, found)
    except OSError as error:
        _complain_of_unwritten(f"--store {store}", error)
        return
    complain(f"kept in {path}")
