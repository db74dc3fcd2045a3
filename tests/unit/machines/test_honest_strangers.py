"""Caches that keep every promise of theirs, and offer less than ours: none is accused, whatever is searched.

Each has a twin that claims what it does not do, and that one is caught.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from pymllm.adapters.base import BaseAdapter, header_of
from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.own_caches import Mamba, Radix, WindowedRadix
from pymllm.adapters.own_pools import KVBuffers
from pymllm.adapters.own_slots import TokenSlots
from pymllm.errors import InvariantViolation, OwnershipError
from pymllm.history import operations as ops
from pymllm.history.claims import CAPABILITIES, REFUSALS
from pymllm.history.outcomes import (
    BlockBooks,
    Buffers,
    Done,
    Effect,
    Failed,
    Hashes,
    Inserted,
    Locked,
    Matched,
    NodeView,
    NoRoom,
    Outcome,
    Result,
    Slots,
)
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.machines.smoke import SmokeReport, find_fault, make_sample
from pymllm.oracle.verdicts import Verdict
from pymllm.search.results import SearchedConfiguration, judge_adapter
from pymllm.search.search import SearchPlan, search

COUNTER = itertools.count(1)
"""What a process counts with, whichever cache asks."""


class ListSlots(BaseAdapter):
    """A list of free slots, which is sorted when it does not suffice, and cannot be cleared."""

    KIND = "slots"
    CONFIGURATIONS: ClassVar[Any] = ({"page_size": 1, "pages": 6},)

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config)
        self.free = list(range(1, self.number("pages") + 1))
        self.freed: list[int] = []

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        return {"available_size": len(self.free) + len(self.freed)}

    def do_alloc(self, step: int, operation: ops.Alloc) -> Result:
        if operation.tokens > len(self.free):
            self.free, self.freed = sorted(self.free + self.freed), []
        if operation.tokens > len(self.free):
            return NoRoom()
        taken, self.free = self.free[: operation.tokens], self.free[operation.tokens :]
        return Slots(tuple(taken))

    def do_free(self, step: int, operation: ops.Free) -> Result:
        slots = self.numbers(operation.slots)
        self.check(slots)
        self.freed += slots
        return Done()

    def check(self, slots: list[int]) -> None:
        """Refuse what is outside, and nothing else."""
        if not all(0 < slot <= self.number("pages") for slot in slots):
            raise OwnershipError(f"slots {slots}")


class OwnDigests(Radix):
    """Hashes each page after the one before, in bytes of its own."""

    LACKS = frozenset({"digests"})

    def do_hash(self, step: int, operation: ops.Hash) -> Result:
        result = super().do_hash(step, operation)
        assert isinstance(result, Hashes)
        return Hashes(tuple(digest[::-1] for digest in result.digests))

    def view(self, node: Any, parent: int | None) -> NodeView:
        view = super().view(node, parent)
        hashes = view.page_hashes and tuple(digest[::-1] for digest in view.page_hashes)
        return dataclasses.replace(view, page_hashes=hashes)


class ForgetfulDigests(OwnDigests):
    """Starts a new chain each time: what it claims is not so."""

    def do_hash(self, step: int, operation: ops.Hash) -> Result:
        return Hashes(tuple(f"{step} {digest}" for digest in super().do_hash(step, operation).digests))  # type: ignore[union-attr]


class SharedCounter(Radix):
    """Numbers nodes by a counter of the process, and tells the time of a clock."""

    LACKS = frozenset({"node_ids"})

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config)
        self.start, self.numbered = next(COUNTER), dict[int, int]()

    def shown(self, id: int) -> int:
        """Return a node's number; of two caches no two nodes have the same."""
        if id not in self.numbered:
            self.numbered[id] = next(COUNTER)
        return self.numbered[id]

    def view(self, node: Any, parent: int | None) -> NodeView:
        view = super().view(node, parent)
        above, time = None if parent is None else self.shown(parent), (view.last_access or 0) + self.start
        return dataclasses.replace(view, id=self.shown(view.id), parent=above, last_access=time)

    def apply(self, step: int, operation: ops.Operation) -> Outcome:
        outcome = super().apply(step, operation)
        effects = tuple(
            effect if effect.node is None else dataclasses.replace(effect, node=self.shown(effect.node))
            for effect in outcome.effects
        )
        return dataclasses.replace(outcome, effects=effects)


class CountsInserts(Radix):
    """Counts an insert of a node as a hit, too."""

    LACKS = frozenset({"hit_counts"})

    def view(self, node: Any, parent: int | None) -> NodeView:
        view = super().view(node, parent)
        return dataclasses.replace(view, hit_count=(view.hit_count or 0) + 1)


class WithoutTokens(WindowedRadix):
    """Keeps the token of a hold to itself."""

    LACKS = frozenset({"hold_tokens"})

    def do_lock(self, step: int, operation: ops.Lock) -> Result:
        super().do_lock(step, operation)
        return Locked()

    def view(self, node: Any, parent: int | None) -> NodeView:
        return dataclasses.replace(super().view(node, parent), boundary=None)


class NeverBranches(Mamba):
    """Does not tell how far KV goes on without a state."""

    LACKS = frozenset({"branching"})

    def do_match(self, step: int, operation: ops.Match) -> Result:
        matched = super().do_match(step, operation)
        assert isinstance(matched, Matched)
        return dataclasses.replace(matched, branching=None)


class SaysThereIsAState(Mamba):
    """Takes no key without a state, and says of the empty one that there is a state."""

    LACKS = frozenset({"bare_inserts"})

    def do_insert(self, step: int, operation: ops.Insert) -> Result:
        inserted = super().do_insert(step, operation)
        assert isinstance(inserted, Inserted)
        return dataclasses.replace(inserted, state_exists=inserted.state_exists or operation.state is None)


class HoldsStatesOnly(Mamba):
    """Cannot hold a node without a state."""

    LACKS = frozenset({"bare_holds"})

    def do_lock(self, step: int, operation: ops.Lock) -> Result:
        node = self.node_of(operation.of)
        if node.parent is not None and self._is_inside(node) and self.state_of(node) is None:
            raise AssertionError("a hold is of a state")
        return super().do_lock(step, operation)


class PaddedBuffers(KVBuffers):
    """Has a row more than there are slots."""

    LACKS = frozenset({"tight_buffers"})

    def do_read_kv(self, step: int, operation: ops.ReadKV) -> Result:
        told = super().do_read_kv(step, operation)
        assert isinstance(told, Buffers)
        keys, values = ((*part, part[-1]) for part in (told.keys, told.values))
        return Buffers(keys, values)


class OneForm(TokenSlots):
    """Takes tensors of one dtype, with the slots side by side."""

    LACKS = frozenset({"forms"})

    def do_free(self, step: int, operation: ops.Free) -> Done:
        if operation.form != "int32":
            raise TypeError(f"slots of {operation.form}")
        return super().do_free(step, operation)


class NoStamps(Blocks):
    """Keeps no stamps: what nobody refers to is gone at once."""

    LACKS = frozenset({"exact_lru"})
    CONFIGURATIONS = tuple(it for it in Blocks.CONFIGURATIONS if it["policy"] == "ref_zero")

    def do_inspect(self, step: int, operation: ops.Inspect) -> BlockBooks:
        return dataclasses.replace(super().do_inspect(step, operation), stamps=())


class WithoutObserver(Blocks):
    """Blocks without an observer: books from before and after a call tell which blocks went, in no order."""

    LACKS = frozenset({"exact_lru", "faults"})
    CONFIGURATIONS = tuple(it for it in Blocks.CONFIGURATIONS if not it["slots"])

    def apply(self, step: int, operation: ops.Operation) -> Outcome:
        before, parents = self.do_inspect(step, ops.Inspect()), self.pool.block_parents.tolist()
        outcome = super().apply(step, operation)
        after, lost = self.do_inspect(step, ops.Inspect()), []
        for block in range(len(parents)) if not isinstance(operation, ops.Reset) else ():
            has_lost = -1 < before.hashes[block] != after.hashes[block]
            is_free = before.refs[block] > 0 == after.refs[block] and after.hashes[block] < 0
            lost += [block] if has_lost or is_free else []

        def depth(block: int) -> int:
            return 0 if block < 0 else 1 + depth(parents[block])

        lost.sort(key=depth, reverse=True)
        hashes = sorted(before.hashes[block] for block in lost if before.hashes[block] >= 0)
        told = (Effect("callback", (*lost,), (*hashes,)),) if lost else ()
        return dataclasses.replace(outcome, effects=told)


class OtherNames(Blocks):
    """Has another word for too little room."""

    LACKS = frozenset({"capacity_errors"})
    CONFIGURATIONS = tuple(it for it in Blocks.CONFIGURATIONS if it["slots"])

    def apply(self, step: int, operation: ops.Operation) -> Outcome:
        outcome, result = super().apply(step, operation), None
        if isinstance(outcome.result, Failed) and outcome.result.error == "MambaSlotCapacityError":
            result = Failed("NoSlotError")
        return dataclasses.replace(outcome, result=result or outcome.result)


STRANGERS: dict[type[Any], str] = {
    OwnDigests: "H2",
    SharedCounter: "X3",
    CountsInserts: "R10",
    WithoutTokens: "S5",
    NeverBranches: "M2",
    SaysThereIsAState: "M1",
    HoldsStatesOnly: "R6",
    PaddedBuffers: "P3",
    OneForm: "A2",
    NoStamps: "C1",
    WithoutObserver: "C1 X6",
    OtherNames: "C5 C6",
}
"""Each with the laws that it breaks where it claims what it does not do."""


def machine_of(
    adapter: type[Any], lacks: frozenset[str], config: Any = None, number: int = 0
) -> type[ActingMachine]:
    """Make a machine of an adapter that claims all but some capabilities."""

    class Claiming(adapter):  # type: ignore[misc]
        def claim(self) -> frozenset[str]:
            return frozenset(super().claim()) - lacks

    entry, config = MACHINES[adapter.KIND][number], config or adapter.CONFIGURATIONS[0]
    made = make_machine(load_machine(entry), adapter.__name__, config, audit=False)
    made.make_adapter = classmethod(lambda cls: Claiming(adapter.__name__, config))  # type: ignore[assignment,method-assign]
    return made


def accusations(adapter: type[Any], lacks: frozenset[str], config: Any = None) -> Iterator[str]:
    """Play programs, and yield the laws that they break."""
    for seed in range(4):
        try:
            drive(machine_of(adapter, lacks, config), seed, 120)
        except InvariantViolation as violation:
            yield violation.law


@pytest.mark.parametrize("adapter", STRANGERS, ids=lambda adapter: adapter.__name__)
def test_what_is_not_claimed_is_not_held_against_anybody(adapter: Any) -> None:
    """And the same cache is accused where it claims it."""
    assert list(accusations(adapter, adapter.LACKS)) == []
    assert set(accusations(adapter, frozenset())) & {*STRANGERS[adapter].split()}


# -- what is refused, and what is never shown ----------------------------------------------------------------
class RefusesForeign(ListSlots):
    """Refuses what is outside the pool; whether a slot is free it does not look."""

    LACKS = frozenset({"refusals"})

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "refuses_foreign", "refusals"})


class WithoutMalformed(TokenSlots):
    """Refuses all misuse, and has no answer to calls that nobody may make."""

    LACKS = frozenset({"refusals"})
    do_malformed = None  # type: ignore[assignment]

    def claim(self) -> frozenset[str]:
        return super().claim() | set(REFUSALS) - {"refuses_malformed"}


@pytest.mark.parametrize("adapter", [RefusesForeign, WithoutMalformed], ids=lambda adapter: adapter.__name__)
def test_who_refuses_some_misuse_meets_no_other(adapter: Any) -> None:
    """X1, A5: a check that is missing does not hide the others."""
    machine = drive(machine_of(adapter, adapter.LACKS), 1, 300)
    assert machine.examiner.judge.evidence.exercised["A5"] > 0
    wrong = {step.outcome.result for step in machine.examiner.history.steps if step.outcome}
    assert {result.error for result in wrong if isinstance(result, Failed)} <= {
        "OwnershipError",
        "RuntimeError",
    }


def test_who_claims_to_refuse_all_misuse_is_held_to_it() -> None:
    """A5: a double free goes through."""
    assert set(accusations(RefusesForeign, frozenset())) & {"A5", "X1"}


def verdicts_of(adapter: type[Any], lacks: frozenset[str], config: Any = None) -> dict[str, Verdict]:
    """Search an adapter, and say what is known of each law."""
    config = config or adapter.CONFIGURATIONS[0]
    made = machine_of(adapter, lacks, config).make_adapter()
    for number, step in make_sample(made.kind, config, made.capabilities).items():
        if step.is_claimed:
            assert find_fault(made.apply(number, step.operation), step) is None
    smoke = SmokeReport("x", made.kind, ((config, made.capabilities),))
    plan, searched = SearchPlan(seed=0, steps=20, examples=5, shrinks=10, driven=3), []
    for number, entry in enumerate(MACHINES[adapter.KIND]):
        if entry.needs <= made.capabilities:
            result = search(machine_of(adapter, lacks, config, number), plan)
            searched.append(SearchedConfiguration("x", config, made.capabilities, entry, result))
    return {row.id: row.verdict for row in judge_adapter(smoke, searched).laws}


class Speechless(Radix):
    """Shows nodes, not what they keep alive, and tells no sizes."""

    def sizes(self) -> dict[str, int]:
        return {}

    def view(self, node: Any, parent: int | None) -> NodeView:
        return dataclasses.replace(super().view(node, parent), kept_bytes=None)


ALL = frozenset(CAPABILITIES)
NO_POOL = {"page_size": 1, "window": None, "pool": "none"}
TOKEN_POOL = {"page_size": 1, "pool": "token", "slots": 24}


@pytest.mark.parametrize(
    ("adapter", "claims", "config", "laws"),
    [
        (ListSlots, "pool", None, "X7"),
        (Radix, "extra_key", NO_POOL, "R5 R9"),
        (Speechless, "extra_key inspect", NO_POOL, "R5 R7 X5"),
        (Speechless, "pool engine inspect", TOKEN_POOL, "K1 R7 X5"),
        (Radix, "pool exact_lru", None, "K1"),
    ],
    ids=["clear", "no pool", "nothing told", "nor to an engine", "one namespace"],
)
def test_what_can_never_be_tested_is_not_claimed(adapter: Any, claims: str, config: Any, laws: str) -> None:
    """Instead of unknown; and all the rest holds."""
    verdicts = verdicts_of(adapter, ALL.difference(claims.split()), config)
    assert {law for law in laws.split() if verdicts[law] is not Verdict.NOT_CLAIMED} == set()
    assert {*verdicts.values()} == {Verdict.NOT_CLAIMED, Verdict.HOLDS}


def test_digests_of_ones_own_chain_all_the_same() -> None:
    """H2: one path has one digest, whatever was asked before."""
    assert set(accusations(ForgetfulDigests, OwnDigests.LACKS)) == {"H2"}


def test_a_failed_allocation_may_sort_what_was_freed_where_no_order_is_claimed() -> None:
    """X4, A4: who claims merges may not."""

    class Merging(ListSlots):
        def claim(self) -> frozenset[str]:
            return frozenset({"pool", "merges"})

    assert list(accusations(ListSlots, frozenset())) == []
    assert set(accusations(Merging, frozenset())) & {"A4", "X4"}


@pytest.mark.parametrize("old", [True, False])
def test_claims_of_files_from_before_say_what_they_said_then(old: bool) -> None:
    """An order said that bare leaves go, a shown node that its hits are matches."""
    header = header_of(Mamba("mamba", Mamba.CONFIGURATIONS[0]))
    header = dataclasses.replace(
        header, capabilities=("exact_lru", "refusals"), specification="" if old else header.specification
    )
    assert ({"state_leaves", "hit_counts", "branching"} <= header.claims) is old
    assert {"refuses_stale", "refuses_double_free"} <= header.claims
