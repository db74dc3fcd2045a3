"""Findings stand by project, and the first table of their page counts them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from pymllm.history.files import load_history
from pymllm.search.deviations import read_deviations

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "peers" / "findings"
PAGES = sorted(FOLDER.glob("*/*.md"))
OF_NO_LAW = FOLDER / "dynamo" / "simulators-evict-single-blocks.md"
SUMMARY, *SECTIONS = re.split(r"^## ", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
ROW = re.compile(r"^\| \[([\w-]+)\]\(([\w/-]+\.md)\) \| ([^|]+) \| (\w+) \| ([^|]+) \|$", flags=re.MULTILINE)
ROWS = {section.partition("\n")[0]: ROW.findall(section) for section in SECTIONS}
COUNTED = re.findall(r"^\| \[([\w-]+)\]\(#[\w-]+\) \| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", SUMMARY, re.M)
SORTS = ("a defect", "a different contract, near a defect", "a different contract")


def sort_of(verdict: str) -> str:
    """Return the sort of a finding: the first that its verdict begins with."""
    return next(sort for sort in SORTS if verdict.startswith(sort))


def test_every_page_has_a_row_and_every_row_a_page() -> None:
    """By its name, below the heading of the first project that the page names."""
    assert {FOLDER / place for rows in ROWS.values() for _, place, *_ in rows} == {*PAGES} - {OF_NO_LAW}
    assert f"({OF_NO_LAW.relative_to(FOLDER)})" in "".join(SECTIONS)
    for project, rows in ROWS.items():
        for name, place, version, law, verdict in rows:
            text = (FOLDER / place).read_text(encoding="utf-8")
            assert Path(place).stem == name
            assert f"| law | {law}: " in text
            (said,) = re.findall(r"^\| verdict \| (.*) \|$", text, flags=re.MULTILINE)
            assert sort_of(said) == sort_of(verdict), name
            (of,) = re.findall(r"^\| of \| (.*) \|$", text, flags=re.MULTILINE)
            assert all(f"{project} {one}" in of for one in version.split(" and ")), name


def test_a_folder_has_the_findings_of_one_project() -> None:
    """Of the project that a page names first."""
    whose = {
        (page.parent.name, re.findall(r"^\| of \| ([\w-]+) ", page.read_text(encoding="utf-8"), re.M)[0])
        for page in PAGES
        if page != OF_NO_LAW
    }
    folders, projects = zip(*whose, strict=True)
    assert sorted(set(folders)) == sorted(folders)
    assert set(projects) <= set(ROWS)


def test_the_first_table_counts_them() -> None:
    """Every project that was examined, its versions, and how many findings of each sort."""
    counted = {
        project: (
            set(versions.split(", ")),
            {sort: int(count) for sort, count in zip(SORTS, counts, strict=True)},
        )
        for project, versions, *counts in COUNTED
    }
    assert list(counted) == list(ROWS)[: len(counted)]
    assert not any(list(ROWS.values())[len(counted) :])
    for project, (versions, counts) in counted.items():
        found = Counter(sort_of(verdict) for *_, verdict in ROWS[project])
        assert counts == {sort: found[sort] for sort in SORTS}, project
        assert {one for row in ROWS[project] for one in row[2].split(" and ")} <= versions


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_program_of_a_page_lies_beside_it(page: Path) -> None:
    """And the command on the page names it."""
    if page == OF_NO_LAW:
        return
    program = page.with_suffix(".jsonl")
    assert load_history(program).steps
    text = page.read_text(encoding="utf-8")
    assert f"pymllm rerun {program.relative_to(ROOT)} --adapter " in text
    assert set(re.findall(r"peers/findings/[\w/-]+\.jsonl", text)) == {str(program.relative_to(ROOT))}


def test_what_is_known_leads_to_a_page() -> None:
    """And says whether it is a defect."""
    for it in read_deviations(FOLDER / "known.toml"):
        assert ROOT / it.link in PAGES, it
        assert it.kind != "open", it
