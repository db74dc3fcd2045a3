"""Judging evictions: what was taken must be explained, and enough (R5, R8, S3, X2, X6)."""

from __future__ import annotations

from collections.abc import Iterator

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict
from pymllm.history.outcomes import Evicted, Outcome
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_excess import is_explained
from pymllm.oracle.prefix_pages import Path
from pymllm.oracle.prefix_situations import note_eviction
from pymllm.oracle.prefix_victims import Taken, plan_evictions
from pymllm.oracle.seen_callbacks import check_callbacks
from pymllm.oracle.seen_effects import SeenEffects, sort_effects
from pymllm.oracle.seen_victims import SeenVictims, check_victims, read_victims

__all__ = ["EvictionJudge"]


class EvictionJudge:
    """Judges by relation what an eviction chose, and follows it.

    Parameters
    ----------
    books : PrefixBooks
        What all parts share.
    """

    def __init__(self, books: PrefixBooks) -> None:
        self.books = books

    def judge(self, step: int, operation: Evict, outcome: Outcome) -> str:
        """Judge an `Evict`; return the law that is broken where a size is wrong afterwards."""
        books, seen = self.books, sort_effects(outcome.effects)
        if not books.can_follow_evictions:
            raise ProgramError("victims that no pool sees can be followed only where exact_lru is claimed")
        tokens = operation.tokens
        alive_tokens = operation.secondary if books.window is not None else 0
        books.forbid("R4", "SWA halves that an eviction moves", seen.moves)
        if books.is_struck(outcome, "free", "free_swa"):
            return self._settle(list(self._plan(tokens, alive_tokens)), seen, outcome)
        full, swa = self._counts(outcome)
        victims = read_victims(books, seen, full, swa)
        is_hidden = self._hides_refusal(victims, seen, tokens, alive_tokens)
        check_victims(books, victims, is_whole=not is_hidden)
        if is_hidden:
            books.refuse_hidden()
        self._check_counts(victims)
        self._check_enough(victims, tokens, alive_tokens)
        taken = self._explain(victims, tokens, alive_tokens)
        # Not before: who asks for the wrong pages may have no need of the call that was to fail.
        if self._is_ordered:
            books.expect_strike("free", books.has_pool and taken.removed)
            books.expect_strike("free_swa", books.has_halves and taken.tombstoned)
        self._check_order(taken, seen)
        note_eviction(books, taken, tokens, alive_tokens)
        ids = books.nodes.ids_of(taken.removed)
        self._commit(taken)
        check_callbacks(books, taken, ids, seen, outcome)
        return "R7"

    @property
    def _is_ordered(self) -> bool:
        """Whether only some sets of pages may be taken: where an order is claimed, or nothing is kept."""
        return "exact_lru" in self.books.claims or not self.books.retains

    def _plan(self, tokens: int, alive_tokens: int) -> Iterator[Taken]:
        """Yield everything that may be taken in the order of recency, where that is claimed."""
        books = self.books
        if self._is_ordered:
            yield from plan_evictions(books.model, tokens, alive_tokens, books.nodes.cut)

    def _counts(self, outcome: Outcome) -> tuple[int | None, int | None]:
        """Return what was evicted, as told by the result, or by the sizes where a callback raised."""
        books, sizes = self.books, outcome.sizes
        if not books.is_struck(outcome, "callback"):
            result = books.answer(Evicted, books.law_of_error("R5"), "evict", outcome)
            return result.full, result.swa
        before = books.model.sizes()
        swa_names = ("swa_evictable_size", "swa_protected_size")
        full = before["total_size"] - sizes["total_size"] if "total_size" in sizes else None
        known = all(name in sizes for name in swa_names)
        return full, sum(before[name] - sizes[name] for name in swa_names) if known else None

    # -- comparing -----------------------------------------------------------------------------------------

    def _hides_refusal(self, victims: SeenVictims, seen: SeenEffects, tokens: int, alive_tokens: int) -> bool:
        """Tell whether the pool lacks what was told or due, and a call that was let fail explains it (X2)."""
        books, size = self.books, self.books.page_size
        hides_all, hides_halves = books.may_hide("free", seen.calls), books.may_hide("free_swa", seen.calls)
        if victims.removed is None or not (hides_all or hides_halves):
            return False
        before = books.model.sizes()
        due, due_alive = (
            min(tokens, before["evictable_size"]),
            min(alive_tokens, before["swa_evictable_size"]),
        )
        if due <= 0 and due_alive <= 0:
            return False  # no call had to be made
        if hides_all and len(victims.removed) * size < max(due, victims.full or 0):
            return True
        taken = victims.removed | (victims.tombstoned or frozenset())
        alive = sum(books.model.pages[path].alive for path in taken)
        return victims.tombstoned is not None and alive * size < max(due_alive, victims.swa or 0)

    def _check_counts(self, seen: SeenVictims) -> None:
        """Test that the counts are those of what was taken."""
        books, size = self.books, self.books.page_size
        if seen.removed is not None and seen.full is not None:
            books.expect("R5", "tokens evicted", len(seen.removed) * size, seen.full)
        if books.window is None:
            books.forbid("R5", "window tokens evicted without a window", seen.swa)
        elif seen.removed is not None and seen.tombstoned is not None and seen.swa is not None:
            alive = [path for path in seen.removed | seen.tombstoned if books.model.pages[path].alive]
            books.expect("S3", "window tokens evicted", len(alive) * size, seen.swa)

    def _check_enough(self, seen: SeenVictims, tokens: int, alive_tokens: int) -> None:
        """Test that as much went as was asked for, or all that could (R5, S3)."""
        books, before = self.books, self.books.model.sizes()
        least = min(tokens, before["evictable_size"])
        if least > 0 and seen.full is not None:
            books.demand("R5", seen.full >= least, "tokens evicted", f">= {least}", lambda: seen.full)
        least = min(alive_tokens, before["swa_evictable_size"])
        if least > 0 and seen.swa is not None:
            books.demand("S3", seen.swa >= least, "window tokens evicted", f">= {least}", lambda: seen.swa)

    def _explain(self, seen: SeenVictims, tokens: int, alive_tokens: int) -> Taken:
        """Return what was taken, or refuse it because it was not the right pages, or too many."""
        books = self.books
        if not self._is_ordered:
            return self._explain_by_size(seen, tokens, alive_tokens)
        # An engine looks at no nodes, so that there may be dozens of sets: mostly one of the first is it.
        found = next((taken for taken in self._plan(tokens, alive_tokens) if seen.fits(taken)), None)
        if found is None:
            self._blame(seen, list(self._plan(tokens, alive_tokens)), tokens)
        assert found is not None
        books.count("R5", found.removed or not books.retains)
        books.count("S3", found.tombstoned)
        return found

    def _explain_by_size(self, seen: SeenVictims, tokens: int, alive_tokens: int) -> Taken:
        books, size = self.books, self.books.page_size
        removed, tombstoned = seen.removed or frozenset(), seen.tombstoned or frozenset()
        told = is_explained(books.model, removed, tombstoned, tokens, alive_tokens)
        law = "R5" if tokens > 0 or books.window is None else "S3"
        books.demand(law, told, "pages evicted", "none but what was needed", lambda: _shown(removed))
        alive = [path for path in removed | tombstoned if books.model.pages[path].alive]
        return Taken(tuple(removed), tombstoned, len(removed) * size, len(alive) * size)

    def _blame(self, seen: SeenVictims, allowed: list[Taken], tokens: int) -> None:
        """Say which law is broken by an eviction that is none of those allowed."""
        books, least = self.books, allowed[0]
        too_many = "R5" if tokens > 0 or books.window is None else "S3"
        if seen.removed is None:
            fulls = sorted({taken.full for taken in allowed})
            if seen.full is not None and seen.full not in fulls:
                books.evidence.refuse(too_many, "tokens evicted", f"one of {fulls}", seen.full)
            swas = sorted({taken.swa for taken in allowed if seen.full in (None, taken.full)})
            books.evidence.refuse("S3", "window tokens evicted", f"one of {swas}", seen.swa)
        older = set(least.removed) - seen.removed
        if older:
            books.evidence.refuse("R8", "pages evicted", f"with {_shown(older)}", _shown(seen.removed))
        alike = [taken for taken in allowed if set(taken.removed) == seen.removed]
        if not alike:
            books.evidence.refuse(too_many, "pages evicted", _shown(least.removed), _shown(seen.removed))
        if seen.tombstoned is not None and not any(one.tombstoned <= seen.tombstoned for one in alike):
            expected, observed = _shown(alike[0].tombstoned), _shown(seen.tombstoned)
            books.evidence.refuse("R8", "windows evicted", f"with {expected}", observed)
        swas = sorted({taken.swa for taken in alike})
        books.evidence.refuse("S3", "window tokens evicted", f"one of {swas}", seen.swa)

    # -- following -----------------------------------------------------------------------------------------

    def _commit(self, taken: Taken) -> None:
        books = self.books
        dead = [slot for path in taken.tombstoned for slot in books.model.pages[path].slots]
        gone = [slot for path in taken.removed for slot in books.model.pages[path].slots]
        books.ledger.give_back_halves(dead)
        books.ledger.give_back(gone)
        books.model.commit_evict(taken.removed, taken.tombstoned)

    def _check_order(self, taken: Taken, seen: SeenEffects) -> None:
        """Test the number and order of calls (X2), where an implementation claims to keep it."""
        books = self.books
        if "call_order" not in books.claims or not seen.calls:
            return
        calls = ["free_swa"] * bool(books.has_halves and taken.tombstoned)
        calls += ["free"] * bool(books.has_pool and taken.removed)
        books.expect("X2", "calls of an eviction", calls + ["callback"] * len(seen.callbacks), seen.calls)

    # -- faults --------------------------------------------------------------------------------------------

    def _settle(self, allowed: list[Taken], seen: SeenEffects, outcome: Outcome) -> str:
        """Follow an eviction whose pool refused a call: what was not taken is still there (X2)."""
        books = self.books
        victims = read_victims(books, seen)
        removed = victims.removed or frozenset()
        tombstoned = victims.tombstoned
        if tombstoned is None:
            tombstoned = self._dead_by_sizes(allowed, outcome)
        check_victims(books, SeenVictims(removed, tombstoned), is_whole=False)
        books.demand(
            "X2",
            not allowed or any(self._may_stop(one, removed, tombstoned) for one in allowed),
            "what was taken before a call failed",
            "the pages of whole calls, in order",
            lambda: f"{_shown(removed)}, windows of {_shown(tombstoned)}",
        )
        callbacks = len(seen.callbacks)
        books.demand("X2", callbacks <= len(removed), "callbacks", f"<= {len(removed)}", lambda: callbacks)
        size = books.page_size
        self._commit(Taken(tuple(removed), tombstoned, len(removed) * size, 0))
        fault = books.fault
        assert fault is not None
        books.evidence.meet("the pool refuses an eviction")
        books.evidence.meet("the pool refuses the windows of an eviction", fault.call == "free_swa")
        is_half_way = fault.call == "free" and books.has_halves and tombstoned
        books.evidence.meet("the pool takes the windows of an eviction and refuses the rest", is_half_way)
        return "X2"

    def _may_stop(self, taken: Taken, removed: frozenset[Path], tombstoned: frozenset[Path]) -> bool:
        """Tell whether an eviction may have got so far, and no further, when a call failed."""
        books, fault = self.books, self.books.fault
        assert fault is not None
        if "call_order" not in books.claims:
            return removed <= set(taken.removed) and tombstoned <= taken.tombstoned | set(taken.removed)
        if removed or not (taken.removed if fault.call == "free" else taken.tombstoned):
            return False
        if fault.call == "free_swa":
            return not tombstoned
        # Without SWA halves no call says whether tombstoning came before the refusal: both are allowed.
        return tombstoned == taken.tombstoned or not (tombstoned or books.has_halves)

    def _dead_by_sizes(self, allowed: list[Taken], outcome: Outcome) -> frozenset[Path]:
        """Tell from the sizes which windows an eviction freed that no pool call shows."""
        books, before = self.books, self.books.model.sizes()
        names = ("swa_evictable_size", "swa_protected_size")
        gone = sum(before[name] - outcome.sizes.get(name, before[name]) for name in names)
        sets = (taken.tombstoned for taken in allowed if len(taken.tombstoned) * books.page_size == gone)
        return next(sets, frozenset())


def _shown(paths: object) -> str:
    assert isinstance(paths, frozenset | set | tuple)
    return ", ".join(sorted(str(path.tokens) for path in paths)) or "none"
