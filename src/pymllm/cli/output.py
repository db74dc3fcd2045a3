"""Output of lines on standard output and standard error, for any terminal or pipe."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

import click

from pymllm.text_file import escaped as escaped  # for the commands

WORDS = "pymllm.words"
"""The key of a command's context for the typed words."""

UNWRITTEN = "pymllm.unwritten"
"""The key of a command's context for whether a requested file could not be written."""

_LONGEST = 4_000  # characters of what a file or a program of somebody's may have a part in
_TAB, _STYLE_OR_TAB = re.compile("(\t)"), re.compile("(\t|\x1b\\[[0-9;]*m)")


def say(text: str, *, styled: bool = False) -> None:
    """Print lines on standard output, with control and unencodable characters escaped.

    With ``styled``, what `pymllm.cli.tables.draw` makes of bold and coloured words is kept.
    """
    kept = _STYLE_OR_TAB if styled else _TAB
    shown = (
        # Pieces and what is kept take turns.
        "".join(piece if place % 2 else escaped(piece) for place, piece in enumerate(kept.split(line)))
        for line in text.rstrip("\n").split("\n")
    )
    click.echo(_printable("\n".join(shown), sys.stdout.encoding))


def complain(message: str) -> None:
    """Print one line on standard error, if there is one; a very long line is shortened in the middle."""
    if len(message) > _LONGEST:  # as where a file names a million slots
        message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 4 :]}"
    tell_error(f"pymllm: {escaped(message)}")


def tell_error(text: str) -> None:
    """Print a text on standard error, if there is one."""
    if sys.stderr is None:
        return
    try:
        click.echo(_printable(text.rstrip("\n"), sys.stderr.encoding), err=True)
    except OSError:
        let_go_of(sys.stderr)


def _printable(text: str, encoding: str | None) -> str:
    """Escape unprintable characters, which names of files may contain."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def let_go_of(stream: TextIO) -> None:
    """Discard a stream's buffered text, so that the interpreter does not fail on it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
