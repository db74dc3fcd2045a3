"""New numbers for blocks and names, from 0 in the order of first appearance."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from operator import itemgetter

from pymllm.traces.lines import Rejected
from pymllm.workloads.request import BLOCK_ID_MAX

_UNSEEN = -1
_DENSE_SLACK = 1 << 20


class BlockNumbers:
    """New block numbers, from 0 in the order of first appearance.

    Published traces are mostly numbered like that already: as long as one is, nothing is kept but how many
    there are. After that, a table of 4 bytes for each number up to the largest id; ids that are far apart,
    or texts, are kept in a dictionary.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_identity = True
        self._dense = array("i")
        self._sparse: dict[Hashable, int] = {}

    def fresh(self) -> int:
        """Return the number of a new block without a name, equal to no other block."""
        self._learn()
        return self._next()

    def numbers(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of some blocks, by ids of at least 0."""
        if self._is_identity and self._is_in_order(ids):
            return tuple(ids)
        self._learn()
        found: tuple[int, ...] = ()
        if len(ids) > 1:  # of one, it would give the number alone
            try:
                found = itemgetter(*ids)(self._dense)
            except IndexError:
                found = ()
        if not found or min(found) < 0:
            found = tuple([self._number(id) for id in ids])
        return found

    def number_of(self, name: Hashable) -> int:
        """Return the number of a block whose name is no number, such as a string."""
        self._learn()
        number = self._sparse.get(name)
        if number is None:
            number = self._sparse[name] = self._next()
        return number

    def _is_in_order(self, ids: Sequence[int]) -> bool:
        """Tell whether ids equal their new numbers, and count the new ids."""
        if max(ids) < self.count:
            return True
        following = self.count
        for id in ids:
            if id >= following:
                if id != following:
                    return False
                following += 1
        if following > BLOCK_ID_MAX:
            return False
        self.count = following
        return True

    def _learn(self) -> None:
        """Store the numbers given so far, at the first id that differs from its number."""
        if self._is_identity:
            self._is_identity = False
            self._dense = array("i", range(self.count))

    def _number(self, id: int) -> int:
        dense = self._dense
        if id >= len(dense):
            if id >= 4 * self.count + _DENSE_SLACK:
                return self.number_of(id)
            size = min(2 * (id + 1), max(id + 1, 4 * self.count + _DENSE_SLACK))
            dense.extend(array("i", [_UNSEEN]) * (size - len(dense)))
        number = dense[id]
        if number < 0:
            # It may have been far from the others when it was seen first.
            known = self._sparse.pop(id, None)
            number = dense[id] = self._next() if known is None else known
        return number

    def _next(self) -> int:
        if self.count > BLOCK_ID_MAX:
            raise Rejected(f"this is block {self.count + 1:,} of the trace, of at most {BLOCK_ID_MAX + 1:,}")
        self.count += 1
        return self.count - 1


Part = tuple[Hashable, int]
"""The name of tokens that always occur together, with their count, at least 1."""


class Pieces:
    """A numbering of blocks for prompts that consist of named parts, cut into blocks of one size.

    Equal parts at equal places of equal blocks are one block. A last block that is not full keeps its number
    in the first longer prompt that goes on from it; one that goes on in another way gets a new number, and so
    shares whole blocks only.
    """

    def __init__(self, numbers: BlockNumbers, block_tokens: int) -> None:
        self._numbers, self._size = numbers, block_tokens
        self._known: dict[Hashable, int] = {}
        self._gone_on: set[Hashable] = set()

    def blocks(self, parts: Sequence[Part]) -> tuple[int, ...]:
        """Return the numbers of a prompt's blocks; the prompt is as long as all its parts."""
        found, names, left = [], [], self._size
        for name, length in parts:
            start = 0
            while start < length:
                taken = min(left, length - start)
                names.append((name, start, taken))
                start, left = start + taken, left - taken
                if not left:
                    found.append(self._number(tuple(names)))
                    names, left = [], self._size
        if names:
            found.append(self._number(tuple(names)))
        return tuple(found)

    def _number(self, names: tuple[tuple[Hashable, int, int], ...]) -> int:
        """Return the number of a block, given the pieces of parts in it."""
        number = self._known.get(names)
        if number is None:
            number = self._known[names] = self._begun(names)
        return number

    def _begun(self, names: tuple[tuple[Hashable, int, int], ...]) -> int:
        """Return the number of a partial block that these pieces are first to extend, or else a new one."""
        for end in range(len(names) - 1, 0, -1):
            begin = names[:end]
            if begin in self._known and begin not in self._gone_on:
                self._gone_on.add(begin)
                return self._known[begin]
        return self._numbers.fresh()


class Names:
    """New numbers for names, from 0 in the order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: Hashable) -> int:
        """Return the number of a name; a new name gets the next number."""
        return self._numbers.setdefault(name, len(self._numbers))
