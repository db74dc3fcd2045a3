"""The table: every number with its unit, readable in a pipe and in a narrow terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_result import ReplayResult, Violation
from pymllm.cli.replay_run import run_plan
from pymllm.cli.replay_table import make_text
from pymllm.workloads.engine import EngineReport
from pymllm.workloads.engine_report import CacheTime

PLAN = ReplayPlan(
    workload="chat",
    mode="engine",
    caches=("radix",),
    requests=12,
    seed=9,
    block_tokens=512,
    page_size=16,
    window=64,
    capacity=5000,
    swa_capacity=None,
    track_slots=None,
    max_running=4,
    chunk=512,
    iteration_ms=50.0,
    content_check=True,
    check_every=5,
)


@pytest.fixture(scope="module")
def windowed() -> ReplayResult:
    return run_plan(PLAN, "off")


def value_of(text: str, label: str) -> str:
    """What stands behind a label."""
    [line] = [line for line in text.splitlines() if line.startswith(f"  {label}  ")]
    return line[len(label) + 2 :].strip()


def test_every_promised_figure_has_its_row_and_unit(windowed: ReplayResult) -> None:
    """Hits, evictions, retractions, times, peaks and the configuration, as the run reported them."""
    [report] = windowed.runs
    assert isinstance(report, EngineReport)
    report = replace(
        report,
        token_hit_rate=0.512,
        ceiling_hit_rate=0.75,
        dead_window_tokens=1234,
        retractions=7,
        match=CacheTime(1.25, 1000.0),
        peak_rss_bytes=300 << 20,
    )
    text = make_text(replace(windowed, runs=(report,)))
    assert "engine replay of chat: 12 requests, seed 9" in text
    expected = {
        "requests": "12",
        "finished": "12",
        "retractions": "7",
        "prompt tokens": f"{report.prompt_tokens:,} tokens",
        "token hit rate": "51.2 %",
        "ceiling of an unlimited cache": "75.0 %",
        "hits lost to dead windows": "1,234 tokens",
        "evictions": f"{report.evict_calls:,} calls",
        "evicted": f"{report.evicted_tokens:,} tokens",
        "evicted window halves": f"{report.evicted_swa_tokens:,} tokens",
        "peak tokens held": f"{report.peak_tokens_held:,} tokens",
        "peak memory of the process": "300 MiB",
        "match": "1.2 / 1,000.0 us",
        "contents compared": f"{report.content_tokens:,} tokens",
        "invariants walked": f"{report.invariant_checks:,} times",
        "window": "64 tokens",
        "capacity": "4,992 tokens (5,000 asked)",
        "capacity of the window half": "4,992 tokens (5,000 asked)",
        "virtual time of an iteration": "50 ms",
    }
    assert {label: value_of(text, label) for label in expected} == expected


def test_versions_head_the_table(windowed: ReplayResult) -> None:
    """A figure without its versions cannot be compared."""
    first = make_text(windowed).splitlines()[0]
    assert first.startswith("pymllm ")
    assert "torch" in first


def test_what_does_not_apply_says_so() -> None:
    """Without a window and without checks no row pretends to a number."""
    plan = replace(PLAN, window=None, content_check=False, check_every=0, capacity=4992)
    text = make_text(run_plan(plan, "off"))
    assert value_of(text, "hits lost to dead windows") == "no window"
    assert value_of(text, "window") == "none"
    assert value_of(text, "contents compared") == "off"
    assert value_of(text, "invariants walked") == "off"
    assert value_of(text, "capacity") == "4,992 tokens"
    assert "window half" not in text
    assert value_of(make_text(run_plan(replace(plan, page_size=1), "off")), "page size") == "1 token"


def test_a_window_halfs_own_capacity_is_shown() -> None:
    """What was asked for it stands beside what it got."""
    text = make_text(run_plan(replace(PLAN, swa_capacity=3000), "off"))
    assert value_of(text, "capacity of the window half") == "2,992 tokens (3,000 asked)"


def test_states_have_their_rows_and_other_caches_none() -> None:
    """Hits lost, states held, evicted and left out stand beside a cache that has no states."""
    plan = replace(PLAN, window=None, caches=("radix", "mamba"), track_slots=2)
    result = run_plan(plan, "off")
    text = make_text(result)
    report = result.runs[1]
    assert isinstance(report, EngineReport)
    expected = {
        "hits lost for want of a state": f"{report.stateless_tokens:,} tokens",
        "peak states held": "2 states",
        "evicted states": f"{report.evicted_states} states",
        "states left out, as no slot was free": f"{report.skipped_snapshots} states",
        "capacity for states": "2 states",
    }
    for label, value in expected.items():
        assert value_of(text, label).split() == ["no", "states", *value.split()]
    assert report.hit_tokens > 0
    assert "state" not in make_text(replace(result, plan=PLAN, runs=result.runs[:1]))


def test_blocks_have_their_rows_and_other_caches_none() -> None:
    """Pauses, the policy and what may be paused stand beside a cache that has no blocks."""
    plan = replace(
        PLAN,
        window=None,
        caches=("blocks", "radix"),
        track_slots=2,
        mamba_chunk_size=16,
        eviction_policy="ref-zero",
    )
    result = run_plan(plan, "off")
    text = make_text(result)
    blocks, radix = result.runs
    assert isinstance(blocks, EngineReport)
    assert isinstance(radix, EngineReport)
    assert (blocks.pauses, radix.pauses) == (0, None)
    expected = {
        "pauses": ["0", "no", "pauses"],
        "capacity for states": ["2", "states", "no", "states"],
        "a state after every": ["16", "tokens", "no", "blocks"],
        "eviction policy": ["ref-zero", "no", "blocks"],
        "capacity for paused requests": ["1,248", "tokens", "no", "blocks"],
    }
    assert {label: value_of(text, label).split() for label in expected} == expected
    assert "pauses" not in make_text(run_plan(replace(PLAN, window=None, requests=1), "off"))


def test_memory_that_cannot_be_read_is_unknown(windowed: ReplayResult) -> None:
    """A missing measurement is never zero."""
    [report] = windowed.runs
    text = make_text(replace(windowed, runs=(replace(report, peak_rss_bytes=None),)))
    assert value_of(text, "peak memory of the process") == "unknown on this platform"


def test_serial_replays_have_their_own_rows() -> None:
    """The allocator's time counts there, and the mean that others report."""
    plan = replace(PLAN, mode="serial", window=None, caches=("radix", "chunk"))
    result = run_plan(plan, "off")
    text = make_text(result)
    radix, chunk = result.runs
    assert text.splitlines()[3].split() == ["radix", "chunk"]
    assert value_of(text, "ownership checks").split() == ["on", "on"]
    assert value_of(text, "token hit rate").split()[-2:] == ["0.0", "%"]
    assert value_of(text, "prompt tokens").split() == [f"{radix.prompt_tokens:,}", "tokens"] * 2
    assert len(value_of(text, "all of them, mean").split()) == 4
    assert chunk.hit_tokens == 0


def test_a_pipe_gets_plain_lines_of_at_most_80_columns(windowed: ReplayResult) -> None:
    """No escapes, nothing cut, nothing wrapped, no blanks at the end, no character beyond ASCII."""
    text = make_text(windowed)
    lines = text.splitlines()
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    assert text.endswith("\n")


def test_a_narrow_terminal_cuts_no_number(windowed: ReplayResult) -> None:
    """Long cells go on in the next line."""
    text = make_text(windowed, width=40)
    [report] = windowed.runs
    assert "..." not in text
    assert f"{report.prompt_tokens:,}" in text


def test_a_terminal_gets_bold_headings(windowed: ReplayResult) -> None:
    """Styles are for terminals only."""
    assert "\x1b[1m" in make_text(windowed, width=100, styled=True)


def test_a_broken_law_stands_below_what_ran(windowed: ReplayResult) -> None:
    """The law, the cache, and what was expected and found, unwrapped."""
    found = Violation("chunk", "E1", "expected [1], found " + "2" * 100)
    text = make_text(replace(windowed, violation=found))
    assert text.endswith(f"E1  VIOLATED by chunk\n    {found.message}\n")
    assert "radix" in text
    alone = make_text(replace(windowed, runs=(), violation=found))
    assert "configuration" not in alone
    assert alone.splitlines()[-2:] == ["E1  VIOLATED by chunk", f"    {found.message}"]
