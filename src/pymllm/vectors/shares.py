"""The share of planted faults that vectors detect for implementations with some claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.faults.fault import Fault
from pymllm.faults.table import own_cabinet
from pymllm.vectors.claims import Claimant
from pymllm.vectors.format import Vector
from pymllm.vectors.programs import is_of_caller


@dataclass(frozen=True, slots=True)
class Share:
    """The vectors that an implementation with some claims can play, and the faults they detect.

    ``shown``: the faults of its kind, each with those of its vectors that show it, perhaps none.
    """

    vectors: tuple[str, ...]
    of: int
    shown: Mapping[str, tuple[str, ...]]

    @property
    def faults(self) -> int:
        """The number of faults that the vectors detect."""
        return sum(bool(them) for them in self.shown.values())


def faults_of(kind: str) -> tuple[Fault, ...]:
    """Return the planted faults in a kind's implementations, without those of the calling engine."""
    return tuple(it for it in own_cabinet() if not is_of_caller(it) and _kind_of(it) == kind)


def _kind_of(fault: Fault) -> str:
    return load_adapter(find_adapter(fault.adapters[0])).KIND


def share_of(
    claimant: Claimant, vectors: Mapping[str, Sequence[Vector]], kills: Mapping[str, frozenset[str]]
) -> Share:
    """Return a claimant's share: the vectors that it can play, and the faults they detect."""
    own = vectors.get(claimant.kind, ())
    ids = tuple(sorted(it.id for it in own if claimant.plays(claimant.kind, it)))
    shown = {it.id: tuple(id for id in ids if it.id in kills[id]) for it in faults_of(claimant.kind)}
    return Share(ids, len(own), shown)
