"""The places at which a hybrid model keeps recurrent states, by name; nothing here loads torch or NumPy."""

from __future__ import annotations

from typing import Final, Literal

Keeping = Literal["every", "last", "branch"]
"""Where a prompt leaves states: behind every block, behind its last one, or there and where sharing ends."""

KEEPINGS: Final[tuple[Keeping, ...]] = ("every", "last", "branch")
