"""How the situations of states in prefix caches are noticed."""

from __future__ import annotations

from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_pages import Found, Path
from pymllm.oracle.prefix_victims import Taken
from pymllm.oracle.state_ends import StateEnds

__all__ = ["note_state_eviction", "note_state_insert", "note_state_match"]


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
