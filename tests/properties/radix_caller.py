"""The caller's side of a radix cache: the pool, what is in the caller's hands, and the map of owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from radix_model import Page, Path
from recording_pool import PoolBrokenError, RecordingPool, RecordingSWAPool

from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator, TokenToKVPoolAllocator


@dataclass(frozen=True)
class RadixConfig:
    """What is examined.

    Attributes
    ----------
    page_size : int
        Tokens per page.
    window : int or None
        Sliding window in tokens.
    pool : str
        ``"none"``, ``"token"`` (`TokenToKVPoolAllocator`) or ``"swa"`` (`SWATokenToKVPoolAllocator`).
    slots, swa_slots : int
        Sizes of the pools in tokens, tiny so that they run out.
    """

    page_size: int = 1
    window: int | None = None
    pool: str = "token"
    slots: int = 24
    swa_slots: int = 18

    @property
    def name(self) -> str:
        """A name that no other configuration has."""
        return f"Page{self.page_size}Window{self.window}{self.pool.capitalize()}"


def expect(kinds: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object]) -> Exception:
    """Return the error that a call raises; it is a failure if it does not."""
    try:
        call()
    except kinds as error:
        return error
    raise AssertionError(f"X1: no error, expected {kinds}")


class Caller:
    """Owns slots, gives them to the cache, and knows where each of them is.

    Attributes
    ----------
    pool : RecordingPool or None
        The real pool, wrapped.
    hands : dict of int to bool
        Slots in the caller's hands, and whether each still has its SWA half.
    """

    def __init__(self, config: RadixConfig) -> None:
        self.config = config
        self.pool = self._make_pool()
        self.hands: dict[int, bool] = {}
        self._next_number = 1000  # without a pool, slots are numbers never used before, and no token ids

    def _make_pool(self) -> RecordingPool | None:
        config = self.config
        if config.pool == "none":
            return None
        if config.pool == "token":
            return RecordingPool(TokenToKVPoolAllocator(config.slots, "cpu", config.page_size, True))
        return RecordingSWAPool(
            SWATokenToKVPoolAllocator(config.slots, config.swa_slots, "cpu", config.page_size, True)
        )

    # -- taking and giving -------------------------------------------------------------------------

    def allocate(self, tokens: int) -> list[int] | None:
        """Take whole pages for so many tokens, or nothing."""
        need = -(-tokens // self.config.page_size) * self.config.page_size
        if self.pool is None:
            slots = list(range(self._next_number, self._next_number + need))
            self._next_number += need
            return slots
        taken = self.pool.alloc(need)
        if taken is None:
            return None
        slots = taken.tolist()
        assert self.hands.keys().isdisjoint(slots), "A2: the pool hands out what the caller has"
        self.hands.update(dict.fromkeys(slots, self.config.pool == "swa"))
        return slots

    def shortage(self, tokens: int) -> tuple[int, int]:
        """Return how many full and window slots are missing for so many tokens."""
        need = -(-tokens // self.config.page_size) * self.config.page_size
        return need - self._available("full"), need - self._available("swa")

    def _available(self, half: str) -> int:
        assert self.pool is not None
        if self.config.pool == "swa":
            return int(getattr(self.pool, f"{half}_available_size")())
        return int(self.pool.available_size())

    def free_halves(self, slots: Sequence[int]) -> None:
        """Give SWA halves back, as an engine does once they are outside every window."""
        if self.config.pool == "swa" and slots:
            assert self.pool is not None
            self.pool.inner.free_swa(torch.tensor(slots))
            self.hands.update(dict.fromkeys(slots, False))

    def give_back(self, slots: Iterable[int]) -> None:
        """Free those of the slots that are still the caller's."""
        mine = [slot for slot in slots if slot in self.hands]
        if self.pool is not None and mine:
            self.pool.inner.free(torch.tensor(mine))
        for slot in mine:
            del self.hands[slot]

    def lose(self, slots: Iterable[int]) -> None:
        """Note that the cache owns these from now on."""
        for slot in slots:
            self.hands.pop(slot, None)

    def find(self, slots: Iterable[int]) -> None:
        """Note that these are the caller's: the cache dropped them and the pool refused them."""
        self.hands.update({slot: self._has_half(slot) for slot in slots})

    def _has_half(self, slot: int) -> bool:
        return self.config.pool == "swa" and bool(self.pool.translate_to_swa(torch.tensor([slot])).item())

    # -- the pool's side ---------------------------------------------------------------------------

    def take_calls(self) -> list[tuple[str, list[int]]]:
        """Return what the cache gave to the pool since the last time, slots in ascending order."""
        if self.pool is None:
            return []
        return [(name, sorted(slots)) for name, slots in self.pool.take_calls()]

    def refuse(self, name: str, call: Callable[[], object]) -> None:
        """Make a call during which the pool refuses one of its own."""
        assert self.pool is not None
        self.pool.refuse = name
        expect(PoolBrokenError, call)
        self.pool.refuse = ""

    def compare_owners(self, pages: Mapping[Path, Page]) -> None:
        """Every slot, and every SWA half, is free, or in the tree, or in the caller's hands (A2, R9)."""
        if self.pool is None:
            return
        owners = dict(self.hands)
        for page in pages.values():
            for slot in page.slots:
                assert slot not in owners, f"R9: slot {slot} has two owners"
                owners[slot] = page.alive and self.config.pool == "swa"
        assert self._available("full") + len(owners) == self.config.slots, "A2: slots are lost"
        if self.config.pool != "swa" or not owners:
            return
        halves = self.pool.translate_to_swa(torch.tensor(list(owners))).tolist()
        assert [half > 0 for half in halves] == list(owners.values()), "S2: an SWA half is misplaced"
        real = [half for half in halves if half]
        assert len(set(real)) == len(real), "A7: an SWA half has two owners"
        assert self._available("swa") + len(real) == self.config.swa_slots, "A7: SWA halves are lost"
