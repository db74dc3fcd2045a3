"""The section of test vectors played on implementations: the failed ones, and the number that passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pymllm.documents.faults import VectorRow, VectorsDocument
from pymllm.instrument.openmetrics import Family, Sample
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    GOOD,
    PAGE,
    TERMINAL,
    UNKNOWN,
    Cell,
    Column,
    Part,
    Table,
    Text,
    Tile,
    make_table,
    number,
)
from pymllm.report.findings import verdict_cell
from pymllm.report.loading import Run, documents_of
from pymllm.report.outcomes import Case, Outcome, Suite, counted
from pymllm.report.quantities import show_count
from pymllm.text_file import cut

_VERDICTS = {Verdict.HOLDS: "passes", Verdict.VIOLATED: "fails", Verdict.UNKNOWN: "all skipped"}


def newest_vectors(runs: Sequence[Run]) -> list[VectorsDocument]:
    """Return the results of the vectors on each implementation, from its newest run."""
    found = {document.adapter: document for document, _ in documents_of(runs, VectorsDocument)}
    return list(found.values())


def make_vectors_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of implementations and of each vector that failed on one."""
    documents = newest_vectors(runs)
    if not documents:
        return
    yield _implementations(documents)
    failed = [(it, row) for it in documents for row in it.vectors if row.verdict == "failed"]
    if failed:
        yield make_table("Vectors that failed", failed, _FAILED, only=PAGE)
        yield make_table("Vectors that failed", failed[:_SHOWN], _FAILED, only=TERMINAL)
    if len(failed) > _SHOWN:
        yield Text(f"and {len(failed) - _SHOWN} more; --json has all", only=TERMINAL)
    for it in documents:
        reasons = Counter(cut(row.why, 160) for row in it.vectors if row.verdict == "skipped")
        for why, count in sorted(reasons.items()):
            yield Text(f"    {count} skipped: {why}", only=TERMINAL)
        for id in it.unexpected:
            yield Text(f"{id}  passes on {it.adapter}, and is listed as a known deviation", UNKNOWN)
    wrong = sum(it.unknown for it in documents)
    passed, played = sum(it.passed for it in documents), sum(it.passed + it.failed for it in documents)
    tone = BAD if wrong else GOOD if passed else UNKNOWN
    yield Tile(f"{passed:,} of {played:,}", "vectors passed that were played to the end", tone)


def tell_vectors(runs: Sequence[Run]) -> Outcome:
    """Return the outcome of the vectors on each implementation; known deviations are no failures."""
    documents = newest_vectors(runs)
    failed = [(it, row) for it in documents for row in it.vectors if row.verdict == "failed"]
    counts = tuple(
        Sample(getattr(it, name), {"adapter": it.adapter, "verdict": name})
        for it in documents
        for name in ("passed", "failed", "other_way", "skipped")
    )
    return Outcome(
        bad=counted(sum(it.unknown for it in documents), "vector failed", "vectors failed"),
        good="all vectors that were played passed" if any(it.passed for it in documents) else "",
        parts=[make_table("Vectors that failed", failed, _FAILED)],
        suites=[Suite(f"vectors {it.adapter}", 0.0, [*map(_case, it.vectors)]) for it in documents],
        families=[Family("pymllm_vectors", "gauge", "", "Vectors by verdict.", counts)],
    )


def _case(row: VectorRow) -> Case:
    name = f"{row.id} {row.law}: {row.says}"
    if row.verdict == "failed" and not row.known:
        return Case("vectors", name, "failure", f"step {row.step}: {row.why}")
    if row.verdict in ("failed", "skipped"):
        return Case("vectors", name, "skipped", f"known: {row.known}" if row.known else row.why)
    return Case("vectors", name)


def _implementations(documents: Sequence[VectorsDocument]) -> Table:
    columns = [
        Column("implementation", lambda it: it.adapter),
        Column("kind", lambda it: it.kind),
        Column("vectors", lambda it: it.vectors_version),
        Column("verdict", lambda it: verdict_cell(it.verdict, _VERDICTS[it.verdict])),
        number("passed", lambda it: show_count(it.passed)),
        number("failed", lambda it: show_count(it.failed)),
        number("of them known", lambda it: show_count(it.failed - it.unknown)),
        number("other way", lambda it: show_count(it.other_way)),
        number("skipped", lambda it: show_count(it.skipped)),
    ]
    return make_table("Implementations", documents, columns)


_SHOWN = 20
_FAILED = (
    Column("vector", lambda it: it[1].id),
    Column("implementation", lambda it: it[0].adapter, only=PAGE),
    Column("law", lambda it: f"{it[1].law}: {it[1].says}"),
    number("step", lambda it: str(it[1].step)),
    Column("why", lambda it: cut(it[1].why, 300)),
    Column("known", lambda it: Cell(it[1].known) if it[1].known else Cell("no", BAD)),
)
