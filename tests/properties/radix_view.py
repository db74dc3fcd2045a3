"""What a radix tree looks like from outside, page by page, read from the documented node fields only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radix_model import Path, Space, Token


@dataclass(frozen=True)
class SeenPage:
    """One page of one node."""

    slots: tuple[int, ...]
    alive: bool
    access: float
    hits: int
    locks: int
    swa_locks: int
    node: Any
    ends_node: bool


def observe(cache: Any) -> dict[Path, SeenPage]:
    """Walk the tree from the root and return every page under its path."""
    seen: dict[Path, SeenPage] = {}
    pending = [(child, None) for child in cache.root_node.children.values()]
    while pending:
        node, above = pending.pop()
        end = path_below(node, above)
        for path, page in _pages(cache.page_size, node, end):
            assert path not in seen, f"R9: two nodes spell {path}"
            seen[path] = page
        pending += [(child, end) for child in node.children.values()]
    return seen


def path_below(node: Any, above: Path | None) -> Path:
    """Return the path at the end of a node whose parent ends at ``above``."""
    tokens = tuple(_plain(token) for token in node.key)
    assert tokens, f"R9: node {node.id} is empty"
    space = Space(node.key.extra_key, len(tokens[0]) if isinstance(tokens[0], tuple) else 1)
    if above is None:
        return Path(space, tokens)
    assert above.space == space, f"K1: node {node.id} of {space} hangs below {above.space}"
    return Path(space, above.tokens + tokens)


def path_of(cache: Any, node: Any) -> Path | None:
    """Spell a node by climbing to the root; ``None`` for the root itself."""
    chain = []
    while node is not cache.root_node:
        chain.append(node)
        node = node.parent
    path = None
    for node in reversed(chain):
        path = path_below(node, path)
    return path


def _plain(token: Any) -> Token:
    return tuple(int(element) for element in token) if isinstance(token, tuple) else int(token)


def _pages(size: int, node: Any, end: Path) -> list[tuple[Path, SeenPage]]:
    slots = node.value.tolist()
    start = len(end.tokens) - len(slots)
    assert len(slots) == len(node.key), f"R9: node {node.id}: {len(slots)} slots, {len(node.key)} tokens"
    assert len(slots) % size == 0, f"R9: node {node.id} has {len(slots)} slots, page {size}"
    kept = node.value.untyped_storage().nbytes()
    assert kept == len(slots) * 8, f"X5: node {node.id} keeps {kept} bytes alive for {len(slots)} slots"
    return [
        (
            end.upto(start + at + size),
            SeenPage(
                slots=tuple(slots[at : at + size]),
                alive=not node.swa_tombstone,
                access=node.last_access_time,
                hits=node.hit_count,
                locks=node.lock_ref,
                swa_locks=node.swa_lock_ref,
                node=node,
                ends_node=at + size == len(slots),
            ),
        )
        for at in range(0, len(slots), size)
    ]
