"""Adapters of the slot allocators: `TokenToKVPoolAllocator` and `SWATokenToKVPoolAllocator`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed import Calls
from pymllm.adapters.own_pools import OwnPool
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.outcomes import Done, NoRoom, Slots
from pymllm.invariants.slots import check_slot_store, walk_swa_allocator
from pymllm.mem_cache.slots.store_choice import checks_alone
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

_ONE, _INT32 = torch.tensor([1]), torch.int32
_WRONG_SIZES = {"negative size": -1, "float size": 1.0, "bool size": True}
_WRONG_INDICES = {
    "float indices": torch.tensor([1.0]),
    "bool indices": torch.tensor([True]),
    "bfloat16 indices": torch.tensor([1.0], dtype=torch.bfloat16),
    "a list": [1],
    "None": None,
}


def _spoiled(name: str, call: Callable[[Any, Any], object], wrong: Mapping[str, object]) -> Calls:
    """Return a call with each of several wrong arguments."""
    return {(name, what): lambda pool, value=value: call(pool, value) for what, value in wrong.items()}  # type: ignore[misc]


_PAGES, _SWA_PAGES = 12, 8
_OUTSIDE = 2
"""Slots beyond either end of the pool that an audit also reads."""


def _configurations(**extra: int) -> tuple[Config, ...]:
    """Return configurations of every store, page size, order and check, with pools that run out."""
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
            ("host", "device"),
            (1, 4),
            # With both off, the host's store is the queue, and the device's counts late.
            ((True, True), (False, True), (True, False), (False, False)),
        )
    )


class TokenSlots(OwnPool):
    """The adapter of `TokenToKVPoolAllocator`.

    Keys of its configuration: ``page_size`` and ``pages``; ``need_sort``, ``check_ownership`` (both on),
    ``store`` and ``device`` (the CPU), where they are given.
    """

    KIND = "slots"
    POOL: ClassVar[type[Any]] = TokenToKVPoolAllocator
    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations()
    MALFORMED: ClassVar[Calls] = {
        **_spoiled("alloc", lambda pool, wrong: pool.alloc(wrong), _WRONG_SIZES),
        **_spoiled("free", lambda pool, wrong: pool.free(wrong), _WRONG_INDICES),
        **_spoiled("begin_transfer", lambda pool, wrong: pool.begin_transfer(wrong), _WRONG_INDICES),
    }

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._transfers: dict[int, int] = {}

    def make_pool(self) -> object:
        return self.POOL(self.tokens("pages"), **self.settings())

    def tokens(self, key: str) -> int:
        """Return a size in tokens that the configuration has in pages."""
        return self.number(key) * self.number("page_size")

    def settings(self) -> dict[str, Any]:
        """Return the arguments that both constructors take besides sizes."""
        is_checked = self.config.get("check_ownership", True)
        return {
            "device": self.device,
            "page_size": self.number("page_size"),
            "need_sort": self.config.get("need_sort", True),
            "check_ownership": checks_alone(bool(is_checked), self.device),
            "store": self.config.get("store", "auto"),
        }

    def claim(self) -> frozenset[str]:
        """Return all claims, but an order only with sorting and refusals only with checks."""
        switches = {"sorted": "need_sort", "refusals": "check_ownership"}
        on = {claim for claim, key in switches.items() if self.config.get(key, True)}
        return frozenset({"pool", "forms", "merges", "groups", "group_errors", "transfers", *on})

    def sizes(self) -> dict[str, int]:
        return {"available_size": self.pool.available_size()}

    def audit(self) -> Sequence[str]:
        """Check the free list against the allocator's report on every slot."""
        self._compare_handed_out(check_slot_store(self.pool._store))
        return self._audited

    @property
    def _audited(self) -> tuple[str, ...]:
        return ("A1", "A2", "A4", *(("A5",) if "refusals" in self.capabilities else ()), "A6")

    @cached_property
    def _around(self) -> torch.Tensor:
        return torch.arange(-_OUTSIDE, self.pool.size + self.pool.page_size + _OUTSIDE, device=self.device)

    def _compare_handed_out(self, held: NDArray[np.bool_]) -> None:
        told = self.pool.is_handed_out(self._around).tolist()
        outside = [False] * _OUTSIDE
        expected = outside + held.repeat(self.pool.page_size).tolist() + outside
        if told != expected:
            raise InvariantViolation("A2", "is_handed_out", expected=repr(expected), observed=repr(told))

    # -- operations ----------------------------------------------------------------------------------------

    def do_alloc(self, step: int, operation: ops.Alloc) -> Slots | NoRoom:
        slots = self.pool.alloc(operation.tokens)
        if slots is None:
            return NoRoom()
        return Slots(self._plain("A3", slots), self._halves_of(slots))

    def do_free(self, step: int, operation: ops.Free) -> Done:
        self.pool.free(self._indices(operation.slots, operation.form))
        return Done()

    def do_merge(self, step: int, operation: ops.Merge) -> Done:
        self.pool.merge_and_sort_free()
        return Done()

    def do_begin_group(self, step: int, operation: ops.BeginGroup) -> Done:
        self.pool.free_group_begin()
        return Done()

    def do_end_group(self, step: int, operation: ops.EndGroup) -> Done:
        self.pool.free_group_end()
        return Done()

    def do_begin_transfer(self, step: int, operation: ops.BeginTransfer) -> Done:
        self._transfers[step] = self.pool.begin_transfer(self._indices(operation.memory))
        return Done()

    def do_end_transfer(self, step: int, operation: ops.EndTransfer) -> Done:
        if operation.transfer not in self._transfers:
            raise ProgramError(f"step {operation.transfer} began no transfer")
        self.pool.end_transfer(self._transfers[operation.transfer])
        return Done()

    def do_clear(self, step: int, operation: ops.Clear) -> Done:
        self.pool.clear()
        return Done()

    # -- tensors and numbers -------------------------------------------------------------------------------

    def _indices(self, spans: Sequence[ops.Span], form: str = "int32") -> torch.Tensor:
        """Return slots as a tensor; raise an error for slots that do not fit its dtype, without any call."""
        numbers = self.numbers(spans)
        try:
            return self.index(numbers, form)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(f"slots as {form}: {error}") from error

    def _plain(self, law: str, slots: torch.Tensor) -> tuple[int, ...]:
        """Return the numbers of slots from the allocator; raise an error if their form is wrong."""
        if slots.dtype is not _INT32 or slots.dim() != 1 or slots.device != self.pool.device:
            raise InvariantViolation(
                law,
                "form of the slots returned",
                expected=f"torch.int32, 1-D, {self.pool.device}",
                observed=f"{slots.dtype}, {slots.dim()}-D, {slots.device}",
            )
        return tuple(slots.tolist())

    def _halves_of(self, slots: torch.Tensor) -> tuple[int, ...]:
        return ()


class SWASlots(TokenSlots):
    """The adapter of `SWATokenToKVPoolAllocator`; its configuration also has ``swa_pages``."""

    POOL = SWATokenToKVPoolAllocator
    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(swa_pages=_SWA_PAGES)
    MALFORMED: ClassVar[Calls] = {
        **TokenSlots.MALFORMED,
        **_spoiled("free_swa", lambda pool, wrong: pool.free_swa(wrong), _WRONG_INDICES),
        **_spoiled("move_swa", lambda pool, wrong: pool.move_swa(wrong, _ONE), _WRONG_INDICES),
        **_spoiled("read_halves", lambda pool, wrong: pool.translate_to_swa(wrong), _WRONG_INDICES),
    }

    def make_pool(self) -> object:
        return self.POOL(self.tokens("pages"), self.tokens("swa_pages"), **self.settings())

    def claim(self) -> frozenset[str]:
        return super().claim() | {"swa"}

    def sizes(self) -> dict[str, int]:
        """Return the available sizes of each pool, and of both."""
        return {
            "available_size": self.pool.available_size(),
            "full_available_size": self.pool.full_available_size(),
            "swa_available_size": self.pool.swa_available_size(),
        }

    def audit(self) -> Sequence[str]:
        """Check both free lists and the table between them."""
        self._compare_handed_out(walk_swa_allocator(self.pool))
        return (*self._audited, "A7")

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> Done:
        self.pool.free_swa(self._indices(operation.slots, operation.form))
        return Done()

    def do_move_swa(self, step: int, operation: ops.MoveSWA) -> Done:
        self.pool.move_swa(self._indices(operation.source), self._indices(operation.target))
        return Done()

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> Slots:
        return Slots((), self._halves_of(self._indices(operation.slots)))

    def _halves_of(self, slots: torch.Tensor) -> tuple[int, ...]:
        return self._plain("A7", self.pool.translate_to_swa(slots))
