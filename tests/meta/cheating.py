"""Adapters that cheat: a sound cache of pages with a planted bug, and a way to hide it where it shows.

`CHEATS` is a family made from a seed. Each takes one of the `BUGS`, a time at which both the bug and the
cheat are on (`TIMES`), and a way to keep the judge from what it would see (`WAYS`). An operation that is
answered with `unsupported` whenever its bug would show leaves nothing wrong in any outcome.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from pymllm.adapters.simple import _NO_NODE, PrefixAdapter
from pymllm.history import operations as ops
from pymllm.history.codec import name_of
from pymllm.history.operations import Key, Operation
from pymllm.history.outcomes import Effect, Outcome, Unsupported

Path = tuple[int, ...]


class Pages(PrefixAdapter):
    """A sound cache of pages of one token over a pool of its own, the least recent leaf first."""

    CONFIGURATIONS = (
        {"page_size": 1, "pool": "token", "slots": 8, "window": None},
        {"page_size": 1, "pool": "token", "slots": 16, "window": None},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.slots: dict[Path, int] = {}
        self.used: dict[Path, int] = {}
        self.holds: Counter[Path] = Counter()
        self.epoch = 0
        self.clock = 0
        self.room = list(range(1, self.number("slots") + 1))
        self.bug = ""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "exact_lru"})

    def sizes(self) -> dict[str, int]:
        held = len(self._held())
        return {
            "available_size": len(self.room),
            "total_size": len(self.slots),
            "protected_size": held,
            "evictable_size": len(self.slots) - held,
        }

    def _held(self) -> set[Path]:
        return {path[:end] for path, holds in self.holds.items() if holds for end in range(1, len(path) + 1)}

    def _touch(self, path: Path) -> None:
        self.clock += 1
        for end in range(1, len(path) + 1):
            self.used[path[:end]] = self.clock

    def _known(self, tokens: Path) -> Path:
        end = 0
        while end < len(tokens) and tokens[: end + 1] in self.slots:
            end += 1
        return tokens[:end]

    def alloc(self, tokens: int) -> list[int] | None:
        if tokens > len(self.room):
            return None
        taken, self.room = self.room[:tokens], self.room[tokens:]
        return taken

    def free(self, slots: list[int]) -> None:
        self.room += slots

    def match(self, key: Key) -> tuple[list[int], Any]:
        path = self._known(key.tokens)  # type: ignore[arg-type]
        self._touch(path)
        return [self.slots[path[:end]] for end in range(1, len(path) + 1)], (self.epoch, path)

    def insert(self, key: Key, slots: list[int]) -> tuple[int, Any]:
        known: Path = self._known(key.tokens)  # type: ignore[arg-type]
        whole: Path = key.tokens  # type: ignore[assignment]
        is_short = self.bug == "an insert keeps the last page away"
        for end in range(len(known) + 1, len(whole) + 1 - is_short):
            self.slots[whole[:end]] = slots[end - 1]
        self._touch(whole)
        return len(known), (self.epoch, whole)

    def evict(self, tokens: int) -> int:
        gone: list[int] = []
        held = set() if self.bug == "evicts held pages" else self._held()
        while len(gone) < tokens:
            parents = {path[:-1] for path in self.slots}
            leaves = [path for path in self.slots if path not in parents and path not in held]
            if not leaves:
                break
            victim = (max if self.bug == "evicts the youngest" else min)(
                leaves, key=lambda path: (self.used[path], len(path))
            )
            gone.append(self.slots.pop(victim))
        if self.bug == "loses what it evicts":
            self.gave_back(gone)
            return len(gone)
        self.room += gone
        return self.gave_back(gone)

    def lock(self, node: Any) -> None:
        epoch, path = node
        if epoch == self.epoch:
            self.holds[path] += 1 + (self.bug == "holds twice")

    def unlock(self, node: Any, token: Any) -> None:
        epoch, path = node
        if epoch == self.epoch:
            self.holds[path] -= 1

    def reset(self) -> None:
        gone = [] if self.bug == "a reset forgets" else [*self.slots.values()]
        self.slots.clear()
        self.holds.clear()
        self.epoch += 1
        self.room += gone
        self.gave_back(gone)


# -- when, and how -----------------------------------------------------------------------------------------

Bitten = Mapping[str, str]
BUGS: Bitten = {
    "evicts held pages": "evict",
    "evicts the youngest": "evict",
    "loses what it evicts": "evict",
    "holds twice": "lock",
    "a reset forgets": "reset",
    "an insert keeps the last page away": "insert",
}
"""Each bug by the operation in which it is."""


class Time(NamedTuple):
    """When bug and cheat are on; whatever it asks of the adapter was so before the operation."""

    name: str
    is_on: Callable[[Cheat, Operation], object]


TIMES = (
    Time("late", lambda it, operation: it.step > 24),
    Time("while something is held", lambda it, operation: it._held()),
    Time("in a pool that is nearly full", lambda it, operation: len(it.room) < 4),
    Time("after a reset", lambda it, operation: it.epoch),
    Time("for what is large", lambda it, operation: getattr(operation, "tokens", 2) > 1),
    Time("at every second call", lambda it, operation: it.asked[type(operation)] % 2),
    Time("in the larger pool", lambda it, operation: it.number("slots") > 8),
    Time("in every second object", lambda it, operation: it.made % 2),
    Time("once something was evicted", lambda it, operation: it.has_evicted),
)


class Way(NamedTuple):
    """How it is hidden: ``cheat`` takes the outcome that would tell of it, and gives what is told instead."""

    name: str
    cheat: Callable[[Cheat, Operation, Outcome], Outcome]


def _refuse(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    return Outcome(Unsupported(name_of(type(operation))), (), it.sizes())


def _refuse_with_effects(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    it.room += [slot for effect in outcome.effects for slot in effect.slots if slot not in it.room]
    return Outcome(Unsupported("not now"), (Effect("free", (1,)),), it.sizes())


def _withdraw(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    it.capabilities -= {"exact_lru", "pool"}
    return outcome


def _give_no_node(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    it._nodes[it.step] = _NO_NODE  # and so nobody meets the bug of a hold that would be taken there
    return replace(outcome, result=replace(outcome.result, node_len=None))  # type: ignore[type-var]


def _turn(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    it.kind = "rows"
    return outcome


def _configure(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    it.config["slots"] = 3
    return outcome


def _limit(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    it.limits = {name_of(type(operation)): "it is too hard now"}
    return Outcome(Unsupported("a limit"), (), it.sizes())


def _refuse_by_limit(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    return Outcome(Unsupported("as it was declared"), (), it.sizes())


def _hush(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    return replace(outcome, sizes={"total_size": outcome.sizes["total_size"]})


def _keep_sizes(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    return replace(outcome, sizes=it.sizes_before)


def _hide(it: Cheat, operation: Operation, outcome: Outcome) -> Outcome:
    return replace(outcome, effects=())


UNSUPPORTED = Way("answers unsupported", _refuse)
WAYS = (
    Way("answers unsupported, and does it", _refuse_with_effects),
    Way("withdraws its claims", _withdraw),
    Way("turns into another kind", _turn),
    Way("has another configuration", _configure),
    Way("declares a limit when it needs one", _limit),
    Way("leaves sizes out", _hush),
    Way("tells old sizes", _keep_sizes),
    Way("hides effects", _hide),
    Way("has declared a limit", _refuse_by_limit),
    Way("gives no node", _give_no_node),
)


_LONGER_THAN_SMOKE = 14


class Cheat(Pages):
    """Has the bug at its time, and hides it."""

    BUG: ClassVar[str]
    TIME: ClassVar[Time]
    WAY: ClassVar[Way]
    MADE: ClassVar[int] = 0
    TIMES_ON: ClassVar[int] = 0

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        type(self).MADE += 1
        self.made = type(self).MADE
        self.step = 0
        self.asked: Counter[type] = Counter()
        self.has_evicted = False
        self.sizes_before = self.sizes()

    def apply(self, step: int, operation: Operation) -> Outcome:
        self.step = step
        is_late = step > _LONGER_THAN_SMOKE
        asked = "insert" if self.WAY.cheat is _give_no_node else BUGS[self.BUG]
        is_on = is_late and name_of(type(operation)) == asked and self.TIME.is_on(self, operation)
        type(self).TIMES_ON += bool(is_on)
        self.asked[type(operation)] += 1
        self.sizes_before = self.sizes()
        if is_on and self.WAY.cheat in (_refuse, _limit, _refuse_by_limit):
            return self.WAY.cheat(self, operation, Outcome(Unsupported("")))
        self.bug = self.BUG if is_on else ""
        outcome = super().apply(step, operation)
        self.bug = ""
        self.has_evicted |= isinstance(operation, ops.Evict)
        return self.WAY.cheat(self, operation, outcome) if is_on else outcome


_SHOWN_BY = {
    "hides effects": ("evict", "reset"),
    "tells old sizes": ("evict", "lock"),
    "gives no node": ("lock",),
}
_SHOWN_AT = {"for what is large": ("evict",), "after a reset": ("evict", "lock", "insert")}
"""Operations whose bugs can be hidden that way, or are there often enough at that time."""


def make_family(seed: int) -> dict[str, type[Cheat]]:
    """Return cheats by their names: each time hides a bug by `unsupported`, and each way one at some time.

    Which bug it is, and the time of a way, follow from the seed.
    """
    source = random.Random(seed)
    chosen = [(time, UNSUPPORTED) for time in TIMES for _ in range(2)]
    chosen += [(source.choice(TIMES[:6]), way) for way in WAYS]
    family = {}
    for number, (time, way) in enumerate(chosen):
        shows = _SHOWN_BY.get(way.name) or _SHOWN_AT.get(time.name) or (*BUGS.values(),)
        bugs = [bug for bug, operation in BUGS.items() if operation in shows]
        bug = bugs[(number + source.randrange(2) * 2) % len(bugs)]
        space: dict[str, Any] = {"BUG": bug, "TIME": time, "WAY": way}
        space["__doc__"] = f"{bug.capitalize()} {time.name}, and {way.name}."
        if way.cheat is _refuse_by_limit:
            space["LIMITS"] = {BUGS[bug]: "it is hard"}
        family[f"Cheat{number}"] = type(f"Cheat{number}", (Cheat,), space)
    return family


SEED = 43
CHEATS = make_family(SEED)
globals().update(CHEATS)
