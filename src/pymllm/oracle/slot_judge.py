"""The judge of slot allocators: laws A1 to A7 and what they share with every class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    Alloc,
    BeginGroup,
    Clear,
    EndGroup,
    Free,
    FreeSWA,
    Merge,
    MoveSWA,
    ReadHalves,
)
from pymllm.history.outcomes import Done, NoRoom, Outcome, Slots
from pymllm.oracle.coverage.noticed import note_alloc, note_free
from pymllm.oracle.models.slot_model import PageModel, WindowModel
from pymllm.oracle.pool_judge import PoolJudge, check_halves, check_pages


@dataclass(frozen=True, slots=True)
class Misuse:
    """One thing that is wrong with slots that a caller names, its law, and the documented error."""

    situation: str
    law: str = "A5"
    error: str = "OwnershipError"


_PADDING = Misuse("padding is refused")
_PAST_THE_END = Misuse("an index past the end is refused")
_NEGATIVE = Misuse("a negative index is refused")
_FREE = Misuse("a double free is refused")
_PENDING = Misuse("a double free inside a group is refused")
_TWICE = Misuse("a slot named twice is refused")
_HALF_GONE = Misuse("a half that is gone is refused", "A7")
_NO_SOURCE = Misuse("a move from a slot without a half is refused", "A7")
_FREE_SOURCE = Misuse("a move from a free slot is refused", "A7")
_TARGET_TAKEN = Misuse("a move to a slot with a half is refused", "A7")
_FREE_TARGET = Misuse("a move to a free slot is refused", "A7")
_UNEQUAL = Misuse("a move of unequal lengths is refused", "A7", "ValueError")
_ACROSS = Misuse("a move across pages is refused", "A7", "ValueError")


def misuse_of_slots(model: PageModel, page_size: int, slots: Sequence[int]) -> list[Misuse]:
    """Return what is wrong with giving slots back (A5): of a page any of its slots, any number of times."""
    found = [wrong for slot in slots if (wrong := _wrong_with(model, page_size, slot)) is not None]
    if page_size == 1 and len(set(slots)) != len(slots):
        found.append(_TWICE)
    return found


def _wrong_with(model: PageModel, page_size: int, slot: int) -> Misuse | None:
    page = slot // page_size
    if page in model.held:
        return None
    if slot < 0:
        return _NEGATIVE
    if page == 0:
        return _PADDING
    if not model.has(page):
        return _PAST_THE_END
    return _PENDING if page in model.pending else _FREE


def misuse_of_halves(window: WindowModel, page_size: int, slots: Sequence[int]) -> list[Misuse]:
    """Return what is wrong with giving the SWA halves of these slots back (A5, A7)."""
    gone = any(page in window.full.held and page not in window.half for page in _pages(slots, page_size))
    return misuse_of_slots(window.full, page_size, slots) + [_HALF_GONE] * gone


def misuse_of_move(
    window: WindowModel, page_size: int, source: Sequence[int], target: Sequence[int]
) -> list[Misuse]:
    """Return what is wrong with giving the halves of ``source`` to ``target``, pair by pair (A7)."""
    held, half = window.full.held, window.half
    from_pages, to_pages = set(_pages(source, page_size)), set(_pages(target, page_size))
    is_matched = len(source) == len(target)
    is_repeated = len({*source}) < len(source) or len({*target}) < len(target)
    checks = (
        (_FREE_SOURCE, not from_pages <= held),
        (_FREE_TARGET, not to_pages <= held),
        (_NO_SOURCE, not from_pages & held <= half.keys()),
        (_TARGET_TAKEN, to_pages & half.keys()),
        (_UNEQUAL, not is_matched),
        (_ACROSS, is_matched and not _pair_up(page_size, source, target)),
        (_TWICE, page_size == 1 and is_repeated),
    )
    return [misuse for misuse, is_so in checks if is_so]


def _pages(slots: Sequence[int], page_size: int) -> list[int]:
    return [slot // page_size for slot in slots]


def _pair_up(page_size: int, source: Sequence[int], target: Sequence[int]) -> bool:
    """Tell whether pages go to pages one to one, each slot to the same place of its page."""
    pairs = set(zip(_pages(source, page_size), _pages(target, page_size), strict=True))
    ends = len({page for page, _ in pairs}), len({page for _, page in pairs})
    same_places = all(a % page_size == b % page_size for a, b in zip(source, target, strict=True))
    return ends == (len(pairs), len(pairs)) and same_places


_DONE = Done()


class SlotJudge(PoolJudge):
    """Follows a pool page by page; what an allocator may choose is accepted and followed.

    The configuration has ``page_size``, ``pages``, and ``swa_pages`` where ``swa`` is claimed.

    Which law a wrong order or size breaks depends on what came before it: a failed allocation (X4), a clear
    (X7), a refusal (X1), or else A4 and A2. What left no trace in the order is forgotten at the next merge.
    So with a page that is not free, after a clear before which some were given rightly.
    """

    KIND: ClassVar[str] = "slots"
    SIZES_LAW: ClassVar[str] = "A2"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.claims = frozenset(header.capabilities)
        if "pool" not in self.claims:
            raise ProgramError(f"{header.adapter} is a slot allocator, and does not claim a pool")
        self.page_size, pages = self.number("page_size"), self.number("pages")
        self.window = WindowModel(pages, self.number("swa_pages")) if "swa" in self.claims else None
        self.full = PageModel(pages) if self.window is None else self.window.full
        self.pool: PageModel | WindowModel = self.full if self.window is None else self.window
        self._order_law = "A4"
        self._most_taken = 0  # pages that one allocation took
        self._is_as_cleared = False  # nothing was given back since a clear

    def sizes(self) -> dict[str, int]:
        """Return the sizes that the specification determines, in tokens, by their documented names."""
        # Asked after every operation: counted here, without three properties and a `min`, and each test of a
        # law below counted without a call, judging takes 0.9 of the time.
        size, pool, window = self.page_size, self.full, self.window
        full = (pool.pages - len(pool.old.gone) + len(pool.young)) * size
        if window is None:
            return {"available_size": full}
        pool = window.swa
        swa = (pool.pages - len(pool.old.gone) + len(pool.young)) * size
        least = full if full < swa else swa
        # Their minimum last: where one of the two is wrong, that says more.
        return {"full_available_size": full, "swa_available_size": swa, "available_size": least}

    def _test_sizes(
        self, law: str, before: dict[str, int], now: dict[str, int], found: dict[str, int]
    ) -> None:
        if found != now:
            for name, expected in now.items():
                if found.get(name, expected) != expected:
                    blamed = "A7" if law == "A2" and name == "swa_available_size" else law
                    self.evidence.refuse(blamed, name, expected, found[name])
        if found:
            self.evidence.exercised[law] += 1

    # -- allocation ----------------------------------------------------------------------------------------

    def _judge_alloc(self, step: int, operation: Alloc, outcome: Outcome) -> str:
        if operation.tokens < 0:
            raise ProgramError(f"a size is not negative, got {operation.tokens}")
        wanted = -(-operation.tokens // self.page_size)
        result = outcome.result
        if isinstance(result, NoRoom) and wanted > self.pool.free_count:
            return self._fail_alloc()
        if not isinstance(result, Slots):
            room = f"{operation.tokens} slots" if wanted <= self.pool.free_count else "no room"
            what = f"alloc({operation.tokens})"
            self.evidence.refuse("A3", what, f"{room}: {self.pool.free_count} pages are free", result)
        # Where pages were given rightly before a clear, and wrongly after it, the clear has spoilt them.
        suspect = "X7" if self._is_as_cleared and min(wanted, 2) <= self._most_taken else ""
        given = operation.tokens, result.slots, suspect
        pages = check_pages(self.evidence, self.full, self.page_size, *given)
        self._check_order("pages", operation, self.full, pages)
        halves: list[int] = []
        if self.window is not None:
            swa, both = self.window.swa, (result.slots, result.swa_slots, suspect)
            halves = check_halves(self.evidence, swa, self.page_size, *both)
            self._check_order("SWA halves", operation, swa, halves)
        note_alloc(self.evidence, self.pool, wanted)
        if operation.tokens % self.page_size:
            self.evidence.meet("an allocation ends inside a page")
        if self._merges_all(wanted):
            self._order_law = "A4"
        if self.window is None:
            self.full.take(pages)
        else:
            self.window.take(pages, halves)
        self.given.record(step, result.slots)
        self._most_taken = max(self._most_taken, wanted)
        return "A2"

    def _fail_alloc(self) -> str:
        self._order_law = "X4"
        self.evidence.meet("an alloc fails")
        self.evidence.meet("an alloc fails with pages pending", self.full.pending)
        return "X4"

    def _check_order(self, what: str, operation: Alloc, model: PageModel, pages: list[int]) -> None:
        """Test that it was the turn of these free pages (A4), where merges are claimed."""
        if "merges" not in self.claims or not pages:
            return
        law, count = self._order_law, len(pages)
        if "sorted" in self.claims:
            if (lowest := model.lowest(count)) != pages:
                self.evidence.refuse(law, f"{what} of alloc({operation.tokens})", lowest, pages)
        elif model.young and not model.needs_merge(count):
            if not model.old.issuperset(pages):
                turn = f"pages of {model.old}"
                self.evidence.refuse(law, f"{what} of alloc({operation.tokens})", turn, pages)
        else:
            return  # any free page would have been right
        self.evidence.count(law)
        if law != "A4":
            self.evidence.count("A4")
        self.evidence.meet("an alloc fails and the order stays", law == "X4")

    def _merges_all(self, wanted: int) -> bool:
        is_due = self.full.needs_merge(wanted)
        return is_due and (self.window is None or self.window.swa.needs_merge(wanted))

    # -- giving back ---------------------------------------------------------------------------------------

    def _judge_free(self, step: int, operation: Free, outcome: Outcome) -> str:
        slots = self._resolve(operation)
        wrong = misuse_of_slots(self.full, self.page_size, slots)
        if wrong:
            return self._refuse(wrong, slots, outcome)
        pages = self._pages_of(slots)
        law = "A5" if "refusals" in self.claims and len(slots) > len(pages) else "A2"
        self._expect_done(law, lambda: f"free({slots})", outcome)
        note_free(self.evidence, self.pool, self.page_size, self.given, slots)
        self.pool.give(pages)
        self._is_as_cleared = False
        return law

    def _judge_free_swa(self, step: int, operation: FreeSWA, outcome: Outcome) -> str:
        window, slots = self._windowed(), self._resolve(operation)
        wrong = misuse_of_halves(window, self.page_size, slots)
        if wrong:
            return self._refuse(wrong, slots, outcome)
        self._expect_done("A7", lambda: f"free_swa({slots})", outcome)
        pages = self._pages_of(slots)
        self.evidence.meet("halves go before their slots", pages)
        self.evidence.meet("halves go inside a group", pages and self.full.group_open)
        window.give_halves(pages)
        self._is_as_cleared = False
        return "A7"

    def _judge_move_swa(self, step: int, operation: MoveSWA, outcome: Outcome) -> str:
        window = self._windowed()
        source, target = self.given.resolve(operation.source), self.given.resolve(operation.target)
        wrong = misuse_of_move(window, self.page_size, source, target)
        if wrong:
            return self._refuse(wrong, [], outcome)
        self._expect_done("A7", lambda: f"move_swa({source}, {target})", outcome)
        self.evidence.meet("halves move", source)
        self.evidence.meet("halves move inside a group", source and self.full.group_open)
        window.move(self._pages_of(source), self._pages_of(target))
        return "A7"

    def _judge_read_halves(self, step: int, operation: ReadHalves, outcome: Outcome) -> str:
        window, size, slots = self._windowed(), self.page_size, self.given.resolve(operation.slots)
        if any(slot < 0 or slot // size > self.full.pages for slot in slots):
            outside = Misuse("a half outside the pool is refused", "X1")
            return self._refuse([outside], slots, outcome)
        halves = [window.half.get(slot // size, 0) for slot in slots]
        expected = Slots(
            (),
            tuple(
                [half * size + slot % size if half else 0 for half, slot in zip(halves, slots, strict=True)]
            ),
        )
        if outcome.result != expected:
            self.evidence.refuse("A7", f"halves of {slots}", expected, outcome.result)
        self.evidence.count("A7")
        self.evidence.meet("a half is read", any(halves))
        self.evidence.meet("a half that is gone is read", 0 in halves)
        return "A7"

    def _resolve(self, operation: Free | FreeSWA) -> list[int]:
        slots = self.given.resolve(operation.slots)
        if slots and "int" not in operation.form:
            raise ProgramError(f"slots are integers, form {operation.form!r} has none: use Malformed")
        return slots

    def _pages_of(self, slots: Iterable[int]) -> list[int]:
        """Return each page named once, in order."""
        size = self.page_size
        return list(dict.fromkeys([slot // size for slot in slots]))

    # -- merges, groups, clear -----------------------------------------------------------------------------

    def _judge_merge(self, step: int, operation: Merge, outcome: Outcome) -> str:
        self._expect_done("A4" if "merges" in self.claims else "A2", lambda: "merge", outcome)
        self.evidence.meet("an explicit merge", self.full.young)
        self.pool.merge()
        self._order_law = "A4"
        return "A2"

    def _judge_begin_group(self, step: int, operation: BeginGroup, outcome: Outcome) -> str:
        if self._group_is_open():
            self._require_group_errors("a group inside a group")
            self.evidence.expect_error("A6", "a group inside a group", outcome, "RuntimeError")
            self.evidence.meet("a group in a group is refused")
        else:
            self._expect_done("A6", lambda: "the begin of a group", outcome)
            self.pool.begin_group()
        return "A6"

    def _judge_end_group(self, step: int, operation: EndGroup, outcome: Outcome) -> str:
        if self._group_is_open():
            self._expect_done("A6", lambda: "the end of a group", outcome)
            self.evidence.meet("a group closes", self.full.pending)
            self.pool.end_group()
        else:
            self._require_group_errors("an end without a group")
            self.evidence.expect_error("A6", "an end without a group", outcome, "RuntimeError")
            self.evidence.meet("an end without a group is refused")
        return "A6"

    def _require_group_errors(self, what: str) -> None:
        if "group_errors" not in self.claims:
            raise ProgramError(f"{what} must be refused, and the adapter does not claim that it is")

    def _group_is_open(self) -> bool:
        if "groups" not in self.claims:
            raise ProgramError("groups are not claimed")
        return self.full.group_open

    def _judge_clear(self, step: int, operation: Clear, outcome: Outcome) -> str:
        self._expect_done("X7", lambda: "clear", outcome)
        self.evidence.meet("a clear takes everything from its holders", self.full.held)
        self.evidence.meet("a clear closes a group", self.full.group_open)
        self.pool.clear()
        self._order_law = "X7"
        self._is_as_cleared = True
        return "X7"

    # -- refusals ------------------------------------------------------------------------------------------

    def refused(self) -> None:
        """Suspect a refused operation of a trace in the order of what is handed out next."""
        self._order_law = "X1"

    def _refuse(self, wrong: list[Misuse], slots: list[int], outcome: Outcome) -> str:
        errors = dict.fromkeys(misuse.error for misuse in wrong)
        what = wrong[0].situation.removesuffix(" is refused")
        law = self.expect_refusal(wrong[0].law, what, outcome, *errors)
        for misuse in wrong:
            self.evidence.meet(misuse.situation)
        self.evidence.meet("good slots stay with a bad one", len({*slots}) > len(wrong))
        return law

    # -- helpers -------------------------------------------------------------------------------------------

    def _windowed(self) -> WindowModel:
        if self.window is None:
            raise ProgramError("SWA halves are not claimed")
        return self.window

    def _expect_done(self, law: str, what: Callable[[], str], outcome: Outcome) -> None:
        """Test that a call did what it was asked; ``what`` names it, and is asked only where it did not."""
        if outcome.result != _DONE:
            self.evidence.refuse(law, what(), _DONE, outcome.result)
        self.evidence.exercised[law] += 1
