"""A run of the time machine on a package whose releases a test has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from peers.time_machine import __main__ as command
from peers.time_machine.bugs import Bug, read_bugs
from peers.time_machine.playing import Play, Program, Release, play
from peers.time_machine.results import Result, Search, Seen, read_results
from pymllm.history.files import load_history
from pymllm.report.loading import load_runs
from tests.unit.releases import CLEANS, KEEPS, take_from, write_wheels

ROWS = msgspec.structs.replace(
    read_bugs()[0],
    id="rows-keep-what-they-had",
    project="tiny-rows",
    last_with="1.0",
    first_without="1.1",
    expected=("P2",),
    adapter="tests.unit.releases:ReleasedRows",
)
"""A bug that releases 1.0 has and 1.1 has not."""


@pytest.fixture(autouse=True)
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheels(tmp_path / "wheels", {"1.0": KEEPS, "1.1": CLEANS, "1.2": KEEPS})
    take_from(tmp_path / "wheels", monkeypatch)


def played(bug: Bug, folder: Path) -> Result:
    """Play a row."""
    return play(bug, folder / "packages", folder / "work", 1, folder / "programs")


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a row have a short verification, or a soak of so many operations, and not minutes."""
    ask = Release.ask

    def ask_less(release: Release, name: str, *words: str) -> dict[str, Any]:
        less = {"verify": ("--profile", "dev"), "soak": ("--operations", "300")}.get(name, ())
        timed = words.index("--minutes") if name == "soak" else len(words)
        return ask(release, name, *words[:timed], *less)

    monkeypatch.setattr(Release, "ask", ask_less)


def test_a_bug_is_found_in_the_release_that_had_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a program that is kept, breaks its law there, and none in the fixed release."""
    quickly(monkeypatch)
    store = tmp_path / "store"
    it = play(ROWS, tmp_path / "packages", tmp_path / "work", 1, tmp_path / "programs", store)
    assert it.found is not None
    assert (it.found.law, it.found.old, it.found.fixed) == ("P2", "P2", None)
    kept = [document for run in load_runs([store]).runs for document in run.documents]
    assert [(run.release.package, run.release.version) for run in kept] == [
        ("tiny-rows", "1.0"),
        ("tiny-rows", "1.1"),
    ]
    assert it.is_silent
    assert [(search.command, search.seed) for search in it.old] == [("verify", 0)]
    assert [search.laws for search in it.fixed] == [()]
    assert 0 < it.old[0].seconds <= it.seconds
    assert len(load_history(tmp_path / "programs" / f"{ROWS.id}.jsonl").steps) == it.found.operations <= 4


def test_what_verifications_do_not_find_a_soak_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its short program counts, and the fixed release is soaked as well."""
    quickly(monkeypatch)
    monkeypatch.setattr("peers.time_machine.playing.ORDER", (("soak", 0),))
    it = played(ROWS, tmp_path)
    assert it.found is not None
    assert (it.stage, it.found.law) == ("soak", "P2")
    assert it.found.operations <= 4
    assert [search.laws for search in it.fixed] == [()]


def tell(monkeypatch: pytest.MonkeyPatch, old: str | None, fixed: str | None) -> list[str]:
    """Let every verification find one program, which breaks these laws; return the list of searches."""
    searched: list[str] = []
    late = Program("P2", "a row", True, Path("late.jsonl"))

    def verify(release: Release, seed: int, output: Path) -> tuple[dict[str, Any], list[Program], list[str]]:
        searched.append(f"{release.folder.name} {seed}")
        return {"versions": {"python": "3"}}, [late], ["it was late"]

    def soak(
        release: Release, seed: int, seconds: float, output: Path
    ) -> tuple[dict[str, Any], list[Any], list[str]]:
        searched.append(f"{release.folder.name} soak {seconds:.0f}")
        return {}, [], []

    monkeypatch.setattr(Release, "verify", verify)
    monkeypatch.setattr(Release, "soak", soak)
    monkeypatch.setattr(Play, "_play", lambda self, program: Seen(program.law, "a row", 2, True, old, fixed))
    monkeypatch.setattr("peers.time_machine.playing.unpack", lambda project, version, folder: Path(version))
    return searched


ALL_OF_OLD = ["1.0 0", "1.0 1", "1.0 2", "1.0 soak 600"]


@pytest.mark.parametrize(
    ("expected", "old", "fixed"),
    [(("P2",), "P2", "P2"), (("P2",), None, None), (("P1",), "P2", None)],
    ids=["fixed has it, too", "not seen again", "not of the table"],
)
def test_a_program_that_proves_nothing_is_told_of_besides(
    expected: tuple[str, ...],
    old: str | None,
    fixed: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old release is searched as long as time allows, and the fixed release is not searched."""
    searched = tell(monkeypatch, old, fixed)
    it = played(msgspec.structs.replace(ROWS, expected=expected), tmp_path)
    assert it.found is None
    assert [seen.law for seen in it.besides] == ["P2"] * 3
    assert searched == ALL_OF_OLD
    assert it.fixed == ()
    assert it.old[0].problems == ("it was late",)
    assert not (tmp_path / "programs").exists()


def test_a_fixed_release_that_breaks_the_law_otherwise_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is a proof, and the page says what else there is."""
    searched = tell(monkeypatch, "P2", None)
    (tmp_path / "late.jsonl").write_text("late", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    it = played(ROWS, tmp_path)
    assert it.found is not None
    assert searched == ["1.0 0", "1.1 0"]
    assert not it.is_silent
    assert (tmp_path / "programs" / f"{ROWS.id}.jsonl").read_text(encoding="utf-8") == "late"


def test_a_run_keeps_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A row that has a result is played again only where it is asked for, or where the table has changed."""
    asked: list[str] = []

    def plays(bug: Bug, *rest: object) -> Result:
        asked.append(bug.last_with)
        facts = (bug.id, bug.adapter, bug.last_with, bug.first_without)
        return Result(*facts, None, (), 1.0, (Search("verify", 0, 1.0, 1.0, ()),), (), "", "", 1, {})

    monkeypatch.setattr(command, "play", plays)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(command, "read_results", lambda: read_results(tmp_path / "results.json"))
    monkeypatch.setattr(command, "read_bugs", lambda: [ROWS])
    words = ["run", "--packages", str(tmp_path / "packages")]
    assert command.main(words) == 0
    assert "rows-keep-what-they-had: not found, verify, 1 s" in capfd.readouterr().err
    assert command.main(words) == 0
    assert asked == ["1.0"]
    assert command.main([*words, "--again"]) == 0
    monkeypatch.setattr(command, "read_bugs", lambda: [msgspec.structs.replace(ROWS, last_with="0.9")])
    assert command.main(words) == 0
    assert asked == ["1.0", "1.0", "0.9"]
    assert [it.last_with for it in read_results(tmp_path / "results.json").values()] == ["0.9"]


def test_a_release_that_is_not_there_fails_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line that names it; nothing is written down."""
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(command, "read_results", dict)
    monkeypatch.setattr(command, "read_bugs", lambda: [msgspec.structs.replace(ROWS, last_with="0.9")])
    assert command.main(["run"]) == 1
    assert "rows-keep-what-they-had: tiny-rows 0.9: pip cannot unpack it" in capfd.readouterr().err
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nobody"], "--only nobody: no row of bugs.toml that is reachable; there are sglang-"),
        (["--jobs", "0"], "--jobs 0: a search needs at least one process"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that is not there, and no process."""
    with pytest.raises(SystemExit) as ended:
        command.main(["run", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
