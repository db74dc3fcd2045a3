"""Vectors played on implementations: what failed, and how many passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymllm.documents.faults import VectorRow, VectorsDocument
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    GOOD,
    QUIET,
    UNKNOWN,
    Cell,
    Column,
    Part,
    Table,
    Tile,
    make_table,
    number,
)
from pymllm.report.loading import Run, documents_of
from pymllm.report.quantities import show_count

_VERDICTS = {
    Verdict.HOLDS: ("✓ passes", GOOD),
    Verdict.VIOLATED: ("✗ fails", BAD),
    Verdict.UNKNOWN: ("? all skipped", UNKNOWN),
}


def newest_vectors(runs: Sequence[Run]) -> list[VectorsDocument]:
    """Return what became of the vectors on each implementation, as its newest run found it."""
    found = {document.adapter: document for document, _ in documents_of(runs, VectorsDocument)}
    return list(found.values())


def make_vectors_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Lay out the implementations, and each vector that failed on one."""
    documents = newest_vectors(runs)
    if not documents:
        return
    yield _implementations(documents)
    failed = [(it, row) for it in documents for row in it.vectors if row.verdict == "failed"]
    if failed:
        yield _failures(failed)
    wrong = sum(it.unknown for it in documents)
    passed, played = sum(it.passed for it in documents), sum(it.passed + it.failed for it in documents)
    tone = BAD if wrong else GOOD if passed else UNKNOWN
    yield Tile(f"{passed:,} of {played:,}", "vectors passed that were played to the end", tone)


def _implementations(documents: Sequence[VectorsDocument]) -> Table:
    columns = [
        Column("implementation", lambda it: it.adapter),
        Column("kind", lambda it: it.kind),
        Column("vectors", lambda it: it.vectors_version),
        Column("verdict", lambda it: Cell(*_VERDICTS[it.verdict])),
        number("passed", lambda it: show_count(it.passed)),
        number("failed", lambda it: show_count(it.failed)),
        number("of them known", lambda it: show_count(it.failed - it.unknown)),
        number("other way", lambda it: show_count(it.other_way)),
        number("skipped", lambda it: show_count(it.skipped)),
    ]
    return make_table("Implementations", documents, columns)


def _failures(failed: Sequence[tuple[VectorsDocument, VectorRow]]) -> Table:
    columns = [
        Column("vector", lambda it: it[1].id),
        Column("implementation", lambda it: it[0].adapter),
        Column("law", lambda it: f"{it[1].law}: {it[1].says}"),
        number("step", lambda it: str(it[1].step)),
        Column("why", lambda it: it[1].why),
        Column("known", lambda it: Cell(it[1].known, QUIET) if it[1].known else Cell("no", BAD)),
    ]
    return make_table("Vectors that failed", failed, columns)
