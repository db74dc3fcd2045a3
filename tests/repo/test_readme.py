"""What the README and the pages at the root say is so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.repo.tutorial import Reader

ROOT = Path(__file__).parents[2]


def test_the_readme_says_what_happens(tmp_path: Path) -> None:
    """A reader who copies its adapter and its command finds the bug that it shows."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert Reader(folder, tmp_path / "programs").play(ROOT / "README.md") == 1


def test_the_readme_is_read_in_minutes() -> None:
    """What needs more words has a page."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700


def test_links_between_the_pages_lead_somewhere() -> None:
    """Each relative link names a file of the repository."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_layout_names_every_room() -> None:
    """The table in CONTRIBUTING.md has a row for each folder of code, tests and pages."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [
        *(ROOT / "src" / "pymllm").iterdir(),
        *(ROOT / "tests").iterdir(),
        ROOT / "benchmarks",
        ROOT / "docs",
    ]
    for folder in folders:
        if folder.is_dir() and not folder.name.startswith("__"):
            assert f"`{folder.relative_to(ROOT)}/`" in text
