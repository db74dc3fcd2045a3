"""The table of a curve: a line per capacity, a column per cache, and who broke a law."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.cli.replay_curve import make_curves
from pymllm.cli.replay_document import make_grid_document
from pymllm.cli.replay_grid import run_grid
from pymllm.cli.replay_result import Violation
from pymllm.workloads.serial import SerialReport
from tests.unit.cli.test_replay_grid import points


def test_a_line_has_each_cache_and_both_ceilings() -> None:
    """A table for each page size, the capacity rounded to whole pages."""
    grid = run_grid(points((1, 3000), (1, 9000), (64, 9000)), 1, "off")
    lines = make_curves(grid).splitlines()
    assert lines[1] == "serial replay of chat: 30 requests, seed 0"
    heads = [number for number, line in enumerate(lines) if line.startswith("token hit rate")]
    assert [lines[number] for number in heads] == [
        "token hit rate, pages of 1",
        "token hit rate, pages of 64",
    ]
    assert lines[heads[0] + 2].split()[:6] == ["capacity", "radix", "chunk", "Belady", "unlimited", "evicted"]
    cells = [lines[heads[0] + 3].split(), lines[heads[0] + 4].split(), lines[heads[1] + 3].split()]
    assert [row[0] for row in cells] == ["3,000", "9,000", "8,960"]
    ran = [f"{100 * result.runs[0].token_hit_rate:.1f}" for result in grid.results[::2]]
    assert [row[1] for row in cells] == ran
    assert {row[3] for row in cells} == {"0.0"}


def test_a_violation_stands_in_its_cell_and_below() -> None:
    """E3: with the point at which it happened."""
    grid = run_grid(points((1, 3000), (1, 9000)), 1, "off")
    broken = dataclasses.replace(
        grid.results[0], runs=(), violation=Violation("radix", "E3", "1 slot is lost")
    )
    text = make_curves(dataclasses.replace(grid, results=(broken, *grid.results[1:])))
    assert "violated" in text.splitlines()[6]
    assert text.endswith("E3  VIOLATED by radix (page size 1, capacity 3000)\n    1 slot is lost\n")


@pytest.mark.parametrize("mode", ["serial", "engine"])
def test_what_is_left_out_stands_beside_the_rates(mode: str) -> None:
    """E4: rates over fewer requests, without the long ones, are no part of one curve."""
    plans = [dataclasses.replace(one, mode=mode, caches=("radix",)) for one in points((1, 600), (1, 9000))]
    grid = run_grid(plans, 1, "off")
    [run] = grid.results[0].runs
    left_out = run.skipped if isinstance(run, SerialReport) else run.rejected
    lines = make_curves(grid).splitlines()
    assert lines[5].endswith("evicted  left out")
    assert not make_curves(run_grid(plans[1:], 1, "off")).splitlines()[5].endswith("left out")
    assert [line.split()[-1] for line in lines[6:8]] == [str(left_out), "0"]
    assert left_out


def test_an_engine_has_no_rate_by_belady() -> None:
    """A dash says that nothing was counted."""
    plans = [
        dataclasses.replace(one, mode="engine", caches=("radix",)) for one in points((1, 3000), (1, 9000))
    ]
    row = make_curves(run_grid(plans, 1, "off")).splitlines()[6].split()
    assert row[0] == "3,000"
    assert row[3] == "-"


def test_a_document_of_a_curve_has_all_runs_and_ceilings() -> None:
    """The rest is as of a single replay."""
    document = make_grid_document(run_grid(points((1, 3000), (16, 9000)), 1, "off"))
    assert document["schema"] == "pymllm.replay"
    assert document["asked"] == {
        "capacity": 3000, "swa_capacity": None, "capacities": [3000, 9000], "page_sizes": [1, 16]
    }  # fmt: skip
    assert [(run["config"]["cache"], run["config"]["capacity"]) for run in document["runs"]] == [
        ("radix", 3000), ("chunk", 3000), ("radix", 8992), ("chunk", 8992)
    ]  # fmt: skip
    assert [one["capacity"] for one in document["ceilings"]] == [3000, 8992]
    assert document["violation"] is None
