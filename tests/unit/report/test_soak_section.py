"""The campaigns."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.report.records import Curve
from pymllm.report.soak_section import make_soak_section
from tests.unit.report import samples
from tests.unit.report.looking import cards, cells, figures, tables


def test_a_campaign_is_a_line_and_the_newest_is_laid_out() -> None:
    """With units, and the share that each part of the work took."""
    section = make_soak_section([samples.run(samples.soak(), pymllm="0.1.0+abc")])
    found = tables(section)
    assert found["Campaigns"] == [
        ["2026-11-21 15:03:11", samples.MACHINE.fingerprint, "0.1.0+abc", "9", "144,768", "7,238", "240 MiB",
         "✓ holds", "flat"]
    ]  # fmt: skip
    assert found["Newest campaign, by implementation"] == [
        [
            "radix",
            "9",
            "144,768",
            "7,238",
            "50.0 %",
            "25.0 %",
            "5.0 %",
            "5.0 %",
            "15.0 %",
            "1 of 2",
            "1 of 2",
            "0",
        ]
    ]
    (figure,) = figures(section)["plot-soak"].values()
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(100)


def test_a_failure_is_a_card_with_its_program() -> None:
    """The short one."""
    run = samples.run(
        samples.soak(
            samples.soak_failure("R6"), samples.soak_failure(None, file=None, short=None, config={})
        ),
        programs={"programs/x-short.jsonl": samples.PROGRAM},
    )
    section = make_soak_section([run])
    broken, problem = cards(section)
    assert broken.title == "R6 violated by radix in a soak"
    assert (broken.file, broken.lines, broken.tone) == ("x-short.jsonl", samples.PROGRAM, "bad")
    assert [fact.value for fact in broken.facts if fact.is_code] == [
        "programs/x-short.jsonl",
        "pymllm rerun programs/x-short.jsonl --adapter radix",
    ]
    assert (problem.title, problem.file, problem.tone) == ("problem with radix in a soak", "", "unknown")
    assert cells(section, "✗ violated")[0].tone == "bad"
    assert tables(section)["Newest campaign, by implementation"][0][-1] == "4"


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (["flat", "flat"], "flat"),
        (["flat", "grows"], "grows"),
        (["flat", "too short to tell"], "too short to tell"),
    ],
)
def test_one_measure_that_grows_outweighs_the_others(verdicts: list[str], shown: str) -> None:
    """And all must be flat to be flat; the slopes are in the hint."""
    drift = samples.soak()["drifts"][0]
    drifts: list[Any] = [{**drift, "verdict": verdict, "slope": None} for verdict in verdicts]
    (cell,) = cells(make_soak_section([samples.run(samples.soak(drifts=drifts))]), shown)
    assert cell.hint is not None
    assert "uss: unknown" in cell.hint


def test_a_ledger_and_the_document_of_one_campaign_are_one_campaign() -> None:
    """Both lie in the folder of the run; that with the curves is kept."""
    curve = Curve("process 1", "bytes", "operations", (1.0,), (1,))
    document, ledger = samples.run(samples.soak()), samples.run(samples.soak(), curves=(curve,))
    for runs in ([document, ledger], [ledger, document]):
        assert len(tables(make_soak_section(runs))["Campaigns"]) == 1
    other = samples.run(samples.soak(runs=10), machine=None)
    found = tables(make_soak_section([document, other]))["Campaigns"]
    assert [row[1:3] for row in found] == [
        [samples.MACHINE.fingerprint, "not recorded"],
        ["not recorded", "not recorded"],
    ]


def test_the_same_failure_of_two_campaigns_is_two_cards() -> None:
    """Played again from the same seed, each has an anchor of its own."""
    runs = [samples.run(samples.soak(samples.soak_failure("R6"), runs=runs)) for runs in (9, 10)]
    assert len({card.id for card in cards(make_soak_section(runs))}) == 2


def test_a_campaign_in_which_nothing_ran_says_so() -> None:
    """An interrupted one, before its first run ended."""
    empty = samples.soak(adapters=[], cpu_seconds=0.0, operations=0, interrupted=True, verdict="new")
    section = make_soak_section([samples.run(empty)])
    assert tables(section)["Campaigns"][0][5:8] == ["unknown", "240 MiB", "new, interrupted"]
    assert figures(section) == {}


def test_an_implementation_whose_turn_never_came_has_no_speed() -> None:
    """No bar, no zero that looks measured, and nothing green."""
    soak = samples.soak()
    waiting = {"name": "chunk", "runs": 0, "operations": 0, "operations_per_cpu_second": 0.0, "shares": {}}
    soak["adapters"].append(soak["adapters"][0] | waiting)
    section = make_soak_section([samples.run(soak)])
    row = tables(section)["Newest campaign, by implementation"][1]
    assert row[:4] + row[-1:] == ["chunk", "0", "0", "not measured", "none ran"]
    assert cells(section, "none ran")[0].tone == "unknown"
    (figure,) = figures(section)["plot-soak"].values()
    assert {name for trace in figure.data for name in trace.y} == {"radix"}
    alone = samples.soak(adapters=soak["adapters"][1:])
    assert figures(make_soak_section([samples.run(alone)])) == {}


def test_without_campaigns_there_is_no_section() -> None:
    """It would be empty."""
    assert make_soak_section([samples.run(samples.verify())]) is None
