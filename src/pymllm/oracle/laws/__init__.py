"""The registry of the specification's laws: the text, the kinds of implementation and the checks of each.

A module for each page of ``docs/specification``, with the whole text of its laws. Ids never change their
meaning; ``SPECIFICATION`` is the version of all together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from pymllm.history.claims import SPECIFICATION
from pymllm.oracle.laws import (
    block_index,
    blocks,
    buffers,
    every_class,
    keys,
    prefixes,
    requests,
    rows,
    slots,
    state_pools,
    states,
    windows,
)
from pymllm.oracle.laws.law import SECTIONS, Law, Way
from pymllm.oracle.models.policy_ranks import find_rank
from pymllm.text_file import cut

__all__ = [
    "INVARIANTS",
    "LAWS",
    "SECTIONS",
    "SPECIFICATION",
    "Law",
    "Way",
    "find_audit_fault",
    "find_law",
    "laws_of",
    "ranks_policy",
]

_PAGES = (
    every_class,
    slots,
    rows,
    buffers,
    state_pools,
    keys,
    prefixes,
    windows,
    states,
    blocks,
    requests,
    block_index,
)

LAWS: tuple[Law, ...] = tuple(
    dict.fromkeys(one for page in _PAGES for one in vars(page).values() if isinstance(one, Law))
)
"""Every law, in the specification's order."""

INVARIANTS: dict[str, tuple[str, ...]] = {
    "lock references balance": ("R6", "S6"),
    "slot 0 is never handed out": ("A1", "P1", "P5"),
    "windows are valid": ("S1", "S4", "S5"),
    "full_lock_ref >= mamba_lock_ref": ("M4",),
}
"""Names of invariants that users ask for, each with the ids of the laws that together state it."""


def find_law(id: str) -> Law:
    """Return a law by its id, in either case.

    Raises
    ------
    ValueError
        There is none.
    """
    for law in LAWS:
        if law.id == id.upper():
            return law
    raise ValueError(f"no law {id!r}; there are {', '.join(law.id for law in LAWS)}")


def laws_of(kind: str) -> tuple[Law, ...]:
    """Return the laws about a kind of implementation, in the specification's order."""
    return tuple(law for law in LAWS if kind in law.kinds)


_BELOW = {"requests": ("blocks",)}
"""The kinds below a kind of implementation, whose laws an audit of that kind may also check."""


@functools.cache
def _ids_of_audits(kind: str) -> dict[str, None]:
    return dict.fromkeys(law.id for each in (kind, *_BELOW.get(kind, ())) for law in laws_of(each))


def find_audit_fault(kind: str, named: Iterable[str]) -> str | None:
    """Return a complaint about the first law that an audit names although the kind has no such law.

    Nobody could say what a finding under such a law means.
    """
    known = _ids_of_audits(kind)
    unknown = next((law for law in named if law not in known), None)
    if unknown is None:
        return None
    return f"names {cut(repr(unknown))}, which is no law of kind {kind}; its laws are {', '.join(known)}"


def ranks_policy(policy: str) -> bool:
    """Tell whether law R11 knows an eviction policy, so that an adapter may claim the policy's order."""
    return find_rank(policy) is not None
