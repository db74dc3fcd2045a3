"""A prefix cache from another project: a dictionary of pages, named by all tokens up to their end.

It knows nothing of pymllm. `stranger_adapter.py` beside it has all that it takes to examine it.
"""

from __future__ import annotations

from collections import Counter

Prefix = tuple[int, ...]


class PageCache:
    """Pages of KV slots by prefix, in a pool of its own; the oldest leaf goes first."""

    def __init__(self, page_size: int, slots: int) -> None:
        self.page_size = page_size
        self.free = list(range(page_size, page_size + slots))  # the first page is for padding
        self.pages: dict[Prefix, list[int]] = {}  # slots of the last page of a prefix, oldest use first
        self.holds: Counter[Prefix] = Counter()

    def prefixes(self, tokens: Prefix) -> list[Prefix]:
        """Return every prefix of whole pages, the shortest first."""
        return [tokens[:end] for end in range(self.page_size, len(tokens) + 1, self.page_size)]

    def allocate(self, count: int) -> list[int] | None:
        """Take slots in whole pages."""
        if count > len(self.free):
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def match(self, tokens: Prefix) -> list[int]:
        """Return the slots of the longest cached prefix."""
        found: list[int] = []
        for prefix in self.prefixes(tokens):
            if prefix not in self.pages:
                break
            self.pages[prefix] = self.pages.pop(prefix)  # used last
            found += self.pages[prefix]
        return found

    def insert(self, tokens: Prefix, slots: list[int]) -> int:
        """Keep the slots of tokens not cached yet; return the number of tokens that were cached."""
        known = len(self.match(tokens))
        for prefix in self.prefixes(tokens)[known // self.page_size :]:
            self.pages[prefix] = slots[len(prefix) - self.page_size : len(prefix)]
        return known

    def evict(self, count: int) -> list[int]:
        """Give up leaves without holds until ``count`` slots are free, and return these slots."""
        gone: list[int] = []
        while len(gone) < count:
            inner = {prefix[: -self.page_size] for prefix in self.pages}
            leaf = next((it for it in self.pages if it not in inner and not self.holds[it]), None)
            if leaf is None:
                break
            gone += self.pages.pop(leaf)
        self.free += gone
        return gone

    def hold(self, tokens: Prefix, by: int = 1) -> None:
        """Keep all pages of a prefix from being evicted, or with -1 no longer."""
        self.holds.update(dict.fromkeys(self.prefixes(tokens), by))
