"""What a verification was asked to do, checked before anything heavy is loaded."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import click

from pymllm.adapters.base import AdapterClass
from pymllm.adapters.process.command_name import PREFIX
from pymllm.adapters.registry import OWN, AdapterEntry, find_adapter
from pymllm.cli.near_names import did_you_mean
from pymllm.cli.options import DEFAULT_TIMEOUT, count_processes
from pymllm.errors import AdapterError, ConversationError, UsageError
from pymllm.oracle.laws import LAWS, Law, find_law
from pymllm.text_file import cut
from pymllm.torch_extra import why_no_torch

__all__ = [
    "PROFILE_NAMES",
    "VerifyOptions",
    "find_adapter_or_refuse",
    "find_law_or_refuse",
    "load_or_refuse",
    "own_or_refuse",
]

PROFILE_NAMES = ("dev", "ci", "deep")
"""Keys of `pymllm.conformance.machines.PROFILES`."""


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of one ``pymllm verify``, as given; ``None`` where a default depends on the rest.

    Parameters
    ----------
    adapters : tuple of str
        Registry names or ``module:Class``; empty for our own classes.
    laws : tuple of str
        Ids; empty for all.
    profile : str
        One of `PROFILE_NAMES`.
    seed : int or None
        Seed; the profile's.
    examples : int or None
        Programs per machine and configuration; as many as there is time for.
    jobs : int or None
        Processes; one per processor.
    timeout : float
        Most seconds for one call of an adapter; 0 for no limit.
    strict : bool
        Whether every situation has to be reached.
    """

    adapters: tuple[str, ...]
    laws: tuple[str, ...]
    profile: str
    seed: int | None
    examples: int | None
    jobs: int | None
    timeout: float = DEFAULT_TIMEOUT
    strict: bool = False

    def check(self) -> None:
        """Refuse names that do not exist.

        Raises
        ------
        click.UsageError
            Says which, and what there is.
        """
        self.find_adapters()
        self.find_laws()

    def find_adapters(self) -> tuple[AdapterEntry, ...]:
        """Return the adapters, each once; `click.UsageError` for a name that is none."""
        names = dict.fromkeys(self.adapters)
        return tuple(find_adapter_or_refuse(name) for name in names) if names else own_or_refuse()

    def find_laws(self) -> tuple[Law, ...]:
        """Return the laws, each once; `click.UsageError` for an id that is none."""
        return tuple(dict.fromkeys(find_law_or_refuse(id) for id in self.laws))

    def count_jobs(self) -> int:
        """Return the number of processes."""
        return count_processes(self.jobs)


def find_adapter_or_refuse(name: str, *, is_run: bool = True) -> AdapterEntry:
    """Return the entry of an adapter.

    Parameters
    ----------
    name : str
        What the user typed: a registry name, or ``module:Class``, looked for in the current folder, too.
    is_run : bool
        Whether it is to run: then what it needs must be installed.

    Raises
    ------
    click.UsageError
        The registry has no such name; the nearest ones are named. Or a package is missing, torch among them.
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


def own_or_refuse() -> tuple[AdapterEntry, ...]:
    """Return the entries of all of our own classes; `click.UsageError` where torch is missing."""
    _refuse_without_torch(*OWN)
    return OWN


def _refuse_without_torch(*entries: AdapterEntry) -> None:
    reason = why_no_torch()
    names = [entry.name for entry in entries if entry.is_of_torch]
    if reason is not None and names:
        subject = f"adapter {names[0]}" if len(names) == 1 else f"each of {', '.join(names)}"
        raise click.UsageError(f"{subject} {reason}")


def load_or_refuse(name: str) -> AdapterClass:
    """Import the class of an adapter whose name was found, in a process that examines it: this runs its code.

    Raises
    ------
    click.UsageError
        There is no such module or class, as ``module:Class`` names it, or no such program.
    AdapterError
        One of the registry's own cannot be loaded, or a program does not introduce itself.
    """
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
