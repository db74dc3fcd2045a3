"""``pymllm bisect``: a program and a package in, the release in which its verdict changed out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.documents.programs import ReleaseRow
from pymllm.errors import UsageError
from pymllm.history.files import Header, History, Step, write_history
from pymllm.search import releases
from tests.unit.cli.typed import refused, typed
from tests.unit.finding import DIRTY, ROWS
from tests.unit.plugins import READS_A_CHECKOUT
from tests.unit.releases import CLEANS, KEEPS, take_from, write_wheels

ADAPTER = "tests.unit.releases:ReleasedRows"
RELEASES = {"0.9": "", "1.0": KEEPS, "1.1": KEEPS, "1.2": CLEANS, "1.3": CLEANS}

bisect = partial(typed, "bisect", "rows.jsonl", "--package", "tiny-rows")


@pytest.fixture(autouse=True)
def work_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a program that breaks P2 in some releases of ``tiny-rows``."""
    monkeypatch.chdir(tmp_path)
    write_wheels(tmp_path / "wheels", RELEASES)
    take_from(tmp_path / "wheels", monkeypatch)
    steps = [Step(number, operation) for number, operation in enumerate(DIRTY, 1)]
    write_history(History(Header(ADAPTER, "rows", ROWS), steps), tmp_path / "rows.jsonl")


def test_the_release_with_the_change_is_named() -> None:
    """The fix, the release before it, and a row for each that was tried; the newest one breaks no law."""
    result = bisect("--adapter", ADAPTER)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "changed  in tiny-rows 1.2: violated P2 in 1.1, holds in 1.2"
    assert lines[1:3] == ["    program    rows.jsonl", f"    adapter    {ADAPTER}"]
    assert lines[3].startswith("    P2         a freed row is zero")
    tried = [line.split()[:3] for line in lines if line[:1].isdigit()]
    assert [row[:2] for row in tried[:-1]] == [
        ["0.9", "unknown"],
        ["1.1", "violated"],
        ["1.2", "holds"],
        ["1.3", "holds"],
    ]
    assert "step 3 raised AttributeError" in result.stdout
    assert lines[-1].startswith("0.9 to 1.3: 4 of 5 releases tried in ")
    assert sorted(path.name for path in Path("runs/packages").iterdir())[0] == "tiny-rows-0.9"


def test_the_document_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its schema has it; a release that was unpacked is not fetched again."""
    options = ("--adapter", ADAPTER, "--packages", "kept", "--first", "1.0", "--last", "1.2", "--json")
    plain = json.loads(bisect(*options).stdout)
    Draft202012Validator(make_schema("bisect")).validate(plain)
    assert plain["changes"] == [
        {"before": "1.1", "after": "1.2", "was": "violated P2", "now": "holds", "between": []}
    ]
    assert (plain["first"], plain["last"], plain["releases"]) == ("1.0", "1.2", 3)
    assert [(row["release"], row["verdict"], row["law"]) for row in plain["rows"]] == [
        ("1.0", "violated", "P2"),
        ("1.1", "violated", "P2"),
        ("1.2", "holds", None),
    ]
    monkeypatch.setattr(releases, "_install", None)
    again = json.loads(bisect(*options).stdout)
    assert again["changes"] == plain["changes"]


def test_a_release_that_lacks_what_it_requires_ends_the_search(tmp_path: Path) -> None:
    """After the first try, with the packages that are missing; an older release may need less."""
    newest = {"1.4": f"import absent_module\n{KEEPS}"}
    write_wheels(tmp_path / "wheels", newest, requires=["absent-module>=2", "pytest"])
    refused(
        *("bisect", "rows.jsonl", "--package", "tiny-rows", "--adapter", ADAPTER),
        words="1.4/tiny_rows.py, line 1); this environment lacks absent-module, which it requires, and pip",
    )
    older = bisect("--adapter", ADAPTER, "--last", "1.3")
    assert older.stdout.startswith("changed  in tiny-rows 1.2")


# -- what needs no process for each release ----------------------------------------------------------------


def judge_by(monkeypatch: pytest.MonkeyPatch, verdicts: Mapping[str, str]) -> None:
    """Have the verdicts that releases get; without one, Ctrl-C is pressed."""

    def judge(self: releases.Trial, release: str, seconds: float) -> ReleaseRow:
        if release not in verdicts:
            raise KeyboardInterrupt
        verdict, _, law = verdicts[release].partition(" ")
        return ReleaseRow(release, releases.Verdict(verdict), law or None, "row\n1", 0.5)

    monkeypatch.setattr(releases.Trial, "judge", judge)
    monkeypatch.setattr(releases, "unpack", lambda package, version, folder: folder / version)
    monkeypatch.setattr(
        releases,
        "list_releases",
        lambda package, prereleases: ("1", "2", "3", *(["4rc1"] if prereleases else []), "4"),
    )


@pytest.mark.parametrize(
    ("verdicts", "status", "line"),
    [
        (
            ("holds", "unknown", "unknown", "violated P2"),
            1,
            "changed  in tiny-rows 2, 3 or 4: holds in 1, violated P2 in 4, the others unknown",
        ),
        (("holds",) * 4, 0, "unchanged  holds in each of 2 releases judged"),
        (("violated P2",) * 4, 1, "unchanged  violated in each of 2 releases judged"),
        (("unknown",) * 4, 3, "unknown  none of 4 releases tried could be judged"),
    ],
)
def test_the_first_line_is_the_answer(
    verdicts: tuple[str, ...], status: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the status is that of the newest release."""
    judge_by(monkeypatch, dict(zip("1234", verdicts, strict=True)))
    result = bisect("--adapter", ADAPTER)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (status, line)
    assert ("--all tries every one" in result.stdout) == ("each of 2" in line)


def test_an_interrupt_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the document, too."""
    judge_by(monkeypatch, {"4": "holds"})
    result = bisect("--adapter", ADAPTER)
    assert (result.exit_code, result.stderr) == (130, "pymllm: interrupted\n")
    assert "1 to 4: 1 of 4 releases tried in 0.0 s; interrupted" in result.stdout
    document = json.loads(bisect("--adapter", ADAPTER, "--json").stdout)
    assert (document["interrupted"], document["verdict"], document["exit_status"]) == (True, "holds", 130)


def test_an_interrupt_before_any_verdict_says_what_the_process_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document has the status with which the command ends, with nothing tried as well."""
    judge_by(monkeypatch, {})
    result = bisect("--adapter", ADAPTER, "--json")
    document = json.loads(result.stdout)
    assert (document["rows"], document["verdict"]) == ([], "unknown")
    assert (result.exit_code, document["exit_status"]) == (130, 130)


def test_progress_counts_what_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with a line where somebody wants one."""
    judge_by(monkeypatch, dict.fromkeys("1234", "holds"))
    result = bisect("--adapter", ADAPTER, "--progress", "on")
    assert result.stderr == "pymllm: bisecting: 0 of 4 releases settled, 0:00:00\n"


def test_every_change_is_found_where_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In prereleases, too."""
    judge_by(
        monkeypatch, {"1": "violated P2", "2": "holds", "3": "holds", "4": "violated P1", "4rc1": "holds"}
    )
    result = bisect("--adapter", ADAPTER, "--pre", "--all")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:2] == [
        "changed  in tiny-rows 2: violated P2 in 1, holds in 2",
        "changed  in tiny-rows 4: holds in 4rc1, violated P1 in 4",
    ]
    assert "1 to 4: 5 of 5 releases tried in 0.0 s\n" in result.stdout


def test_a_release_that_pip_cannot_unpack_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what pip said of it."""
    judge_by(monkeypatch, {"1": "violated P2", "2": "violated P2", "4": "holds"})

    def unpack(package: str, version: str, folder: Path) -> Path:
        if version == "3":
            raise UsageError(f"{package} 3: pip cannot unpack it: no space left")
        return folder

    monkeypatch.setattr(releases, "unpack", unpack)
    result = bisect("--adapter", ADAPTER)
    first = result.stdout.splitlines()[0]
    assert first == "changed  in tiny-rows 3 or 4: violated P2 in 2, holds in 4, the others unknown"
    assert "tiny-rows 3: pip cannot unpack it: no space left" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--adapter", "rows"),
            "rows is about a class of pymllm itself, and no release of tiny-rows changes",
        ),
        (("--adapter", "rowz"), "no adapter 'rowz'"),
        (("--package", "tiny rows"), "'tiny rows' is no name of a package; write one such as sglang."),
        (("--packages", "/proc/x"), "--packages /proc/x: cannot write in /proc: "),
        (("--first", "1.4"), "no release from 1.4 to the last; there are 0.9 to 1.3."),
        (("--first", "1.3", "--last", "1.0"), "--first 1.3 is newer than --last 1.0; write them the other"),
        (("--first", "1.0.1", "--last", "1.0.2"), "no release from 1.0.1 to 1.0.2; there are 0.9 to 1.3."),
        (("--package", "no-such-rows"), "no-such-rows: pip lists no releases: No matching distribution"),
        (("--adapter", "nowhere:Rows"), "adapter nowhere:Rows: cannot import nowhere"),
        (("--adapter", "tests.unit.releases:Rowz"), "has no class 'Rowz'"),
    ],
)
def test_what_pip_or_an_adapter_does_not_know_is_refused(options: tuple[str, ...], words: str) -> None:
    """X1: in one line, and without a verdict."""
    typed_last = ("bisect", "rows.jsonl", "--package", "tiny-rows", "--adapter", ADAPTER, *options)
    refused(*typed_last, words=words)


def test_an_adapter_that_reads_a_checkout_is_of_no_release(plug_in: Callable[[str, str], None]) -> None:
    """X1: no release of a package changes what a variable names."""
    plug_in("their_plugin", READS_A_CHECKOUT)
    words = "theirs reads the checkout that THEIR_CACHE names, and no release"
    refused("bisect", "rows.jsonl", "--package", "tiny-rows", "--adapter", "theirs", words=words)
