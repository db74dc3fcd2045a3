"""Judging evictions: what was taken must be explained, and enough (R5, R8, S3, M5, M6, M7, X2, X6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import ClassVar, NoReturn

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict
from pymllm.history.outcomes import Evicted, Outcome
from pymllm.oracle.coverage.noticed import note_eviction, note_state_eviction
from pymllm.oracle.models.prefix_model import Path
from pymllm.oracle.models.prefix_victims import (
    Taken,
    is_explained,
    is_state_eviction_explained,
    plan_evictions,
    plan_state_eviction,
)
from pymllm.oracle.models.slot_ledger import Owner, TrackLedger
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.seen_effects import (
    SeenEffects,
    SeenVictims,
    check_callbacks,
    check_victims,
    read_victims,
    sort_effects,
    tokens_of,
)


class EvictionJudge:
    """Judges by relation what an eviction chose, and follows it.

    Where states are kept, `StateEvictionJudge` says what is meant by the second of two kinds of memory:
    states one by one instead of windows in tokens.
    """

    SECOND_CALL: ClassVar[str] = "free_swa"

    def __init__(self, books: PrefixBooks) -> None:
        self.books = books

    def judge(self, step: int, operation: Evict, outcome: Outcome) -> str:
        """Judge an `Evict`; return the law that is broken where a size is wrong afterwards."""
        books, seen = self.books, sort_effects(outcome.effects)
        if not books.can_follow_evictions:
            raise ProgramError("victims that no pool sees can be followed only where exact_lru is claimed")
        tokens, secondary = operation.tokens, self._secondary(operation)
        self._forbid_moves(seen)
        if books.is_struck(outcome, "free", self.SECOND_CALL):
            return self._settle(list(self._plan(tokens, secondary)), seen, outcome)
        victims, states = self._read(seen, outcome)
        is_hidden = self._hides_refusal(victims, states, seen, tokens, secondary)
        check_victims(books, victims, is_whole=not is_hidden)
        if is_hidden:
            books.refuse_hidden()
        self._check_counts(victims, states)
        self._check_enough(victims, tokens, secondary)
        taken = self._explain(victims, tokens, secondary)
        if self._is_ordered:
            # Not before: who asks for the wrong pages may have no need of the call that was to fail.
            self._expect_strike(taken)
        self._check_order(taken, seen)
        self._note(taken, tokens, secondary)
        ids = books.nodes.ids_of(taken.removed)
        self._commit(taken)
        check_callbacks(books, taken, ids, seen, outcome)
        return "R7"

    def _secondary(self, operation: Evict) -> int:
        return operation.secondary if self.books.window is not None else 0

    def _forbid_moves(self, seen: SeenEffects) -> None:
        self.books.forbid("R4", "SWA halves that an eviction moves", seen.moves)

    def _expect_strike(self, taken: Taken) -> None:
        """Refuse an eviction that went well although a call that it must make was let fail (X2)."""
        books = self.books
        books.expect_strike("free", books.has_pool and taken.removed)
        books.expect_strike("free_swa", books.has_halves and taken.tombstoned)

    def _note(self, taken: Taken, tokens: int, secondary: int) -> None:
        note_eviction(self.books, taken, tokens, secondary)

    @property
    def _is_ordered(self) -> bool:
        """Whether only some sets of pages may be taken: where an order is claimed, or nothing is kept."""
        return "exact_lru" in self.books.claims or not self.books.retains

    def _plan(self, tokens: int, alive_tokens: int) -> Iterator[Taken]:
        """Yield everything that may be taken in the order of recency, where that is claimed."""
        books = self.books
        if self._is_ordered:
            yield from plan_evictions(books.model, tokens, alive_tokens, books.nodes.cut)

    def _read(self, seen: SeenEffects, outcome: Outcome) -> tuple[SeenVictims, int | None]:
        """Return what was taken, and how many states the result tells; a callback that raised hides that."""
        books = self.books
        if not books.is_struck(outcome, "callback"):
            result = books.answer(Evicted, books.law_of_error("R5"), "evict", outcome)
            return read_victims(books, seen, result.full, result.swa), None
        gone = {
            name: size - outcome.sizes[name]
            for name, size in books.model.sizes().items()
            if name in outcome.sizes
        }
        is_known = {"swa_evictable_size", "swa_protected_size"} <= gone.keys()
        swa = gone["swa_evictable_size"] + gone["swa_protected_size"] if is_known else None
        return read_victims(books, seen, gone.get("total_size"), swa), None

    # -- comparing -----------------------------------------------------------------------------------------

    def _hides_refusal(
        self, victims: SeenVictims, states: int | None, seen: SeenEffects, tokens: int, alive_tokens: int
    ) -> bool:
        """Tell whether the pool lacks what was told or due, and a call that was let fail explains it (X2)."""
        books, size = self.books, self.books.page_size
        hides_all, hides_halves = books.may_hide("free", seen.calls), books.may_hide("free_swa", seen.calls)
        if victims.removed is None or not (hides_all or hides_halves):
            return False
        before = books.model.sizes()
        due = min(tokens, before["evictable_size"])
        due_alive = min(alive_tokens, before["swa_evictable_size"])
        if due <= 0 and due_alive <= 0:
            return False  # no call had to be made
        if hides_all and len(victims.removed) * size < max(due, victims.full or 0):
            return True
        taken = victims.removed | (victims.tombstoned or frozenset())
        alive = sum(books.model.pages[path].alive for path in taken)
        return victims.tombstoned is not None and alive * size < max(due_alive, victims.swa or 0)

    def _check_counts(self, seen: SeenVictims, states: int | None) -> None:
        """Test that the counts are those of what was taken."""
        books, size = self.books, self.books.page_size
        if seen.removed is not None and seen.full is not None:
            books.expect("R5", "tokens evicted", len(seen.removed) * size, seen.full)
        if books.window is None:
            books.forbid("R5", "window tokens evicted without a window", seen.swa)
        elif seen.removed is not None and seen.tombstoned is not None and seen.swa is not None:
            alive = [path for path in seen.removed | seen.tombstoned if books.model.pages[path].alive]
            books.expect("S3", "window tokens evicted", len(alive) * size, seen.swa)

    def _check_enough(self, seen: SeenVictims, tokens: int, secondary: int) -> None:
        """Test that as much went as was asked for, or all that could (R5, S3, M5)."""
        self._demand_enough("R5", "tokens evicted", tokens, "evictable_size", seen.full)
        self._demand_enough("S3", "window tokens evicted", secondary, "swa_evictable_size", seen.swa)

    def _demand_enough(self, law: str, what: str, wanted: int, size: str, gone: int | None) -> None:
        least = min(wanted, self.books.model.sizes()[size])
        if least > 0 and gone is not None:
            self.books.demand(law, gone >= least, what, f">= {least}", lambda: gone)

    def _explain(self, seen: SeenVictims, tokens: int, alive_tokens: int) -> Taken:
        """Return what was taken, or refuse it because it was not the right pages, or too many."""
        books = self.books
        if not self._is_ordered:
            return self._explain_by_size(seen, tokens, alive_tokens)
        # An engine looks at no nodes, so that there may be dozens of sets: mostly one of the first is it.
        found = next((taken for taken in self._plan(tokens, alive_tokens) if seen.fits(taken)), None)
        if found is None:
            self._blame(seen, list(self._plan(tokens, alive_tokens)), tokens)
        books.count("R5", found.removed or not books.retains)
        books.count("S3", found.tombstoned)
        books.count("M5", found.states)
        books.count("M7", found.states)
        return found

    def _explain_by_size(self, seen: SeenVictims, tokens: int, alive_tokens: int) -> Taken:
        books, size = self.books, self.books.page_size
        removed, tombstoned = seen.removed or frozenset(), seen.tombstoned or frozenset()
        told = is_explained(books.model, removed, tombstoned, tokens, alive_tokens)
        law = "R5" if tokens > 0 or books.window is None else "S3"
        books.demand(law, told, "pages evicted", "none but what was needed", lambda: _shown(removed))
        alive = [path for path in removed | tombstoned if books.model.pages[path].alive]
        return Taken(tuple(removed), tombstoned, len(removed) * size, len(alive) * size)

    def _blame(self, seen: SeenVictims, allowed: list[Taken], tokens: int) -> NoReturn:
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
        if books.model.states is not None:
            books.model.states.remove(taken.states)
        books.model.commit_evict(taken.removed, taken.tombstoned)

    def _check_order(self, taken: Taken, seen: SeenEffects) -> None:
        """Test the number and order of calls (X2), where an implementation claims to keep it."""
        books = self.books
        if "call_order" not in books.claims or not seen.calls:
            return
        calls = ["free_state"] * len(taken.states)
        calls += ["free_swa"] * bool(books.has_halves and taken.tombstoned)
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


class StateEvictionJudge(EvictionJudge):
    """Judges what an eviction took of either kind of memory: KV in tokens, states one by one."""

    SECOND_CALL: ClassVar[str] = "free_state"

    def __init__(self, books: PrefixBooks, tracks: TrackLedger) -> None:
        super().__init__(books)
        self.tracks, self.ends = tracks, tracks.ends

    @property
    def _is_ordered(self) -> bool:
        return "exact_lru" in self.books.claims

    def _plan(self, tokens: int, secondary: int) -> Iterator[Taken]:
        """Yield what is taken in the order of recency, where that is claimed."""
        if self._is_ordered:
            yield plan_state_eviction(self.books.model, self.ends, tokens, secondary)

    def _secondary(self, operation: Evict) -> int:
        return operation.secondary

    def _forbid_moves(self, seen: SeenEffects) -> None:
        self.books.forbid("R4", "SWA halves that an eviction moves or frees", [*seen.moves, *seen.halves])

    def _expect_strike(self, taken: Taken) -> None:
        books, fault = self.books, self.books.fault
        books.expect_strike("free", books.has_pool and taken.removed)
        if fault is not None and fault.call == "free_state":
            books.demand("X2", len(taken.states) < fault.nth, "a failing call", "raised", lambda: "no error")

    def _note(self, taken: Taken, tokens: int, secondary: int) -> None:
        super()._note(taken, tokens, secondary)
        note_state_eviction(self.books, self.ends, taken, secondary)

    # -- reading -------------------------------------------------------------------------------------------

    def _read(self, seen: SeenEffects, outcome: Outcome) -> tuple[SeenVictims, int | None]:
        books = self.books
        told = None
        if not books.is_struck(outcome, "callback"):
            told = books.answer(Evicted, books.law_of_error("R5"), "evict", outcome)
            books.forbid("R5", "window tokens evicted without a window", told.swa)
        victims, _ = super()._read(seen, outcome)
        return replace(victims, swa=0, states=self._freed_states(seen)), None if told is None else told.states

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

    def _check_counts(self, seen: SeenVictims, states: int | None) -> None:
        books = self.books
        self._check_states(seen)
        if seen.removed is not None and seen.full is not None:
            books.expect("R5", "tokens evicted", len(seen.removed) * books.page_size, seen.full)
        if states is not None:
            books.expect("M6", "states evicted", len(seen.states), states)

    def _check_enough(self, seen: SeenVictims, tokens: int, secondary: int) -> None:
        self._demand_enough("R5", "tokens evicted", tokens, "evictable_size", seen.full)
        self._demand_enough("M5", "states evicted", secondary, "mamba_evictable_size", len(seen.states))

    def _explain(self, seen: SeenVictims, tokens: int, secondary: int) -> Taken:
        self._check_leaves(seen)
        return super()._explain(seen, tokens, secondary)

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

    def _blame(self, seen: SeenVictims, allowed: list[Taken], tokens: int) -> NoReturn:
        """Say which law is broken by an eviction that is not the one determined."""
        books, (plan,) = self.books, allowed
        due, too_many = set(plan.removed), "R5" if tokens > 0 else "M5"
        if seen.removed is not None and seen.removed != due:
            law = "R8" if due - plan.cascaded - seen.removed else too_many
            books.evidence.refuse(law, "pages evicted", _shown(due), _shown(seen.removed))
        if seen.states != plan.states:
            books.evidence.refuse("M5", "states evicted", _shown(plan.states), _shown(seen.states))
        books.evidence.refuse(too_many, "tokens evicted", plan.full, seen.full)

    def _settle(self, allowed: list[Taken], seen: SeenEffects, outcome: Outcome) -> str:
        """Follow an eviction whose pool refused a call: what was not taken is still there (X2)."""
        books, fault = self.books, self.books.fault
        assert fault is not None
        states = self._freed_states(seen)
        removed = read_victims(books, seen).removed or frozenset()
        victims = SeenVictims(removed, frozenset(), states=states)
        check_victims(books, victims)
        self._check_states(victims)
        books.forbid("X2", "callbacks of an eviction that failed", seen.callbacks)
        for plan in allowed:
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
