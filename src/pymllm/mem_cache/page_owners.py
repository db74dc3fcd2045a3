"""The record of a pool's page owners, a debugging aid that refuses a caller's wrong insert or free.

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
"""A half-open range of a key's tokens, in whole pages."""

_TO_RETURN: Final = "evict it or reset the cache, which give it back"
_TO_INSERT: Final = "insert slots that alloc returned and no cache has adopted"


class Tree(Protocol):
    """The interface of a cache's tree: its nodes, and the epoch that each reset replaces."""

    @property
    def epoch(self) -> object:
        """An object that identifies the time since the last reset."""

    def nodes(self) -> Iterable[Any]:
        """Yield every node except the root."""

    def slots_left(self, node: Any) -> torch.Tensor:
        """Return the slots that a node still has."""


class Guard(Protocol):
    """The interface of the state of a cache's current call."""

    @property
    def is_in_a_pool(self) -> bool:
        """Whether the cache is returning slots to a pool at this moment."""


class Store(Protocol):
    """The interface of a pool's pages, with the record of those handed out."""

    page_size: int
    pages: int
    last_slot: int

    def claim(self, indices: torch.Tensor) -> Any:
        """Return the distinct pages of slots that are handed out, or raise an error."""

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot whether a caller holds it."""

    def outside_error(self, slot: int, indices: torch.Tensor) -> OwnershipError:
        """Return the error for a slot that the pool never hands out."""


class Owner:
    """A cache in its role as an owner of pages in a pool.

    ``name``: its class, and its number among the caches over the pool. ``tree``, ``guard``: the cache's own.
    """

    def __init__(self, owners: PageOwners, name: str, tree: Tree, guard: Guard) -> None:
        self.owners = owners
        self.name = name
        self.tree = tree
        self.guard = guard

    def prepare(self, slots: torch.Tensor, adopted: Sequence[Run], lent: Sequence[Run] = ()) -> Adoption:
        """Return the planned adoption of runs of a key's slots, or raise an error; nothing changes.

        ``slots``: one for each token of the key. ``adopted``: the runs that the cache is to own. ``lent``:
        the runs whose window halves alone it takes. Cost: O(slots) in Python, and on a device a wait. Laws:
        R1, X1.
        """
        return self.owners.prepare(self, slots, adopted, lent)

    def refuse_state(self, track_slot: int, nodes: Iterable[Any]) -> None:
        """Raise an error for a track slot that a node of the cache already has (M7)."""
        for node in nodes:
            if node._track_slot == track_slot:
                raise OwnershipError(
                    f"track slot {track_slot} is cached already: node {node.id} of {self.name} has it "
                    f"(this is step {self.owners.step}): give one that alloc_track_slot returned "
                    "and no cache has adopted"
                )

    def pages(self) -> set[int]:
        """Return the pages that the cache owns. Cost: O(pages of the pool)."""
        return self.owners.pages_of(self)

    def describe(self, page: int, page_size: int) -> str:
        """Return words for the node that has a page. Cost: O(slots of the cache)."""
        for node in self.tree.nodes():
            if (self.tree.slots_left(node) // page_size == page).any():
                held = ", under a lock" if node.lock_ref else ""
                return f"node {node.id} of {self.name} has it{held}"
        return f"{self.name} has it, in no node any more"


class Adoption:
    """Pages that a cache will own, checked but not yet recorded.

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
        """Whether the cache has not been reset since the check."""
        return self._epoch is self.owner.tree.epoch

    def note(self) -> None:
        """Record the pages as the cache's; nothing here can fail."""
        self.owner.owners.note_adopted(self)


class PageOwners:
    """The cache that owns each page of a pool, and the step in which each page was freed.

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
        """Return the records of a pool whose pages are all free, for `open`."""
        pages = self._store.pages + 1
        return [None] * pages, [0] * pages

    def open(self, entries: tuple[list[Adoption | None], list[int]]) -> None:
        """Start again with such records; the step count goes on."""
        self._adoptions, self._given_back = entries

    def join(self, cache: Any, tree: Tree, guard: Guard) -> Owner:
        """Return the owner object for a new cache."""
        self._caches += 1
        return Owner(self, f"{type(cache).__name__} {self._caches}", tree, guard)

    # -- inserts -------------------------------------------------------------------------------------

    def prepare(
        self, owner: Owner, slots: torch.Tensor, adopted: Sequence[Run], lent: Sequence[Run]
    ) -> Adoption:
        """Return a planned adoption, as `Owner.prepare` does."""
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
        """Raise an error for the first slot that is outside the pool, free, or cached."""
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
        """Record that a cache has adopted pages; nothing here can fail."""
        for page in adoption.pages:
            self._adoptions[page] = adoption

    def pages_of(self, owner: Owner) -> set[int]:
        """Return the pages that a cache owns, as `Owner.pages` does."""
        return {
            page
            for page, adoption in enumerate(self._adoptions)
            if adoption is not None and adoption.owner is owner and adoption.counts
        }

    # -- calls of the pool ---------------------------------------------------------------------------

    def give_back(self, give: Callable[[torch.Tensor], None], slots: torch.Tensor) -> None:
        """Take slots back into the pool, or raise an error as `claim` does."""
        pages = self.claim(slots)
        step = self.step
        give(slots)
        for page in pages:
            self._adoptions[page] = None
            self._given_back[page] = step

    def claim(self, *slots: torch.Tensor) -> list[int]:
        """Return the distinct pages of slots that a call may free, or raise an error; nothing changes.

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
        """Return words, in parentheses, for the step in which a page was freed and the current step."""
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
