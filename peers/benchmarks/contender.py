"""The operations of a scenario, in terms that all implementations can carry out.

A contender adds nothing of its own to a timed call beyond what its package's caller has to do: wrapping a
key, building a record of parameters, asking for the slots of a match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from peers.benchmarks.keys import FORMS, Tokens
from pymllm_peers.checkouts import Checkout


class Unavailable(Exception):
    """The package is not installed, or lacks the measured feature; the message gives the reason."""


@dataclass(slots=True)
class Hit:
    """The result of a match."""

    length: int
    slots: torch.Tensor
    node: Any


class Peer(ABC):
    """The base of every contender."""

    NAME: ClassVar[str]
    PACKAGE: ClassVar[str]

    @classmethod
    def missing(cls) -> str | None:
        """Return the reason why the contender cannot run here, or ``None``."""
        return None


class CheckoutPeer(Peer):
    """A contender whose project is read from a checkout."""

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
    """A cache of prompts; ``FORM`` names the container of its keys, one of `FORMS`."""

    FORM: ClassVar[str]

    def key(self, tokens: Tokens) -> Any:
        """Put tokens into the container of the cache's keys; never timed."""
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
        """Cache slots, and free those of duplicates after ``before``. Return what was there."""

    @abstractmethod
    def hold(self, hit: Hit) -> Any:
        """Protect a match from eviction."""

    @abstractmethod
    def release(self, hit: Hit, receipt: Any) -> None:
        """Release the hold of a match."""

    @abstractmethod
    def alloc(self, tokens: int) -> torch.Tensor:
        """Allocate slots, in whole pages."""

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
    """A prefix cache whose caller evicts; others evict by themselves where an allocation runs short."""

    @abstractmethod
    def evict(self, tokens: int) -> int:
        """Evict, and return the number of evicted tokens."""

    def evict_much(self, tokens: int) -> int:
        """Evict many nodes in one call, by the package's best way to do that."""
        return self.evict(tokens)


class SlotPeer(Peer):
    """An allocator of slots in whole pages, or, by ``HANDS_OUT``, of the ids of such blocks."""

    HANDS_OUT: ClassVar[Literal["slots", "blocks"]]

    @abstractmethod
    def __init__(self, size: int, page_size: int) -> None: ...

    @abstractmethod
    def alloc(self, count: int) -> Any:
        """Allocate a number of slots or blocks."""

    @abstractmethod
    def free(self, piece: Any) -> None:
        """Give back the result of an `alloc`, or a part of it."""

    @abstractmethod
    def split(self, everything: Any, piece: int, order: list[int]) -> list[Any]:
        """Cut an allocation into pieces, in this order; never timed."""

    @abstractmethod
    def numbers(self, piece: Any) -> Any:
        """Return the numbers of a piece as an array."""

    @abstractmethod
    def available(self) -> int:
        """Count the free slots or blocks."""


class HybridPeer(KeyedPeer):
    """A prefix cache with recurrent states, over its own pools, with pages of one token."""

    def __init__(self, tokens: int, states: int) -> None:
        self.tokens = tokens
        self.states = states

    @abstractmethod
    def alloc(self, tokens: int) -> torch.Tensor:
        """Allocate slots."""

    @abstractmethod
    def alloc_state(self) -> torch.Tensor:
        """Allocate a slot for a state."""

    @abstractmethod
    def insert(self, key: Any, slots: torch.Tensor, state: torch.Tensor, before: int) -> int:
        """Cache slots and a state; return the length cached before."""

    @abstractmethod
    def match(self, key: Any) -> Hit:
        """Find the longest prefix that ends with a state."""

    @abstractmethod
    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        """Evict, and return the numbers of evicted tokens and states."""

    @abstractmethod
    def nothing_is_lost(self) -> bool:
        """Whether every slot and every state is cached or free."""


class StateSlotPeer(Peer):
    """An allocator of slots for blocks' states that evicts the least recent."""

    @abstractmethod
    def __init__(self, blocks: int, slots: int, order: list[int]) -> None:
        """Make every block a cached one, with time stamps in this order."""

    @abstractmethod
    def allocate(self, blocks: list[int]) -> None:
        """Give each block a slot, evicting where none is free."""

    @abstractmethod
    def invalidate(self, blocks: list[int]) -> None:
        """Take back the slots of blocks."""

    @abstractmethod
    def free_count(self) -> int:
        """Count the slots that no block has."""

    @abstractmethod
    def without_slot(self) -> np.ndarray[Any, Any]:
        """List the blocks without a slot."""


class StateCopyPeer(Peer):
    """An allocator of slots for states, beside live states and output buffers: what it copies.

    ``rows`` slots, requests and states of the output, of 17.5 KiB each: a small model's four layers.
    """

    LAYERS, CONV, SSM = 4, (64, 3), (4, 16, 16)

    def __init__(self, rows: int) -> None:
        context = self.make_context(rows)
        context.mamba_metadata = SimpleNamespace(
            request_to_mamba_state_idx=torch.arange(rows - 1, -1, -1, dtype=torch.int32)
        )
        context.mamba_conv_states = torch.randn(self.LAYERS, rows, *self.CONV).to(torch.bfloat16)
        context.mamba_ssm_states = torch.randn(self.LAYERS, rows, *self.SSM)
        form = rows, self.LAYERS, self.CONV, self.SSM, torch.bfloat16, torch.float32
        self.slots = slots = self.allocator()(context, *form)
        self.live = context.mamba_conv_states, context.mamba_ssm_states
        self.output = slots.intermediate_conv_out.normal_(), slots.intermediate_ssm_out.normal_()
        self.cached = slots.conv_states, slots.ssm_states

    @abstractmethod
    def make_context(self, rows: int) -> Any:
        """Make a context with a block allocator."""

    @abstractmethod
    def allocator(self) -> type[Any]:
        """Return the class of the allocator, whose copies have the same names in every package."""
