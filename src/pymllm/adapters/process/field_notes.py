"""What the fields of a record mean, read off its docstring: whoever reads a schema has no source."""

from __future__ import annotations

import inspect
import re
from typing import Any

__all__ = ["field_notes", "with_notes"]

_HEAD = re.compile(r"(\w+(?:, \w+)*)(?: : .*)?")


def field_notes(kind: type) -> dict[str, str]:
    """Return what each field of a record means, in one line, as far as its docstring has a word on it.

    Parameters
    ----------
    kind : type
        A record class with a section ``Parameters`` in the NumPy style.
    """
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nParameters\n----------\n")
    notes: dict[str, list[str]] = {}
    names: list[str] = []
    for line in section.partition("\n\n")[0].splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            names = head[1].split(", ")
        for name in names if head is None else ():
            notes.setdefault(name, []).append(line.strip())
    return {name: " ".join(lines).replace("`", "") for name, lines in notes.items()}


def with_notes(schema: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the schema of a record with what its fields mean.

    Parameters
    ----------
    schema : dict
        With the record's fields among its ``properties``.
    kind : type
        The record.
    """
    notes = field_notes(kind)
    properties = {
        name: {**found, "description": notes[name]} if name in notes else found
        for name, found in schema["properties"].items()
    }
    return {**schema, "properties": properties}
