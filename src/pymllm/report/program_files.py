"""The programs of a run's violations, found in the files that its documents name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pymllm.oracle.history import FORMAT
from pymllm.report.documents import AnyDocument
from pymllm.report.search_documents import SoakDocument, VerifyDocument

__all__ = ["files_of", "read_programs"]

_MOST_BYTES = 4 << 20  # what is as long as a run of a soak is no program to look at; its short form is


def files_of(document: AnyDocument) -> list[str]:
    """Return the names of the programs' files, as a document has them; short programs for long ones."""
    if isinstance(document, VerifyDocument):
        named = [it.file for adapter in document.adapters for it in adapter.violations]
    elif isinstance(document, SoakDocument):
        named = [it.short or it.file for adapter in document.adapters for it in adapter.failures]
    else:
        named = []
    return [name for name in named if name is not None]


def read_programs(names: Iterable[str], *folders: Path) -> dict[str, tuple[str, ...]]:
    """Read programs, as far as they are still there.

    Parameters
    ----------
    names : iterable of str
        Of their files, as documents have them.
    *folders : Path
        Of the document: a name is looked for from the working folder, from these, and in these.

    Returns
    -------
    dict
        Lines by name, without those that are nowhere or no programs.
    """
    programs = {}
    for name in names:
        beside = (folder / Path(name).name for folder in folders)
        for path in (*(folder / name for folder in folders), Path(name), *beside):
            lines = _read(path)
            if lines is not None:
                programs[name] = lines
                break
    return programs


def _read(path: Path) -> tuple[str, ...] | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    lines = tuple(text.rstrip("\n").split("\n"))
    return lines if f'"{FORMAT}"' in lines[0] else None
