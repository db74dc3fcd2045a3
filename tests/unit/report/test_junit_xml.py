"""Suites and cases as XML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pymllm.report.junit_xml import add_suite, make_case, make_text


def test_a_suite_counts_what_its_cases_came_to() -> None:
    """As those who read it expect."""
    root = ElementTree.Element("testsuites")
    cases = [
        make_case("s", "a"), make_case("s", "b", "failure", "why", "all of it"), make_case("s", "c", "error"),
        make_case("s", "d", "skipped", "not claimed"),
    ]  # fmt: skip
    add_suite(root, "s", 1.5, cases)
    (suite,) = ElementTree.fromstring(make_text(root))
    expected = {"name": "s", "tests": "4", "time": "1.500", "failures": "1", "errors": "1", "skipped": "1"}
    assert suite.attrib == expected
    assert (suite[1][0].get("message"), suite[1][0].text) == ("why", "all of it")
    assert len(suite[0]) == 0


@pytest.mark.parametrize("bad", ["\x00", "\x1b", "\ud800", "\ufffe"])
def test_what_xml_has_no_character_for_is_a_question_mark(bad: str) -> None:
    """Or nobody could read the file."""
    root = ElementTree.Element("testsuites")
    add_suite(root, f"s{bad}", 0.0, [make_case(f"s{bad}", f"n{bad}", "error", f"m{bad}", f"t{bad}")])
    (suite,) = ElementTree.fromstring(make_text(root))
    assert suite.get("name") == "s?"
    assert (suite[0].get("name"), suite[0][0].get("message"), suite[0][0].text) == ("n?", "m?", "t?")
