"""What the callbacks of an eviction named, saw, raised and met (R5, X2, X3, X6)."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.history.outcomes import Outcome
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_victims import Taken
from pymllm.oracle.seen_effects import SeenEffects

__all__ = ["check_callbacks"]


def check_callbacks(
    books: PrefixBooks, taken: Taken, ids: Sequence[int] | None, seen: SeenEffects, outcome: Outcome
) -> None:
    """Test that each removed node was called back once, on written books.

    Parameters
    ----------
    books : PrefixBooks
        After the eviction.
    taken : Taken
        What it took.
    ids : sequence of int, or None
        The nodes that went, in order of removal, where that is known.
    seen, outcome
        What was seen of it.
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
