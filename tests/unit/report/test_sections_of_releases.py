"""The section of the page that sets releases of a package beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.report.sections.releases import make_releases_section
from tests.unit.report import samples
from tests.unit.report.looking import look


def searched(version: str, package: str = "tree", name: str = "tree:Cache", **laws: str) -> dict[str, Any]:
    """A document about one release: the verdicts of some laws."""
    rows = [samples.law(id, verdict.replace("_", " ")) for id, verdict in laws.items()]
    return samples.verify(samples.adapter(name, "rows", rows), release=samples.release(version, package))


OLD = searched("0.9", P1="holds", P2="violated", X4="violated", X5="not_claimed")
MIDDLE = searched("0.10.post1", P1="holds", P2="violated", X4="unknown", X5="holds")
NEW = searched("0.11", P1="holds", P2="holds", X4="holds", X5="violated")


def test_releases_stand_beside_each_other_newest_first() -> None:
    """By their versions, whenever they were searched; laws that all of them keep are only counted."""
    found = look(make_releases_section, MIDDLE, NEW, OLD)
    assert found.tables == {
        "3 releases of tree: 3 of 4 laws broken by at least one": [
            "P2 | tree:Cache | sentence of P2 | ✓ 7 | ✗ violated | ✗ violated",
            "X4 | tree:Cache | sentence of X4 | ✓ 7 | ? unknown | ✗ violated",
            "X5 | tree:Cache | sentence of X5 | ✗ violated | ✓ 7 | - not claimed",
        ]
    }
    assert found.tiles == [("3 of 3", "releases break a law", "bad")]
    assert found.cell("? unknown").tone == "unknown"


def test_the_picture_has_what_the_table_has() -> None:
    """The picture has a colour for each verdict, with a sign and words of the same meaning."""
    found = look(make_releases_section, MIDDLE, NEW, OLD)
    (trace,) = found.picture("plot-releases-tree").data
    assert (trace.type, list(trace.x), list(trace.y)) == (
        "heatmap",
        ["0.11", "0.10.post1", "0.9"],
        ["P2", "X4", "X5"],
    )
    assert [list(row) for row in trace.z] == [[1.5, 3.5, 3.5], [1.5, 2.5, 3.5], [3.5, 1.5, 0.5]]
    assert [list(row) for row in trace.text] == [["✓", "✗", "✗"], ["✓", "?", "✗"], ["✗", "✓", "-"]]
    assert trace.customdata[0][2] == "0.9: P2 violated, tree:Cache"
    steps = [(float(place), colour) for place, colour in trace.colorscale]
    assert [place * trace.zmax for place, _ in steps] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert len({colour for _, colour in steps}) == 4


def test_what_was_not_searched_is_no_verdict() -> None:
    """An implementation that only one release was searched with; each has its own lines."""
    other = searched("0.11", name="tree:Pool", P2="violated")
    found = look(make_releases_section, OLD, other)
    ((_, lines),) = found.tables.items()
    assert [line.split(" | ", 3)[3] for line in lines] == [
        "not searched | ✗ violated",
        "✗ violated | not searched",
        "not searched | ✗ violated",
    ]
    (trace,) = found.picture("plot-releases-tree").data
    assert list(trace.y) == ["P2 Cache", "P2 Pool", "X4 Cache"]
    assert [list(row) for row in trace.z] == [[None, 3.5], [3.5, None], [None, 3.5]]
    assert trace.customdata[0][0] == ""


def test_two_implementations_of_one_name_have_different_lines() -> None:
    """Of which a picture would make one."""
    found = look(make_releases_section, OLD, searched("0.9", name="wood:Cache", P2="violated"))
    names = ["P2 tree:Cache", "P2 wood:Cache", "X4 tree:Cache"]
    assert list(found.picture("plot-releases-tree").data[0].y) == names


def test_the_newest_search_of_a_release_counts() -> None:
    """For each implementation by itself."""
    again = searched("0.9", P1="holds", P2="holds", X4="violated")
    found = look(make_releases_section, OLD, again)
    assert list(found.tables) == ["1 release of tree: 1 of 4 laws broken by at least one"]


def test_each_package_is_by_itself_and_one_that_is_sound_is_a_sentence() -> None:
    """Without a picture of nothing."""
    found = look(make_releases_section, OLD, searched("2", "wood", P1="holds"), samples.verify())
    assert found.texts == ["No search broke a law of 1 release of wood."]
    assert list(found.plots) == ["plot-releases-tree"]
    assert found.tiles == [("1 of 2", "releases break a law", "bad")]
    sound = look(make_releases_section, searched("2", "wood", P1="holds"))
    assert sound.tiles == [("0 of 1", "releases break a law", "good")]


@pytest.mark.parametrize("version", ["nightly", ""])
def test_what_is_no_version_is_the_oldest(version: str) -> None:
    """A document may be anybody's."""
    found = look(make_releases_section, searched(version, P2="violated"), OLD)
    assert list(found.picture("plot-releases-tree").data[0].x) == ["0.9", version]
