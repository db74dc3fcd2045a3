"""What the pools and callbacks of a prefix cache saw, and what an eviction was seen to take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pymllm.errors import ProgramError
from pymllm.history.operations import Token
from pymllm.history.outcomes import Effect, Outcome
from pymllm.oracle.models.prefix_model import Path
from pymllm.oracle.models.prefix_victims import Taken
from pymllm.oracle.models.slot_ledger import Owner
from pymllm.oracle.prefix_books import PrefixBooks


@dataclass(slots=True)
class SeenEffects:
    """The effects of one operation, sorted by what was called, in order."""

    calls: list[str] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)  # slots given back whole
    halves: list[int] = field(default_factory=list)  # slots whose SWA halves were given back
    moves: dict[int, int] = field(default_factory=dict)  # source to target of each SWA half
    callbacks: list[Effect] = field(default_factory=list)
    states: list[int] = field(default_factory=list)  # track slots given back


def sort_effects(effects: Iterable[Effect]) -> SeenEffects:
    """Sort the effects of one operation; `ProgramError` where there is no such call, or a move is uneven."""
    seen = SeenEffects()
    for effect in effects:
        seen.calls.append(effect.call)
        if effect.call == "free":
            seen.freed += effect.slots
        elif effect.call == "free_swa":
            seen.halves += effect.slots
        elif effect.call == "free_state":
            seen.states += effect.slots
        elif effect.call == "callback":
            seen.callbacks.append(effect)
        elif effect.call == "move_swa" and len(effect.slots) == len(effect.target):
            seen.moves.update(zip(effect.slots, effect.target, strict=True))
        else:
            raise ProgramError(f"no effect of a prefix cache: {effect}")
    return seen


@dataclass(frozen=True, slots=True)
class SeenVictims:
    """What can be told of an eviction; ``None`` where it cannot."""

    removed: frozenset[Path] | None  # pages that went
    tombstoned: frozenset[Path] | None  # pages that lost their SWA halves only
    full: int | None = None  # tokens, as of `pymllm.history.outcomes.Evicted`
    swa: int | None = None
    states: frozenset[Path] = frozenset()  # whose states were taken

    def fits(self, taken: Taken) -> bool:
        """Tell whether everything that was seen is as it would be had this been taken."""
        if self.removed is not None and len(self.removed) != len(taken.removed):
            return False  # most of what an engine's eviction may be, told without a look at the pages
        would_be = (frozenset(taken.removed), taken.tombstoned, taken.full, taken.swa, taken.states)
        seen = (self.removed, self.tombstoned, self.full, self.swa, self.states)
        return all(one is None or one == two for one, two in zip(seen, would_be, strict=True))


def read_victims(
    books: PrefixBooks, seen: SeenEffects, full: int | None = None, swa: int | None = None
) -> SeenVictims:
    """Turn slots and halves that went back to the pool into pages.

    A slot that is not the cache's breaks R4 or A2, one that is no whole page R5; a half A7 or S2.
    """
    if not books.has_pool:
        none: frozenset[Path] | None = frozenset() if books.window is None else None
        return SeenVictims(None, none, full, swa)
    removed = _pages_of(books, seen.freed, "freed", "A2", "R5")
    if books.window is None:
        books.forbid("R5", "SWA halves freed without a window", seen.halves)
        return SeenVictims(removed, frozenset(), full, swa)
    gone = [slot for slot in seen.halves if not books.ledger.has_half(slot)]
    books.forbid("A7", "slots without an SWA half whose half was freed", gone)
    halves = _pages_of(books, seen.halves, "whose SWA halves were freed", "A7", "S2")
    return SeenVictims(removed, halves - removed if books.has_halves else None, full, swa)


def _pages_of(
    books: PrefixBooks, slots: Iterable[int], what: str, twice_law: str, whole_law: str
) -> frozenset[Path]:
    """Return the cached pages that have these slots."""
    counted = Counter(slots)
    twice = [slot for slot, count in counted.items() if count > 1]
    books.forbid(twice_law, f"slots {what} twice", twice)
    for slot in counted:
        owner = books.ledger.owner(slot)
        if owner is not Owner.CACHE:
            law = "R4" if owner is Owner.CALLER else "A2"
            books.evidence.refuse(law, f"owner of slot {slot}, {what}", Owner.CACHE.value, owner.value)
    places = {books.ledger.place(slot) for slot in counted}
    paths = frozenset(place for place in places if place is not None)
    parts = [slot for path in paths for slot in books.model.pages[path].slots if slot not in counted]
    books.forbid(whole_law, f"slots that share a page with those {what}", sorted(parts))
    return paths


def tokens_of(paths: Iterable[Path]) -> list[tuple[Token, ...]]:
    """Return what pages spell, in an order that is the same in every process."""
    return sorted((path.tokens for path in paths), key=str)


def check_victims(books: PrefixBooks, seen: SeenVictims, *, is_whole: bool = True) -> None:
    """Refuse pages that no eviction may take: locked ones (R6, S6), or one above a page that stays (R9).

    A whole eviction also leaves no dead leaf (S4).
    """
    model, pages, removed = books.model, books.model.pages, seen.removed or frozenset()
    locked = [path for path in removed if pages[path].locks]
    books.forbid("R6", "removed pages with a hold at or below", tokens_of(locked))
    covered = [path for path in seen.tombstoned or () if pages[path].swa_locks]
    books.forbid("S6", "tombstoned pages in a hold's window", tokens_of(covered))
    gone = Counter(model.parent(path) for path in removed)
    if any(model.children.get(path, 0) > gone.get(path, 0) for path in removed):
        kept = [path for path in pages if path not in removed]
        orphans = [path for path in kept if model.parent(path) in removed]
        books.forbid("R9", "pages that stay below removed ones", tokens_of(orphans))
    if not is_whole or seen.removed is None or model.window is None:  # without windows nothing is dead
        return
    dead = {path for path, page in pages.items() if not page.alive} | (seen.tombstoned or frozenset())
    bare = [path for path in dead - removed if model.children.get(path, 0) <= gone.get(path, 0)]
    books.forbid("S4", "dead leaves", tokens_of(bare))


def check_callbacks(
    books: PrefixBooks, taken: Taken, ids: Sequence[int] | None, seen: SeenEffects, outcome: Outcome
) -> None:
    """Test that each removed node was called back once, on written books (R5, X2, X3, X6).

    The books are those after the eviction; ``ids`` are the nodes that went, in order, where that is known.
    """
    found = [effect.node for effect in seen.callbacks]
    if "callbacks" not in books.claims:
        return
    if ids is None:
        least, most = min(1, len(taken.removed)), len(taken.removed)
        many = least <= len(found) <= most
        books.demand("R5", many, "callbacks", f"{least}..{most}", lambda: len(found))
    elif sorted(ids) == sorted(node for node in found if node is not None):
        books.count("R5", ids)
        if "exact_lru" in books.claims:
            books.expect("X2", "order of callbacks", ids, found)
    else:
        books.expect("R5", "nodes called back", ids, found)
    again = [node for node in found if not books.nodes.call_back(node)]
    books.demand("X3", not again, "ids called back", "new ones", lambda: again)
    _check_inside(books, seen, outcome)


def _check_inside(books: PrefixBooks, seen: SeenEffects, outcome: Outcome) -> None:
    """Test what callbacks saw, raised and met (X2, X6)."""
    fault, sizes = books.fault, books.sizes()
    for effect in seen.callbacks:
        told = {name: size for name, size in effect.sizes.items() if name in sizes}
        wanted = {name: sizes[name] for name in told}
        is_written = fault is None and told == {name: outcome.sizes.get(name) for name in told}
        if told != wanted and is_written:
            continue  # the books were written; whoever looks at the sizes at the end says what is wrong
        books.expect("X6", "sizes in a callback", wanted, told)
    if fault is None or len(seen.callbacks) < fault.nth:
        return
    if fault.call == "callback":
        raised = books.is_struck(outcome, "callback")
        books.demand("X2", raised, "the error of a callback", "raised", lambda: outcome.result)
        books.evidence.meet("a callback raises")
        books.evidence.meet("a callback raises and others follow", len(seen.callbacks) > fault.nth)
    elif fault.call == "reenter":
        note = seen.callbacks[fault.nth - 1].note
        books.expect("X6", "a match from inside a callback", "RuntimeError", note)
        books.evidence.meet("a callback re-enters")
