"""How the less obvious situations are noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.block_model import BlockModel, BlockSlotModel, Registration
from pymllm.oracle.models.prefix_model import Found, InsertPlan, Page, Path, StateEnds
from pymllm.oracle.models.prefix_victims import Taken
from pymllm.oracle.prefix_books import PrefixBooks


def note_victims(evidence: Evidence, blocks: BlockModel, victims: Sequence[int]) -> None:
    """Note what is worth reaching in evictions that are about to be followed."""
    evictable, stamps, leaves = blocks.evictable(), blocks.stamps, blocks.leaves()
    older = [block for block in evictable if victims[0] in leaves and stamps[block] < stamps[victims[0]]]
    parents = [blocks.parent_of.get(block) for block in victims]
    above = [blocks.parent_of.get(parent) for parent in parents if parent is not None and parent in victims]
    met = {
        "a cached block is evicted": True,
        "an older parent waits for its child": any(blocks.children(block) for block in older),
        "a chain goes from its end": any(parent in victims for parent in parents),
        "a chain of three goes from its end": any(block in victims for block in above),
        "an allocation takes free blocks and cached ones": blocks.free,
        "equally old blocks wait for eviction": len({stamps[leaf] for leaf in leaves}) < len(leaves),
        "a cached block is spared for its held child": set(blocks.cached) - evictable,
    }
    evidence.meet_each(met)


def note_release(evidence: Evidence, blocks: BlockModel, released: Sequence[int]) -> None:
    """Note what is worth reaching in a release that is about to be followed."""
    counts = Counter(released)
    idle = [block for block, times in counts.items() if blocks.refs[block] == times]
    below = {it for block in idle if block in blocks.hash_of for it in blocks.subtree(block)[1:]}
    met = {
        "a block is released twice in one call": len(released) > len(counts),
        "a shared block stays with its other holder": len(idle) < len(counts),
        "a block without a hash becomes free": any(block not in blocks.hash_of for block in idle),
        "a block goes with its descendants": not blocks.is_lru and below,
        "three generations go at once": not blocks.is_lru
        and any(blocks.parent_of.get(block) in below for block in below),
        "a held descendant is deregistered": not blocks.is_lru and below.difference(idle),
    }
    evidence.meet_each(met)


def note_register(evidence: Evidence, blocks: BlockModel, made: Sequence[Registration]) -> None:
    """Note what is worth reaching in a registration that was followed."""
    here = {entry.block for entry in made}
    parents = [blocks.parent_of[entry.block] for entry in made if entry.is_new]
    reasons = {entry.why_not for entry in made}
    met = {
        "a chain is registered": any(parent in here for parent in parents),
        "a block is registered below one of another call": any(
            parent is not None and parent not in here for parent in parents
        ),
        "a hash is taken": "taken" in reasons,
        "a parent is not registered": "orphan" in reasons,
        "a parent is not registered although its hash is another's": "usurped" in reasons,
        "a registered block is registered again": "known" in reasons,
    }
    evidence.meet_each(met)


def note_alloc_slots(
    evidence: Evidence, slots: BlockSlotModel, blocks: BlockModel, wanted: Sequence[int], missing: int
) -> None:
    """Note what is worth reaching in a batch that is about to be followed, of which so many take a slot."""
    victims = slots.victims(wanted)
    met = {
        "a batch names a block twice": len(wanted) > len({*wanted}),
        "a block keeps its slot": any(block in slots.slot_of for block in wanted),
        "a slot is evicted for want of room": missing,
        "an older slot is spared for its block is in the batch": missing
        and any(block in wanted for block in slots.victims()[:missing]),
    }
    evidence.meet_each(met)
    if missing:
        _note_order(evidence, slots, blocks, victims, missing)


def note_evict_slots(
    evidence: Evidence, slots: BlockSlotModel, blocks: BlockModel, victims: Sequence[int], count: int
) -> None:
    """Note what is worth reaching in an eviction of slots that is about to be followed."""
    evidence.meet("slots are taken by a caller", count)
    if count:
        _note_order(evidence, slots, blocks, victims, count)


def _note_order(
    evidence: Evidence, slots: BlockSlotModel, blocks: BlockModel, victims: Sequence[int], count: int
) -> None:
    stamps, last = blocks.stamps, victims[count - 1]
    spared = [block for block in slots.slot_of if blocks.refs[block] and stamps[block] < stamps[last]]
    left = [stamps[block] for block in victims[count:]]
    evidence.meet("an older slot is spared for its block is held", spared)
    evidence.meet("the older of several slots goes", any(stamp > stamps[last] for stamp in left))
    evidence.meet("the lower of equally old blocks loses its slot", stamps[last] in left)


def note_drop(
    evidence: Evidence, slots: BlockSlotModel, blocks: Sequence[int], hashes: Sequence[int]
) -> None:
    """Note what is worth reaching where states are about to be dropped."""
    others = {value for block, value in slots.named.items() if block not in blocks}
    evidence.meet("a block without a slot is dropped", any(block not in slots.slot_of for block in blocks))
    evidence.meet("a drop names a block twice", len(blocks) > len({*blocks}))
    evidence.meet("a state is dropped with its hash", any(block in slots.named for block in blocks))
    evidence.meet("a hash of another block is dropped with a block", others.intersection(hashes))


def note_match(books: PrefixBooks, key: Path, found: Found, is_in_another_space: bool) -> None:
    """Say what a match met that is about to be committed to the model."""
    dead_window = books.window is not None and found.stored > len(found.slots)
    met = {
        "a match ends before a dead window": dead_window and found.slots,
        "a dead window leaves no match": dead_window and not found.slots,
        "a match ends inside a node": books.nodes.cut(found.path) is False,
        "equal tokens are cached in another space only": is_in_another_space,
    }
    books.evidence.meet_each(met)
    if books.page_size > 1:
        books.evidence.meet(
            "a key leaves a cached page in its middle", _parts_inside(books, key, found.stored)
        )
    if books.window is not None:
        _note_alive(books, found)


def _parts_inside(books: PrefixBooks, key: Path, stored: int) -> bool:
    """Tell whether a cached page begins like the key's next one and ends otherwise."""
    begun, end = key.upto(stored + 1), stored + books.page_size
    if len(begun.tokens) == stored:
        return False
    return any(len(path.tokens) == end and begun.covers(path) for path in books.model.pages)


def _note_alive(books: PrefixBooks, found: Found) -> None:
    """Say which tombstones a match has left behind (S1)."""
    alive = [books.model.pages[end].alive for end in books.model.page_ends(found.path)]
    tail = sum(1 for _ in takewhile(bool, reversed(alive)))
    assert books.window is not None
    books.evidence.meet("a match passes a tombstone", tail < len(alive))
    is_just_enough = tail < len(alive) and (tail - 1) * books.page_size < books.window
    books.evidence.meet("a match has its window alive and no page more", is_just_enough)


def note_insert(
    books: PrefixBooks, plan: InsertPlan, dead: Sequence[Path], protected: int, evicted: int
) -> None:
    """Say what an insert met, tombstones on its path among it, that is about to be committed to the model."""
    if plan.refused:
        return
    model, parting = books.model, plan.path.upto(plan.prefix_len)
    is_new_below = bool(plan.new and plan.prefix_len)
    is_leaf = is_new_below and parting not in model.children
    starts = [len(end.tokens) - books.page_size for end in dead]
    revived = len(plan.replaced) + len(plan.moved)
    met = {
        "a leaf gains a child": is_leaf,
        "a held leaf gains a child": is_leaf and model.locks(parting),
        "an insert leaves a node in its middle": plan.prefix_len and books.nodes.cut(parting) is False,
        "an insert adopts two ranges": len(plan.adopted) > 1,
        "a stretch of tombstones is revived in part": 0 < revived < len(dead),
        "a tombstone before prev_prefix_len stays dead": any(start < protected for start in starts),
        "a tombstone before swa_evicted_seqlen stays dead": any(start < evicted for start in starts),
    }
    books.evidence.meet_each(met)


def note_eviction(books: PrefixBooks, taken: Taken, tokens: int, secondary: int) -> None:
    """Say what an eviction met that is about to be committed to the model, and which choices tested laws."""
    model, removed = books.model, set(taken.removed)
    locked = any(page.locks for page in model.pages.values())
    gone = {id(model.pages[path]) for path in removed}
    stay = [page for page in model.pages.values() if id(page) not in gone]
    evictable = model.sizes()["evictable_size"]
    met = {
        "everything is locked and an eviction is asked for": tokens > 0 and locked and not evictable,
        "an eviction takes a parent after its last child": any(
            model.parent(end) in removed for end in removed
        ),
        "an eviction takes more than was asked for": taken.full > max(tokens, 0) > 0,
        "an eviction spares what is held": removed and locked,
        "an eviction asks for nothing": tokens <= 0 and secondary <= 0,
        "an eviction empties the cache": removed and not stay,
        "a window is tombstoned": taken.tombstoned,
        "a locked page is tombstoned": any(model.locks(path) for path in taken.tombstoned),
        "a tombstone goes with its last child": any(not model.pages[path].alive for path in removed),
        "phase 2 removes a leaf": removed and tokens <= 0,
    }
    books.evidence.meet_each(met)
    if removed:
        _note_levels(books, taken)
        if locked:
            _note_held(books, taken, stay)
    if books.window is not None:
        _note_windows(books, taken, secondary)
    if tokens > 0 and secondary > 0 and removed:
        _note_phases(books, taken, secondary)
    books.count("R6", tokens > 0 and locked)
    books.count("R8", removed and any(not page.locks for page in stay))
    books.count("R9", removed and stay)
    books.count("S2", taken.tombstoned and books.has_halves)
    books.count("S4", met["a tombstone goes with its last child"])
    books.count("S6", taken.tombstoned and any(page.swa_locks for page in stay))


def _note_held(books: PrefixBooks, taken: Taken, stay: Sequence[Page]) -> None:
    """Say what holds have kept from an eviction that took something (R6)."""
    pages, parent = books.model.pages, books.model.parent
    last = max(pages[path].access for path in taken.removed)
    older = any(page.locks and page.access < last for page in stay)
    books.evidence.meet("a held page is older than what is evicted", older)
    above = any((page := pages.get(parent(path))) is not None and page.locks for path in taken.removed)
    books.evidence.meet("a leaf goes and its held parent stays", above)


def _note_levels(books: PrefixBooks, taken: Taken) -> None:
    """Say whether nodes went that stand one above the other, chosen or left over (R5, S4, M5)."""
    ends = [path for path in taken.removed if books.nodes.cut(path)]
    books.evidence.meet("an eviction climbs through three nodes", _is_three_high(ends))
    left = [path for path in ends if path in taken.cascaded]
    books.evidence.meet("a cascade goes through three levels", _is_three_high(left))


def _is_three_high(ends: Sequence[Path]) -> bool:
    """Tell whether one of these, of which nothing above is missing, has two of them above it."""
    return len(ends) > 2 and any(sum(end.covers(path) for end in ends) > 2 for path in ends)


def _note_windows(books: PrefixBooks, taken: Taken, secondary: int) -> None:
    """Say what an eviction met where there are windows (S3)."""
    model, sizes = books.model, books.model.sizes()
    is_held = secondary > 0 and not sizes["swa_evictable_size"] and sizes["swa_protected_size"]
    books.evidence.meet("every window is held and an eviction of windows is asked for", is_held)
    if not taken.tombstoned:
        return
    gone = taken.tombstoned.union(taken.removed)
    together = any(
        page.alive
        and path not in gone
        and (above := model.parent(path)) in taken.tombstoned
        and model.pages[above].access == page.access
        for path, page in model.pages.items()
    )
    books.evidence.meet("a window goes before that of a page used together with it", together)


def _note_phases(books: PrefixBooks, taken: Taken, secondary: int) -> None:
    """Say what phase 1 has left to phase 2, of windows or of states (S3, M5)."""
    alone = taken.tombstoned or taken.states.difference(taken.removed)
    gone = taken.swa if books.window is not None else len(taken.states)
    books.evidence.meet("phase 1 frees enough for phase 2", not alone and gone >= secondary)
    books.evidence.meet("phase 2 takes what phase 1 has left", alone)


def note_state_match(books: PrefixBooks, ends: StateEnds, found: Found) -> None:
    """Say what a match met that is about to be committed to the model."""
    is_longer = found.stored > len(found.slots)
    books.evidence.meet("a match ends at an earlier state", is_longer and found.slots)
    books.evidence.meet("KV is found without a state", is_longer and not found.slots)
    passed = any(end in ends for end in books.model.page_ends(found.path)[:-1])
    books.evidence.meet("a match passes a state", passed)


def note_state_insert(books: PrefixBooks, ends: StateEnds, path: Path) -> None:
    """Say what a state met that is about to be handed over at the end of a cached path."""
    above = [end for end in books.model.page_ends(path)[:-1] if end in ends]
    is_new = path not in ends
    holds = sum(hold.path == path for hold in books.model.holds.values())
    met = {
        "a state arrives at its place": is_new,
        "an insert finds a state there already": not is_new,
        "a state arrives under a hold": is_new and holds,
        "a state arrives under several holds": is_new and holds > 1,
        "a state comes back to where one was evicted": is_new and path in ends.evicted,
        "a state above does not count": is_new and above,
        "several states lie on one path": is_new and len(above) > 1,
    }
    books.evidence.meet_each(met)


def note_state_eviction(books: PrefixBooks, ends: StateEnds, taken: Taken, wanted: int) -> None:
    """Say what an eviction met that is about to be committed to the model."""
    model, alone = books.model, taken.states.difference(taken.removed)
    stay = [path for path in ends.slots if path not in taken.states]
    locked = [path for path in stay if ends.locks(path, model.holds)]
    all_locked = bool(ends.slots) and not model.sizes()["mamba_evictable_size"]
    met = {
        "a node keeps its KV without its state": alone,
        "a state goes while its KV is held": any(model.locks(path) for path in alone),
        "a stateless parent goes with its last child": any(books.nodes.cut(path) for path in taken.cascaded),
        "every state is locked and an eviction is asked for": wanted > 0 and all_locked,
        "an eviction spares a locked state": taken.states and locked,
        "a state is left for an older one": wanted > 0 and taken.states and len(stay) > len(locked),
    }
    books.evidence.meet_each(met)
    ends.evicted = (ends.evicted | alone).difference(taken.removed)
    books.count("M4", met["an eviction spares a locked state"] or met["a state goes while its KV is held"])
    books.count("R8", met["a state is left for an older one"])
