"""`LRUList` against a plain Python list, both modes through the same nodes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pymllm.errors import UsageError
from pymllm.mem_cache import LRUList, MambaTreeNode

NODES = 7
FULL, MAMBA, SPARE = "full", "mamba", "spare"  # the last is a second list of the mode of the first
LISTS = (FULL, MAMBA, SPARE)

each_list = st.sampled_from(LISTS)
each_node = st.integers(0, NODES - 1)


class LRUListMachine(RuleBasedStateMachine):
    """Seven nodes in a tree that changes its shape, in up to one list of each mode at a time.

    A model is a list of node numbers, the most recent first. Node 0 is the root; it may be a member like any
    other, and paths to it stop before it.
    """

    @initialize()
    def make(self) -> None:
        self.nodes = [MambaTreeNode() for _ in range(NODES)]
        for number, node in enumerate(self.nodes):
            node.id = number
            if number:
                self.put_below(number, (number - 1) // 2)
        self.lists = {FULL: LRUList(), MAMBA: LRUList(mamba=True), SPARE: LRUList()}
        self.models: dict[str, list[int]] = {name: [] for name in LISTS}

    def put_below(self, number: int, parent: int) -> None:
        node = self.nodes[number]
        if node.parent is not None:
            del node.parent.children[number]
        node.parent = self.nodes[parent]
        node.parent.children[number] = node

    def path_from(self, number: int) -> list[int]:
        """The numbers from a node up to the root."""
        path, at = [], self.nodes[number]
        while at.parent is not None:
            path.append(at.id)
            at = at.parent
        return [*path, at.id]

    def is_taken(self, name: str, number: int) -> bool:
        """Whether the node is in a list of the same mode, this one or the other."""
        same_mode = (MAMBA,) if name == MAMBA else (FULL, SPARE)
        return any(number in self.models[other] for other in same_mode)

    # -- what a cache does -----------------------------------------------------------------------------
    @rule(name=each_list, number=each_node)
    def insert(self, name: str, number: int) -> None:
        if self.is_taken(name, number):
            with pytest.raises(UsageError):
                self.lists[name].insert_mru(self.nodes[number])
        else:
            self.lists[name].insert_mru(self.nodes[number])
            self.models[name].insert(0, number)

    @rule(name=each_list, number=each_node)
    def remove(self, name: str, number: int) -> None:
        if number not in self.models[name]:
            with pytest.raises(UsageError):
                self.lists[name].remove(self.nodes[number])
        else:
            self.lists[name].remove(self.nodes[number])
            self.models[name].remove(number)

    @rule(name=each_list, number=each_node)
    def touch(self, name: str, number: int) -> None:
        model = self.models[name]
        if number not in model:
            with pytest.raises(UsageError):
                self.lists[name].touch_mru(self.nodes[number])
        else:
            self.lists[name].touch_mru(self.nodes[number])
            model.insert(0, model.pop(model.index(number)))

    @rule(name=each_list, number=each_node, root=each_node)
    def touch_path(self, name: str, number: int, root: int) -> None:
        path, call = self.path_from(number), self.lists[name].touch_node_and_parents_mru
        if root not in path or (number != root and number not in self.models[name]):
            with pytest.raises(UsageError):
                call(self.nodes[number], self.nodes[root])
            return
        call(self.nodes[number], self.nodes[root])
        model = self.models[name]
        moved = [above for above in path[: path.index(root)] if above in model]
        self.models[name] = [*moved, *(kept for kept in model if kept not in moved)]

    @rule(name=each_list)
    def touch_every_leaf(self, name: str) -> None:
        """Touch whole paths one after the other, so that chains stand together and are touched again."""
        for number in range(NODES):
            if not self.nodes[number].children:
                self.touch_path(name, number, 0)

    @rule(name=each_list, chance=st.integers(0, 4))
    def clear(self, name: str, chance: int) -> None:
        if not chance:
            self.lists[name].clear()
            self.models[name].clear()

    # -- what changes around the lists -----------------------------------------------------------------
    @rule(number=st.integers(1, NODES - 1), parent=each_node)
    def hang_elsewhere(self, number: int, parent: int) -> None:
        if number not in self.path_from(parent):
            self.put_below(number, parent)

    @rule(number=each_node, full=st.integers(0, 1), mamba=st.integers(0, 1))
    def set_locks(self, number: int, full: int, mamba: int) -> None:
        self.nodes[number].full_lock_ref, self.nodes[number].mamba_lock_ref = full, mamba

    # -- misuse ----------------------------------------------------------------------------------------
    @rule(name=each_list, of=each_list, end=st.sampled_from(["head", "tail"]))
    def use_a_sentinel(self, name: str, of: str, end: str) -> None:
        """A sentinel is no member, neither of its own list nor of another of the same mode."""
        lru, sentinel = self.lists[name], getattr(self.lists[of], end)
        calls = [lru.remove, lru.touch_mru]
        if self.lists[of].mamba is lru.mamba:
            calls.append(lru.insert_mru)
        for call in calls:
            with pytest.raises(UsageError):
                call(sentinel)

    # -- comparison ------------------------------------------------------------------------------------
    @invariant()
    def compare(self) -> None:
        for name in LISTS:
            self.compare_list(self.lists[name], self.models[name])
        for number, node in enumerate(self.nodes):
            links = (node.prev, node.next), (node.mamba_prev, node.mamba_next)
            for neighbours, mode in zip(links, (FULL, MAMBA), strict=True):
                assert self.is_taken(mode, number) or neighbours == (None, None)

    def compare_list(self, lru: LRUList, model: list[int]) -> None:
        assert [node.id for node in lru] == model
        assert [node.id for node in reversed(lru)] == model[::-1]
        assert len(lru) == len(model)
        assert [number for number, node in enumerate(self.nodes) if node in lru] == sorted(model)
        assert lru.head not in lru
        assert lru.tail not in lru
        ends = (lru.head.mamba_prev, lru.tail.mamba_next) if lru.mamba else (lru.head.prev, lru.tail.next)
        assert ends == (None, None)
        unlocked = [number for number in reversed(model) if not self.lock_of(lru, number)]
        leaves = [number for number in unlocked if not self.nodes[number].children]
        assert lru.get_lru_unlocked() is (self.nodes[unlocked[0]] if unlocked else None)
        assert lru.get_lru_leaf_unlocked() is (self.nodes[leaves[0]] if leaves else None)

    def lock_of(self, lru: LRUList, number: int) -> int:
        node = self.nodes[number]
        return node.mamba_lock_ref if lru.mamba else node.full_lock_ref


def test_list_agrees_with_a_python_list() -> None:
    """M8: Hypothesis finds no program after which a list, its links and its model differ."""
    run_state_machine_as_test(LRUListMachine)


@pytest.mark.slow
def test_list_agrees_with_a_python_list_over_20_000_steps() -> None:
    """M8: the same, for as long as the other machines run."""
    run_state_machine_as_test(
        LRUListMachine, settings=settings(max_examples=200, stateful_step_count=100, deadline=None)
    )
