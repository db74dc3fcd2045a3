"""Strangers' classes that name their methods as the documented interface does, right and with a bug each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch


class Slots:
    """A slot allocator with a free list."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.clear()

    def clear(self) -> None:
        self.open = list(range(1, self.size + 1))

    def available_size(self) -> int:
        return len(self.open)

    def alloc(self, need_size: int) -> Any:
        if need_size > len(self.open):
            return None
        taken, self.open = self.open[:need_size], self.open[need_size:]
        return torch.tensor(taken, dtype=torch.int32)

    def free(self, indices: Any) -> None:
        self.open += indices.tolist()


class ListedSlots(Slots):
    """The same, which returns lists and cannot be cleared."""

    clear = None  # type: ignore[assignment]

    def __init__(self, size: int) -> None:
        self.size = size
        self.open = list(range(1, size + 1))

    def alloc(self, need_size: int) -> Any:
        found = super().alloc(need_size)
        return None if found is None else found.tolist()


class LosingSlots(Slots):
    """One that loses what was left when too few were."""

    def alloc(self, need_size: int) -> Any:
        taken, self.open = self.open[:need_size], self.open[need_size:]
        return torch.tensor(taken, dtype=torch.int32) if len(taken) == need_size else None


class BlockSlots(Slots):
    """A right pool of blocks: their numbers, and not those of slots, are what it hands out."""

    def __init__(self, size: int, page_size: int) -> None:
        super().__init__(size)
        self.page_size = page_size


class BadFirstSlots(Slots):
    """One that hands its first slot out twice until it is cleared."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.open = [1, *self.open]

    def available_size(self) -> int:
        return len({*self.open})


class SlotsOverOneList(Slots):
    """One whose free list is its class's."""

    all_open: ClassVar[list[int]] = list(range(1, 13))

    def __init__(self) -> None:
        self.size, self.open = 12, self.all_open

    def clear(self) -> None:
        self.open[:] = range(1, 13)

    def alloc(self, need_size: int) -> Any:
        if need_size > len(self.open):
            return None
        return [self.open.pop() for _ in range(need_size)]


class SlotsOfAnswers(Slots):
    """One whose slots pass through a function, into another form."""

    def __init__(self, size: int, form: Callable[[Any], Any]) -> None:
        super().__init__(size)
        self.form = form

    def alloc(self, need_size: int) -> Any:
        slots = super().alloc(need_size)
        return None if slots is None else self.form(slots)


class SlotsWithACount(Slots):
    """One whose size is a property."""

    @property
    def available_size(self) -> int:  # type: ignore[override]
        return len(self.open)


class SingleSlots(Slots):
    """One that hands out a slot at a time."""

    def alloc(self) -> Any:  # type: ignore[override]
        return super().alloc(1)


class ReusingSlots(Slots):
    """One whose every answer is the same list."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.answer: list[int] = []

    def alloc(self, need_size: int) -> Any:
        slots = super().alloc(need_size)
        if slots is not None:
            self.answer[:] = slots.tolist()
        return None if slots is None else self.answer


class LockedSlots(Slots):
    """One that cannot be copied."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.lock = threading.Lock()


class Rows:
    """A pool of request rows."""

    def __init__(self, max_reqs: int, max_context_len: int) -> None:
        self.size, self.max_context_len = max_reqs, max_context_len
        self.clear()

    def clear(self) -> None:
        self.open = list(range(1, self.size + 1))
        self.req_to_token = torch.zeros((self.size + 1, self.max_context_len), dtype=torch.int32)

    def available_size(self) -> int:
        return len(self.open)

    def alloc(self, n: int = 1) -> list[int] | None:
        if n > len(self.open):
            return None
        taken, self.open = self.open[:n], self.open[n:]
        return taken

    def free(self, slot: int) -> None:
        self.open.append(slot)

    def write(self, index: Any, values: Any) -> None:
        self.req_to_token[index] = values


class ListedRows(Rows):
    """The same, whose table is a list of lists."""

    def clear(self) -> None:
        super().clear()
        self.req_to_token = self.req_to_token.tolist()

    def write(self, index: Any, values: Any) -> None:
        row, where = index
        if isinstance(where, slice):
            self.req_to_token[row][where] = values.tolist()
            return
        for each, at, value in zip(row.tolist(), where.tolist(), values.tolist(), strict=True):
            self.req_to_token[each][at] = value


class RowsTwice(Rows):
    """One that hands the first free row out and keeps it."""

    def alloc(self, n: int = 1) -> list[int] | None:
        return self.open[:n] if n <= len(self.open) else None


class Cache:
    """A prefix cache without a tree: the slot of each token by its prefix, which is the node, too."""

    page_size = 1

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.slots: dict[tuple[int, ...], int] = {}
        self.holds: dict[tuple[int, ...], int] = {}

    def prefixes(self, key: Any) -> list[tuple[int, ...]]:
        tokens = tuple(key)
        return [tokens[:end] for end in range(1, len(tokens) + 1)]

    def match_prefix(self, key: Any) -> Any:
        found: list[tuple[int, ...]] = []
        for prefix in self.prefixes(key):
            if prefix not in self.slots:
                break
            found.append(prefix)
        slots = [self.slots[it] for it in found]
        return SimpleNamespace(indices=slots, last_node=found[-1] if found else (), prefix_len=len(found))

    def insert(self, key: Any, value: Any = None) -> Any:
        known = self.match_prefix(key).prefix_len
        slots = list(key) if value is None else value.tolist()
        self.slots.update([*zip(self.prefixes(key), slots, strict=True)][known:])
        return SimpleNamespace(prefix_len=known, last_node=tuple(key))

    def may_go(self, prefix: tuple[int, ...]) -> bool:
        return not self.holds.get(prefix)

    def evict(self, num_tokens: int) -> Any:
        loose = [it for it in sorted(self.slots, key=len, reverse=True) if self.may_go(it)]
        gone = [self.slots.pop(it) for it in loose[: max(0, num_tokens)]]
        self.give_back(gone)
        return SimpleNamespace(full_evicted=len(gone))

    def give_back(self, slots: list[int]) -> None:
        if slots and self.pool is not None:
            self.pool.free(torch.tensor(slots))

    def inc_lock_ref(self, node: Any) -> None:
        for prefix in self.prefixes(node):
            self.holds[prefix] = self.holds.get(prefix, 0) + 1

    def dec_lock_ref(self, node: Any) -> None:
        for prefix in self.prefixes(node):
            self.holds[prefix] -= 1

    def reset(self) -> None:
        self.give_back([*self.slots.values()])
        self.slots, self.holds = {}, {}


class CarelessCache(Cache):
    """One that evicts what is held."""

    def may_go(self, prefix: tuple[int, ...]) -> bool:
        return True


class LeakingCache(Cache):
    """One that forgets to give slots back when it is reset."""

    def reset(self) -> None:
        self.slots, self.holds = {}, {}


class MisnamedSlots:
    """A slot allocator with a slip in a name."""

    def aloc(self, need_size: int) -> Any:
        return None

    def free(self, indices: Any) -> None:
        pass

    def available_size(self) -> int:
        return 0


class MisnamedCache(Cache):
    """A prefix cache with another name for one method."""

    evict = None  # type: ignore[assignment]

    def evict_tokens(self, num_tokens: int) -> Any:
        return None


class CacheOfInsides(Cache):
    """A right cache that gives slots back, all or but the first, to the list inside its pool."""

    def __init__(self, pool: Any, by_method: int = 0) -> None:
        super().__init__(pool)
        self.by_method = by_method

    def give_back(self, slots: list[int]) -> None:
        super().give_back(slots[: self.by_method])
        self.pool.open += slots[self.by_method :]


class CacheWithoutRoot(Cache):
    """One whose match of nothing has no node that could be held."""

    def match_prefix(self, key: Any) -> Any:
        result = super().match_prefix(key)
        result.last_node = result.last_node or None
        return result


class CacheOverAllocator(Cache):
    """A cache whose pool has another name."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.allocator = pool
        del self.pool

    def give_back(self, slots: list[int]) -> None:
        if slots and self.allocator is not None:
            self.allocator.free(torch.tensor(slots))


class BareRows(Rows):
    """Rows that do not tell how long they are."""

    def __init__(self) -> None:
        self.size = 3
        self.clear()

    def clear(self) -> None:
        self.max_context_len = 5
        super().clear()
        del self.max_context_len


class Blocks:
    """An allocator of blocks, which lives in a context."""

    def allocate_memory_blocks(self, count: int) -> Any:
        return None


def make_slots() -> Slots:
    """A function of a module that makes one."""
    return Slots(12)


def make_number() -> int:
    """A function that makes nothing of the sort."""
    return 3


class CacheOfAnswers(Cache):
    """A right cache whose answers pass through a function for each method, into another form."""

    def __init__(self, pool: Any, **forms: Callable[[Any], Any]) -> None:
        super().__init__(pool)
        self.forms = forms

    def answer(self, method: str, result: Any) -> Any:
        return self.forms.get(method, lambda it: it)(result)

    def match_prefix(self, key: Any) -> Any:
        return self.answer("match_prefix", super().match_prefix(key))

    def insert(self, key: Any, value: Any = None) -> Any:
        forms, self.forms = self.forms, {}
        result = super().insert(key, value)
        self.forms = forms
        return self.answer("insert", result)

    def evict(self, num_tokens: int) -> Any:
        return self.answer("evict", super().evict(num_tokens))
