"""What must stand in each cell of a memory, and which law is broken where something else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pymllm.oracle.evidence import Evidence

CellT = TypeVar("CellT", bound=tuple[Any, ...])

Content = tuple[int, ...]
"""What stands in one cell."""


class BlankCells(Mapping[tuple[Any, int], Content]):
    """Cells of two parts, the second 0 to ``count``, and what each holds at first; none is kept."""

    def __init__(self, contents: Mapping[Any, Content], count: int) -> None:
        self._contents, self._numbers = contents, range(count)

    def __getitem__(self, cell: tuple[Any, int]) -> Content:
        first, number = cell
        if number not in self._numbers:
            raise KeyError(cell)
        return self._contents[first]

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return ((first, number) for first in self._contents for number in self._numbers)

    def __len__(self) -> int:
        return len(self._contents) * len(self._numbers)


class ExpectedCells(Generic[CellT]):
    """Follows every write and compares the whole memory when somebody reads it.

    Where the laws leave open which of several writes came last, a cell may hold any of them until it is read,
    or of each element any one's: a scatter races for each by itself. A cell that nobody owns may hold
    anything.

    ``wording`` names a cell in messages, as in ``"row {}, position {}"``. ``blank`` has every cell, a tuple,
    and what it holds at first. Cost: what was written, released or read; a memory that nobody touches costs
    nothing.

    The blame: a cell that was written since the last reading blames that write's law. Any other blames the
    law of a write whose content has strayed there, or else of the last operation, which changed too much. A
    foreign content, one that no operation has a reason to bring, blames ``law`` instead where nobody has read
    the cell yet, or where what that law is about has happened since: the last operation may have found it
    there.
    """

    def __init__(
        self,
        wording: str,
        law: str,
        blank: Mapping[CellT, Content],
        is_foreign: Callable[[Content], bool] = lambda content: False,
    ) -> None:
        self._wording = wording
        self._law = law
        self._blank = blank
        self._is_foreign = is_foreign
        self._is_blank = True  # what nobody touched; else it may hold anything
        self._may_hold: dict[CellT, tuple[Content, ...]] = {}
        self._tested: dict[str, None] = {}
        self._forget_blame()

    def _forget_blame(self) -> None:
        self._blame: dict[CellT, str] = {}
        self._strays: dict[Content, str] = {}
        self._suspect = self._law
        self._tested.clear()

    @property
    def cells(self) -> Set[CellT]:
        """Every cell."""
        return self._blank.keys()

    def holds(self, cell: CellT) -> tuple[Content, ...]:
        """Return what a cell may hold; nothing stands for anything."""
        held = self._may_hold.get(cell)
        if held is None:
            return (self._blank[cell],) if self._is_blank else ()
        return held

    def put(self, law: str, cell: CellT, *contents: Content) -> None:
        """Follow a write of a cell: it holds one of ``contents`` then, or anything where there are none."""
        if contents != self.holds(cell):
            self._tested[law] = None
        self._may_hold[cell] = contents
        self._blame[cell] = self._suspect = law
        self._strays.update(dict.fromkeys(contents, law))

    def bring(self, law: str, contents: Iterable[Content]) -> None:
        """Follow a refused write: where one of these contents stands unawaited, it has been carried out."""
        self._strays.update(dict.fromkeys(contents, law))

    def release(self, cell: CellT) -> None:
        """Follow the end of a cell's ownership: whoever gets it next finds anything there."""
        self._may_hold[cell] = ()

    def release_all(self) -> None:
        """Follow the end of all ownership."""
        self._may_hold.clear()
        self._is_blank = False

    def wipe(self, law: str) -> None:
        """Follow a return of the whole memory to what it was at first."""
        for cell, held in self._may_hold.items():
            blank = (self._blank[cell],)
            if held != blank:
                self.put(law, cell, *blank)
        self._is_blank = True
        self._suspect = law

    def suspect(self, law: str) -> None:
        """Follow an operation that must not change anything here, or nothing but what it puts after that."""
        self._suspect = law
        self._tested[law] = None

    def test(self, evidence: Evidence, found: Mapping[CellT, Content]) -> None:
        """Compare every cell with what was read, and count each law that could have been seen broken."""
        wrong = self.find_wrong(found)
        if wrong is not None:
            what, expected, observed, law = wrong
            evidence.refuse(law, what, expected, observed)
        evidence.count(*self.tested)
        self.follow_reading(found)

    def find_wrong(self, found: Mapping[CellT, Content]) -> tuple[str, str, str, str] | None:
        """Return the first cell that holds what it may not: its name, the one, the other, whose law it is."""
        known = self._may_hold
        for cell, content in found.items():
            may_hold = known[cell] if cell in known else self.holds(cell)
            if may_hold and content not in may_hold and not _is_mixed(content, may_hold):
                expected = " or ".join(str(_plain(one)) for one in may_hold)
                what = self._wording.format(*cell)
                return what, expected, str(_plain(content)), self._law_of(cell, content)
        return None

    @property
    def tested(self) -> tuple[str, ...]:
        """The laws that a reading could see broken now."""
        return tuple(self._tested)

    def follow_reading(self, found: Mapping[CellT, Content]) -> None:
        """Follow a reading of every cell, which was right: from now on each holds what was read."""
        self._may_hold.update({cell: (content,) for cell, content in found.items()})
        self._forget_blame()

    def _law_of(self, cell: CellT, content: Content) -> str:
        written = self._blame.get(cell) or self._strays.get(content)
        if written:
            return written
        was_there = cell not in self._may_hold or self._law in self._tested
        return self._law if was_there and self._is_foreign(content) else self._suspect


def _is_mixed(content: Content, contents: tuple[Content, ...]) -> bool:
    return len(content) == len(contents[0]) and all(
        element in elements for element, elements in zip(content, zip(*contents, strict=True), strict=True)
    )


def _plain(content: Content) -> Content | int:
    return content[0] if len(content) == 1 else content
