"""Every known bug by its id, and the faults that are made of them."""

from __future__ import annotations

from pymllm.adapters.cabinet import (
    bugs_of_2026,
    bugs_of_engines,
    bugs_of_eviction,
    bugs_of_memory,
    bugs_of_trees,
)
from pymllm.adapters.cabinet.bug import Bug
from pymllm.adapters.cabinet.fault import SEARCHERS, Fault
from pymllm.adapters.cabinet.planting import Edit
from pymllm.history.files import Config

__all__ = ["BUGS", "bug_of", "plant"]

_TABLES = (
    bugs_of_trees.BUGS,
    bugs_of_eviction.BUGS,
    bugs_of_memory.BUGS,
    bugs_of_engines.BUGS,
    bugs_of_2026.BUGS,
)

BUGS: dict[str, Bug] = {
    bug.id: bug
    for bug in sorted((bug for table in _TABLES for bug in table), key=lambda bug: int(bug.id[1:]))
}
"""In the order of their ids."""


def plant(
    id: str,
    laws: tuple[str, ...],
    adapters: tuple[str, ...],
    edits: tuple[Edit, ...],
    *,
    settings: Config | None = None,
    searchers: tuple[str, ...] = SEARCHERS,
    note: str = "",
) -> Fault:
    """Make a fault of a known bug, under the bug's title.

    Parameters
    ----------
    id : str
        The bug's, with a system where it is planted more than once: ``"B79-requests"``.
    laws, adapters, edits, settings, searchers, note
        As in `Fault`.
    """
    title = BUGS[id.partition("-")[0]].title
    return Fault(id, title, laws, adapters, edits, settings or {}, searchers, note)


def bug_of(fault: Fault) -> Bug | None:
    """Return what a fault was made of, or ``None``: a stranger's fault may have an id like ours."""
    bug = BUGS.get(fault.entry)
    return bug if bug is not None and bug.title == fault.title else None
