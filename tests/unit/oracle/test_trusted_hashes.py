"""An allocator that trusts in hashes: several blocks under one, no parents, and an order of releases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import pytest

from pymllm.adapters.base import BaseAdapter
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config
from pymllm.history.operations import (
    AllocBlocks,
    Inspect,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RetainBlocks,
    SetClock,
    Span,
    StampBlocks,
)
from pymllm.history.outcomes import BlockBooks, Done, Effect, NoRoom, Result, Slots
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.laws.block_kind import GOALS
from pymllm.search.program import run_program

NAME = f"{__name__}:Trusting"


class Trusting(BaseAdapter):
    """A line of blocks that nobody has: those without a hash, then the others as they were let go of."""

    KIND = "blocks"
    CONFIGURATIONS: ClassVar[tuple[Config, ...]] = (
        {"blocks": 8, "block_size": 1, "policy": "release"},
        {"blocks": 8, "block_size": 1, "policy": "ref_zero"},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.do_reset(0, Reset())

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "callbacks", "inspect", "trusted_hashes", "exact_policy"})

    def sizes(self) -> dict[str, int]:
        cached = sum(map(self.hashes.__contains__, self.line))
        return {"pool_avail": len(self.line) - cached, "evictable_blocks": cached}

    def lose(self, blocks: list[int]) -> None:
        hashes = sorted(self.hashes.pop(block) for block in blocks if block in self.hashes)
        self.effects += [Effect("callback", tuple(blocks), tuple(hashes))] if blocks else []

    def do_alloc_blocks(self, step: int, operation: AllocBlocks) -> Result:
        if operation.count > len(self.line):
            return NoRoom()
        self.line.sort(key=self.hashes.__contains__)
        taken, self.line = self.line[: operation.count], self.line[operation.count :]
        self.lose([block for block in taken if block in self.hashes])
        self.refs.update(dict.fromkeys(taken, 1))
        return Slots(tuple(taken))

    def do_retain_blocks(self, step: int, operation: RetainBlocks) -> Result:
        for block in self.numbers(operation.blocks):
            self.refs[block] += 1
            self.line = [other for other in self.line if other != block]
        return Done()

    def do_release_blocks(self, step: int, operation: ReleaseBlocks) -> Result:
        lost = []
        for block in self.numbers(operation.blocks):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.let_go(block)
                keeps = block in self.hashes and self.config["policy"] == "release"
                lost += [] if keeps else [block]
        self.lose(lost)
        return Done()

    def let_go(self, block: int) -> None:
        self.line.append(block)

    def do_register_blocks(self, step: int, operation: RegisterBlocks) -> Result:
        self.hashes.update(zip(self.numbers(operation.blocks), operation.hashes, strict=True))
        return Done()

    def do_stamp_blocks(self, step: int, operation: StampBlocks) -> Result:
        return Done()

    def do_set_clock(self, step: int, operation: SetClock) -> Result:
        return Done()

    def do_reset(self, step: int, operation: Reset) -> Result:
        self.line = [*range(self.number("blocks"))]
        self.refs = dict.fromkeys([*self.line, len(self.line)], 0)
        self.hashes: dict[int, int] = {}
        return Done()

    def found(self) -> dict[int, int]:
        return {value: block for block, value in self.hashes.items()}

    def do_inspect(self, step: int, operation: Inspect) -> Result:
        hashes = tuple(self.hashes.get(block, -1) for block in self.refs)
        return BlockBooks(tuple(self.refs.values()), hashes, (), tuple(sorted(self.found().items())))


class LastFirst(Trusting):
    """Evicts what was let go of last."""

    def let_go(self, block: int) -> None:
        self.line.insert(0, block)


class OneOfAHash(Trusting):
    """Forgets a hash with the block that came last with it."""

    def lose(self, blocks: list[int]) -> None:
        self.forgotten |= {self.hashes[block] for block in blocks if block in self.hashes}
        super().lose(blocks)

    def do_reset(self, step: int, operation: Reset) -> Result:
        self.forgotten: set[int] = set()
        return super().do_reset(step, operation)

    def found(self) -> dict[int, int]:
        return {value: block for value, block in super().found().items() if value not in self.forgotten}


@pytest.mark.parametrize("config", Trusting.CONFIGURATIONS, ids=str)
def test_a_search_finds_nothing_wrong_and_reaches_every_goal(config: Config) -> None:
    """C1, C3, C9."""
    reached = set[str]()
    for seed in range(12):
        evidence = drive(make_machine(BlockMachine, NAME, dict(config)), seed, 60).examiner.judge.evidence
        reached |= evidence.reached.keys()
    claims = Trusting(NAME, config).claim()
    assert reached >= {goal.name for goal in GOALS if goal.is_expected_of(config, claims)}


@pytest.mark.parametrize(("name", "law"), [("LastFirst", "C1"), ("OneOfAHash", "C3")])
def test_a_wrong_one_is_found(name: str, law: str) -> None:
    machine = make_machine(BlockMachine, f"{__name__}:{name}", dict(Trusting.CONFIGURATIONS[0]))

    def search() -> None:
        for seed in range(12):
            drive(machine, seed, 100)

    with pytest.raises(InvariantViolation) as found:
        search()
    assert found.value.law == law


@pytest.mark.parametrize(
    ("found", "law"),
    [
        (((5, 0),), None),
        (((5, 1),), None),
        (((5, 2),), "C3"),
        ((), "C3"),
        (((5, 0), (5, 1)), "C3"),
    ],
)
def test_any_block_of_a_hash_may_be_found(found: tuple[tuple[int, int], ...], law: str | None) -> None:
    """C3: one that has it, once."""
    pair = (Span(1, 0, 1), Span(1, 1, 2))
    history = run_program(
        NAME, dict(Trusting.CONFIGURATIONS[0]), [AllocBlocks(3), RegisterBlocks(pair, (5, 5)), Inspect()]
    )
    *before, last = history.steps
    assert last.outcome is not None
    books = dataclasses.replace(last.outcome.result, block_of_hash=found)  # type: ignore[type-var]
    steps = [
        *before,
        msgspec.structs.replace(last, outcome=dataclasses.replace(last.outcome, result=books)),
    ]
    _, broken = judge_steps(history.header, steps)
    assert (None if broken is None else broken[1].law) == law
