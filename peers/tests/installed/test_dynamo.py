"""dynamo's index of KV blocks under a short search: nothing that is claimed for it is broken."""

from __future__ import annotations

from pymllm.adapters.registry import find_adapter, make_adapter
from pymllm.history.operations import FindBlocks, Inspect, RemoveBlocks, StoreBlocks
from pymllm.history.outcomes import Done, Failed, Indexed, IndexedBlock, Leading, NotThere
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.block_index import IndexMachine
from pymllm.machines.smoke import smoke_test


def test_the_adapter_is_sane() -> None:
    """Before the index is judged."""
    assert smoke_test(find_adapter("dynamo-index")).kind == "index"


def test_what_is_claimed_holds() -> None:
    """I1 to I5, I7 to I9, X3, X7 and X8."""
    machine = make_machine(IndexMachine, "dynamo-index", {"own_hashes": False})
    tested = {law for seed in range(4) for law in drive(machine, seed, 60).judge.evidence.exercised}
    assert tested >= {"I1", "I2", "I3", "I4", "I5", "I7", "I8", "I9", "X8"}


def test_events_become_what_its_router_sends() -> None:
    """Events become the router's events: blocks below each other, unknown blocks, and errors."""
    adapter = make_adapter("dynamo-index")
    operations = (
        StoreBlocks(1, ((11, 1), (12, 2))),
        StoreBlocks(2, ((12, 2),), 11),
        RemoveBlocks(1, (12, 13)),
        StoreBlocks(1, ((11, 1),), 11),
        FindBlocks((1, 2)),
        Inspect(),
    )
    results = [adapter.apply(step, operation).result for step, operation in enumerate(operations, 1)]
    block = IndexedBlock(1, 11, 1)
    assert results == [
        *(Done(), NotThere(), NotThere(), Failed("RuntimeError")),
        *(Leading(((1, 1),)), Indexed((block,))),
    ]
