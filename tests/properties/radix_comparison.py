"""Compare what is seen of a radix tree with what its model says, page by page and node by node."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from radix_model import Path, RadixModel
from radix_view import SeenPage


def compare_pages(model: RadixModel, seen: Mapping[Path, SeenPage]) -> None:
    """The cached pages, their slots, flags and counts are the model's."""
    assert set(seen) == set(model.pages), "R3, R5: other pages are cached"
    locks, swa_locks = model.lock_tables()
    for path, found in seen.items():
        page = model.pages[path]
        assert found.slots == page.slots, f"R3, R6: slots of {path}"
        assert found.alive == page.alive, f"S2, S7: alive flag of {path}"
        assert found.hits == page.hits, f"R10: hit_count of {path}"
        assert found.locks == locks[path], f"R6: lock_ref of {path}"
        assert found.swa_locks == swa_locks[path], f"S6: swa_lock_ref of {path}"


def compare_recency(model: RadixModel, seen: Mapping[Path, SeenPage]) -> None:
    """``last_access_time`` orders pages as the model's accesses do, equal ones included (R8)."""
    pairs = sorted({(model.pages[path].access, page.access) for path, page in seen.items()})
    for one, two in pairwise(pairs):
        assert one[0] < two[0], f"R8: one access, two times: {one}, {two}"
        assert one[1] < two[1], f"R8: two accesses out of order: {one}, {two}"


def compare_edges(
    model: RadixModel, seen: Mapping[Path, SeenPage], nodes: Mapping[Path, Any], tokens: Mapping[int, Any]
) -> None:
    """A held window starts at a node, which carries the hold's token; no other node does (S5)."""
    expected: dict[int, Any] = {}
    for number, hold in model.holds.items():
        if hold.edge:
            page = seen[hold.path.upto(hold.edge + model.page_size)]
            assert hold.path.upto(hold.edge) in nodes, "S5: no node starts at the window's edge"
            assert page.node.swa_boundary_id == tokens[number], "S5: the edge node lost its id"
            expected[id(page.node)] = tokens[number]
    for node in nodes.values():
        if id(node) not in expected:
            assert node.swa_boundary_id not in expected.values(), "S5: two nodes carry one boundary id"


def compare_nodes(before: Mapping[Path, Any], after: Mapping[Path, Any], may_split: set[Path]) -> list[Path]:
    """Nodes keep object and end, and new ones end only where the operation may make them (R2, R10, S7)."""
    new = [path for path in after if path not in before]
    assert set(new) <= may_split, f"R2, S7: split at {set(new) - may_split}"
    for path, node in before.items():
        assert after.get(path) is node, f"R10: the node that ended at {path} is another, or gone"
    return new
