"""``pymllm curve``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.cli.tables import draw_document
from pymllm.replay import curves
from pymllm.replay.curve import LruCurve
from pymllm.replay.curve_plan import CurvePlan
from pymllm.replay.curves import run_curve
from pymllm.replay.serial import SerialConfig, replay_serially
from pymllm.traces.trace_file import write_trace
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import make_requests
from tests.unit.cli.typed import typed

curve = partial(typed, "curve")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_trace(tmp_path / "trace.jsonl", make_requests("agent", 40))
    return str(tmp_path / "trace.jsonl")


def document_of(*words: str) -> dict[str, Any]:
    """Return what a curve prints as JSON, which keeps to the schema."""
    done = curve(*words, "--json")
    assert done.exit_code == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    Draft202012Validator(make_schema("curve")).validate(document)
    return document


def test_a_curve_of_a_trace_is_what_serial_replays_count(trace: str) -> None:
    """At the capacities that were asked for, in order."""
    words = ("--block-tokens", "16", "--page-size", "16", "--capacity", "30k", "--capacity", "20k")
    document = document_of(trace, *words)
    assert [row["capacity"] for row in document["rows"]] == [20_000, 30_000]
    requests = make_requests("agent", 40)
    for row in document["rows"]:
        report = replay_serially(requests, SerialConfig(page_size=16, capacity=row["capacity"]))
        for name in (
            "requests",
            "skipped",
            "prompt_tokens",
            "hit_tokens",
            "token_hit_rate",
            "evicted_tokens",
        ):
            assert row[name] == getattr(report, name)
        assert row["ceiling_hit_rate"] == report.ceiling_hit_rate
    assert document["method"] == "exact"
    assert document["workload"]["requests"] == 40


def test_a_hybrid_model_has_a_curve_of_its_own(trace: str) -> None:
    """As a serial replay of a cache of states counts it; a capacity without room for a block has no point."""
    words = ("--block-tokens", "16", "--page-size", "16", "--capacity", "20k", "--capacity", "60")
    kinds = ("--checkpoints", "last=64", "--checkpoints", "every=64", "--checkpoints", "last=64")
    document = document_of(trace, *words, *kinds)
    assert [(it["keeping"], it["tokens"]) for it in document["checkpoints"]] == [("last", 64), ("every", 64)]
    requests = make_requests("agent", 40)
    row = document["rows"][-1]
    for of in document["checkpoints"]:
        (point,) = of["points"]
        report = replay_serially(requests, SerialConfig("mamba", 64, 20_000, keeping=of["keeping"]))
        for name in ("hit_tokens", "token_hit_rate", "evicted_tokens", "peak_states"):
            assert point[name] == getattr(report, name)
        assert point["capacity"] == row["capacity"] == 20_000
        assert point["lost_share"] == pytest.approx(1 - point["token_hit_rate"] / row["token_hit_rate"])
    text = curve(trace, *words, *kinds).stdout
    assert "last=64" in text
    assert "most states" in text


def test_capacities_are_chosen_for_the_trace() -> None:
    """So many points, from one that reads every request to one that evicts nothing."""
    rows = document_of("chat", "--requests", "80", "--points", "6", "--page-size", "16")["rows"]
    assert len(rows) == 6
    assert rows[0]["skipped"] == rows[-1]["evicted_tokens"] == 0
    assert rows[0]["evicted_tokens"]


def test_capacities_are_what_gpus_have_room_for() -> None:
    """By hand: 36 layers keep 2 x 8 x 128 numbers of two bytes; 16 GPUs keep each of the 8 heads twice."""
    of_token = 36 * 2 * 8 * 128 * 2
    words = ("chat", "--model", "qwen3-8b", "--memory", "4GiB,gpus=16,weights=6GiB,share=0.5")
    rows = document_of(*words, "--capacity", f"{of_token * 4096 // 1024**2}MiB")["rows"]
    assert [(row["gpus"], row["capacity"]) for row in rows] == [
        (None, 4096),
        (4, int(2 * 1024**3 / of_token)),
        (8, int(10 * 1024**3 / of_token)),
        (16, int(26 * 1024**3 / of_token / 2)),
    ]
    assert [row["kv_bytes"] for row in rows] == [
        row["capacity"] * of_token * (2 if row["gpus"] == 16 else 1) for row in rows
    ]
    text = curve(*words).stdout
    assert " 4 GPUs are the first here to hit 90.0 % of the " in text
    assert "GPUs  " in text


def test_a_model_and_a_rate_tell_bytes_and_seconds() -> None:
    """And what the next GiB is worth; the largest capacity has no next one."""
    words = ("chat", "--capacity", "8192", "--capacity", "16384", "--prefill-rate", "1000")
    document = document_of(*words, "--model", "llama-3.1-8b")
    small, large = document["rows"]
    assert document["model"]["bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert (small["kv_bytes"], large["kv_bytes"]) == (1 << 30, 2 << 30)
    assert small["next_gib_tokens"] == large["hit_tokens"] - small["hit_tokens"]
    assert small["next_gib_seconds"] == small["next_gib_tokens"] / 1000
    assert large["next_gib_tokens"] is large["next_gib_seconds"] is None
    assert large["prefill_seconds_saved"] == large["hit_tokens"] / 1000
    text = curve(*words, "--model", "llama-3.1-8b").stdout
    assert "llama-3.1-8b: 32 of 32 layers, 8 x 128, bf16: 131,072 bytes per token" in text
    for word in ("1 GiB", "2 GiB", "prefill saved", "next GiB saves"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "bytes_per_token"),
    [
        ("--model deepseek-v3", 61 * 576 * 2),
        ("--model qwen3-next-80b-a3b,dtype=fp8", 12 * 2 * 2 * 256),
        ("--model gpt-oss-120b,dtype=fp4", 18 * 2 * 8 * 64 / 2),
        ("--model layers=10,kv-heads=2,head-dim=64,hybrid=5", 2 * 2 * 2 * 64 * 2),
        ("--model layers=10,latent-dim=100,dtype=int8", 1000),
    ],
)
def test_a_model_is_named_or_described(words: str, bytes_per_token: float) -> None:
    """Layers that keep something of every token, and no others."""
    document = document_of("chat", "--requests", "3", *words.split())
    assert document["model"]["bytes_per_token"] == bytes_per_token


def test_requests_are_told_apart(trace: str) -> None:
    """By length, by namespace, or by what the trace calls them; the parts add up."""
    whole = document_of(trace, "--block-tokens", "16", "--capacity", "30k")["rows"][0]
    for by in ("length", "namespace", "kind"):
        document = document_of(trace, "--block-tokens", "16", "--capacity", "30k", "--by", by)
        assert document["by"] == by
        for name in ("requests", "hit_tokens", "prompt_tokens"):
            assert sum(group["rows"][0][name] for group in document["groups"]) == whole[name]
    names = [group["name"] for group in document_of("agent", "--by", "length", "--points", "2")["groups"]]
    assert names == ["1Ki to 4Ki", "4Ki to 16Ki"]
    assert "namespace none" in curve(trace, "--block-tokens", "16", "--by", "namespace").stdout


def test_belady_and_other_policies_are_beside_it() -> None:
    """As replays tell them."""
    words = ("chat", "--requests", "60", "--capacity", "8192", "--page-size", "16", "--jobs", "1")
    document = document_of(*words, "--belady", "--eviction-policy", "fifo", "--eviction-policy", "lru")
    (row,), (policy,) = document["rows"], document["policies"]
    requests = make_requests("chat", 60)
    fifo = replay_serially(requests, SerialConfig(page_size=16, capacity=8192, eviction_policy="fifo"))
    assert policy["eviction_policy"] == "fifo"
    assert policy["points"][0]["hit_tokens"] == fifo.hit_tokens
    assert row["token_hit_rate"] <= row["belady_hit_rate"] <= row["ceiling_hit_rate"]


def test_a_sample_tells_bounds(trace: str) -> None:
    """And that it is one."""
    words = (trace, "--block-tokens", "16", "--capacity", "30k", "--sample", "0.5")
    document = document_of(*words)
    (row,) = document["rows"]
    assert document["sample"] == {"rate": 0.5, "parts": 8}
    assert row["low"] <= row["token_hit_rate"] <= row["high"]
    assert row["evicted_tokens"] is row["ceiling_hit_rate"] is None
    assert "estimated from 50 % of the blocks" in curve(*words).stdout


def test_a_sample_of_a_small_trace_has_a_least_capacity(trace: str) -> None:
    """Capacities below it are not chosen, and where none is left that is said."""
    document = document_of(trace, "--block-tokens", "16", "--sample", "0.01", "--points", "4")
    assert min(row["capacity"] for row in document["rows"]) >= 12_800


def test_a_store_keeps_it(tmp_path: Path) -> None:
    """For a report, which shows it."""
    done = curve("chat", "--requests", "20", "--points", "2", "--store", str(tmp_path / "store"))
    assert done.exit_code == 0
    (kept,) = (tmp_path / "store").iterdir()
    assert "pymllm.curve" in kept.read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    assert typed("report", str(tmp_path / "store"), "-o", str(page)).exit_code == 0
    assert "What memory buys" in page.read_text(encoding="utf-8")


REFUSED = {
    "chatt": "'chatt' is no file and no workload (did you mean chat?)",
    "chat --capacity 10 --page-size 16": "--capacity 10 holds no page of 16 tokens",
    "chat --capacity 0": "0 tokens, not in 1..2147483647",
    "chat --points 1": "is not in the range 2<=x<=1000",
    "chat --points 5 --capacity 8k": "--points: --capacity says which; leave it out",
    "chat --block-tokens 4": "--block-tokens: a named workload is no trace; leave it out",
    "chat --sample 0": "--sample",
    "chat --sample 0.5 --belady": "--belady needs every request, not a sample; leave --sample out",
    "chat --sample 0.5 --by length": "--by needs every request, not a sample",
    "chat --sample 0.5 --checkpoints last=16": "--checkpoints needs every request, not a sample",
    "chat --checkpoints first=16": "'first=16' is not KIND=TOKENS, such as last=528, with one of every,",
    "chat --checkpoints last": "last needs a distance, such as last=528",
    "chat --checkpoints last=8193 --capacity 8k": "of 8193 tokens, and the largest capacity is 8000; give",
    "chat --sample 0.5 --eviction-policy lfu": "--eviction-policy needs every request, not a sample",
    "chat --sample 0.001 --capacity 4k": "--sample 0.001 leaves less than a block of 16 tokens of --capacity",
    "chat --sample 0.5 --capacity 4k --page-size 5": "--page-size 5 does not divide them; give one that does",
    "chat --sample 0.0001 --points 3 --requests 2": "fits into less; leave --sample out",
    "chat --eviction-policy lfuu": "did you mean lfu?",
    "chat --model llama": "there is no model 'llama'",
    "chat --model qwen3-8b,layers=3": "--model: qwen3-8b says what layers is; leave one of them out.",
    "chat --model kv-heads=3": "--model: a model is described by its layers; give layers=N too, or a name",
    "chat --model layers=3": "give kv-heads=N too, or latent-dim=N instead of heads",
    "chat --model layers=3,kv-heads=3": "give head-dim=N too, or latent-dim=N instead of heads",
    "chat --model layers=3,latent-dim=4,head-dim=3": "leave kv-heads and head-dim out",
    "chat --model layers=3,latent-dim=4,hybrid=5": "hybrid=5 is more than layers=3; give at most 3",
    "chat --model dtype=fp8": "--model: a model is described by its layers",
    "chat --model layers=0": "layers: 0 is not in the range 1<=x<=1000000.",
    "chat --model qwen3-8b,dtype=fp9": "dtype: 'fp9' is not one of bf16, fp16, fp8, int8, fp4, fp32",
    "chat --model qwen3-8b,heads=3": "'heads=3' is no setting here, which are layers, kv-heads, head-dim,",
    "chat --prefill-rate 0": "--prefill-rate",
    "chat --capacity 80GiB": "--capacity 80GiB is memory; give --model too, for the bytes of a token",
    "chat --memory 80GiB,weights=9GiB": "--memory is memory; give --model too",
    "chat --memory 80GiB --model qwen3-8b": "give weights=SIZE, too: the model's memory without its",
    "chat --memory 80,weights=1GiB --model qwen3-8b": "'80' is not a number of bytes; write 80GiB, 512MiB",
    "chat --memory 8GiB,gpus=0 --model qwen3-8b": "gpus: 0 is not in the range 1<=x<=65536",
    "chat --memory 8GiB,heads=1 --model qwen3-8b": "is no setting here, which are gpus, share, weights",
    "chat --memory 8GiB,gpus=2,weights=15GiB --model qwen3-8b": "fill 0.9 of 2 x 8 GiB; give more gpus=N, or",
    "chat --memory 8GiB,weights=1GiB --points 3 --model qwen3-8b": "--points: --memory says which; leave",
    "chat --memory 9999TB,weights=1GiB --model qwen3-8b": "tokens, not in 1..2147483647",
    "-": "- can be read only once, and without --capacity a trace is read twice; give --capacity",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(words: str) -> None:
    """With the value and the way out, status 2."""
    done = curve(*words.split())
    assert done.exit_code == 2
    assert done.stdout == ""
    assert REFUSED[words] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_trace_is_refused_with_its_line(tmp_path: Path) -> None:
    """As by a replay."""
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0}\n', encoding="utf-8")
    done = curve(str(tmp_path / "t.jsonl"))
    assert done.exit_code == 2
    assert "t.jsonl:1" in done.stderr or "line 1" in done.stderr
    assert done.stdout == ""


def test_requests_that_must_be_held_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option that needs them is named."""
    monkeypatch.setattr(curves, "MOST_HELD", 10)
    done = curve("chat", "--requests", "11", "--belady")
    assert done.exit_code == 2
    assert "--belady holds all requests in memory, and there are more than 10" in done.stderr


def test_an_interrupt_leaves_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its numbers, said to be of a part."""
    read = []

    def add(self: LruCurve, request: Request, label: str | None = None) -> None:
        read.append(request)
        if len(read) == 6:
            raise KeyboardInterrupt
        original(self, request, label)

    original = LruCurve.add
    monkeypatch.setattr(LruCurve, "add", add)
    plan = CurvePlan("chat", 20, 0, 512, 1, (8192,), 20)
    result = run_curve(plan, 1)
    assert isinstance(result.interruption, KeyboardInterrupt)
    assert result.document.interrupted
    assert result.document.rows[0].requests == 5
    assert "interrupted after 6 requests: its numbers" in draw_document(result.document)
