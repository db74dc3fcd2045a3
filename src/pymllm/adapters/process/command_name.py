"""The form ``command:PROGRAM ARGS``, which names a program as an adapter."""

from __future__ import annotations

import shlex

from pymllm.errors import UsageError

PREFIX = "command:"
"""The beginning of such a name."""


def split_command(name: str) -> list[str]:
    """Return program and arguments of ``command:PROGRAM ARGS``, split as a shell does, or a `UsageError`."""
    try:
        command = shlex.split(name.removeprefix(PREFIX))
    except ValueError as error:
        raise UsageError(f"{name!r} is no command: {str(error).lower()}") from None
    if not command:
        raise UsageError(f"{name!r} names no program; give {PREFIX}PROGRAM ARGS")
    return command
