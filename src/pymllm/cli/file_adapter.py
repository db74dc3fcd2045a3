"""Which code a file is run on: a class that comes with this package, or what the user names.

A file may be anybody's. The adapter that it names is taken from it where that is a name of the registry,
which nobody but this package fills; a module or a command in it is code that its author chose.
"""

from __future__ import annotations

from shlex import quote

import click

from pymllm.adapters.process.command_name import PREFIX
from pymllm.adapters.registry import FAULTY, OWN, PEERS
from pymllm.cli.command_option import names_of
from pymllm.cli.verify_plan import find_adapter_or_refuse

__all__ = ["adapter_of_file", "given_adapter", "is_of_registry"]

_LONGEST = 200  # of a name that is shown


def given_adapter(adapter: str | None, command: str | None) -> str | None:
    """Return the adapter that the options of a command name; ``None`` where they name none.

    Raises
    ------
    click.UsageError
        Both do.
    """
    if adapter is not None and command is not None:
        raise click.UsageError("--adapter and --command name one each; give one of them.")
    return adapter if command is None else names_of((), (command,))[0]


def is_of_registry(name: str) -> bool:
    """Tell whether a name can be taken from a file: what it loads comes with this package or is installed."""
    return any(entry.name == name for entry in (*OWN, *PEERS, *FAULTY))


def adapter_of_file(file: str, named: str, given: str | None) -> str:
    """Return the adapter that a file is to be run on.

    Parameters
    ----------
    file : str
        Its path.
    named : str
        The adapter that the file names.
    given : str or None
        The one that the user names (`given_adapter`), whatever the file says.

    Raises
    ------
    click.UsageError
        The file names a module or a command, or what there is not, and the user nothing.
    """
    if given is not None:
        return given
    if is_of_registry(named):
        return named
    if ":" not in named:
        find_adapter_or_refuse(named)  # which knows the names that are near
    if len(named) > _LONGEST:
        named, way = f"{named[:_LONGEST]}...", "--adapter or --command"
    elif named.startswith(PREFIX):
        way = f"--command {quote(named.removeprefix(PREFIX))}"
    else:
        way = f"--adapter {quote(named)}"
    raise click.UsageError(
        f"{file}: names the adapter {named!r}; from a file only the names of `pymllm adapters` count, "
        f"anything else needs --adapter or --command. Where you trust what it runs, add {way}."
    )
