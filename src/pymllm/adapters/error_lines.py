"""The line that raised an error, and the line of outside code that led to it."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def line_of(error: BaseException) -> str:
    """Return the line that raised an error, after the first line of outside code that led to it."""
    *_, (frame, number) = traceback.walk_tb(error.__traceback__)
    inner = f"line {number} of {frame.f_code.co_filename}"
    own = own_line_of(error) or inner
    return own if own == inner else f"{own}, from there {inner}"


def own_line_of(error: BaseException) -> str:
    """Return the last line of the adapted object or file in an error's traceback; empty if there is none."""
    places = [
        (frame.f_code.co_filename, frame.f_locals.get("self"), number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_PACKAGE, "<"))
    ]
    if not places:
        return ""
    file, called, _ = places[0]
    last = [number for name, owner, number in places if name == file and owner is called][-1]
    return f"line {last} of {file}"
