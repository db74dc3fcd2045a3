"""Releases of a package: listed, unpacked, tried one by one, and searched for a change."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.documents.programs import ReleaseChange, ReleaseRow
from pymllm.errors import UsageError
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import AllocRows, FreeRow, Span
from pymllm.history.outcomes import Failed, Outcome, Slots
from pymllm.oracle.verdicts import Verdict
from pymllm.search import releases
from pymllm.search.releases import Bisection, Trial, list_releases, missing_requirements, unpack, within
from tests.unit.finding import DIRTY, ROWS
from tests.unit.releases import CLEANS, KEEPS, take_from, write_wheels

ADAPTER = "tests.unit.releases:ReleasedRows"
PROGRAM = History(Header(ADAPTER, "rows", ROWS), [Step(number, it) for number, it in enumerate(DIRTY, 1)])


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Releases of ``tiny-rows``, of which one is a prerelease."""
    write_wheels(tmp_path / "wheels", {"1.9": KEEPS, "1.10rc1": KEEPS, "1.10": CLEANS, "1.2": KEEPS})
    take_from(tmp_path / "wheels", monkeypatch)
    return tmp_path / "wheels"


def test_what_a_release_requires_and_nobody_installed_is_missing(tmp_path: Path) -> None:
    """Once each; what is there, what an extra wants and a line that is no requirement are left out."""
    facts = tmp_path / "tiny_rows-1.dist-info"
    facts.mkdir()
    needs = ("absent-module>=2", "pytest", "absent-too; extra == 'more'", "a line", "absent-module<9")
    lines = ["Metadata-Version: 2.1", "Name: tiny_rows", "Version: 1"]
    lines += [f"Requires-Dist: {requirement}" for requirement in needs]
    (facts / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert missing_requirements(tmp_path) == ("absent-module",)
    assert missing_requirements(tmp_path / "nothing") == ()


# -- what pip knows ----------------------------------------------------------------------------------------


def test_releases_are_listed_oldest_first(wheels: Path) -> None:
    """By their numbers, not by their letters; prereleases only where somebody asks for them."""
    assert list_releases("tiny_rows") == ("1.2", "1.9", "1.10")
    assert list_releases("tiny-rows", prereleases=True) == ("1.2", "1.9", "1.10rc1", "1.10")


def test_an_older_pip_tells_its_list_in_words(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one that a new environment of Python 3.11 has, which cannot print JSON."""
    ask = releases._pip

    def ask_older(*arguments: str) -> subprocess.CompletedProcess[str]:
        if "--json" in arguments:
            return subprocess.CompletedProcess(arguments, 2, "", "\nno such option: --json\n")
        return ask(*arguments)

    monkeypatch.setattr(releases, "_pip", ask_older)
    assert list_releases("tiny_rows") == ("1.2", "1.9", "1.10")
    assert list_releases("tiny-rows", prereleases=True) == ("1.2", "1.9", "1.10rc1", "1.10")


def test_a_release_that_was_yanked_is_left_out(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its makers took it back."""
    page = tmp_path / "index" / "tiny-rows" / "index.html"
    page.parent.mkdir(parents=True)
    links = [
        f'<a href="{file.as_uri()}"{" data-yanked=broken" * ("-1.9-" in file.name)}>{file.name}</a>'
        for file in wheels.iterdir()
    ]
    page.write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>", encoding="utf-8")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    assert list_releases("tiny-rows") == ("1.2", "1.10")


def test_a_package_that_is_not_there_is_named(wheels: Path) -> None:
    """A package that pip does not find is named with pip's message; a name like an option is refused."""
    with pytest.raises(
        UsageError, match=r"^no-such-rows: pip lists no releases: No matching .* no-such-rows$"
    ):
        list_releases("no-such-rows")
    for name in ("--pre", "a b", "", "tiny-rows==1.2"):
        with pytest.raises(UsageError, match="is no name of a package"):
            list_releases(name)


def test_where_there_is_no_pip_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment may have none."""
    words = ["-c", "import sys; sys.exit('No module named pip')"]
    monkeypatch.setattr(releases, "_PIP", (sys.executable, *words))
    with pytest.raises(UsageError, match="sglang: pip lists no releases: No module named pip"):
        list_releases("sglang")


def test_releases_lie_within_bounds() -> None:
    """Both are included, and need be no releases themselves; what is left may be nothing."""
    known = ("1.2", "1.9", "1.10rc1", "1.10")
    assert within(known, None, None) == known
    assert within(known, "1.9", None) == ("1.9", "1.10rc1", "1.10")
    assert within(known, "1.2.0", "1.9.5") == ("1.2", "1.9")
    with pytest.raises(UsageError, match=r"no release from 1\.11 to the last; there are 1\.2 to 1\.10$"):
        within(known, "1.11", None)
    with pytest.raises(UsageError, match=r"'latest' is no version; write one such as"):
        within(known, None, "latest")


def test_a_release_is_unpacked_once(wheels: Path, tmp_path: Path) -> None:
    """Into a folder of its own, which is taken as it is the next time; nothing half done stays."""
    place = unpack("tiny_rows", "1.9", tmp_path / "packages")
    assert place == tmp_path / "packages" / "tiny-rows-1.9"
    assert (place / "tiny_rows.py").read_text(encoding="utf-8") == KEEPS
    (place / "tiny_rows.py").write_text("changed = 1\n", encoding="utf-8")
    assert unpack("Tiny-Rows", "1.9", tmp_path / "packages") == place
    assert (place / "tiny_rows.py").read_text(encoding="utf-8") == "changed = 1\n"
    assert [folder.name for folder in place.parent.iterdir()] == ["tiny-rows-1.9"]


def test_what_is_no_release_is_not_taken_for_one(wheels: Path, tmp_path: Path) -> None:
    """An empty folder in the place of a release is filled, and a file there is left and refused."""
    place = tmp_path / "packages" / "tiny-rows-1.9"
    place.mkdir(parents=True)
    assert (unpack("tiny-rows", "1.9", place.parent) / "tiny_rows.py").is_file()
    other = place.with_name("tiny-rows-1.2")
    other.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=rf"^{re.escape(str(other))} is in the way of tiny-rows 1\.2: "):
        unpack("tiny-rows", "1.2", place.parent)
    assert other.read_text(encoding="utf-8") == "mine"
    assert sorted(it.name for it in place.parent.iterdir()) == ["tiny-rows-1.2", "tiny-rows-1.9"]


def test_a_release_that_cannot_be_unpacked_is_named(wheels: Path, tmp_path: Path) -> None:
    """Package, version, and the last line of pip; nothing half done stays."""
    (wheels / "tiny_rows-1.9-py3-none-any.whl").write_bytes(b"no wheel")
    for version, words in (
        ("1.9", "Wheel 'tiny-rows' .* is invalid"),
        ("7", "No matching distribution found"),
    ):
        with pytest.raises(UsageError, match=rf"^tiny-rows {version}: pip cannot unpack it: .*{words}"):
            unpack("tiny-rows", version, tmp_path / "packages")
    assert list((tmp_path / "packages").iterdir()) == []
    with pytest.raises(UsageError, match=r"'1\.9 --pre' is no version"):
        unpack("tiny-rows", "1.9 --pre", tmp_path / "packages")


def test_what_has_no_wheel_is_built(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its source, where that is all that there is."""
    calls: list[tuple[str, ...]] = []

    def install(requirement: str, target: Path, form: str) -> subprocess.CompletedProcess[str]:
        calls.append((requirement, form))
        target.mkdir(exist_ok=True)
        status = int(form.startswith("--only-binary"))
        errors = "ERROR: No matching distribution found for tiny-rows==1.9\n" * status
        (target / "tiny_rows.py").touch()
        return subprocess.CompletedProcess([], status, "", errors)

    monkeypatch.setattr(releases, "_install", install)
    assert [file.name for file in unpack("tiny-rows", "1.9", tmp_path).iterdir()] == ["tiny_rows.py"]
    assert calls == [
        ("tiny-rows==1.9", "--only-binary=:all:"),
        ("tiny-rows==1.9", "--no-binary=tiny-rows"),
    ]


# -- one release -------------------------------------------------------------------------------------------


def release_of(source: str, folder: Path, module: str = "tiny_rows") -> Path:
    """Put what a release would have into a folder."""
    folder.mkdir()
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    return folder


FOUND_FIRST = """\
import os
import sys

here = os.path.dirname(__file__)
path = os.environ["PYTHONPATH"].split(":")
KEEPS = sys.path[0] == path[0] == here and os.environ["PYMLLM_ANY_VERSION"] == "1"
"""
"""Breaks P2 where it lies before all else, also for what is started from here, and any version may run."""


@pytest.mark.parametrize(
    ("source", "verdict", "law", "because"),
    [
        (KEEPS, Verdict.VIOLATED, "P2", "row 1"),
        (CLEANS, Verdict.HOLDS, None, ""),
        (FOUND_FIRST, Verdict.VIOLATED, "P2", "row 1"),
        ("raise ImportError('of another time')", Verdict.UNKNOWN, None, "of another time"),
        (
            "",
            Verdict.UNKNOWN,
            None,
            "step 3 raised AttributeError: module 'tiny_rows' has no attribute 'KEEPS'",
        ),
        ("import os; os._exit(3)", Verdict.UNKNOWN, None, "ended with status 3"),
        ("import time; time.sleep(60)", Verdict.UNKNOWN, None, "no answer within 0.5 s"),
    ],
)
def test_a_program_is_judged_on_a_release(
    source: str, verdict: Verdict, law: str | None, because: str, tmp_path: Path
) -> None:
    """In a process of its own, which may end or hang: nothing is imported here, and no variable set."""
    before = list(sys.path), dict(os.environ)
    row = Trial(PROGRAM, ADAPTER, release_of(source, tmp_path / "tiny-rows-1.9")).judge("1.9", 0.5)
    assert (row.release, row.verdict, row.law) == ("1.9", verdict, law)
    assert because in row.because
    assert row.seconds > 0
    assert (list(sys.path), dict(os.environ)) == before
    assert "tiny_rows" not in sys.modules


def test_a_program_that_says_nothing_of_a_release_is_told(tmp_path: Path) -> None:
    """It relies on choices that this one does not make, or has no sense there."""
    place = release_of(CLEANS, tmp_path / "tiny-rows-1.9")

    def because(*steps: Step) -> str:
        row = Trial(History(PROGRAM.header, steps), ADAPTER, place).judge("1.9", 30.0)
        assert row.verdict is Verdict.UNKNOWN
        return row.because

    taken = Step(1, AllocRows(3), Outcome(Slots((1, 2, 3, 4))))
    assert "made other choices than the program relies on" in because(taken, Step(2, FreeRow(Span(1, 3, 4))))
    assert "step 1 gave 1" in because(Step(1, AllocRows(1)), Step(2, FreeRow(Span(1, 1, 2))))


def test_an_error_that_the_program_is_about_is_a_violation(tmp_path: Path) -> None:
    """A recorded error is the violation of a program, not a call that another release lacks."""
    place = release_of("", tmp_path / "tiny-rows-1.9")
    steps = [*PROGRAM.steps[:2], replace(PROGRAM.steps[2], outcome=Outcome(Failed("AttributeError")))]
    row = Trial(History(PROGRAM.header, steps), ADAPTER, place).judge("1.9", 30.0)
    assert (row.verdict, row.law) == (Verdict.VIOLATED, "P2")


def test_an_adapter_of_something_else_is_told(tmp_path: Path) -> None:
    """It would judge the same code again and again, whatever the release."""
    place = release_of(CLEANS, tmp_path / "other-1.0", "other")
    row = Trial(PROGRAM, "tests.unit.tiny_adapters:TinyRows", place).judge("1.0", 30.0)
    assert row.verdict is Verdict.UNKNOWN
    assert row.because == "imports nothing of other-1.0, so it judges something else"


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("nowhere.at_all:Rows", "cannot import nowhere.at_all: no module of that name"),
        ("tests.unit.releases:Rows", "has no class 'Rows'"),
        ("hashes", "the program is for rows; hashes is of kind hashes"),
    ],
)
def test_what_no_release_can_change_is_refused(adapter: str, words: str, tmp_path: Path) -> None:
    """An adapter that is not there, or is of another kind: trying the next release would not help."""
    with pytest.raises(UsageError, match=words):
        Trial(PROGRAM, adapter, release_of(CLEANS, tmp_path / "tiny-rows-1.9")).judge("1.9", 30.0)


# -- several releases --------------------------------------------------------------------------------------

VERDICTS = {
    "?": (Verdict.UNKNOWN, None),
    "h": (Verdict.HOLDS, None),
    "v": (Verdict.VIOLATED, "P2"),
    "w": (Verdict.VIOLATED, "P1"),
}


def bisection_of(verdicts: str) -> Bisection:
    """Make one over releases 0, 1, ... with these verdicts, each of which is tried once at most."""
    left = dict(enumerate(verdicts))
    return Bisection(
        [str(place) for place in range(len(verdicts))],
        lambda release: ReleaseRow(release, *VERDICTS[left.pop(int(release))], "", 0.0),
    )


def searched(verdicts: str) -> Bisection:
    bisection = bisection_of(verdicts)
    assert [*bisection.search()] == list(bisection.rows.values())
    return bisection


def test_a_change_is_found_with_few_trials() -> None:
    """Both ends, and then a half of what is left each time."""
    bisection = searched("v" * 37 + "h" * 63)
    assert bisection.changes == (ReleaseChange("36", "37", "violated P2", "holds", ()),)
    assert len(bisection.rows) <= 9
    assert bisection.settled == 100


def test_the_newest_change_is_looked_for_first() -> None:
    """Older ones show where a row happens to be on both sides."""
    (change,) = searched("w" * 20 + "v" * 20 + "h" * 20).changes
    assert (change.before, change.after, change.was, change.now) == ("39", "40", "violated P2", "holds")


def test_what_cannot_be_judged_is_passed_over() -> None:
    """The answer is then several releases."""
    (change,) = searched("hhhh???vvv").changes
    assert change == ReleaseChange("3", "7", "holds", "violated P2", ("4", "5", "6"))


@pytest.mark.parametrize("verdicts", ["?" * 30 + "v" * 5 + "h" * 5, "v" * 5 + "h" * 5 + "?" * 30])
def test_an_adapter_may_not_know_the_oldest_or_the_newest(verdicts: str) -> None:
    """Known releases are found by halves, though an adapter does not know the oldest or the newest."""
    bisection = searched(verdicts)
    assert [(it.was, it.now, it.between) for it in bisection.changes] == [("violated P2", "holds", ())]
    assert len(bisection.rows) < 15


def test_where_the_adapter_knows_some_in_the_middle_they_are_found() -> None:
    """Although both ends say nothing."""
    assert [it.after for it in searched("?" * 12 + "h" * 6 + "v" * 6 + "?" * 16).changes] == ["18"]


def test_where_nothing_can_be_judged_the_search_gives_up() -> None:
    """After both ends, and seven releases between them: an adapter may be of another package."""
    bisection = searched("?" * 100)
    assert (len(bisection.rows), bisection.changes, bisection.settled) == (9, (), 9)


def test_every_change_is_found_where_all_are_tried() -> None:
    """Oldest first."""
    bisection = bisection_of("hh?vvwhh")
    assert [row.release for row in bisection.search_all()] == list("01234567")
    assert [(it.before, it.after) for it in bisection.changes] == [("1", "3"), ("4", "5"), ("5", "6")]


def test_a_search_finds_what_is_there() -> None:
    """Whatever the verdicts: it tells changes only that there are, and one if the ends differ."""
    for verdicts in map("".join, itertools.product("?hvw", repeat=5)):
        all_of_them = bisection_of(verdicts)
        assert len([*all_of_them.search_all()]) == 5
        found, judged = searched(verdicts).changes, verdicts.replace("?", "")
        assert {*found} <= {*all_of_them.changes}
        # Of what lies between two that cannot be judged, not all is looked at.
        assert found or "?" in verdicts.strip("?") or not judged or judged[0] == judged[-1], verdicts
