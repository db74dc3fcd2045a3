"""A forest of prompt prefixes: each node is a block after particular blocks."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from pymllm.workloads.request import Request

_NONE = -1


@dataclass(frozen=True, slots=True)
class Path:
    """The nodes of one prompt in the forest.

    ``shared`` were there before, in order of depth; ``added`` new ones are numbered from ``first`` on.
    ``hit_tokens`` are those that earlier prompts began with, to the token.
    """

    shared: list[int]
    hit_tokens: int
    first: int
    added: int


class PrefixForest:
    """A forest whose nodes are numbered in order of creation; equal prefixes of blocks share their nodes.

    Memory is 8 bytes a node where a block id stands behind one other only, as in traces whose ids are hashes
    of whole prefixes, and a dictionary's entry for each place beyond.
    """

    def __init__(self) -> None:
        self._node_of = array("i")  # the first node of a block
        self._parents = array("i")
        self._others: dict[tuple[int, int], int] = {}
        self._short: dict[int, int] = {}  # nodes of which not all tokens were seen
        self._roots: dict[str | int | None, int] = {}

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, request: Request) -> Path:
        """Add a prompt, and return its path: the nodes that existed, and the number of new ones."""
        ids = request.block_ids
        parent = self._roots.setdefault(request.namespace, -2 - len(self._roots))
        shared = self._follow(ids, parent)
        hit = self._hit_tokens(shared, request)
        added, first = len(ids) - len(shared), len(self._parents)
        if added:
            self._grow(ids[len(shared) :], shared[-1] if shared else parent)
            tail = request.prompt_length - (len(ids) - 1) * request.block_tokens
            if tail < request.block_tokens:
                self._short[first + added - 1] = tail
        return Path(shared, hit, first, added)

    def _follow(self, ids: tuple[int, ...], parent: int) -> list[int]:
        node_of, parents, others = self._node_of, self._parents, self._others
        known = len(node_of)
        shared = []
        for block in ids:
            node = node_of[block] if block < known else _NONE
            if node < 0:
                break
            if parents[node] != parent:
                node = others.get((parent, block), _NONE)
                if node < 0:
                    break
            shared.append(node)
            parent = node
        return shared

    def _hit_tokens(self, shared: list[int], request: Request) -> int:
        """Return the number of shared tokens, and record newly seen tokens of a partial node."""
        size, length = request.block_tokens, request.prompt_length
        hit = min(len(shared) * size, length)
        short = self._short
        if short.keys().isdisjoint(shared):
            return hit
        for place, node in enumerate(shared):
            seen = short.get(node)
            if seen is not None:
                tokens = min(size, length - place * size)
                hit = min(hit, place * size + min(seen, tokens))
                if tokens == size:
                    del short[node]
                elif tokens > seen:
                    short[node] = tokens
        return hit

    def _grow(self, ids: tuple[int, ...], parent: int) -> None:
        node_of, parents, first = self._node_of, self._parents, len(self._parents)
        parents.append(parent)
        parents.extend(range(first, first + len(ids) - 1))
        if ids[0] == len(node_of) and ids[-1] == ids[0] + len(ids) - 1:
            # Numbered by first appearance, so all of them are new.
            node_of.extend(range(first, first + len(ids)))
            return
        for node, block in enumerate(ids, first):
            if block >= len(node_of):
                node_of.extend(array("i", [_NONE]) * (block + 1 - len(node_of)))
            if node_of[block] < 0:
                node_of[block] = node
            else:
                self._others[parents[node], block] = node
