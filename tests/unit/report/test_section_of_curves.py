"""Tests of curves over memory: pictures and tables."""

from __future__ import annotations

from typing import Any

from pymllm.report.sections.curves import make_capacity_section
from tests.unit.report import samples
from tests.unit.report.looking import look

NAME = "chat, 200 requests, seed 0, page 16, llama-3.1-8b bf16"


def test_a_curve_is_drawn_over_memory_with_its_ceilings() -> None:
    """A curve is drawn with its ceilings, the savings, the next GiB, and each class of requests."""
    found = look(make_capacity_section, samples.curve())
    (choice,) = found.plots["plot-capacity"].choices
    assert choice.name == NAME
    titles = [panel.title for panel in choice.panels]
    assert titles[1:] == [
        "prefill that is saved, over the trace",
        "what the next GiB saves, over the trace",
        "hit rate by length",
    ]
    lines = {trace["name"]: (trace["x"], trace["y"]) for trace in choice.panels[0].traces}
    gib = 1 << 30
    assert lines == {
        "lru": ([gib, 2 * gib], [40.0, 50.0]),
        "lfu": ([gib], [30.0]),
        "states, last=528": ([gib], [30.0]),
        "best choice (Belady)": ([gib, 2 * gib], [50.0, 50.0]),
        "unlimited": ([gib, 2 * gib], [64.0, 64.0]),
    }
    assert choice.panels[2].traces[0]["y"] == [0.01]


def test_a_curve_has_a_line_for_each_capacity() -> None:
    """With units, and the rates of other policies; what is not known says why."""
    found = look(make_capacity_section, samples.curve())
    assert found.tables["Capacities"] == [
        f"{NAME} | 8,192 | 1 GiB | 40.0 % | 30.0 % | 50.0 % | 64.0 % | 400 | 40 ms | 10 ms | 300 | 1",
        f"{NAME} | 16,384 | 2 GiB | 50.0 % | not replayed | 50.0 % | 64.0 % | 500 | 50 ms | not known "
        "| 0 | 0",
    ]
    assert found.tables["Capacities of hybrid models"] == [
        f"{NAME} | last=528 | 8,192 | 30.0 % | 25.0 % | 300 | 7 | 350"
    ]
    assert found.tables["Capacities, by class of request"] == [
        f"{NAME} | length below 1Ki | 8,192 | 200 | 40.0 % | 400"
    ]
    assert found.tiles == [("1", "capacity curves", None)]


def test_a_curve_without_model_and_rate_is_over_slots() -> None:
    """An estimate has its bounds; one capacity has no next GiB."""
    row: dict[str, Any] = samples.curve()["rows"][0]
    bare = row | dict.fromkeys(
        ("kv_bytes", "prefill_seconds_saved", "next_gib_tokens", "next_gib_seconds", "belady_hit_rate",
         "ceiling_hit_rate")
    )  # fmt: skip
    plain = samples.curve(
        model=None,
        prefill_rate=None,
        sample={"rate": 0.01, "parts": 8},
        rows=[bare | {"low": 0.3, "high": 0.45}],
        groups=[],
        policies=[],
        checkpoints=[],
    )
    found = look(make_capacity_section, plain)
    (choice,) = found.plots["plot-capacity"].choices
    assert choice.name == "chat, 200 requests, seed 0, page 16, 1 % of blocks"
    (panel,) = choice.panels
    (line,) = panel.traces
    assert line["x"] == [8192]
    assert [round(line["error_y"][side][0], 6) for side in ("array", "arrayminus")] == [5.0, 10.0]
    (told,) = found.tables["Capacities"]
    assert told == (
        f"{choice.name} | 8,192 | no model | 40.0 % (30.0 % to 45.0 %) | not computed | not computed | 400 | "
        "no rate | not known | 300 | 1"
    )


def test_an_interrupted_curve_says_so_and_the_newest_of_a_name_counts() -> None:
    """As everywhere."""
    found = look(make_capacity_section, samples.run(samples.curve(interrupted=True), source="a"))
    assert found.texts == [
        "The curve in a was interrupted after 200 requests: its numbers are of a part.",
        "chat: up to 8,192 slots, requests above half the capacity are left out, at most 1 of 200: compare "
        "tokens saved there, not rates.",
        "chat: no capacity here hits 90.0 % of the 64.0 % that an unlimited cache hits; "
        "leave out --capacity, and capacities are chosen.",
    ]
    newer = samples.curve()
    newer["rows"] = [newer["rows"][0] | {"hit_tokens": 600}]
    both = look(make_capacity_section, samples.curve(), newer)
    assert [line.split(" | ")[7] for line in both.tables["Capacities"]] == ["600"]
    assert look(make_capacity_section, samples.replay()).plots == {}
