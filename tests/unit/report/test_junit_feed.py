"""Verdicts as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from pymllm.report.junit_feed import make_junit
from tests.unit.report import samples


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
    assert (failure.get("message"), failure.text) == ("row 1 <position 3>", "run_program('faulty-x')")


def test_an_implementation_that_could_not_be_examined_is_an_error() -> None:
    """With why, as far as anybody knows; one violation without a program is a failure all the same."""
    broken = samples.adapter("x", None, [], problems=[{"message": "cannot\x00 load", "file": None}])
    bare = samples.adapter("y", "rows", [samples.law("P2", "violated"), samples.law("X1", "unknown")])
    found = suites(samples.run(samples.verify(broken, bare)))
    assert outcomes(found["x"]) == [("smoke test", "error")]
    assert found["x"][0][0].get("message") == "cannot? load"
    assert [case[0].get("message") for case in found["y"]] == ["violated", "no program tested it"]


def test_a_missed_fault_is_a_failure() -> None:
    """With what went wrong, or the laws that did not catch it."""
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
