"""Trends on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pymllm.errors import UsageError
from pymllm.report.records import Figure
from pymllm.report.trend_text import make_text
from tests.unit.report import samples
from tests.unit.report.test_trends import FIGURE, OTHER, days


def test_a_line_of_a_plot_is_a_paragraph() -> None:
    """When, which commit, how much, and how much that is beside the one before."""
    runs = days(FIGURE, replace(FIGURE, value=8.0), commit="ab" * 20)
    here = f"rack 3, Some GPU ({samples.MACHINE.fingerprint}), code c0de"
    assert make_text(runs, "MATCH").split("\n") == [
        "match (smaller is better)",
        f"  {here}",
        "  2026-11-01 00:00:00  abababababab           10 µs",
        "  2026-11-02 00:00:00  abababababab            8 µs    -20.0 %",
    ]


def test_machines_have_paragraphs_of_their_own_and_facts_are_shown_too() -> None:
    """A fact has no direction; a change from zero has no per cent."""
    runs = [
        *days(Figure("nodes", 0, ""), Figure("nodes", 3, "")),
        *days(Figure("nodes", 4, ""), machine=OTHER),
    ]
    first, second = make_text(runs, "node").split("\n\n")
    assert first.startswith("nodes\n")
    assert first.endswith("3")
    assert "Another Processor" in second


def test_a_name_that_no_figure_has_is_refused_with_the_nearest() -> None:
    """Or with the fact that there are none."""
    with pytest.raises(UsageError, match=r"no figure has 'macht' in its name; there are 'match'"):
        make_text(days(FIGURE), "macht")
    with pytest.raises(UsageError, match="these runs have no figures at all"):
        make_text([samples.run()], "x")
