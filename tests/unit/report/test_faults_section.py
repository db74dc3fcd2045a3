"""The faults."""

from __future__ import annotations

from pymllm.report.faults_section import make_faults_section
from tests.unit.report import samples
from tests.unit.report.looking import figures, tables


def test_faults_are_listed_with_who_caught_them() -> None:
    """What was missed comes first."""
    section = make_faults_section([samples.run(samples.faults())])
    found = tables(section)
    assert found["Faults"] == [
        ["B02", "title of B02", "R6", "✗ missed", "nobody", "never", "never", "not made"],
        ["B01", "title of B01", "R6", "✓ caught", "machine (R6), sweep (R6)", "20", "250 ms", "3 operations"],
    ]
    assert found["Searchers"] == [["machine", "1", "20", "250 ms"], ["sweep", "1", "200", "250 ms"]]
    assert section is not None
    assert (section.tiles[0].value, section.tiles[0].tone) == ("1 of 2", "bad")


def test_the_picture_has_a_point_for_each_detection() -> None:
    """On a logarithmic axis, where a violation before the first operation has no zero to stand on."""
    fault = samples.fault("B01", samples.detection(0, "machine", 0), samples.detection(1, "machine", 30))
    (figure,) = figures(make_faults_section([samples.run(samples.faults(fault))]))["plot-faults"].values()
    assert list(figure.data[0].x) == [1, 30]
    assert "title of B01" in figure.data[0].text[0]


def test_the_newest_run_of_a_fault_counts_and_its_problem_is_told() -> None:
    """A later run of one fault does not hide the others."""
    old = samples.run(samples.faults(samples.fault("B10"), samples.fault("faulty-x")))
    caught = samples.fault("B10", samples.detection(0, "soak", 5))
    section = make_faults_section(
        [old, samples.run(samples.faults(caught, samples.fault("B9", problems=["no"])))]
    )
    rows = tables(section)["Faults"]
    assert [(row[0], row[3]) for row in rows] == [
        ("B9", "✗ missed: no"),
        ("faulty-x", "✗ missed"),
        ("B10", "✓ caught"),
    ]


def test_where_nothing_was_caught_there_is_no_picture() -> None:
    """An empty one would say less than the table."""
    section = make_faults_section([samples.run(samples.faults(samples.fault("B01")))])
    assert figures(section) == {}


def test_without_faults_there_is_no_section() -> None:
    """It would be empty."""
    assert make_faults_section([samples.run(samples.verify())]) is None
