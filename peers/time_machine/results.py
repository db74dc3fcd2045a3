"""The results of playing the table, `results.json`, as records; the programs lie in `programs` beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from peers.time_machine.bugs import Bug
from pymllm.text_file import write_text_file

RESULTS = Path(__file__).with_name("results.json")
PROGRAMS = Path(__file__).with_name("programs")


class Search(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One search of one release: a command, its seed, the laws that it saw broken, and what stopped it.

    ``seconds`` are of the wall clock, from the start of the command to its end, with making programs small;
    ``cpu_seconds`` those of the processor in all its processes.
    """

    command: str
    seed: int
    seconds: float
    cpu_seconds: float
    laws: tuple[str, ...]
    problems: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A program found in the old release, with its results in reruns on both releases.

    ``old`` and ``fixed`` are the laws that it breaks there, or `None`; ``fixed_ends`` says why it could not
    go on in the fixed release, where it could not.
    """

    law: str
    message: str
    operations: int
    smallest: bool
    old: str | None
    fixed: str | None
    fixed_ends: str | None = None

    @property
    def tells_apart(self) -> bool:
        """Whether the program breaks the law on the old release, but not on the fixed one."""
        return self.old == self.law != self.fixed


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result for a bug: the searches of both releases, and the programs that tell these apart.

    ``found`` is the program by which the bug was found, of a law that the table names; ``besides`` are
    others. ``seconds`` are of the searches of the old release until then.
    """

    id: str
    adapter: str
    last_with: str
    first_without: str
    found: Seen | None
    besides: tuple[Seen, ...]
    seconds: float
    old: tuple[Search, ...]
    fixed: tuple[Search, ...]
    date: str
    machine: str
    jobs: int
    versions: dict[str, str]

    def is_of(self, bug: Bug) -> bool:
        """Whether this is the result of the row as the table has it now."""
        return all(getattr(self, name) == getattr(bug, name) for name in _SAME)

    @property
    def stage(self) -> str:
        """The command that found the bug, or searched last."""
        return self.old[-1].command

    @property
    def is_silent(self) -> bool:
        """Whether the same searches of the fixed release never broke the law, by any program."""
        return self.found is not None and all(self.found.law not in search.laws for search in self.fixed)


_SAME = ("id", "adapter", "last_with", "first_without")


def read_results(path: Path = RESULTS) -> dict[str, Result]:
    """Read the known results, by the bug's id; none if the file is missing."""
    if not path.exists():
        return {}
    return {row.id: row for row in msgspec.json.decode(path.read_bytes(), type=tuple[Result, ...])}


def write_results(results: Iterable[Result], path: Path = RESULTS) -> None:
    """Write all results, in their order."""
    text = msgspec.json.format(msgspec.json.encode(tuple(results)), indent=1).decode()
    write_text_file(path, text + "\n")


def program_of(id: str, folder: Path = PROGRAMS) -> Path:
    """Return the path of the program that found a bug."""
    return folder / f"{id}.jsonl"
