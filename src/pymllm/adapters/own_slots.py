"""Adapters of the slot allocators: `TokenToKVPoolAllocator` and `SWATokenToKVPoolAllocator`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.key_forms import make_indices
from pymllm.errors import InvariantViolation
from pymllm.invariants.slot_store import check_slot_store
from pymllm.invariants.swa_allocator import check_swa_allocator
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator
from pymllm.oracle.history import Config
from pymllm.oracle.operations import (
    Alloc,
    BeginGroup,
    Clear,
    EndGroup,
    Free,
    FreeSWA,
    Malformed,
    Merge,
    MoveSWA,
    ReadHalves,
    Span,
)
from pymllm.oracle.outcomes import Done, NoRoom, Slots

__all__ = ["MALFORMED_INDICES", "MALFORMED_SIZES", "SWASlots", "TokenSlots"]

MALFORMED_INDICES: dict[str, Any] = {
    "float indices": torch.tensor([1.0]),
    "bool indices": torch.tensor([True]),
    "bfloat16 indices": torch.tensor([1.0], dtype=torch.bfloat16),
    "a list": [1],
    "None": None,
}
"""What `Malformed` passes for slots, by name."""

MALFORMED_SIZES: dict[str, Any] = {"negative size": -1, "float size": 1.0, "bool size": True}
"""What `Malformed` passes to ``alloc``, by name."""

_PAGES, _SWA_PAGES = 12, 8
_OUTSIDE = 2
"""Slots beyond either end of the pool that an audit asks for, too."""


def _configurations(**extra: int) -> tuple[Config, ...]:
    """Every store, page size, order and check, on pools so small that they run out all the time."""
    return tuple(
        {
            "page_size": page_size,
            "pages": _PAGES,
            **extra,
            "need_sort": need_sort,
            "check_ownership": check_ownership,
            "store": store,
        }
        for store, page_size, (need_sort, check_ownership) in itertools.product(
            ("host", "device"), (1, 4), ((True, True), (False, True), (True, False))
        )
    )


class TokenSlots(BaseAdapter):
    """`TokenToKVPoolAllocator`.

    Parameters
    ----------
    name : str
        As the registry knows it.
    config : mapping
        ``page_size``, ``pages``, ``need_sort``, ``check_ownership``, ``store``, and ``device`` if it is not
        the CPU.

    Attributes
    ----------
    allocator : TokenToKVPoolAllocator
        What is examined.
    """

    KIND: ClassVar[str] = "slots"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations()

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.page_size = int(config["page_size"] or 0)
        self.device = torch.device(str(config.get("device", "cpu")))
        self.allocator = self.build()
        end = self.tokens("pages") + self.page_size
        self._around = torch.arange(-_OUTSIDE, end + _OUTSIDE, device=self.device)

    def build(self) -> Any:
        """Build the allocator."""
        return TokenToKVPoolAllocator(self.tokens("pages"), **self.settings())

    def tokens(self, key: str) -> int:
        """Return a size that the configuration has in pages."""
        return int(self.config[key] or 0) * self.page_size

    def settings(self) -> dict[str, Any]:
        """Return what both constructors take besides sizes."""
        keys = ("page_size", "need_sort", "check_ownership", "store")
        return {"device": self.device, **{key: self.config[key] for key in keys}}

    def claim(self) -> frozenset[str]:
        """Claim everything, but no order without sorting and no refusals without checks."""
        claims = {"pool", "merges", "groups"}
        claims |= {"sorted"} if self.config["need_sort"] else set()
        return frozenset(claims | ({"refusals"} if self.config["check_ownership"] else set()))

    def sizes(self) -> dict[str, int]:
        """Return what is available."""
        return {"available_size": self.allocator.available_size()}

    def audit(self) -> Sequence[str]:
        """Walk the free list, and compare it with what the allocator says of every slot."""
        self._compare_handed_out(check_slot_store(self.allocator._store))
        return self._audited

    @property
    def _audited(self) -> tuple[str, ...]:
        return ("A1", "A2", "A4", *(("A5",) if "refusals" in self.capabilities else ()), "A6")

    def _compare_handed_out(self, held: NDArray[np.bool_]) -> None:
        told = self.allocator.is_handed_out(self._around).tolist()
        outside = [False] * _OUTSIDE
        expected = outside + held.repeat(self.page_size).tolist() + outside
        if told != expected:
            raise InvariantViolation("A2", "is_handed_out", expected=repr(expected), observed=repr(told))

    # -- operations ----------------------------------------------------------------------------------------

    def do_alloc(self, step: int, operation: Alloc) -> Slots | NoRoom:
        """Take slots."""
        slots = self.allocator.alloc(operation.tokens)
        if slots is None:
            return NoRoom()
        return Slots(self._plain("A3", slots), self._halves_of(slots))

    def do_free(self, step: int, operation: Free) -> Done:
        """Give slots back."""
        self.allocator.free(self._indices(operation.slots, operation.form))
        return Done()

    def do_merge(self, step: int, operation: Merge) -> Done:
        """Merge."""
        self.allocator.merge_and_sort_free()
        return Done()

    def do_begin_group(self, step: int, operation: BeginGroup) -> Done:
        """Open a group."""
        self.allocator.free_group_begin()
        return Done()

    def do_end_group(self, step: int, operation: EndGroup) -> Done:
        """Close the group."""
        self.allocator.free_group_end()
        return Done()

    def do_clear(self, step: int, operation: Clear) -> Done:
        """Clear."""
        self.allocator.clear()
        return Done()

    def do_malformed(self, step: int, operation: Malformed) -> Done:
        """Pass what no caller may pass."""
        calls = self._spoiled_calls()
        spoils = MALFORMED_SIZES if operation.call == "alloc" else MALFORMED_INDICES
        if operation.call not in calls or operation.wrong not in spoils:
            raise UnsupportedError(f"{operation.call} with {operation.wrong}")
        calls[operation.call](spoils[operation.wrong])
        return Done()

    def _spoiled_calls(self) -> dict[str, Callable[[Any], object]]:
        return {"alloc": self.allocator.alloc, "free": self.allocator.free}

    # -- tensors and numbers -------------------------------------------------------------------------------

    def _indices(self, spans: Sequence[Span], form: str = "int32") -> torch.Tensor:
        """Return slots as a tensor; where they do not fit its dtype, nothing is asked of the allocator."""
        numbers = self.numbers(spans)
        try:
            made = make_indices(numbers, form)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(f"slots as {form}: {error}") from error
        if made.reshape(-1).tolist() != numbers:  # torch wraps -1 to 255 without a word
            raise UnsupportedError(f"slots {numbers} as {form}")
        return made.to(self.device)

    def _plain(self, law: str, slots: torch.Tensor) -> tuple[int, ...]:
        """Return slots that the allocator made as numbers, if they are what it promises to make."""
        if slots.dtype != torch.int32 or slots.dim() != 1 or slots.device != self.allocator.device:
            raise InvariantViolation(
                law,
                "form of the slots returned",
                expected=f"torch.int32, 1-D, {self.allocator.device}",
                observed=f"{slots.dtype}, {slots.dim()}-D, {slots.device}",
            )
        return tuple(slots.tolist())

    def _halves_of(self, slots: torch.Tensor) -> tuple[int, ...]:
        return ()


class SWASlots(TokenSlots):
    """`SWATokenToKVPoolAllocator`; ``swa_pages`` is one more key of its configuration."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(swa_pages=_SWA_PAGES)

    def build(self) -> Any:
        """Build the allocator."""
        return SWATokenToKVPoolAllocator(self.tokens("pages"), self.tokens("swa_pages"), **self.settings())

    def claim(self) -> frozenset[str]:
        """Claim SWA halves, too."""
        return super().claim() | {"swa"}

    def sizes(self) -> dict[str, int]:
        """Return what is available of each pool, and of both."""
        return {
            "available_size": self.allocator.available_size(),
            "full_available_size": self.allocator.full_available_size(),
            "swa_available_size": self.allocator.swa_available_size(),
        }

    def audit(self) -> Sequence[str]:
        """Walk both free lists and the table between them."""
        check_swa_allocator(self.allocator)
        self._compare_handed_out(check_slot_store(self.allocator._full))
        return (*self._audited, "A7")

    def do_free_swa(self, step: int, operation: FreeSWA) -> Done:
        """Give halves back."""
        self.allocator.free_swa(self._indices(operation.slots, operation.form))
        return Done()

    def do_move_swa(self, step: int, operation: MoveSWA) -> Done:
        """Move halves."""
        self.allocator.move_swa(self._indices(operation.source), self._indices(operation.target))
        return Done()

    def do_read_halves(self, step: int, operation: ReadHalves) -> Slots:
        """Translate slots."""
        return Slots((), self._halves_of(self._indices(operation.slots)))

    def _spoiled_calls(self) -> dict[str, Callable[[Any], object]]:
        good = torch.tensor([1], device=self.device)
        return {
            **super()._spoiled_calls(),
            "free_swa": self.allocator.free_swa,
            "move_swa": lambda wrong: self.allocator.move_swa(wrong, good),
            "read_halves": self.allocator.translate_to_swa,
        }

    def _halves_of(self, slots: torch.Tensor) -> tuple[int, ...]:
        return self._plain("A7", self.allocator.translate_to_swa(slots))
