"""Every known bug by its id, the faults that are made of them, and why some are not."""

from __future__ import annotations

from pymllm.adapters.cabinet import (
    bugs_of_2026,
    bugs_of_engines,
    bugs_of_eviction,
    bugs_of_memory,
    bugs_of_trees,
)
from pymllm.adapters.cabinet.fault import SEARCHERS, Bug, Fault
from pymllm.history.files import Config

_TABLES = (bugs_of_trees, bugs_of_eviction, bugs_of_memory, bugs_of_engines, bugs_of_2026)

BUGS: dict[str, Bug] = {
    bug.id: bug
    for bug in sorted((bug for table in _TABLES for bug in table.BUGS), key=lambda bug: int(bug.id[1:]))
}
"""In the order of their ids."""

_NO_TIER = "no host tier: KV lives in one place and nothing is copied out or back"
_NO_EVENTS = "no events: nobody outside is told what is cached"

UNPLANTED: dict[str, str] = {
    "B28": "no pins: references are all that keeps a block, and every one is given back by the same call",
    "B83": "no budget in bytes: every class is given a number of slots, and mem_bytes counts all its buffers",
    "B149": "no masked gather: KV is read back by the slots of a row, and padding is in no row",
    "B158": _NO_TIER,
    "B160": f"{_NO_TIER}, so no operation is pending across a call",
    "B161": _NO_TIER,
    "B184": f"{_NO_EVENTS}, nor in which unit",
    "B190": f"{_NO_TIER}; a cached state comes with the slot that it lies in (M1)",
    "B191": "no groups: a request has one list of blocks, and children go before parents in any order",
    "B196": f"{_NO_EVENTS}; the observer of blocks serves their state slots, and a hash names one block (C3)",
    "B197": f"{_NO_TIER}; within one tier it is B164",
    "B203": "no index of several workers: the index has the blocks of one allocator, and they leave together",
}
"""Bugs that cannot be planted in our classes, by id, and why."""


def plant(
    id: str,
    laws: str,
    adapters: str,
    *,
    settings: Config | None = None,
    searchers: tuple[str, ...] = SEARCHERS,
    note: str = "",
) -> Fault:
    """Make a fault of a known bug, under the bug's title; `Fault.edit` says how it is planted.

    The id is the bug's, with a system where it is planted more than once (``"B79-requests"``); laws and
    adapters stand between blanks, the rest is as in `Fault`.
    """
    title = BUGS[id.partition("-")[0]].title
    return Fault(id, title, tuple(laws.split()), tuple(adapters.split()), (), settings or {}, searchers, note)


def bug_of(fault: Fault) -> Bug | None:
    """Return what a fault was made of, or ``None``: a stranger's fault may have an id like ours."""
    bug = BUGS.get(fault.entry)
    return bug if bug is not None and bug.title == fault.title else None
