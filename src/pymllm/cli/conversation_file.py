"""The last lines of a conversation with a program, in a file that the message names."""

from __future__ import annotations

from pathlib import Path

from pymllm.cli.program import complain
from pymllm.text_file import write_text_file

__all__ = ["save_conversation"]


def save_conversation(text: str, path: Path) -> str | None:
    """Write a conversation, and make the folder if there is none.

    Parameters
    ----------
    text : str
        Lines.
    path : Path
        A file of that name is replaced.

    Returns
    -------
    str or None
        The path; ``None`` where it cannot be written, of which is complained: the result matters more.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_file(path, text)
    except OSError as error:
        complain(f"{path}: cannot be written: {error.strerror or error}")
        return None
    return str(path)
