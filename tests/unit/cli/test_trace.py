"""The verbs of pymllm trace, as somebody types them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.traces.registry import written_lines
from tests.unit.cli.typed import refused, typed
from tests.unit.traces.trace_words import SMALL, random_trace, read, renumbered

TOKENIZER = "tests.unit.traces.trace_words:encode"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace with everything, in our own form."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(written_lines(random_trace(3, 60, namespaces=(None, "a")), "pymllm")))
    return path


@pytest.mark.parametrize("path", sorted(SMALL.iterdir()), ids=lambda path: path.name)
def test_every_format_is_inspected(path: Path) -> None:
    """As text and as a document that keeps to its schema."""
    words = ("trace", "inspect", path, "--format", f"auto,tokenizer={TOKENIZER}")
    shown = typed(*words)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "reuse distance, at most" in shown.stdout or "text" not in path.name
    document = json.loads(typed(*words, "--json").stdout)
    Draft202012Validator(make_schema("trace-inspect")).validate(document)
    assert document["format"] == path.stem.removesuffix("-sessions")
    assert document["facts"]["requests"] == len(read(path, tokenizer=len_of_words))


def len_of_words(said: object) -> list[int]:
    return [1] * len(str(said).split())


def test_numbers_of_an_inspection_are_those_of_the_file() -> None:
    """Bailian's small trace, counted by hand: 40 + 16 + 64 + 70 + 16 tokens, 32 + 64 + 16 of them shared."""
    facts = json.loads(typed("trace", "inspect", SMALL / "bailian.jsonl", "--json").stdout)["facts"]
    assert (facts["prompt_tokens"], facts["output_tokens"], facts["sessions"]) == (206, 14, 3)
    assert facts["shared_tokens"] == 32 + 64 + 16
    assert facts["seconds"] == 8.625
    assert {row["kind"]: row["requests"] for row in facts["kinds"]} == {"text": 3, "image": 1, "search": 1}
    shown = typed("trace", "inspect", SMALL / "bailian.jsonl", "--requests", 2).stdout
    assert "bailian.jsonl: 2 requests, bailian, blocks of 16 tokens" in shown


def test_turns_are_told_by_an_option_of_every_verb() -> None:
    """Each refuses what may be deltas, and names both ways to read it."""
    path = SMALL.with_name("delta_traces") / "aiperf.jsonl"
    for verb in (("trace", "inspect"), ("replay-serial",), ("replay",), ("curve",)):
        refused(
            *verb,
            path,
            words="with its first turn: if later turns have only their new tokens",
        )
        shown = [typed(*verb, path, words).stdout for words in ("--deltas", "--cumulative")]
        assert "55.6 %" in shown[0]
        assert "55.6 %" not in shown[1]
    refused("replay", "chat", "--deltas", words="a named workload is no trace")


@pytest.mark.parametrize("path", sorted(SMALL.iterdir()), ids=lambda path: path.name)
@pytest.mark.parametrize("option", ["--deltas", "--cumulative"])
def test_a_format_without_such_turns_refuses_the_option(path: Path, option: str) -> None:
    """X1: it was ignored in silence; of dynamo's traces without doubt, the second one changes nothing."""
    words = ("trace", "inspect", path, "--format", f"auto,tokenizer={TOKENIZER}", option)
    name = path.stem.removesuffix("-sessions")
    if name == "dynamo":
        assert typed(*words).exit_code == 0
    else:
        refused(*words, words=f"{option} is about sessions of dynamo, and {path} is {name}; leave it out.")
    if name == "mooncake":
        refused("curve", path, option, words=f"{option} is about sessions of dynamo, and {path} is mooncake")


@pytest.mark.parametrize("name", ["it.jsonl", "it.jsonl.gz"])
def test_a_conversion_to_ours_keeps_everything(trace: Path, tmp_path: Path, name: str) -> None:
    """Packed where its name says so, the same bytes each time."""
    done = typed("trace", "convert", trace, "-o", tmp_path / name)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / name}: 60 requests, pymllm\n"
    written = (tmp_path / name).read_bytes()
    assert (gzip.decompress(written) if name.endswith("gz") else written) == trace.read_bytes() or read(
        tmp_path / name
    ) == read(trace)
    typed("trace", "convert", trace, "-o", tmp_path / name)
    assert (tmp_path / name).read_bytes() == written


def test_a_dash_is_standard_output(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash is standard output, and messages go to standard error; with a folder it is a file."""
    monkeypatch.chdir(tmp_path)
    typed("trace", "convert", trace, "--to", "mooncake", "-o", "it.jsonl")
    done = typed("trace", "convert", trace, "--to", "mooncake", "-o", "-")
    assert (done.exit_code, done.stdout_bytes) == (0, (tmp_path / "it.jsonl").read_bytes())
    assert "pymllm: standard output: 60 requests, mooncake\n" in done.stderr
    assert typed("trace", "sample", trace, "--fraction", 1, "-o", "-").stdout.count("\n") == 61
    refused(
        "trace", "synthesize", trace, "-o", "-", words="-o -: the statistics of both traces go to standard"
    )
    assert not (tmp_path / "-").exists()
    named = typed("trace", "convert", trace, "--to", "mooncake", "-o", "./-")
    assert (named.stdout, (tmp_path / "-").read_bytes()) == (
        f"{tmp_path / '-'}: 60 requests, mooncake\n",
        done.stdout_bytes,
    )


def test_whoever_closes_the_output_early_is_answered(trace: Path) -> None:
    """141, as of every command."""
    command = [sys.executable, "-m", "pymllm", "trace", "convert", str(trace), "-o", "-"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_conversion_says_what_it_leaves_out(trace: Path, tmp_path: Path) -> None:
    """A conversion tells the fields that the format lacks, and how to read the file."""
    done = typed("trace", "convert", trace, "--to", "mooncake", "-o", tmp_path / "m.jsonl")
    assert done.exit_code == 0
    for name in ("sessions", "what a request waits for", "delays", "kinds"):
        assert f"pymllm: mooncake has no field for {name}: left out of " in done.stderr
    assert f"read {tmp_path / 'm.jsonl'} with --block-tokens 4" in done.stderr
    assert len(read(tmp_path / "m.jsonl", block_tokens=4)) == 60


def test_a_conversion_of_a_broken_file_leaves_what_is_there(tmp_path: Path) -> None:
    """X1: nothing is written before all was read."""
    (tmp_path / "broken.jsonl").write_bytes((SMALL / "mooncake.jsonl").read_bytes() + b"{}\n")
    (tmp_path / "out.jsonl").write_text("mine", encoding="utf-8")
    words = ("trace", "convert", tmp_path / "broken.jsonl", "-o", tmp_path / "out.jsonl")
    refused(*words, words="broken.jsonl:4: not a request")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jsonl", "out.jsonl"]


def test_a_sample_is_drawn_by_share_or_by_number(trace: Path, tmp_path: Path) -> None:
    """One seed draws one sample; of a number there are no more."""
    for words in (("--fraction", 0.5), ("--requests", 20)):
        texts = []
        for seed in (1, 1, 2):
            done = typed("trace", "sample", trace, *words, "--seed", seed, "-o", tmp_path / "s.jsonl")
            assert done.exit_code == 0, done.stderr
            texts.append((tmp_path / "s.jsonl").read_bytes())
        assert texts[0] == texts[1] != texts[2]
        kept = read(tmp_path / "s.jsonl")
        assert 0 < len(kept) < 60
        assert kept == renumbered(kept)
    assert len(kept) <= 20


def test_a_synthetic_trace_is_written_and_compared(tmp_path: Path) -> None:
    """Both statistics, as text and as a document that keeps to its schema."""
    out = tmp_path / "s.jsonl"
    words = ("trace", "synthesize", SMALL / "bailian.jsonl", "--requests", 30, "--seed", 4, "-o", out)
    shown = typed(*words)
    assert shown.exit_code == 0, shown.stderr
    assert "30 requests like those of" in shown.stdout
    assert "shared trace  shared synthetic" in shown.stdout
    assert "requests of a session" in shown.stdout.partition("how far apart")[2]
    assert len(read(out)) == 30
    document = json.loads(typed(*words, "--json").stdout)
    Draft202012Validator(make_schema("trace-synthesize")).validate(document)
    assert (document["trace"]["requests"], document["synthetic"]["requests"]) == (5, 30)
    as_many = json.loads(typed(*words[:3], "-o", out, "--json").stdout)
    assert as_many["synthetic"]["requests"] == 5


def test_a_fit_to_a_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has more requests than are fitted knows it."""
    monkeypatch.setattr("pymllm.traces.synthesis.FITTED_MAX", 2)
    done = typed("trace", "synthesize", SMALL / "mooncake.jsonl", "-o", tmp_path / "s.jsonl")
    assert "pymllm: fitted to the first 2 of 3 requests" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("inspect nowhere.jsonl", "nowhere.jsonl: cannot be read: No such file"),
        ("inspect MOON --format csv", "'csv' is not one of auto"),
        ("inspect MOON --format bailian", "missing required field `chat_id`"),
        ("inspect TEXT", "lines of text need a tokenizer; give --format text,tokenizer=MODULE:FUNCTION"),
        ("inspect TEXT --format text,tokenizer=words", "no tokenizer 'words': write module:function"),
        (
            "inspect TEXT --format text,tokenizer=no_such:words",
            "no tokenizer 'no_such:words': ModuleNotFoundError",
        ),
        ("inspect MOON --requests 0", "0 is not in the range"),
        ("convert MOON", "Missing option '-o'"),
        ("convert MOON --to weka -o x.jsonl", "'weka' is not one of 'mooncake'"),
        ("convert MOON -o no/such/folder/x.jsonl", "there is no folder no/such/folder; make it first"),
        ("sample MOON -o x.jsonl", "say how much to keep, with one of --fraction and --requests."),
        ("sample MOON --fraction 0.5 --requests 3 -o x.jsonl", "say how much to keep"),
        ("sample MOON --fraction 2 -o x.jsonl", "2.0 is not in the range 0<=x<=1"),
        ("sample MOON --fraction 0 -o x.jsonl", "no request is left, so nothing was written"),
        (
            "sample - --requests 3 -o x.jsonl",
            "standard input can be read once only, and --requests reads it twice",
        ),
        ("sample OURS --requests 1 -o x.jsonl --seed 1", None),
        ("synthesize MOON --requests 0 -o x.jsonl", "0 is not in the range"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    words: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: and nothing is written."""
    monkeypatch.chdir(tmp_path)
    named = {"MOON": "mooncake.jsonl", "TEXT": "text.jsonl", "OURS": "pymllm.jsonl"}
    typing = [str(SMALL / named[word]) if word in named else word for word in words.split()]
    if said is None:
        assert typed("trace", *typing).exit_code == 0
        return
    refused("trace", *typing, words=said)
    assert list(tmp_path.iterdir()) == []


def test_a_long_read_shows_how_far_it_is(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long read shows its bytes, or its requests where the length is unknown."""
    monkeypatch.setattr("pymllm.cli.replay.trace._BETWEEN", 10)
    shown = typed("trace", "inspect", trace, "--progress", "on")
    assert f"pymllm: reading {trace}: 0 of 1 MB, 0:00" in shown.stderr
    folder = trace.with_name("weka")
    folder.mkdir()
    (folder / "a.json").write_bytes((SMALL / "weka.json").read_bytes())
    assert (
        f"pymllm: reading {folder}: 0 requests, 0:00"
        in typed("trace", "inspect", folder, "--progress", "on").stderr
    )


@pytest.mark.parametrize(
    "name", ["bailian.jsonl", "weka.json", "dynamo.jsonl", "kvsim.jsonl", "pymllm.jsonl"]
)
@pytest.mark.parametrize("verb", ["replay", "replay-serial"])
def test_every_format_is_replayed(name: str, verb: str) -> None:
    """Children after those that they wait for, namespaces apart; every request runs."""
    words = (verb, SMALL / name, "--page-size", 16, "--capacity", "8k", "--json")
    done = typed(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    run = document["runs"][0]
    assert run["requests"] == len(read(SMALL / name))
    assert document["workload"]["block_tokens"] == read(SMALL / name)[0].block_tokens
    assert run["hit_tokens"] <= run["ceiling_tokens"]


def test_text_is_replayed_with_a_tokenizer() -> None:
    """The text of a server's requests is replayed with a tokenizer."""
    form = f"text,tokenizer={TOKENIZER}"
    words = ("replay-serial", SMALL / "text.jsonl", "--format", form, "--block-tokens", 1)
    run = json.loads(typed(*words, "--json").stdout)["runs"][0]
    assert (run["prompt_tokens"], run["hit_tokens"]) == (15, 8)
