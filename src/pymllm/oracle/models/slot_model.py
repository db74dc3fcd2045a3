"""The model of a slot pool as plain sets of pages, simple rather than fast.

A model counts in pages and knows no slots, spans or errors. It is told what was handed out and taken
back, and answers what is free, whose turn it is, and where halves are. It refuses nothing: whoever
judges asks first (`PageModel.is_free`, `PageModel.lowest`) and tells it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain, islice

_SHOWN = 200
"""The number of page numbers from which their text is too long for any message."""


class Remainder(Set[int]):
    """The free numbers of a range, stored as the set of the numbers that are taken, to save memory."""

    __slots__ = ("gone", "whole")

    def __init__(self, whole: range, gone: set[int] | None = None) -> None:
        self.whole = whole
        self.gone: set[int] = set() if gone is None else gone

    @classmethod
    def _from_iterable(cls, numbers: Iterable[int]) -> Set[int]:  # type: ignore[override]
        """Build the result of a set operation."""
        return set(numbers)

    def __contains__(self, number: object) -> bool:
        return number in self.whole and number not in self.gone

    def __iter__(self) -> Iterator[int]:
        """Yield the free numbers in ascending order."""
        gone = self.gone
        return (number for number in self.whole if number not in gone)

    def __reversed__(self) -> Iterator[int]:
        """Yield the free numbers in descending order."""
        gone = self.gone
        return (number for number in reversed(self.whole) if number not in gone)

    def __len__(self) -> int:
        return len(self.whole) - len(self.gone)

    def __str__(self) -> str:
        return str([*islice(self, _SHOWN)])

    def issuperset(self, numbers: Sequence[int]) -> bool:
        """Tell whether all of these numbers are free."""
        if not numbers:
            return True
        whole = self.whole
        is_inside = whole.start <= min(numbers) and max(numbers) < whole.stop
        return is_inside and self.gone.isdisjoint(numbers)

    def intersection(self, numbers: Iterable[int]) -> set[int]:
        """Return the numbers among these that are free."""
        return {number for number in numbers if number in self}

    def take(self, numbers: Iterable[int]) -> None:
        """Remove numbers from the free ones."""
        self.gone.update(numbers)

    def give(self, numbers: Iterable[int]) -> None:
        """Return numbers to the free ones."""
        self.gone.difference_update(numbers)


class PageModel:
    """The model of one pool: pages 1 to ``pages`` are each in one of five sets (A2), and page 0 pads (A1)."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.clear()

    def clear(self) -> None:
        """Make every page free, whether held or not, and close the open group (X7)."""
        self.old = Remainder(range(1, self.pages + 1))  # free since before the last merge (A4)
        self.young: set[int] = set()  # free since then
        self.pending: set[int] = set()  # taken back inside the open group; neither free nor held (A6)
        self.held: set[int] = set()  # in the hands of callers
        self.parked: set[int] = set()  # taken back under a transfer; neither free nor held
        self.transfers: dict[int, int] = {}  # how many transfers each page is in
        self.group_open = False
        self._next = 1
        self._below: list[int] = []
        self._is_sorted = True

    # -- questions -----------------------------------------------------------------------------------------

    @property
    def free_count(self) -> int:
        """The number of pages that can be handed out, without pending ones."""
        return self.pages - len(self.old.gone) + len(self.young)

    def has(self, page: int) -> bool:
        """Tell whether the pool can ever hand out this page."""
        return 1 <= page <= self.pages

    def is_free(self, page: int) -> bool:
        """Tell whether a page can be handed out."""
        return page in self.old or page in self.young

    def not_free(self, pages: Sequence[int]) -> list[int]:
        """Return the pages among these that cannot be handed out, in order."""
        if self.old.issuperset(pages):  # nearly always, and asked at once
            return []
        return [page for page in pages if not self.is_free(page)]

    def needs_merge(self, count: int) -> bool:
        """Tell whether the merged free pages are fewer than ``count``, so that a merge is needed."""
        return count > len(self.old)

    def lowest(self, count: int) -> list[int]:
        """Return the next ``count`` pages of a pool that hands out the lowest first (A4)."""
        gone, below = self.old.gone, self._below
        while self._next in gone:
            self._next += 1
        if self.needs_merge(count):
            old = {*below, *range(self._next, self.pages + 1)} - gone
            return sorted(old | self.young)[:count]
        # Between two merges old pages only go, so that one sort of what came back serves them all; from the
        # next one on nothing came back. What was never handed out costs nothing, however much of it there is.
        if not self._is_sorted:
            below = self._below = sorted({*below} - gone, reverse=True)
            self._is_sorted = True
        while below and below[-1] in gone:
            below.pop()
        ascending = chain(reversed(below), range(self._next, self.pages + 1))
        return list(islice((page for page in ascending if page not in gone), count))

    # -- what happens --------------------------------------------------------------------------------------

    def take(self, pages: Sequence[int]) -> None:
        """Hand out free pages, after a merge if one is needed."""
        if self.needs_merge(len(pages)):
            self.merge()
        self.old.take(pages)
        self.young.difference_update(pages)
        self.held.update(pages)

    def give(self, pages: Iterable[int]) -> None:
        """Take back held pages, which stay parked during a transfer and pending inside a group."""
        given = set(pages)
        self.held -= given
        if self.transfers:
            waiting = given & self.transfers.keys()
            self.parked |= waiting
            given -= waiting
        (self.pending if self.group_open else self.young).update(given)

    def begin_transfer(self, pages: Iterable[int]) -> None:
        """Add pages to one more transfer."""
        for page in pages:
            self.transfers[page] = self.transfers.get(page, 0) + 1

    def coming_back(self, pages: Iterable[int]) -> set[int]:
        """Return the pages of a transfer that become free or pending when it ends."""
        return {page for page in pages if page in self.parked and self.transfers[page] == 1}

    def end_transfer(self, pages: Iterable[int]) -> None:
        """Remove pages from one transfer; parked pages that are in no other are given back."""
        back = self.coming_back(pages)
        for page in pages:
            self.transfers[page] -= 1
            if not self.transfers[page]:
                del self.transfers[page]
        self.parked -= back
        (self.pending if self.group_open else self.young).update(back)

    def merge(self) -> None:
        """Merge the pages freed since the last merge into the others."""
        if self.young:
            self.old.give(self.young)
            self._below += [page for page in self.young if page < self._next]
            self._is_sorted = False
            self.young = set()

    def begin_group(self) -> None:
        """Open a group, in which pages that are given back stay pending."""
        self.group_open = True

    def end_group(self) -> None:
        """Close the group, and free its pending pages."""
        self.group_open = False
        self.young |= self.pending
        self.pending = set()


class WindowModel:
    """The model of a full pool and a window pool, with the window page that each full page has (A7)."""

    def __init__(self, full: PageModel, swa: PageModel) -> None:
        self.full, self.swa = full, swa
        self.half: dict[int, int] = {}  # window page by full page; a full page without one is not in it

    @property
    def free_count(self) -> int:
        """The number of pages that can be handed out together with an SWA half."""
        return min(self.full.free_count, self.swa.free_count)

    @property
    def alive(self) -> list[int]:
        """Full pages with an SWA half, in order."""
        return sorted(self.half)

    @property
    def gone(self) -> list[int]:
        """Held full pages without an SWA half, in order."""
        return sorted(self.full.held - self.half.keys())

    def take(self, pages: Sequence[int], halves: Sequence[int]) -> None:
        """Hand out free full pages, each with a free window page."""
        self.full.take(pages)
        self.swa.take(halves)
        self.half.update(zip(pages, halves, strict=True))

    def give(self, pages: Iterable[int]) -> None:
        """Take back held full pages, with their remaining SWA halves."""
        given = set(pages)
        self.full.give(given)
        self.give_halves(given & self.half.keys())

    def give_halves(self, pages: Iterable[int]) -> None:
        """Take back the SWA halves of full pages, which stay held."""
        self.swa.give([self.half.pop(page) for page in pages])

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Give the SWA half of ``source[i]`` to ``target[i]``."""
        moved = [self.half.pop(page) for page in source]
        self.half.update(zip(target, moved, strict=True))

    def merge(self) -> None:
        """Merge both pools."""
        self.full.merge()
        self.swa.merge()

    def begin_group(self) -> None:
        """Open a group in both pools."""
        self.full.begin_group()
        self.swa.begin_group()

    def end_group(self) -> None:
        """Close the group in both pools."""
        self.full.end_group()
        self.swa.end_group()

    def clear(self) -> None:
        """Make every page of both pools free, and close the open group."""
        self.full.clear()
        self.swa.clear()
        self.half = {}
