"""JUnit XML: suites of cases, and nothing in them that XML has no character for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

__all__ = ["add_suite", "make_case", "make_text"]

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OUTCOMES = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def make_case(
    suite: str, name: str, outcome: str | None = None, message: str = "", text: str = ""
) -> ElementTree.Element:
    """Make a case.

    Parameters
    ----------
    suite, name : str
        Of the case.
    outcome : str or None
        ``"failure"``, ``"error"`` or ``"skipped"``; ``None`` where it passed.
    message, text : str
        What is said of the outcome, in short and in full.
    """
    case = ElementTree.Element("testcase", classname=_clean(suite), name=_clean(name))
    if outcome is not None:
        said = ElementTree.SubElement(case, outcome, message=_clean(message))
        said.text = _clean(text) or None
    return case


def add_suite(
    root: ElementTree.Element, name: str, seconds: float, cases: Sequence[ElementTree.Element]
) -> None:
    """Put cases into a suite of a document, with how many of them came to what."""
    counts = {
        plural: str(sum(case.find(singular) is not None for case in cases))
        for plural, singular in _OUTCOMES.items()
    }
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name), tests=str(len(cases)))
    suite.attrib |= {"time": f"{seconds:.3f}", **counts}
    suite.extend(cases)


def make_text(root: ElementTree.Element) -> str:
    """Write a document with its declaration, indented."""
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
