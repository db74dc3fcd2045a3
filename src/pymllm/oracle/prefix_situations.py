"""How the situations of matches and evictions in prefix caches are noticed."""

from __future__ import annotations

from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_pages import Found, Path
from pymllm.oracle.prefix_victims import Taken

__all__ = ["note_eviction", "note_match"]


def note_match(books: PrefixBooks, key: Path, found: Found, is_in_another_space: bool) -> None:
    """Say what a match met that is about to be committed to the model."""
    dead_window = books.window is not None and found.stored > len(found.slots)
    met = {
        "a match ends before a dead window": dead_window and found.slots,
        "a dead window leaves no match": dead_window and not found.slots,
        "a match ends inside a node": books.nodes.cut(found.path) is False,
        "equal tokens are cached in another space only": is_in_another_space,
    }
    for situation, truth in met.items():
        books.evidence.meet(situation, truth)


def note_eviction(books: PrefixBooks, taken: Taken, tokens: int) -> None:
    """Say what an eviction met that is about to be committed to the model, and which choices tested laws."""
    model, removed = books.model, set(taken.removed)
    locked = any(page.locks for page in model.pages.values())
    stay = [page for path, page in model.pages.items() if path not in removed]
    evictable = model.sizes()["evictable_size"]
    met = {
        "everything is locked and an eviction is asked for": tokens > 0 and locked and not evictable,
        "an eviction takes a parent after its last child": any(
            model.parent(end) in removed for end in removed
        ),
        "an eviction takes more than was asked for": taken.full > max(tokens, 0) > 0,
        "an eviction spares what is held": removed and locked,
        "a window is tombstoned": taken.tombstoned,
        "a locked page is tombstoned": any(model.locks(path) for path in taken.tombstoned),
        "a tombstone goes with its last child": any(not model.pages[path].alive for path in removed),
        "phase 2 removes a leaf": removed and tokens <= 0,
    }
    for situation, truth in met.items():
        books.evidence.meet(situation, truth)
    books.count("R6", tokens > 0 and locked)
    books.count("R8", removed and any(not page.locks for page in stay))
    books.count("R9", removed and stay)
    books.count("S2", taken.tombstoned and books.has_halves)
    books.count("S4", met["a tombstone goes with its last child"])
    books.count("S6", taken.tombstoned and any(page.swa_locks for page in stay))
