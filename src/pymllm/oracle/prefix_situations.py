"""Situations that a search through prefix caches must reach, and how those of an eviction are noticed."""

from __future__ import annotations

from pymllm.oracle.history import Header
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_pages import Found, Path
from pymllm.oracle.prefix_victims import Taken
from pymllm.oracle.state_situations import expected_state_situations

__all__ = ["expected_situations", "note_eviction", "note_match"]

_ALWAYS = frozenset(
    {
        "an insert finds the whole key cached",
        "an insert passes the matched prefix back",
        "everything is locked and an eviction is asked for",
        "an eviction takes a parent after its last child",
        "an eviction takes more than was asked for",
        "an eviction spares what is held",
        "a reset with holds outstanding",
    }
)
_REFUSING = frozenset(
    {
        "a bad insert is refused",
        "a malformed call is refused",
        "a stale node is used",
        "a node of another cache is used",
        "a hold is released twice",
        "a hold is released at an ancestor",
    }
)
_POOLED = frozenset({"an insert brings duplicates", "memory runs out"})
_INSPECTED = frozenset({"a held path is split"})
_WINDOWED = frozenset(
    {
        "a match ends before a dead window",
        "a dead window leaves no match",
        "an unlocked tombstone is revived",
        "an insert is refused whole",
        "new pages are born dead",
        "a window is tombstoned",
        "a locked page is tombstoned",
        "phase 2 removes a leaf",
        "a tombstone goes with its last child",
        "two holds share an edge",
        "a hold's window covers the whole path",
        "a dead page gets its own slots back",
        "a held tombstone stays dead",
    }
)
_MOVING = frozenset({"a tombstone is revived under a hold"})


def expected_situations(header: Header) -> frozenset[str]:
    """Return what a long run of a configuration with these capabilities must have met."""
    config, claims = header.config, frozenset(header.capabilities)
    if config.get("retains") is False:
        return frozenset({"memory runs out"} if "pool" in claims else ())
    window, page_size = config.get("window"), config.get("page_size", 1)
    pooled, windowed = config.get("pool", "none") != "none", window is not None
    moving = windowed and config.get("pool") == "swa"
    inspected, refusing, faulty = (name in claims for name in ("inspect", "refusals", "faults"))
    has_edges = isinstance(window, int) and isinstance(page_size, int) and window > page_size
    groups: tuple[tuple[bool, frozenset[str]], ...] = (
        (True, _ALWAYS),
        (refusing, _REFUSING),
        (page_size != 1, frozenset({"an unaligned tail stays the caller's"})),
        ("extra_key" in claims, frozenset({"equal tokens are cached in another space only"})),
        (pooled, _POOLED),
        (inspected, _INSPECTED),
        (inspected and "mamba" not in claims, frozenset({"a match ends inside a node"})),
        (inspected and "hashes" in claims, frozenset({"a hashed node is split"})),
        ("callbacks" in claims and faulty, frozenset({"a callback raises", "a callback re-enters"})),
        (pooled and faulty, frozenset({"the pool refuses an eviction", "the pool refuses a reset"})),
        (windowed, _WINDOWED),
        (
            windowed and refusing,
            frozenset({"a hold is refused on a dead window", "a wrong token is refused"}),
        ),
        (windowed and inspected, frozenset({"a hold splits at the edge of its window"})),
        (has_edges and inspected, frozenset({"an edge node is split"})),
        (windowed and pooled and faulty, frozenset({"the pool refuses displaced slots"})),
        (moving, _MOVING),
        (moving and faulty, frozenset({"the pool refuses a revival under a hold"})),
        (moving and refusing, frozenset({"halves that were not returned are refused"})),
    )
    known = frozenset[str]().union(*(names for applies, names in groups if applies))
    return known | expected_state_situations(header)


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
