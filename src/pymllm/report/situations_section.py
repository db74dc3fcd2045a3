"""Which states worth reaching were reached, by searches and by soaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pymllm.history.operations import KINDS
from pymllm.oracle.situation import Situation
from pymllm.oracle.situations import SITUATIONS
from pymllm.report.blocks import GOOD, QUIET, UNKNOWN, Cell, Column, Section, Table, Tile
from pymllm.report.documents import AnyDocument
from pymllm.report.loading import Run
from pymllm.report.search_documents import SituationsDocument, SoakDocument, VerifyDocument

__all__ = ["make_situations_section"]

_ID = "situations"


_Key = tuple[str, str]
"""Kind and name: situations of several kinds have the same name."""


@dataclass(slots=True)
class _Counted:
    """How often each situation was met, and who should have met it and did not."""

    searched: Counter[_Key] = field(default_factory=Counter)
    soaked: Counter[_Key] = field(default_factory=Counter)
    unmet: dict[_Key, set[str]] = field(default_factory=dict)
    listed: set[_Key] = field(default_factory=set)

    def add(self, document: AnyDocument) -> None:
        """Count what a document tells."""
        if isinstance(document, VerifyDocument):
            kinds = {it.name: adapter.kind for adapter in document.adapters for it in adapter.machines}
            for row in document.situations:
                key = kinds.get(row.machine) or "", row.name
                self.searched[key] += row.times
                self.unmet.setdefault(key, set()).update(row.unmet)
        elif isinstance(document, SoakDocument):
            for adapter in document.adapters:
                self.soaked.update(
                    {(adapter.kind, name): times for name, times in adapter.situations.items()}
                )
                for name in adapter.missing_situations:
                    self.unmet.setdefault((adapter.kind, name), set()).add(adapter.name)
        elif isinstance(document, SituationsDocument):
            self.listed.update((it.kind, it.name) for it in document.situations)

    def times(self, key: _Key) -> int:
        """Return how often a situation was met at all."""
        return self.searched[key] + self.soaked[key]

    def known(self) -> dict[_Key, Situation]:
        """Return the situations that were asked for, as the registry has them, in its order."""
        asked = {*self.searched, *self.soaked, *self.unmet, *self.listed}
        return {key: it for it in SITUATIONS if (key := (it.kind, it.name)) in asked}


def make_situations_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the situations over all runs; ``None`` where nobody counted them."""
    counted = _Counted()
    for run in runs:
        for document in run.documents:
            counted.add(document)
    known = counted.known()
    if not known:
        return None
    never = [it for key, it in known.items() if not counted.times(key) and counted.unmet.get(key)]
    blocks = [_never(never, counted)] if never else []
    for kind in KINDS:
        of_kind = [it for it in known.values() if it.kind == kind]
        if of_kind:
            blocks.append(_table(kind, of_kind, counted))
    reached = sum(counted.times(key) > 0 for key in known)
    return Section(
        _ID,
        "Situations",
        "A law that was tested only in easy states was hardly tested. Situations are states in which "
        "something is at stake; the numbers say how often all runs of this report met each. Until one was "
        "reached, silence about it means nothing.",
        blocks,
        (Tile(f"{reached} of {len(known)}", "situations reached", UNKNOWN if never else GOOD, f"#{_ID}"),),
    )


def _table(kind: str, situations: Sequence[Situation], counted: _Counted) -> Table:
    columns = (
        Column("situation"),
        Column("in searches", is_number=True),
        Column("in soaks", is_number=True),
        Column("laws at stake"),
        Column("bugs that lived in it"),
    )
    reached = sum(counted.times((kind, it.name)) > 0 for it in situations)
    rows = tuple(_row(it, counted) for it in situations)
    return Table(f"{kind}: {reached} of {len(situations)} reached", columns, rows, folded=True)


def _never(situations: Sequence[Situation], counted: _Counted) -> Table:
    columns = (Column("situation"), Column("kind"), Column("laws at stake"), Column("expected of"))
    rows = tuple(
        (
            Cell(it.name),
            Cell(it.kind),
            Cell(", ".join(it.laws)),
            Cell(", ".join(sorted(counted.unmet[it.kind, it.name])), UNKNOWN),
        )
        for it in situations
    )
    return Table("Expected, and never reached", columns, rows)


def _row(it: Situation, counted: _Counted) -> tuple[Cell, ...]:
    key = it.kind, it.name
    tone = None if counted.times(key) else UNKNOWN
    return (
        Cell(it.name),
        Cell(f"{counted.searched[key]:,}", tone),
        Cell(f"{counted.soaked[key]:,}", tone),
        Cell(", ".join(it.laws)),
        Cell(", ".join(it.bugs) or "none known", None if it.bugs else QUIET),
    )
