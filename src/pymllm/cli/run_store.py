"""Keeping what a command found as a run of a store (``--store``), for ``pymllm report``."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli.program import WORDS, complain

if TYPE_CHECKING:
    from pymllm.report.records import Record

__all__ = [
    "keep_run",
    "refuse_missing_folder",
    "refuse_own_input",
    "refuse_run_or_program",
    "refuse_unwritable",
    "refuse_unwritable_store",
    "store_option",
]

store_option = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the result in this store of runs, too, for pymllm report.",
)
"""For the commands whose results belong into a report; their parameter is ``store``."""


def refuse_unwritable(option: str, folder: Path) -> None:
    """Refuse a folder that could not take a file after minutes of work; none is made yet."""
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


def refuse_missing_folder(option: str, path: Path | None) -> None:
    """Refuse a file, where one was asked for, whose folder is not there."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.UsageError(f"{option} {path}: there is no folder {path.parent}; make it first.")


def refuse_own_input(option: str, path: Path | None, *inputs: str | Path) -> None:
    """Refuse a file to write, where one was asked for, that is one of those read, under whatever name.

    What is no file, such as a pipe or a terminal, may be both.
    """
    for it in inputs:
        if path is not None and _are_one_file(path, Path(it)):
            raise click.UsageError(f"{option} {path}: this is {it}, which is read; name another one.")


def _are_one_file(path: Path, other: Path) -> bool:
    # os.path takes a name that is too long, or a link in a circle, for one that is not there.
    if os.path.exists(path) and os.path.exists(other):
        return path.is_file() and path.samefile(other)
    return os.path.realpath(path) == os.path.realpath(other)


def refuse_run_or_program(option: str, path: Path | None) -> None:
    """Refuse a file to write, where one was asked for, in which there is what people keep."""
    from pymllm.report.loading import is_run_or_program

    if path is not None and is_run_or_program(path):
        raise click.UsageError(f"{option} {path}: there is a run or a program in it; name another one.")


def refuse_unwritable_store(store: Path | None) -> None:
    """Refuse a store that could not take a run, where one was asked for."""
    if store is not None:
        refuse_unwritable("--store", store)


def keep_run(
    store: Path | None,
    document: dict[str, Any],
    records: Iterable[Record] = (),
    programs: Collection[str] = (),
    folders: Sequence[Path] | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write a run with a document, and say on standard error where it is.

    Parameters
    ----------
    store : Path or None
        The folder; without one nothing happens.
    document : dict
        What the command prints with ``--json``; its schema is the run's kind.
    records : iterable of Record
        More of it.
    programs : collection of str
        Files of programs that the document names, to be kept with it as far as they are there.
    folders : sequence of Path, optional
        In which they must lie, and from which their names count; by default wherever their names say, which
        is for a command that has just written them itself.
    versions : mapping, optional
        Of the packages involved, by default those that the document names.

    Notes
    -----
    A store that cannot be written is complained of, and the command goes on: its result matters more.
    """
    if store is None:
        return
    from pymllm.report.program_files import read_programs
    from pymllm.report.records import Document, Program
    from pymllm.report.store import make_header, write_run

    if folders is None:
        folders = list({Path(name).parent for name in programs})
    kept = read_programs(programs, *folders)
    for reason in kept.left_out:
        complain(f"--store {store}: left out: {reason}")
    header = make_header(
        str(document["schema"]).removeprefix("pymllm."),
        command=_words(),
        versions=versions or document.get("versions") or {},
    )
    found = [Document(document), *records, *(Program(name, lines) for name, lines in kept.lines.items())]
    try:
        path = write_run(store, header, found)
    except OSError as error:
        complain(f"--store {store}: cannot be written: {error.strerror or error}")
        return
    complain(f"kept as {path}")


def _words() -> Sequence[str]:
    """Return what was typed, so that a shell reads it again."""
    words: Sequence[str] = click.get_current_context().meta.get(WORDS, ("pymllm",))
    return [shlex.quote(word) for word in words]
