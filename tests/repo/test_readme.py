"""What the README shows is what happens."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_readme_run_as_shown() -> None:
    """A reader who copies the README's Python lines sees the README's answers."""
    found = doctest.testfile(str(ROOT / "README.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > 10
    assert found.failed == 0


def test_links_between_the_pages_lead_somewhere() -> None:
    """Each relative link names a file of the repository."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_names_every_room() -> None:
    """The table of rooms has a row for each folder of code, tests and pages."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    folders = [
        *(ROOT / "src" / "pymllm").iterdir(),
        *(ROOT / "tests").iterdir(),
        ROOT / "benchmarks",
        ROOT / "docs",
    ]
    for folder in folders:
        if folder.is_dir() and not folder.name.startswith("__"):
            assert f"`{folder.relative_to(ROOT)}/`" in text
