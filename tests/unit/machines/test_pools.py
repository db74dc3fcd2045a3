"""The machines of everything but prefix caches: each finds what is wrong, and fits itself.

What the registry's wrong adapters do is not repeated here: `tests/meta/test_faulty.py` has them caught.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.key_forms import make_indices
from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.own_pools import GDNStates, KeysAndHashes, KVBuffers, Rows
from pymllm.adapters.own_requests import MALFORMED_CALLS, Requests
from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.errors import InvariantViolation, OwnershipError
from pymllm.history import operations as ops
from pymllm.history.operations import Operation, Span
from pymllm.history.outcomes import (
    Done,
    Failed,
    Hashes,
    NoRoom,
    Slots,
    Tokens,
    Unsupported,
)
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.pools import INDEX_FORMS, BufferMachine, HashMachine, index_form, pick
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.machines.requests import RequestMachine
from pymllm.machines.rows import RowMachine, StateMachine
from pymllm.oracle.coverage import expected_goals


def machine_of(adapter_class: Any, **changes: Any) -> Any:
    """Make the machine of a class of this file, which is not looked into: what is wrong shows outside."""
    entry = MACHINES[adapter_class.KIND][0]
    first = 1 if adapter_class.KIND == "buffers" else 0  # of a dtype that has a NaN
    config = {**adapter_class.CONFIGURATIONS[first], **changes}
    made = make_machine(load_machine(entry), adapter_class.__name__, config, audit=False)
    made.make_adapter = classmethod(lambda cls: adapter_class("x", config))  # type: ignore[assignment,method-assign]
    return made


def operations_of(machine: ActingMachine) -> list[Operation]:
    return [step.operation for step in machine.examiner.history.steps]


def reached_by(machine: ActingMachine) -> set[str]:
    return set(machine.examiner.judge.evidence.reached)


# -- what is wrong -------------------------------------------------------------------------------------------
class Rounding(KVBuffers):
    """Stores keys by way of a wider type, which quiets a NaN."""

    def do_write_kv(self, step: int, operation: Any) -> Done:
        done = super().do_write_kv(step, operation)
        buffer = self.pool.k_buffer[operation.layer]
        buffer.copy_(buffer.float().nan_to_num(1.0).to(buffer.dtype))
        return done


class KeysFirst(KVBuffers):
    """Writes the keys before it has looked at the values."""

    def do_write_kv(self, step: int, operation: Any) -> Done:
        try:
            return super().do_write_kv(step, operation)
        except ValueError:
            self.pool.k_buffer[0][1] += 1
            raise


class Forgiving(KeysAndHashes):
    """Takes an index beyond the end for the last one."""

    def do_pick_token(self, step: int, operation: Any) -> Tokens:
        last = len(operation.key.tokens) - 1
        return super().do_pick_token(step, type(operation)(operation.key, min(operation.at, last)))


class TwiceFreeRows(Rows):
    """Does nothing where it must refuse."""

    def do_free_row(self, step: int, operation: Any) -> Any:
        try:
            return super().do_free_row(step, operation)
        except OwnershipError:
            return Done()


class SpillingRows(Rows):
    """Zeroes the rest of a row that it writes."""

    def do_write_row(self, step: int, operation: Any) -> Any:
        done = super().do_write_row(step, operation)
        self.pool.req_to_token[self.one(operation.row), operation.stop :] = 0
        return done


class PaddedElsewhereRows(Rows):
    """Pads with the last row."""

    def do_write_entries(self, step: int, operation: Any) -> Any:
        done = super().do_write_entries(step, operation)
        if 0 in self.numbers(operation.rows):
            self.pool.req_to_token[-1].copy_(self.pool.req_to_token[0])
            self.pool.req_to_token[0] = 0
        return done


class HalfWrittenRows(Rows):
    """Begins to write before it has checked."""

    def do_write_row(self, step: int, operation: Any) -> Any:
        row = self.one(operation.row)
        if row in range(1, self.pool.size + 1) and 0 <= operation.start < self.pool.max_context_len:
            self.pool.req_to_token[row, operation.start] = 1
        return super().do_write_row(step, operation)


class MarkingRows(Rows):
    """Marks row 0 when it has no room."""

    def do_alloc_rows(self, step: int, operation: Any) -> Any:
        result = super().do_alloc_rows(step, operation)
        if isinstance(result, NoRoom):
            self.pool.req_to_token[0, 0] += 1
        return result


class DustyRows(Rows):
    """Leaves the padding where it was."""

    def do_clear(self, step: int, operation: Any) -> Any:
        kept = self.pool.req_to_token.clone()
        done = super().do_clear(step, operation)
        self.pool.req_to_token[0].copy_(kept[0])
        return done


class AgingRows(Rows):
    """Hands out the other end first, once it was cleared."""

    def do_clear(self, step: int, operation: Any) -> Done:
        done = super().do_clear(step, operation)
        self.pool._free_rows.reverse()
        return done


class LaxRows(Rows):
    """Takes a malformed call for a wish to do nothing."""

    def do_malformed(self, step: int, operation: Any) -> Done:
        return Done()


class QuietStates(GDNStates):
    """Copies numbers instead of bits."""

    def do_copy_states(self, step: int, operation: Any) -> Done:
        done = super().do_copy_states(step, operation)
        self.pool.conv_state.nan_to_num_(1.0)
        return done


class TakesTwice(GDNStates):
    """Does nothing where it must refuse."""

    def do_free_track(self, step: int, operation: Any) -> Done:
        try:
            return super().do_free_track(step, operation)
        except OwnershipError:
            return Done()


class Tagging(GDNStates):
    """Marks row 0 when the track slots are gone."""

    def do_alloc_track(self, step: int, operation: Any) -> Slots | NoRoom:
        result = super().do_alloc_track(step, operation)
        if isinstance(result, NoRoom):
            self.pool.conv_state[:, 0] += 1
        return result


class DustyStates(GDNStates):
    """Leaves a working row as it was."""

    def do_clear(self, step: int, operation: Any) -> Done:
        kept = self.pool.conv_state[:, 1].clone()
        done = super().do_clear(step, operation)
        self.pool.conv_state[:, 1] = kept
        return done


class RefusesLoudly(TokenSlots):
    """Merges where it refuses."""

    def do_free(self, step: int, operation: Any) -> Done:
        try:
            return super().do_free(step, operation)
        except OwnershipError:
            self.pool.merge_and_sort_free()
            raise


class LosesRows(Requests):
    """Clears a row of the table once in a while."""

    def apply(self, step: int, operation: Operation) -> Any:
        if step % 50 == 0:
            self.context.request_to_kv_block_ids[0] = -1
        return super().apply(step, operation)


class QuietBlocks(Blocks):
    """Saves numbers instead of bits."""

    def do_save_live(self, step: int, operation: Any) -> Done:
        done = super().do_save_live(step, operation)
        self.slots.conv_states.nan_to_num_(1.0)
        return done


@pytest.mark.parametrize(
    ("adapter_class", "laws"),
    [
        *((Rounding, "P3 E5"), (KeysFirst, "X1"), (Forgiving, "X1")),
        *((TwiceFreeRows, "P1 P2 X1"), (SpillingRows, "P3"), (PaddedElsewhereRows, "E5"), (LaxRows, "X1")),
        *((HalfWrittenRows, "X1"), (MarkingRows, "X4"), (DustyRows, "X7"), (AgingRows, "X7")),
        *((QuietStates, "P5"), (TakesTwice, "P5 X1"), (Tagging, "X4"), (DustyStates, "X7")),
        *((RefusesLoudly, "X1"), (QuietBlocks, "C7"), (LosesRows, "E2 C3 E4 E1")),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_wrong_class_breaks_its_law(adapter_class: Any, laws: str, seed: int) -> None:
    """P, C, E and X: found from each of two seeds without a look inside, and kept."""
    machine = machine_of(adapter_class)
    with pytest.raises(InvariantViolation) as caught:
        drive(machine, seed, 600)
    assert caught.value.law in laws.split()
    assert machine.found.violation is caught.value


# -- what machines do alike ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("machine", "known"),
    [
        (BufferMachine, KVBuffers.MALFORMED),
        (HashMachine, KeysAndHashes.MALFORMED),
        (RowMachine, Rows.MALFORMED),
        (StateMachine, GDNStates.MALFORMED),
        (BlockMachine, MALFORMED_BLOCKS),
        (RequestMachine, MALFORMED_CALLS),
    ],
)
def test_a_machine_knows_every_malformed_call_of_the_adapter(machine: Any, known: Any) -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in machine.MALFORMED} == set(known)


LEAST_STATES = {"max_reqs": 1, "layers": 1, "k_dim": 1, "conv_dim": 1, "kernel": 1, "track_slots": 0}
LEAST_BLOCKS = dict.fromkeys(
    ("blocks", "slots", "layers", "requests", "ssm_dim", "conv_dim", "conv_width"), 1
)
LEAST_CONTEXT = {"max_requests": 1, "num_blocks": 2, "max_blocks": 1, "paused_limit": 0, "block_size": 1}
LEAST_CONTEXT |= {"chunk_size": 1}
OTHER_SIZES = {"block_size": 3, "chunk_size": 6, "layers": 1}


@pytest.mark.parametrize(
    ("name", "adapter_class", "sizes"),
    [
        ("rows", Rows, {"max_reqs": 1, "max_context_len": 1}),
        ("rows", Rows, {"max_reqs": 9, "max_context_len": 40}),
        ("kv-buffers", KVBuffers, {"size": 2, "page_size": 1, "layers": 1, "k_heads": 1, "k_dim": 1}),
        ("kv-buffers", KVBuffers, {"size": 2, "page_size": 1, "v_heads": 1, "v_dim": 1, "dtype": "float32"}),
        ("kv-buffers", KVBuffers, {"size": 64, "page_size": 16, "layers": 5, "k_heads": 2, "v_dim": 3}),
        ("gdn-states", GDNStates, LEAST_STATES),
        (
            "gdn-states",
            GDNStates,
            {"max_reqs": 12, "layers": 4, "k_dim": 16, "conv_dim": 6, "kernel": 4, "track_slots": 9},
        ),
        ("kv-buffers", KVBuffers, {"apart": 3}),
        ("gdn-states", GDNStates, {"apart": 3}),
        ("blocks", Blocks, LEAST_BLOCKS),
        ("blocks", Blocks, {"blocks": 20, "slots": 20, "layers": 3, "requests": 9}),
        ("blocks", Blocks, {"slots": None}),
        ("requests", Requests, LEAST_CONTEXT),
        ("requests", Requests, {"max_requests": 8, "num_blocks": 40, "max_blocks": 12, **OTHER_SIZES}),
    ],
)
def test_a_machine_fits_itself_to_every_size(name: str, adapter_class: Any, sizes: dict[str, Any]) -> None:
    """P1 to P5, C1 to C7: the least pools, some larger than what is drawn, and none of slots at all."""
    entry = MACHINES[adapter_class.KIND][0]
    made = make_machine(load_machine(entry), name, {**adapter_class.CONFIGURATIONS[0], **sizes})
    machine = drive(made, 5, 80 if name == "requests" else 200)
    unasked = {"a chunk finds no room where there is some", "a step keeps several states"}
    assert reached_by(machine) - unasked <= expected_goals(machine.examiner.history.header)


@pytest.mark.parametrize("numbers", [(), (0, 255), (-1, 3), (300,), (-1, 2**31 - 1)])
def test_a_form_is_one_that_holds_the_numbers(numbers: tuple[int, ...]) -> None:
    """P3, P5: any integer dtype may carry an index, as far as it goes."""
    chosen = {index_form(random.Random(seed), numbers) for seed in range(60)}
    assert chosen <= set(INDEX_FORMS)
    assert len(chosen) >= 2
    for form in chosen:
        assert make_indices(numbers, form).tolist() == list(numbers)


class CarefreeRows(Rows):
    """Claims to refuse nothing."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})


def test_misuse_is_tried_only_where_it_is_refused() -> None:
    """X1: an adapter that claims no refusals is not judged by them."""
    steps = drive(machine_of(CarefreeRows), 1, 300).examiner.history.steps
    results = [step.outcome.result for step in steps if step.outcome is not None]
    assert any(isinstance(result, NoRoom) for result in results)
    assert not any(isinstance(result, Failed | Unsupported) for result in results)


def test_twins_run_now_and_then_and_always_once_something_was_found() -> None:
    """X1, X4, X7: a shrinker must meet the violation in each run."""
    machine = machine_of(AgingRows, max_reqs=2, max_context_len=2)
    machine.runs = 1
    drive(machine, 1, 100)
    machine.runs = 0
    for _ in range(2):
        with pytest.raises(InvariantViolation, match=r"X7: .* on a new one"):
            drive(machine, 1, 100)


# -- hashes --------------------------------------------------------------------------------------------------
class Hashless(KeysAndHashes):
    """Has keys and nothing else."""

    LIMITS: ClassVar[Mapping[str, str]] = {"hash_page": "there are no hashes"}

    def do_hash_page(self, step: int, operation: Any) -> Hashes:
        raise UnsupportedError("hash_page")


class PlainKeys(KeysAndHashes):
    """Has neither tuples nor refusals."""

    def claim(self) -> frozenset[str]:
        return frozenset({"extra_key"})


def test_what_an_adapter_cannot_hash_is_passed_over() -> None:
    """H1: and chained to by nothing."""
    reached = reached_by(drive(machine_of(Hashless), 2, 200))
    assert "a slice is empty" in reached
    assert not any("hashed" in goal or "chained" in goal for goal in reached)


def test_tuples_and_misuse_are_tried_only_where_they_are_claimed() -> None:
    """K1, X1: and what is left is what is expected."""
    machine = drive(machine_of(PlainKeys), 2, 1_000)
    history = machine.examiner.history
    failed = [step for step in history.steps if step.outcome and isinstance(step.outcome.result, Failed)]
    assert failed == []
    assert reached_by(machine) == expected_goals(history.header)


# -- slots ---------------------------------------------------------------------------------------------------
class PlainSlots(TokenSlots):
    """An allocator of which nothing is known but that it allocates: no order, no groups, no refusals."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    do_begin_group = do_end_group = do_merge = do_malformed = None  # type: ignore[assignment]


def test_a_machine_asks_for_what_is_claimed() -> None:
    """Misuse and groups are left out where they are undefined, and the rest is still reached."""
    machine = drive(machine_of(PlainSlots), seed=1, steps=600)
    evidence, steps = machine.examiner.judge.evidence, machine.examiner.history.steps
    assert expected_goals(machine.examiner.history.header) <= set(evidence.reached)
    assert {"A4", "A5", "A6", "A7", "X1"}.isdisjoint(evidence.exercised)
    assert {type(step.operation) for step in steps} == {ops.Alloc, ops.Free, ops.Merge, ops.Clear}


def test_the_end_empties_the_pool_twice() -> None:
    """A2: what is free shows only when it is taken."""
    machine: Any = drive(machine_of(SWASlots), seed=2, steps=40)
    assert machine.model.full.held == set()
    last = [step.outcome.result for step in machine.examiner.history.steps[-6:] if step.outcome is not None]
    taken = [slot for result in last if isinstance(result, Slots) for slot in result.slots]
    assert sorted(taken) == list(range(1, 13))


@pytest.mark.parametrize("large", [False, True])
def test_bytes_name_slots_only_where_they_fit(large: bool) -> None:
    """A form that cannot hold a slot would be refused by torch, not by the allocator."""
    machine = drive(machine_of(TokenSlots, pages=300 if large else 12), seed=3, steps=200)
    frees: list[Any] = [it for it in machine.examiner.history.steps if isinstance(it.operation, ops.Free)]
    assert ("uint8" in {step.operation.form for step in frees}) is not large
    assert not any(isinstance(step.outcome.result, Unsupported) for step in frees)


def test_pick_goes_round_the_end() -> None:
    """Distinct ones, forwards from an odd place and backwards from an even one."""
    picked = [pick([1, 2, 3], start, count) for start, count in ((5, 2), (2, 2), (1, 9))]
    assert picked == [[3, 1], [1, 3], [2, 3, 1]]
    assert pick([], 4, 2) == []


# -- blocks --------------------------------------------------------------------------------------------------
def test_everything_is_looked_at_while_it_is_new_and_after_each_act() -> None:
    """C9: a reset is compared with that; and no act hides behind the next."""
    operations = operations_of(drive(machine_of(Blocks, slots=None), 3, 60))
    assert isinstance(operations[0], ops.Inspect)
    assert sum(isinstance(operation, ops.Inspect) for operation in operations) > len(operations) / 4


class PlainBlocks(Blocks):
    """Claims neither refusals nor faults."""

    def claim(self) -> frozenset[str]:
        return frozenset({"callbacks", "inspect"})


def test_an_allocator_without_claims_is_driven_as_its_callers_may() -> None:
    """X1, X2: no misuse and no faults where they have no meaning."""
    machine = drive(machine_of(PlainBlocks, slots=None), 5, 300)
    assert not any(isinstance(operation, ops.Fault) for operation in operations_of(machine))
    assert reached_by(machine) <= expected_goals(machine.examiner.history.header)


def test_a_parent_never_stands_after_its_child() -> None:
    """C3: such a call has no meaning, so the chain is registered as one instead."""
    machine = machine_of(Blocks, slots=None)()
    machine._register(machine.take_chain(2, 0, 1, 0), [5, 6], [6, 0])
    assert operations_of(machine)[-1] == ops.RegisterBlocks((Span(3, 0, 1), Span(3, 1, 2)), (5, 6))


class NoHands(Blocks):
    """Cannot take slots into hand."""

    LIMITS: ClassVar[Mapping[str, str]] = {"evict_slots": "slots stay where they are"}

    def do_evict_slots(self, step: int, operation: Any) -> Any:
        return Unsupported("hands")


def test_hoarding_ends_where_it_gets_nowhere() -> None:
    """C2: an adapter that cannot take slots into hand does not hold the machine up."""
    machine = machine_of(NoHands)()
    machine.take_chain(2, 0, 1, 0)
    machine.release_all(but=0)
    machine.hoard_slots(often=0)
    operations = operations_of(machine)
    assert sum(isinstance(operation, ops.EvictSlots) for operation in operations) == 3
    assert sum(isinstance(operation, ops.AllocSlots) for operation in operations) == 4


# -- requests -----------------------------------------------------------------------------------------------
class Bare(Requests):
    """Claims nothing that needs the adapter's help."""

    def claim(self) -> frozenset[str]:
        return super().claim() & {"mamba"}


def test_an_adapter_that_claims_nothing_is_asked_for_nothing_more() -> None:
    """X1, X2: neither misuse nor failures, and no look inside."""
    machine = drive(machine_of(Bare), 1, 150)
    names = {type(step.operation).__name__ for step in machine.examiner.history.steps}
    assert not names & {"Malformed", "Fault", "Inspect"}
    assert {"AddRequest", "ScheduleChunk", "RunStep", "Release"} <= names
