"""Judging inserts: what the cache takes, gives back, revives or refuses (R1, R3, R4, S7, X2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pymllm.errors import ProgramError
from pymllm.history.operations import Insert
from pymllm.history.outcomes import Inserted, Outcome
from pymllm.oracle.coverage.noticed import note_insert
from pymllm.oracle.models.prefix_model import InsertPlan, NotUsableError, Path
from pymllm.oracle.models.slot_ledger import Owner
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_holds import HoldJudge
from pymllm.oracle.prefix_pools import StatePart
from pymllm.oracle.seen_effects import SeenEffects, sort_effects


class InsertJudge:
    """Predicts inserts and compares everything that can be seen of them."""

    def __init__(self, books: PrefixBooks, holds: HoldJudge, states: StatePart | None = None) -> None:
        self.books, self.holds, self.states = books, holds, states

    def judge(self, step: int, operation: Insert, outcome: Outcome) -> str:
        """Judge an `Insert`; return the law that is broken where a size is wrong afterwards."""
        books, key = self.books, self.books.path_of(operation.key)
        slots = None if operation.slots is None else books.ledger.resolve(operation.slots)
        if not books.retains:
            return self._judge_unretained(step, key, outcome)
        wrong, wrong_state = self._misuse(key, slots), self._misused_state(operation, key)
        if wrong:
            books.evidence.meet("a bad insert is refused")
            return books.expect_refusal("R1", wrong, outcome, "ValueError")
        if wrong_state:
            books.evidence.meet("a state without a whole key is refused")
            return books.expect_refusal("M1", wrong_state, outcome, "ValueError")
        if slots is None:
            slots = [token for token in key.tokens if isinstance(token, int)]
        self._require_ownership(books.model.whole(key), slots)
        # To a cache with states they are options of another one, which it ignores.
        is_other = self.states is not None
        bounds = (0, 0) if is_other else (operation.prev_prefix_len, operation.swa_evicted_seqlen)
        try:
            plan = books.model.plan_insert(key, slots, *bounds)
        except NotUsableError as error:
            books.evidence.meet("a bad insert is refused")
            law = "X1" if books.model.window is None else "S7"
            return books.expect_refusal(law, str(error), outcome, "ValueError")
        if self._lacks_halves(plan):
            books.evidence.meet("halves that were not returned are refused")
            return books.expect_refusal("S7", "an insert with wrong halves", outcome, "OwnershipError")
        books.ledger.write(key, slots)
        seen = sort_effects(outcome.effects)
        if books.is_struck(outcome, "free", "move_swa"):
            return self._settle(plan, seen)
        result = books.answer(Inserted, books.law_of_error("R3"), "insert", outcome)
        if self._hides_refusal(plan, seen):
            books.refuse_hidden()
        self._compare(step, plan, key, result, any(bounds))
        if self.states is not None:
            self.states.judge_insert(operation, key, result, seen)
        self._compare_effects(plan, slots, seen)
        self._meet(plan, key, slots, bounds)
        self._commit(step, plan)
        return "R7"

    def _judge_unretained(self, step: int, key: Path, outcome: Outcome) -> str:
        """Judge a cache that keeps nothing."""
        books = self.books
        result = books.answer(Inserted, "R3", "insert", outcome)
        books.expect("R3", "prefix_len of an insert", 0, result.prefix_len)
        books.expect("R4", "adopted ranges", (), result.adopted)
        books.expect("R4", "effects of an insert", (), outcome.effects)
        self.holds.give(step, key.upto(0))
        return "R7"

    # -- arguments -----------------------------------------------------------------------------------------

    def _misuse(self, key: Path, slots: Sequence[int] | None) -> str | None:
        """Say what is wrong with the slots, whoever owns them (R1)."""
        books, size = self.books, self.books.page_size
        if slots is None:
            needed = books.has_pool or key.space.width > 1
            return "an insert without slots" if needed else None
        if len(slots) != len(key.tokens):
            return f"{len(slots)} slots for {len(key.tokens)} tokens"
        if not books.has_pool:
            return None
        for start in range(0, len(key.tokens) // size * size, size):
            page = slots[start : start + size]
            first = page[0] // size * size
            if [*page] != [*range(first, first + size)]:
                return f"slots {page} of a page that are no page of the pool"
        return None

    def _misused_state(self, operation: Insert, key: Path) -> str | None:
        if self.states is not None:
            return self.states.misuse(operation, key)
        if operation.state is not None:
            raise ProgramError("states are not claimed")
        return None

    def _require_ownership(self, whole: Path, slots: Sequence[int]) -> None:
        """Make sure that each page is the caller's, or the tree's own at this place: the caller's duty."""
        books, ledger = self.books, self.books.ledger
        if not books.has_pool:
            return
        firsts = slots[: len(whole.tokens) : books.page_size]
        if len(set(firsts)) != len(firsts):
            raise ProgramError("a slot stands in the key twice")
        for end, slot in zip(books.model.page_ends(whole), firsts, strict=True):
            owner = ledger.owner(slot)
            if owner is not Owner.CALLER and ledger.place(slot) != end:
                raise ProgramError(f"slot {slot} is in the hands of {owner.value}, and not at this place")

    def _lacks_halves(self, plan: InsertPlan) -> bool:
        """Tell whether halves are there that were to be returned, or gone where they are needed (S7)."""
        books = self.books
        if books.window is None or not books.has_halves:
            return False
        needed = {page.slots: page.alive for page in plan.new.values()}
        needed |= dict.fromkeys((*plan.replaced.values(), *map(tuple, plan.moved.values())), True)
        return any(books.ledger.has_half(slots[0]) != half for slots, half in needed.items())

    # -- comparing -----------------------------------------------------------------------------------------

    def _law_of(self, plan: InsertPlan) -> str:
        """Return the law of ownership that decides: S7 where tombstones are involved, else R4."""
        model = self.books.model
        pages = [*plan.new.values(), *(model.pages[end] for end in model.stored(plan.path))]
        return "S7" if plan.refused or not all(page.alive for page in pages) else "R4"

    def _compare(self, step: int, plan: InsertPlan, key: Path, result: Inserted, bounded: bool) -> None:
        books, law = self.books, self._law_of(plan)
        told = result.prefix_len
        if told > plan.prefix_len and books.meets_another(key, told):
            books.forbid("K1", "tokens of another namespace that an insert finds", told)
        books.expect("R3", "prefix_len of an insert", plan.prefix_len, result.prefix_len)
        books.expect(law, "adopted ranges", plan.adopted, result.adopted)
        books.count("R1", len(key.tokens) > len(plan.path.tokens))
        books.count("S7", bounded and law != "S7")
        if plan.refused:
            self._compare_refused(step, plan, result.node_len)
        elif result.node_len is not None:
            books.expect("R3", "length of last_node's path", len(plan.path.tokens), result.node_len)

    def _compare_refused(self, step: int, plan: InsertPlan, length: int | None) -> None:
        """Test that a refused insert returned the deepest known node whose end is usable (S7)."""
        books = self.books
        if length is None:
            return
        usable = [end for end in books.model.stored(plan.path) if books.model.is_usable(end)]
        known = [end for end in usable if books.nodes.cut(end)]
        least = len(known[-1].tokens) if known else 0
        allowed = [0, *(len(end.tokens) for end in usable if books.nodes.cut(end) is not False)]
        allowed = [place for place in allowed if place >= least]
        books.demand("S7", length in allowed, "last_node", f"one of {allowed} tokens deep", lambda: length)
        self.holds.give(step, plan.path.upto(length))

    def _compare_effects(self, plan: InsertPlan, slots: Sequence[int], seen: SeenEffects) -> None:
        books, law = self.books, self._law_of(plan)
        incoming = sorted(set(seen.freed) & set(slots) - set(plan.displaced))
        books.forbid("R4", "incoming slots that were freed", incoming)
        same = Counter(seen.freed) == Counter(plan.displaced)
        books.demand(law, same, "slots that an insert frees", f"{plan.displaced}", lambda: seen.freed)
        books.expect(law, "SWA halves that an insert moves", plan.moves, seen.moves)
        books.forbid("R4", "SWA halves that an insert frees", seen.halves)
        books.forbid("R5", "callbacks of an insert", seen.callbacks)
        books.expect_strike("move_swa", plan.moves)
        books.expect_strike("free", plan.displaced)
        if "call_order" in books.claims and seen.calls:
            calls = ["move_swa"] * bool(plan.moves) + ["free"] * bool(plan.displaced)
            books.expect("X2", "calls of an insert", calls, seen.calls)

    def _hides_refusal(self, plan: InsertPlan, seen: SeenEffects) -> bool:
        """Tell whether only what a call that was let fail should have taken is missing (X2)."""
        is_part = set(seen.freed) <= set(plan.displaced) and seen.moves.items() <= plan.moves.items()
        lacks = {"move_swa": seen.moves != plan.moves, "free": len(seen.freed) < len(plan.displaced)}
        return is_part and any(lacks[call] and self.books.may_hide(call, seen.calls) for call in lacks)

    def _commit(self, step: int, plan: InsertPlan) -> None:
        books, ledger = self.books, self.books.ledger
        ledger.move_halves(plan.moves)
        ledger.give_back(plan.displaced)
        self.holds.note_revival(plan.moved)
        books.model.commit_insert(plan)
        books.nodes.may_split(plan.splits)
        if plan.refused:
            return
        for end in (*plan.new, *plan.replaced):
            ledger.adopt(end, books.model.pages[end].slots)
        self.holds.give(step, plan.path)

    # -- faults --------------------------------------------------------------------------------------------

    def _settle(self, plan: InsertPlan, seen: SeenEffects) -> str:
        """Follow an insert whose pool refused a call: moved halves stay moved, nothing is adopted (X2)."""
        books, fault = self.books, self.books.fault
        assert fault is not None
        reason = plan.displaced if fault.call == "free" else plan.moves
        books.demand("X2", reason, f"an insert that calls {fault.call}", "a reason to", lambda: "none")
        books.forbid("X2", "slots freed by an insert that failed", [*seen.freed, *seen.halves])
        whole = {end: moves for end, moves in plan.moved.items() if moves.keys() <= seen.moves.keys()}
        moves = {source: target for each in whole.values() for source, target in each.items()}
        books.expect("X2", "SWA halves that a failed insert moved", moves, seen.moves)
        if "call_order" in books.claims:
            due = plan.moves if fault.call == "free" else {}
            books.expect("X2", "moves before the call that failed", due, seen.moves)
        books.ledger.move_halves(moves)
        books.model.commit_moves(whole)
        self.holds.note_revival(whole)
        books.nodes.may_split(plan.splits)
        what = "displaced slots" if fault.call == "free" else "a revival under a hold"
        books.evidence.meet(f"the pool refuses {what}")
        return "X2"

    # -- situations ----------------------------------------------------------------------------------------

    def _dead(self, path: Path) -> list[Path]:
        pages = self.books.model.pages
        return [end for end in self.books.model.stored(path) if not pages[end].alive]

    def _meet(self, plan: InsertPlan, key: Path, slots: Sequence[int], bounds: tuple[int, int]) -> None:
        books, evidence, whole = self.books, self.books.evidence, len(plan.path.tokens)
        cached = books.model.slots(plan.path.upto(plan.prefix_len))
        own = sum(slot == given for slot, given in zip(cached, slots, strict=False))
        dead = [] if books.window is None else self._dead(plan.path)
        stay = [end for end in dead if end not in plan.replaced and end not in plan.moved]
        same = [end for end in stay if books.model.pages[end].slots == _page_of(end, slots, books.page_size)]
        met = {
            "an empty key is inserted": not key.tokens,
            "a key shorter than a page is inserted": key.tokens and not whole,
            "an insert finds the whole key cached": whole and plan.prefix_len == whole,
            "an insert passes the matched prefix back": own and whole > own,
            "an insert brings duplicates": books.has_pool and own < len(cached),
            "an unaligned tail stays the caller's": len(key.tokens) > whole,
            "an insert is refused whole": plan.refused,
            "an insert is refused whole and what was cached is the caller's": plan.refused
            and books.has_pool
            and any(books.ledger.owner(slot) is Owner.CALLER for slot in slots[bounds[0] : plan.prefix_len]),
            "an insert is refused whole that would have revived a tombstone": plan.refused
            and any(
                len(end.tokens) - books.page_size >= max(bounds) and not books.model.locks(end)
                for end in dead
                if end not in same
            ),
            "a tombstone is revived under a hold": plan.moved,
            "an unlocked tombstone is revived": plan.replaced,
            "new pages are born dead": any(not page.alive for page in plan.new.values()),
            "a held tombstone stays dead": not plan.refused and any(books.model.locks(end) for end in stay),
            "a dead page gets its own slots back": not plan.refused and same,
        }
        evidence.meet_each(met)
        note_insert(books, plan, dead, *bounds)


def _page_of(end: Path, slots: Sequence[int], size: int) -> tuple[int, ...]:
    return tuple(slots[len(end.tokens) - size : len(end.tokens)])
