"""Which states worth reaching were reached, by searches and by soaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pymllm.oracle.operations import KINDS
from pymllm.oracle.situation import Situation
from pymllm.oracle.situations import SITUATIONS
from pymllm.report.blocks import GOOD, QUIET, UNKNOWN, Cell, Column, Section, Table, Tile
from pymllm.report.documents import SituationsDocument, SoakDocument, VerifyDocument
from pymllm.report.loading import Run

__all__ = ["make_situations_section"]

_ID = "situations"


def make_situations_section(runs: Sequence[Run]) -> Section | None:
    """Lay out the situations over all runs; ``None`` where nobody counted them."""
    searched: Counter[str] = Counter()
    soaked: Counter[str] = Counter()
    expected: dict[str, set[str]] = {}
    listed: set[str] = set()
    for run in runs:
        for document in run.documents:
            if isinstance(document, VerifyDocument):
                for row in document.situations:
                    searched[row.name] += row.times
                    expected.setdefault(row.name, set()).update(row.unmet)
            elif isinstance(document, SoakDocument):
                for adapter in document.adapters:
                    soaked.update(adapter.situations)
                    for name in adapter.missing_situations:
                        expected.setdefault(name, set()).add(adapter.name)
            elif isinstance(document, SituationsDocument):
                listed.update(it.name for it in document.situations)
    asked = {*searched, *soaked, *expected, *listed}
    if not asked:
        return None
    known = [it for it in SITUATIONS if it.name in asked]
    never = [it for it in known if not searched[it.name] + soaked[it.name] and expected.get(it.name)]
    columns = (
        Column("situation"),
        Column("in searches", is_number=True),
        Column("in soaks", is_number=True),
        Column("laws at stake"),
        Column("bugs that lived in it"),
    )
    blocks = [_never(never, expected)] if never else []
    for kind in KINDS:
        of_kind = [it for it in known if it.kind == kind]
        if of_kind:
            reached = sum(bool(searched[it.name] + soaked[it.name]) for it in of_kind)
            rows = tuple(_row(it, searched[it.name], soaked[it.name]) for it in of_kind)
            blocks.append(Table(f"{kind}: {reached} of {len(of_kind)} reached", columns, rows, folded=True))
    reached = sum(bool(searched[it.name] + soaked[it.name]) for it in known)
    return Section(
        _ID,
        "Situations",
        "A law that was tested only in easy states was hardly tested. Situations are states in which "
        "something is at stake; the numbers say how often all runs of this report met each. Until one was "
        "reached, silence about it means nothing.",
        blocks,
        (Tile(f"{reached} of {len(known)}", "situations reached", UNKNOWN if never else GOOD, f"#{_ID}"),),
    )


def _never(situations: Sequence[Situation], expected: Mapping[str, set[str]]) -> Table:
    columns = (Column("never reached"), Column("laws at stake"), Column("expected of"))
    rows = tuple(
        (Cell(it.name), Cell(", ".join(it.laws)), Cell(", ".join(sorted(expected[it.name])), UNKNOWN))
        for it in situations
    )
    return Table("Expected, and never reached", columns, rows)


def _row(it: Situation, searched: int, soaked: int) -> tuple[Cell, ...]:
    tone = None if searched + soaked else UNKNOWN
    return (
        Cell(it.name),
        Cell(f"{searched:,}", tone),
        Cell(f"{soaked:,}", tone),
        Cell(", ".join(it.laws)),
        Cell(", ".join(it.bugs) or "none known", None if it.bugs else QUIET),
    )
