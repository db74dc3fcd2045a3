"""The table of real bugs, `bugs.toml`, as records."""

from __future__ import annotations

from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("bugs.toml")


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"of": "class"}):
    """One bug of a released package.

    `last_with` and `first_without` are releases of `project`, by its name in the package registry, and `read`
    says what of both was read. `adapter` runs it, or is empty where there is none; `reachable` says whether a
    search of that adapter can meet the bug on a CPU, and `why`. `expected` are laws that we would name; no
    search is told. `missed` says of a bug that no search found why not, and what would see it.
    """

    id: str
    project: str
    title: str
    links: tuple[str, ...]
    last_with: str
    first_without: str
    files: tuple[str, ...]
    read: str
    of: str
    expected: tuple[str, ...]
    adapter: str
    reachable: bool
    why: str
    missed: str = ""


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    bug: tuple[Bug, ...]


def read_bugs(path: Path = TABLE) -> tuple[Bug, ...]:
    """Read a table; `msgspec.ValidationError` names the error and its place."""
    return msgspec.toml.decode(path.read_bytes(), type=_Table).bug
