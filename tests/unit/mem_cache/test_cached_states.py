"""States in a tree and plans to evict them: what is chosen, what a refusal leaves behind."""

from __future__ import annotations

import pytest
import torch
from recording_hybrid import RecordingHybrid

from pymllm.adapters.failing_calls import InjectedFault
from pymllm.invariants import check_mamba_radix_cache
from pymllm.mem_cache import EvictResult, MambaRadixCache, MambaTreeNode, RadixKey


class Bench:
    """A cache over recording pools, with short names for what these tests do."""

    def __init__(self, track_slots: int = 8) -> None:
        self.pools = RecordingHybrid(track_slots=track_slots)
        self.removed: list[int] = []
        self.cache = MambaRadixCache(1, self.pools.kv, self.pools.states, self.removed.append)

    def put(self, tokens: list[int], state: bool = True) -> MambaTreeNode:
        """Insert tokens, by default with a state, and give back what was cached already."""
        slots = self.pools.kv.alloc(len(tokens))
        value = torch.tensor([self.pools.states.alloc_track_slot()]) if state else None
        result = self.cache.insert(RadixKey(tokens), slots, mamba_value=value)
        self.pools.kv.inner.free(slots[: result.prefix_len])
        assert not result.mamba_exist
        return result.last_node

    def touch(self, tokens: list[int]) -> None:
        self.cache.match_prefix(RadixKey(tokens))

    def calls(self) -> list[tuple[str, int]]:
        """The pools' calls since the last time, with how many slots each named."""
        check_mamba_radix_cache(self.cache)
        return [(name, len(slots)) for name, slots in self.pools.take_calls()]

    def states(self) -> tuple[int, int]:
        return self.cache.mamba_evictable_size(), self.cache.mamba_protected_size()


STATE, FREE = "free_track_slot", "free"


class TestChoice:
    def test_inner_nodes_lose_their_state_and_stay(self) -> None:
        """M5: the oldest state is an inner node's, so only its track slot goes."""
        bench = Bench()
        inner = bench.put([1, 2])
        bench.put([1, 2, 3])
        assert bench.cache.evict(0, 1) == EvictResult(0, 0, 1)
        assert bench.calls() == [(STATE, 1)]
        assert inner.mamba_tombstone
        assert inner.value is not None
        assert bench.removed == []
        assert (bench.cache.total_size(), bench.states()) == (3, (1, 0))

    def test_leaves_are_removed_whole(self) -> None:
        """M5: the KV of a leaf without its state could not be resumed from."""
        bench = Bench()
        leaf = bench.put([1, 2, 3])
        assert bench.cache.evict(0, 1) == EvictResult(3, 0, 1)
        assert bench.calls() == [(STATE, 1), (FREE, 3)]
        assert bench.removed == [leaf.id]

    def test_first_phase_counts_for_the_second(self) -> None:
        """M5: states that went with a leaf need not be found again."""
        bench = Bench()
        bench.put([1, 2, 3])
        bench.put([4, 5, 6])
        assert bench.cache.evict(1, 1) == EvictResult(3, 0, 1)
        assert bench.states() == (1, 0)

    def test_states_go_to_whoever_is_least_recent(self) -> None:
        """M5, R8: an old leaf's goes before the state of a young inner node, then the shallower one."""
        bench = Bench()
        bench.put([1])
        bench.put([1, 2])
        old = bench.put([9])
        bench.touch([1, 2])
        assert bench.cache.evict(0, 1) == EvictResult(1, 0, 1)
        assert bench.removed == [old.id]
        assert bench.cache.evict(0, 1) == EvictResult(0, 0, 1)
        assert bench.cache.match_prefix(RadixKey([1])).prefix_len == 0
        assert bench.cache.match_prefix(RadixKey([1, 2])).prefix_len == 2

    def test_second_phase_leaves_old_leaves_without_a_state_alone(self) -> None:
        """M5: where only states are asked for, only a state's node or what it leaves behind goes."""
        bench = Bench()
        bench.put([1, 2], state=False)
        bench.put([3])
        assert bench.cache.evict(0, 1) == EvictResult(1, 0, 1)
        assert bench.cache.evict(0, 1) == EvictResult()
        assert bench.cache.total_size() == 2

    def test_stateless_parents_go_with_their_last_child(self) -> None:
        """M5: all the way up to a state, in either phase, and counted."""
        for amounts in ((1, 0), (0, 1)):
            bench = Bench()
            bench.put([1, 2])
            bench.put([1, 2, 3], state=False)
            bench.put([1, 2, 3, 4], state=False)
            bench.put([1, 2, 3, 4, 5])
            bench.cache.inc_lock_ref(bench.cache.match_prefix(RadixKey([1, 2])).last_node)
            assert bench.cache.evict(*amounts) == EvictResult(3, 0, 1)
            assert bench.calls() == [(STATE, 1), (FREE, 3)]
            assert bench.cache.total_size() == 2

    def test_cascade_stops_below_a_state(self) -> None:
        """M5: a parent with a state can be resumed from and stays."""
        bench = Bench()
        bench.put([1])
        bench.put([1, 2], state=False)
        bench.put([1, 2, 3])
        assert bench.cache.evict(1) == EvictResult(2, 0, 1)
        assert bench.cache.match_prefix(RadixKey([1, 2, 3])).prefix_len == 1

    def test_cascade_stops_below_a_hold(self) -> None:
        """M5, R6: a stateless parent under a hold stays, and goes when it is asked for after the release."""
        bench = Bench()
        held = bench.put([1, 2], state=False)
        bench.put([1, 2, 3])
        bench.cache.inc_lock_ref(held)
        assert bench.cache.evict(100, 100) == EvictResult(1, 0, 1)
        assert bench.calls() == [(STATE, 1), (FREE, 1)]
        bench.cache.dec_lock_ref(held)
        assert bench.cache.total_size() == 2
        assert bench.cache.evict(1) == EvictResult(2, 0, 0)

    def test_cascade_waits_for_the_last_child(self) -> None:
        """M5: a stateless parent that still has a child stays for its sake."""
        bench = Bench()
        bench.put([1, 2])
        bench.put([1, 3])
        assert bench.cache.evict(1) == EvictResult(1, 0, 1)
        assert bench.cache.match_prefix(RadixKey([1, 3])).prefix_len == 2
        assert bench.cache.evict(1) == EvictResult(2, 0, 1)
        assert bench.calls() == [(STATE, 1), (FREE, 1), (STATE, 1), (FREE, 2)]

    def test_node_that_loses_its_state_and_then_its_children_goes_once(self) -> None:
        """M5, M7: chosen for its state first, removed with its last child after, one call for each."""
        bench = Bench()
        inner = bench.put([1])
        leaf = bench.put([1, 2])
        assert bench.cache.evict(0, 2) == EvictResult(2, 0, 2)
        assert bench.calls() == [(STATE, 1), (STATE, 1), (FREE, 2)]
        assert bench.removed == [leaf.id, inner.id]

    def test_states_go_one_by_one_and_slots_together(self) -> None:
        """X2: the states in the order they were chosen, then one free for everything that is removed."""
        bench = Bench()
        for tokens in ([7], [8, 8], [1], [1, 2], [1, 2, 3]):
            bench.put(tokens)
        assert bench.cache.evict(2, 4) == EvictResult(3, 0, 4)
        assert bench.pools.take_calls() == [
            (STATE, [2]),
            (STATE, [3]),
            (STATE, [4]),
            (STATE, [5]),
            (FREE, [1, 2, 3]),
        ]

    def test_more_states_than_there_are_take_all(self) -> None:
        """M5: and not one token without a state."""
        bench = Bench()
        bench.put([9], state=False)
        for tokens in ([1], [2], [1, 2]):
            bench.put(tokens)
        assert bench.cache.evict(0, 100) == EvictResult(3, 0, 3)
        assert (bench.cache.total_size(), bench.states()) == (1, (0, 0))


class TestLocks:
    def test_state_under_a_hold_is_never_taken(self) -> None:
        """M4, M5: a hold protects the state at its node, and not those above it."""
        bench = Bench()
        upper = bench.put([1])
        held = bench.put([1, 2])
        bench.cache.inc_lock_ref(held)
        assert bench.states() == (1, 1)
        assert bench.cache.evict(100, 100) == EvictResult(0, 0, 1)
        assert upper.mamba_tombstone
        assert not held.mamba_tombstone
        bench.cache.dec_lock_ref(held)
        assert bench.states() == (1, 0)
        assert bench.cache.evict(0, 1) == EvictResult(2, 0, 1)

    def test_released_state_returns_at_its_old_place(self) -> None:
        """R8, M5: what was held longest is not the youngest."""
        bench = Bench()
        held, other = bench.put([1]), bench.put([2])
        bench.cache.inc_lock_ref(held)
        bench.put([3])
        bench.cache.dec_lock_ref(held)
        bench.cache.evict(0, 1)
        assert bench.removed == [held.id]
        bench.cache.evict(0, 1)
        assert bench.removed == [held.id, other.id]

    def test_state_that_arrives_under_holds_is_protected_by_each(self) -> None:
        """M4: at once, until the last of them is released."""
        bench = Bench()
        node = bench.put([1, 2], state=False)
        bench.cache.inc_lock_ref(node)
        bench.cache.inc_lock_ref(node)
        assert (node.mamba_lock_ref, bench.states()) == (0, (0, 0))
        bench.put([1, 2])
        assert (node.mamba_lock_ref, node.full_lock_ref, bench.states()) == (2, 2, (0, 1))
        bench.cache.dec_lock_ref(node)
        assert (node.mamba_lock_ref, bench.states()) == (1, (0, 1))
        assert bench.cache.evict(100, 100) == EvictResult()
        bench.cache.dec_lock_ref(node)
        assert (node.mamba_lock_ref, bench.states()) == (0, (1, 0))
        bench.calls()

    def test_touched_states_keep_their_order_whether_held_or_not(self) -> None:
        """R8, M8: a path with a held, a free and no state is stamped as one, the shallower older."""
        bench = Bench()
        held = bench.put([1])
        bench.put([1, 2], state=False)
        bench.put([1, 2, 3])
        bench.put([1, 2, 3, 4])
        bench.put([9])
        bench.cache.inc_lock_ref(held)
        bench.touch([1, 2, 3, 4])
        bench.cache.dec_lock_ref(held)
        assert [node._depth for node in bench.cache.mamba_lru] == [4, 3, 1, 1]
        evicted = []
        while bench.states()[0]:
            oldest = bench.cache.mamba_lru.get_lru_unlocked()
            assert oldest is not None
            evicted.append((oldest.last_access_time, oldest._depth))
            bench.cache.evict(0, 1)
            assert oldest.mamba_value is None
            bench.calls()
        assert evicted == sorted(evicted)


class TestRefusals:
    def make(self) -> tuple[Bench, list[MambaTreeNode]]:
        """A tree of which evict(1, 4) takes four states, one of a leaf that pulls its parent along."""
        bench = Bench()
        bench.put([1, 2], state=False)
        nodes = [bench.put([1, 2, 3]), bench.put([4]), bench.put([4, 5]), bench.put([4, 5, 6])]
        bench.pools.take_calls()
        return bench, nodes

    @pytest.mark.parametrize("taken", range(5))
    def test_refused_call_leaves_what_was_not_taken(self, taken: int) -> None:
        """X2: nodes whose state was taken are valid without it, everything else is as it was."""
        bench, nodes = self.make()
        size, before = bench.cache.total_size(), [node.last_access_time for node in nodes]
        bench.pools.takes = taken
        with pytest.raises(InjectedFault):
            bench.cache.evict(1, 4)
        assert bench.calls() == [(STATE, 1)] * taken
        assert [node.mamba_tombstone for node in nodes] == [True] * taken + [False] * (4 - taken)
        assert [node.last_access_time for node in nodes] == before
        assert (bench.cache.total_size(), bench.states(), bench.removed) == (size, (4 - taken, 0), [])

    @pytest.mark.parametrize("taken", range(5))
    def test_refused_eviction_can_be_repeated(self, taken: int) -> None:
        """X2, M7: everything goes in the end, each slot and each state once."""
        bench, _ = self.make()
        bench.pools.takes = taken
        with pytest.raises(InjectedFault):
            bench.cache.evict(1, 4)
        bench.pools.takes = None
        assert bench.cache.evict(100, 100) == EvictResult(6, 0, 4 - taken)
        assert bench.pools.kv.available_size() == 64
        assert bench.pools.states.available_track_slots() == 8
        assert len(bench.removed) == 5
        bench.calls()

    @pytest.mark.parametrize("taken", range(3))
    def test_refusal_puts_the_orders_of_victims_back(self, taken: int) -> None:
        """X2, R5: inner nodes that the plan had made leaves are none afterwards."""
        bench = Bench()
        inner = bench.put([1])
        leaf = bench.put([1, 2])
        bench.pools.takes = taken
        with pytest.raises(InjectedFault):
            bench.cache.evict(100)
        bench.pools.takes = None
        bench.calls()
        bench.cache.evict(1)
        assert bench.removed[0] == leaf.id
        assert inner.evicted is (taken > 1)


class TestClear:
    def test_cleared_states_leave_their_nodes(self) -> None:
        """X7: no stale node names a track slot that somebody else may have by now."""
        bench = Bench()
        held, free = bench.put([1]), bench.put([2])
        bench.cache.inc_lock_ref(held)
        bench.cache.reset()
        for node in (held, free):
            assert (node.mamba_value, node.mamba_lock_ref) == (None, 0)
            assert (node.prev, node.next, node.mamba_prev, node.mamba_next) == (None,) * 4
        assert bench.states() == (0, 0)
        assert len(bench.cache.mamba_lru) == len(bench.cache.full_lru) == 0
        bench.calls()
