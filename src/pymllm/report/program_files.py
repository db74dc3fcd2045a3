"""The files of the programs that show a run's violations, as its documents name them.

A document may be anybody's, and whatever it names would be shown on a page: so only regular files are opened
that lie in the folder of the run, wherever links lead, and only so much of them is read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.searches import VerifyDocument
from pymllm.history.files import FORMAT
from pymllm.report.documents import AnyDocument

_MOST_BYTES = 4 << 20  # what is as long as a run of a soak is no program to look at; its short form is
_MOST_BYTES_OF_ALL = 16 << 20  # a page that opens in a browser, and names that are spellings of one file
_CAREFULLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class FoundPrograms:
    """The lines of the programs that documents name, and the reasons for those left out."""

    lines: dict[str, tuple[str, ...]]  # of each by its name
    left_out: tuple[str, ...] = ()  # one sentence for each reason


class _LeftOutError(Exception):
    """Raised with the reason why a program is not read."""


def files_of(document: AnyDocument) -> list[str]:
    """Return the names of the program files in a document; a shrunk program is preferred to a long one."""
    named: list[str | None] = []
    if isinstance(document, VerifyDocument):
        named = [it.file for adapter in document.adapters for it in adapter.violations]
    elif isinstance(document, SoakDocument):
        named = [it.short or it.file for adapter in document.adapters for it in adapter.failures]
    return [name for name in named if name is not None]


def read_programs(names: Iterable[str], *folders: Path) -> FoundPrograms:
    """Read the programs that documents name, if they lie in the folders of the run.

    A name is looked for from these folders, in them, and from the working folder. What does not lie in one of
    them, or leads out of it by a link, is never opened.
    """
    roots = [os.path.realpath(folder) for folder in folders]
    named = [*roots, *map(os.path.abspath, folders)]
    programs: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, list[str]] = {}
    left = _MOST_BYTES_OF_ALL
    for name in dict.fromkeys(names):
        try:
            content = _read(_find(name, roots, named), left)
            programs[name] = _lines_of(content)
            left -= len(content)
        except _LeftOutError as reason:
            reasons.setdefault(str(reason), []).append(name)
    told = []
    for said, (first, *others) in reasons.items():
        first = first if len(first) <= 200 else f"{first[:200]}..."
        told.append(f"program {first}{f' and {len(others):,} more' if others else ''}: {said}")
    return FoundPrograms(programs, tuple(told))


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file without following a final link, since a device or pipe might never end."""
    if stat.S_ISREG(os.stat(path).st_mode):  # to open a device may be to do something
        file = open(os.open(path, _CAREFULLY), "rb")  # noqa: SIM115  # the caller closes it
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # still
            return file
        file.close()
    raise OSError(errno.EINVAL, "is no regular file", str(path))


def _find(name: str, roots: list[str], named: list[str]) -> str:
    """Return the path of a program with links resolved; ``named`` are the roots under their known names."""
    reason = "is not in the folder of the run"
    inside = [os.path.join(root, name) for root in roots]
    beside = [os.path.join(root, os.path.basename(name)) for root in roots]
    for path in (*inside, os.path.abspath(name), *beside):
        # The name first, by its words alone: to follow it may be to ask another machine.
        if not _is_inside(os.path.normpath(path), named):
            continue
        try:
            real = os.path.realpath(path, strict=True)
        except (OSError, ValueError):  # a name may hold what no name of a file may
            continue
        if _is_inside(real, roots):
            return real
        reason = "leads out of the folder of the run"
    raise _LeftOutError(reason)


def _is_inside(path: str, roots: list[str]) -> bool:
    return any(Path(path).is_relative_to(root) for root in roots)


def _read(path: str, left: int) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(min(_MOST_BYTES, left) + 1)
    except OSError as error:
        raise _LeftOutError(error.strerror or str(error)) from None
    if len(content) > _MOST_BYTES:
        raise _LeftOutError(f"has more than {_MOST_BYTES >> 20} MiB; make it smaller with pymllm shrink")
    if len(content) > left:
        raise _LeftOutError(f"all programs up to this one have more than {_MOST_BYTES_OF_ALL >> 20} MiB")
    return content


def _lines_of(content: bytes) -> tuple[str, ...]:
    try:
        lines = tuple(content.decode("utf-8").rstrip("\n").split("\n"))
    except UnicodeDecodeError:
        lines = ("",)
    if f'"{FORMAT}"' not in lines[0]:
        raise _LeftOutError("is no program")
    return lines
