"""How much an unlimited cache would hit: the ceiling beside every hit rate.

The answer is exact and needs no cache: a trie over block ids, one entry per block that some prompt
had at that place, with the number of its tokens that were seen there. Outputs are unique in every
workload here, so they never help a later prompt and are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymllm.workloads.request import Request

__all__ = ["HitCeiling"]

_ROOT = 0


class HitCeiling:
    """Tokens that a cache which never forgets would hit, request by request.

    Parameters
    ----------
    page_size : int
        Tokens per page; only whole pages are ever hit.
    held_back : int
        Tokens at the end of each prompt that are never looked up: 0 for a plain cache, 1 for an
        engine, which must compute at least one token of a full hit.

    Raises
    ------
    ValueError
        ``page_size < 1`` or ``held_back < 0``.

    Notes
    -----
    Cost: `add` is O(blocks of the prompt) on the host; memory is one entry per distinct block place.
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
        """Count a request, then remember its prompt for the later ones.

        Parameters
        ----------
        request : Request
            The next request of the workload, in order; all of one workload have the same ``block_tokens``.

        Returns
        -------
        int
            Tokens of its prompt that earlier prompts began with, in whole pages.
        """
        shared = self._remember(request)
        usable = min(shared, request.prompt_length - self._held_back)
        hit = max(usable, 0) // self._page_size * self._page_size
        self.hit_tokens += hit
        self.prompt_tokens += request.prompt_length
        return hit

    def _remember(self, request: Request) -> int:
        """Walk the prompt's blocks, adding what is new; return the tokens that were there before."""
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
