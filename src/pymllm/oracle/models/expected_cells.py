"""The expected contents of the cells of a memory, and the laws that other contents break."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pymllm.oracle.models.kind_model import Seen

CellT = TypeVar("CellT", bound=tuple[Any, ...])

Content = tuple[int, ...]
"""The content of one cell."""


class BlankCells(Mapping[tuple[Any, int], Content]):
    """The initial contents of all cells, computed instead of stored, by part and a number below ``count``."""

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
    """The expected contents of a memory, updated by every write, and compared in full at each reading.

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
        self._holds: dict[CellT, Content] = {}
        self._may_hold: dict[CellT, tuple[Content, ...]] = {}  # where that is not one, and no other
        self._tested: dict[str, None] = {}
        self._forget_blame()

    def _forget_blame(self) -> None:
        self._blame: dict[CellT, str] = {}
        self._strays: dict[Content, str] = {}
        self._suspect = self._law
        self._tested.clear()

    @property
    def cells(self) -> Set[CellT]:
        """Every cell of the memory."""
        return self._blank.keys()

    def holds(self, cell: CellT) -> tuple[Content, ...]:
        """Return the contents that a cell may have; an empty tuple permits any content."""
        if cell in self._holds:
            return (self._holds[cell],)
        if cell in self._may_hold:
            return self._may_hold[cell]
        return (self._blank[cell],) if self._is_blank else ()

    def put(self, law: str, cell: CellT, *contents: Content) -> None:
        """Record a write of a cell: it may then hold any of ``contents``, or anything if there are none."""
        if contents != self.holds(cell):
            self._tested[law] = None
        if len(contents) == 1:
            self._holds[cell] = contents[0]
            self._strays[contents[0]] = law
            self._may_hold.pop(cell, None)
        else:
            self._may_hold[cell] = contents
            self._strays.update(dict.fromkeys(contents, law))
            self._holds.pop(cell, None)
        self._blame[cell] = self._suspect = law

    def bring(self, law: str, contents: Iterable[Content]) -> None:
        """Record a refused write: cells that hold its contents unexpectedly show that it was carried out."""
        self._strays.update(dict.fromkeys(contents, law))

    def release(self, cell: CellT) -> None:
        """Record that a cell's owner gave it up, so that the next owner may find any content."""
        self._may_hold[cell] = ()
        self._holds.pop(cell, None)

    def release_all(self) -> None:
        """Record that all owners gave up all cells."""
        self._holds.clear()
        self._may_hold.clear()
        self._is_blank = False

    def wipe(self, law: str) -> None:
        """Record that the whole memory returned to its initial contents."""
        for cell, content in self._holds.items():
            if content != self._blank[cell]:
                self.put(law, cell, self._blank[cell])
        for cell in [*self._may_hold]:
            self.put(law, cell, self._blank[cell])
        self._is_blank = True
        self._suspect = law

    def suspect(self, law: str) -> None:
        """Suspect an operation that must change no cells, or only the cells recorded after this call."""
        self._suspect = law
        self._tested[law] = None

    @property
    def tested(self) -> tuple[str, ...]:
        """The laws of all operations since the last reading, which the next reading tests."""
        return (*self._tested,)

    def find_wrong(self, found: Mapping[CellT, Content]) -> tuple[str, str, str, str] | None:
        """Return words for the first wrong cell, its permitted and actual contents, and the broken law."""
        if found == self._holds:  # most readings: compared at once
            return None
        for cell, content in found.items():
            may_hold = self.holds(cell)
            if may_hold and content not in may_hold and not _is_mixed(content, may_hold):
                expected = " or ".join(str(_plain(one)) for one in may_hold)
                return (
                    self._wording.format(*cell),
                    expected,
                    str(_plain(content)),
                    self._law_of(cell, content),
                )
        return None

    def settle(self, found: dict[CellT, Content]) -> None:
        """Accept a reading as the expected contents, and clear all suspicion."""
        self._holds = found
        self._may_hold.clear()
        self._forget_blame()

    def _law_of(self, cell: CellT, content: Content) -> str:
        written = self._blame.get(cell) or self._strays.get(content)
        if written:
            return written
        is_known = cell in self._holds or cell in self._may_hold
        was_there = not is_known or self._law in self._tested
        return self._law if was_there and self._is_foreign(content) else self._suspect


def _is_mixed(content: Content, contents: tuple[Content, ...]) -> bool:
    return len(content) == len(contents[0]) and all(
        element in elements for element, elements in zip(content, zip(*contents, strict=True), strict=True)
    )


def _plain(content: Content) -> Content | int:
    return content[0] if len(content) == 1 else content


@dataclass(slots=True, kw_only=True)
class SeenCells(Seen):
    """A reading of a whole memory: the expected cells, the observed ones, and the form of the memory."""

    memory: ExpectedCells[Any]
    cells: dict[Any, Content]
    form: Any
