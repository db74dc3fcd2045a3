"""Figures for github-action-benchmark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pymllm.report.action_feed import make_action_feed
from pymllm.report.records import Figure
from tests.unit.report import samples
from tests.unit.report.test_trends import FIGURE, OTHER, days


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
    """The action takes one for each; facts are in neither."""
    run = samples.run(figures=(FIGURE, Figure("rate", 0.5, "share", "bigger"), Figure("nodes", 3, "")))
    assert [entry["name"] for entry in feed([run])] == ["match"]
    assert [(entry["name"], entry["unit"], entry["value"]) for entry in feed([run], "bigger")] == [
        ("rate", "%", 50.0)
    ]


def test_figures_of_two_machines_or_codes_have_two_names() -> None:
    """The action knows a figure by its name alone, and would compare them."""
    runs = [
        *days(FIGURE, replace(FIGURE, code=None)),
        *days(FIGURE, machine=OTHER),
        *days(FIGURE, machine=None),
    ]
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


def test_a_number_without_a_unit_is_a_count() -> None:
    """The action demands one."""
    assert feed(days(Figure("ratio", 0.5, "", "smaller")))[0]["unit"] == "count"
