"""Judging the caller's own calls to the pool under a prefix cache (A1, A2, A3, A7, X4, S2)."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.errors import ProgramError
from pymllm.history.operations import Alloc, Free, FreeSWA, MoveSWA, ReadHalves, Span
from pymllm.history.outcomes import Done, NoRoom, Outcome, Slots
from pymllm.oracle.pool_answers import check_halves, check_pages
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.slot_ledger import Owner
from pymllm.oracle.slot_model import WindowModel

__all__ = ["PoolPart"]


class PoolPart:
    """Follows what the caller takes from the pool and gives back itself.

    Misuse of the pool has no meaning here: it is judged in slot allocators.

    Parameters
    ----------
    books : PrefixBooks
        What all parts share.
    """

    def __init__(self, books: PrefixBooks) -> None:
        self.books = books
        self._halves_law = "A7" if "A7" in books.laws else "A2"

    def judge_alloc(self, step: int, operation: Alloc, outcome: Outcome) -> str:
        """Judge an `Alloc`; return the law that is broken where a size is wrong afterwards."""
        books, ledger, result = self.books, self.books.ledger, outcome.result
        if ledger.pool is None or operation.tokens < 0:
            raise ProgramError(f"{operation.tokens} slots of pool {books.pool!r}")
        pages = -(-operation.tokens // books.page_size)
        if pages > ledger.room():
            books.expect("X4", f"alloc({operation.tokens})", NoRoom(), result)
            books.evidence.meet("memory runs out")
            return "X4"
        given = books.answer(Slots, "A3", f"alloc({operation.tokens})", outcome)
        taken = check_pages(books.evidence, ledger.full, books.page_size, operation.tokens, given.slots)
        halves: list[int] = []
        if isinstance(ledger.pool, WindowModel):
            halves = self._check_halves(ledger.pool, given)
        ledger.hand_out(taken, halves)
        ledger.record(step, given.slots)
        return "A2"

    def _check_halves(self, pool: WindowModel, given: Slots) -> list[int]:
        books = self.books
        if "A7" in books.laws:
            return check_halves(books.evidence, pool.swa, books.page_size, given.slots, given.swa_slots)
        if len(given.swa_slots) != len(given.slots):
            told = f"{len(given.swa_slots)} SWA slots for {len(given.slots)} slots"
            raise ProgramError(f"{told}: without them a pool with SWA halves cannot be followed")
        pages = [slot // books.page_size for slot in given.swa_slots[:: books.page_size]]
        if any(not pool.swa.has(page) for page in pages):
            books.evidence.refuse(
                "A2", "SWA halves of an alloc", f"pages 1..{pool.swa.pages}", f"pages {pages}"
            )
        return pages

    def judge_free(self, step: int, operation: Free, outcome: Outcome) -> str:
        """Judge a `Free` of what is the caller's."""
        slots = self._callers(operation.slots)
        self.books.expect("A2", f"free({slots})", Done(), outcome.result)
        self.books.ledger.give_back(slots)
        return "A2"

    def judge_free_swa(self, step: int, operation: FreeSWA, outcome: Outcome) -> str:
        """Judge a `FreeSWA` of what is the caller's."""
        slots = self._callers(operation.slots)
        self._require_halves(slots, True)
        self.books.expect(self._halves_law, f"free_swa({slots})", Done(), outcome.result)
        self.books.ledger.give_back_halves(slots)
        return self._halves_law

    def judge_move_swa(self, step: int, operation: MoveSWA, outcome: Outcome) -> str:
        """Judge a `MoveSWA` between slots of the caller's, whole pages in order."""
        source, target = self._callers(operation.source), self._callers(operation.target)
        self._require_halves(source, True)
        self._require_halves(target, False)
        if len(source) != len(target):
            raise ProgramError(f"{len(source)} sources of a move, {len(target)} targets")
        self.books.expect(self._halves_law, f"move_swa({source}, {target})", Done(), outcome.result)
        self.books.ledger.move_halves(dict(zip(source, target, strict=True)))
        return self._halves_law

    def judge_read_halves(self, step: int, operation: ReadHalves, outcome: Outcome) -> str:
        """Judge a `ReadHalves` of any slots of the pool: in the tree, alive is to have one (S2)."""
        books, ledger, size = self.books, self.books.ledger, self.books.page_size
        slots = ledger.resolve(operation.slots)
        if not isinstance(ledger.pool, WindowModel):
            raise ProgramError("the pool has no SWA halves")
        found = books.answer(Slots, self._halves_law, "halves", outcome).swa_slots
        pages = [ledger.pool.half.get(slot // size) for slot in slots]
        halves = [
            0 if page is None else page * size + slot % size for slot, page in zip(slots, pages, strict=True)
        ]
        for slot, half, seen in zip(slots, halves, found, strict=False):
            law = "S2" if ledger.owner(slot) is Owner.CACHE and bool(half) != bool(seen) else "A7"
            books.expect(law, f"SWA half of slot {slot}", half, seen)
        books.expect("A7", "number of halves", len(slots), len(found))
        books.count("S2", any(ledger.place(slot) for slot in slots))
        return self._halves_law

    # -- the caller's duty ---------------------------------------------------------------------------------

    def _callers(self, spans: Sequence[Span]) -> list[int]:
        books, ledger = self.books, self.books.ledger
        slots = ledger.resolve(spans)
        if ledger.pool is None:
            raise ProgramError("there is no pool")
        if len(set(slots)) != len(slots):
            raise ProgramError("a slot is named twice")
        for slot in slots:
            owner = ledger.owner(slot)
            if owner is not Owner.CALLER:
                raise ProgramError(f"slot {slot} is in the hands of {owner.value}, pool {books.pool!r}")
        return slots

    def _require_halves(self, slots: Sequence[int], there: bool) -> None:
        for slot in slots:
            if self.books.ledger.has_half(slot) != there:
                raise ProgramError(f"slot {slot} {'lacks' if there else 'has'} its SWA half")
