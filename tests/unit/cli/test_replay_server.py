"""pymllm replay-server, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.serving.background import serving
from pymllm.serving.service import ServerConfig, Service
from tests.unit.cli.typed import refused, typed


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve prompts of 48 tokens that begin alike, and one that the server's rows do not hold."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 5 * n, "input_length": 48, "output_length": 2, "hash_ids": [n % 2, 10 + n % 3, 20 + n]}
        for n in range(12)
    ]
    lines.append({"timestamp": 70, "input_length": 1040, "output_length": 2, "hash_ids": [*range(65)]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_trace_is_sent_compared_and_goes_on(trace: Path, tmp_path: Path) -> None:
    """As text, as a document, and from a file with what was answered before; one request is refused."""
    reading = ("--block-tokens", 16, "--capacity", 4096)
    kept = tmp_path / "run.jsonl"
    with serving(Service(ServerConfig("dense"))) as url:
        words = ("replay-server", trace, url, *reading, "--serial", "--keep", kept)
        typed(*words, "--minutes", 0.001)
        before = kept.read_bytes().count(b"\n") - 1
        kept.write_bytes(kept.read_bytes() + b'{"op"')
        again = typed(*words, "--json", "--store", tmp_path / "store")
        assert again.exit_code == 0, again.stderr
        document = json.loads(again.stdout)
        whole = typed(*words)
        clocked = json.loads(
            typed("replay-server", trace, url, *reading, "--speed", 5, "--max-tokens", 1, "--json").stdout
        )
        long = tmp_path / "long.jsonl"
        long.write_text(trace.read_text(encoding="utf-8").splitlines()[-1] + "\n", encoding="utf-8")
        nothing = typed("replay-server", long, url, *reading, "--json")
    assert nothing.exit_code == 3
    assert "max_tokens" in json.loads(nothing.stdout)["refusal"]
    Draft202012Validator(make_schema("replay-server")).validate(document)
    assert (document["answered"], document["refused"], document["kept"]) == (12, 1, before)
    assert [(it["kind"], it["requests"]) for it in document["kinds"]] == [("equal", 12)]
    assert document["cached_tokens"] == document["predicted_tokens"] > 0
    assert "answered 400" in document["refusal"]
    assert f"{kept}: 13 results taken from there, not sent again" in whole.stderr
    assert "Hits of servers beside those predicted" in whole.stdout
    assert "The server hit as many tokens as predicted." in whole.stdout
    # Its cache was warm, which is what the comparison says.
    assert (clocked["mode"], clocked["output_tokens"]) == ("clock", 12)
    assert "more" in {it["kind"] for it in clocked["kinds"]}
    page = tmp_path / "r.html"
    typed("report", tmp_path / "store", "-o", page)
    assert "Replays against servers" in page.read_text(encoding="utf-8")


def test_bad_input_is_refused_before_anything_is_sent(trace: Path, tmp_path: Path) -> None:
    """X1: one line, and the way out."""
    url, size = "http://127.0.0.1:9", ("--block-tokens", 16, "--capacity", 4096)
    refused("replay-server", trace, url, *size, words="no answer from this address")
    refused("replay-server", trace, "ftp://x", *size, words="'ftp://x' is no address of a server")
    refused(
        "replay-server", trace, url, "--capacity", 20, words="--capacity 20 has less than two pages of 16"
    )
    refused(
        "replay-server", trace, url, *size, "--serial", "--speed", 2, words="--serial sends one request after"
    )
    refused("replay-server", trace, url, "--capacity", 4096, words="give --block-tokens 16, which would fit")
    refused("replay-server", trace, url, *size, "--keep", trace, words="--keep")
    other = tmp_path / "run.jsonl"
    other.write_text('{"schema": "pymllm.served", "digest": "x"}\n', encoding="utf-8")
    refused("replay-server", trace, url, *size, "--keep", other, words="has results of other requests")
    refused("replay", trace, "--server", url, words="pymllm replay-server TRACE URL")
