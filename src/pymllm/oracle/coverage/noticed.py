"""How the less obvious situations are noticed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from pymllm.oracle.models.prefix_model import Found, InsertPlan, Page, Path, StateEnds
from pymllm.oracle.models.prefix_victims import Taken
from pymllm.oracle.prefix_books import PrefixBooks


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
