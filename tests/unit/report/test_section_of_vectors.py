"""The section of vectors: implementations by their newest run, and each vector that failed."""

from __future__ import annotations

from pymllm.report.sections.vectors import make_vectors_section, tell_vectors
from tests.unit.report import samples
from tests.unit.report.looking import look


def test_the_newest_run_of_each_implementation_is_listed() -> None:
    """With what failed and is not known in the tile."""
    older = samples.run(samples.vectors(passed=7), time="2026-11-20T15:03:11Z")
    other = samples.vectors(adapter="x", passed=3, failed=0, unknown=0, verdict="holds", vectors=[])
    found = look(make_vectors_section, older, samples.run(samples.vectors(), other))
    assert found.tables["Implementations"] == [
        "rows | rows | 1.1.0 | ✗ fails | 1 | 2 | 1 | 0 | 1",
        "x | rows | 1.1.0 | ✓ passes | 3 | 0 | 0 | 0 | 1",
    ]
    assert found.tiles == [("4 of 6", "vectors passed that were played to the end", "bad")]


def test_each_vector_that_failed_is_told_with_the_reason() -> None:
    """Known deviations beside others."""
    found = look(make_vectors_section, samples.run(samples.vectors()))
    assert found.columns("Vectors that failed", 0, 3, 5) == [
        ("rows-P1-00000002", "2", "no"),
        ("rows-P1-00000003", "1", "told upstream"),
    ]


def test_vectors_that_were_all_skipped_prove_nothing() -> None:
    """Neither good nor bad."""
    skipped = samples.vectors(passed=0, failed=0, unknown=0, verdict="unknown", vectors=[])
    found = look(make_vectors_section, samples.run(skipped))
    assert [tone for _, _, tone in found.tiles] == ["unknown"]
    assert list(found.tables) == ["Implementations"]


def test_without_vectors_there_is_no_section() -> None:
    """It is left out."""
    assert look(make_vectors_section, samples.run(samples.doctor())).parts == []


def test_vectors_stand_in_test_reports_metrics_and_the_headline() -> None:
    """A failure that no file lists is one; known and skipped vectors are skipped."""
    told = tell_vectors([samples.run(samples.vectors())])
    assert told.bad == ["1 vector failed"]
    (suite,) = told.suites
    assert [case.outcome for case in suite.cases] == [None, "failure", "skipped", "skipped"]
    assert [case.message for case in suite.cases[1:]] == [
        "step 2: result.slots: expected [1], seen [0]",
        "known: told upstream",
        "does not claim pool",
    ]
    counts = {it.labels["verdict"]: it.value for family in told.families for it in family.samples}
    assert counts == {"passed": 1, "failed": 2, "other_way": 0, "skipped": 1}
    holds = samples.vectors(failed=0, unknown=0, verdict="holds", vectors=[])
    assert tell_vectors([samples.run(holds)]).good == "all vectors that were played passed"
    assert tell_vectors([samples.run(samples.doctor())]).good == ""
