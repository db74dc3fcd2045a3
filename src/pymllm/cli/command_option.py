"""``--command``: a program in any language where an adapter is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from pymllm.adapters.process.command_name import PREFIX

__all__ = ["command_option", "names_of"]


def command_option(*, multiple: bool) -> Callable[[Any], Any]:
    """Return the option for a command that takes adapters, one or several of them."""
    return click.option(
        "--command",
        "commands" if multiple else "command",
        metavar="'PROGRAM ARGS'",
        multiple=multiple,
        help="A program that speaks the protocol of docs/protocol.md"
        + ("; may be repeated." if multiple else ".")
        + f" Short for --adapter '{PREFIX}PROGRAM ARGS'.",
    )


def names_of(adapters: Sequence[str], commands: Sequence[str]) -> tuple[str, ...]:
    """Return the names of adapters and commands together, as the registry takes them."""
    return (*adapters, *(f"{PREFIX}{command}" for command in commands))
