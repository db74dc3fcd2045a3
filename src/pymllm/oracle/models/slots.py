"""The model of slot allocators: the expected outcomes, in pages, and the state of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    Alloc,
    BeginGroup,
    BeginTransfer,
    Clear,
    EndGroup,
    EndTransfer,
    Free,
    FreeSWA,
    Merge,
    MoveSWA,
    ReadHalves,
)
from pymllm.history.outcomes import NoRoom, Outcome, Slots
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, KindModel, Misuse, Seen
from pymllm.oracle.models.slot_model import PageModel, WindowModel

_OWNED = ("OwnershipError",)
_PADDING = Misuse("padding is refused", "A5", _OWNED, needs="refuses_foreign")
_PAST_THE_END = Misuse("an index past the end is refused", "A5", _OWNED, needs="refuses_foreign")
_NEGATIVE = Misuse("a negative index is refused", "A5", _OWNED, needs="refuses_foreign")
_FREE = Misuse("a double free is refused", "A5", _OWNED, needs="refuses_double_free")
_PENDING = Misuse("a double free inside a group is refused", "A5", _OWNED, needs="refuses_double_free")
_PARKED = Misuse("a double free under transfer is refused", "A5", _OWNED, needs="refuses_double_free")
_OVER = Misuse("the end of a transfer that is over is refused", "A5", _OWNED, needs="refuses_double_free")
_TWICE = Misuse("a slot named twice is refused", "A5", _OWNED, needs="refuses_double_free")
_HALF_GONE = Misuse("a half that is gone is refused", "A7", _OWNED, needs="refuses_double_free")
_NO_SOURCE = Misuse("a move from a slot without a half is refused", "A7", _OWNED)
_FREE_SOURCE = Misuse("a move from a free slot is refused", "A7", _OWNED, needs="refuses_double_free")
_TARGET_TAKEN = Misuse("a move to a slot with a half is refused", "A7", _OWNED)
_FREE_TARGET = Misuse("a move to a free slot is refused", "A7", _OWNED, needs="refuses_double_free")
_UNEQUAL = Misuse("a move of unequal lengths is refused", "A7", ("ValueError",))
_ACROSS = Misuse("a move across pages is refused", "A7", ("ValueError",))
_OUTSIDE = Misuse("a half outside the pool is refused", "X1", _OWNED, needs="refuses_foreign")
_NESTED = Misuse("a group in a group is refused", "A6", ("RuntimeError",), "group_errors", "A6")
_NOT_BEGUN = Misuse("an end without a group is refused", "A6", ("RuntimeError",), "group_errors", "A6")


@dataclass(slots=True)
class SeenAlloc(Seen):
    """An allocation: the pages that it should take, and the pages of its slots and their halves."""

    wanted: int = 0
    slots: tuple[int, ...] = ()
    pages: list[int] = None  # type: ignore[assignment]
    halves: tuple[int, ...] = ()
    half_pages: list[int] = None  # type: ignore[assignment]


@dataclass(slots=True)
class SeenSlots(Seen):
    """An operation on slots: the slots in the order named, and their pages, without repeats."""

    slots: Sequence[int] = ()
    pages: Sequence[int] = ()
    target: Sequence[int] = ()  # of a move


@dataclass(slots=True)
class SeenTransfer(SeenSlots):
    """The start or end of a transfer, with the window pages of its pages."""

    halves: Sequence[int] = ()


class SlotModel(KindModel):
    """The model of a slot pool, page by page; it copies the allocator's own choices.

    The configuration has ``page_size``, ``pages``, and ``swa_pages`` where ``swa`` is claimed.
    """

    KIND: ClassVar[str] = "slots"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        if "pool" not in self.claims:
            raise ProgramError(f"{header.adapter} is a slot allocator, and does not claim a pool")
        self.page_size, pages = self.number("page_size"), self.number("pages")
        self.full = PageModel(pages)
        swa = PageModel(self.number("swa_pages")) if "swa" in self.claims else None
        self.window_pool = None if swa is None else WindowModel(self.full, swa)
        self.pool: PageModel | WindowModel = self.full if self.window_pool is None else self.window_pool
        self.order_suspect = ""  # the law of what may have left its trace in the order, until all is merged
        self.transfers: dict[int, SeenTransfer] = {}  # those under way, by the step that began each
        self.ended: dict[int, None] = {}  # the steps that began the others
        self.most_taken = 0  # pages that one allocation took
        self.is_as_cleared = False  # nothing was given back since a clear

    def sizes(self) -> dict[str, int]:
        """Return the sizes that the specification determines, in tokens, by their documented names."""
        # Asked after every operation: counted here, without three properties and a `min`.
        size, pool, window = self.page_size, self.full, self.window_pool
        full = (pool.pages - len(pool.old.gone) + len(pool.young)) * size
        if window is None:
            return {"available_size": full}
        pool = window.swa
        swa = (pool.pages - len(pool.old.gone) + len(pool.young)) * size
        least = full if full < swa else swa
        # Their minimum last: where one of the two is wrong, that says more.
        return {"full_available_size": full, "swa_available_size": swa, "available_size": least}

    def suspect(self, law: str) -> None:
        """Suspect an operation of a wrong order of the pages handed out next (A4)."""
        self.order_suspect = law

    # -- allocation ----------------------------------------------------------------------------------------

    def read_alloc(self, operation: Alloc, outcome: Outcome) -> SeenAlloc:
        """Find the pages of the slots and halves that an allocation returned."""
        if operation.tokens < 0:
            raise ProgramError(f"a size is not negative, got {operation.tokens}")
        size, result = self.page_size, outcome.result
        wanted = -(-operation.tokens // size)
        if isinstance(result, Slots):
            slots, halves = result.slots, result.swa_slots
            return SeenAlloc(
                result,
                DONE,
                (),
                wanted,
                slots,
                [slot // size for slot in slots[::size]],
                halves,
                [half // size for half in halves[::size]],
            )
        is_short = isinstance(result, NoRoom) and wanted > self.pool.free_count
        return SeenAlloc(result, NO_ROOM if is_short else DONE, (), wanted, (), [], (), [])

    def follow_alloc(self, step: int, operation: Alloc, seen: SeenAlloc) -> None:
        """Hand out the pages, or record a failure as suspect."""
        if seen.fate == NO_ROOM:
            self.suspect("X4")
            return
        window = self.window_pool
        if self.full.needs_merge(seen.wanted) and (window is None or window.swa.needs_merge(seen.wanted)):
            self.order_suspect = ""
        if window is None:
            self.full.take(seen.pages)
        else:
            window.take(seen.pages, seen.half_pages)
        self.given.record(step, seen.slots)
        self.most_taken = max(self.most_taken, seen.wanted)

    def can_follow(self, seen: Seen) -> bool:
        """Tell whether an allocation gave as many distinct free pages as requested, if unexpected ones."""
        if not isinstance(seen, SeenAlloc) or not len(seen.pages) == len({*seen.pages}) == seen.wanted:
            return False
        return self.window_pool is None and all(self.full.is_free(page) for page in seen.pages)

    # -- giving back ---------------------------------------------------------------------------------------

    def read_free(self, operation: Free, outcome: Outcome) -> SeenSlots:
        """Read a free of slots, which must be held."""
        slots = self._resolve(operation)
        return self._read_slots(slots, self._misuse(slots), outcome)

    def follow_free(self, step: int, operation: Free, seen: SeenSlots) -> None:
        """Take back pages, with their remaining SWA halves."""
        self.pool.give(seen.pages)
        self.is_as_cleared = False

    def read_free_swa(self, operation: FreeSWA, outcome: Outcome) -> SeenSlots:
        """Read a free of SWA halves, which the named slots must have."""
        window, slots = self._windowed(), self._resolve(operation)
        wrong = self._misuse(slots)
        if any(page in self.full.held and page not in window.half for page in self._all_pages(slots)):
            wrong.append(_HALF_GONE)
        return self._read_slots(slots, wrong, outcome)

    def follow_free_swa(self, step: int, operation: FreeSWA, seen: SeenSlots) -> None:
        """Take back the SWA halves."""
        self._windowed().give_halves(seen.pages)
        self.is_as_cleared = False

    def read_move_swa(self, operation: MoveSWA, outcome: Outcome) -> SeenSlots:
        """Read a move of SWA halves, pair by pair."""
        window = self._windowed()
        source, target = self.given.resolve(operation.source), self.given.resolve(operation.target)
        held, half, size = self.full.held, window.half, self.page_size
        from_pages, to_pages = set(self._all_pages(source)), set(self._all_pages(target))
        is_matched = len(source) == len(target)
        is_repeated = len({*source}) < len(source) or len({*target}) < len(target)
        checks = (
            (_FREE_SOURCE, not from_pages <= held),
            (_FREE_TARGET, not to_pages <= held),
            (_NO_SOURCE, not from_pages & held <= half.keys()),
            (_TARGET_TAKEN, to_pages & half.keys()),
            (_UNEQUAL, not is_matched),
            (_ACROSS, is_matched and not _pair_up(size, source, target)),
            (_TWICE, size == 1 and is_repeated),
        )
        wrong = tuple(misuse for misuse, is_so in checks if is_so)
        if wrong:
            return SeenSlots(outcome.result, REFUSED, wrong)
        return SeenSlots(outcome.result, DONE, (), source, self._pages_of(source), self._pages_of(target))

    def follow_move_swa(self, step: int, operation: MoveSWA, seen: SeenSlots) -> None:
        """Move the SWA halves to their new pages."""
        self._windowed().move(seen.pages, seen.target)

    def read_read_halves(self, operation: ReadHalves, outcome: Outcome) -> SeenSlots:
        """Read the SWA halves of any slots of the pool, including padding and free slots."""
        self._windowed()
        slots, size = self.given.resolve(operation.slots), self.page_size
        if any(slot < 0 or slot // size > self.full.pages for slot in slots):
            return SeenSlots(outcome.result, REFUSED, (_OUTSIDE,), slots)
        return SeenSlots(outcome.result, DONE, (), slots)

    def _resolve(self, operation: Free | FreeSWA) -> list[int]:
        slots = self.given.resolve(operation.slots)
        if slots and "int" not in operation.form:
            raise ProgramError(f"slots are integers, form {operation.form!r} has none: use Malformed")
        return slots

    def _read_slots(self, slots: list[int], wrong: list[Misuse], outcome: Outcome) -> SeenSlots:
        if wrong:
            return SeenSlots(outcome.result, REFUSED, tuple(wrong), slots)
        return SeenSlots(outcome.result, DONE, (), slots, self._pages_of(slots))

    def _misuse(self, slots: Sequence[int]) -> list[Misuse]:
        """Return the mistakes in a free of slots (A5); any or several slots of a page may name the page."""
        held, size = self.full.held, self.page_size
        found = [self._wrong_with(slot) for slot in slots if slot // size not in held]
        if size == 1 and len({*slots}) != len(slots):
            found.append(_TWICE)
        return found

    def _wrong_with(self, slot: int) -> Misuse:
        page = slot // self.page_size
        if slot < 0:
            return _NEGATIVE
        if page == 0:
            return _PADDING
        if not self.full.has(page):
            return _PAST_THE_END
        if page in self.full.parked:
            return _PARKED
        return _PENDING if page in self.full.pending else _FREE

    def _all_pages(self, slots: Iterable[int]) -> list[int]:
        return [slot // self.page_size for slot in slots]

    def _pages_of(self, slots: Iterable[int]) -> list[int]:
        """Return the pages of slots, in order and without repeats."""
        size = self.page_size
        return list(dict.fromkeys([slot // size for slot in slots]))

    def _windowed(self) -> WindowModel:
        if self.window_pool is None:
            raise ProgramError("SWA halves are not claimed")
        return self.window_pool

    # -- merges, groups, clear -----------------------------------------------------------------------------

    def follow_merge(self, step: int, operation: Merge, seen: Seen) -> None:
        """Merge freed pages into the free ones; a suspected order of pages no longer matters."""
        self.pool.merge()
        self.order_suspect = ""

    def read_begin_group(self, operation: BeginGroup, outcome: Outcome) -> Seen:
        """Read the start of a group, while no other group may be open."""
        return self.refused(outcome, _NESTED) if self._group_is_open() else Seen(outcome.result)

    def follow_begin_group(self, step: int, operation: BeginGroup, seen: Seen) -> None:
        """Open a group, in which pages that are given back stay pending."""
        self.pool.begin_group()

    def read_end_group(self, operation: EndGroup, outcome: Outcome) -> Seen:
        """Read the end of a group, which must be open."""
        return Seen(outcome.result) if self._group_is_open() else self.refused(outcome, _NOT_BEGUN)

    def follow_end_group(self, step: int, operation: EndGroup, seen: Seen) -> None:
        """Free the pages that were given back during the group."""
        self.pool.end_group()

    def _group_is_open(self) -> bool:
        if "groups" not in self.claims:
            raise ProgramError("groups are not claimed")
        return self.full.group_open

    def read_begin_transfer(self, operation: BeginTransfer, outcome: Outcome) -> SeenSlots:
        """Read the start of a transfer of slots, which must be held, with their window pages."""
        if "transfers" not in self.claims:
            raise ProgramError("transfers are not claimed")
        slots = self.given.resolve(operation.memory)
        if wrong := self._misuse(slots):
            return SeenSlots(outcome.result, REFUSED, tuple(wrong), slots)
        pages, half = self._pages_of(slots), {} if self.window_pool is None else self.window_pool.half
        halves = [half[page] for page in pages if page in half]
        return SeenTransfer(outcome.result, DONE, (), slots, pages, halves=halves)

    def follow_begin_transfer(self, step: int, operation: BeginTransfer, seen: SeenTransfer) -> None:
        """Add the pages and their SWA halves to the transfer."""
        self.transfers[step] = seen
        self.full.begin_transfer(seen.pages)
        if self.window_pool is not None:
            self.window_pool.swa.begin_transfer(seen.halves)

    def read_end_transfer(self, operation: EndTransfer, outcome: Outcome) -> SeenSlots:
        """Read the end of a transfer, which must be under way."""
        if operation.transfer in self.ended:
            return SeenSlots(outcome.result, REFUSED, (_OVER,))
        if operation.transfer not in self.transfers:
            raise ProgramError(f"step {operation.transfer} began no transfer")
        begun = self.transfers[operation.transfer]
        return SeenTransfer(outcome.result, DONE, (), begun.slots, begun.pages, halves=begun.halves)

    def follow_end_transfer(self, step: int, operation: EndTransfer, seen: SeenTransfer) -> None:
        """Free the pages that were given back during the transfer."""
        del self.transfers[operation.transfer]
        self.ended[operation.transfer] = None
        self.is_as_cleared = self.is_as_cleared and not self.full.parked
        self.full.end_transfer(seen.pages)
        if self.window_pool is not None:
            self.window_pool.swa.end_transfer(seen.halves)

    def follow_clear(self, step: int, operation: Clear, seen: Seen) -> None:
        """Make every page free, whether held or not, and end all transfers."""
        self.ended |= dict.fromkeys(self.transfers)
        self.transfers = {}
        self.pool.clear()
        self.suspect("X7")
        self.is_as_cleared = True


def _pair_up(page_size: int, source: Sequence[int], target: Sequence[int]) -> bool:
    """Tell whether slots pair up by whole pages, each with the slot at the same place in its page."""
    pairs = {(a // page_size, b // page_size) for a, b in zip(source, target, strict=True)}
    ends = len({page for page, _ in pairs}), len({page for _, page in pairs})
    same_places = all(a % page_size == b % page_size for a, b in zip(source, target, strict=True))
    return ends == (len(pairs), len(pairs)) and same_places
