"""Judging evictions from a hybrid cache: KV in tokens, states one by one (R5, M5, M6, M7, X2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict
from pymllm.history.outcomes import Evicted, Outcome
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_pages import Path
from pymllm.oracle.prefix_situations import note_eviction
from pymllm.oracle.prefix_victims import Taken
from pymllm.oracle.seen_callbacks import check_callbacks
from pymllm.oracle.seen_effects import SeenEffects, sort_effects
from pymllm.oracle.seen_victims import SeenVictims, check_victims, read_victims, tokens_of
from pymllm.oracle.slot_ledger import Owner
from pymllm.oracle.state_situations import note_state_eviction
from pymllm.oracle.state_victims import is_state_eviction_explained, plan_state_eviction
from pymllm.oracle.track_ledger import TrackLedger

__all__ = ["StateEvictionJudge"]


class StateEvictionJudge:
    """Judges what an eviction took of either kind of memory, and follows it.

    Parameters
    ----------
    books : PrefixBooks
        What all parts share.
    tracks : TrackLedger
        Those of the books.
    """

    def __init__(self, books: PrefixBooks, tracks: TrackLedger) -> None:
        self.books, self.tracks, self.ends = books, tracks, tracks.ends

    def judge(self, step: int, operation: Evict, outcome: Outcome) -> str:
        """Judge an `Evict`; return the law that is broken where a size is wrong afterwards."""
        books, seen = self.books, sort_effects(outcome.effects)
        if not books.can_follow_evictions:
            raise ProgramError("victims that no pool sees can be followed only where exact_lru is claimed")
        tokens, wanted = operation.tokens, operation.secondary
        plan = self._plan(tokens, wanted)
        books.forbid("R4", "SWA halves that an eviction moves or frees", [*seen.moves, *seen.halves])
        if books.is_struck(outcome, "free", "free_state"):
            return self._settle(plan, seen)
        victims, told = self._read(seen, outcome)
        check_victims(books, victims)
        if self._hides_refusal(victims, told, seen, tokens, wanted):
            books.refuse_hidden()
        self._check_states(victims)
        self._check_counts(victims, told)
        self._check_enough(victims, tokens, wanted)
        taken = self._explain(victims, plan, tokens, wanted)
        self._expect_strike(plan)  # not before: the wrong pages may need no call that was to fail
        self._check_order(taken, seen)
        note_eviction(books, taken, tokens, wanted)
        note_state_eviction(books, self.ends, taken, wanted)
        ids = books.nodes.ids_of(taken.removed)
        self._commit(taken)
        check_callbacks(books, taken, ids, seen, outcome)
        return "R7"

    def _plan(self, tokens: int, wanted: int) -> Taken | None:
        """Return what is taken in the order of recency, where that is claimed."""
        if "exact_lru" not in self.books.claims:
            return None
        return plan_state_eviction(self.books.model, self.ends, tokens, wanted)

    def _expect_strike(self, plan: Taken | None) -> None:
        """Refuse an eviction that went well although a call that it must make was let fail (X2)."""
        books, fault = self.books, self.books.fault
        if plan is None:
            return
        books.expect_strike("free", books.has_pool and plan.removed)
        if fault is not None and fault.call == "free_state":
            books.demand("X2", len(plan.states) < fault.nth, "a failing call", "raised", lambda: "no error")

    # -- reading -------------------------------------------------------------------------------------------

    def _read(self, seen: SeenEffects, outcome: Outcome) -> tuple[SeenVictims, int | None]:
        """Return what was taken, and how many states the result tells; a callback that raised hides that."""
        books = self.books
        if books.is_struck(outcome, "callback"):
            full, told = None, None
            if "total_size" in outcome.sizes:
                full = books.model.sizes()["total_size"] - outcome.sizes["total_size"]
        else:
            result = books.answer(Evicted, books.law_of_error("R5"), "evict", outcome)
            books.forbid("R5", "window tokens evicted without a window", result.swa)
            full, told = result.full, result.states
        victims = read_victims(books, seen, full, 0)
        return replace(victims, states=self._freed_states(seen)), told

    def _freed_states(self, seen: SeenEffects) -> frozenset[Path]:
        """Turn track slots that went back to their pool into the prefixes whose states they held (M7)."""
        books, counted = self.books, Counter(seen.states)
        books.forbid("M7", "track slots freed twice", [slot for slot, count in counted.items() if count > 1])
        for slot in counted:
            owner = self.tracks.owner(slot)
            if owner is not Owner.CACHE:
                books.evidence.refuse("M7", f"owner of track slot {slot}, freed", "the cache", owner.value)
        places = {self.tracks.place(slot) for slot in counted}
        return frozenset(place for place in places if place is not None)

    # -- comparing -----------------------------------------------------------------------------------------

    def _hides_refusal(
        self, victims: SeenVictims, told: int | None, seen: SeenEffects, tokens: int, wanted: int
    ) -> bool:
        """Tell whether a pool lacks what was told or due, and a call that was let fail explains it (X2)."""
        books, before, removed = self.books, self.books.model.sizes(), victims.removed
        due, due_states = min(tokens, before["evictable_size"]), min(wanted, before["mamba_evictable_size"])
        if due <= 0 and due_states <= 0:
            return False  # no call had to be made
        hides_state = books.may_hide("free_state", seen.calls) and before["mamba_evictable_size"] > 0
        if not hides_state and not books.may_hide("free", seen.calls):
            return False
        gone = removed or frozenset()
        if removed is not None and len(gone) * books.page_size < max(due, victims.full or 0):
            return True
        lost = any(path in self.ends and path not in victims.states for path in gone)
        return hides_state and (lost or len(victims.states) < max(due_states, told or 0))

    def _check_states(self, seen: SeenVictims) -> None:
        """Test that no locked state went, and that none outlives its page (M4, M7)."""
        books, holds = self.books, self.books.model.holds
        locked = [path for path in seen.states if self.ends.locks(path, holds)]
        books.forbid("M4", "evicted states with a hold at their node", tokens_of(locked))
        lost = [path for path in seen.removed or () if path in self.ends and path not in seen.states]
        books.forbid("M7", "removed pages whose state was not freed", tokens_of(lost))

    def _check_counts(self, seen: SeenVictims, told: int | None) -> None:
        books = self.books
        if seen.removed is not None and seen.full is not None:
            books.expect("R5", "tokens evicted", len(seen.removed) * books.page_size, seen.full)
        if told is not None:
            books.expect("M6", "states evicted", len(seen.states), told)

    def _check_enough(self, seen: SeenVictims, tokens: int, wanted: int) -> None:
        """Test that as much went as was asked for, or all that could (R5, M5)."""
        books, before = self.books, self.books.model.sizes()
        least = min(tokens, before["evictable_size"])
        if least > 0 and seen.full is not None:
            books.demand("R5", seen.full >= least, "tokens evicted", f">= {least}", lambda: seen.full)
        least = min(wanted, before["mamba_evictable_size"])
        if least > 0:
            enough = len(seen.states) >= least
            books.demand("M5", enough, "states evicted", f">= {least}", lambda: len(seen.states))

    def _explain(self, seen: SeenVictims, plan: Taken | None, tokens: int, wanted: int) -> Taken:
        """Return what was taken, or refuse it because it was not the right memory, or too much."""
        books = self.books
        self._check_leaves(seen)
        if plan is None:
            return self._explain_by_size(seen, tokens, wanted)
        if not seen.fits(plan):
            self._blame(seen, plan, tokens)
        books.count("R5", plan.removed)
        books.count("M5", plan.states)
        books.count("M7", plan.states)
        return plan

    def _check_leaves(self, seen: SeenVictims) -> None:
        """Test that no removal left a leaf that has no state and no lock (M5).

        A strict order of recency tells what goes with a leaf, so whoever claims that is tested, too.
        """
        books, removed = self.books, seen.removed
        if not removed or books.claims.isdisjoint({"state_leaves", "exact_lru"}):
            return
        model, pages = books.model, books.model.pages
        gone = Counter(model.parent(path) for path in removed)
        bare = [
            path
            for path, count in gone.items()
            if path in pages and path not in removed and model.children[path] == count
            if not pages[path].locks and (path not in self.ends or path in seen.states)
        ]
        books.forbid("M5", "leaves without a state that a removal left", tokens_of(bare))

    def _explain_by_size(self, seen: SeenVictims, tokens: int, wanted: int) -> Taken:
        books, removed = self.books, seen.removed or frozenset()
        told = is_state_eviction_explained(books.model, removed, seen.states, tokens, wanted)
        law = "R5" if tokens > 0 else "M5"
        books.demand(law, told, "memory evicted", "none but what was needed", lambda: _shown(removed))
        books.count("M7", seen.states)
        return Taken(tuple(removed), frozenset(), len(removed) * books.page_size, 0, states=seen.states)

    def _blame(self, seen: SeenVictims, plan: Taken, tokens: int) -> None:
        """Say which law is broken by an eviction that is not the one determined."""
        books, due = self.books, set(plan.removed)
        too_many = "R5" if tokens > 0 else "M5"
        if seen.removed is not None and seen.removed != due:
            law = "R8" if due - plan.cascaded - seen.removed else too_many
            books.evidence.refuse(law, "pages evicted", _shown(due), _shown(seen.removed))
        if seen.states != plan.states:
            books.evidence.refuse("M5", "states evicted", _shown(plan.states), _shown(seen.states))
        books.evidence.refuse(too_many, "tokens evicted", plan.full, seen.full)

    def _check_order(self, taken: Taken, seen: SeenEffects) -> None:
        """Test the number and order of calls (X2), where an implementation claims to keep it."""
        books = self.books
        if "call_order" not in books.claims or not seen.calls:
            return
        calls = ["free_state"] * len(taken.states) + ["free"] * bool(books.has_pool and taken.removed)
        books.expect("X2", "calls of an eviction", calls + ["callback"] * len(seen.callbacks), seen.calls)

    # -- following -----------------------------------------------------------------------------------------

    def _commit(self, taken: Taken) -> None:
        books = self.books
        gone = [slot for path in taken.removed for slot in books.model.pages[path].slots]
        books.ledger.give_back(gone)
        self.ends.remove(taken.states)
        books.model.commit_evict(taken.removed, ())

    def _settle(self, plan: Taken | None, seen: SeenEffects) -> str:
        """Follow an eviction whose pool refused a call: what was not taken is still there (X2)."""
        books, fault = self.books, self.books.fault
        assert fault is not None
        states = self._freed_states(seen)
        removed = read_victims(books, seen).removed or frozenset()
        victims = SeenVictims(removed, frozenset(), states=states)
        check_victims(books, victims)
        self._check_states(victims)
        books.forbid("X2", "callbacks of an eviction that failed", seen.callbacks)
        if plan is not None:
            self._check_stop(plan, removed, states, fault.nth if fault.call == "free_state" else None)
        self._commit(Taken(tuple(removed), frozenset(), 0, 0, states=states))
        books.evidence.meet(
            "the pool refuses an eviction" if fault.call == "free" else "the state pool refuses an eviction"
        )
        books.evidence.meet(
            "the state pool refuses an eviction half-way", fault.call == "free_state" and states
        )
        return "X2"

    def _check_stop(
        self, plan: Taken, removed: Collection[Path], states: Collection[Path], nth: int | None
    ) -> None:
        """Test that an eviction got as far as the call that failed, and no further."""
        books = self.books
        due = len(plan.states) if nth is None else nth - 1
        is_due = plan.removed if nth is None else due < len(plan.states)
        books.demand("X2", is_due, "a call that failed", "one that had to be made", lambda: "another")
        is_part = set(states) <= plan.states and set(removed) <= set(plan.removed)
        books.demand("X2", is_part, "what was taken", _shown(plan.states), lambda: _shown(states))
        if "call_order" in books.claims:
            books.forbid("X2", "pages removed before a call failed", removed)
            books.expect("X2", "states taken before a call failed", due, len(states))


def _shown(paths: Collection[Path]) -> str:
    return ", ".join(sorted(str(path.tokens) for path in paths)) or "none"
