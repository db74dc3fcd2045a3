"""Spellings of the release before: one line names the new one."""

from __future__ import annotations

import shlex

import click
import pytest

from pymllm.cli import main
from pymllm.cli.old_spellings import OLD_SPELLINGS
from tests.repo.test_pages import what_is_wrong
from tests.unit.cli.typed import refused, typed


@pytest.mark.parametrize(("old", "new"), OLD_SPELLINGS)
def test_an_old_spelling_is_answered_with_the_new_one(old: str, new: str) -> None:
    """X1: nothing is done, wherever in a command it stands, and in both forms of an option."""
    line = f"pymllm {old} is an old spelling; type {new}."
    refused(*old.split(), words=line)
    refused(*old.split(), "--json", words=line)
    verb, _, word = old.partition(" ")
    if word.startswith("-"):
        refused(verb, "--progress", "off", f"{word}=x", words=line)


@pytest.mark.parametrize(("old", "new"), OLD_SPELLINGS)
def test_the_new_spelling_can_be_typed_and_the_old_one_cannot(old: str, new: str) -> None:
    """An entry of the table that a verb took over, or that leads to nothing, would show."""
    verb, _, word = old.partition(" ")
    group = main.commands[verb]
    commands = group.commands.values() if isinstance(group, click.Group) else [group]
    options = {option for command in commands for it in command.params for option in it.opts}
    words = shlex.split(new)
    assert what_is_wrong(words[1:]) is None if words[0] == "pymllm" else words[0] in options
    assert word not in options


def test_a_value_is_no_old_spelling() -> None:
    """A folder may be called merge, and a verb of faults asked what it takes."""
    refused("soak", "--output", "merge", "--adapter", "nothing", words="no adapter 'nothing'")
    assert typed("faults", "--help").exit_code == 0
    assert typed("faults", "list", "B01").stdout.startswith("B01  ")
