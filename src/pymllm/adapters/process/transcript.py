"""The last lines of a conversation, as a file shows them."""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_LINES: Final = 50
"""So many lines of the conversation are kept, and so many of the standard error."""

_SHOWN = 2_000  # characters of one line
_ERROR_BYTES = 2**16


class Transcript:
    """What was said last: ``>`` to the program, ``<`` by it, and the end of its standard error.

    Notes
    -----
    Cost: a reference for each line; text is made of them only where somebody asks.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[str, bytes]] = deque(maxlen=KEPT_LINES)
        self._errors = b""
        self._count = 0

    def sent(self, line: bytes) -> None:
        """Note a line that was said to the program."""
        self._note(">", line)

    def received(self, line: bytes) -> None:
        """Note a line, or what there is of one, that the program said."""
        self._note("<", line)

    def heard(self, data: bytes) -> None:
        """Note what came out of its standard error."""
        self._errors = (self._errors + data)[-_ERROR_BYTES:]

    def _note(self, mark: str, line: bytes) -> None:
        self._lines.append((mark, line))
        self._count += 1

    def text(self) -> str:
        """Return all that is kept, as lines."""
        left_out = self._count - len(self._lines)
        lines = [f"# {left_out:,} lines before these are left out"] if left_out else []
        lines += [f"{mark} {_readable(line)}" for mark, line in self._lines]
        errors = self._errors.splitlines()[-KEPT_LINES:]
        if errors:
            lines += ["# its standard error, at the end", *(f"! {_readable(line)}" for line in errors)]
        return "".join(f"{line}\n" for line in lines)


def _readable(line: bytes) -> str:
    text = line.rstrip(b"\n").decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ... ({len(text):,} characters)"
