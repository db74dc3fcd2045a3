"""Which states worth reaching were reached, by searches and by soaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pymllm.conformance.documents import SituationsDocument, SoakDocument, VerifyDocument
from pymllm.history.operations import KINDS
from pymllm.oracle.situation import Situation
from pymllm.oracle.situations import SITUATIONS
from pymllm.report.blocks import Block, Section, Tile
from pymllm.report.loading import Run, documents_of
from pymllm.report.tables import GOOD, QUIET, UNKNOWN, Cell, Column, Table, make_table, number

_Key = tuple[str, str]
"""Kind and name: situations of several kinds have the same name."""


@dataclass(slots=True)
class _Counted:
    """How often each situation was met, and who should have met it and did not."""

    searched: Counter[_Key] = field(default_factory=Counter)
    soaked: Counter[_Key] = field(default_factory=Counter)
    unmet: dict[_Key, set[str]] = field(default_factory=dict)
    listed: set[_Key] = field(default_factory=set)

    def times(self, it: Situation) -> int:
        """Return how often a situation was met at all."""
        return self.searched[it.kind, it.name] + self.soaked[it.kind, it.name]

    def asked(self) -> list[Situation]:
        """Return the situations that were asked for, as the registry has them, in its order."""
        asked = {*self.searched, *self.soaked, *self.unmet, *self.listed}
        # One of pools and one of engines may have the same name: then the two are counted as one.
        return list({key: it for it in SITUATIONS if (key := (it.kind, it.name)) in asked}.values())


def _count(runs: Sequence[Run]) -> _Counted:
    counted = _Counted()
    for verify, _ in documents_of(runs, VerifyDocument):
        kinds = {it.name: adapter.kind for adapter in verify.adapters for it in adapter.machines}
        for row in verify.situations:
            key = kinds.get(row.machine) or "", row.name
            counted.searched[key] += row.times
            counted.unmet.setdefault(key, set()).update(row.unmet)
    for soak, _ in documents_of(runs, SoakDocument):
        for it in soak.adapters:
            counted.soaked.update({(it.kind, name): times for name, times in it.situations.items()})
            for name in it.missing_situations:
                counted.unmet.setdefault((it.kind, name), set()).add(it.name)
    for listing, _ in documents_of(runs, SituationsDocument):
        counted.listed.update((it.kind, it.name) for it in listing.situations)
    return counted


def make_situations_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the situations over all runs; ``None`` where nobody counted them."""
    counted = _count(runs)
    asked = counted.asked()
    if not asked:
        return None
    never = [it for it in asked if not counted.times(it) and counted.unmet.get((it.kind, it.name))]
    blocks: list[Block] = [_never(never, counted)] if never else []
    for kind in KINDS:
        of_kind = [it for it in asked if it.kind == kind]
        if of_kind:
            blocks.append(_table(kind, of_kind, counted))
    reached = f"{sum(counted.times(it) > 0 for it in asked)} of {len(asked)}"
    return Section(
        "situations",
        "Situations",
        "A law that was tested only in easy states was hardly tested. Situations are states in which "
        "something is at stake; the numbers say how often all runs of this report met each. Until one was "
        "reached, silence about it means nothing.",
        blocks,
        [Tile(reached, "situations reached", UNKNOWN if never else GOOD)],
    )


def _never(situations: Sequence[Situation], counted: _Counted) -> Table:
    columns = [
        Column("situation", lambda it: it.name),
        Column("kind", lambda it: it.kind),
        Column("laws at stake", lambda it: ", ".join(it.laws)),
        Column("expected of", lambda it: Cell(", ".join(sorted(counted.unmet[it.kind, it.name])), UNKNOWN)),
    ]
    return make_table("Expected, and never reached", situations, columns)


def _table(kind: str, situations: Sequence[Situation], counted: _Counted) -> Table:
    def times(it: Situation, of: Counter[_Key]) -> Cell:
        return Cell(f"{of[it.kind, it.name]:,}", None if counted.times(it) else UNKNOWN)

    columns = [
        Column("situation", lambda it: it.name),
        number("in searches", lambda it: times(it, counted.searched)),
        number("in soaks", lambda it: times(it, counted.soaked)),
        Column("laws at stake", lambda it: ", ".join(it.laws)),
        Column(
            "bugs that lived in it",
            lambda it: Cell(", ".join(it.bugs) or "none known", None if it.bugs else QUIET),
        ),
    ]
    reached = sum(counted.times(it) > 0 for it in situations)
    caption = f"{kind}: {reached} of {len(situations)} reached"
    return make_table(caption, situations, columns, folded=True)
