"""Hit rates over capacity."""

from __future__ import annotations

from pymllm.report.hit_rate_section import find_replays, make_hit_rate_section
from tests.unit.report import samples
from tests.unit.report.looking import cells, figures, tables, texts

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
