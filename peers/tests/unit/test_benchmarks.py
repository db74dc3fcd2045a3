"""A short slice of ours beside the peers, and what the command says of them."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from peers.benchmarks.__main__ import chosen, gate, main
from peers.benchmarks.contenders import CONTENDERS, describe
from peers.benchmarks.run import Options, all_scenarios, play
from peers.benchmarks.table import make_markdown, make_table
from pymllm.instrument.peer_comparison import OURS, make_row
from pymllm.report.loading import load_runs
from pymllm.report.store import read_run
from pymllm.report.trends import find_trends
from pymllm_peers.projects import CHECKOUTS, MEGATRON, MLLM

ROOT = Path(__file__).parents[2]
RADIX = ROOT / "benchmarks" / "bench_radix_cache.py"
ALONE = Options(clock="cpu", scale=0.125, share=0.01, only=("nobody",))


def test_every_scenario_of_the_table_is_there() -> None:
    """T1 to T8, each once, in their order."""
    ids = list(all_scenarios())
    assert list(dict.fromkeys(id.split("-")[0] for id in ids)) == [
        "T1a", "T1b", "T1c", "T2", "T3", "T4", "T5", "T6a", "T6b", "T7", "T8"
    ]  # fmt: skip
    assert chosen(["T5-1*", "T1?-p16"]) == [
        "T1a-p16", "T1b-p16", "T1c-p16", "T5-1", "T5-128", "T5-16-p16"
    ]  # fmt: skip
    assert {id.split("-")[0] for id in chosen(["T6"])} == {"T6a", "T6b"}


@pytest.mark.parametrize(
    "id",
    [
        "T1b-p16", "T1c-p1", "T2-p64", "T2-list-p1", "T4-2k", "T4-all-20k", "T5-128", "T5-64-p64",
        "T6a-insert", "T6a-leaf", "T6b-match", "T7-evict-64", "T7-commit-64", "T7-store-1",
    ],
)  # fmt: skip
def test_a_scenario_is_played_and_checks_what_came_of_it(id: str) -> None:
    """Ours alone, small and short: results are asserted, times are not."""
    row = play(id, ALONE)
    ours, *others = row.standings
    assert (row.id, ours.contender, row.verdict, row.best_peer) == (id, OURS, "alone", None)
    forms = {row.keys, *(one.contender.removeprefix(f"{OURS} ") for one in others)}
    assert forms == set(all_scenarios()[id].keys or ("",)), "each kind of key that the scenario asks for"
    assert all(ours.value >= one.value for one in others), "the slowest comes first"
    assert ours.samples >= 3
    assert 0 < ours.p50 <= ours.p95 <= ours.p99 <= ours.longest
    assert row.limit > 0
    assert row.code == play("T1a-p1", ALONE).code if id.startswith("T1") else len(row.code) == 16
    assert f"| {id} | {row.title} |" in make_markdown([row])
    assert "no peer here" in make_table([row])


def test_the_gate_judges_by_ratios_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A missed target fails the gate on no machine; a sure lag behind a peer does."""

    def row(ours: list[float]) -> Any:
        return make_row(
            id="T0", title="it", unit="us", statistic="median", target=0.1, limit_of="nothing", code="",
            samples={OURS: ours, "peer": [2.0, 2.0, 2.0]}, limit_samples=[1.0], facts={},
        )  # fmt: skip

    assert gate((row([1.0, 1.0, 1.0]), row([1.0, 2.0, 3.0]))) == 0
    assert gate((row([1.0, 1.0, 1.0]), row([3.0, 4.0, 5.0]))) == 1
    assert "T0: ours takes 1.50 times peer or more" in capsys.readouterr().err


def test_one_command_prints_the_table_and_writes_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output names the reason of each contender that cannot take part, and a missing trace."""
    monkeypatch.delenv(MEGATRON.variable, raising=False)
    file = tmp_path / "peers.json"
    options = ["--scenario", "T7-allocate-1", "--slice", "smoke", "--json", str(file), "--gate"]
    assert main([*options, "--only", "pymllm"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].startswith("T7-allocate-1 ")
    assert "not here: megatron-lm (states): Megatron-LM is read from a checkout; " in printed.err
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["schema"] == "pymllm.peers"
    assert [one["id"] for one in document["scenarios"]] == ["T7-allocate-1"]
    with pytest.raises(SystemExit) as ended:
        main(["--scenario", "T8", "--scenario", "T9"])
    assert ended.value.code == 2
    assert "no scenario is called T9; there are T1a-p1, " in capsys.readouterr().err


def test_an_interrupt_leaves_the_table_of_what_was_played(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupt prints the results of the played scenarios, and stores no unfinished run."""
    row = play("T7-allocate-1", ALONE)

    def broken_off(ids: Sequence[str], options: Options, done: Callable[[Any], None]) -> None:
        done(row)
        raise KeyboardInterrupt

    monkeypatch.setattr("peers.benchmarks.__main__.play_all", broken_off)
    assert main(["--scenario", "T7", "--store", str(tmp_path)]) == 130
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].startswith("T7-allocate-1 ")
    assert printed.err.endswith("interrupted: 1 of 15 scenarios were played\n")
    assert not list(tmp_path.iterdir())


def test_who_is_not_installed_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All peers by the environment that times them, or by the variable that names a checkout."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    for it in CHECKOUTS:
        monkeypatch.delenv(it.variable, raising=False)
    told = {peer.PACKAGE: describe(peer, kind).reason for kind, peers in CONTENDERS.items() for peer in peers}
    assert told.pop(OURS) is None
    for it in (MLLM, MEGATRON):
        assert told.pop(it.project) == it.how_to_get()
    assert sorted(told) == ["megatron-core", "sglang", "vllm"]
    for package, reason in told.items():
        assert reason == f"{package} is not installed; tox -e bench-peers installs it"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--only", "nosuch"],
            "no contender is called nosuch; there are megatron, megatron-lm, mllm, pymllm, ",
        ),
        (["--json", "{here}/none/peers.json"], "{here}/none is no folder that can be written to"),
        (["--store", "{here}/a file/store"], "--store {here}/a file/store: Not a directory"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_played(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """X1: seven minutes later would be too late."""
    (tmp_path / "a file").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["--scenario", "T7-allocate-1", *(one.format(here=tmp_path) for one in options)])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert words.format(here=tmp_path) in printed.err
    assert printed.out == ""


def test_a_run_is_kept_for_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what was typed; its figures are followed over time."""
    options = ["--scenario", "T7-allocate-1", "--slice", "smoke", "--only", "pymllm"]
    assert main([*options, "--store", str(tmp_path / "a store")]) == 0
    (path,) = (tmp_path / "a store").iterdir()
    assert f"kept as {path}" in capsys.readouterr().err
    stored = read_run(path)
    assert stored.header.kind == "peers"
    assert stored.header.command == (
        f"python -m peers.benchmarks {' '.join(options)} --store '{tmp_path / 'a store'}'"
    )
    (run,) = load_runs([path]).runs
    names = {trend.name for trend in find_trends([run])}
    assert "peers T7-allocate-1 a slot for each of 1 blocks: pymllm, median" in names
