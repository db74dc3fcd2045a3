"""What simulated forward passes wrote into KV rows, so that every read can be compared with a cold run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pymllm.history.operations import Token
from pymllm.oracle.prefix_pages import Path, Space

__all__ = ["KVContent"]

_SHARED = -1


class KVContent:
    """The content of every row, both halves.

    A content is a number that stands for a namespace and a whole token prefix: KV of a token depends on
    all tokens before it. Numbers are equal exactly where those are, so no two prefixes collide.
    """

    def __init__(self) -> None:
        self._full: dict[int, int] = {}
        self._swa: dict[int, int] = {}
        self._numbers: dict[tuple[Space | int, Token], int] = {}

    def of_path(self, path: Path) -> list[int]:
        """Return the content of each position of a path."""
        contents: list[int] = []
        for token in path.tokens:
            prefix = contents[-1] if contents else path.space
            contents.append(self._numbers.setdefault((prefix, token), len(self._numbers)))
        return contents

    def write(self, slots: Iterable[int], contents: Iterable[int], halves: Iterable[bool]) -> None:
        """Write contents into rows, and into the SWA halves that there are."""
        for slot, content, half in zip(slots, contents, halves, strict=True):
            self._full[slot] = content
            if half:
                self._swa[slot] = content

    def write_number(self, slot: int, content: int) -> None:
        """Write into a row of no pool; a number that stands for two contents is not looked at any more."""
        self._full[slot] = content if self._full.get(slot, content) == content else _SHARED

    def move_halves(self, moves: Mapping[int, int]) -> None:
        """Let the half of each target be that of its source."""
        moved = {target: self._swa.pop(source, _SHARED) for source, target in moves.items()}
        self._swa.update(moved)

    def drop(self, slots: Iterable[int]) -> None:
        """Forget rows that were given back."""
        for slot in slots:
            self._full.pop(slot, None)
            self._swa.pop(slot, None)

    def drop_halves(self, slots: Iterable[int]) -> None:
        """Forget halves that were given back."""
        for slot in slots:
            self._swa.pop(slot, None)

    def is_known(self, slots: Iterable[int]) -> bool:
        """Tell whether every one of these rows has one content."""
        return all(self._full.get(slot) != _SHARED for slot in slots)

    def first_wrong(self, path: Path, slots: Sequence[int], window: int | None) -> str | None:
        """Say which row, read as KV of a path, holds something else than a cold run would have written.

        Parameters
        ----------
        path : Path
            The prefix that is read.
        slots : sequence of int
            One per token.
        window : int or None
            How many of the last tokens are read from their SWA halves too; ``None`` for none.
        """
        contents = self.of_path(path)
        for place, (slot, content) in enumerate(zip(slots, contents, strict=True)):
            if self._full.get(slot) != content:
                return f"token {place} in slot {slot} has KV of another prefix"
            if window is not None and place >= len(slots) - window and self._swa.get(slot) != content:
                return f"token {place} in slot {slot} has window KV of another prefix, or none"
        return None
