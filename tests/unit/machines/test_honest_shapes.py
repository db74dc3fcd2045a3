"""Caches that keep their pages in other shapes than ours, and claim a pool alone: none is accused.

Each has a twin that takes more than it needs, and that one is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from pymllm.adapters.base import header_of
from pymllm.adapters.simple import PrefixAdapter
from pymllm.errors import InvariantViolation
from pymllm.history.files import Step
from pymllm.history.operations import Alloc, Evict, Insert, Key, Operation, Span
from pymllm.history.outcomes import Evicted
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.oracle.judge import judge_steps

Tokens = tuple[int, ...]


class PooledCache(PrefixAdapter):
    """A list of free slots, and what every cache below does with a key."""

    CONFIGURATIONS: ClassVar[Any] = ({"page_size": 1, "pool": "token", "slots": 24},)
    GREED: ClassVar[int] = 0  # tokens that an eviction takes beyond those that it needs

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config)
        self.unused = list(range(1, self.number("slots") + 1))
        self.slots: dict[Tokens, int] = {}  # of the last token of each cached prefix
        self.held: Counter[Tokens] = Counter()

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        locked = sum(1 for prefix in self.slots if self.held[prefix])
        return {
            "available_size": len(self.unused),
            "total_size": len(self.slots),
            "protected_size": locked,
            "evictable_size": len(self.slots) - locked,
        }

    def alloc(self, tokens: int) -> list[int] | None:
        if tokens > len(self.unused):
            return None
        taken, self.unused = self.unused[:tokens], self.unused[tokens:]
        return taken

    def free(self, slots: list[int]) -> None:
        self.unused += slots

    def known(self, tokens: Tokens) -> list[Tokens]:
        """Return the cached prefixes of a key, the shortest first."""
        return [it for it in prefixes(tokens) if it in self.slots]

    def match(self, key: Key) -> tuple[list[int], Tokens]:
        found = self.known(key.tokens)
        self.used(found[-1] if found else ())
        return [self.slots[it] for it in found], found[-1] if found else ()

    def insert(self, key: Key, slots: list[int]) -> tuple[int, Tokens]:
        ends, known = prefixes(key.tokens), len(self.known(key.tokens))
        self.used(key.tokens[:known])
        self.slots |= dict(zip(ends[known:], slots[known:], strict=True))
        self.used(key.tokens)
        return known, key.tokens

    def lock(self, node: Tokens) -> None:
        self.used(node)
        self.held.update(prefixes(node))

    def unlock(self, node: Tokens, token: Any) -> None:
        self.held.subtract(prefixes(node))

    def reset(self) -> None:
        self.drop([*self.slots])
        self.held.clear()

    def drop(self, gone: list[Tokens]) -> int:
        """Forget some prefixes, and give their slots back."""
        slots = [self.slots.pop(it) for it in gone]
        self.unused += slots
        return self.gave_back(slots)

    def evict(self, tokens: int) -> int:
        gone = 0
        while tokens > 0 and gone < tokens + self.GREED and (victim := next(self.victims(), None)):
            gone += self.drop(victim)
        return gone

    def used(self, end: Tokens) -> None:
        """Know that a match, an insert or a hold ended there."""

    def victims(self) -> Iterator[list[Tokens]]:
        """Yield what may go at once, the first one first."""
        raise NotImplementedError

    def below(self) -> Counter[Tokens]:
        """Return how many children each prefix has."""
        return Counter(it[:-1] for it in self.slots)

    def free_leaves(self) -> list[Tokens]:
        """Return the prefixes without a hold and without a longer prefix, in order of arrival."""
        below = self.below()
        return [it for it in self.slots if not below[it] and not self.held[it]]


def prefixes(tokens: Tokens) -> list[Tokens]:
    """Return every prefix but the empty one, the shortest first."""
    return [tokens[:end] for end in range(1, len(tokens) + 1)]


class JoiningTree(PooledCache):
    """A radix tree that joins a node with its only child, whenever the other child has gone."""

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config)
        self.ends: set[Tokens] = set()  # where a node ends that has no children or one

    def used(self, end: Tokens) -> None:
        self.ends.add(end)

    def drop(self, gone: list[Tokens]) -> int:
        self.ends -= {*gone, *(it[:-1] for it in gone)}
        return super().drop(gone)

    def victims(self) -> Iterator[list[Tokens]]:
        below = self.below()
        for leaf in self.free_leaves():
            node = [leaf]
            while (above := node[-1][:-1]) and below[above] == 1:
                if above in self.ends or self.held[above]:
                    break
                node.append(above)
            yield node


class LateJoiningTree(JoiningTree):
    """A joining tree that joins its nodes only at a lookup of tokens that are not cached."""

    def match(self, key: Key) -> tuple[list[int], Tokens]:
        if len(self.known(key.tokens)) < len(key.tokens):
            self.ends.clear()
        return super().match(key)

    def drop(self, gone: list[Tokens]) -> int:
        return PooledCache.drop(self, gone)


class YoungestPages(PooledCache):
    """A node for each page, of which the one that came last goes first."""

    CONFIGURATIONS: ClassVar[Any] = ({**PooledCache.CONFIGURATIONS[0], "splits": False},)

    def victims(self) -> Iterator[list[Tokens]]:
        for leaf in reversed(self.free_leaves()):
            yield [leaf]


class WholeKeys(PooledCache):
    """A cache with an entry for each whole key, longest first; an entry goes up to the shared part."""

    def victims(self) -> Iterator[list[Tokens]]:
        below = self.below()
        for leaf in sorted(self.free_leaves(), key=len, reverse=True):
            entry = [leaf]
            while (above := entry[-1][:-1]) and below[above] == 1 and not self.held[above]:
                entry.append(above)
            yield entry


SHAPES = [JoiningTree, LateJoiningTree, YoungestPages, WholeKeys]


def accusations(shape: type[PooledCache]) -> Iterator[str]:
    """Play programs, and yield the laws that they break."""
    machine = make_machine(load_machine(MACHINES["prefix"][0]), shape.__name__, shape.CONFIGURATIONS[0])
    machine.make_adapter = classmethod(lambda cls: shape("shape", shape.CONFIGURATIONS[0]))  # type: ignore[assignment,method-assign]
    for seed in range(12):
        try:
            drive(machine, seed, 200)
        except InvariantViolation as violation:
            yield violation.law


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_shape_of_nodes_is_held_against_a_cache(shape: Any) -> None:
    """R5: and the same cache is accused where it takes more than it needs."""

    class Greedy(shape):  # type: ignore[misc]
        GREED = 3

    assert list(accusations(shape)) == []
    assert set(accusations(Greedy)) == {"R5"}


def test_a_node_may_be_joined_with_its_only_child_while_victims_are_chosen() -> None:
    """R5: once (1, 1) has gone, (1) and (1, 2) are one node, and two tokens would have been too few."""
    tree = JoiningTree("joining", JoiningTree.CONFIGURATIONS[0])
    inserts = (Insert(Key((1, 1, 1)), (Span(1, 0, 3),)), Insert(Key((1, 2)), (Span(1, 3, 5),)))
    program: list[Operation] = [Alloc(5), *inserts, Evict(3)]
    steps = [Step(number, it, tree.apply(number, it)) for number, it in enumerate(program, 1)]
    outcome = steps[-1].outcome
    assert outcome is not None
    assert outcome.result == Evicted(4)
    assert judge_steps(header_of(tree), steps)[1] is None
