"""The page of the situations."""

from __future__ import annotations

from pymllm.cli.situations_page import make_page
from pymllm.history.operations import KINDS
from pymllm.oracle.situation import Condition, make_situations
from pymllm.oracle.situations import SITUATIONS

PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)


def test_each_kind_has_a_table_and_an_engine_its_own() -> None:
    """In the order of the registry."""
    titles = [line for line in make_page(SITUATIONS).splitlines() if line.startswith("## ")]
    assert len(titles) == len(KINDS) + 1
    assert titles[0] == "## Slot allocators"
    assert "## Prefix caches in an engine" in titles


def test_a_row_has_laws_bugs_and_needs() -> None:
    """What is missing leaves its cell empty."""
    plain = make_situations("slots", ("pages wait", "A4"))
    full = make_situations("slots", ("pages merge", "A4 X4", "B95 B97"), needs="merges groups", when=(PAGED,))
    lines = make_page([*plain, *full]).splitlines()
    assert "| pages wait | A4 |  |  |" in lines
    assert "| pages merge | A4, X4 | B95, B97 | `groups`, `merges`, pages of several tokens |" in lines
    assert "2 situations." in "\n".join(lines)
