"""Sections of the page: peers, GPU benchmarks, hit rates, latency, memory, trends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pymllm.report.blocks import short_names
from pymllm.report.records import Curve, Figure, Histogram
from pymllm.report.sections.figures import make_gpu_section, make_peers_section, make_trends_section
from pymllm.report.sections.machines import make_memory_section
from pymllm.report.sections.replays import make_hit_rate_section, make_latency_section, quantile
from tests.unit.report import samples
from tests.unit.report.looking import look
from tests.unit.report.test_trends import FIGURE, OTHER, days

LATER = "2026-11-22T00:00:00Z"

# -- peers -----------------------------------------------------------------------------------------------

CAPTION = "2026-11-21 15:03:11 UTC: quick, cpu time"


def test_a_scenario_has_ours_the_best_peer_the_limit_and_the_target() -> None:
    """With units, and the ratio with its interval."""
    found = look(make_peers_section, samples.peers())
    ratio, limit = "0.25 (0.24 to 0.26)", "20 µs (memcmp of the key)"
    assert found.tables == {
        CAPTION: [f"T1a a full hit | 50 µs | 200 µs (sglang) | {ratio} | ahead | {limit} | 60 µs, reached"],
        "Who could take part": ["pymllm | pymllm 0.1.0 | took part", "vllm | vllm | not installed"],
    }
    assert found.tiles == [("1 of 1", "scenarios ahead of every peer", None)]


def test_everybody_is_drawn_as_a_multiple_of_ours() -> None:
    """Also the limit and the target."""
    traces = look(make_peers_section, samples.peers()).picture("plot-peers").data
    assert {trace.name: trace.x[0] for trace in traces} == pytest.approx(
        {"pymllm": 1.0, "sglang": 4.0, "limit": 0.4, "target": 1.2}
    )
    colors = {trace.name: trace.marker.color for trace in traces}
    assert colors["limit"] == colors["target"]
    assert len(set(colors.values())) == 3


def test_a_scenario_without_peer_says_so() -> None:
    """Nothing is left empty, and what is unknown is not drawn; a 0 of 0 would say nothing."""
    nobody = {"standings": [samples.standing("pymllm", 0.0)], "best_peer": None, "ratio": None}
    alone = samples.scenario("T9", verdict="alone", reached=False, **nobody)
    found = look(make_peers_section, samples.peers(alone, samples.scenario("T2", verdict="behind")))
    limit = "20 µs (memcmp of the key)"
    row = f"T9 a full hit | 0 ns | no peer | no peer | alone | {limit} | 60 µs, not reached"
    assert found.tables[CAPTION][0] == row
    traces = found.picture("plot-peers").data
    assert {trace.name for trace in traces} == {"pymllm", "sglang", "limit", "target"}
    assert {len(trace.x) for trace in traces} == {1}
    assert found.tiles[0][0] == "0 of 1"
    assert look(make_peers_section, samples.peers(alone)).tiles == []


def test_each_run_is_a_table_of_its_own_the_newest_first() -> None:
    """Runs are shown beside each other, never compared."""
    found = look(make_peers_section, samples.peers(), samples.run(samples.peers(), time=LATER))
    captions = [caption for caption in found.tables if "time" in caption]
    assert captions == ["2026-11-22 00:00:00 UTC: quick, cpu time", CAPTION]
    assert len(found.pictures["plot-peers"]) == 2


# -- GPU benchmarks --------------------------------------------------------------------------------------


def test_a_case_has_its_times_its_speed_and_its_goals() -> None:
    """With units, and a word for each goal."""
    found = look(make_gpu_section, samples.gpu_benchmarks())
    goals = "✓ met: of the speed of a copy 0.9, at least 0.85; ✗ missed: of torch's time 1.2, at most 1"
    case = "set_kv_buffer | tokens 64, dtype bfloat16 | graph | ours 12 µs, copy 10 µs | 2,500 GB/s"
    caption = "2026-11-21 15:03:11 UTC: Some GPU, driver 580.1, torch 2.13.0"
    assert found.tables == {caption: [f"{case} | {goals}"]}
    assert found.cell(goals).tone == "unknown"
    assert found.tiles == [("1 of 2", "goals met on the GPU", "unknown")]


def test_a_case_without_goals_has_none_and_the_newest_run_comes_first() -> None:
    """Then there is no tile to count them."""
    plain = samples.gpu_benchmarks()
    plain["results"][0]["goals"] = []
    plain["machine"]["driver"] = None
    found = look(make_gpu_section, samples.gpu_benchmarks(), samples.run(plain, time=LATER))
    assert [caption[:10] for caption in found.tables] == ["2026-11-22", "2026-11-21"]
    assert "driver unknown" in next(iter(found.tables))
    assert found.tiles == []


# -- hit rates -------------------------------------------------------------------------------------------


def test_capacities_of_one_cache_are_a_line_below_its_ceiling() -> None:
    """Whichever runs they are of; of two runs of the same the newest counts."""
    old = samples.replay(samples.engine_run(8192, 0.1))
    first = samples.replay(samples.engine_run(16384, 0.7), samples.engine_run(16384, 0.1, "chunk"))
    second = samples.replay(samples.engine_run(8192, 0.6))
    traces = look(make_hit_rate_section, old, first, second).picture("plot-hit-rate").data
    assert {trace.name: (list(trace.x), list(trace.y)) for trace in traces} == {
        "radix, page 16": ([8192, 16384], [60.0, 70.0]),
        "radix, page 16: ceiling": ([8192, 16384], [80.0, 80.0]),
        "chunk, page 16": ([16384], [10.0]),
        "chunk, page 16: ceiling": ([16384], [80.0]),
    }


def test_the_table_has_the_numbers_with_units() -> None:
    """Once for each workload, cache and capacity."""
    found = look(make_hit_rate_section, samples.replay())
    rates, memory = "64.0 % | 80.0 % | not computed", "512 tokens | 8,000 tokens | 3 | 300 MiB"
    workload = "chat, 200 requests, seed 0, engine"
    assert found.tables["Replays"] == [f"{workload} | radix, page 16 | 8,192 tokens | {rates} | {memory}"]


def test_the_best_choice_is_drawn_where_it_is_known() -> None:
    """Between the cache and the ceiling."""
    ceiling = {"page_size": 16, "capacity": 8192, "unlimited_hit_rate": 0.8, "prompt_tokens": 9}
    known = [ceiling | {"belady_hit_rate": 0.7}, ceiling | {"page_size": 1, "belady_hit_rate": 0.9}]
    other = samples.replay(samples.engine_run(4096))
    found = look(make_hit_rate_section, other, samples.replay(ceilings=known))
    (best,) = (trace for trace in found.picture("plot-hit-rate").data if "Belady" in trace.name)
    assert (best.name, list(best.x), list(best.y)) == ("best choice (Belady), page 16", [8192], [70.0])
    assert found.columns("Replays", 5) == [("not computed",), ("70.0 %",)]


def test_one_capacity_is_no_curve_and_a_replay_that_was_interrupted_says_so() -> None:
    """A picture of one point is a number, and that of half a workload is another one."""
    found = look(make_hit_rate_section, samples.run(samples.replay(interrupted=True), source="a"))
    assert found.plots == {}
    assert found.texts == ["The replay in a was interrupted: its numbers are of a part."]


def test_a_serial_replay_of_a_trace_has_no_engine_and_no_seed() -> None:
    """So it retracts nothing."""
    run = samples.engine_run()
    del run["finished"], run["retractions"]
    run["config"] = {**run["config"], "sliding_window_size": 64}
    workload = {"name": "t.jsonl", "kind": "trace", "requests": 200, "seed": 0}
    found = look(make_hit_rate_section, samples.replay(run, mode="serial", workload=workload))
    row = ("t.jsonl, 200 requests, serial", "radix, page 16, window 64", "no engine")
    assert found.columns("Replays", 0, 1, 8) == [row]


def test_a_run_that_contradicts_itself_is_named_and_not_drawn() -> None:
    """E6: its cache is a violation, and what a sound one beside it told is shown."""
    wrong = samples.engine_run(cache="chunk") | {"hit_tokens": 9000, "ceiling_tokens": 8000}
    plain = samples.replay(samples.engine_run(), wrong, samples.engine_run(16384, cache="chunk"))
    found = look(make_hit_rate_section, samples.run(plain, source="a"))
    why = "the run contradicts itself, hit_tokens: expected 0 to 8000, observed 9000"
    assert found.texts == [f"E6  VIOLATED by chunk in a: {why}"]
    assert found.columns("Replays", 1, 2) == [
        ("chunk, page 16", "16,384 tokens"),
        ("radix, page 16", "8,192 tokens"),
    ]


@pytest.mark.parametrize("runs", [[], [samples.engine_run()]])
def test_a_broken_law_is_told(runs: list[Any]) -> None:
    """Above everything else, and also where nothing else of the replay is known."""
    broken = samples.replay(violation={"cache": "mamba", "law": "E1", "message": "wrong contents"})
    found = look(make_hit_rate_section, {**broken, "runs": runs})
    told = "E1  VIOLATED by mamba in store/2026-11-21T15:03:11Z.run.jsonl: wrong contents"
    assert (found.texts, len(found.tables)) == ([told], len(runs))


# -- latency ---------------------------------------------------------------------------------------------

HISTOGRAM = Histogram("match", "us", (1.0, 2.0, 4.0, 800.0), (10, 85, 4, 1))


@pytest.mark.parametrize(
    ("histogram", "share", "end"),
    [
        *((HISTOGRAM, *it) for it in ((0.1, 1.0), (0.5, 2.0), (0.95, 2.0), (0.99, 4.0), (1.0, 800.0))),
        (Histogram("x", "us", (1.0,), (0,)), 0.5, None),
        (Histogram("x", "us", (), ()), 0.5, None),
    ],
)
def test_a_quantile_is_the_end_of_its_bucket(histogram: Histogram, share: float, end: float | None) -> None:
    """So many samples are at most as long; without samples it is neither zero nor anything else."""
    assert quantile(histogram, share) == end


def test_histograms_are_drawn_and_their_quantiles_listed() -> None:
    """With units; those of one plot in one picture."""
    other = Histogram("insert", "us", (1.0,), (3,), plot="match")
    found = look(make_latency_section, samples.run(histograms=(HISTOGRAM, other)))
    assert [[it.title for it in choice.panels] for choice in found.plots["plot-latency"].choices] == [[""]]
    (trace,) = found.picture("plot-latency").data
    assert [count for count in trace.y if count] == [10, 85, 4, 1]
    assert trace.y[-1] == 0
    assert 800 <= trace.x[-1] < 880
    machine = f"rack 3, Some GPU ({samples.MACHINE.fingerprint})"
    assert found.tables["Durations"] == [
        f"insert | {machine} | 3 | 1 µs | 1 µs | 1 µs | 1 µs",
        f"match | {machine} | 100 | 2 µs | 2 µs | 4 µs | 800 µs",
    ]


def test_machines_are_beside_each_other_and_newer_runs_in_the_place_of_older_ones() -> None:
    """Never added up."""
    newer = Histogram("match", "us", (1.0,), (7,))
    runs = [samples.run(histograms=(newer,), machine=it) for it in (samples.MACHINE, OTHER, None)]
    found = look(make_latency_section, samples.run(histograms=(HISTOGRAM,)), *runs)
    assert found.columns("Durations", 2) == [("7",)] * 3


def test_fine_buckets_are_drawn_as_coarse_steps_and_no_sample_is_lost() -> None:
    """A timer has 128 buckets for each doubling, and some may have taken no time at all."""
    fine = Histogram("x", "us", (0.0, *(1 + place / 128 for place in range(1, 128))), (5, *(1,) * 127))
    (trace,) = look(make_latency_section, samples.run(histograms=(fine,))).picture("plot-latency").data
    assert (sum(trace.y), sum(map(bool, trace.y))) == (132, 9)
    assert list(trace.x) == sorted(trace.x)


def test_a_replay_has_times_per_request() -> None:
    """Marks on a logarithmic axis, a picture for each operation, where there are caches to compare."""
    assert look(make_latency_section, samples.replay()).plots == {}
    both = samples.replay(samples.engine_run(), samples.engine_run(cache="chunk"))
    found = look(make_latency_section, both)
    (choice,) = found.plots["plot-replay-latency"].choices
    assert [it.title for it in choice.panels] == ["match", "insert", "evict", "lock"]
    match, *_ = next(iter(found.pictures["plot-replay-latency"].values()))
    assert {trace.name: list(trace.x) for trace in match.data} == {
        "chunk, page 16, 8,192 slots": [33.6, 129.0],
        "radix, page 16, 8,192 slots": [33.6, 129.0],
    }
    times = found.columns("Time in the cache per request", 2, 3)
    assert times == [("33.6 / 129.0 us", "95.4 / 382.0 us")] * 2


# -- memory ----------------------------------------------------------------------------------------------

MIB = 1 << 20
CURVE = Curve("one", "bytes", "seconds", (0.0, 1.0, 2.0), (MIB, None, 3 * MIB), "soak", None, "flat", True)


def test_curves_of_one_plot_are_drawn_together_with_their_verdict() -> None:
    """In one unit; what could not be read is a gap."""
    other = replace(CURVE, name="two", verdict="grows", good=False, limit=2.0 * MIB)
    found = look(make_memory_section, samples.run(curves=(CURVE, other)))
    figure = found.picture("plot-memory")
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines == {"one": [1.0, None, 3.0], "two": [1.0, None, 3.0], "two: limit": [2.0, 2.0]}
    assert figure.layout.yaxis.title.text == "MiB"
    plot, values = "soak, 2026-11-21 15:03:11 UTC", "3 | 1 MiB | 1 MiB | 3 MiB | 3 MiB"
    assert found.tables["Curves"] == [
        f"one | {plot} | {values} | none | flat",
        f"two | {plot} | {values} | 2 MiB | grows",
    ]
    assert [found.cell(verdict).tone for verdict in ("flat", "grows")] == ["good", "bad"]
    assert found.plots["plot-memory"].choices[0].note == "Verdict: flat; grows."


def test_a_curve_that_nobody_judged_says_so() -> None:
    """Also one without a single number."""
    blind = Curve("x", "slots", "epochs", (1.0,), (None,))
    found = look(make_memory_section, samples.run(curves=(blind,)))
    assert found.columns("Curves", *range(3, 9)) == [(*["unknown"] * 4, "none", "not judged")]


def test_a_log_of_tests_has_curves_limits_and_figures() -> None:
    """The limit is on top of what was in use before."""
    found = look(make_memory_section, samples.gpu_memory())
    lines = [list(trace.y) for trace in found.picture("plot-memory").data]
    assert lines == [[1.0, 2.0], [3.0, 3.0]]
    row = "tests/test_x.py::test_small | Some GPU | 1 GiB | unknown: no CUDA | 2 GiB | 2 GiB | kept"
    row += " | nothing seen"
    assert found.tables["Tests that were watched"] == [row]


def test_a_device_that_was_not_healthy_is_shown() -> None:
    """Beside the test in which it happened, whatever became of the limit."""
    plain = samples.gpu_memory(index=1)
    plain["nvml"] |= {"invalid": ["the driver reported XID 31"]}
    found = look(make_memory_section, plain)
    assert found.columns("Tests that were watched", 0, 7) == [
        ("tests/test_x.py::test_small on cuda:1", "the driver reported XID 31")
    ]


def test_a_test_on_a_machine_without_a_device_says_why() -> None:
    """It has neither a curve nor a limit, and is listed all the same."""
    plain = samples.gpu_memory(limit=None)
    plain["nvml"] |= {"device": None, "reason": "no NVML", "curve": {"times": [], "used": []}}
    found = look(make_memory_section, plain)
    assert found.plots == {}
    assert found.columns("Tests that were watched", 1, 5, 6) == [("unknown: no NVML", "none", "no limit")]


def test_a_limit_without_a_known_start_is_no_line() -> None:
    """Nobody knows where it would be; a test without a limit has none either."""
    plain = samples.gpu_memory()
    plain["nvml"] |= {"used_start": samples.reading(None, reason="lost")}
    found = look(make_memory_section, plain, samples.gpu_memory("b", limit=None))
    assert [len(figure.data) for (figure,) in found.pictures["plot-memory"].values()] == [1, 1]


# -- trends ----------------------------------------------------------------------------------------------


def test_a_line_is_drawn_for_each_machine_and_code() -> None:
    """Those with several points; a figure with one is a row of a table, and in no picture."""
    slower = replace(FIGURE, value=11.0, low=10.0, high=13.0)
    runs = [*days(FIGURE, slower), *days(FIGURE, FIGURE, FIGURE, machine=OTHER)]
    runs += days(Figure("a", 1.0, "s", "smaller"))
    found = look(make_trends_section, *runs)
    pictures = found.pictures["plot-trends"]
    assert list(pictures) == ["match"]
    (picture,) = pictures["match"]
    short, long = sorted(picture.data, key=lambda trace: len(trace.y))
    assert (len(short.y), len(long.y)) == (2, 3)
    assert (list(short.error_y.array), list(short.error_y.arrayminus)) == ([0.0, 2.0], [0.0, 1.0])
    ((panel,),) = (choice.panels for choice in found.plots["plot-trends"].choices)
    assert panel.title == "µs, smaller is better"
    assert found.columns("Figures of one run", 0, 4) == [("a", "1 s")]
    assert found.tiles == [("2", "figures", None)]


def test_figures_that_belong_together_are_small_pictures_with_short_titles() -> None:
    """Figures with a common name are small pictures below it, with short titles."""
    names = ("replay chat: radix: hit rate", "replay chat: radix: match, median")
    figures = [replace(FIGURE, name=name, plot="replay chat: radix") for name in names]
    (choice,) = (
        look(make_trends_section, *(run for it in figures for run in days(it, it)))
        .plots["plot-trends"]
        .choices
    )
    assert choice.name == "replay chat: radix"
    assert [panel.title for panel in choice.panels] == [
        f"{name}: µs, smaller is better" for name in ("hit rate", "match, median")
    ]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["verify rows, 1 process: steps", "verify radix, 1 process: steps"], ["rows", "radix"]),
        (["a b", "a b"], ["a b", "a b"]),
        (["a", "a b"], ["a", "a b"]),
        ([], []),
    ],
)
def test_names_are_short_where_that_tells_them_apart(names: list[str], short: list[str]) -> None:
    """None becomes empty."""
    assert short_names(names) == short


def test_the_table_has_the_newest_value_and_its_change() -> None:
    """With a word, not only with a colour."""
    found = look(make_trends_section, *days(FIGURE, replace(FIGURE, value=8.0)))
    row = ("match", "c0de", "smaller", "8 µs", "2", "-20.0 % better")
    assert found.columns("Figures of several runs", 0, 2, 3, 4, 5, 6) == [row]
    assert found.cell("-20.0 % better").tone == "good"
    assert found.cell("").spark == (10.0, 8.0)


@pytest.mark.parametrize(
    ("then", "now", "shown"), [(10.0, 12.0, "+20.0 % worse"), (10.0, 10.0, "+0.0 %"), (0.0, 1.0, "from zero")]
)
def test_a_change_is_worse_or_none(then: float, now: float, shown: str) -> None:
    """A change from zero has no percentage."""
    runs = days(replace(FIGURE, value=then), replace(FIGURE, value=now))
    assert look(make_trends_section, *runs).columns("Figures of several runs", 6) == [(shown,)]


def test_a_point_says_which_commit_and_versions_it_is_of() -> None:
    """For whoever points at it."""
    figure = replace(FIGURE, code=None)
    runs = days(figure, figure, commit="ab" * 20, modified=True, versions={"torch": "2.13.0"})
    found = look(make_trends_section, *runs)
    _, text = found.picture("plot-trends").data[0].text
    assert text == "10 µs<br>2026-11-02 00:00:00 UTC<br>commit abababababab, modified<br>torch 2.13.0"
    assert found.columns("Figures of several runs", 2) == [("no hash",)]


def test_a_share_is_drawn_in_per_cent_and_a_fact_not_at_all() -> None:
    """A share is drawn in per cent, as in the table, and a number of nodes is not drawn."""
    rate = Figure("rate", 0.5, "share", "bigger")
    found = look(make_trends_section, *days(rate, rate, Figure("nodes", 3, "")))
    assert list(found.picture("plot-trends").data[0].y) == [50.0, 50.0]
    assert found.columns("Figures of several runs", 0, 4) == [("rate", "50.0 %")]
