"""The adapters of installed packages: entry points of the group ``pymllm.adapters``.

An entry point names a sequence of `pymllm.adapters.entry.AdapterEntry`, ``"my_package.entries:ADAPTERS"``, in
a module that loads fast: it is imported when somebody lists adapters or asks for a name that is not our own.
Code that is installed is trusted as any import is. The wrong adapters of `pymllm.faults` come this way, too.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from pymllm.adapters.entry import AdapterEntry
from pymllm.text_file import shown

GROUP = "pymllm.adapters"
_OURS = "pymllm."


@dataclass(frozen=True, slots=True)
class Plugins:
    """The adapters of plug-ins, outside ones first, and a line for each plug-in or adapter left out."""

    entries: tuple[AdapterEntry, ...]
    problems: tuple[str, ...]


@functools.cache
def _read_all() -> tuple[tuple[EntryPoint, tuple[AdapterEntry, ...] | str], ...]:
    """Read every plug-in once; duplicates, as of an installed package and its source tree, count once."""
    points = {(point.name, point.value): point for point in entry_points(group=GROUP)}
    ordered = sorted(points.values(), key=lambda point: (point.value.startswith(_OURS), point.name))
    return tuple((point, _read(point)) for point in ordered)


def _read(point: EntryPoint) -> tuple[AdapterEntry, ...] | str:
    """Return the adapters that an entry point names, or the reason why it names none."""
    try:
        found = point.load()
        is_sequence = isinstance(found, Iterable) and not isinstance(found, str | bytes)
        entries = tuple(found) if is_sequence else (found,)
    except Exception as error:  # a stranger's module may raise anything
        return f"cannot be imported: {type(error).__name__}: {error}"
    for entry in entries:
        if not isinstance(entry, AdapterEntry):
            return f"must name a sequence of AdapterEntry of pymllm.adapters.entry, and has {shown(entry)}"
        are_texts = isinstance(entry.name, str) and isinstance(entry.place, str)
        if not are_texts or not entry.name or ":" in entry.name or ":" not in entry.place:
            return f"has {shown(entry)}; a name has no colon, and a place is module:Class"
    return entries


def find_plugins(taken: Collection[str]) -> Plugins:
    """Return the adapters of all plug-ins, except names in ``taken`` and those of an earlier plug-in."""
    names, entries, problems = set(taken), [], []
    for point, found in _read_all():
        title = f"plug-in {point.name} ({point.value})"
        if isinstance(found, str):
            problems.append(" ".join(f"{title} {found}".split()))
            continue
        for entry in found:
            if entry.name in names:
                problems.append(f"{title}: the name {entry.name} is taken; its adapter is not listed")
            else:
                names.add(entry.name)
                entries.append(entry)
    return Plugins(tuple(entries), tuple(problems))
