"""Tests of the figures on one line: as a list, a picture, a table and text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pymllm.errors import UsageError
from pymllm.report.documents import read_document
from pymllm.report.records import Figure, make_machine
from pymllm.report.trends import Trend, figures_of, find_trends, make_text
from tests.unit.report import samples

# -- trends ----------------------------------------------------------------------------------------------


OTHER = make_machine("Another Processor", 4, None, "Linux x86_64")
FIGURE = Figure("match", 10.0, "us", "smaller", code="c0de")


def days(*figures: Figure, **fields: object) -> list[samples.Run]:
    return [
        samples.run(time=f"2026-11-{day:02}T00:00:00Z", figures=(figure,), **fields)  # type: ignore[arg-type]
        for day, figure in enumerate(figures, 1)
    ]


def values(trends: list[Trend]) -> list[tuple[float, ...]]:
    return [tuple(point.value for point in trend.points) for trend in trends]


def test_figures_of_one_machine_and_one_code_are_a_line() -> None:
    """In order of time."""
    (trend,) = find_trends(days(FIGURE, replace(FIGURE, value=8.0)))
    assert values([trend]) == [(10.0, 8.0)]
    assert trend.change == pytest.approx(-0.2)
    assert trend.is_better is True


@pytest.mark.parametrize(
    "changes", [{"code": "edited"}, {"code": None}, {"unit": "ms"}, {"name": "match a list"}], ids=str
)
def test_what_was_measured_otherwise_is_another_line(changes: dict[str, str]) -> None:
    """An edited benchmark is never compared with its past."""
    trends = find_trends(days(FIGURE, replace(FIGURE, **changes)))  # type: ignore[arg-type]
    assert len(trends) == 2
    assert [trend.change for trend in trends] == [None, None]


def test_a_figure_of_another_machine_or_without_one_or_without_a_value_is_compared_with_nothing() -> None:
    """Not even one without a machine with another that has none; what could not be read is no zero."""
    assert len(find_trends([*days(FIGURE), *days(FIGURE, machine=OTHER)])) == 2
    assert find_trends(days(Figure("x", None, "s", reason="no NVML"))) == []
    first, second = days(FIGURE, FIGURE, machine=None)
    assert values(find_trends([first, replace(second, identity="other")])) == [(10.0,), (10.0,)]


@pytest.mark.parametrize(
    ("better", "then", "now", "is_better"),
    [("smaller", 10.0, 12.0, False), ("bigger", 10.0, 12.0, True), (None, 10.0, 12.0, None),
     ("smaller", 10.0, 10.0, None), ("smaller", 0.0, 1.0, None)],
)  # fmt: skip
def test_better_has_a_direction(better: str | None, then: float, now: float, is_better: bool | None) -> None:
    """A fact has no better direction, nor has a value that did not change or was zero."""
    (trend,) = find_trends(days(Figure("x", then, "s", better), Figure("x", now, "s", better)))
    assert trend.is_better is is_better


def test_documents_have_figures_too() -> None:
    """Each kind of document gives the figures that are worth following."""
    names = {
        figure.name: (figure.value, figure.unit, figure.better)
        for make in ("verify", "faults", "soak", "replay", "curve", "peers", "gpu_benchmarks")
        for figure in figures_of(read_document(getattr(samples, make)()))
    }
    replayed = "replay chat seed 0, 200 requests, engine: radix, page 16, 8,192 slots"
    assert names == {
        "verify faulty-x, RowMachine, profile ci, 1 process: steps judged": (1000.0, "steps/s", "bigger"),
        "verify rows, RowMachine, profile ci, 1 process: steps judged": (1000.0, "steps/s", "bigger"),
        "faults: caught of 2": (0.5, "share", "bigger"),
        "soak radix: operations judged per CPU second": (7238.4, "operations/s", "bigger"),
        f"{replayed}: hit rate": (0.64, "share", "bigger"),
        f"{replayed}: match, median of a request": (33.6, "us", "smaller"),
        f"{replayed}: insert, median of a request": (95.4, "us", "smaller"),
        f"{replayed}: evict, median of a request": (0.0, "us", "smaller"),
        f"{replayed}: lock, median of a request": (12.8, "us", "smaller"),
        f"{replayed}: most resident memory": (300 << 20, "bytes", "smaller"),
        "curve chat seed 0, 200 requests, page 16, 8,192 slots: hit rate": (0.4, "share", "bigger"),
        "curve chat seed 0, 200 requests, page 16, 16,384 slots: hit rate": (0.5, "share", "bigger"),
        "gpu set_kv_buffer (tokens 64, dtype bfloat16), graph: ours, median": (12.0, "us", "smaller"),
        "gpu set_kv_buffer (tokens 64, dtype bfloat16), graph: copy, median": (10.0, "us", "smaller"),
        "peers T1a a full hit: pymllm, median": (50.0, "us", "smaller"),
        "peers T1a a full hit: sglang, median": (200.0, "us", "smaller"),
        "peers T1a a full hit: ratio to the best peer": (0.25, "", "smaller"),
    }


def test_searches_of_other_lengths_are_not_compared() -> None:
    """Neither by examples, by profile nor by processes, nor a few faults with all of them."""
    others: list[dict[str, Any]] = [{}, {"examples": 5}, {"examples": 2000}, {"profile": "dev"}, {"jobs": 2}]
    few = samples.faults(samples.fault("B01", samples.detection(0, "machine", 5)))
    documents = [*(samples.verify(**it) for it in others), samples.faults(), few]
    trends = find_trends([samples.run(plain) for plain in documents])
    assert {len(trend.points) for trend in trends} == {1}
    name = "verify rows, RowMachine, 2,000 examples, 1 process: steps judged"
    assert name in {trend.name for trend in trends}


def test_what_a_document_could_not_tell_is_no_figure() -> None:
    """A missing value is no figure: memory, a ratio without a peer, logs, the speed of an adapter not run."""
    soak = samples.soak()
    soak["adapters"][0] |= {"runs": 0, "operations": 0, "operations_per_cpu_second": 0.0}
    assert list(figures_of(read_document(soak))) == []
    run = samples.engine_run() | {"peak_rss_bytes": None}
    run["config"] = {**run["config"], "sliding_window_size": 64}
    trace = samples.replay(run, workload={"name": "t.jsonl", "kind": "trace", "requests": 200, "seed": 0})
    names = [figure.name for figure in figures_of(read_document(trace))]
    assert (
        names[0] == "replay t.jsonl, 200 requests, engine: radix, page 16, 8,192 slots, window 64: hit rate"
    )
    assert not any("resident" in name for name in names)
    alone = samples.peers(samples.scenario(ratio=None))
    assert not any("ratio" in figure.name for figure in figures_of(read_document(alone)))
    assert list(figures_of(read_document(samples.gpu_memory()))) == []


# -- trend text ------------------------------------------------------------------------------------------


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
