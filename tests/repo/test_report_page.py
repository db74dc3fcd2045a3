"""docs/report.md: its examples run, and its tables are those of the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import click

from pymllm.cli import main
from pymllm.cli.report import FORMATS
from pymllm.report.loading import LoadedRuns
from pymllm.report.records import RECORDS
from pymllm.report.sections import make_sections
from tests.unit.report.test_page import everything

PATH = Path(__file__).parents[2] / "docs" / "report.md"
PAGE = PATH.read_text(encoding="utf-8")


def first_cells(head: str) -> list[str]:
    """What stands in the first column of the table with this head."""
    table = PAGE.split(head, 1)[1].split("\n\n", 1)[0]
    return [line.split("|")[1].strip().strip("`") for line in table.splitlines()[2:]]


def test_the_examples_of_the_page_run_as_shown() -> None:
    """A reader who copies them sees the same answers."""
    found = doctest.testfile(str(PATH), module_relative=False, encoding="utf-8")
    assert found.attempted > 10
    assert found.failed == 0


def test_the_page_has_each_section_of_a_report() -> None:
    """In its order, but for the list of the runs, which is told in words."""
    titles = [section.title.lower() for section in make_sections(LoadedRuns(everything()))]
    assert [title.lower() for title in first_cells("| section | what")] == titles[:-1]


def test_the_page_has_each_kind_of_record_and_each_feed() -> None:
    """And none that there is not."""
    assert first_cells("| record | what") == list(RECORDS)
    assert ["html", *first_cells("| `--format` | what")] == list(FORMATS)


def test_the_page_names_each_command_that_keeps_its_result() -> None:
    """And every command that it shows has the options that it is shown with."""
    assert isinstance(main, click.Group)
    keeping = {
        name for name, command in main.commands.items() if any(it.name == "store" for it in command.params)
    }
    (told,) = re.findall(r"These commands write a run with `--store FOLDER`: (.*?)\.", PAGE)
    assert set(re.findall(r"`(\w+)`", told)) == keeping
    for line in re.findall(r"^pymllm (.*?)(?: +#.*)?$", PAGE, flags=re.MULTILINE):
        words = line.split()
        options = {option for it in main.commands[words[0]].params for option in it.opts}
        assert {word for word in words if word.startswith("-")} <= options
