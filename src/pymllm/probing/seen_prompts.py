"""The prompts seen in a namespace, searched for the longest prefix shared with a new prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_OPEN = "open"  # no token is this


class SeenPrompts:
    """A tree of token sequences, some of which end in unknown tokens."""

    def __init__(self) -> None:
        self._root: dict[Any, Any] = {}

    def add(self, tokens: Sequence[int], untold: int = 0) -> None:
        """Add a sequence, followed by up to ``untold`` computed tokens that were not reported."""
        node = self._root
        for token in tokens:
            node = node.setdefault(token, {})
        node[_OPEN] = max(untold, node.get(_OPEN, 0))

    def longest_prefix(self, tokens: Sequence[int]) -> int:
        """Return the greatest length to which a sequence may be a prefix of one in the tree."""
        node, longest = self._root, 0
        for at, token in enumerate(tokens):
            if token not in node:
                break
            node = node[token]
            longest = max(longest, at + 1 + int(node.get(_OPEN, 0)))
        return min(longest, len(tokens))
