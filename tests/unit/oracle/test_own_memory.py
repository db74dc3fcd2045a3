"""A cache that takes its memory by itself: inserts evict, in the order of releases, or find no room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from told_program import ToldProgram

from pymllm.adapters.base import BaseAdapter
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Config, Header
from pymllm.history.operations import Evict, Insert, Inspect, Lock, Match, Reset, Unlock
from pymllm.history.outcomes import (
    Done,
    Evicted,
    Failed,
    Inserted,
    Inspected,
    Locked,
    Matched,
    NodeView,
    NoRoom,
    Result,
)
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix import PrefixMachine
from pymllm.oracle.judge import make_judge

NAME = f"{__name__}:OwnMemory"


class OwnMemory(BaseAdapter):
    """A dictionary of pages of one token, each with its content, its number and when it was let go of."""

    KIND = "prefix"
    CONFIGURATIONS: ClassVar[tuple[Config, ...]] = tuple(
        {"page_size": 1, "window": None, "pool": "none", "capacity": room, "splits": False, "policy": policy}
        for room, policy in ((5, "release"), (12, "release"), (5, "lru"))
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.pages: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.when: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.nodes: dict[int, tuple[Any, ...]] = {}
        self.holds: dict[int, tuple[Any, ...]] = {}
        self.clock = 0

    def claim(self) -> frozenset[str]:
        return frozenset({"inspect", "exact_lru" if self.config["policy"] == "lru" else "exact_policy"})

    def sizes(self) -> dict[str, int]:
        held = sum(map(self.locks, self.pages))
        return {"total_size": len(self.pages), "evictable_size": len(self.pages) - held}

    def locks(self, path: tuple[Any, ...], taken: tuple[Any, ...] = ()) -> bool:
        return any(hold[: len(path)] == path for hold in (taken, *self.holds.values()))

    def use(self, path: tuple[Any, ...]) -> None:
        self.clock += 1
        self.when.update((path[:end], (self.clock, -end)) for end in range(1, len(path) + 1))

    def make_room(self, pages: int, taken: tuple[Any, ...] = ()) -> int:
        """Evict so many pages, or none where that is too many; return how many went."""
        free = [path for path in self.pages if not self.locks(path, taken)]
        for path in sorted(free, key=self.when.__getitem__)[:pages]:
            del self.pages[path]
        return min(len(free), pages)

    def is_lru(self) -> bool:
        return self.config["policy"] == "lru"

    def do_match(self, step: int, operation: Match) -> Result:
        key = operation.key.tokens
        found = [end for end in range(1, len(key) + 1) if key[:end] in self.pages]
        self.nodes[step] = path = key[: len(found)]
        if self.is_lru():
            self.use(path)
        return Matched(tuple(self.pages[path[:end]][0] for end in found), len(found), len(found))

    def do_insert(self, step: int, operation: Insert) -> Result:
        key = operation.key.tokens
        slots = key if operation.slots is None else self.numbers(operation.slots)
        ends = range(1, len(key) + 1)
        known = sum(key[:end] in self.pages for end in ends)
        missing = max(0, len(self.pages) + len(key) - known - self.number("capacity"))
        free = [path for path in self.pages if not self.locks(path, key)]
        if known < len(key) and missing > len(free):
            return NoRoom()
        self.make_room(missing, key)
        for end in ends[known:]:
            self.clock += 1
            self.pages[key[:end]] = slots[end - 1], self.clock  # type: ignore[assignment]
        self.use(key)
        self.nodes[step] = key
        return Inserted(known, ((known, len(key)),) if known < len(key) else (), len(key))

    def do_evict(self, step: int, operation: Evict) -> Result:
        return Evicted(self.make_room(max(0, operation.tokens)))

    def do_lock(self, step: int, operation: Lock) -> Result:
        self.nodes[step] = self.holds[step] = self.nodes[operation.of]
        return Locked()

    def do_unlock(self, step: int, operation: Unlock) -> Result:
        path = self.holds.pop(operation.lock, ())
        if not self.is_lru():
            self.use(path)
        return Done()

    def do_reset(self, step: int, operation: Reset) -> Result:
        self.pages.clear()
        self.holds.clear()
        return Done()

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        views = (
            NodeView(number, self.pages.get(path[:-1], (0, None))[1], path[-1:], None, (slot,))
            for path, (slot, number) in sorted(self.pages.items(), key=lambda page: len(page[0]))
        )
        return Inspected(tuple(views))


FEW = OwnMemory.CONFIGURATIONS[0]


def told(**config: Any) -> ToldProgram:
    return ToldProgram(NAME, **{**FEW, "slots": 1, **config})


@pytest.mark.parametrize("config", OwnMemory.CONFIGURATIONS, ids=str)
def test_a_search_finds_nothing_wrong_and_reaches_every_way_to_make_room(config: Config) -> None:
    """R3, R11, R8."""
    reached = set[str]()
    for seed in range(16):
        machine = make_machine(PrefixMachine, NAME, dict(config))
        evidence = drive(machine, seed, 60).examiner.judge.evidence
        reached |= evidence.reached.keys()
    assert reached >= {
        "an insert evicts",
        "an insert evicts and keeps what it has found",
        "an insert finds no room",
    }


def test_an_insert_evicts_what_was_let_go_of_first() -> None:
    """R3, R11: a match counts nothing, the release of a hold does; the pages of one path go from its end."""
    program = told()
    program.put(1, 1)
    held = program(Lock(program.put(2)))
    program.put(3)
    program(Match(program.step(1).operation.key))  # type: ignore[attr-defined]
    program(Unlock(held))
    program.put(4, 4)
    shown = program(Inspect())
    views = program.outcome(shown).result
    assert isinstance(views, Inspected)
    assert {view.tokens for view in views.nodes} == {(1,), (2,), (3,), (4,)}
    assert program.sound().reached["an insert evicts"] == 1
    kept = tuple(view for view in views.nodes if view.tokens != (1,))
    assert program.law(shown, nodes=kept) == "R3"
    assert program.law(shown, nodes=(NodeView(99, views.nodes[0].id, (1,), None, (1,)), *views.nodes)) == "R9"


def test_an_insert_holds_what_it_has_found() -> None:
    """R3: it evicts nothing of its own key."""
    program = told()
    program.put(1, 1, 1)
    program.put(2, 2)
    inserted = program.put(1, 1, 1, 1)
    assert program.outcome(inserted).sizes == {"total_size": 5, "evictable_size": 5}
    assert program.sound().reached["an insert evicts and keeps what it has found"] == 1
    assert program.law(inserted, sizes={"total_size": 6}) == "R7"
    assert program.law(inserted, result=NoRoom()) == "R3"


def test_an_insert_without_room_changes_nothing() -> None:
    """R3: if all that may go is not enough; a key that is there needs no room."""
    program = told()
    program(Lock(program.put(1, 1, 1)))
    program.put(2, 2)
    refused = program.put(1, 3, 3, 3)
    assert program.outcome(refused).result == NoRoom()
    program.put(1, 1, 1)
    assert program.sound().reached["an insert finds no room"] == 1
    assert program.law(refused, result=Inserted(1, ((1, 4),), 4)) == "R3"
    assert program.law(refused, result=Failed("MemoryError")) == "R3"
    assert program.law(refused, sizes={"total_size": 4}) == "R7"


class NewestFirst(OwnMemory):
    """One that evicts what was let go of last."""

    def use(self, path: tuple[Any, ...]) -> None:
        self.clock += 1
        self.when.update((path[:end], (-self.clock, -end)) for end in range(1, len(path) + 1))


def test_a_cache_that_evicts_in_another_order_is_found() -> None:
    """R3, R11: what was let go of last goes first."""
    machine = make_machine(PrefixMachine, NAME.replace("OwnMemory", "NewestFirst"), dict(FEW))

    def search() -> None:
        for seed in range(10):
            drive(machine, seed, 200)

    with pytest.raises(InvariantViolation) as found:
        search()
    assert found.value.law in ("R3", "R9", "R11")


@pytest.mark.parametrize(
    ("claims", "config", "message"),
    [
        (("exact_policy", "pool"), {"pool": "token", "slots": 4}, "a cache with one has neither a pool"),
        (("exact_lru", "swa"), {"policy": "lru", "window": 1}, "a cache with one has neither a pool"),
        ((), {}, "the evictions of an insert are unknown"),
        (("exact_policy",), {"page_size": 2}, "capacity is 5; it must be a multiple of page_size, 2"),
        (("exact_policy",), {"capacity": "5"}, "capacity is '5'; it must be an integer"),
        (("exact_policy",), {"capacity": 2**21}, "capacity is 2,097,152; at most it is"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_no_program(
    claims: tuple[str, ...], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        make_judge(Header("x", "prefix", {**FEW, **config}, claims))
