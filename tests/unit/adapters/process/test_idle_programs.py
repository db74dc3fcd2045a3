"""Programs stay between two adapters."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.adapters.process import idle_programs
from pymllm.adapters.process.idle_programs import end_idle_programs, lend, take_back


@pytest.fixture(autouse=True)
def _own_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_programs, "_shelf", idle_programs._Shelf())


@pytest.fixture
def command(tiny_program: Callable[..., str]) -> list[str]:
    return shlex.split(tiny_program())


def test_a_program_that_was_taken_back_is_lent_again(command: list[str]) -> None:
    """One by one; two at the same time are two."""
    first, second = lend("mine", command), lend("mine", command)
    assert first is not second
    take_back(first, command)
    assert lend("mine", command) is first
    for conversation in (first, second):
        conversation.end()


def test_another_command_gets_another_program(command: list[str], tiny_program: Callable[..., str]) -> None:
    """Arguments count."""
    first = lend("mine", command)
    take_back(first, command)
    other = lend("mine", shlex.split(tiny_program("bye", "ignore")))
    assert other is not first
    other.end()
    end_idle_programs()


def test_one_that_cannot_be_asked_any_more_is_not_kept(command: list[str]) -> None:
    """It was ended."""
    first = lend("mine", command)
    first.end()
    take_back(first, command)
    second = lend("mine", command)
    assert second.is_open
    second.end()


def test_more_than_anybody_needs_are_let_go(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is every one at the end."""
    monkeypatch.setattr(idle_programs, "_KEPT", 1)
    first, second = lend("mine", command), lend("mine", command)
    take_back(first, command)
    take_back(second, command)
    assert (first.is_open, second.is_open) == (True, False)
    end_idle_programs()
    assert not first.is_open


def test_after_a_fork_the_programs_are_somebody_elses(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two must not speak with one."""
    first = lend("mine", command)
    take_back(first, command)
    with monkeypatch.context() as forked:
        forked.setattr(idle_programs.os, "getpid", lambda: 0)
        end_idle_programs()
        assert idle_programs._shelf.owner == 0
    assert first.is_open
    first.end()


def test_another_folder_may_have_another_program_of_that_name(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A path is that of the current folder."""
    first = lend("mine", command)
    take_back(first, command)
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        other = lend("mine", command)
        assert other is not first
        take_back(other, command)
    end_idle_programs()
    assert not first.is_open
    assert not other.is_open
