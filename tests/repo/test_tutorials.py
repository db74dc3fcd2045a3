"""The tutorials say what happens: everything on their pages is done as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.tutorial import ROOT, Block, Reader, blocks_of, commands_of

PAGES = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.name != "index.md")
QUICK = ["take-the-classes.md"]
"""Pages without commands, which are played in every run of the tests; ``tox -e docs`` plays all."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, marks=() if path.name in QUICK else pytest.mark.slow, id=path.stem)
        for path in PAGES
    ],
)
def test_a_tutorial_says_what_happens(page: Path, tmp_path: Path) -> None:
    """Files, sessions and commands of the page, in its order."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert Reader(folder, tmp_path / "programs").play(page) >= 3


def test_there_is_a_tutorial_for_each_use() -> None:
    """Seven things that people do with the package, and a page that lists them."""
    listed = (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")
    assert len(PAGES) == 7
    assert [path.name for path in PAGES if f"({path.name})" not in listed] == []


def test_a_page_that_says_something_else_is_noticed(tmp_path: Path) -> None:
    """A difference in the output of either stream, in a status or in an answer of Python is noticed."""
    wrong = {
        "console": "$ echo one >&2; echo two\none\nthree\n",
        "sh": "",
        "pycon": ">>> 1 + 1\n3\n",
    }
    for language, text in wrong.items():
        page = tmp_path / f"{language}.md"
        page.write_text(f"# Page\n\n```{language}\n{text}```\n", encoding="utf-8")
        reader = Reader(tmp_path, tmp_path / f"programs-{language}")
        if language == "sh":
            assert reader.play(page) == 0
        else:
            with pytest.raises(AssertionError, match=r"three|Expected"):
                reader.play(page)


def test_a_page_is_played_in_order(tmp_path: Path) -> None:
    """A file is there for the command behind it, and a command knows how the one before it ended."""
    page = tmp_path / "page.md"
    page.write_text(
        '```text title="greeting"\nhello\n```\n\n'
        "```console\n$ cat \\\n    greeting\nhello\n$ (exit 3)\n$ echo $?\n3\n```\n\n"
        "```pycon\n>>> word = 'kept'\n```\n\n```pycon\n>>> word\n'kept'\n```\n",
        encoding="utf-8",
    )
    assert Reader(tmp_path, tmp_path / "programs").play(page) == 5


def test_commands_are_read_with_what_they_print() -> None:
    """A command may go over several lines."""
    block = Block("console", None, "$ one \\\n    more\nprinted\n$ two\n")
    assert list(commands_of(block)) == [("one \\\n    more", "printed\n"), ("two", "")]


def test_the_blocks_of_the_tutorials_are_found() -> None:
    """No page has a fence that the pattern does not see."""
    for page in PAGES:
        fences = page.read_text(encoding="utf-8").count("```")
        assert fences == 2 * len(blocks_of(page)), page.name
