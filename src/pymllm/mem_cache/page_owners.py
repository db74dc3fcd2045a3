"""The owners of a pool's pages: a debug switch that refuses a caller's wrong insert or free.

An allocator built with ``check_ownership=True`` keeps them. Caches over it ask here before they adopt slots,
and the allocator asks before it takes slots back. Where the switch is not given, nothing of this exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError

Run: TypeAlias = tuple[int, int]
"""A half-open range of tokens of a key, in whole pages."""

_TO_RETURN: Final = "evict it or reset the cache, which give it back"
_TO_INSERT: Final = "insert slots that alloc returned and no cache has adopted"


class Tree(Protocol):
    """The nodes of a cache, and the epoch that a reset replaces."""

    @property
    def epoch(self) -> object:
        """The object that stands for the time since the last reset."""

    def nodes(self) -> Iterable[Any]:
        """Visit every node but the root."""

    def slots_left(self, node: Any) -> torch.Tensor:
        """Return the slots of a node."""


class Guard(Protocol):
    """The state of a cache's call."""

    @property
    def is_in_a_pool(self) -> bool:
        """Whether the cache is giving slots back at this moment."""


class Store(Protocol):
    """The pages of a pool, and which of them are handed out."""

    page_size: int
    pages: int
    last_slot: int

    def claim(self, indices: torch.Tensor) -> Any:
        """Return the distinct pages of slots that are handed out, or refuse them."""

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Answer for each slot whether a caller has it."""

    def outside_error(self, slot: int, indices: torch.Tensor) -> OwnershipError:
        """Word the refusal of a slot that the pool never hands out."""


class Owner:
    """A cache, as an owner of pages of its pool.

    ``name``: its class, and its number among the caches over the pool. ``tree``, ``guard``: the cache's own.
    """

    def __init__(self, owners: PageOwners, name: str, tree: Tree, guard: Guard) -> None:
        self.owners = owners
        self.name = name
        self.tree = tree
        self.guard = guard

    def prepare(self, slots: torch.Tensor, adopted: Sequence[Run], lent: Sequence[Run] = ()) -> Adoption:
        """Return the adoption of some runs of a key's slots, or refuse the insert; change nothing.

        ``slots``: one for each token of the key. ``adopted``: the runs that the cache is to own. ``lent``:
        the runs whose window halves alone it takes. Cost: O(slots) in Python, and on a device a wait. Laws:
        R1, X1.
        """
        return self.owners.prepare(self, slots, adopted, lent)

    def refuse_state(self, track_slot: int, nodes: Iterable[Any]) -> None:
        """Refuse a track slot that one of the cache's nodes with a state has (M7)."""
        for node in nodes:
            if node._track_slot == track_slot:
                raise OwnershipError(
                    f"track slot {track_slot} is cached already: node {node.id} of {self.name} has it "
                    f"(this is step {self.owners.step}): give one that alloc_track_slot returned "
                    "and no cache has adopted"
                )

    def pages(self) -> set[int]:
        """Return the pages that the cache has. Cost: O(pages of the pool)."""
        return self.owners.pages_of(self)

    def describe(self, page: int, page_size: int) -> str:
        """Say in which node a page is. Cost: O(slots of the cache)."""
        for node in self.tree.nodes():
            if (self.tree.slots_left(node) // page_size == page).any():
                held = ", under a lock" if node.lock_ref else ""
                return f"node {node.id} of {self.name} has it{held}"
        return f"{self.name} has it, in no node any more"


class Adoption:
    """Pages that a cache is to own, checked and not yet written down.

    It counts until the cache's next reset. ``step``: that of the insert.
    """

    __slots__ = ("_epoch", "owner", "pages", "step")

    def __init__(self, owner: Owner, pages: Sequence[int], step: int) -> None:
        self.owner = owner
        self.pages = pages
        self.step = step
        self._epoch = owner.tree.epoch

    @property
    def counts(self) -> bool:
        """Whether the cache has not been reset since."""
        return self._epoch is self.owner.tree.epoch

    def note(self) -> None:
        """Write the pages down as the cache's; nothing here can fail."""
        self.owner.owners.note_adopted(self)


class PageOwners:
    """The cache that has each page of a pool, and the step in which each page was given back.

    ``store``: the pages of the pool; of a pool with window halves, those of the full slots. ``step``: how
    many calls have asked for slots, given them or their halves back, moved halves, or inserted. What a cache
    gives back as it evicts, inserts or starts again is a step of its own. Cost: 16 bytes a page and O(pages
    named) in Python for each call, and on a device a wait. Laws: A5, R1, X1.
    """

    def __init__(self, store: Store) -> None:
        self.step = 0
        self._store = store
        self._caches = 0
        self.open(self.new())

    def new(self) -> tuple[list[Adoption | None], list[int]]:
        """Return the entries of a pool whose pages are all free, for `open`."""
        pages = self._store.pages + 1
        return [None] * pages, [0] * pages

    def open(self, entries: tuple[list[Adoption | None], list[int]]) -> None:
        """Begin anew with such entries; steps go on counting."""
        self._adoptions, self._given_back = entries

    def join(self, cache: Any, tree: Tree, guard: Guard) -> Owner:
        """Return a new cache as an owner of pages."""
        self._caches += 1
        return Owner(self, f"{type(cache).__name__} {self._caches}", tree, guard)

    # -- inserts -------------------------------------------------------------------------------------

    def prepare(
        self, owner: Owner, slots: torch.Tensor, adopted: Sequence[Run], lent: Sequence[Run]
    ) -> Adoption:
        """Return an adoption, as `Owner.prepare`."""
        self.step += 1
        size = self._store.page_size
        numbers: NDArray[np.int64] = slots.cpu().numpy().astype(np.int64)
        is_adopted = np.zeros(len(numbers), np.bool_)
        is_taken = is_adopted.copy()
        for start, end in adopted:
            is_adopted[start:end] = is_taken[start:end] = True
        for start, end in lent:
            is_taken[start:end] = True
        self._refuse_insert(numbers[is_taken][::size], slots)
        pages: list[int] = (numbers[is_adopted][::size] // size).tolist()
        seen = set((numbers[~is_adopted] // size).tolist())
        for page in pages:
            if page in seen:
                raise OwnershipError(
                    f"{self._name(page * size)} is named more than once in one key "
                    f"(this is step {self.step}): {_TO_INSERT}"
                )
            seen.add(page)
        return Adoption(owner, pages, self.step)

    def _refuse_insert(self, starts: NDArray[np.int64], slots: torch.Tensor) -> None:
        """Refuse the first slot that is outside the pool, free, or cached."""
        are_held = self._store.is_handed_out(torch.from_numpy(starts)).tolist()
        for slot, is_held in zip(starts.tolist(), are_held, strict=True):
            if not self._store.page_size <= slot <= self._store.last_slot:
                raise self._store.outside_error(slot, slots)
            page = slot // self._store.page_size
            if not is_held:
                raise OwnershipError(f"{self._name(slot)} is not handed out{self.told(page)}: {_TO_INSERT}")
            adoption = self._adoptions[page]
            if adoption is not None and adoption.counts:
                raise self._cached_error(adoption, page, "is cached already", _TO_INSERT)

    def note_adopted(self, adoption: Adoption) -> None:
        """Write down that a cache has adopted pages; nothing here can fail."""
        for page in adoption.pages:
            self._adoptions[page] = adoption

    def pages_of(self, owner: Owner) -> set[int]:
        """Return the pages that a cache has, as `Owner.pages`."""
        return {
            page
            for page, adoption in enumerate(self._adoptions)
            if adoption is not None and adoption.owner is owner and adoption.counts
        }

    # -- calls of the pool ---------------------------------------------------------------------------

    def give_back(self, give: Callable[[torch.Tensor], None], slots: torch.Tensor) -> None:
        """Let the pool take slots back, or refuse them as `claim`."""
        pages = self.claim(slots)
        step = self.step
        give(slots)
        for page in pages:
            self._adoptions[page] = None
            self._given_back[page] = step

    def claim(self, *slots: torch.Tensor) -> list[int]:
        """Return the distinct pages of slots of which a call disposes, or refuse them; change nothing.

        Refused is what a cache has, unless that cache is giving slots back at this moment.
        """
        self.step += 1
        pages: list[int] = []
        for each in slots:
            pages += self._store.claim(each).tolist()
        for page in pages:
            adoption = self._adoptions[page]
            if adoption is not None and adoption.counts and not adoption.owner.guard.is_in_a_pool:
                raise self._cached_error(adoption, page, "is cached", _TO_RETURN)
        return pages

    # -- words ---------------------------------------------------------------------------------------

    def told(self, page: int) -> str:
        """Say in which step a free page was given back, and which step it is now, in parentheses."""
        step = self._given_back[page]
        since = f"given back in step {step}" if step else "alloc has not returned it yet"
        return f" ({since}; this is step {self.step})"

    def _cached_error(self, adoption: Adoption, page: int, state: str, way_out: str) -> OwnershipError:
        size = self._store.page_size
        where = adoption.owner.describe(page, size)
        steps = f"adopted in step {adoption.step}; this is step {self.step}"
        return OwnershipError(f"{self._name(page * size)} {state}: {where} ({steps}): {way_out}")

    def _name(self, slot: int) -> str:
        size = self._store.page_size
        return f"slot {slot}" if size == 1 else f"page {slot // size} of slot {slot}"
