"""Ours against peers."""

from __future__ import annotations

import pytest

from pymllm.report.peers_section import make_peers_section
from tests.unit.report import samples
from tests.unit.report.looking import figures, tables

CAPTION = "2026-11-21 15:03:11 UTC: quick, cpu time"


def test_a_scenario_has_ours_the_best_peer_the_limit_and_the_target() -> None:
    """With units, and the ratio with its interval."""
    section = make_peers_section([samples.run(samples.peers())])
    assert tables(section)[CAPTION] == [
        [
            "T1a a full hit",
            "50 µs",
            "200 µs (sglang)",
            "0.25 (0.24 to 0.26)",
            "ahead",
            "20 µs (memcmp of the key)",
            "60 µs, reached",
        ]
    ]
    assert tables(section)["Who could take part"] == [
        ["pymllm", "pymllm 0.1.0", "took part"],
        ["vllm", "vllm", "not installed"],
    ]
    assert section is not None
    assert section.tiles[0].value == "1 of 1"


def test_everybody_is_drawn_as_a_multiple_of_ours() -> None:
    """Also the limit and the target."""
    (figure,) = figures(make_peers_section([samples.run(samples.peers())]))["plot-peers"].values()
    assert {trace.name: trace.x[0] for trace in figure.data} == pytest.approx(
        {"pymllm": 1.0, "sglang": 4.0, "limit": 0.4, "target": 1.2}
    )
    colors = {trace.name: trace.marker.color for trace in figure.data}
    assert colors["limit"] == colors["target"]
    assert len(set(colors.values())) == 3


def test_a_scenario_without_peer_says_so() -> None:
    """Nothing is left empty, and what is unknown is not drawn."""
    nobody = {"best_peer": None, "ratio": None}
    ours = [samples.standing("pymllm", 0.0)]
    alone = samples.scenario("T9", standings=ours, verdict="alone", reached=False, **nobody)
    late = samples.scenario("T2", reached=False, verdict="behind")
    section = make_peers_section([samples.run(samples.peers(alone, late))])
    first, second = tables(section)[CAPTION]
    assert first[1:] == [
        "0 ns",
        "no peer",
        "no peer",
        "alone",
        "20 µs (memcmp of the key)",
        "60 µs, not reached",
    ]
    assert second[-1] == "60 µs, not reached"
    (figure,) = figures(section)["plot-peers"].values()
    assert {trace.name for trace in figure.data} == {"pymllm", "sglang", "limit", "target"}
    assert section is not None
    assert section.tiles[0].value == "0 of 1"


def test_each_run_is_a_table_of_its_own_the_newest_first() -> None:
    """Runs are shown beside each other, never compared."""
    old, new = samples.run(samples.peers()), samples.run(samples.peers(), time="2026-11-22T00:00:00Z")
    section = make_peers_section([old, new])
    captions = [caption for caption in tables(section) if "time" in caption]
    assert captions == ["2026-11-22 00:00:00 UTC: quick, cpu time", CAPTION]
    assert len(figures(section)["plot-peers"]) == 2


def test_without_peers_to_compare_with_there_is_no_tile_and_without_runs_no_section() -> None:
    """A 0 of 0 would say nothing."""
    section = make_peers_section([samples.run(samples.peers(samples.scenario(verdict="alone", ratio=None)))])
    assert section is not None
    assert section.tiles == ()
    assert make_peers_section([samples.run(samples.verify())]) is None
