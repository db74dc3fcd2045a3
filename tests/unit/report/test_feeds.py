"""Feeds for other people's dashboards."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from pymllm.report.feeds import (
    make_action_feed,
    make_badge,
    make_junit,
    make_vectors_badge,
    write_junit,
)
from pymllm.report.outcomes import Case, Suite
from pymllm.report.records import Figure
from tests.unit.report import samples
from tests.unit.report.test_trends import FIGURE, OTHER, days

# -- badge -----------------------------------------------------------------------------------------------


HOLDS, VIOLATED, UNKNOWN = (
    samples.law(*it) for it in (("P1", "holds"), ("P2", "violated"), ("P3", "unknown"))
)


@pytest.mark.parametrize(
    ("laws", "message", "color"),
    [
        ([HOLDS], "1 holds", "brightgreen"),
        ([HOLDS, HOLDS], "2 hold", "brightgreen"),
        ([HOLDS, UNKNOWN], "1 unknown, 1 holds", "yellow"),
        ([HOLDS, UNKNOWN, VIOLATED], "1 violated, 1 unknown, 1 holds", "red"),
    ],
)
def test_the_worst_verdict_gives_the_colour(laws: list[Any], message: str, color: str) -> None:
    """The words have all of them."""
    badge = json.loads(make_badge([samples.run(samples.verify(samples.adapter("rows", "rows", laws)))]))
    assert badge == {"schemaVersion": 1, "label": "laws", "message": message, "color": color}


def test_green_is_a_claim() -> None:
    """Yellow where an implementation could not be examined, grey where nothing was searched."""
    adapters = (samples.adapter("rows", "rows", [HOLDS]), samples.adapter("x", None, [], verdict="unknown"))
    assert json.loads(make_badge([samples.run(samples.verify(*adapters))]))["color"] == "yellow"
    badge = json.loads(make_badge([samples.run(samples.faults())]))
    assert (badge["message"], badge["color"]) == ("not searched", "lightgrey")


@pytest.mark.parametrize(
    ("changes", "message", "color"),
    [
        ({}, "1 fail, 1 known, 1 pass", "red"),
        ({"unknown": 0, "verdict": "holds"}, "2 known, 1 pass", "brightgreen"),
        ({"unknown": 0, "failed": 0, "passed": 0, "verdict": "unknown"}, "all skipped", "yellow"),
    ],
)
def test_a_badge_of_vectors_counts_them(changes: dict[str, Any], message: str, color: str) -> None:
    """A known deviation is no failure; the newest run of an implementation counts."""
    older = samples.run(samples.vectors(passed=7, unknown=5), time="2026-11-20T15:03:11Z")
    badge = json.loads(make_vectors_badge([older, samples.run(samples.vectors(**changes))]))
    assert badge == {"schemaVersion": 1, "label": "vectors", "message": message, "color": color}


def test_vectors_that_nobody_played_are_grey() -> None:
    """Whatever else was run."""
    badge = json.loads(make_vectors_badge([samples.run(samples.faults())]))
    assert (badge["message"], badge["color"]) == ("not played", "lightgrey")


# -- action feed -----------------------------------------------------------------------------------------


def feed(runs: list[samples.Run], better: str = "smaller") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(make_action_feed(runs, better))
    return found


def test_an_entry_has_what_the_action_asks_for() -> None:
    """Name, unit, value; the newest one, with its spread and where it is from."""
    newest = replace(FIGURE, value=8.0, low=7.5, high=9.0)
    (entry,) = feed(days(FIGURE, newest, commit="ab" * 20, modified=True))
    assert entry == {
        "name": "match",
        "unit": "us",
        "value": 8.0,
        "range": "7.5 µs to 9 µs",
        "extra": f"machine: {samples.MACHINE.fingerprint}, code c0de\ntime: 2026-11-02T00:00:00Z\n"
        f"commit: {'ab' * 20}, modified",
    }


def test_each_direction_is_an_array_of_its_own() -> None:
    """The action takes one for each, and demands a unit; facts are in neither."""
    assert feed(days(Figure("ratio", 0.5, "", "smaller")))[0]["unit"] == "count"
    run = samples.run(figures=(FIGURE, Figure("rate", 0.5, "share", "bigger"), Figure("nodes", 3, "")))
    assert [entry["name"] for entry in feed([run])] == ["match"]
    assert [(entry["name"], entry["unit"], entry["value"]) for entry in feed([run], "bigger")] == [
        ("rate", "%", 50.0)
    ]


def test_figures_of_two_machines_or_codes_have_two_names() -> None:
    """The action knows a figure by its name alone, and would compare them."""
    runs = [*days(FIGURE, replace(FIGURE, code=None)), *days(FIGURE, machine=OTHER)]
    runs += days(FIGURE, machine=None)
    names = {entry["name"] for entry in feed(runs)}
    here = samples.MACHINE.fingerprint
    assert names == {
        f"match [{here}, code c0de]",
        f"match [{here}]",
        f"match [{OTHER.fingerprint}, code c0de]",
        "match [store/2026-11-01T00:00:00Z.run.jsonl, code c0de]",
    }


def test_what_the_action_reads_by_itself_is_left_out() -> None:
    """Medians of pytest-benchmark; a figure of another run that is called so is not."""
    median = replace(FIGURE, name="x: median")
    assert feed(days(median, kind="benchmark")) == []
    assert len(feed(days(median, kind="gpu-stress"))) == 1


# -- junit feed ------------------------------------------------------------------------------------------


def suites(*runs: samples.Run) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(make_junit(runs))
    return {str(suite.get("name")): suite for suite in root}


def outcomes(suite: ElementTree.Element) -> list[tuple[str, str]]:
    """Each case's name, and what it came to."""
    return [(str(case.get("name")), case[0].tag if len(case) else "passed") for case in suite]


def test_a_law_is_a_case_of_its_implementation() -> None:
    """Violated: a failure; unknown: an error; not claimed: skipped."""
    found = suites(samples.run(samples.verify()))
    assert outcomes(found["faulty-x"]) == [("P2 sentence of P2", "failure"), ("X4 sentence of X4", "error")]
    assert [outcome for _, outcome in outcomes(found["rows"])] == ["passed", "skipped", "passed"]
    counts = {
        name: found["faulty-x"].get(name) for name in ("tests", "failures", "errors", "skipped", "time")
    }
    assert counts == {"tests": "2", "failures": "1", "errors": "1", "skipped": "0", "time": "0.500"}
    failure = found["faulty-x"][0][0]
    said = "P2: row 1 <position 3>: expected 0, observed 1"
    assert (failure.get("message"), failure.text) == (said, f"{said}\n\nrun_program('faulty-x')")


def test_an_implementation_that_could_not_be_examined_is_an_error() -> None:
    """With why, as far as anybody knows; one violation without a program is a failure all the same."""
    broken = samples.adapter("x", None, [], problems=[{"message": "cannot\x00 load", "file": None}])
    bare = samples.adapter("y", "rows", [samples.law("P2", "violated"), samples.law("X1", "unknown")])
    found = suites(samples.run(samples.verify(broken, bare)))
    assert outcomes(found["x"]) == [("smoke test", "error")]
    assert found["x"][0][0].get("message") == "cannot? load"
    assert [case[0].get("message") for case in found["y"]] == ["violated", "no program tested it"]
    assert [case[0].text for suite in found.values() for case in suite] == [
        "cannot? load", "violated", "no program tested it",
    ]  # fmt: skip


def test_a_missed_fault_is_a_failure() -> None:
    """A missed fault is a failure, with its problem or the laws that did not catch it."""
    faults = samples.faults(
        samples.fault("B01", samples.detection(0, "machine", 3)),
        samples.fault("B02"),
        samples.fault("B04", problems=["no place"]),
    )
    suite = suites(samples.run(faults))["faults"]
    assert [outcome for _, outcome in outcomes(suite)] == ["passed", "failure", "failure"]
    assert [case[0].get("message") for case in suite if len(case)] == ["no law of R6 caught it", "no place"]


def test_a_soak_passes_or_names_what_broke() -> None:
    """A problem with an adapter is an error, not a failure."""
    assert outcomes(suites(samples.run(samples.soak()))["soak radix"]) == [("144,768 operations", "passed")]
    failed = samples.soak(samples.soak_failure("R6"), samples.soak_failure(None))
    suite = suites(samples.run(failed))["soak radix"]
    assert outcomes(suite) == [("R6", "failure"), ("asked to the end", "error")]
    assert suite[0][0].text == "seed 77 in PrefixMachine, 2 runs"


# -- junit xml -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["\x00", "\x1b", "\ud800", "\ufffe"])
def test_what_xml_has_no_character_for_is_a_question_mark(bad: str) -> None:
    """Or nobody could read the file."""
    case = Case(f"s{bad}", f"n{bad}", "error", f"m{bad}", f"t{bad}")
    (suite,) = ElementTree.fromstring(write_junit("x", [Suite(f"s{bad}", 0.0, [case])]))
    assert suite.get("name") == "s?"
    assert (suite[0].get("name"), suite[0][0].get("message"), suite[0][0].text) == ("n?", "m?", "t?")
