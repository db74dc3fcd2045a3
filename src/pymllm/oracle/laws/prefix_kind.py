"""The laws of prefix caches in the judge: their order, expected results, and coverage goals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from typing import Any

from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Free,
    FreeSWA,
    FreeTrack,
    Hash,
    Insert,
    Inspect,
    Lock,
    Malformed,
    Match,
    MoveSWA,
    ReadHalves,
    ReadStates,
    Reset,
    Span,
    TakeEvents,
    Unlock,
    WriteState,
    values_of,
)
from pymllm.history.outcomes import (
    Done,
    Evicted,
    Hashes,
    Inserted,
    Inspected,
    Locked,
    Matched,
    Slots,
    States,
    ToldEvents,
)
from pymllm.oracle.laws.event_goals import met_by_events
from pymllm.oracle.laws.goal import Met
from pymllm.oracle.laws.keys import of_other_values
from pymllm.oracle.laws.law import Asked, KindLaws
from pymllm.oracle.laws.windows import first_of_window
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, STRUCK, Seen
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Hold, Path, PrefixModel, Space
from pymllm.oracle.models.prefix_seen import SeenEvict, SeenInsert, SeenMatch, SeenNode, SeenReset
from pymllm.oracle.models.shown_nodes import SeenLook
from pymllm.oracle.models.slot_ownership import Owner
from pymllm.oracle.models.slots import SeenSlots

# -- matches and holds -------------------------------------------------------------------------------------


def _met_by_match(model: CacheModel, operation: Match, seen: SeenMatch) -> Met:
    cache, found, key, size = model.cache, seen.found, seen.key, model.page_size
    is_longer = found.stored > len(found.slots)
    met: dict[str, object] = {
        "a match ends inside a node": model.nodes.cut(found.path) is False,
        "equal tokens are cached in another space only": seen.elsewhere,
        "a match goes by a page that has two siblings": _is_among_three(cache, cache.page_ends(found.path)),
        "a match finds token 0 behind others": _is_zero_behind(found.path),
        "a key of an empty namespace is matched": key.space.extra_key in ("", 0),
        "a key is found under its several values": found.slots and isinstance(key.space.extra_key, tuple),
    }
    if seen.elsewhere:
        met |= _met_by_likeness(key.space, seen.elsewhere)
    if size > 1 and len(key.tokens) > found.stored:
        # A cached page begins like the key's next one and ends otherwise.
        begun, end = key.upto(found.stored + 1), found.stored + size
        parts = (path for path in cache.pages if len(path.tokens) == end and begun.covers(path))
        met["a key leaves a cached page in its middle"] = any(True for _ in parts)
    if cache.window is not None:
        alive = [cache.pages[path].alive for path in cache.page_ends(found.path)]
        tail = sum(1 for _ in takewhile(bool, reversed(alive)))
        is_past = tail < len(alive)
        met["a match ends before a dead window"] = is_longer and found.slots
        met["a dead window leaves no match"] = is_longer and not found.slots
        met["a match passes a tombstone"] = is_past
        is_just_enough = is_past and (tail - 1) * size < cache.window
        met["a match has its window alive and no page more"] = is_just_enough
    if cache.states is not None:
        met["a match ends at an earlier state"] = is_longer and found.slots
        met["KV is found without a state"] = is_longer and not found.slots
        met["a match passes a state"] = any(it in cache.states for it in cache.page_ends(found.path)[:-1])
    return met


def _met_by_likeness(space: Space, others: Sequence[Space]) -> Met:
    """Return the goals reached where a key's first page is cached only under similar namespace values."""
    asked, met = values_of(space.extra_key), set()
    for other in of_other_values(space, others):
        cached = values_of(other.extra_key)
        unequal = [(one, told) for one, told in zip(asked, cached, strict=True) if one != told]
        if len(unequal) == 1:
            met.add("equal tokens are cached under one other value only")
            if {*unequal[0]} == {None, ""}:
                met.add("equal tokens are cached under an empty value only, or a missing one")
        elif sorted(asked, key=repr) == sorted(cached, key=repr):
            met.add("equal tokens are cached under exchanged values only")
        elif _joined(asked) == _joined(cached):
            met.add("equal tokens are cached under values only that spell the same")
    return dict.fromkeys(met, True)


def _joined(values: Iterable[str | int | None]) -> str:
    return "".join([str(value) for value in values if value is not None])


def _is_among_three(cache: PrefixModel, ends: Collection[Path]) -> bool:
    """Tell whether the parent of any of these cached pages, perhaps the root, has three children or more."""
    children, pages = cache.children, cache.pages
    return max([children[pages[end].above] for end in ends], default=0) > 2


def _is_zero_behind(path: Path) -> bool:
    """Tell whether token 0, or a tuple that begins with 0, occurs in a path after the first token."""
    return any(token == 0 or (isinstance(token, tuple) and token[0] == 0) for token in path.tokens[1:])


def _met_by_hash(model: CacheModel, operation: Hash, seen: SeenNode) -> Met:
    path = seen.handle.path
    is_seeded = path.space.extra_key is not None and len(path.tokens) >= model.page_size
    return {"pages of a namespace are hashed": is_seeded}


def _met_by_stale(model: CacheModel, operation: Hash | Lock | Unlock, seen: SeenNode) -> Met:
    is_stale = seen.wrong[0].errors == ("StaleNodeError",)
    is_back = is_stale and seen.handle.path in model.cache.pages
    return {"a stale node is used whose key is cached again": is_back}


def _met_by_lock(model: CacheModel, operation: Lock, seen: SeenNode) -> Met:
    cache, path, hold, size = model.cache, seen.handle.path, seen.hold, model.page_size
    assert hold is not None
    met: dict[str, object] = {}
    if cache.states is not None:
        met["a hold is taken where there is no state"] = path.tokens and path not in cache.states
    if cache.window is None:
        return met
    others = [taken for taken in cache.holds.values() if hold.edge and taken.edge]
    first = first_of_window(model, hold)
    met |= {
        "two holds share an edge": any(first_of_window(model, taken) == first for taken in others),
        "two held windows overlap in part": any(_overlap_in_part(size, hold, taken) for taken in others),
        "a hold splits at the edge of its window": model.nodes.cut(path.upto(hold.edge)) is False,
        "a hold's window covers the whole path": path.tokens and not hold.edge,
        "a held window is the last page alone": hold.edge and hold.edge + size == len(path.tokens),
        "a held window begins inside a page": hold.edge and cache.window % size,
    }
    return met


def _overlap_in_part(size: int, one: Hold, other: Hold) -> bool:
    """Tell whether two held windows share pages, although their paths differ."""
    start = max(one.edge, other.edge) + size
    first = one.path.upto(start)
    return one.path != other.path and len(first.tokens) == start and first.covers(other.path)


def _met_by_unlock(model: CacheModel, operation: Unlock, seen: SeenNode) -> Met:
    return {
        "one of two holds at a node is released": seen.here > 1,
        "a hold is released after its path was split": seen.number in model.nodes.split_below,
        "a hold is released after a tombstone on its path was revived": seen.number in model.revived,
    }


def _met_by_refused_unlock(model: CacheModel, operation: Unlock, seen: SeenNode) -> Met:
    holds, path = model.cache.holds, seen.handle.path
    met = {**_met_by_stale(model, operation, seen)}
    if seen.wrong[0].law == "R6":
        met["a hold is released twice"] = operation.at is None and operation.lock not in holds
        met["a hold is released at an ancestor"] = any(path.covers(hold.path) for hold in holds.values())
    return met


# -- inserts -----------------------------------------------------------------------------------------------


def _met_by_insert(model: CacheModel, operation: Insert, seen: SeenInsert) -> Met:
    cache, plan, slots, key = model.cache, seen.plan, seen.slots, seen.key
    whole, parting = len(plan.path.tokens), plan.path.upto(plan.prefix_len)
    cached = cache.slots(parting)
    own = sum(slot == given for slot, given in zip(cached, slots, strict=False))
    is_leaf = plan.new and plan.prefix_len and not plan.refused and parting not in cache.children
    met: dict[str, object] = {
        "an empty key is inserted": not key.tokens,
        "a key shorter than a page is inserted": key.tokens and not whole,
        "an insert finds the whole key cached": whole and plan.prefix_len == whole,
        "an insert passes the matched prefix back": own and whole > own,
        "an insert brings duplicates": model.has_pool and own < len(cached),
        "an unaligned tail stays the caller's": len(key.tokens) > whole,
        "a leaf gains a child": is_leaf,
        "an insert evicts": plan.evicted,
        "an insert evicts and keeps what it has found": plan.evicted and plan.prefix_len,
        "a held leaf gains a child": is_leaf and cache.locks(parting),
        "an insert leaves a node in its middle": not plan.refused
        and plan.prefix_len
        and model.nodes.cut(parting) is False,
    }
    if cache.window is not None:
        met |= _met_by_windowed_insert(model, seen)
    if cache.states is not None and seen.state is not None:
        met |= _met_by_state(model, seen)
    return met


def _met_by_full_cache(model: CacheModel, operation: Insert, seen: SeenInsert) -> Met:
    return {"an insert finds no room": True}


def _met_by_windowed_insert(model: CacheModel, seen: SeenInsert) -> dict[str, object]:
    cache, plan, slots, size = model.cache, seen.plan, seen.slots, model.page_size
    pages, dead = cache.pages, plan.dead
    stay = [end for end in dead if end not in plan.replaced and end not in plan.moved]
    same = [end for end in stay if pages[end].slots == (*slots[len(end.tokens) - size : len(end.tokens)],)]
    if plan.refused:
        given = slots[seen.bounds[0] : plan.prefix_len] if model.has_pool else ()
        spoilt = [it for it in dead if it not in same and len(it.tokens) - size >= max(seen.bounds)]
        return {
            "an insert is refused whole": True,
            "an insert is refused whole and what was cached is the caller's": any(
                model.ownership.owner(slot) is Owner.CALLER for slot in given
            ),
            "an insert is refused whole that would have revived a tombstone": any(
                not cache.locks(end) for end in spoilt
            ),
        }
    protected, evicted = seen.bounds
    starts = [len(end.tokens) - size for end in dead]
    return {
        "a tombstone is revived under a hold": plan.moved,
        "an unlocked tombstone is revived": plan.replaced,
        "new pages are born dead": any(not page.alive for page in plan.new.values()),
        "a held tombstone stays dead": any(cache.locks(end) for end in stay),
        "a dead page gets its own slots back": same,
        "an insert adopts two ranges": len(plan.adopted) > 1,
        "a stretch of tombstones is revived in part": 0 < len(plan.replaced) + len(plan.moved) < len(dead),
        "a tombstone before prev_prefix_len stays dead": any(start < protected for start in starts),
        "a tombstone before swa_evicted_seqlen stays dead": any(start < evicted for start in starts),
    }


def _met_by_state(model: CacheModel, seen: SeenInsert) -> dict[str, object]:
    ends, path, is_new = model.ends, seen.key, not seen.finds_state
    above = [end for end in model.cache.page_ends(path)[:-1] if end in ends]
    holds = [hold for hold in model.cache.holds.values() if hold.path == path]
    return {
        "a state arrives at its place": is_new,
        "an insert finds a state there already": not is_new,
        "a state arrives under a hold": is_new and holds,
        "a state arrives under several holds": is_new and len(holds) > 1,
        "a state comes back to where one was evicted": is_new and path in ends.evicted,
        "a state above does not count": is_new and above,
        "several states lie on one path": is_new and len(above) > 1,
    }


def _met_by_struck_insert(model: CacheModel, operation: Insert, seen: SeenInsert) -> Met:
    is_free = model.fault is not None and model.fault.call == "free"
    return {f"the pool refuses {'displaced slots' if is_free else 'a revival under a hold'}": True}


# -- evictions ---------------------------------------------------------------------------------------------


def _met_by_evict(model: CacheModel, operation: Evict, seen: SeenEvict) -> Met:
    cache, taken, tokens, secondary = model.cache, seen.taken, seen.tokens, seen.secondary
    assert taken is not None
    sizes, removed = cache.sizes(), {*taken.removed}
    above = [cache.pages[path].above for path in removed]
    is_locked = sizes["protected_size"] > 0
    met: dict[str, object] = {
        "everything is locked and an eviction is asked for": tokens > 0
        and is_locked
        and not sizes["evictable_size"],
        "an eviction takes a parent after its last child": not removed.isdisjoint(above),
        "an eviction takes more than was asked for": taken.full > max(tokens, 0) > 0,
        "an eviction spares what is held": removed and is_locked,
        "an eviction asks for nothing": tokens <= 0 and secondary <= 0,
        "an eviction empties the cache": removed and len(removed) == len(cache.pages),
        "phase 2 removes a leaf": removed and tokens <= 0,
    }
    if cache.rank is not None and removed:
        last = max(cache.pages[path].access for path in removed)
        spared = (page for path, page in cache.pages.items() if path not in removed and not page.locks)
        met["a policy spares what is older"] = any(page.access < last for page in spared)
    if removed:
        ends = [path for path in taken.removed if model.nodes.cut(path)]
        met["an eviction takes one of three siblings"] = _is_among_three(cache, removed)
        met["an eviction climbs through three nodes"] = _is_three_high(ends)
        left = [path for path in ends if path in taken.cascaded]
        met["a cascade goes through three levels"] = _is_three_high(left)
        if is_locked:
            met |= _met_by_holds(model, removed)
        if tokens > 0 and secondary > 0:
            alone = taken.tombstoned or taken.states.difference(removed)
            gone = taken.swa if cache.window is not None else len(taken.states)
            met["phase 1 frees enough for phase 2"] = not alone and gone >= secondary
            met["phase 2 takes what phase 1 has left"] = alone
    if cache.window is not None:
        met |= _met_by_windows(model, seen)
    if cache.states is not None:
        met |= _met_by_states(model, seen)
    fault, callbacks = model.fault, seen.calls.callbacks
    if fault is not None and "callbacks" in model.claims and len(callbacks) >= fault.nth:
        is_raised = fault.call == "callback"
        met["a callback raises"] = is_raised
        met["a callback raises and others follow"] = is_raised and len(callbacks) > fault.nth
        met["a callback re-enters"] = fault.call == "reenter"
    return met


def _is_three_high(ends: Sequence[Path]) -> bool:
    """Tell whether any of these paths has two others among its prefixes; no path between two is missing."""
    return len(ends) > 2 and any(sum(end.covers(path) for end in ends) > 2 for path in ends)


def _met_by_holds(model: CacheModel, removed: Collection[Path]) -> dict[str, object]:
    """Return the goals reached where holds kept pages from an eviction that took others (R6)."""
    pages = model.cache.pages
    last = max(pages[path].access for path in removed)
    above = (pages.get(pages[path].above) for path in removed)
    return {
        "a held page is older than what is evicted": any(
            page.locks and page.access < last for page in pages.values()
        ),
        "a leaf goes and its held parent stays": any(page is not None and page.locks for page in above),
    }


def _met_by_windows(model: CacheModel, seen: SeenEvict) -> dict[str, object]:
    cache, taken, sizes = model.cache, seen.taken, model.cache.sizes()
    assert taken is not None
    tombstoned, pages = taken.tombstoned, cache.pages
    is_held = not sizes["swa_evictable_size"] and sizes["swa_protected_size"]
    stamps = {pages[path].access for path in tombstoned}
    gone = tombstoned.union(taken.removed)
    together = (
        path
        for path, page in pages.items()
        if page.access in stamps and page.alive and path not in gone
        if page.above in tombstoned and pages[page.above].access == page.access
    )
    return {
        "a window is tombstoned": tombstoned,
        "a locked page is tombstoned": any(cache.locks(path) for path in tombstoned),
        "a tombstone goes with its last child": any(not pages[path].alive for path in taken.removed),
        "every window is held and an eviction of windows is asked for": seen.secondary > 0 and is_held,
        "a window goes before that of a page used together with it": any(True for _ in together),
    }


def _met_by_states(model: CacheModel, seen: SeenEvict) -> dict[str, object]:
    cache, taken, sizes = model.cache, seen.taken, model.cache.sizes()
    assert taken is not None
    alone, is_asked = taken.states.intersection(cache.pages).difference(taken.removed), seen.secondary > 0
    free, locked = sizes["mamba_evictable_size"], sizes["mamba_protected_size"]
    return {
        "a node keeps its KV without its state": alone,
        "a state goes while its KV is held": any(cache.locks(path) for path in alone),
        "a stateless parent goes with its last child": any(model.nodes.cut(it) for it in taken.cascaded),
        "every state is locked and an eviction is asked for": is_asked and model.ends.slots and not free,
        "an eviction spares a locked state": taken.states and locked,
        "a state is left for an older one": is_asked and taken.states and free > len(taken.states),
    }


def _met_by_struck_evict(model: CacheModel, operation: Evict, seen: SeenEvict) -> Met:
    is_free = model.fault is not None and model.fault.call == "free"
    if model.tracks is not None:
        name = "the pool refuses an eviction" if is_free else "the state pool refuses an eviction"
        return {name: True, "the state pool refuses an eviction half-way": not is_free and seen.states.pages}
    is_half_way = is_free and model.has_halves and seen.tombstoned
    return {
        "the pool refuses an eviction": True,
        "the pool refuses the windows of an eviction": not is_free,
        "the pool takes the windows of an eviction and refuses the rest": is_half_way,
    }


# -- the rest ----------------------------------------------------------------------------------------------


def _met_by_free(before: CacheModel, operation: Free, seen: SeenSlots) -> Met:
    """Return the goals reached where freed slots followed, in one allocation, slots that the cache owns."""
    drafts = [span for span in operation.slots if span.step and span.stop - span.start > before.page_size]
    ahead = before.ownership.resolve(Span(span.step, 0, span.start) for span in drafts)
    return {
        "rejected drafts of several pages go back": Owner.CACHE in before.ownership.owners(ahead).values()
    }


def _met_by_reset(model: CacheModel, operation: Reset, seen: SeenReset) -> Met:
    cache = model.cache
    return {
        "a reset with holds outstanding": cache.holds,
        "a reset with tombstones": any(not page.alive for page in cache.pages.values()),
        "a reset with states held": cache.sizes().get("mamba_protected_size", 0),
        "the pool refuses a reset": seen.struck == "free",
        "the state pool refuses a reset": seen.struck == "free_state",
    }


def _met_by_inspect(model: CacheModel, operation: Inspect, seen: SeenLook) -> Met:
    cache, nodes = model.cache, model.nodes
    splits, met = nodes.find_splits(seen), dict[str, object]()
    if splits:
        windows = [hold for hold in cache.holds.values() if hold.edge]
        starts = [(it, seen.starts[cache.pages[first_of_window(model, it)].birth][0]) for it in windows]
        met |= {
            "a held path is split": any(cache.locks(path) for path, _ in splits),
            "a hashed node is split": any(upper.page_hashes is not None for _, upper in splits),
            "an edge node is split": any(
                start is upper and hold.path != path for hold, start in starts for path, upper in splits
            ),
        }
    if cache.states is not None and cache.holds:
        held = {hold.path for hold in cache.holds.values()} & cache.states.slots.keys()
        lower = [seen.ends[birth] for path in held if (birth := cache.pages[path].birth) in nodes.ends]
        uppers = [path.upto(len(path.tokens) - len(node.tokens)) for path, node in lower]
        met["a split of a held node leaves its state"] = any(
            path.tokens and cache.pages[path].birth not in nodes.ends for path in uppers
        )
    return met


def _met_by_full_tracks(model: CacheModel, operation: AllocTrack, seen: Seen) -> Met:
    return {
        "track slots run out": True,
        "track slots run out between match and insert": model.has_matched,
    }


def _met_by_malformed(model: CacheModel, operation: Malformed, seen: Seen) -> Met:
    return {"a node of another cache is used": operation.wrong == "a node of another cache"}


def _unless_armed(answer: type, law: str) -> Callable[[Any, Any, Any], str]:
    """Return a function that finds the law of a wrong result: X2 if a call was made to fail, else ``law``."""

    def tell(before: CacheModel, operation: object, seen: Seen) -> str:
        return law if before.fault is None or isinstance(seen.result, answer) else "X2"

    return tell


def _law_of_size(law: str, name: str) -> str:
    """Return the law that a wrong size breaks, given the law of the operation before it."""
    if name.endswith("available_size"):
        return "A7 A2" if name.startswith("swa") else "A2"
    if name == "available_track_slots":
        return "M7"
    if name.startswith("mamba"):
        return "M4" if law == "R6" else "M6"
    if name.startswith("swa"):
        return "S6"
    return "R6" if law == "R6" else "R7"


_SIZES = (
    *("evictable_size", "protected_size", "total_size", "swa_evictable_size", "swa_protected_size"),
    *("mamba_evictable_size", "mamba_protected_size", "available_track_slots"),
    *("available_size", "full_available_size", "swa_available_size"),
)

_OF_SIZES = ("R7", "R6", "A2", "A7", "M7")
"""Laws of operations after which a wrong size breaks the law that `_law_of_size` names."""

PREFIX = KindLaws(
    order="X4 M7 A1 A3 A2 S2 A7 R4 H3 H2 S5 E1 X1",
    orders={
        # How long a match is comes before what its slots hold, and that before which slots they are.
        Match: "R1 K2 K1 S1 M2 R2 E1 R2 E1 M1 M2 R2",
        # What is told comes before what is done, and the calls that may fail come last.
        Insert: "K2 K1 R3 R1 S7 R4 R3 M7 M1 R4 S7 R4 R5 X2 X1",
        # First what is no page of the cache; what is held, or leaves no tree; how much was told, or too
        # little; which ones went; and last whom and in which order it called.
        Evict: "R4 A2 A7 S2 R6 S6 S5 R9 S4 M4 M7 R5 S3 M6 M5 R8 R11 R5 S3 M5 X2 R5 X2 X3 X6 X2",
        Reset: "X7 X2 X7 M7 X7",
        # Halves that a hold needs are more than halves of the cache.
        ReadHalves: "S5 S2 A7",
        # First whether the pages are there, then what is shown of them, then ends of nodes and states.
        Inspect: "X5 K2 K1 R3 R9 R6 R10 S2 S6 R8 R10 X3 R2 S5 H2 M3 M1 M4 M1 M8",
    },
    asked={
        Match: Asked(Matched, "R2", "R7"),
        Hash: Asked(Hashes, "H2", "R7"),
        Insert: Asked(Inserted, _unless_armed(Inserted, "R3"), "R7"),
        Evict: Asked(Evicted, _unless_armed(Evicted, "R5"), "R7", is_test=False),
        Lock: Asked(Locked, "R6", is_test=False),
        Unlock: Asked(Done, "R6"),
        Reset: Asked(None, "X7"),
        Inspect: Asked(Inspected, "R9", "R7", is_test=False),
        Alloc: Asked(Slots, "A3", "A2"),
        Free: Asked(Done, "A2"),
        FreeSWA: Asked(Done, "A7 A2"),
        MoveSWA: Asked(Done, "A7 A2"),
        ReadHalves: Asked(Slots, "A7 A2", is_test=False),
        AllocTrack: Asked(Slots, "M7"),
        FreeTrack: Asked(Done, "M7"),
        WriteState: Asked(Done, "E1", "M7", is_test=False),
        ReadStates: Asked(States, "E1", "M7", is_test=False),
        TakeEvents: Asked(ToldEvents, "X10", "R7", is_test=False),
    },
    sizes_law="R7",
    is_wrong_from_start=False,
    sizes={(law, name): _law_of_size(law, name) for law in _OF_SIZES for name in _SIZES},
    met={
        (Match, DONE): _met_by_match,
        (Hash, DONE): _met_by_hash,
        (Hash, REFUSED): _met_by_stale,
        (Lock, DONE): _met_by_lock,
        (Lock, REFUSED): _met_by_stale,
        (Unlock, DONE): _met_by_unlock,
        (Unlock, REFUSED): _met_by_refused_unlock,
        (Insert, DONE): _met_by_insert,
        (Insert, STRUCK): _met_by_struck_insert,
        (Insert, NO_ROOM): _met_by_full_cache,
        (Evict, DONE): _met_by_evict,
        (Evict, STRUCK): _met_by_struck_evict,
        (Free, DONE): _met_by_free,
        (Reset, DONE): _met_by_reset,
        (Inspect, DONE): _met_by_inspect,
        (Alloc, NO_ROOM): lambda model, operation, seen: {"memory runs out": True},
        (AllocTrack, NO_ROOM): _met_by_full_tracks,
        (Malformed, REFUSED): _met_by_malformed,
        (TakeEvents, DONE): met_by_events,
    },
)
