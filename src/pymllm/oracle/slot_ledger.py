"""Who owns each slot of the pool under a prefix cache: nobody, the caller, or the cache, and where in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from pymllm.history.operations import Span
from pymllm.oracle.given_numbers import GivenNumbers
from pymllm.oracle.kv_content import KVContent
from pymllm.oracle.prefix_pages import Path
from pymllm.oracle.slot_model import PageModel, WindowModel

__all__ = ["Owner", "SlotLedger"]


class Owner(Enum):
    """In whose hands a slot is."""

    POOL = "the pool"
    CALLER = "the caller"
    CACHE = "the cache"
    NOBODY = "nobody: it is not in the pool"


class SlotLedger:
    """Every slot with its one owner, its SWA half, and what was written into both.

    Parameters
    ----------
    pool : str
        ``"none"``, ``"token"`` or ``"swa"``. Without a pool, slots are numbers that belong to nobody.
    page_size : int
        Tokens per page.
    slots, swa_slots : int
        Sizes of the pool in tokens.

    Attributes
    ----------
    pool : PageModel, WindowModel or None
        Its pages, free and held.
    content : KVContent
        What was written.
    """

    def __init__(self, pool: str, page_size: int, slots: int = 0, swa_slots: int = 0) -> None:
        self.page_size = page_size
        self.pool: PageModel | WindowModel | None = None
        if pool == "swa":
            self.pool = WindowModel(slots // page_size, swa_slots // page_size)
        elif pool == "token":
            self.pool = PageModel(slots // page_size)
        self.content = KVContent()
        self._given = GivenNumbers()
        self._places: dict[int, Path] = {}

    # -- names ---------------------------------------------------------------------------------------------

    def record(self, step: int, slots: tuple[int, ...]) -> None:
        """Remember which slots a step gave, in order, so that spans can name them."""
        self._given.record(step, slots)

    def resolve(self, spans: Iterable[Span]) -> list[int]:
        """Return the slots that spans name; `ProgramError` where a step gave fewer."""
        return self._given.resolve(spans)

    def name(self, slots: Sequence[int]) -> tuple[Span, ...]:
        """Return spans that name exactly these slots, in order, by the steps that gave them last."""
        return self._given.name(slots)

    # -- questions -----------------------------------------------------------------------------------------

    @property
    def full(self) -> PageModel:
        """Pages of the full pool; there must be one."""
        pool = self.pool
        assert pool is not None
        return pool.full if isinstance(pool, WindowModel) else pool

    def page_of(self, slot: int) -> int:
        """Return the page of the pool in which a slot lies."""
        return slot // self.page_size

    def owner(self, slot: int) -> Owner:
        """Tell in whose hands a slot is."""
        page = self.page_of(slot)
        if page in self._places:
            return Owner.CACHE
        if page in self.full.held:
            return Owner.CALLER
        return Owner.POOL if self.full.has(page) else Owner.NOBODY

    def place(self, slot: int) -> Path | None:
        """Return the cached path whose last page has a slot; ``None`` where the cache does not own it."""
        return self._places.get(self.page_of(slot))

    def has_half(self, slot: int) -> bool:
        """Tell whether a slot has its SWA half; false where there are no such."""
        return isinstance(self.pool, WindowModel) and self.page_of(slot) in self.pool.half

    def callers_slots(self) -> list[int]:
        """Return the slots in the caller's hands, in ascending order."""
        if self.pool is None:
            return []
        return self._slots_of(sorted(self.full.held - self._places.keys()))

    def room(self) -> int:
        """Return how many whole pages can be handed out."""
        return 0 if self.pool is None else self.pool.free_count

    def sizes(self) -> dict[str, int]:
        """Return the pool's sizes in tokens, by their documented names."""
        size, pool = self.page_size, self.pool
        if pool is None:
            return {}
        sizes = {"available_size": pool.free_count * size}
        if isinstance(pool, WindowModel):
            sizes["full_available_size"] = pool.full.free_count * size
            sizes["swa_available_size"] = pool.swa.free_count * size
        return sizes

    def _pages_of(self, slots: Iterable[int]) -> list[int]:
        return sorted({self.page_of(slot) for slot in slots})

    def _slots_of(self, pages: Iterable[int]) -> list[int]:
        size = self.page_size
        return [slot for page in pages for slot in range(page * size, (page + 1) * size)]

    # -- what happens --------------------------------------------------------------------------------------

    def hand_out(self, pages: Sequence[int], halves: Sequence[int] = ()) -> None:
        """Give free pages to the caller, with a free SWA page behind each where there are such."""
        if isinstance(self.pool, WindowModel):
            self.pool.take(pages, halves)
        else:
            self.full.take(pages)

    def give_back(self, slots: Iterable[int]) -> None:
        """Return the pages of these slots to the pool, whoever had them, with what is left of halves."""
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
        """Let the half of each target slot be that of its source."""
        if isinstance(self.pool, WindowModel):
            pairs = {self.page_of(source): self.page_of(target) for source, target in moves.items()}
            self.pool.move(list(pairs), list(pairs.values()))
            self.content.move_halves(moves)

    def adopt(self, path: Path, slots: Sequence[int]) -> None:
        """Let the cache own the page of these slots, as the last page of a path."""
        if self.pool is not None:
            self._places[self.page_of(slots[0])] = path

    def disown(self, slots: Iterable[int]) -> None:
        """Let the caller own what the cache dropped and no pool took."""
        for page in self._pages_of(slots):
            self._places.pop(page, None)

    def write(self, path: Path, slots: Sequence[int]) -> None:
        """Let a forward pass over a path fill the rows and halves that are the caller's (E1)."""
        contents = self.content.of_path(path)
        if self.pool is None:
            for slot, content in zip(slots, contents, strict=True):
                self.content.write_number(slot, content)
            return
        own = [place for place, slot in enumerate(slots) if self.owner(slot) is Owner.CALLER]
        self.content.write(
            [slots[place] for place in own],
            [contents[place] for place in own],
            [self.has_half(slots[place]) for place in own],
        )
