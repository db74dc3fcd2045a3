"""What a slot allocator may do, on plain sets of pages: obvious rather than fast."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PageModel", "WindowModel"]


class PageModel:
    """One pool: every page is in exactly one of four sets (A2).

    Attributes
    ----------
    old, young : set of int
        Free pages: those of before the last merge, and those freed since (A4).
    pending : set of int
        Pages given back inside the open group.
    held : set of int
        Pages in the hands of callers.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.clear()

    def clear(self) -> None:
        self.old = set(range(1, self.pages + 1))
        self.young: set[int] = set()
        self.pending: set[int] = set()
        self.held: set[int] = set()
        self.group_open = False

    @property
    def free_count(self) -> int:
        return len(self.old) + len(self.young)

    def needs_merge(self, count: int) -> bool:
        return count > len(self.old)

    def merge(self) -> None:
        self.old |= self.young
        self.young = set()

    def take(self, pages: list[int]) -> None:
        """Hand out what the allocator chose: distinct old pages, after a merge if need be."""
        if self.needs_merge(len(pages)):
            self.merge()
        assert len(set(pages)) == len(pages), "A3: a page was handed out twice in one call"
        assert set(pages) <= self.old, "A2, A4: handed out pages that are not old and free"
        self.old -= set(pages)
        self.held |= set(pages)

    def lowest(self, count: int) -> list[int]:
        """What the next ``count`` pages are where the pool is sorted."""
        candidates = self.old | self.young if self.needs_merge(count) else self.old
        return sorted(candidates)[:count]

    def give(self, pages: Iterable[int]) -> None:
        """Take back pages that are held."""
        given = set(pages)
        assert given <= self.held
        self.held -= given
        if self.group_open:
            self.pending |= given
        else:
            self.young |= given

    def end_group(self) -> None:
        self.group_open = False
        self.young |= self.pending
        self.pending = set()


class WindowModel:
    """A full pool, a window pool, and which window page is the half of which full page (A7)."""

    def __init__(self, pages: int, swa_pages: int) -> None:
        self.full, self.swa = PageModel(pages), PageModel(swa_pages)
        self.half: dict[int, int] = {}

    @property
    def alive(self) -> list[int]:
        """Full pages with a half, in order."""
        return sorted(self.half)

    @property
    def gone(self) -> list[int]:
        """Held full pages without a half, in order."""
        return sorted(self.full.held - self.half.keys())

    def take(self, pages: list[int], halves: list[int]) -> None:
        self.full.take(pages)
        self.swa.take(halves)
        self.half.update(zip(pages, halves, strict=True))

    def give(self, pages: Iterable[int]) -> None:
        """Take back full pages and what is left of their halves."""
        given = set(pages)
        self.full.give(given)
        self.give_halves(given & self.half.keys())

    def give_halves(self, pages: Iterable[int]) -> None:
        self.swa.give([self.half.pop(page) for page in pages])

    def move(self, source: list[int], target: list[int]) -> None:
        moved = [self.half.pop(page) for page in source]
        self.half.update(zip(target, moved, strict=True))

    def clear(self) -> None:
        self.full.clear()
        self.swa.clear()
        self.half = {}
