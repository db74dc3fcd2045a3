"""What a command examines: adapters, laws and files, checked before anything runs.

A file may be anybody's. The adapter that it names is taken from it where that is a name of the registry,
which nobody but this package fills; a module or a command in it is code that its author chose.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

import click

from pymllm.adapters.base import AdapterClass
from pymllm.adapters.process.command_name import PREFIX
from pymllm.adapters.registry import FAULTY, OWN, PEERS, AdapterEntry, find_adapter
from pymllm.cli.options import names_of
from pymllm.errors import AdapterError, ConversationError, UsageError
from pymllm.history.files import History, load_history
from pymllm.oracle.laws import LAWS, Law, find_law
from pymllm.text_file import cut, did_you_mean
from pymllm.torch_extra import why_no_torch

# -- adapters and laws ------------------------------------------------------------------------------------


def find_adapter_or_refuse(name: str, *, is_run: bool = True) -> AdapterEntry:
    """Return the entry of an adapter, or refuse with the nearest names, or with what it needs to run.

    ``module:Class`` is looked for in the current folder, too.
    """
    try:
        entry = find_adapter(name)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from None
    _refuse_without_torch(entry)
    missing = entry.find_missing() if is_run else None
    if missing is not None:
        raise click.UsageError(f"{missing}.")
    if ":" in name and not name.startswith(PREFIX) and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return entry


def find_adapters_or_own(names: Iterable[str]) -> tuple[AdapterEntry, ...]:
    """Return the entries of some adapters, each once; without any, those of all of our own classes."""
    found = tuple(find_adapter_or_refuse(name) for name in dict.fromkeys(names))
    if not found:
        _refuse_without_torch(*OWN)
    return found or OWN


def _refuse_without_torch(*entries: AdapterEntry) -> None:
    reason = why_no_torch()
    names = [entry.name for entry in entries if entry.is_of_torch]
    if reason is not None and names:
        subject = f"adapter {names[0]}" if len(names) == 1 else f"each of {', '.join(names)}"
        raise click.UsageError(f"{subject} {reason}")


def load_or_refuse(name: str) -> AdapterClass:
    """Import the class of an adapter that was found, in a process that examines it: this runs its code."""
    from pymllm.conformance.adapter_calls import load_class  # not before names are found

    try:
        return load_class(find_adapter(name))
    except AdapterError as error:
        if ":" not in name or isinstance(error, ConversationError):
            raise
        raise click.UsageError(f"{error}.") from None


def find_law_or_refuse(id: str) -> Law:
    """Return a law; `click.UsageError` for an id that is none."""
    try:
        return find_law(id)
    except ValueError:
        nearest = did_you_mean(id.upper(), [law.id for law in LAWS], 3)
        raise click.UsageError(
            f"no law {cut(id)!r}{nearest}; pymllm verify --verbose lists those of an adapter, "
            "docs/laws.md all."
        ) from None


# -- what a file names ------------------------------------------------------------------------------------

_LONGEST_SHOWN = 200  # of a name that is shown


def given_adapter(adapter: str | None, command: str | None) -> str | None:
    """Return the adapter that the options of a command name; ``None`` where they name none."""
    if adapter is not None and command is not None:
        raise click.UsageError("--adapter and --command name one each; give one of them.")
    return adapter if command is None else names_of((), (command,))[0]


def is_of_registry(name: str) -> bool:
    """Tell whether a name can be taken from a file: what it loads comes with this package or is installed."""
    return any(entry.name == name for entry in (*OWN, *PEERS, *FAULTY))


def adapter_of_file(file: str, named: str, given: str | None) -> str:
    """Return the adapter that a file is to be run on."""
    if given is not None:
        return given
    if is_of_registry(named):
        return named
    if ":" not in named:
        find_adapter_or_refuse(named)  # which knows the names that are near
    if len(named) > _LONGEST_SHOWN:
        named, way = f"{named[:_LONGEST_SHOWN]}...", "--adapter or --command"
    elif named.startswith(PREFIX):
        way = f"--command {quote(named.removeprefix(PREFIX))}"
    else:
        way = f"--adapter {quote(named)}"
    raise click.UsageError(
        f"{file}: names the adapter {named!r}; from a file only the names of `pymllm adapters` count, "
        f"anything else needs --adapter or --command. Where you trust what it runs, add {way}."
    )


def read_program(file: str) -> History:
    """Read a history; `click.UsageError` where the file cannot be read, `TraceError` where it is none."""
    try:
        return load_history(Path(file))
    except OSError as error:
        raise click.UsageError(f"{file}: cannot be read: {error.strerror or error}") from None


_LONGEST_FILE_NAME = 100


def file_name_of(name: str) -> str:
    """Make a name that may be ``module:Class`` or a whole command one of a file.

    Two long ones that begin alike differ in their ends, which stand for all of them.
    """
    safe = re.sub(r"[^\w.-]+", "-", name)
    if len(safe) <= _LONGEST_FILE_NAME:
        return safe
    return (
        f"{safe[:_LONGEST_FILE_NAME]}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:8]}"
    )
