"""First adapters of a cache that is right, with mistakes that a bug of the cache would look like, too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from pymllm.history.files import Config
from pymllm.history.operations import Key
from tests.unit.first_adapters import OverWholePages, Prefix, Right, Slots


class Held(Right):
    """Makes no mistake, and tells what is held; a node is the cache's own."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 1, "pool": "token", "slots": 12},)

    def claim(self) -> Collection[str]:
        return {"pool"}

    def sizes(self) -> Any:
        held = sum(1 for path in self.cache.pages if self.cache.holds[path])
        loose = len(self.cache.pages) - held
        return {**super().sizes(), "evictable_size": loose, "protected_size": held}


class FreesNothing(Held):
    def free(self, slots: list[int]) -> None:
        """Reach nothing."""


class FreesTheFirst(Held):
    def free(self, slots: list[int]) -> None:
        super().free(slots[:1])


class AllocEvicts(Held):
    def alloc(self, tokens: int) -> Any:
        slots = super().alloc(tokens)
        if slots is None:
            self.cache.evict(tokens - len(self.cache.pool.slots))
            slots = super().alloc(tokens)
        return slots


class AllocGivesAPart(Held):
    def alloc(self, tokens: int) -> Any:
        return super().alloc(min(tokens, len(self.cache.pool.slots)))


class MatchDropsTheLast(Held):
    def match(self, key: Key) -> Any:
        return super().match(Key(key.tokens[:-1]))


class SlotsAreSorted(Held):
    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        return sorted(slots), node


class NodesOfTwoKinds(Held):
    """A match gives the tokens as a tuple, an insert gives them as a text."""

    def insert(self, key: Key, slots: list[int]) -> Any:
        return super().insert(key, slots)[0], len(key.tokens)


class ClaimsNamespaces(Held):
    def claim(self) -> Collection[str]:
        return {"pool", "extra_key"}


class InsertPassesNewSlots(Held):
    def insert(self, key: Key, slots: list[int]) -> Any:
        known = len(self.cache.match(key.tokens))  # type: ignore[arg-type]
        return self.cache_new(key.tokens, slots[known:], known), key.tokens  # type: ignore[arg-type]

    def cache_new(self, tokens: Prefix, slots: list[int], known: int) -> int:
        for path, slot in list(zip(self.cache.paths(tokens), slots, strict=False))[known:]:
            self.cache.pages[path] = [slot]
        return known


class UnlocksNothing(Held):
    def unlock(self, node: Any, token: Any) -> None:
        """Reach nothing."""


class LocksNothing(Held):
    def lock(self, node: Any) -> Any:
        """Reach nothing."""

    def unlock(self, node: Any, token: Any) -> None:
        """Reach nothing."""


class InsertReturnsTheParent(Held):
    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        return known, node[:-1]


class MatchPins(Held):
    def match(self, key: Key) -> Any:
        slots, node = super().match(key)
        self.cache.hold(node)
        return slots, node


class AnotherPageSize(Held):
    """The class knows pages of one token only."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 2, "pool": "token", "slots": 12},)

    def begin(self) -> None:
        super().begin()
        self.cache.page = self.cache.pool.page = 1
        self.cache.pool.slots = list(range(1, 13))


class PagesOfTwo(Right):
    """Makes no mistake; each page has two slots."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 2, "pool": "token", "slots": 12},)

    def claim(self) -> Collection[str]:
        return {"pool"}


class AllocPassesParts(PagesOfTwo):
    """The class hands out as many slots as it is asked for, which ought to be whole pages."""

    def begin(self) -> None:
        super().begin()
        self.cache.pool.page = 1


class AllocPassesPartsUncounted(AllocPassesParts):
    """The same, and no size shows it."""

    def sizes(self) -> Any:
        return {}


class AllocRoundsDown(PagesOfTwo):
    def alloc(self, tokens: int) -> Any:
        return super().alloc(self.whole(tokens))


class AllocOfPartsIsNone(PagesOfTwo):
    """The class says ``None`` to what is no whole page."""

    def alloc(self, tokens: int) -> Any:
        return None if tokens % self.page_size else super().alloc(tokens)


class FreesParts(PagesOfTwo):
    """The class takes slots back as they are named, which ought to be whole pages."""

    def free(self, slots: list[int]) -> None:
        self.cache.pool.put(slots)


class FreeRefusesParts(OverWholePages):
    """The class refuses what is no whole page."""

    def free(self, slots: list[int]) -> None:
        self.cache.pool.put(slots)


class ResetsNothing(Held):
    def reset(self) -> None:
        """Reach nothing."""


class ResetEvicts(Held):
    def reset(self) -> None:
        self.gave_back(self.cache.evict(len(self.cache.pages)))


class EvictReturnsWhatWasAsked(Held):
    def evict(self, tokens: int) -> Any:
        super().evict(tokens)
        return max(0, tokens)


class TellsOfWhatWentBefore(Held):
    """An adapter that compares with the slots after an allocation, and so tells slots that callers freed."""

    def alloc(self, tokens: int) -> Any:
        slots = super().alloc(tokens)
        self.before = self.cache.pool.slots[:]
        return slots

    def evict(self, tokens: int) -> Any:
        before = getattr(self, "before", self.cache.pool.slots[:])
        count = len(self.cache.evict(tokens))
        self.gave_back([slot for slot in self.cache.pool.slots if slot not in before])
        return count


class AvailableWithEvictable(Held):
    def sizes(self) -> Any:
        sizes = super().sizes()
        return {**sizes, "available_size": sizes["available_size"] + sizes["evictable_size"]}


class ClearsNothing(Slots):
    def clear(self) -> None:
        if not hasattr(self, "pool"):
            super().clear()


class InsertRaises(Held):
    """Asks for something that is not promised."""

    def insert(self, key: Key, slots: list[int]) -> Any:
        assert len(slots) < 5
        return super().insert(key, slots)


class InsertLeavesAToken(Held):
    """A cache that reports all but a token of a fully cached key, as its request computes that token anew."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 2, "pool": "token", "slots": 16},)

    def sizes(self) -> Any:
        return {"available_size": len(self.cache.pool.slots)}

    def insert(self, key: Key, slots: list[int]) -> Any:
        known, node = super().insert(key, slots)
        return min(known, self.whole(max(len(key.tokens) - 1, 0))), node
