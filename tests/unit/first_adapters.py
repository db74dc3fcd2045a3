"""First adapters of caches that are right: each makes one mistake that beginners make, and no law is broken.

The caches know nothing of pymllm, and have a pool each: a list of free slots, or an object with methods.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.simple import PrefixAdapter, SlotAdapter
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, AllocRows, Evict, Free, FreeRow, Insert, Key, Match, Operation
from pymllm.history.outcomes import Done, Evicted, Inserted, Matched, NoRoom, Outcome, Result
from pymllm.history.outcomes import Slots as Slots_

Prefix = tuple[int, ...]


class Pool:
    """Free slots, the first page left out for padding."""

    def __init__(self, page: int, slots: int) -> None:
        self.page = page
        self.slots = list(range(page, page + slots))

    def take(self, count: int) -> list[int] | None:
        count = -(-count // self.page) * self.page
        if count > len(self.slots):
            return None
        taken, self.slots = self.slots[:count], self.slots[count:]
        return taken

    def put(self, slots: list[int]) -> None:
        self.slots += slots


class Pages:
    """A prefix cache, a dictionary of pages; the oldest leaf goes first."""

    def __init__(self, page: int, slots: int) -> None:
        self.page = page
        self.pool = Pool(page, slots)
        self.pages: dict[Prefix, list[int]] = {}
        self.holds: Counter[Prefix] = Counter()

    def paths(self, tokens: Prefix) -> list[Prefix]:
        return [tokens[:end] for end in range(self.page, len(tokens) + 1, self.page)]

    def match(self, tokens: Prefix) -> list[int]:
        found: list[int] = []
        for path in self.paths(tokens):
            if path not in self.pages:
                break
            self.pages[path] = self.pages.pop(path)
            found += self.pages[path]
        return found

    def insert(self, tokens: Prefix, slots: list[int]) -> int:
        known = len(self.match(tokens))
        for path in self.paths(tokens)[known // self.page :]:
            self.pages[path] = slots[len(path) - self.page : len(path)]
        return known

    def evict(self, count: int) -> list[int]:
        gone = self.forget(count)
        self.pool.put(gone)
        return gone

    def forget(self, count: int) -> list[int]:
        gone: list[int] = []
        while len(gone) < count:
            inner = {path[: -self.page] for path in self.pages}
            leaf = next((it for it in self.pages if it not in inner and not self.holds[it]), None)
            if leaf is None:
                break
            gone += self.pages.pop(leaf)
        return gone

    def reset(self) -> list[int]:
        self.holds.clear()
        return self.evict(len(self.pages) * self.page)

    def hold(self, tokens: Prefix, by: int = 1) -> None:
        self.holds.update(dict.fromkeys(self.paths(tokens), by))


class Right(PrefixAdapter):
    """Makes no mistake."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page, "pool": "token", "slots": 12 * page} for page in (1, 2)
    )

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.begin()

    def begin(self) -> None:
        self.cache = Pages(self.page_size, self.number("slots"))

    def claim(self) -> Collection[str]:
        return {"pool", "exact_lru"}

    def sizes(self) -> Any:
        return {"available_size": len(self.cache.pool.slots)}

    def alloc(self, tokens: int) -> Any:
        slots = self.cache.pool.take(tokens)
        return slots and slots[:tokens]

    def free(self, slots: list[int]) -> None:
        self.cache.pool.put(self.slots_of(self.pages_of(slots)))

    def match(self, key: Key) -> Any:
        slots = self.cache.match(key.tokens)  # type: ignore[arg-type]
        return slots, key.tokens[: len(slots)]

    def insert(self, key: Key, slots: list[int]) -> Any:
        return self.cache.insert(key.tokens, slots), key.tokens  # type: ignore[arg-type]

    def evict(self, tokens: int) -> Any:
        return self.gave_back(self.cache.evict(tokens))

    def lock(self, node: Any) -> Any:
        self.cache.hold(node)

    def unlock(self, node: Any, token: Any) -> None:
        self.cache.hold(node, -1)

    def reset(self) -> None:
        self.gave_back(self.cache.reset())


class Watches(Right):
    """Makes no mistake, and watches the pool."""

    def begin(self) -> None:
        super().begin()
        self.calls.watch(self.cache.pool, "put")

    def evict(self, tokens: int) -> Any:
        return len(self.cache.evict(tokens))

    def reset(self) -> None:
        self.cache.reset()


class WholePages(Pool):
    """Takes and gives whole pages, and refuses parts of them."""

    def take(self, count: int) -> list[int] | None:
        self.refuse_parts(count)
        return super().take(count)

    def put(self, slots: list[int]) -> None:
        self.refuse_parts(len(slots))
        super().put(slots)

    def refuse_parts(self, count: int) -> None:
        if count % self.page:
            raise ValueError(f"{count} is no multiple of {self.page}")


class OverWholePages(Right):
    """Makes no mistake: rounds up for a pool that refuses parts of pages."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page, "pool": "token", "slots": 6 * page} for page in (2, 4)
    )

    def begin(self) -> None:
        super().begin()
        self.cache.pool = WholePages(self.page_size, self.number("slots"))

    def alloc(self, tokens: int) -> Any:
        slots = self.cache.pool.take(-(-tokens // self.page_size) * self.page_size)
        return None if slots is None else slots[:tokens]


class Tensors(Right):
    """Makes no mistake: numbers come as tensors and as those of NumPy, and holds have tokens of their own."""

    def sizes(self) -> Any:
        return {name: np.int64(size) for name, size in super().sizes().items()}

    def alloc(self, tokens: int) -> Any:
        slots = super().alloc(tokens)
        return slots and torch.tensor(slots)

    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return np.array(slots, dtype=np.int32), node

    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        return np.int64(known), node

    def evict(self, tokens: int) -> Any:
        return torch.tensor(self.gave_back(torch.tensor(self.cache.evict(tokens))))

    def lock(self, node: Any) -> Any:
        super().lock(node)
        return object()


# -- what goes back and is not told --------------------------------------------------------------------------


class EvictTellsNothing(Right):
    """The cache has a free list of its own, and only the count is passed on."""

    def evict(self, tokens: int) -> Any:
        return len(self.cache.evict(tokens))


class EvictTellsNothingAndCountsNothing(EvictTellsNothing):
    """The same, and no size shows it."""

    def sizes(self) -> Any:
        return {}


class ResetTellsNothing(Right):
    def reset(self) -> None:
        self.cache.reset()


class ResetTellsNothingAndCountsNothing(ResetTellsNothing):
    """Nothing is evicted before the first reset, and no size shows what a reset gives back."""

    def evict(self, tokens: int) -> Any:
        return 0

    def sizes(self) -> Any:
        return {}


class ResetAnew(Right):
    """An adapter whose reset makes the pool anew and drops callers' slots from the books."""

    def reset(self) -> None:
        self.begin()


class ResetAnewWatched(Watches):
    """The pool that is watched is dead after a reset."""

    def reset(self) -> None:
        self.cache = Pages(self.page_size, self.number("slots"))


class ResetAnewWatchedAgain(Watches):
    """The new pool is watched, too."""

    def reset(self) -> None:
        self.begin()


class WatchesAnother(Watches):
    """Watches a pool that is nobody's."""

    def begin(self) -> None:
        Right.begin(self)
        self.calls.watch(Pool(1, 1), "put")


class DuplicatesAreFreed(Right):
    """A cache that frees the unneeded slots of an insert without telling the caller."""

    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        self.free(slots[:known])
        return known, node


class DuplicatesAreFreedAndTold(Right):
    """The same, and told; they are still the caller's."""

    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        self.free(slots[:known])
        self.gave_back(slots[:known])
        return known, node


class TellsTwice(Watches):
    """Watches the pool and says it, too."""

    def evict(self, tokens: int) -> Any:
        return self.gave_back(self.cache.evict(tokens))


class TellsInACallback(Right):
    """An adapter that tells of lost slots at once, and again as `evict` and `reset` return."""

    def begin(self) -> None:
        super().begin()
        forget = self.cache.forget

        def forget_and_tell(count: int) -> list[int]:
            gone = forget(count)
            self.gave_back(gone)
            return gone

        self.cache.forget = forget_and_tell  # type: ignore[method-assign]


class ResetTellsTwice(TellsInACallback):
    def evict(self, tokens: int) -> Any:
        return len(self.cache.evict(tokens))


class NodesOfLists(Right):
    """Makes no mistake; a node is a list, a new one each time."""

    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return slots, [*node]

    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        return known, [*node]

    def lock(self, node: Any) -> Any:
        return super().lock(tuple(node))

    def unlock(self, node: Any, token: Any) -> None:
        super().unlock(tuple(node), token)


class MatchUsesItsNodeAgain(NodesOfLists):
    def begin(self) -> None:
        super().begin()
        self.node: list[int] = []

    def match(self, key: Key) -> Any:
        slots, self.node[:] = super().match(key)
        return slots, self.node


class InsertUsesItsNodeAgain(NodesOfLists):
    def begin(self) -> None:
        super().begin()
        self.node = Handle()

    def insert(self, key: Key, slots: list[int]) -> Any:
        known, self.node.tokens = super().insert(key, slots)
        return known, self.node

    def lock(self, node: Any) -> Any:
        return super().lock(node.tokens if isinstance(node, Handle) else node)

    def unlock(self, node: Any, token: Any) -> None:
        super().unlock(node.tokens if isinstance(node, Handle) else node, token)


class Handle:
    """The handle that an adapter makes of tokens."""

    tokens: Sequence[int] = ()


class TellsTheFirst(Right):
    """Only the first of several slots that go back are told."""

    def evict(self, tokens: int) -> Any:
        gone = self.cache.evict(tokens)
        self.gave_back(gone[:1])
        return len(gone)


class TellsItsCount(Right):
    """Tells how many went where slots are asked for."""

    def evict(self, tokens: int) -> Any:
        return self.gave_back(len(self.cache.evict(tokens)))


class WatchesAList(Right):
    """Watches a free list of a type whose methods cannot be replaced."""

    def begin(self) -> None:
        super().begin()
        self.calls.watch(deque(self.cache.pool.slots), "extend")


class WatchesNothing(Right):
    """Watches a method of another name."""

    def begin(self) -> None:
        super().begin()
        self.calls.watch(self.cache.pool, "give_back")


class UnlockTakesNoToken(Right):
    """Has no token, and says so."""

    def unlock(self, node: Any) -> None:  # type: ignore[override]
        self.cache.hold(node, -1)


class KeyIsNoTokens(Right):
    """Passes the key on, whose tokens the cache wants."""

    def match(self, key: Key) -> Any:
        return self.cache.match(key), ()  # type: ignore[arg-type]


class UnlocksItsToken(Right):
    """Passes on what lock returned, which is nothing."""

    def unlock(self, node: Any, token: Any) -> None:
        self.cache.hold(token, -1)


class TellsPages(Right):
    """Names pages in place of slots."""

    def evict(self, tokens: int) -> Any:
        gone = self.cache.evict(tokens)
        self.gave_back(self.pages_of(gone))
        return len(gone)


class TellsWhatTheCallerFrees(Right):
    def free(self, slots: list[int]) -> None:
        super().free(slots)
        self.gave_back(slots)


# -- answers -------------------------------------------------------------------------------------------------


class EvictReturnsNothing(Right):
    def evict(self, tokens: int) -> Any:
        if tokens > 0:
            self.gave_back(self.cache.evict(tokens))
            return None
        return 0


class EvictReturnsSlots(Right):
    def evict(self, tokens: int) -> Any:
        gone = self.cache.evict(tokens)
        self.gave_back(gone)
        return gone


class EvictReturnsPages(Right):
    def evict(self, tokens: int) -> Any:
        return self.gave_back(self.cache.evict(tokens)) // self.page_size


class EvictReturnsPagesWatched(Watches):
    def evict(self, tokens: int) -> Any:
        return super().evict(tokens) // self.page_size


class EvictAsksForPages(Right):
    """The cache is asked for so many pages as there were tokens asked for."""

    CONFIGURATIONS = Right.CONFIGURATIONS[1:]

    def evict(self, tokens: int) -> Any:
        return super().evict(tokens * self.page_size)


class MatchReturnsPages(Right):
    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return self.pages_of(slots), node


class InsertReturnsPages(Right):
    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        return known // self.page_size, node


class InsertReturnsPagesOfFour(InsertReturnsPages):
    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 4, "pool": "token", "slots": 48},)


class EvictReturnsWhetherItDid(Right):
    def evict(self, tokens: int) -> Any:
        return self.gave_back(self.cache.evict(tokens)) > 0


class InsertReturnsALength(Right):
    def insert(self, key: Key, slots: list[int]) -> Any:
        return super().insert(key, slots)[0]


class InsertReturnsNothing(Right):
    def insert(self, key: Key, slots: list[int]) -> Any:
        super().insert(key, slots)


class InsertReturnsWhatIsThereNow(Right):
    """How many tokens are cached after it, not before."""

    def insert(self, key: Key, slots: list[int]) -> Any:
        super().insert(key, slots)
        return len(self.cache.match(key.tokens)), key.tokens  # type: ignore[arg-type]


class MatchReturnsALength(Right):
    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return len(slots), node


class MatchReturnsSlots(Right):
    def match(self, key: Key) -> Any:
        return super().match(key)[0]


class MatchReturnsNothing(Right):
    """``None`` where nothing is found."""

    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return (slots, node) if slots else None


class AllocReturnsPages(Right):
    def alloc(self, tokens: int) -> Any:
        slots = self.cache.pool.take(tokens)
        return slots and self.pages_of(slots)


class AllocReturnsWholePages(Right):
    def alloc(self, tokens: int) -> Any:
        return self.cache.pool.take(tokens)


class AllocReturnsAnEmptyList(Right):
    """Where there is too little room."""

    def alloc(self, tokens: int) -> Any:
        return super().alloc(tokens) or []


class AllocRaises(Right):
    """Where there is too little room."""

    def alloc(self, tokens: int) -> Any:
        slots = super().alloc(tokens)
        if slots is None:
            raise MemoryError("pool is full")
        return slots


class AllocOfNothingReturnsNone(Right):
    def alloc(self, tokens: int) -> Any:
        return super().alloc(tokens) or None


class AllocRefusesParts(OverWholePages):
    """Passes parts of pages on."""

    def alloc(self, tokens: int) -> Any:
        return self.cache.pool.take(tokens)


class RootIsNone(Right):
    """A match of nothing gives no node, which the cache cannot hold."""

    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return slots, node or None


class LockTakesAnother(Right):
    """The cache holds nodes by what a match returned as slots."""

    def lock(self, node: Any) -> Any:
        return self.cache.holds[node[0]].add()  # type: ignore[attr-defined]


# -- sizes ---------------------------------------------------------------------------------------------------


class SizesNeverChange(Right):
    def begin(self) -> None:
        super().begin()
        self.first = super().sizes()

    def sizes(self) -> Any:
        return self.first


class SizesInPages(Right):
    def sizes(self) -> Any:
        return {"available_size": len(self.cache.pool.slots) // self.page_size}


class CountsInPages(Right):
    def sizes(self) -> Any:
        return {**super().sizes(), "total_size": len(self.cache.pages)}


class CountsWhatIsHeld(Right):
    """Takes all that is cached for evictable."""

    def sizes(self) -> Any:
        return {**super().sizes(), "evictable_size": len(self.cache.pages) * self.page_size}


class SizesWithPadding(Right):
    """Counts the first page, which nobody gets."""

    def sizes(self) -> Any:
        return {"available_size": len(self.cache.pool.slots) + self.page_size}


class CachedWithPadding(Right):
    """Takes the first page for one that is cached."""

    def sizes(self) -> Any:
        cached = (len(self.cache.pages) + 1) * self.page_size
        return {**super().sizes(), "total_size": cached}


class BlocksWithDummy(Blocks):
    """Counts the block that nobody gets."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = Blocks.CONFIGURATIONS[-1:]

    def sizes(self) -> Any:
        sizes = super().sizes()
        return {**sizes, "pool_avail": sizes["pool_avail"] + 1}


class SizesOfAnotherName(Right):
    def sizes(self) -> Any:
        return {"free": len(self.cache.pool.slots)}


class SizesAreNone(Right):
    def sizes(self) -> Any:
        return None


class SizesAreNoneLater(Right):
    """Once something is cached."""

    def sizes(self) -> Any:
        return None if self.cache.pages else super().sizes()


class SizesAreANumber(Right):
    def sizes(self) -> Any:
        return len(self.cache.pool.slots)


class SizesAreTensors(Right):
    def sizes(self) -> Any:
        return {"available_size": torch.tensor([1.5, 2.5])}


# -- without the helper --------------------------------------------------------------------------------------


class Bare(BaseAdapter):
    """Makes its results itself, and forgets the effects."""

    KIND = "prefix"
    CONFIGURATIONS = Right.CONFIGURATIONS

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.cache = Pages(self.number("page_size"), self.number("slots"))
        self.given: dict[int, Prefix] = {}

    def claim(self) -> Collection[str]:
        return {"pool"}

    def sizes(self) -> Any:
        return {"available_size": len(self.cache.pool.slots)}

    def do_alloc(self, step: int, operation: Alloc) -> Result:
        slots = self.cache.pool.take(operation.tokens)
        return NoRoom() if slots is None else Slots_(tuple(slots[: operation.tokens]))

    def do_free(self, step: int, operation: Free) -> Result:
        self.cache.pool.put(self.numbers(operation.slots))
        return Done()

    def do_match(self, step: int, operation: Match) -> Result:
        slots = self.cache.match(operation.key.tokens)  # type: ignore[arg-type]
        return Matched(tuple(slots), len(slots))

    def do_insert(self, step: int, operation: Insert) -> Result:
        tokens: Any = operation.key.tokens
        known = self.cache.insert(tokens, self.numbers(operation.slots or ()))
        return Inserted(known, ((known, len(tokens)),) if known < len(tokens) else ())

    def do_evict(self, step: int, operation: Evict) -> Result:
        return Evicted(len(self.cache.evict(operation.tokens)))


# -- allocators ----------------------------------------------------------------------------------------------


class Slots(SlotAdapter):
    """Makes no mistake."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple({"page_size": page, "pages": 6} for page in (1, 2))

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.clear()

    def clear(self) -> None:
        self.pool = Pool(self.page_size, self.number("pages") * self.page_size)

    def claim(self) -> Collection[str]:
        return {"pool"}

    def sizes(self) -> Any:
        return {"available_size": len(self.pool.slots)}

    def alloc(self, tokens: int) -> Any:
        slots = self.pool.take(tokens)
        return slots and slots[:tokens]

    def free(self, slots: list[int]) -> None:
        self.pool.put(self.slots_of(self.pages_of(slots)))


class SlotsAsPages(Slots):
    def alloc(self, tokens: int) -> Any:
        slots = self.pool.take(tokens)
        return slots and self.pages_of(slots)


class SlotsInWholePages(Slots):
    def alloc(self, tokens: int) -> Any:
        return self.pool.take(tokens)


class SlotsRefuseParts(Slots):
    """Passes parts of pages on to a pool that refuses them."""

    CONFIGURATIONS = Slots.CONFIGURATIONS[1:]

    def clear(self) -> None:
        self.pool = WholePages(self.page_size, self.number("pages") * self.page_size)

    def alloc(self, tokens: int) -> Any:
        return self.pool.take(tokens)


class SlotsOfNothingRaise(Slots):
    def alloc(self, tokens: int) -> Any:
        if not tokens:
            raise ValueError("nothing asked for")
        return super().alloc(tokens)


class SlotsRaise(Slots):
    def alloc(self, tokens: int) -> Any:
        slots = super().alloc(tokens)
        if slots is None:
            raise RuntimeError("out of memory")
        return slots


class SlotsNeverChange(Slots):
    def sizes(self) -> Any:
        return {"available_size": self.number("pages") * self.page_size}


class SlotsInPages(Slots):
    def sizes(self) -> Any:
        return {"available_size": len(self.pool.slots) // self.page_size}


class TooManySlots(Slots):
    """The pool is built with its padding counted, which it then adds."""

    def clear(self) -> None:
        self.pool = Pool(self.page_size, (self.number("pages") + 1) * self.page_size)


class TooFewSlots(Slots):
    """The pool is built with its padding taken off."""

    def clear(self) -> None:
        self.pool = Pool(self.page_size, (self.number("pages") - 1) * self.page_size)


class SizesOfWhatIsUsed(Slots):
    def sizes(self) -> Any:
        return {"available_size": self.number("pages") * self.page_size - len(self.pool.slots)}


class CacheOfTooFewSlots(Right):
    def begin(self) -> None:
        self.cache = Pages(self.page_size, self.number("slots") - self.page_size)


class TwoRows(BaseAdapter):
    """A table that is built a row too small."""

    KIND = "rows"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"max_reqs": 3, "max_context_len": 4},)
    MISSING = 1

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.rows = [*range(1, self.number("max_reqs") - self.MISSING + 1)]

    def claim(self) -> Collection[str]:
        return {"pool"}

    def sizes(self) -> Any:
        return {"available_size": len(self.rows)}

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Result:
        if operation.count > len(self.rows):
            return NoRoom()
        taken, self.rows = self.rows[: operation.count], self.rows[operation.count :]
        return Slots_(tuple(taken))

    def do_free_row(self, step: int, operation: FreeRow) -> Result:
        self.rows.append(self.one(operation.row))
        return Done()


class RowsWithPadding(TwoRows):
    """Counts row 0, which nobody gets."""

    MISSING = 0

    def sizes(self) -> Any:
        return {"size": self.number("max_reqs") + 1, "available_size": len(self.rows)}


class ReusesItsAnswer(Slots):
    """Each allocation is written into the same memory, so that the one before it changes."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.scratch = torch.zeros(64, dtype=torch.int64)

    def alloc(self, tokens: int) -> Any:
        found = super().alloc(tokens)
        if found is None:
            return None
        self.scratch[: len(found)] = torch.tensor(found, dtype=torch.int64)
        return self.scratch[: len(found)]


class ReusesItsList(Slots):
    """The list of the last allocation is emptied, and filled again."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.last: list[int] = []

    def alloc(self, tokens: int) -> Any:
        found = super().alloc(tokens)
        if found is None:
            return None
        self.last[:] = found
        return self.last


class SpoilsItsArgument(Slots):
    """An adapter that turns the caller's list of slots into pages when it frees them."""

    CONFIGURATIONS = Slots.CONFIGURATIONS[1:]

    def free(self, slots: list[int]) -> None:
        slots[:] = self.pages_of(slots)
        self.pool.put(self.slots_of(slots))


class InPlace:
    """Frees the slots of a tensor, which are its pages afterwards."""

    def __init__(self, adapter: Slots) -> None:
        self.adapter = adapter

    def free(self, slots: torch.Tensor) -> None:
        pages = slots.floor_divide_(self.adapter.page_size).tolist()
        self.adapter.pool.put(self.adapter.slots_of(dict.fromkeys(pages)))


class SpoilsATensor(Slots):
    """The tensor is the adapter's, and watched."""

    CONFIGURATIONS = Slots.CONFIGURATIONS[1:]

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.spoiling = InPlace(self)
        self.calls.watch(self.spoiling, "free")

    def free(self, slots: list[int]) -> None:
        self.spoiling.free(torch.tensor(slots, dtype=torch.int64))


class MatchOfItsOwn(Right):
    """A match hands out the list that the next one fills."""

    def begin(self) -> None:
        super().begin()
        self.last: list[int] = []

    def match(self, key: Key) -> Any:
        self.last[:], node = super().match(key)
        return self.last, node


class FreesSlotsAsPages(Slots):
    """The pool is of pages, and gets the slots of one."""

    CONFIGURATIONS = Slots.CONFIGURATIONS[1:]

    def clear(self) -> None:
        self.pool = Pool(1, self.number("pages"))

    def sizes(self) -> Any:
        return {"available_size": len(self.pool.slots) * self.page_size}

    def alloc(self, tokens: int) -> Any:
        pages = self.pool.take(-(-tokens // self.page_size))
        return None if pages is None else self.slots_of(pages)[:tokens]

    def free(self, slots: list[int]) -> None:
        self.pool.put(slots)


class SlotsWithPadding(Slots):
    def sizes(self) -> Any:
        return {"available_size": len(self.pool.slots) + self.page_size}


# -- right adapters of wrong classes -------------------------------------------------------------------------


class LeakyPages(Pages):
    """Forgets to give back what it evicts."""

    def evict(self, count: int) -> list[int]:
        return self.forget(count)


class Leaks(Right):
    def begin(self) -> None:
        self.cache = LeakyPages(self.page_size, self.number("slots"))


class LeaksWatched(Watches):
    """A watched adapter whose leaking cache never calls the pool, so the watch sees no leak."""

    def begin(self) -> None:
        super().begin()
        self.cache.__class__ = LeakyPages


class EvictsEverything(Right):
    """Takes all that nobody holds, however little is asked for."""

    def evict(self, tokens: int) -> Any:
        return super().evict(tokens and len(self.cache.pages) * self.page_size)


class EvictsMutely(Right):
    """An adapter that evicts, and reports an eviction of nothing."""

    def evict(self, tokens: int) -> Any:
        self.cache.evict(tokens)
        return self.gave_back([])


class EvictsHeld(Right):
    """Looks at no hold."""

    def lock(self, node: Any) -> Any:
        return None

    def unlock(self, node: Any, token: Any) -> None:
        return None


class FreesTwice(Right):
    """Evicted slots stand in the free list twice."""

    def evict(self, tokens: int) -> Any:
        gone = self.cache.evict(tokens)
        self.cache.pool.put(gone)
        return self.gave_back(gone)


class FloorsParts(Right):
    """An adapter with a pool that rounds an allocation down."""

    CONFIGURATIONS = Right.CONFIGURATIONS[1:]

    def alloc(self, tokens: int) -> Any:
        return super().alloc(self.whole(tokens))


class HandsOutHalfPages(Right):
    """Its pool hands out as many slots as it is asked for, and the next one gets the rest of the page."""

    CONFIGURATIONS = Right.CONFIGURATIONS[1:]

    def begin(self) -> None:
        super().begin()
        self.cache.pool.page = 1


class FreesByFirstSlots(Right):
    """Its pool knows a page by its first slot alone, and passes over the others."""

    CONFIGURATIONS = Right.CONFIGURATIONS[1:]

    def free(self, slots: list[int]) -> None:
        super().free([slot for slot in slots if slot % self.page_size == 0])


class FailsForParts(Right):
    """Its pool fails for a part of a page, and has taken the page by then."""

    CONFIGURATIONS = Right.CONFIGURATIONS[1:]

    def alloc(self, tokens: int) -> Any:
        slots = super().alloc(tokens)
        if tokens % self.page_size:
            raise IndexError("list index out of range")
        return slots


class StopsAllocating(Right):
    """Its pool fails from the fourth allocation on, whatever is asked for."""

    CONFIGURATIONS = Right.CONFIGURATIONS[1:]

    def begin(self) -> None:
        super().begin()
        self.left = 3

    def alloc(self, tokens: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise IndexError("list index out of range")
        return super().alloc(tokens)


class ResetKeeps(Right):
    """A reset takes the pages, and gives nothing back."""

    def reset(self) -> None:
        self.cache.holds.clear()
        self.cache.pages.clear()


class LosesSlots(Slots):
    """Takes slots for an allocation that it refuses: the pool of README."""

    def alloc(self, tokens: int) -> Any:
        count = -(-tokens // self.page_size) * self.page_size
        taken, self.pool.slots = self.pool.slots[:count], self.pool.slots[count:]
        return taken[:tokens] if len(taken) == count else None


class HandsOutWhatThereIs(Slots):
    """Fewer slots than were asked for."""

    def alloc(self, tokens: int) -> Any:
        count = -(-tokens // self.page_size) * self.page_size
        taken, self.pool.slots = self.pool.slots[:count], self.pool.slots[count:]
        return taken[:tokens]


class HandsOutTwice(Slots):
    """An adapter that leaves allocated slots in the pool's books, so that no size changes."""

    def alloc(self, tokens: int) -> Any:
        return self.pool.slots[:tokens]

    def free(self, slots: list[int]) -> None:
        return None


class TellsItsSizeOnly(Slots):
    """Makes no mistake: the whole pool has one size."""

    def sizes(self) -> Any:
        return {"size": self.number("pages") * self.page_size}


class HandsOutPadding(Slots):
    """Counts from 0."""

    def clear(self) -> None:
        super().clear()
        self.pool.slots = list(range(self.number("pages") * self.page_size))


class FreesPagesTooOften(Slots):
    """Its list of free pages has one for each slot that is freed, and taking too many raises."""

    def free(self, slots: list[int]) -> None:
        self.pool.put(slots * 4)

    def alloc(self, tokens: int) -> Any:
        count = -(-tokens // self.page_size) * self.page_size
        if count > self.number("pages") * self.page_size:
            raise IndexError("list index out of range")
        return super().alloc(tokens)


# -- what nobody can tell apart ------------------------------------------------------------------------------


class ResetAnewTold(Right):
    """An adapter whose reset tells the slots of the cache and frees the slots of callers, too."""

    def reset(self) -> None:
        self.gave_back(self.cache.reset())
        self.begin()


class CountsTooLittle(Watches):
    """The cache says of no eviction how much went."""

    def evict(self, tokens: int) -> Any:
        self.cache.evict(tokens)
        return 0


class RaisesLate(Slots):
    """Raises for lack of room, and has taken by then what there was."""

    def alloc(self, tokens: int) -> Any:
        if tokens > len(self.pool.slots):
            self.pool.slots.clear()
            raise MemoryError("full")
        return super().alloc(tokens)


class NobodyIsTold(Blocks):
    """No observer was set."""

    def apply(self, step: int, operation: Operation) -> Outcome:
        return dataclasses.replace(super().apply(step, operation), effects=())
