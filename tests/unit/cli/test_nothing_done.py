"""Tests of commands with nothing to do: status 0 says what was done, and empty or lost files are told."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.unit.cli.typed import refused, typed
from tests.unit.report import samples

ROWS = "--adapter rows --jobs 1 --progress off"
SOAK = f"soak {ROWS} --operations 60 --longest 60 --seed 3"
VERIFY = f"verify {ROWS} --profile dev --examples 1"

REFUSED = {
    f"{SOAK} --corpus nowhere": "--corpus nowhere: there is no such folder",
    "merge empty": "empty/ledger.jsonl: No such file",
    "report empty --format badge": "empty: no run in this folder",
    "judge nothing.jsonl": "nothing.jsonl: empty",
    "rerun nothing.jsonl": "nothing.jsonl: empty",
    "shrink nothing.jsonl": "nothing.jsonl: empty",
    "bisect nothing.jsonl --adapter rows --package numpy": "nothing.jsonl: empty",
    "trace inspect nothing.jsonl": "nothing.jsonl: the file holds no request",
    "trace inspect empty": "empty: the folder has no file",
    "replay nothing.jsonl": "nothing.jsonl: the file holds no request",
    "replay chat --requests 0": "is not in the range 1<=x",
    "curve nothing.jsonl": "nothing.jsonl: the file holds no request",
    "vectors run --adapter rows --vectors empty": "empty has no file of vectors",
    "diff empty empty": "empty: no run in this folder",
    f"{VERIFY} --law M1": "none of the adapters can test M1",
    "adapters no-such": "no adapter 'no-such'",
    "faults hunt no-such": "no-such",
    "goals --kind no-such": "'no-such' is not one of",
    "schema no-such": "no-such",
    "compare rows no-such": "no adapter 'no-such'",
    # what cannot be written is refused before the work
    **{f"{verb} --store nothing.jsonl/x": "--store nothing.jsonl/x: cannot write" for verb in (SOAK, VERIFY)},
    **{
        f"{verb} --store nothing.jsonl/x": "--store nothing.jsonl/x: cannot write"
        for verb in ("faults hunt B116", "replay chat", "curve chat", "doctor", "compare rows radix")
    },
    f"{VERIFY} --output nothing.jsonl/x": "--output nothing.jsonl/x: cannot write",
    **{
        f"{verb} {option} nothing.jsonl/x": "there is no folder nothing.jsonl"
        for verb, option in (
            *((VERIFY, "--junit"), (VERIFY, "--keep"), (VERIFY, "--write-deviations"), (SOAK, "--page")),
            *(("faults hunt B116", "--page"), ("report empty", "--output")),
        )
    },
}


@pytest.fixture(autouse=True)
def _a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("nothing.jsonl").touch()


@pytest.mark.parametrize("words", REFUSED)
def test_what_would_do_nothing_or_lose_it_is_refused(words: str) -> None:
    """X1: before anything runs."""
    refused(*shlex.split(words), words=REFUSED[words])


def test_an_empty_corpus_is_told() -> None:
    """A campaign with an empty corpus says so, since no earlier programs were played."""
    result = typed(*shlex.split(f"{SOAK} --corpus empty --output s"))
    assert result.exit_code == 0
    assert "--corpus empty: there is no corpus in it yet, so that no run came first" in result.stderr


def test_a_corpus_says_how_much_of_it_was_played() -> None:
    """Its runs may be of other adapters."""
    for words in (f"{SOAK} --output s", "merge s --corpus kept"):
        assert typed(*shlex.split(words)).exit_code == 0
    runs = len(Path("kept/corpus.jsonl").read_text(encoding="utf-8").splitlines()) - 1
    for adapter, played in (("rows", runs), ("token-slots", 0)):
        words = SOAK.replace("rows", adapter) + f" --corpus kept --output {adapter}"
        result = typed(*shlex.split(words))
        assert (
            f"--corpus kept: runs in it that fit here, and came first: {played} of {runs}\n" in result.stderr
        )


WRITES = {
    VERIFY: ("--junit", "laws:"),
    SOAK: ("--page", "operations"),
}


@pytest.mark.parametrize("words", WRITES)
def test_a_file_that_cannot_be_written_costs_the_status_and_not_the_result(words: str) -> None:
    """The result is printed all the same; status 2 says that something that was asked for is missing."""
    option, shown = WRITES[words]
    without = typed(*shlex.split(words), *(["--output", "first"] if words == SOAK else []))
    result = typed(*shlex.split(words), option, "/dev/full", *(["--output", "s"] if words == SOAK else []))
    assert shown in result.stdout
    assert f"{option} /dev/full: cannot be written: No space left on device" in result.stderr
    assert result.exit_code == (without.exit_code or 2)


def test_a_violation_is_told_by_its_status_though_a_file_is_lost() -> None:
    """A violation decides the status, even if the result could not be written."""
    words = f"{VERIFY} --examples 20".replace("rows", "faulty-dirty-rows")
    assert typed(*shlex.split(words), "--junit", "/dev/full").exit_code == 1


@pytest.mark.parametrize("verb", ["replay-serial", "replay"])
def test_a_replay_of_nothing_is_told(verb: str) -> None:
    """A hit rate of 0 % is no figure of a cache that was asked for nothing."""
    result = typed(verb, "chat", "--requests", 2, "--capacity", 2)
    assert result.stderr == "pymllm: radix: no request was replayed; --capacity may be too small for each\n"


def test_runs_that_share_nothing_are_not_compared() -> None:
    """ "0 worse" of nothing is no result, in text, document and status."""
    mine = samples.verify(samples.adapter("mine", "rows", [samples.law("P2", "holds")]))
    yours = samples.verify(samples.adapter("yours", "rows", [samples.law("P2", "holds")]))
    files = [samples.write(Path(f"{name}.json"), it) for name, it in (("mine", mine), ("yours", yours))]
    result = typed("diff", *files)
    assert result.exit_code == 3
    assert result.stdout.splitlines()[-1] == (
        "verify: nothing to compare: the runs share no law, figure, fault or coverage goal"
    )
    document = json.loads(typed("diff", *files, "--json").stdout)
    assert (document["compared"], document["exit_status"]) == (0, 3)
    same = typed("diff", files[0], files[0])
    assert same.exit_code == 0
    assert "verify: 2 compared; laws: 0 worse" in same.stdout


@pytest.mark.parametrize(
    ("form", "make", "missing"),
    [
        ("github-action-benchmark", samples.verify, "figure of which smaller is better"),
        ("bencher", partial(samples.sample, "doctor"), "figure"),
        ("badge", samples.peers, "law that was searched"),
        ("vectors-badge", samples.verify, "vectors"),
        ("junit", samples.peers, "search, campaign or planted faults"),
    ],
)
def test_an_empty_feed_says_why(form: str, make: Callable[[], object], missing: str) -> None:
    """An empty feed is valid, and a line on standard error says why it is empty."""
    samples.write(Path("it.json"), make())
    result = typed("report", "it.json", "--format", form)
    assert result.exit_code == 0
    told = result.stderr.splitlines()[-1]
    assert told == f"pymllm: --format {form}: these runs have no {missing}, so the feed is empty"


def test_a_program_without_steps_holds_nothing() -> None:
    """A comparison of nothing with nothing is no test."""
    header = {"format": "pymllm-history", "schema": 1, "adapter": "rows", "kind": "rows"}
    config = {"config": {"max_reqs": 1, "max_context_len": 2}}
    samples.write(Path("it.jsonl"), header | config)
    for verb in ("judge", "rerun", "shrink"):
        result = typed(verb, "it.jsonl")
        assert (result.exit_code, result.stdout.splitlines()[0]) == (
            3,
            "unknown  0 steps of rows tested no law",
        )
