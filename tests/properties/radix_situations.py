"""Situations that the radix machines must reach, or their silence about them means nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from radix_caller import Caller, RadixConfig
from radix_model import InsertPlan, Match, Path, RadixModel
from radix_victims import EvictPlan
from radix_view import SeenPage

ALWAYS = frozenset(
    {
        "a held path is split",
        "a hashed node is split",
        "a match ends inside a node",
        "an insert finds the whole key cached",
        "an insert passes the matched prefix back",
        "a bad insert is refused",
        "equal tokens are cached in another space only",
        "everything is locked and an eviction is asked for",
        "an eviction takes a parent after its last child",
        "an eviction takes more than was asked for",
        "a callback raises",
        "a reset with holds outstanding",
        "a stale node is used",
        "a node of another cache is used",
        "a hold is released twice",
        "a hold is released at an ancestor",
    }
)
PAGED = frozenset({"an unaligned tail stays the caller's"})
POOLED = frozenset(
    {
        "an insert brings duplicates",
        "an eviction runs inside a request",
        "memory runs out inside a request",
        "the pool refuses an eviction",
        "the pool refuses a reset",
    }
)
WINDOWED = frozenset(
    {
        "a match ends before a dead window",
        "a dead window leaves no match",
        "an unlocked tombstone is revived",
        "an insert is refused whole",
        "new pages are born dead",
        "a window is tombstoned",
        "a locked node is tombstoned",
        "phase 2 removes a leaf",
        "a tombstone goes with its last child",
        "a hold is refused on a dead window",
        "a hold splits at the edge of its window",
        "two holds share an edge",
        "a hold's window covers the whole path",
        "a wrong token is refused",
        "a dead page gets its own slots back",
        "a held tombstone stays dead",
    }
)
MOVING = frozenset(
    {
        "a tombstone is revived under a hold",
        "the pool refuses a revival under a hold",
        "halves that were not returned are refused",
    }
)


def expected_situations(config: RadixConfig) -> frozenset[str]:
    """Return what a long run of a configuration must have met."""
    pooled, paged = config.pool != "none", config.page_size > 1
    windowed = config.window is not None
    moving = windowed and config.pool == "swa"
    groups = (
        (True, ALWAYS),
        (paged, PAGED),
        (pooled, POOLED),
        (windowed, WINDOWED),
        (windowed and pooled, {"the pool refuses displaced slots"}),
        (windowed and (config.window or 0) > config.page_size, {"an edge node is split"}),
        (moving, MOVING),
    )
    return frozenset().union(*(names for applies, names in groups if applies))


def met_by_match(model: RadixModel, ends: Collection[Path], key: Path, expected: Match) -> dict[str, object]:
    """Say what a match met; ``ends`` are the nodes' ends before it."""
    dead_window = expected.stored > len(expected.slots)
    first = key.upto(model.page_size)
    twins = any(page.tokens == first.tokens and page.space != first.space for page in model.pages)
    return {
        "a match ends before a dead window": dead_window and expected.slots,
        "a dead window leaves no match": dead_window and not expected.slots,
        "a match ends inside a node": expected.slots and expected.path not in ends,
        "equal tokens are cached in another space only": twins
        and not expected.stored
        and model.whole(key).tokens,
    }


def met_by_insert(
    model: RadixModel, caller: Caller, key: Path, slots: Sequence[int], plan: InsertPlan
) -> dict[str, object]:
    """Say what an insert meets that is about to be committed to the model."""
    whole = len(plan.path.tokens)
    stored = model.stored(key)
    after = [end for end in stored if not (model.pages[end].alive or end in plan.stored or end in plan.moved)]
    return {
        "an insert finds the whole key cached": whole and plan.prefix_len == whole,
        "an insert brings duplicates": any(slot in caller.hands for slot in slots[: plan.prefix_len]),
        "an unaligned tail stays the caller's": len(key.tokens) > whole,
        "an insert is refused whole": plan.refused,
        "a tombstone is revived under a hold": plan.moved,
        "an unlocked tombstone is revived": any(len(end.tokens) <= plan.prefix_len for end in plan.stored),
        "new pages are born dead": any(not page.alive for page in plan.stored.values()),
        "a held tombstone stays dead": not plan.refused and any(model.locks(end) for end in after),
    }


def met_by_evict(model: RadixModel, plan: EvictPlan, tokens: int) -> dict[str, object]:
    """Say what an eviction meets that is about to be committed to the model."""
    removed = set(plan.removed)
    return {
        "an eviction takes a parent after its last child": any(
            end != other and end.covers(other) for end in removed for other in removed
        ),
        "an eviction takes more than was asked for": plan.full_evicted > max(tokens, 0) > 0,
        "a window is tombstoned": plan.tombstoned,
        "a locked node is tombstoned": any(model.locks(end) for end in plan.tombstoned),
        "a tombstone goes with its last child": plan.cascaded,
        "phase 2 removes a leaf": plan.removed and tokens <= 0,
    }


def met_by_split(
    model: RadixModel, before: Collection[Path], path: Path, seen: Mapping[Path, SeenPage]
) -> dict[str, object]:
    """Say what a new node's end met; ``before`` are the ends of the nodes that were there."""
    if not any(path != end and path.covers(end) for end in before):
        return {}
    node = seen[path].node
    edges = [hold.path.upto(hold.edge + model.page_size) for hold in model.holds.values() if hold.edge]
    return {
        "a held path is split": node.lock_ref,
        "a hashed node is split": node.hash_values is not None,
        "an edge node is split": any(seen[edge].node is node for edge in edges),
    }
