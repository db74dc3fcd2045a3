"""The owner and the contents of each slot and track slot under a prefix cache (R4, M7, E1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from pymllm.errors import ProgramError
from pymllm.history.operations import Span, Token, WriteState
from pymllm.history.spans import GivenNumbers
from pymllm.oracle.models.prefix_model import Path, Space, StateEnds
from pymllm.oracle.models.slot_model import PageModel, WindowModel

_SHARED = -1


class KVContent:
    """The expected KV content of every row, in both the full and the SWA half.

    A content is a number that stands for a namespace and a whole token prefix: KV of a token depends on
    all tokens before it. Numbers are equal exactly where those are, so no two prefixes collide.
    """

    def __init__(self) -> None:
        self._full: dict[int, int] = {}
        self._swa: dict[int, int] = {}
        self._numbers: dict[tuple[Space | int, Token], int] = {}

    def of_path(self, path: Path) -> list[int]:
        """Return the KV content of each position of a path."""
        contents: list[int] = []
        for token in path.tokens:
            prefix = contents[-1] if contents else path.space
            contents.append(self._numbers.setdefault((prefix, token), len(self._numbers)))
        return contents

    def write(self, slots: Iterable[int], contents: Iterable[int], halves: Iterable[bool]) -> None:
        """Record contents written to rows, and to their SWA halves where they have one."""
        for slot, content, half in zip(slots, contents, halves, strict=True):
            self._full[slot] = content
            if half:
                self._swa[slot] = content

    def write_number(self, slot: int, content: int) -> None:
        """Record a write to a row in no pool; a row with two contents is no longer checked."""
        self._full[slot] = content if self._full.get(slot, content) == content else _SHARED

    def move_halves(self, moves: Mapping[int, int]) -> None:
        """Move the SWA half of each source to its target."""
        moved = {target: self._swa.pop(source, _SHARED) for source, target in moves.items()}
        self._swa.update(moved)

    def drop(self, slots: Iterable[int]) -> None:
        """Forget the contents of rows that were given back."""
        for slot in slots:
            self._full.pop(slot, None)
            self._swa.pop(slot, None)

    def drop_halves(self, slots: Iterable[int]) -> None:
        """Forget the contents of SWA halves that were given back."""
        for slot in slots:
            self._swa.pop(slot, None)

    def is_known(self, slots: Iterable[int]) -> bool:
        """Tell whether each of these rows has one known content."""
        return all(self._full.get(slot) != _SHARED for slot in slots)

    def first_wrong(self, path: Path, slots: Sequence[int], window: int | None) -> str | None:
        """Return words for the first row of a path that differs from a cold run.

        Of the last ``window`` tokens the SWA halves are read, too.
        """
        contents = self.of_path(path)
        for place, (slot, content) in enumerate(zip(slots, contents, strict=True)):
            if self._full.get(slot) != content:
                return f"token {place} in slot {slot} has KV of another prefix"
            if window is not None and place >= len(slots) - window and self._swa.get(slot) != content:
                return f"token {place} in slot {slot} has window KV of another prefix, or none"
        return None


class Owner(Enum):
    """The owner of a slot."""

    POOL = "the pool"
    CALLER = "the caller"
    CACHE = "the cache"
    NOBODY = "nobody: it is not in the pool"


class SlotOwnership:
    """The owner of every slot, its SWA half, and the contents written to both.

    The pool is ``"none"``, ``"token"`` or ``"swa"``, its sizes are tokens. Without a pool, slots are numbers
    that belong to nobody.
    """

    def __init__(self, pool: str, page_size: int, slots: int = 0, swa_slots: int = 0) -> None:
        self.page_size = page_size
        self.pool: PageModel | WindowModel | None = None
        self.full = PageModel(slots // page_size)  # pages of the full pool
        if pool == "swa":
            self.pool = WindowModel(self.full, PageModel(swa_slots // page_size))
        elif pool == "token":
            self.pool = self.full
        self.content = KVContent()
        self._given = GivenNumbers()
        self._places: dict[int, Path] = {}

    # -- names ---------------------------------------------------------------------------------------------

    def record(self, step: int, slots: tuple[int, ...]) -> None:
        """Record the slots that a step returned, in order, so that spans can name them."""
        self._given.record(step, slots)

    def resolve(self, spans: Iterable[Span]) -> list[int]:
        """Return the slots that spans name; raise `ProgramError` if a step returned fewer."""
        return self._given.resolve(spans)

    def name(self, slots: Sequence[int]) -> tuple[Span, ...]:
        """Return spans that name exactly these slots, in order, by the last steps that returned them."""
        return self._given.name(slots)

    # -- questions -----------------------------------------------------------------------------------------

    def owner(self, slot: int) -> Owner:
        """Return the owner of a slot."""
        return self.owners((slot,))[slot]

    def owners(self, slots: Iterable[int]) -> dict[int, Owner]:
        """Return the owners of slots, by slot."""
        size, places, held, last = self.page_size, self._places, self.full.held, self.full.pages
        owners = {}
        for slot in slots:
            page = slot // size
            if page in places:
                owners[slot] = Owner.CACHE
            elif page in held:
                owners[slot] = Owner.CALLER
            else:
                owners[slot] = Owner.POOL if 1 <= page <= last else Owner.NOBODY
        return owners

    def place(self, slot: int) -> Path | None:
        """Return the cached path whose last page has a slot; ``None`` if the cache does not own the slot."""
        return self._places.get(slot // self.page_size)

    def places(self, slots: Iterable[int]) -> frozenset[Path]:
        """Return the cached paths whose last pages have these slots."""
        size, places = self.page_size, self._places
        return frozenset([places[slot // size] for slot in slots if slot // size in places])

    def has_half(self, slot: int) -> bool:
        """Tell whether a slot has its SWA half; false for a pool without halves."""
        return isinstance(self.pool, WindowModel) and slot // self.page_size in self.pool.half

    def callers_slots(self) -> list[int]:
        """Return the slots of the caller that a program can name, in ascending order.

        Of a page that an allocation took for a part of it, these are the slots that it answered.
        """
        if self.pool is None:
            return []
        pages = sorted(self.full.held - self._places.keys())
        return [slot for page in pages for slot in self._given.given_with_first(self._slots_of([page]))]

    def room(self) -> int:
        """Return the number of whole pages that can be handed out."""
        return 0 if self.pool is None else self.pool.free_count

    def sizes(self) -> dict[str, int]:
        """Return the pool's sizes in tokens, by their documented names."""
        size, pool = self.page_size, self.pool
        if pool is None:
            return {}
        if not isinstance(pool, WindowModel):
            return {"available_size": pool.free_count * size}
        full, swa = pool.full.free_count * size, pool.swa.free_count * size
        least = full if full < swa else swa
        return {"available_size": least, "full_available_size": full, "swa_available_size": swa}

    def _pages_of(self, slots: Iterable[int]) -> list[int]:
        size = self.page_size
        return sorted({slot // size for slot in slots})

    def _slots_of(self, pages: Iterable[int]) -> list[int]:
        size = self.page_size
        return [slot for page in pages for slot in range(page * size, (page + 1) * size)]

    # -- what happens --------------------------------------------------------------------------------------

    def hand_out(self, pages: Sequence[int], halves: Sequence[int] = ()) -> None:
        """Give free pages to the caller, each with a free SWA page if the pool has them."""
        if isinstance(self.pool, WindowModel):
            self.pool.take(pages, halves)
        else:
            self.full.take(pages)

    def give_back(self, slots: Iterable[int]) -> None:
        """Return the pages of these slots to the pool, whoever owns them, with their remaining SWA halves."""
        if self.pool is None:
            return
        pages = self._pages_of(slots)
        for page in pages:
            self._places.pop(page, None)
        self.pool.give(pages)
        self.content.drop(self._slots_of(pages))

    def give_back_halves(self, slots: Iterable[int]) -> None:
        """Return the SWA halves of the pages of these slots to the pool."""
        if isinstance(self.pool, WindowModel):
            pages = self._pages_of(slots)
            self.pool.give_halves(pages)
            self.content.drop_halves(self._slots_of(pages))

    def move_halves(self, moves: Mapping[int, int]) -> None:
        """Move the SWA half of each source slot to its target slot."""
        if isinstance(self.pool, WindowModel):
            size = self.page_size
            pairs = {source // size: target // size for source, target in moves.items()}
            self.pool.move(list(pairs), list(pairs.values()))
            self.content.move_halves(moves)

    def adopt(self, path: Path, slots: Sequence[int]) -> None:
        """Make the cache the owner of the page of these slots, as the last page of a path."""
        if self.pool is not None:
            self._places[slots[0] // self.page_size] = path

    def disown(self, slots: Iterable[int]) -> None:
        """Make the caller the owner of slots that the cache dropped and no pool took."""
        for page in self._pages_of(slots):
            self._places.pop(page, None)

    def write(self, path: Path, slots: Sequence[int]) -> None:
        """Record a forward pass over a path, which fills the caller's rows and SWA halves (E1)."""
        contents = self.content.of_path(path)
        if self.pool is None:
            for slot, content in zip(slots, contents, strict=True):
                self.content.write_number(slot, content)
            return
        owners, size = self.owners(slots), self.page_size
        own = [place for place, slot in enumerate(slots) if owners[slot] is Owner.CALLER]
        half = self.pool.half if isinstance(self.pool, WindowModel) else ()
        self.content.write(
            [slots[place] for place in own],
            [contents[place] for place in own],
            [slots[place] // size in half for place in own],
        )


class TrackOwnership:
    """The owner of every track slot; ``ends`` are the track slots of the cache."""

    def __init__(self, size: int, ends: StateEnds) -> None:
        self.size, self.ends = size, ends
        self.callers: set[int] = set()  # those in the caller's hands
        self.given = GivenNumbers()  # the track slots that steps gave
        self._written: dict[int, Path] = {}
        self._filled: dict[tuple[int, int], WriteState] = {}

    # -- questions -----------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of track slots that can be handed out."""
        return self.size - len(self.callers) - len(self.ends.slots)

    def sizes(self) -> dict[str, int]:
        """Return the size of the pool, by the documented name of its counter."""
        return {"available_track_slots": self.room()}

    def place(self, slot: int) -> Path | None:
        """Return the prefix at whose end the cache has a track slot; ``None`` if the slot is not its own."""
        return next((path for path, here in self.ends.slots.items() if here == slot), None)

    def owner(self, slot: int) -> Owner:
        """Return the owner of a track slot."""
        if slot in self.callers:
            return Owner.CALLER
        return Owner.POOL if self.place(slot) is None else Owner.CACHE

    def content(self, slot: int) -> Path | None:
        """Return the prefix whose state is in a track slot; ``None`` if no state is."""
        return self._written.get(slot)

    def filled(self, layer: int) -> Iterator[tuple[int, WriteState]]:
        """Yield the owned track slots that have been written, each with its last content."""
        owned = self.callers.union(self.ends.slots.values())
        return ((slot, last) for (slot, at), last in self._filled.items() if at == layer and slot in owned)

    def callers_slot(self, span: Span) -> int:
        """Return the track slot that a span names; raise `ProgramError` unless the caller owns it."""
        numbers = self.given.resolve((span,))
        if len(numbers) != 1 or numbers[0] not in self.callers:
            raise ProgramError(f"{span} names {numbers}; it must name one track slot of the caller's")
        return numbers[0]

    # -- what happens --------------------------------------------------------------------------------------

    def hand_out(self, step: int, slot: int) -> None:
        """Give a free track slot to the caller."""
        self.given.record(step, (slot,))
        self.callers.add(slot)
        self._filled = {place: last for place, last in self._filled.items() if place[0] != slot}

    def take_back(self, slot: int) -> None:
        """Return a track slot of the caller to the pool."""
        self.callers.remove(slot)

    def write(self, slot: int, path: Path) -> None:
        """Record that the caller copied the state after a prefix into a track slot."""
        self._written[slot] = path

    def fill(self, slot: int, operation: WriteState) -> None:
        """Record that the caller wrote numbers into a layer of a track slot."""
        self._filled[slot, operation.layer] = operation

    def adopt(self, path: Path, slot: int) -> None:
        """Make the cache the owner of the caller's track slot, at the end of a prefix."""
        self.callers.remove(slot)
        self.ends.add(path, slot)

    def disown(self, slots: Iterable[int]) -> None:
        """Make the caller the owner of track slots that the cache dropped and the pool did not take."""
        self.callers.update(slots)
