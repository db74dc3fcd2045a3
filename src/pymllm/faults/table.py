"""All known faults, read from the tables beside this file and from tables of other projects.

A table is TOML, one for each subject; those called ``wrong_...`` break one law after the other. An entry has
a title, the laws that may catch the fault, the adapters to examine, and its edits: a place, what its text
says, and what it is to say instead, or a place and a whole function, where ``sound`` is the function as it
was. ``where`` has short names of places, ``defaults`` what every entry of the table says unless it says
otherwise. A bug of somebody's engine has its sources and how it came about, too, and more entries where it is
planted in several systems, such as ``B79-requests``.
"""

from __future__ import annotations

import difflib
import importlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files

import msgspec

from pymllm.adapters.registry import find_adapter
from pymllm.documents.faults import SEARCHERS
from pymllm.errors import UsageError
from pymllm.faults.fault import ANY, EVIDENCE, Bug, Fault
from pymllm.faults.plant import Change, Edit, Replace
from pymllm.history.files import Config
from pymllm.oracle.laws import find_law

_TABLES = (
    *("slots", "trees", "keys_and_states", "evictions", "blocks", "engine_memory", "engine_schedule"),
    *("engine_blocks", "index", "unplanted"),
    *("wrong_slots", "wrong_trees", "wrong_leaves", "wrong_states", "wrong_blocks", "wrong_index"),
    "wrong_events",
)
_OF_SERVERS = "servers"
_LONGEST = 60  # of an id that is shown again


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a table; lines of a text are joined, and code may have any indentation."""

    title: str = ""
    engine: str = ""
    version: str = ""
    sources: str = ""
    how: str = ""
    seen: str = ""
    evidence: str = "thread"
    unplanted: str = ""
    laws: str = ""
    adapters: str = ""
    settings: Config = {}
    except_for: Config = {}
    searchers: tuple[str, ...] = SEARCHERS
    note: str = ""
    edits: tuple[tuple[str, ...], ...] = ()

    def bug(self, id: str) -> Bug:
        """Return the bug that the entry describes."""
        how, seen, evidence = _folded(self.how), _folded(self.seen), EVIDENCE[self.evidence]
        return Bug(id, self.title, self.engine, _folded(self.sources), how, seen, evidence, self.version)

    def fault(self, id: str, title: str, where: dict[str, str]) -> Fault:
        """Return the fault that the entry plants."""
        return Fault(
            id,
            title,
            tuple(self.laws.split()),
            tuple(self.adapters.split()),
            tuple(_change(where, *edit) for edit in self.edits),
            _config(self.settings),
            self.searchers,
            _folded(self.note),
            _config(self.except_for),
        )


def _folded(text: str) -> str:
    return " ".join(text.split())


def _config(settings: Config) -> Config:
    """Return settings with "none" read as ``None``, for which TOML has no word."""
    return {name: None if value == "none" else value for name, value in settings.items()}


def _change(where: dict[str, str], place: str, *texts: str) -> Change:
    short, _, rest = place.partition(".")
    target = f"{where[short]}.{rest}" if short in where else place
    texts = tuple(textwrap.dedent(text).strip() if "\n" in text else text for text in texts)
    return Edit(target, *texts) if len(texts) > 1 else Replace(target, *texts)


def _read(name: str) -> Iterator[tuple[str, _Entry, dict[str, str]]]:
    """Yield the entries of a table by id, with the table's names for places in the code."""
    tables = msgspec.toml.decode(files(__package__).joinpath(f"{name}.toml").read_bytes())
    where, defaults = tables.pop("where", {}), tables.pop("defaults", {})
    for id, entry in tables.items():
        yield id, msgspec.convert(defaults | entry, _Entry), where


_ENTRIES = [entry for name in _TABLES for entry in _read(name)]

BUGS: dict[str, Bug] = {
    id: entry.bug(id)
    for id, entry, _ in sorted(
        (it for it in _ENTRIES if it[1].engine), key=lambda it: int(it[0].removeprefix("B"))
    )
}
"""Known bugs by id, in the order of their ids."""

UNPLANTED: dict[str, str] = {id: _folded(it.unplanted) for id, it, _ in _ENTRIES if it.unplanted}
"""The reasons why some bugs cannot be planted in this package's classes, by id."""

_FAULTS = [
    entry.fault(id, entry.title or BUGS[id.partition("-")[0]].title, where)
    for id, entry, where in _ENTRIES
    if not entry.unplanted
]

PLANTED: tuple[Fault, ...] = tuple(
    sorted((it for it in _FAULTS if it.entry in BUGS), key=lambda it: (int(it.entry[1:]), it.id))
)
"""Known bugs planted by edits of this package's classes, in the order of their ids."""

WRONG: tuple[Fault, ...] = tuple(fault for fault in _FAULTS if fault.entry not in BUGS)
"""Faults that each break one law, which are also adapters (`pymllm.faults.adapters`)."""


def _of_server(id: str, entry: _Entry, where: dict[str, str]) -> Fault:
    """Return a fault of the embedded server, with the edits of its bug by default."""
    bug = id.partition("-")[0]
    fault = entry.fault(id, entry.title or BUGS[bug].title, where)
    if fault.edits:
        return fault
    (edits,) = (it.edits for it in PLANTED if it.id == bug)
    return replace(fault, edits=edits)


SERVERS: tuple[Fault, ...] = tuple(_of_server(*entry) for entry in _read(_OF_SERVERS))
"""Faults of the embedded server, for which only `pymllm faults probe` searches."""


def own_cabinet() -> tuple[Fault, ...]:
    """Return all faults of classes in this package."""
    return (*PLANTED, *WRONG)


def bug_of(fault: Fault) -> Bug | None:
    """Return the real bug behind a fault, or ``None``; other projects' ids may equal this package's."""
    bug = BUGS.get(fault.entry)
    return bug if bug is not None and bug.title == fault.title else None


def load_cabinet(place: str) -> tuple[Fault, ...]:
    """Return the faults of a table ``"module:TABLE"``; raise `UsageError` if it cannot be used."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise UsageError(f"{place!r} names no table of faults; give module:TABLE")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a stranger's module may raise anything
        raise UsageError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    table = getattr(module, name, None)
    if table is None:
        raise UsageError(f"{module_name} has no {name}; it must be a sequence of Fault")
    return _checked(place, table)


def _checked(place: str, table: object) -> tuple[Fault, ...]:
    faults = tuple(table) if isinstance(table, Iterable) else ()
    if not faults:
        raise UsageError(f"{place} is {table!r}; it must be a sequence of Fault, and not an empty one")
    ids: set[str] = set()
    for number, fault in enumerate(faults, 1):
        if not isinstance(fault, Fault):
            raise UsageError(f"{place}: entry {number} is {fault!r}, which is no Fault")
        if fault.id in ids:
            raise UsageError(f"{place}: {fault.id} is there twice; every fault needs an id of its own")
        ids.add(fault.id)
        _check_names(place, fault)
    return faults


def _check_names(place: str, fault: Fault) -> None:
    try:
        for law in fault.laws if fault.laws != ANY else ():
            find_law(law)
        for adapter in fault.adapters:
            find_adapter(adapter)
    except ValueError as error:
        raise UsageError(f"{place}: {fault.id}: {error}") from error


def join_cabinets(cabinets: Sequence[Sequence[Fault]]) -> tuple[Fault, ...]:
    """Return the faults of several tables; raise `UsageError` if two have the same id."""
    joined: dict[str, Fault] = {}
    for fault in (fault for cabinet in cabinets for fault in cabinet):
        if fault.id.lower() in joined:
            raise UsageError(f"two faults are called {fault.id}; every one needs an id of its own")
        joined[fault.id.lower()] = fault
    return tuple(joined.values())


def find_faults(ids: Sequence[str], cabinet: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return faults by id, in upper or lower case and each once; all if no id is given."""
    known = {fault.id.lower(): fault for fault in cabinet}
    for id in ids:
        if id.lower() not in known:
            near = difflib.get_close_matches(id.lower()[:_LONGEST], list(known), n=3)
            question = f" (did you mean {' or '.join(known[it].id for it in near)}?)" if near else ""
            raise UsageError(f"no fault {id[:_LONGEST]!r}{question}; pymllm faults list shows them")
    return tuple(known[id] for id in dict.fromkeys(id.lower() for id in ids)) or tuple(cabinet)
