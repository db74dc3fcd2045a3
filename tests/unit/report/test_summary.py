"""The summary of runs as Markdown, and figures for Bencher and Prometheus."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pymllm.report.feeds import make_bencher_feed, make_openmetrics
from pymllm.report.records import Figure
from pymllm.report.summary import MOST_ROWS, make_summary
from tests.unit.report import samples
from tests.unit.report.test_trends import FIGURE, OTHER, days

HOLDS = samples.verify(samples.adapter("rows", "rows", [samples.law("P1", "holds")]))
UNKNOWN = samples.verify(samples.adapter("rows", "rows", [samples.law("P1", "unknown")]))
UNASKED = samples.verify(samples.adapter("rows", None, []))


@pytest.mark.parametrize(
    ("plain", "headline"),
    [
        (HOLDS, "## ✅ pymllm: all laws that apply hold"),
        (UNKNOWN, "## ⚠️ pymllm: 1 verdict unknown"),
        (UNASKED, "## ⚠️ pymllm: 1 verdict unknown"),
        (samples.verify(), "## ❌ pymllm: 1 violation of a law, 1 verdict unknown"),
        (samples.soak(), "## ✅ pymllm: the soak found nothing"),
        (samples.soak(interrupted=True), "## ✅ pymllm: the soak found nothing until it was interrupted"),
        (samples.soak(samples.soak_failure("R6")), "## ❌ pymllm: 1 failure in a soak"),
        (samples.doctor(), "## pymllm: no laws were searched"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_the_verdict_is_the_first_line(plain: dict[str, Any], headline: str) -> None:
    """The headline is the worst verdict of all runs, and laws without a search are not green."""
    assert make_summary([samples.run(plain)]).splitlines()[0] == headline


def test_a_violation_has_a_row_with_the_command_that_shows_it_again() -> None:
    """Whoever reads the comment need not open the log."""
    summary = make_summary([samples.run(samples.verify())])
    (row,) = (line for line in summary.splitlines() if line.startswith("| P2"))
    assert row == (
        "| P2 | <code>faulty-x</code> | <code>row 1 &lt;position 3&gt;</code> | <code>0</code> "
        "| <code>1</code> | <code>2026-11-21 15:03:11 UTC, verify; no run has tested the law since</code> "
        "| <code>pymllm rerun runs/faulty-x-P2-0.jsonl --adapter faulty-x</code> |"
    )
    assert "| <code>rows</code> | 0 | 0 | 2 | 1 | 1,248 | <code>profile ci</code> |" in summary
    assert "| <code>faulty-x</code> | <code>no program tested X4</code> |" in summary


def searched(*verdicts: str, name: str = "x", **changes: Any) -> list[samples.Run]:
    """A run a day of an implementation, in which P2 had these verdicts."""
    return [
        samples.run(
            samples.verify(
                samples.adapter(
                    name,
                    "rows",
                    [samples.law("P2", verdict)],
                    violations=[samples.violation("P2")] * (verdict == "violated"),
                ),
                **changes,
            ),
            time=f"2026-11-{day:02}T00:00:00Z",
            commit=f"{day}" * 40,
            pymllm="0.1.0",
        )
        for day, verdict in enumerate(verdicts, 1)
    ]


def test_a_run_of_one_implementation_hides_no_other_s_change() -> None:
    """A summary of runs with one implementation each shows the fixes of all implementations."""
    a, b = (searched("violated", "holds", name=name) for name in "ab")
    summary = make_summary([a[0], b[0], a[1], b[1]])
    assert "### Fixed" in summary
    assert summary.count("| P2 | <code>a</code>") == summary.count("| P2 | <code>b</code>") == 1


def test_a_violation_says_since_when_it_is_there() -> None:
    """The first run that broke the law, and how many have since; a run that did not test it says nothing."""
    summary = make_summary(searched("holds", "violated", "unknown", "holds", "violated"))
    version = "pymllm 0.1.0"
    assert (
        f"2026-11-02 00:00:00 UTC, verify, commit 222222222222, {version}; "
        f"held in 2026-11-04 00:00:00 UTC, verify, commit 444444444444, {version}; "
        f"broken again since 2026-11-05 00:00:00 UTC, verify, commit 555555555555, {version}; "
        "2 of the 3 runs that tested the law since then broke it"
    ) in summary


def test_what_was_fixed_is_told_and_what_nobody_tests_any_more_is_not_fixed() -> None:
    """Since the run before, with both runs."""
    summary = make_summary(searched("violated", "holds"))
    (row,) = (line for line in summary.splitlines() if line.startswith("| P2"))
    assert row.startswith("| P2 | <code>x</code> | <code>2026-11-01 00:00:00 UTC, ")
    assert "### Fixed" not in make_summary(searched("violated", "unknown"))
    assert "### Fixed" not in make_summary(searched("holds"))


def test_a_search_that_was_cut_short_says_so() -> None:
    """In the first line, and how much was played; so does a soak that was interrupted."""
    row = samples.adapter("rows", "rows", [samples.law("P1", "holds")])
    row["machines"][0] |= {"programs": 15, "promised": 51}
    summary = make_summary([samples.run(samples.verify(row)), samples.run(samples.soak(interrupted=True))])
    assert summary.startswith("## ⚠️ pymllm: all laws that apply hold; 1 search cut short\n")
    assert "| <code>rows</code> | <code>cut short: time was up after 15 of 51 programs</code> |" in summary
    assert "### Soak (interrupted)" in summary


def test_an_implementation_that_could_not_be_started_is_unknown_with_its_reason() -> None:
    """It has no laws to count."""
    row = samples.adapter("x", None, [], problems=[{"message": "no module"}])
    summary = make_summary([samples.run(samples.verify(row))])
    assert "| <code>x</code> | <code>no module</code> |" in summary
    assert "| <code>x</code> | 0 | all | 0 | 0 | 0 | <code>profile ci</code> |" in summary


def test_names_of_others_are_neither_markup_nor_mentions() -> None:
    """A pull request may come from anybody, and the comment is in the project's name."""
    name = "x|<img src=//host>`\n@team"
    broken = samples.violation("P2", message=name, file=None)
    row = samples.adapter(name, "rows", [samples.law("P2", "violated")], violations=[broken])
    summary = make_summary([samples.run(samples.verify(row))])
    code = "<code>x&#124;&lt;img src=//host&gt;` @team</code>"
    assert f"| P2 | {code} | {code} |" in summary
    assert "<img" not in summary


def test_long_tables_are_cut_and_say_so() -> None:
    """A comment has at most 65,536 letters, and a step's summary a megabyte."""
    rows = [samples.adapter(f"a{n:03}", "rows", [samples.law("P1", "holds")]) for n in range(MOST_ROWS + 5)]
    assert "\n\nand 5 more" in make_summary([samples.run(samples.verify(*rows))])


def test_figures_that_moved_are_listed_the_worse_ones_first() -> None:
    """As `pymllm diff` does it: no figure whose spreads overlap, and none without a spread."""
    match = replace(FIGURE, low=9.0, high=11.0)
    insert, same = replace(match, name="insert"), replace(match, name="same")
    runs = days(insert, replace(insert, value=5.0, low=4.0, high=6.0))
    runs += days(match, replace(match, value=12.0, low=11.5, high=13.0))
    runs += days(same, replace(same, value=10.4)) + days(
        replace(FIGURE, name="one"), replace(FIGURE, name="one", value=99.0)
    )
    rows = [line for line in make_summary(runs).splitlines() if line.startswith("| <code>")]
    assert rows == [
        "| <code>match</code> | 10 µs | 12 µs | +20.0% | worse |",
        "| <code>insert</code> | 10 µs | 5 µs | -50.0% | better |",
    ]


def test_faults_and_soaks_have_their_counts() -> None:
    """Those that were missed by name."""
    summary = make_summary([samples.run(samples.faults()), samples.run(samples.soak())])
    assert (
        "### Planted faults\n\n| planted | caught | missed |\n| --- | --- | --- |\n| 2 | 1 | 1 |" in summary
    )
    assert "| <code>radix</code> | 144,768 | 0 |" in summary


# -- Bencher -----------------------------------------------------------------------------------------------


def test_bencher_has_values_with_the_ends_of_their_spread() -> None:
    """Times in nanoseconds under its own measure; the newest value of each."""
    newest = replace(FIGURE, value=8.0, low=7.5, high=9.0)
    share = Figure("hit rate", 0.5, "share", "bigger")
    speed = Figure("judged", 7.0, "operations/s", "bigger")
    nodes = Figure("nodes", 3, "")
    found = json.loads(make_bencher_feed([*days(FIGURE, newest), samples.run(figures=(share, speed, nodes))]))
    assert found == {
        "match": {"latency": {"value": 8000.0, "lower_value": 7500.0, "upper_value": 9000.0}},
        "hit rate": {"percent": {"value": 50.0}},
        "judged": {"operations-per-second": {"value": 7.0}},
        "nodes": {"count": {"value": 3}},
    }


def test_bencher_never_compares_two_machines() -> None:
    """Each has the machine in its name."""
    found = json.loads(make_bencher_feed([*days(FIGURE), *days(FIGURE, machine=OTHER)]))
    assert sorted(found) == sorted(
        f"match [{machine.fingerprint}, code c0de]" for machine in (samples.MACHINE, OTHER)
    )


# -- OpenMetrics -------------------------------------------------------------------------------------------


def test_openmetrics_is_read_by_prometheus_own_parser() -> None:
    """Verdicts, campaigns, figures in base units, and when it was."""
    figures = (
        FIGURE,
        Figure("peak", 2048, "bytes"),
        Figure("rate", 0.5, "share"),
        Figure("nodes", 3, "nodes"),
    )
    runs = [
        samples.run(samples.verify(), figures=figures, time="2026-11-21T00:00:00Z"),
        samples.run(
            samples.verify(samples.adapter("gone", None, [], problems=[{"message": "no module"}])),
            kind="compare",
        ),
        samples.run(samples.soak(samples.soak_failure("R6")), kind="soak"),
        samples.run(samples.faults(), kind="faults"),
    ]
    text = make_openmetrics(runs)
    found = {
        (
            sample.name,
            *(value for name, value in sorted(sample.labels.items()) if name not in ("machine", "code")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["pymllm_laws", "rows", "holds"] == 2
    assert found["pymllm_laws", "rows", "not_claimed"] == 1
    assert found["pymllm_law_violated", "faulty-x", "P2"] == 1
    assert found["pymllm_problem", "gone", "no module"] == 1
    assert found["pymllm_faults", "caught"] == found["pymllm_faults", "missed"] == 1
    assert found["pymllm_soak_operations", "radix"] == 144_768
    assert found["pymllm_soak_failures", "radix"] == 1
    assert found["pymllm_figure_seconds", "match"] == pytest.approx(1e-5)
    assert found["pymllm_figure_bytes", "peak"] == 2048
    assert found["pymllm_figure_ratio", "rate"] == 0.5
    assert found["pymllm_figure", "nodes", "nodes"] == 3
    assert found["pymllm_run_time_seconds", "verify"] == 1795219200
