"""Trends as a picture and a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pymllm.report.records import Figure
from pymllm.report.trends_section import make_trends_section
from tests.unit.report import samples
from tests.unit.report.looking import cells, figures, tables
from tests.unit.report.test_trends import FIGURE, OTHER, days


def test_a_line_is_drawn_for_each_machine_and_code() -> None:
    """In one picture for each figure, the ones with a history first."""
    slower = replace(FIGURE, value=11.0, low=10.0, high=13.0)
    runs = [*days(FIGURE, slower), *days(FIGURE, machine=OTHER), *days(Figure("a", 1.0, "s", "smaller"))]
    section = make_trends_section(runs)
    pictures = figures(section)["plot-trends"]
    assert list(pictures) == ["match", "a"]
    lines = {trace.name: list(trace.y) for trace in pictures["match"].data}
    assert sorted(map(len, lines.values())) == [1, 2]
    assert len(lines) == 2
    (long,) = (trace for trace in pictures["match"].data if len(trace.y) == 2)
    assert list(long.error_y.array) == [0.0, 2.0]
    assert list(long.error_y.arrayminus) == [0.0, 1.0]
    assert pictures["match"].layout.yaxis.title.text == "µs, smaller is better"
    assert section is not None
    assert (section.tiles[0].value, section.tiles[0].name) == ("2", "figures on 2 machines")


def test_the_table_has_the_newest_value_and_its_change() -> None:
    """With a word, not only with a colour."""
    section = make_trends_section(days(FIGURE, replace(FIGURE, value=8.0)))
    (row,) = tables(section)["Figures"]
    assert (row[0], row[2], row[3], row[4], row[5], row[6]) == (
        "match", "c0de", "smaller", "2", "8 µs", "-20.0 % better",
    )  # fmt: skip
    assert cells(section, "-20.0 % better")[0].tone == "good"
    assert cells(section, "")[0].spark == (10.0, 8.0)


@pytest.mark.parametrize(
    ("then", "now", "shown"), [(10.0, 12.0, "+20.0 % worse"), (10.0, 10.0, "+0.0 %"), (0.0, 1.0, "from zero")]
)
def test_a_change_is_worse_or_none(then: float, now: float, shown: str) -> None:
    """What was zero has no change in per cent."""
    section = make_trends_section(days(replace(FIGURE, value=then), replace(FIGURE, value=now)))
    assert tables(section)["Figures"][0][6] == shown


def test_a_point_says_which_commit_and_versions_it_is_of() -> None:
    """For whoever points at it."""
    run = samples.run(
        figures=(replace(FIGURE, code=None),), commit="ab" * 20, modified=True, versions={"torch": "2.13.0"}
    )
    section = make_trends_section([run])
    (figure,) = figures(section)["plot-trends"].values()
    (text,) = figure.data[0].text
    assert text == "10 µs<br>2026-11-21 15:03:11 UTC<br>commit abababababab, modified<br>torch 2.13.0"
    row = tables(section)["Figures"][0]
    assert (row[2], row[6], row[7]) == ("no hash", "nothing before", "one point")


def test_facts_without_a_direction_are_left_to_the_terminal() -> None:
    """Numbers of nodes are no trend that anybody watches."""
    assert make_trends_section(days(Figure("nodes", 3, "nodes"))) is None


def test_a_share_is_drawn_in_per_cent() -> None:
    """As the table has it."""
    section = make_trends_section(days(Figure("rate", 0.5, "share", "bigger")))
    (figure,) = figures(section)["plot-trends"].values()
    assert list(figure.data[0].y) == [50.0]
    assert tables(section)["Figures"][0][5] == "50.0 %"
