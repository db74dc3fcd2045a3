"""Names for the places where a hybrid model keeps recurrent states, importable without torch or NumPy."""

from __future__ import annotations

from typing import Final, Literal

Keeping = Literal["every", "last", "branch"]
"""Where a prompt leaves states: after every block, after the last, or also where sharing ends."""

KEEPINGS: Final[tuple[Keeping, ...]] = ("every", "last", "branch")
