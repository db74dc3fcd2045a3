"""Helpers that run a command as a user types it, and check the form of a refusal."""

from __future__ import annotations

import io

from click.testing import CliRunner, Result

from pymllm.cli import main


def typed(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False, prog_name="pymllm")


def refused(*typing: object, words: str) -> None:
    """X1: a line on standard error names what is wrong; nothing else is printed, and the status is 2."""
    result = typed(*typing)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith("pymllm: ")
    assert words in result.stderr, result.stderr


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True
