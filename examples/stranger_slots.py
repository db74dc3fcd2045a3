"""An allocator of pages from another project: a free list that knows nothing of pymllm."""

from __future__ import annotations


class PageList:
    """Pages 0 to ``count - 1``; the page freed last is handed out last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.clear()

    def clear(self) -> None:
        """Take everything back."""
        self.free, self.taken = list(range(self.count)), set[int]()

    def take(self, count: int) -> list[int] | None:
        """Hand out pages, or none of them."""
        if count > len(self.free):
            return None
        pages, self.free = self.free[:count], self.free[count:]
        self.taken.update(pages)
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Take pages back; raise `KeyError` if a page is not taken or is named twice."""
        if len(self.taken.intersection(pages)) < len(pages):
            raise KeyError(f"not all of {pages} can be given back")
        self.taken.difference_update(pages)
        self.free += pages
