"""The operations that a scenario asks of an implementation, in terms that all implementations can carry out.

A contender adds nothing of its own to a timed call beyond what its package's caller has to do: wrapping a
key, building a record of parameters, asking for the slots of a match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from peers.benchmarks.keys import FORMS, Tokens
from pymllm_peers.checkouts import Checkout


class Unavailable(Exception):
    """A package that is not installed, or lacks what is measured; the message says why."""


@dataclass(slots=True)
class Hit:
    """The result of a match."""

    length: int
    slots: torch.Tensor
    node: Any


class Peer(ABC):
    """One implementation of anything."""

    NAME: ClassVar[str]
    PACKAGE: ClassVar[str]

    @classmethod
    def missing(cls) -> str | None:
        """Say why it cannot run here, if it cannot."""
        return None


class CheckoutPeer(Peer):
    """One whose project is read from a checkout."""

    CHECKOUT: ClassVar[Checkout]

    def __init_subclass__(cls) -> None:
        cls.PACKAGE = cls.CHECKOUT.project

    @classmethod
    def missing(cls) -> str | None:
        try:
            cls.CHECKOUT.require_version()
        except ImportError as error:
            return str(error)
        return None


class KeyedPeer(Peer):
    """A cache of prompts; ``FORM`` is what its callers have them in, a name of `FORMS`."""

    FORM: ClassVar[str]

    def key(self, tokens: Tokens) -> Any:
        """Put tokens into what its callers have them in; never timed."""
        return FORMS[self.FORM](tokens)


class PrefixPeer(KeyedPeer):
    """A prefix cache over its own slot allocator."""

    def __init__(self, page_size: int, capacity: int) -> None:
        self.page_size = page_size
        self.capacity = capacity

    @abstractmethod
    def match(self, key: Any) -> Hit:
        """Find the longest cached prefix, and its slots."""

    @abstractmethod
    def insert(self, key: Any, slots: torch.Tensor, before: int) -> int:
        """Cache slots; those of duplicates behind ``before`` are free afterwards. Return what was there."""

    @abstractmethod
    def hold(self, hit: Hit) -> Any:
        """Keep a match from being evicted."""

    @abstractmethod
    def release(self, hit: Hit, receipt: Any) -> None:
        """Let it go."""

    @abstractmethod
    def alloc(self, tokens: int) -> torch.Tensor:
        """Take slots, whole pages."""

    @abstractmethod
    def free(self, slots: torch.Tensor) -> None:
        """Give slots back."""

    @abstractmethod
    def available(self) -> int:
        """Count the free slots."""

    @abstractmethod
    def cached(self) -> int:
        """Count the cached tokens."""

    def nothing_is_lost(self) -> bool:
        """Whether every slot is cached or free."""
        return self.cached() + self.available() == self.capacity


class EvictingPeer(PrefixPeer):
    """One that is asked to evict; others do so by themselves where an allocation runs short."""

    @abstractmethod
    def evict(self, tokens: int) -> int:
        """Evict, and return how many tokens went."""

    def evict_much(self, tokens: int) -> int:
        """Evict many nodes in one call, in the way that is best for that where a package has several."""
        return self.evict(tokens)


class SlotPeer(Peer):
    """An allocator of slots in whole pages; or, as ``HANDS_OUT`` says, of ids of such blocks."""

    HANDS_OUT: ClassVar[Literal["slots", "blocks"]]

    @abstractmethod
    def __init__(self, size: int, page_size: int) -> None: ...

    @abstractmethod
    def alloc(self, count: int) -> Any:
        """Take so many slots or blocks."""

    @abstractmethod
    def free(self, piece: Any) -> None:
        """Give back what an `alloc` gave, or a part of it."""

    @abstractmethod
    def split(self, everything: Any, piece: int, order: list[int]) -> list[Any]:
        """Cut what was allocated into pieces, in this order; never timed."""

    @abstractmethod
    def numbers(self, piece: Any) -> Any:
        """Return the numbers of a piece as an array."""

    @abstractmethod
    def available(self) -> int:
        """Count what is free."""


class HybridPeer(KeyedPeer):
    """A prefix cache with recurrent states, over its own pools, of pages of one token."""

    def __init__(self, tokens: int, states: int) -> None:
        self.tokens = tokens
        self.states = states

    @abstractmethod
    def alloc(self, tokens: int) -> torch.Tensor:
        """Take slots."""

    @abstractmethod
    def alloc_state(self) -> torch.Tensor:
        """Take a slot for a state."""

    @abstractmethod
    def insert(self, key: Any, slots: torch.Tensor, state: torch.Tensor, before: int) -> int:
        """Cache slots and a state; return what was there."""

    @abstractmethod
    def match(self, key: Any) -> Hit:
        """Find the longest prefix that ends with a state."""

    @abstractmethod
    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        """Evict, and return how many tokens and states went."""

    @abstractmethod
    def nothing_is_lost(self) -> bool:
        """Whether every slot and every state is cached or free."""


class StateSlotPeer(Peer):
    """An allocator of slots for the states of blocks, which evicts the least recent."""

    @abstractmethod
    def __init__(self, blocks: int, slots: int, order: list[int]) -> None:
        """Make every block a cached one, stamped in this order."""

    @abstractmethod
    def allocate(self, blocks: list[int]) -> None:
        """Give each block a slot, evicting where none is free."""

    @abstractmethod
    def invalidate(self, blocks: list[int]) -> None:
        """Take the slots of blocks back."""

    @abstractmethod
    def free_count(self) -> int:
        """Count the slots that no block has."""

    @abstractmethod
    def without_slot(self) -> np.ndarray[Any, Any]:
        """List the blocks that have none."""
