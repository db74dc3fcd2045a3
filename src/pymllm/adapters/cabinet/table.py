"""All faults there are, and those of others: ``module:TABLE`` names a sequence of `Fault`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Sequence

from pymllm.adapters.cabinet import block_faults, engine_faults, eviction_faults, pool_faults, radix_faults
from pymllm.adapters.cabinet.fault import ANY, Fault
from pymllm.adapters.faulty import Faulty
from pymllm.adapters.registry import FAULTY, AdapterEntry, find_adapter, load_adapter
from pymllm.errors import UsageError
from pymllm.oracle.laws import find_law

_TABLES = (radix_faults, eviction_faults, pool_faults, engine_faults, block_faults)

PLANTED: tuple[Fault, ...] = tuple(
    sorted(
        (fault for table in _TABLES for fault in table.FAULTS),
        key=lambda fault: (int(fault.entry[1:]), fault.id),
    )
)
"""Known bugs, planted by editing our classes, in the order of their ids."""

_LONGEST = 60  # of an id that is shown again


def own_cabinet() -> tuple[Fault, ...]:
    """Return all faults of this package: `PLANTED`, and one for each wrong implementation of the registry."""
    return (*PLANTED, *map(_fault_of, FAULTY))


def _fault_of(entry: AdapterEntry) -> Fault:
    wrong: object = load_adapter(entry)
    assert isinstance(wrong, type)
    assert issubclass(wrong, Faulty)  # or the registry would list it among its own
    return Fault(entry.name, entry.summary, (wrong.BREAKS, *wrong.ALSO), (entry.name,))


def load_cabinet(place: str) -> tuple[Fault, ...]:
    """Return somebody's faults by ``"module:TABLE"``; `UsageError` says what of the table cannot be used."""
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
    """Return the faults of several cabinets as one; `UsageError` where two have the same id."""
    joined: dict[str, Fault] = {}
    for fault in (fault for cabinet in cabinets for fault in cabinet):
        if fault.id.lower() in joined:
            raise UsageError(f"two faults are called {fault.id}; every one needs an id of its own")
        joined[fault.id.lower()] = fault
    return tuple(joined.values())


def find_faults(ids: Sequence[str], cabinet: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return some faults of a cabinet by their ids, in either case, each once; all where none is named."""
    known = {fault.id.lower(): fault for fault in cabinet}
    for id in ids:
        if id.lower() not in known:
            near = difflib.get_close_matches(id.lower()[:_LONGEST], list(known), n=3)
            question = f" (did you mean {' or '.join(known[it].id for it in near)}?)" if near else ""
            raise UsageError(f"no fault {id[:_LONGEST]!r}{question}; pymllm faults --list shows them")
    return tuple(known[id] for id in dict.fromkeys(id.lower() for id in ids)) or tuple(cabinet)
