"""Writing a file so that whoever reads it sees it as it was or as it is now, never half."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["write_text_file"]


def write_text_file(path: Path, text: str) -> None:
    """Write a text beside the file, and put it in the file's place.

    Parameters
    ----------
    path : Path
        A file that is there is replaced and keeps its permissions; of a link, the file that it leads to. What
        is no file, such as a pipe or ``/dev/stdout``, is written to as it is.
    text : str
        Written as UTF-8.

    Raises
    ------
    OSError
        It cannot be written; then the file is as it was.

    Notes
    -----
    Its folder must be there, and gets a second file for a moment.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    place = path.resolve()
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        if place.exists():
            shutil.copymode(place, partial)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
