"""Verdicts as JUnit XML."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

from pymllm.cli.verify_junit import make_junit
from pymllm.conformance.results import VerifyReport


def test_every_verdict_has_its_element(report: VerifyReport) -> None:
    """A failure for violated, an error for unknown, skipped for not claimed, nothing for holds."""
    broken, fine, gone = ElementTree.fromstring(make_junit(report)).findall("testsuite")
    kinds = {
        str(case.get("name")).split()[0]: [element.tag for element in case]
        for suite in (broken, fine)
        for case in suite.findall("testcase")
    }
    assert kinds == {"P1": [], "P2": [], "P3": ["failure"], "X1": ["skipped"], "E5": ["error"]}
    assert [case.get("name") for case in gone.findall("testcase")] == ["smoke test"]
    assert {
        (suite.get("name"), suite.get("tests"), suite.get("failures")) for suite in (broken, fine, gone)
    } == {
        ("my.rows:Rows", "4", "2"),
        ("rows", "3", "0"),
        ("gone:Cache", "1", "0"),
    }
    assert [suite.get("errors") for suite in (broken, fine, gone)] == ["0", "1", "1"]
    assert broken.get("skipped") == "1"


def test_a_failure_has_the_program(report: VerifyReport) -> None:
    """Characters that XML does not have are replaced."""
    suite = ElementTree.fromstring(make_junit(report)).find("testsuite")
    assert suite is not None
    failure = suite.findall("testcase")[1].find("failure")
    assert failure is not None
    assert failure.get("message") == "P2: row 1\nposition 3: expected 0, observed 7?"
    assert "run_program(" in str(failure.text)


def test_situations_have_a_suite_where_the_report_is_strict(report: VerifyReport) -> None:
    """One that was never reached is a failure, and says with whom."""
    strict = dataclasses.replace(report, is_strict=True)
    suite = ElementTree.fromstring(make_junit(strict)).findall("testsuite")[-1]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("situations", "2", "2")
    case, _ = suite.findall("testcase")
    assert (case.get("classname"), case.get("name")) == ("RowMachine", "a row is freed twice")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "never reached with rows"
    reached = dataclasses.replace(strict, adapters=report.adapters[:1])
    suite = ElementTree.fromstring(make_junit(reached)).findall("testsuite")[-1]
    assert [len(case) for case in suite.findall("testcase")] == [0, 1]


def test_an_error_says_why(report: VerifyReport) -> None:
    """No program tested it, or the adapter could not be examined."""
    _, fine, gone = ElementTree.fromstring(make_junit(report)).findall("testsuite")
    messages = [error.get("message") for suite in (fine, gone) for error in suite.iter("error")]
    assert messages == ["no program tested it", "cannot import gone"]
