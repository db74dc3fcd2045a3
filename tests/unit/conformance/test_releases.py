"""Releases of a package: listed, unpacked, tried one by one, and searched for a change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pymllm.conformance import releases
from pymllm.conformance.releases import list_releases, unpack, within
from pymllm.errors import UsageError
from pymllm.history.files import Header, History, Step
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


# -- what pip knows ----------------------------------------------------------------------------------------


def test_releases_are_listed_oldest_first(wheels: Path) -> None:
    """By their numbers, not by their letters; prereleases only where somebody asks for them."""
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
    """With what pip says of it; what could be an option of pip's never reaches it."""
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
