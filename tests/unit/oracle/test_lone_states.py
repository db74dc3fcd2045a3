"""A cache whose states outlive their KV: each goes by itself, and one stands again where KV comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from told_program import ToldProgram

from pymllm.adapters.base import BaseAdapter
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Free,
    FreeTrack,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Reset,
    Unlock,
)
from pymllm.history.outcomes import (
    Done,
    Effect,
    Evicted,
    Inserted,
    Inspected,
    Locked,
    Matched,
    NodeView,
    NoRoom,
    Result,
    Slots,
)
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix import PrefixMachine

NAME = f"{__name__}:LoneStates"


class LoneStates(BaseAdapter):
    """Pages of one token and states in two dictionaries, and pools of lists; the longest page goes first."""

    KIND = "prefix"
    CONFIGURATIONS: ClassVar[tuple[Config, ...]] = (
        {"page_size": 1, "window": None, "pool": "token", "slots": 8, "track_slots": 4, "splits": False},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.pages: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.states: dict[tuple[Any, ...], int] = {}
        self.nodes: dict[int, tuple[Any, ...]] = {}
        self.holds: dict[int, tuple[Any, ...]] = {}
        self.slots = [*range(1, self.number("slots") + 1)]
        self.tracks = [*range(1, self.number("track_slots") + 1)]
        self.born = 0

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "mamba", "lone_states", "inspect", "lean_matches", "node_ids"})

    def locks(self, path: tuple[Any, ...]) -> int:
        return sum(hold[: len(path)] == path for hold in self.holds.values())

    def sizes(self) -> dict[str, int]:
        held, kept = sum(map(bool, map(self.locks, self.pages))), {*self.holds.values()} & self.states.keys()
        return {
            "evictable_size": len(self.pages) - held,
            "mamba_evictable_size": len(self.states) - len(kept),
            "available_size": len(self.slots),
            "available_track_slots": len(self.tracks),
        }

    def do_alloc(self, step: int, operation: Alloc) -> Result:
        if operation.tokens > len(self.slots):
            return NoRoom()
        return Slots(tuple(self.slots.pop(0) for _ in range(operation.tokens)))

    def do_free(self, step: int, operation: Free) -> Result:
        self.slots += self.numbers(operation.slots)
        return Done()

    def do_alloc_track(self, step: int, operation: AllocTrack) -> Result:
        return Slots((self.tracks.pop(0),)) if self.tracks else NoRoom()

    def do_free_track(self, step: int, operation: FreeTrack) -> Result:
        self.tracks.append(self.one(operation.slot))
        return Done()

    def stored(self, key: Key) -> int:
        ends = range(1, len(key.tokens) + 1)
        return next((end - 1 for end in ends if key.tokens[:end] not in self.pages), len(key.tokens))

    def do_match(self, step: int, operation: Match) -> Result:
        key = operation.key.tokens
        ends = (end for end in range(self.stored(operation.key), 0, -1) if key[:end] in self.states)
        length = next(ends, 0)
        self.nodes[step] = path = key[:length]
        slots = tuple(self.pages[path[:end]][0] for end in range(1, length + 1))
        return Matched(slots, length, length, state=self.states.get(path))

    def do_insert(self, step: int, operation: Insert) -> Result:
        key, stored = operation.key.tokens, self.stored(operation.key)
        slots = self.numbers(operation.slots or ())
        for end in range(stored + 1, len(key) + 1):
            self.born += 1
            self.pages[key[:end]] = slots[end - 1], self.born
        exists = bool(key) and key in self.states
        if operation.state is not None and not exists:
            self.states[key] = self.one(operation.state)
        self.nodes[step] = key
        return Inserted(stored, ((stored, len(key)),) if stored < len(key) else (), len(key), exists)

    def do_evict(self, step: int, operation: Evict) -> Result:
        pages = sorted((path for path in self.pages if not self.locks(path)), key=lambda path: -len(path))
        states = [path for path in self.states if path not in self.holds.values()]
        return self.remove(pages[: max(0, operation.tokens)], states[: max(0, operation.secondary)])

    def remove(self, pages: list[tuple[Any, ...]], states: list[tuple[Any, ...]]) -> Evicted:
        for path in pages:
            self.slots.append(self.pages.pop(path)[0])
            self.effects.append(Effect("free", (self.slots[-1],)))
        for path in states:
            self.tracks.append(self.states.pop(path))
            self.effects.append(Effect("free_state", (self.tracks[-1],)))
        return Evicted(len(pages), 0, len(states))

    def do_lock(self, step: int, operation: Lock) -> Result:
        self.nodes[step] = self.holds[step] = self.nodes[operation.of]
        return Locked()

    def do_unlock(self, step: int, operation: Unlock) -> Result:
        self.holds.pop(operation.lock, None)
        return Done()

    def do_reset(self, step: int, operation: Reset) -> Result:
        self.holds.clear()
        self.remove([*self.pages], [*self.states])
        self.slots.sort()
        self.tracks.sort()
        return Done()

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        shown = [
            NodeView(
                number,
                self.pages.get(path[:-1], (0, None))[1],
                path[-1:],
                None,
                (slot,),
                lock_ref=self.locks(path),
                state=self.states.get(path),
                state_lock_ref=sum(hold == path for hold in self.holds.values() if path in self.states),
            )
            for path, (slot, number) in sorted(self.pages.items(), key=lambda page: len(page[0]))
        ]
        return Inspected(tuple(shown))


class Forgetful(LoneStates):
    """A cache that forgets a lone state at a match, without giving it back."""

    def do_match(self, step: int, operation: Match) -> Result:
        lone = [path for path in self.states if path not in self.pages]
        for path in lone:
            del self.states[path]
        return super().do_match(step, operation)


def told() -> ToldProgram:
    return ToldProgram(NAME, **dict(LoneStates.CONFIGURATIONS[0]))


def test_a_search_finds_nothing_wrong() -> None:
    """M1 to M7."""
    for seed in range(12):
        drive(make_machine(PrefixMachine, NAME, dict(LoneStates.CONFIGURATIONS[0])), seed, 80)


def test_a_state_that_is_forgotten_is_missed() -> None:
    """M6, M7: it is nobody's then, and counted nowhere."""
    machine = make_machine(PrefixMachine, f"{__name__}:Forgetful", dict(LoneStates.CONFIGURATIONS[0]))

    def search() -> None:
        for seed in range(12):
            drive(machine, seed, 80)

    with pytest.raises(InvariantViolation) as found:
        search()
    assert found.value.law in ("X8", "R2", "R3", "M1", "M6")


def test_a_state_stands_again_where_its_kv_comes_back() -> None:
    """M2, M5, E1: until then nothing is found there; it is evicted as any other."""
    program = told()
    program.put_state(1, 2)
    program(Evict(2))
    missed = program(Match(Key((1, 2))))
    program.put_state(1, 2, 3)
    found = program(Match(Key((1, 2))))
    program(Evict(3))
    states = program(Evict(0, 2))
    assert program.outcome(missed).result == Matched((), 0, 0)
    assert program.outcome(found).result == Matched((3, 4), 2, 2, state=1)
    assert program.outcome(states).result == Evicted(0, 0, 2)
    assert program.sound().reached["a node keeps its KV without its state"] == 0
    assert program.law(found, result=Matched((), 0, 0)) == "R2"
    assert program.law(found, state=2) == "E1"


def test_a_state_goes_with_its_page_where_nothing_else_is_claimed() -> None:
    """M7."""
    program = told()
    program.put_state(1)
    evicted = program(Evict(1))
    program.sound()
    claims = tuple(name for name in program.header.capabilities if name != "lone_states")
    program.header = dataclasses.replace(program.header, capabilities=claims)  # type: ignore[type-var]
    assert program.law(evicted) == "M7"
