"""Sections of the page: peers, GPU benchmarks, hit rates, latency, memory."""

from __future__ import annotations

import pytest

from pymllm.report.records import Curve, Histogram
from pymllm.report.sections.gpu import make_gpu_section
from pymllm.report.sections.hit_rate import find_replays, make_hit_rate_section
from pymllm.report.sections.latency import make_latency_section, quantile
from pymllm.report.sections.memory import make_memory_section
from pymllm.report.sections.peers import make_peers_section
from tests.unit.report import samples
from tests.unit.report.looking import cells, figures, tables, texts
from tests.unit.report.test_trends import OTHER

# -- peers section ---------------------------------------------------------------------------------------


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


# -- gpu section -----------------------------------------------------------------------------------------


def test_a_case_has_its_times_its_speed_and_its_goals() -> None:
    """With units, and a word for each goal."""
    section = make_gpu_section([samples.run(samples.gpu_benchmarks())])
    goals = "✓ met: of the speed of a copy 0.9, at least 0.85; ✗ missed: of torch's time 1.2, at most 1"
    assert tables(section) == {
        "2026-11-21 15:03:11 UTC: Some GPU, driver 580.1, torch 2.13.0": [
            [
                "set_kv_buffer",
                "tokens 64, dtype bfloat16",
                "graph",
                "ours 12 µs, copy 10 µs",
                "2,500 GB/s",
                goals,
            ]
        ]
    }
    assert cells(section, goals)[0].tone == "unknown"
    assert section is not None
    assert (section.tiles[0].value, section.tiles[0].tone) == ("1 of 2", "unknown")


def test_a_case_without_goals_has_none_and_the_newest_run_comes_first() -> None:
    """Then there is no tile to count them."""
    plain = samples.gpu_benchmarks()
    plain["results"][0]["goals"] = []
    plain["machine"]["driver"] = None
    newer = samples.run(plain, time="2026-11-22T00:00:00Z")
    section = make_gpu_section([samples.run(samples.gpu_benchmarks()), newer])
    assert [caption[:10] for caption in tables(section)] == ["2026-11-22", "2026-11-21"]
    assert "driver unknown" in next(iter(tables(section)))
    assert section is not None
    assert section.tiles == ()


def test_without_results_there_is_no_section() -> None:
    """It would be empty."""
    assert make_gpu_section([samples.run(samples.gpu_benchmarks(results=[]))]) is None


# -- hit rate section ------------------------------------------------------------------------------------


WORKLOAD = "chat, 200 requests, seed 0, engine"


def test_capacities_of_one_cache_are_a_line_below_its_ceiling() -> None:
    """Whichever runs they are of."""
    first = samples.run(
        samples.replay(samples.engine_run(16384, 0.7), samples.engine_run(16384, 0.1, "chunk"))
    )
    second = samples.run(samples.replay(samples.engine_run(8192, 0.6)))
    section = make_hit_rate_section([first, second])
    (figure,) = figures(section)["plot-hit-rate"].values()
    lines = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert lines["radix, page 16"] == ([8192, 16384], [60.0, 70.0])
    assert lines["radix, page 16: ceiling"] == ([8192, 16384], [80.0, 80.0])
    assert len(figure.data) == len(lines)
    assert set(lines) == {
        "radix, page 16",
        "radix, page 16: ceiling",
        "chunk, page 16",
        "chunk, page 16: ceiling",
    }


def test_the_table_has_the_numbers_with_units() -> None:
    """Once for each workload, cache and capacity."""
    section = make_hit_rate_section([samples.run(samples.replay())])
    assert tables(section)["Replays"] == [
        [
            WORKLOAD,
            "radix, page 16",
            "8,192",
            "64.0 %",
            "80.0 %",
            "not computed",
            "512",
            "8,000",
            "3",
            "300 MiB",
        ]
    ]


def test_the_newest_replay_of_the_same_counts() -> None:
    """An older one of the same is another run of the same figure, which the trends have."""
    old, new = samples.run(samples.replay(samples.engine_run(hit_rate=0.1))), samples.run(samples.replay())
    (it,) = find_replays([old, new])
    assert it.engine.token_hit_rate == 0.64


def test_the_best_choice_is_drawn_where_it_is_known() -> None:
    """Between the cache and the ceiling."""
    ceiling = {"page_size": 16, "capacity": 8192, "unlimited_hit_rate": 0.8, "prompt_tokens": 9}
    known = samples.replay(
        ceilings=[ceiling | {"belady_hit_rate": 0.7}, ceiling | {"page_size": 1, "belady_hit_rate": 0.9}]
    )
    section = make_hit_rate_section([samples.run(known)])
    (figure,) = figures(section)["plot-hit-rate"].values()
    (best,) = (trace for trace in figure.data if "Belady" in trace.name)
    assert (best.name, list(best.x), list(best.y)) == ("best choice (Belady), page 16", [8192], [70.0])
    assert tables(section)["Replays"][0][5] == "70.0 %"


def test_a_serial_replay_of_a_trace_has_no_engine_and_no_seed() -> None:
    """So it retracts nothing."""
    run = samples.engine_run()
    del run["finished"], run["retractions"]
    run["config"] = {**run["config"], "sliding_window_size": 64}
    workload = {"name": "t.jsonl", "kind": "trace", "requests": 2, "seed": 0}
    section = make_hit_rate_section([samples.run(samples.replay(run, mode="serial", workload=workload))])
    assert tables(section)["Replays"][0][:2] == ["t.jsonl, 2 requests, serial", "radix, page 16, window 64"]
    assert cells(section, "no engine")


def test_a_broken_law_is_told() -> None:
    """Above everything else."""
    broken = samples.replay(violation={"cache": "mamba", "law": "E1", "message": "wrong contents"})
    assert texts(make_hit_rate_section([samples.run(broken)])) == [
        "mamba broke E1 in store/2026-11-21T15:03:11Z.run.jsonl: wrong contents"
    ]


def test_a_replay_that_only_broke_a_law_is_shown_too() -> None:
    """Nothing else of it is known."""
    broken = samples.replay(violation={"cache": "mamba", "law": "E1", "message": "wrong contents"})
    broken["runs"] = []
    section = make_hit_rate_section([samples.run(broken)])
    assert len(texts(section)) == 1
    assert tables(section) == {}


def test_without_replays_there_is_no_section() -> None:
    """It would be empty."""
    assert make_hit_rate_section([samples.run(samples.verify())]) is None


# -- latency section -------------------------------------------------------------------------------------


HISTOGRAM = Histogram("match", "us", (1.0, 2.0, 4.0, 800.0), (10, 85, 4, 1))


@pytest.mark.parametrize(("share", "end"), [(0.1, 1.0), (0.5, 2.0), (0.95, 2.0), (0.99, 4.0), (1.0, 800.0)])
def test_a_quantile_is_the_end_of_its_bucket(share: float, end: float) -> None:
    """So many samples are at most as long."""
    assert quantile(HISTOGRAM, share) == end


def test_an_empty_histogram_has_no_quantile() -> None:
    """Neither zero nor anything else."""
    assert quantile(Histogram("x", "us", (1.0,), (0,)), 0.5) is None
    assert quantile(Histogram("x", "us", (), ()), 0.5) is None


def test_histograms_are_drawn_and_their_quantiles_listed() -> None:
    """With units; those of one plot in one picture."""
    other = Histogram("insert", "us", (1.0,), (3,), plot="match")
    section = make_latency_section([samples.run(histograms=(HISTOGRAM, other))])
    (figure,) = figures(section)["plot-latency"].values()
    assert [list(trace.y) for trace in figure.data] == [[3], [10, 85, 4, 1]]
    longest = figure.data[1].x[-1] + figure.data[1].width[-1] / 2
    assert 800 <= longest < 880
    machine = f"rack 3, Some GPU ({samples.MACHINE.fingerprint})"
    assert tables(section)["Durations"] == [
        ["insert", machine, "3", "1 µs", "1 µs", "1 µs", "1 µs"],
        ["match", machine, "100", "2 µs", "2 µs", "4 µs", "800 µs"],
    ]


def test_machines_are_beside_each_other_and_newer_runs_in_the_place_of_older_ones() -> None:
    """Never added up."""
    newer = Histogram("match", "us", (1.0,), (7,))
    runs = [
        samples.run(histograms=(HISTOGRAM,)),
        samples.run(histograms=(newer,)),
        samples.run(histograms=(newer,), machine=OTHER),
        samples.run(histograms=(newer,), machine=None),
    ]
    rows = tables(make_latency_section(runs))["Durations"]
    assert [row[2] for row in rows] == ["7", "7", "7"]


def test_fine_buckets_are_drawn_as_coarse_bars_and_no_sample_is_lost() -> None:
    """A timer has 128 buckets for each doubling, and some may have taken no time at all."""
    fine = Histogram("x", "us", (0.0, *(1 + place / 128 for place in range(1, 128))), (5, *(1,) * 127))
    (figure,) = figures(make_latency_section([samples.run(histograms=(fine,))]))["plot-latency"].values()
    (trace,) = figure.data
    assert sum(trace.y) == 132
    assert len(trace.y) == 9
    edges = [x + width / 2 for x, width in zip(trace.x, trace.width, strict=True)]
    assert edges == sorted(edges)


def test_a_replay_has_times_per_request() -> None:
    """On a logarithmic axis, since the p99 may be a thousand medians."""
    section = make_latency_section([samples.run(samples.replay())])
    (figure,) = figures(section)["plot-replay-latency"].values()
    assert {trace.name: list(trace.y) for trace in figure.data} == {
        "median of a request": [33.6, 95.4, 0.0, 12.8],
        "p99 of a request": [129.0, 382.0, 0.0, 25.1],
    }
    (row,) = tables(section)["Time in the cache per request"]
    assert row[2:6] == ["33.6 µs", "129 µs", "95.4 µs", "382 µs"]


def test_without_durations_there_is_no_section() -> None:
    """It would be empty."""
    assert make_latency_section([samples.run(samples.verify())]) is None


# -- memory section --------------------------------------------------------------------------------------


MIB = 1 << 20


def curve(
    name: str, verdict: str | None = "flat", good: bool | None = True, limit: float | None = None
) -> Curve:
    return Curve(
        name, "bytes", "seconds", (0.0, 1.0, 2.0), (MIB, None, 3 * MIB), "soak", limit, verdict, good
    )


def test_curves_of_one_plot_are_drawn_together_with_their_verdict() -> None:
    """In one unit; what could not be read is a gap."""
    section = make_memory_section(
        [samples.run(curves=(curve("one"), curve("two", "grows", False, 2.0 * MIB)))]
    )
    (figure,) = figures(section)["plot-memory"].values()
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines == {"one": [1.0, None, 3.0], "two": [1.0, None, 3.0], "two: limit": [2.0, 2.0]}
    assert figure.layout.yaxis.title.text == "MiB"
    plot = "soak, 2026-11-21 15:03:11 UTC"
    assert tables(section)["Curves"] == [
        ["one", plot, "3", "1 MiB", "1 MiB", "3 MiB", "3 MiB", "none", "flat"],
        ["two", plot, "3", "1 MiB", "1 MiB", "3 MiB", "3 MiB", "2 MiB", "grows"],
    ]
    assert [cells(section, verdict)[0].tone for verdict in ("flat", "grows")] == ["good", "bad"]
    assert section is not None
    (block,) = (block for block in section.blocks if block.kind == "plot")
    assert block.choices[0].note == "Verdict: flat; grows."  # type: ignore[union-attr]


def test_a_curve_that_nobody_judged_says_so() -> None:
    """Also one without a single number."""
    blind = Curve("x", "slots", "epochs", (1.0,), (None,))
    section = make_memory_section([samples.run(curves=(blind,))])
    assert tables(section)["Curves"][0][3:] == ["unknown"] * 4 + ["none", "not judged"]


def test_a_log_of_tests_has_curves_limits_and_figures() -> None:
    """The limit is on top of what was in use before."""
    section = make_memory_section([samples.run(samples.gpu_memory())])
    (figure,) = figures(section)["plot-memory"].values()
    assert [list(trace.y) for trace in figure.data] == [[1.0, 2.0], [3.0, 3.0]]
    assert tables(section)["Tests that were watched"] == [
        ["tests/test_x.py::test_small", "Some GPU", "1 GiB", "unknown: no CUDA", "2 GiB", "2 GiB", "kept"]
    ]


def test_a_test_on_a_machine_without_a_device_says_why() -> None:
    """It has neither a curve nor a limit, and is listed all the same."""
    plain = samples.gpu_memory(limit=None)
    plain["nvml"] |= {"device": None, "reason": "no NVML", "curve": {"times": [], "used": []}}
    section = make_memory_section([samples.run(plain)])
    assert figures(section) == {}
    row = tables(section)["Tests that were watched"][0]
    assert (row[1], row[5], row[6]) == ("unknown: no NVML", "none", "no limit")


def test_a_limit_without_a_known_start_is_no_line() -> None:
    """Nobody knows where it would be; a test without a limit has none either."""
    plain = samples.gpu_memory()
    plain["nvml"] |= {"used_start": samples.reading(None, reason="lost")}
    runs = [samples.run(plain, samples.gpu_memory("b", limit=None))]
    pictures = figures(make_memory_section(runs))["plot-memory"]
    assert [len(figure.data) for figure in pictures.values()] == [1, 1]


def test_without_memory_there_is_no_section() -> None:
    """It would be empty."""
    assert make_memory_section([samples.run(samples.verify())]) is None
