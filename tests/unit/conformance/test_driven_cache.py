"""Calls of the documented interface become operations of a history, and answers become results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.driven_cache import Carrier, DrivenCache
from pymllm.conformance.examiner import Examiner
from pymllm.errors import AdapterError, UsageError
from pymllm.history.files import Config
from pymllm.history.operations import (
    Alloc,
    Evict,
    Free,
    Insert,
    Key,
    Lock,
    Match,
    Operation,
    Reset,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Slots, Unsupported
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.oracle.prefix_judge import PrefixJudge

PLAIN: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}


class Driven:
    """An examined adapter with a carrier and a cache over it."""

    def __init__(self, adapter: str = "radix-window", **changes: int | str | None) -> None:
        self.examiner = Examiner(make_adapter(adapter, {**PLAIN, **changes}))
        judge = self.examiner.judge
        assert isinstance(judge, PrefixJudge)
        self.carrier = Carrier(self.examiner.do, judge)
        self.cache = DrivenCache(self.carrier)

    def alloc(self, tokens: int) -> torch.Tensor:
        """Take slots."""
        return torch.tensor(self.carrier.do(Alloc(tokens), Slots).slots)

    def operations(self) -> list[Operation]:
        """List all that was done."""
        return [step.operation for step in self.examiner.history.steps]


def test_each_call_is_one_operation_with_nodes_holds_and_slots_by_step() -> None:
    """X3: a program that names nothing which the adapter chose can be run again on any other."""
    driven = Driven()
    cache = driven.cache
    slots = driven.alloc(4)
    inserted = cache.insert(RadixKey([70, 71, 70], "a"), slots[:3])
    assert (inserted.prefix_len, inserted.adopted, inserted.last_node) == (0, ((0, 3),), 2)
    found = cache.match_prefix(RadixKey(np.array([70, 71, 72]), "a"))
    assert (found.indices.tolist(), found.prefix_len) == (slots[:2].tolist(), 2)
    assert found.indices.dtype == torch.int64
    token = cache.inc_lock_ref(found.last_node)
    cache.insert(RadixKey([70, 71, 73], "a"), torch.cat([found.indices, slots[3:].long()]))
    assert cache.evict(9, 3).full_evicted == 2
    cache.dec_lock_ref(found.last_node, swa_boundary_id=token)
    cache.reset()
    assert driven.operations() == [
        Alloc(4),
        Insert(Key((1, 2, 1), "a"), (Span(1, 0, 3),)),
        Match(Key((1, 2, 3), "a")),
        Lock(3),
        Insert(Key((1, 2, 4), "a"), (Span(3, 0, 2), Span(1, 3, 4))),
        Evict(9, 3),
        Unlock(4),
        Reset(),
    ]


def test_window_arguments_are_passed_on() -> None:
    """S7: what the caller has given back is not cached as alive."""
    driven = Driven(window=4, pool="swa")
    slots = driven.alloc(8)
    driven.cache.insert(RadixKey(range(4)), slots[:4])
    driven.cache.insert(RadixKey(range(8)), slots, prev_prefix_len=4, swa_evicted_seqlen=0)
    last = driven.operations()[-1]
    assert isinstance(last, Insert)
    assert (last.prev_prefix_len, last.swa_evicted_seqlen) == (4, 0)


def test_branches_are_passed_on_and_states_only_where_there_are_rows_for_them() -> None:
    """M2, M5: an adapter that keeps states is driven without them by who has none."""
    driven = Driven("mamba", track_slots=2)
    driven.cache.insert(RadixKey(range(3)), driven.alloc(3))
    found = driven.cache.match_prefix(RadixKey(range(4)))
    assert (found.prefix_len, found.mamba_branching_seqlen) == (0, 3)
    assert driven.cache.state_of(found.last_node) is None
    assert driven.cache.evict(1).mamba_evicted == 0


def test_without_slots_the_token_ids_are_stored() -> None:
    """R1: a cache without a pool is driven, too, though not by an engine."""
    driven = Driven(pool="none")
    assert driven.cache.insert(RadixKey([5, 6])).adopted == ((0, 2),)
    assert driven.operations() == [Insert(Key((1, 2)))]


def test_paths_of_nodes_are_those_that_the_answers_spell() -> None:
    """E2: whoever holds a node can ask what its path is."""
    driven = Driven(page_size=4, slots=48, swa_slots=36)
    slots, key = driven.alloc(8), RadixKey(range(10, 17))
    inserted = driven.cache.insert(key, slots[:7])
    assert driven.cache.path_of(inserted.last_node).tokens == (1, 2, 3, 4)
    found = driven.cache.match_prefix(RadixKey(range(10, 20)))
    assert driven.cache.path_of(found.last_node) == driven.cache.path_of_key(key).upto(4)


@pytest.mark.parametrize("tells", [True, False])
def test_sizes_are_told_or_recounted(tells: bool) -> None:
    """R7: an adapter that cannot tell a size is driven by what it must be."""
    driven = Driven(window=4, pool="swa")
    cache, carrier = driven.cache, driven.carrier
    assert (cache.total_size(), carrier.size("available_size")) == (0, 18)
    slots = driven.alloc(6)
    cache.insert(RadixKey(range(6)), slots)
    cache.inc_lock_ref(2)
    if not tells:
        carrier._told = {}
    assert (cache.total_size(), cache.evictable_size(), cache.protected_size()) == (6, 0, 6)
    assert (cache.swa_evictable_size(), cache.swa_protected_size()) == (2, 4)
    assert (carrier.size("full_available_size"), carrier.size("swa_available_size")) == (18, 12)


def answering(result: Failed | Unsupported | NoRoom) -> Callable[[Operation], Outcome]:
    """Answer every operation alike."""
    return lambda operation: Outcome(result)


def test_rightly_refused_call_is_the_drivers_mistake() -> None:
    """X1: a judge that lets a refusal pass says that the caller made a mistake."""
    carrier = Carrier(answering(Failed("OwnershipError", "slot 3")), Driven().carrier.judge)
    with pytest.raises(UsageError, match=r"Free\(.*\) was refused: OwnershipError: slot 3"):
        carrier.do(Free((Span(0, 3, 4),)), Done)


@pytest.mark.parametrize("result", [Unsupported("alloc"), NoRoom()])
def test_answer_of_another_kind_is_the_adapters_mistake(result: Unsupported | NoRoom) -> None:
    """An adapter that claims to be fit for an engine must understand what an engine asks."""
    carrier = Carrier(answering(result), Driven().carrier.judge)
    with pytest.raises(AdapterError, match=r"Alloc\(tokens=1\) was answered by"):
        carrier.do(Alloc(1), Slots)
