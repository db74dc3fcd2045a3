"""The name of an adapter that is a program."""

from __future__ import annotations

import pytest

from pymllm.adapters.process.command_name import split_command
from pymllm.errors import UsageError


@pytest.mark.parametrize(
    ("name", "words"), [("command:", "names no program"), ("command:'x", "no closing quotation")]
)
def test_a_command_has_to_name_a_program(name: str, words: str) -> None:
    """X1: before anything is started."""
    with pytest.raises(UsageError, match=words):
        split_command(name)


def test_a_command_is_split_as_a_shell_does() -> None:
    """There is none."""
    assert split_command("command:./a 'b c' $HOME") == ["./a", "b c", "$HOME"]
