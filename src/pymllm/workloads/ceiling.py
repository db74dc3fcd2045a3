"""Upper bounds of hits: of a cache that never evicts, and of the best cache of a given size.

The first answer is exact and needs no cache: a trie over block ids, with the number of tokens seen at each.
Outputs are unique in every workload here, so they never help a later prompt and are left out.

The second knows the future: Belady's rule drops what is used again last. Pages are of one size and may be
passed over, so no policy hits more, and as a prefix is used again no later than what follows it, the rule
never keeps a page without those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

from pymllm.workloads.request import Request

_ROOT = 0


class HitCeiling:
    """The tokens, in whole pages, that a cache of unlimited size would hit, request by request.

    ``held_back`` tokens at the end of each prompt are never looked up: 0 for a plain cache, 1 for an engine,
    which must compute at least one. Memory is one entry per distinct block place.
    """

    __slots__ = ("_children", "_held_back", "_page_size", "_tokens_seen", "hit_tokens", "prompt_tokens")

    def __init__(self, page_size: int = 1, *, held_back: int = 0) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        if held_back < 0:
            raise ValueError(f"held_back must not be negative, got {held_back}")
        self._page_size = page_size
        self._held_back = held_back
        self._children: dict[tuple[int, object], int] = {}
        self._tokens_seen = [0]
        self.hit_tokens = 0
        self.prompt_tokens = 0

    @property
    def hit_rate(self) -> float:
        """Hit tokens per prompt token so far; 0.0 before the first request."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def add(self, request: Request) -> int:
        """Record a prompt, and return how many of its leading tokens were seen before, in whole pages."""
        shared = self._remember(request)
        usable = min(shared, request.prompt_length - self._held_back)
        hit = max(usable, 0) // self._page_size * self._page_size
        self.hit_tokens += hit
        self.prompt_tokens += request.prompt_length
        return hit

    def _remember(self, request: Request) -> int:
        """Add a prompt's blocks to the trie; return the number of leading tokens seen before."""
        node = self._child(_ROOT, ("namespace", request.namespace))
        shared, sharing, left = 0, True, request.prompt_length
        for block in request.block_ids:
            node = self._child(node, block)
            tokens = min(left, request.block_tokens)
            if sharing:
                seen = min(tokens, self._tokens_seen[node])
                shared += seen
                sharing = seen == request.block_tokens
            if tokens > self._tokens_seen[node]:
                self._tokens_seen[node] = tokens
            left -= tokens
        return shared

    def _child(self, node: int, label: object) -> int:
        child = self._children.setdefault((node, label), len(self._tokens_seen))
        if child == len(self._tokens_seen):
            self._tokens_seen.append(0)
        return child


_Access = tuple[int, int]  # a place in the trie, and how many pages end in it

_NEVER = 1 << 62


def belady_hit_tokens(requests: Sequence[Request], page_size: int, capacity: int) -> int:
    """Return the number of prompt tokens that Belady's rule serves from ``capacity`` tokens, in whole pages.

    Requests are served one after another and have the same ``block_tokens``. Cost: O(n log n) for n blocks in
    all prompts, a second for the 12,000 requests of the conversation trace. Source: Belady 1966; Mattson et
    al. 1970.
    """
    if page_size < 1 or capacity < 0:
        raise ValueError(f"page_size must be at least 1 and capacity at least 0, got {page_size}, {capacity}")
    sizes, accesses = _items(_places(requests, page_size))
    return _hits(sizes, accesses, capacity // page_size) * page_size


def _places(requests: Sequence[Request], page_size: int) -> list[list[_Access]]:
    """Return the trie nodes of each request's blocks, with the number of its pages that end in each."""
    children: dict[tuple[int, object], int] = {}
    listed = []
    for request in requests:
        node = children.setdefault((0, ("namespace", request.namespace)), len(children) + 1)
        row, start = [], 0
        for block in request.block_ids:
            node = children.setdefault((node, block), len(children) + 1)
            end = min(start + request.block_tokens, request.prompt_length)
            pages = end // page_size - start // page_size
            if pages:
                row.append((node, pages))
            start = end
        listed.append(row)
    return listed


def _items(places: list[list[_Access]]) -> tuple[list[int], list[list[int]]]:
    """Split nodes where any request ends; return the size of each part, and the parts of each request."""
    cuts: dict[int, set[int]] = {}
    for row in places:
        for node, pages in row:
            cuts.setdefault(node, {0}).add(pages)
    sizes: list[int] = []
    items_up_to: dict[_Access, range] = {}
    for node, ends in cuts.items():
        first = len(sizes)
        for start, end in pairwise(sorted(ends)):
            sizes.append(end - start)
            items_up_to[node, end] = range(first, len(sizes))
    return sizes, [[item for access in row for item in items_up_to[access]] for row in places]


def _next_uses(items: int, accesses: list[list[int]]) -> list[list[int]]:
    """Return for each use of an item the number of the next request that uses it."""
    later = [_NEVER] * items
    found: list[list[int]] = []
    for number in range(len(accesses) - 1, -1, -1):
        found.append([later[item] for item in accesses[number]])
        for item in accesses[number]:
            later[item] = number
    found.reverse()
    return found


def _hits(sizes: list[int], accesses: list[list[int]], room: int) -> int:
    """Return the number of pages that are cached when used, under Belady's rule."""
    kept = [0] * len(sizes)
    due = [_NEVER] * len(sizes)
    farthest: list[tuple[int, int]] = []  # (minus the next use, item), also of uses that are past
    total = hits = 0
    for row, nexts in zip(accesses, _next_uses(len(sizes), accesses), strict=True):
        for item, use in zip(row, nexts, strict=True):
            hits += kept[item]
            wanted = 0 if use == _NEVER else sizes[item]
            total += wanted - kept[item]
            kept[item], due[item] = wanted, use
            if wanted:
                heappush(farthest, (-use, item))
        while total > room:
            use, item = farthest[0]
            if due[item] != -use or not kept[item]:
                heappop(farthest)
                continue
            gone = min(kept[item], total - room)
            kept[item] -= gone
            total -= gone
    return hits
