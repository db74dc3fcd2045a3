"""``pymllm replay``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import structs

from pymllm.cli.replay.replay import _notes
from pymllm.cli.schema import make_schema
from pymllm.cli.tables import draw_document
from pymllm.documents.replays import CacheTime, ReplayViolation
from pymllm.errors import InvariantViolation
from pymllm.replay.cells import Replayed
from pymllm.replay.grid import ReplayGrid, run_grid
from pymllm.replay.plan import ReplayPlan
from pymllm.replay.replays import run_plan
from pymllm.traces.trace_file import write_trace
from pymllm.workloads.synthetic import make_requests
from tests.unit.cli.typed import typed
from tests.unit.replay.test_replays import BASE, points

NO_REQUEST = "the file holds no request; expected one JSON object per line\n"


replay = partial(typed, "replay")
replay_serial = partial(typed, "replay-serial")


def make_text(result: Replayed | ReplayGrid) -> str:
    return draw_document(result.document, *_notes(result))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_trace(tmp_path / "trace.jsonl", make_requests("chat", 8))
    return str(tmp_path / "trace.jsonl")


BLOCKS = [
    "--cache",
    "blocks,mamba-chunk-size=16",
    "--page-size",
    "16",
    "--track-slots",
    "8",
    "--check-every",
    "40",
]


@pytest.mark.parametrize("options", [[], BLOCKS], ids=["radix", "blocks"])
@pytest.mark.parametrize("name", ["chat", "agent", "shared-prompt", "adversarial"])
def test_a_name_is_replayed_without_any_file(name: str, options: list[str]) -> None:
    """E1, C7: memory runs short, and every request reads what a cold run would have written."""
    result = replay(name, "--requests", "40", "--json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    [run] = json.loads(result.stdout)["runs"]
    assert run["requests"] == run["finished"] + run["rejected"] == 40
    assert 0 < run["hit_tokens"] <= run["ceiling_tokens"]
    assert run["evict_calls"] > 0
    assert run["content_tokens"] > run["prompt_tokens"]
    assert (run["peak_states_held"], run["invariant_checks"] > 0) == ((8, True) if options else (None, False))


def test_a_trace_is_replayed_as_a_table(trace: str) -> None:
    """Results are on standard output, and nothing else is anywhere."""
    result = replay(trace, "--block-tokens", "16", "--page-size", "16", "--capacity", "10k")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"engine replay of {trace}: 8 requests\n" in result.stdout
    assert "10,000 tokens" in result.stdout


def test_a_broken_law_ends_with_1_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says it; beside a JSON document one line on standard error does."""

    def break_law(self: object) -> None:
        raise InvariantViolation("E3", "one slot is gone")

    monkeypatch.setattr("pymllm.workloads.engine.Engine.check_quiescent", break_law)
    result = replay("chat", "--requests", "2")
    assert result.exit_code == 1
    assert result.stdout.endswith("E3  VIOLATED by radix in this run: one slot is gone\n")
    result = replay("chat", "--requests", "2", "--json")
    assert result.exit_code == 1
    said = {"cache": "radix", "law": "E3", "message": "one slot is gone"}
    assert json.loads(result.stdout)["violation"] == said
    assert result.stderr == "pymllm: radix violates E3: one slot is gone\n"


def test_a_newline_in_a_name_breaks_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a file may be called anything; messages stay one line, and the table's heading too."""
    monkeypatch.setenv("COLUMNS", "300")  # or the bar shortens the name
    (tmp_path / "[").mkdir()  # what looks like markup is none
    path = tmp_path / "[" / "b]two\nlines \x1b[1m.jsonl"
    path.write_bytes(b"")
    name = f"{tmp_path}/[/b]two\\nlines \\x1b[1m.jsonl"
    assert replay(str(path)).stderr == f"pymllm: {name}: " + NO_REQUEST
    write_trace(path, make_requests("chat", 3))
    result = replay(str(path), "--block-tokens", "16", "--progress", "on")
    assert result.exit_code == 0
    assert f"engine replay of {name}: 3 requests\n" in result.stdout
    assert "[/b]two\\nlines" in result.stderr


def run_replay(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pymllm", "replay", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


def test_a_dash_is_standard_input(trace: str) -> None:
    """A pipe needs no name: what stands there is replayed as a file of the same lines would be."""
    options = ["--block-tokens", "16", "--json", "--requests", "5"]
    done = run_replay("-", *options, input=Path(trace).read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")
    piped, read = json.loads(done.stdout), json.loads(replay(trace, *options).stdout)
    assert piped["workload"] == {**read["workload"], "name": "-"}
    assert piped["runs"][0]["prompt_tokens"] == read["runs"][0]["prompt_tokens"]
    done = run_replay("-", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == "pymllm: standard input: " + NO_REQUEST


def test_the_bar_leaves_the_document_alone() -> None:
    """Progress is on standard error, the document on standard output."""
    result = replay("chat", "--requests", "3", "--progress", "on", "--json")
    assert json.loads(result.stdout)["workload"]["requests"] == 3
    assert "pymllm: chat radix: 0 of 3 requests, 0:00:00\n" in result.stderr


@pytest.fixture
def children_take_interrupts() -> Iterator[None]:
    """Undo what a shell does to a background job, such as a CI run: it and its children ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("children_take_interrupts")
def test_ctrl_c_is_130_and_one_line(tmp_path: Path) -> None:
    """An interrupted replay says so and prints no half of a result."""
    pipe = tmp_path / "endless.jsonl"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "pymllm", "replay", str(pipe)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        # Opening the pipe for writing returns once the replay has opened it for reading.
        pipe.open("w"),
    ):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "pymllm: interrupted\n"


@contextmanager
def ctrl_c(*arguments: object) -> Iterator[Callable[[int], None]]:
    """Show a progress bar that raises an interrupt after five units of work."""

    def show(done: int) -> None:
        if done >= 5:
            raise KeyboardInterrupt

    yield show


@pytest.mark.parametrize("verb", ["replay", "replay-serial"])
def test_an_interrupt_tells_what_was_played(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As text and as a document; half a trace is no figure for a store."""
    monkeypatch.setattr("pymllm.cli.replay.replay.progress_bar", ctrl_c)
    options = [verb, "chat", "--requests", "40", "--cache", "radix", "--cache", "chunk"]
    result = typed(*options)
    assert (result.exit_code, result.stderr) == (130, "pymllm: interrupted\n")
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(r"interrupted: radix after \d+ of 40 requests; not replayed: chunk", last)
    (tmp_path / "store").mkdir()
    result = typed(*options, "--json", "--store", str(tmp_path / "store"))
    document = json.loads(result.stdout)
    assert (result.exit_code, document["interrupted"], len(document["runs"])) == (130, True, 1)
    assert document["runs"][0]["prompt_tokens"] > 0
    assert list((tmp_path / "store").iterdir()) == []
    monkeypatch.undo()
    assert json.loads(typed(verb, "chat", "--requests", "4", "--json").stdout)["interrupted"] is False


def test_an_interrupt_of_a_curve_tells_which_points_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There are no ceilings, and that not all is there is said."""
    monkeypatch.setattr("pymllm.cli.replay.replay.progress_bar", ctrl_c)
    sizes = [word for size in ("2k", "3k", "4k", "5k", "6k") for word in ("--capacity", size)]
    options = ["chat", "--requests", "10", *sizes, "--jobs", "1"]
    result = replay_serial(*options)
    assert (result.exit_code, result.stderr) == (130, "pymllm: interrupted\n")
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["2,000", "3,000", "4,000", "5,000", "6,000"]
    assert "best choice" not in result.stdout
    assert lines[-1] == "interrupted: not all runs and ceilings were done"
    result = replay_serial(*options, "--json", "--store", str(tmp_path))
    document = json.loads(result.stdout)
    assert (result.exit_code, document["interrupted"], document["ceilings"]) == (130, True, [])
    assert [run["config"]["capacity"] for run in document["runs"]] == [2000, 3000, 4000, 5000, 6000]
    assert list(tmp_path.iterdir()) == []


def test_several_capacities_make_a_curve() -> None:
    """One line each, and one document with all runs; a bad point is refused before any of them runs."""
    options = ["chat", "--requests", "20", "--capacity", "2k", "--capacity", "8k"]
    result = replay_serial(*options, "--jobs", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert rows == ["2,000", "8,000"]
    document = json.loads(replay_serial(*options, "--jobs", "1", "--json").stdout)
    assert [run["config"]["capacity"] for run in document["runs"]] == [2000, 8000]
    refused = replay_serial(*options, "--page-size", "1", "--page-size", "4000")
    assert refused.exit_code == 2
    assert "--capacity 2000 holds no page of 4000 tokens" in refused.stderr


def test_policies_are_compared_under_their_names() -> None:
    """Each cache is compared with each of its policies, and a policy may be typed with an underscore."""
    options = ["chat", "--requests", "4", "--page-size", "16", "--cache", "radix", "--cache", "blocks"]
    policies = ["--eviction-policy", "lru", "--eviction-policy", "ref_zero", "--eviction-policy", "ref-zero"]
    result = replay(*options, *policies, "--jobs", "1")
    assert result.exit_code == 0
    assert "--eviction-policy ref-zero was given 2 times; it is replayed once" in result.stderr
    found = re.findall(r"tokens  (radix|blocks) +(\S+)", result.stdout)
    assert found == [("radix", "lru"), ("blocks", "lru"), ("blocks", "ref-zero")]


def test_equal_capacities_are_played_once() -> None:
    """In whatever words they were given; and that is said."""
    options = ["chat", "--requests", "5", "--capacity", "4k", "--capacity", "4000"]
    result = replay_serial(*options, "--capacity", "8k", "--jobs", "1", "--json")
    assert [run["config"]["capacity"] for run in json.loads(result.stdout)["runs"]] == [4000, 8000]
    assert result.stderr == "pymllm: --capacity 4000 was given 2 times; it is replayed once\n"
    alone = replay_serial(*options, "--page-size", "1", "--page-size", "1", "--json")
    assert json.loads(alone.stdout)["schema"] == "pymllm.replay"
    assert "--page-size 1 was given 2 times" in alone.stderr


# -- the document ------------------------------------------------------------------------------------------


PAGE = Path(__file__).parents[3] / "docs" / "replay.md"
RECORDED = replace(BASE, requests=5, window=64, capacity=5000, content_check=True)


def document_of(plan: ReplayPlan) -> Any:
    document = json.loads(json.dumps(run_plan(plan).document.plain(), allow_nan=False))
    Draft202012Validator(make_schema("replay")).validate(document)
    return document


def field_names(value: Any, prefix: str = "") -> list[str]:
    """Dotted names of everything in a document that is no object itself."""
    if not isinstance(value, dict):
        return [prefix]
    return [name for key, part in value.items() for name in field_names(part, f"{prefix}.{key}".lstrip("."))]


def documented_fields(heading: str) -> list[str]:
    """First column of the table below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.split(f" {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)


@pytest.mark.parametrize(("mode", "heading"), [("engine", "An engine run"), ("serial", "A serial run")])
def test_the_page_lists_the_fields_of_a_run_in_order(mode: str, heading: str) -> None:
    """Whoever reads the page knows the document, and the other way round."""
    document = document_of(replace(RECORDED, mode=mode))
    assert field_names(document["runs"][0]) == documented_fields(heading)
    assert document["mode"] == mode


def test_the_page_lists_the_fields_around_the_runs() -> None:
    """The same for what does not depend on the mode."""
    document = run_plan(RECORDED).document
    document = structs.replace(document, violation=ReplayViolation("radix", "E1", "wrong"))
    assert field_names(document.plain()) == documented_fields("The JSON document")


def test_the_document_says_what_it_is() -> None:
    """A dashboard can tell one version from another."""
    document = document_of(RECORDED)
    assert (document["schema"], document["version"]) == ("pymllm.replay", 1)
    assert document["violation"] is None
    played = {"name": "chat", "kind": "named", "requests": 5, "seed": 0, "block_tokens": None}
    assert document["workload"] == played
    assert document["asked"] == {"capacity": 5000, "swa_capacity": None}
    assert document["runs"][0]["config"]["capacity"] == 4992


# -- several sizes ---------------------------------------------------------------------------------------


def test_a_line_has_each_cache_and_both_ceilings() -> None:
    """By page size and capacity, rounded to whole pages."""
    grid = run_grid(points((1, 3000), (1, 9000), (64, 9000)), 1)
    lines = make_text(grid).splitlines()
    assert lines[1] == "serial replay of chat: 30 requests, seed 0"
    head, *rows = [re.split("  +", line.strip()) for line in lines[3:10]]
    assert head[:6] == ["page size", "capacity", "cache", "token hit rate", "best choice", "unlimited"]
    assert head[6:] == ["left out", "evicted", "match", "insert", "evict"]
    runs = [result.document.runs[0] for result in grid.results]
    ceilings = [it for it in grid.ceilings for _ in range(2)]
    assert rows == [
        [
            "1 token" if run.config.page_size == 1 else "64 tokens",
            f"{run.config.capacity:,} tokens",
            run.config.cache,
            *(f"{100 * rate:.1f} %" for rate in (run.token_hit_rate, best, ceiling.unlimited_hit_rate)),
            f"{run.skipped:,}",
            f"{run.evicted_tokens:,} tokens",
            *(f"{it.median_us:,.1f} / {it.p99_us:,.1f} us" for it in (run.match, run.insert, run.evict)),
        ]
        for run, ceiling in zip(runs, ceilings, strict=True)
        if (best := ceiling.belady_hit_rate) is not None
    ]
    assert [run.config.capacity for run in runs] == [3000, 3000, 9000, 9000, 8960, 8960]
    assert runs[0].evicted_tokens > runs[2].evicted_tokens == 0


def test_a_violation_stands_below_with_its_point() -> None:
    """E3: with the size at which it happened."""
    grid = run_grid(points((1, 3000), (1, 9000)), 1)
    first = grid.results[0]
    found = ReplayViolation("radix", "E3", "1 slot is lost")
    broken = replace(first, document=structs.replace(first.document, runs=(), violation=found))
    grid = replace(grid, results=(broken, *grid.results[1:]))
    assert grid.document.violation == found
    assert make_text(grid).splitlines()[-3:] == [
        "E3  VIOLATED by radix in this run: 1 slot is lost",
        "",
        "E3  of radix with page size 1, capacity 3000",
    ]


@pytest.mark.parametrize("mode", ["serial", "engine"])
def test_what_is_left_out_stands_beside_the_rates(mode: str) -> None:
    """E4: rates over fewer requests, without the long ones, are no part of one curve."""
    plans = [replace(one, mode=mode, caches=("radix",)) for one in points((1, 600), (1, 9000))]
    grid = run_grid(plans, 1)
    [run] = grid.results[0].document.runs
    left_out = run.skipped or run.rejected
    head, *rows = [re.split("  +", line.strip()) for line in make_text(grid).splitlines()[3:6]]
    place = head.index("left out")
    assert "left out" not in make_text(run_grid(plans[1:], 1)).splitlines()[3]
    assert [row[place] for row in rows] == [str(left_out), "0"]
    assert ("best choice" in head) == (mode == "serial")
    assert left_out


def test_a_document_of_a_curve_has_all_runs_and_ceilings() -> None:
    """The rest is as of a single replay."""
    document = json.loads(json.dumps(run_grid(points((1, 3000), (16, 9000)), 1).document.plain()))
    Draft202012Validator(make_schema("replay")).validate(document)
    assert document["asked"] == {
        "capacity": 3000, "swa_capacity": None, "capacities": [3000, 9000], "page_sizes": [1, 16]
    }  # fmt: skip
    assert [(run["config"]["cache"], run["config"]["capacity"]) for run in document["runs"]] == [
        ("radix", 3000), ("chunk", 3000), ("radix", 8992), ("chunk", 8992)
    ]  # fmt: skip
    assert [one["capacity"] for one in document["ceilings"]] == [3000, 8992]
    assert document["violation"] is None


# -- the table ---------------------------------------------------------------------------------------------


SHOWN = replace(BASE, requests=12, seed=9, window=64, capacity=5000, content_check=True, check_every=5)


@pytest.fixture(scope="module")
def windowed() -> Replayed:
    return run_plan(SHOWN)


def with_(result: Replayed, **other: Any) -> Replayed:
    """The same with another document."""
    return replace(result, document=structs.replace(result.document, **other))


def value_of(text: str, label: str) -> str:
    """Return the text behind a label."""
    [line] = [line for line in text.splitlines() if line.startswith(f"  {label}  ")]
    return line[len(label) + 2 :].strip()


def test_every_promised_figure_has_its_row_and_unit(windowed: Replayed) -> None:
    """Hits, evictions, retractions, times, peaks and the configuration, as the run reported them."""
    [report] = windowed.document.runs
    report = structs.replace(
        report,
        token_hit_rate=0.512,
        ceiling_hit_rate=0.75,
        dead_window_tokens=1234,
        retractions=7,
        match=CacheTime(1.25, 1000.0),
        peak_rss_bytes=300 << 20,
    )
    text = make_text(with_(windowed, runs=(report,)))
    assert "engine replay of chat: 12 requests, seed 9" in text
    assert text.startswith("pymllm ")
    assert "torch" in text.splitlines()[0]  # a figure without its versions cannot be compared
    expected = {
        "requests": "12",
        "finished": "12",
        "retractions": "7",
        "prompt tokens": f"{report.prompt_tokens:,} tokens",
        "token hit rate": "51.2 %",
        "ceiling of an unlimited cache": "75.0 %",
        "hits lost: window evicted": "1,234 tokens",
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


def test_what_does_not_apply_says_so() -> None:
    """Without a window and without checks no row pretends to a number."""
    plan = replace(SHOWN, window=None, content_check=False, check_every=0, capacity=4992)
    text = make_text(run_plan(plan))
    assert not re.search("^  (hits lost: window evicted|window)  ", text, re.MULTILINE)
    assert value_of(text, "contents compared") == "off"
    assert value_of(text, "invariants walked") == "off"
    assert value_of(text, "capacity") == "4,992 tokens"
    assert "window half" not in text
    assert value_of(make_text(run_plan(replace(plan, page_size=1))), "page size") == "1 token"
    text = make_text(run_plan(replace(SHOWN, swa_capacity=3000)))
    assert value_of(text, "capacity of the window half") == "2,992 tokens (3,000 asked)"


def test_states_have_their_rows_and_other_caches_none() -> None:
    """Hits lost, states held, evicted and left out stand beside a cache that has no states."""
    plan = replace(SHOWN, window=None, caches=("radix", "mamba"), track_slots=2)
    result = run_plan(plan)
    text = make_text(result)
    report = result.document.runs[1]
    expected = {
        "hits lost: no cached state": f"{report.stateless_tokens:,} tokens",
        "peak states held": "2 states",
        "evicted states": f"{report.evicted_states} states",
        "states not kept: no free slot": f"{report.skipped_snapshots} states",
        "capacity for states": "2 states",
    }
    for label, value in expected.items():
        assert value_of(text, label).split() == ["no", "states", *value.split()]
    assert report.hit_tokens > 0
    assert "state" not in make_text(replace(with_(result, runs=result.document.runs[:1]), plan=SHOWN))


def test_blocks_have_their_rows_and_other_caches_none() -> None:
    """Pauses, the policy and what may be paused stand beside a cache that has no blocks."""
    plan = replace(
        SHOWN,
        window=None,
        caches=("blocks", "radix"),
        track_slots=2,
        mamba_chunk_size=16,
        eviction_policies=("ref-zero",),
    )
    result = run_plan(plan)
    text = make_text(result)
    blocks, radix = result.document.runs
    assert (blocks.pauses, radix.pauses) == (0, None)
    expected = {
        "pauses": ["0", "no", "pauses"],
        "capacity for states": ["2", "states", "no", "states"],
        "a state after every": ["16", "tokens", "no", "blocks"],
        "eviction policy": ["ref-zero", "lru"],
        "capacity for paused requests": ["1,248", "tokens", "no", "blocks"],
    }
    assert {label: value_of(text, label).split() for label in expected} == expected
    assert "pauses" not in make_text(run_plan(replace(SHOWN, window=None, requests=1)))


def test_memory_that_cannot_be_read_is_unknown(windowed: Replayed) -> None:
    """A missing measurement is never zero."""
    [report] = windowed.document.runs
    text = make_text(with_(windowed, runs=(structs.replace(report, peak_rss_bytes=None),)))
    assert value_of(text, "peak memory of the process") == "unknown on this platform"


def test_serial_replays_have_their_own_rows() -> None:
    """The allocator's time counts there, and the mean that others report."""
    plan = replace(SHOWN, mode="serial", window=None, caches=("radix", "chunk"))
    result = run_plan(plan)
    text = make_text(result)
    radix, chunk = result.document.runs
    assert text.splitlines()[3].split() == ["radix", "chunk"]
    assert value_of(text, "ownership checks").split() == ["on", "on"]
    assert value_of(text, "token hit rate").split()[-2:] == ["0.0", "%"]
    assert value_of(text, "prompt tokens").split() == [f"{radix.prompt_tokens:,}", "tokens"] * 2
    assert len(value_of(text, "all of them, mean").split()) == 4
    assert chunk.hit_tokens == 0


def test_a_pipe_gets_plain_lines_of_at_most_80_columns(windowed: Replayed) -> None:
    """No escapes, nothing cut, nothing wrapped, no blanks at the end, no character beyond ASCII."""
    text = make_text(windowed)
    lines = text.splitlines()
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    assert text.endswith("\n")


def test_a_broken_law_stands_below_what_ran(windowed: Replayed) -> None:
    """The law, the cache, and what was expected and found, unwrapped."""
    found = ReplayViolation("chunk", "E1", "expected [1], found " + "2" * 100)
    text = make_text(with_(windowed, violation=found))
    told = f"E1  VIOLATED by chunk in this run: {found.message}"
    assert text.endswith(f"{told}\n")
    assert "radix" in text
    alone = make_text(with_(windowed, runs=(), violation=found))
    assert "configuration" not in alone
    assert alone.splitlines()[-1] == told
