"""Simple indexes of workers' blocks, made of dictionaries for comparison with others, and their adapters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import ClassVar

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.malformed import Calls, call_malformed
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import Namespace
from pymllm.history.outcomes import Done, Indexed, IndexedBlock, Leading, Missed, NotThere, Result

Place = tuple[int | None, int]
"""The hash of the parent (``None`` for a first block), and the hash of the block's own tokens."""


class DictIndex:
    """An index of workers' blocks: for each worker, the place of each hash and the hash at each place.

    Nothing is derived from anything else, so what stands below a removed block stays, and is found again when
    the block is back.
    """

    def __init__(self) -> None:
        self._places: dict[int, dict[int, Place]] = {}
        self._hashes: dict[int, dict[Place, int]] = {}

    def store(self, worker: int, blocks: Sequence[tuple[int, int]], parent: int | None = None) -> bool:
        """Add blocks to a worker, each below the one before; return false if it lacks the parent."""
        worker, (blocks, parent) = _number(worker), _chain(blocks, parent)
        if parent is not None and parent not in self._places.get(worker, {}):
            return False
        for hash, tokens in blocks:
            self._put(worker, hash, (parent, tokens))
            parent = hash
        return True

    def _put(self, worker: int, hash: int, place: Place) -> None:
        self._places.setdefault(worker, {})[hash] = place
        self._hashes.setdefault(worker, {})[place] = hash

    def remove(self, worker: int, hashes: Iterable[int]) -> bool:
        """Remove blocks from a worker; return false if it lacked any of them."""
        worker, hashes = _number(worker), [_number(hash) for hash in hashes]
        places = self._places.get(worker, {})
        found = [places.pop(hash) for hash in hashes if hash in places]
        for place in found:
            del self._hashes[worker][place]
        return len(found) == len(hashes)

    def clear(self, worker: int) -> None:
        """Remove all blocks of a worker."""
        if _number(worker) in self._places:
            self._places[worker], self._hashes[worker] = {}, {}

    def drop(self, worker: int) -> None:
        """Remove a worker."""
        self._places.pop(_number(worker), None)
        self._hashes.pop(worker, None)

    def find(self, tokens: Iterable[int], early: bool = False) -> dict[int, int]:
        """Return how many leading blocks of a sequence each worker has, without workers that have none."""
        found: dict[int, int] = {}
        ends: dict[int, int | None] = dict.fromkeys(sorted(self._hashes))
        for depth, each in enumerate([_number(each) for each in tokens], 1):
            ends = {
                worker: self._hashes[worker][end, each]
                for worker, end in ends.items()
                if (end, each) in self._hashes[worker]
            }
            found.update(dict.fromkeys(ends, depth))
            if early and len(ends) == 1:
                break
        return found

    def dump(self) -> list[tuple[int, int, Place]]:
        """Return the worker, hash and place of every block."""
        return [
            (worker, hash, place) for worker, places in self._places.items() for hash, place in places.items()
        ]

    @classmethod
    def load(cls, dumped: Iterable[tuple[int, int, Place]]) -> DictIndex:
        """Build an index from the dump of another, including cut-off blocks."""
        made = cls()
        for worker, hash, place in dumped:
            made._put(worker, hash, place)
        return made


def _chain(blocks: Sequence[tuple[int, int]], parent: int | None) -> tuple[list[tuple[int, int]], int | None]:
    """Return blocks and their parent, all as integers; raise `ValueError` for a repeated hash."""
    parent = parent if parent is None else _number(parent)
    blocks = [(_number(hash), _number(tokens)) for hash, tokens in blocks]
    hashes = [hash for hash, _ in blocks]
    if parent in hashes or len({*hashes}) != len(hashes):
        raise ValueError(f"hashes {hashes} below {parent}: one is there twice")
    return blocks, parent


def _number(value: int) -> int:
    """Return a worker or a hash; raise `TypeError` if it is no integer."""
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return index(value)


@dataclass(slots=True)
class Kept:
    """A block of a worker in a group: the namespace of its sequence, and its copies in each medium."""

    namespace: Namespace
    copies: dict[str, int] = field(default_factory=dict)


class EventIndex:
    """An index for servers' event streams, which puts a filter in front of a `DictIndex` per namespace.

    The filter goes by the numbers of events, counts copies, and keeps groups, media and namespaces apart.

    Parameters
    ----------
    counted : bool
        Whether a removal takes one copy of a block from its medium, or all of them.
    """

    def __init__(self, counted: bool = True) -> None:
        self._counted = counted
        self._parts: dict[tuple[int, Namespace], DictIndex] = {}
        self._kept: dict[int, dict[tuple[int, int], Kept]] = {}  # by worker, and by group and hash
        self._last: dict[int, int] = {}

    def store(
        self,
        worker: int,
        blocks: Sequence[tuple[int, int]],
        parent: int | None = None,
        group: int = 0,
        medium: str = "",
        extra_key: Namespace = None,
        number: int | None = None,
    ) -> Result:
        """Add blocks to a worker, each below the one before, if it has the parent in that group."""
        worker, group, (blocks, parent) = _number(worker), _number(group), _chain(blocks, parent)
        turn = self._take_turn(worker, number)
        if turn is not None:
            return turn
        if not self._part(group, extra_key).store(worker, blocks, parent):
            return NotThere()
        for hash, _ in blocks:
            self._add(worker, group, medium, hash, extra_key)
        return Done()

    def _add(self, worker: int, group: int, medium: str, hash: int, namespace: Namespace) -> None:
        kept = self._kept.setdefault(worker, {}).setdefault((group, hash), Kept(namespace))
        kept.copies[medium] = kept.copies.get(medium, 0) + 1 if self._counted else 1

    def remove(
        self,
        worker: int,
        hashes: Iterable[int],
        group: int = 0,
        medium: str = "",
        number: int | None = None,
    ) -> Result:
        """Remove one copy of each block, or all, from a worker in one group and medium."""
        worker, group, hashes = _number(worker), _number(group), [_number(hash) for hash in hashes]
        turn = self._take_turn(worker, number)
        if turn is not None:
            return turn
        found = [self._take(worker, group, medium, hash) for hash in hashes]
        return Done() if all(found) else NotThere()

    def _take(self, worker: int, group: int, medium: str, hash: int) -> bool:
        kept = self._kept.get(worker, {}).get((group, hash))
        if kept is None or medium not in kept.copies:
            return False
        kept.copies[medium] -= 1
        if not kept.copies[medium]:
            del kept.copies[medium]
        if not kept.copies:
            del self._kept[worker][group, hash]
            self._part(group, kept.namespace).remove(worker, [hash])
        return True

    def clear(self, worker: int, number: int | None = None) -> Result:
        """Remove all blocks of a worker."""
        turn = self._take_turn(_number(worker), number)
        if turn is None:
            self._empty(worker)
        return turn or Done()

    def drop(self, worker: int) -> None:
        """Remove a worker, and its event numbers."""
        self._last.pop(_number(worker), None)
        self._empty(worker)

    def _empty(self, worker: int) -> None:
        self._kept.pop(worker, None)
        for part in self._parts.values():
            part.drop(worker)

    def _take_turn(self, worker: int, number: int | None) -> Result | None:
        """Check an event's number; return ``None``, or the result for a repeated or early event."""
        last = self._last.get(worker)
        if number is None:
            return None
        if last is not None and number:
            if number <= last:
                return Done()
            if number > last + 1:
                return Missed(last + 1)
        if last is not None and not number:
            self._empty(worker)
        self._last[worker] = number
        return None

    def _part(self, group: int, namespace: Namespace) -> DictIndex:
        return self._parts.setdefault((group, namespace), DictIndex())

    def find(
        self, tokens: Iterable[int], early: bool = False, extra_key: Namespace = None, group: int = 0
    ) -> dict[int, int]:
        """Return how many leading blocks of a sequence each worker has in a group, if any."""
        return self._part(group, extra_key).find(tokens, early)

    def dump(self) -> tuple[list[IndexedBlock], dict[int, int]]:
        """Return every block in each medium, and the last event number of each worker."""
        blocks = []
        for (group, namespace), part in self._parts.items():
            for worker, hash, (parent, tokens) in part.dump():
                for medium, copies in self._kept[worker][group, hash].copies.items():
                    own = namespace if parent is None else None
                    blocks.append(IndexedBlock(worker, hash, tokens, parent, group, medium, own, copies))
        return blocks, {**self._last}

    def load(self) -> EventIndex:
        """Return a second index with the same contents."""
        made = EventIndex(self._counted)
        made._last = {**self._last}
        for key, part in self._parts.items():
            made._parts[key] = DictIndex.load(part.dump())
        for worker, blocks in self._kept.items():
            made._kept[worker] = {key: Kept(kept.namespace, {**kept.copies}) for key, kept in blocks.items()}
        return made


class IndexDict(BaseAdapter):
    """The adapter of `DictIndex`, with workers that hash alike or differently."""

    KIND = "index"
    CONFIGURATIONS = ({"own_hashes": False}, {"own_hashes": True})
    MALFORMED: ClassVar[Calls] = {
        ("store_blocks", "a float worker"): lambda it: it.store(1.0, [(1, 1)]),
        ("store_blocks", "a float hash"): lambda it: it.store(1, [(1.5, 1)]),
        ("store_blocks", "a bool for tokens"): lambda it: it.store(1, [(1, True)]),
        ("store_blocks", "a text as parent"): lambda it: it.store(1, [(1, 1)], "2"),
        ("store_blocks", "three numbers for a block"): lambda it: it.store(1, [(2, 1), (1, 1, 1)]),
        ("remove_blocks", "a float hash"): lambda it: it.remove(1, [1, 2, 3, 4, 5, 1.5]),
        ("remove_blocks", "one hash for a list"): lambda it: it.remove(1, 1),
        ("clear_worker", "a bool worker"): lambda it: it.clear(True),
        ("drop_worker", "a text as worker"): lambda it: it.drop("1"),
        ("find_blocks", "a float for tokens"): lambda it: it.find([1, 1.5]),
        ("find_blocks", "no tokens"): lambda it: it.find(None),
    }

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.index = DictIndex()

    def claim(self) -> frozenset[str]:
        return frozenset({"early_exit", "exact_removals", "inspect", "refusals"})

    def do_store_blocks(self, step: int, operation: ops.StoreBlocks) -> Result:
        is_stored = self.index.store(operation.worker, operation.blocks, operation.parent)
        return Done() if is_stored else NotThere()

    def do_remove_blocks(self, step: int, operation: ops.RemoveBlocks) -> Result:
        return Done() if self.index.remove(operation.worker, operation.hashes) else NotThere()

    def do_clear_worker(self, step: int, operation: ops.ClearWorker) -> Done:
        self.index.clear(operation.worker)
        return Done()

    def do_drop_worker(self, step: int, operation: ops.DropWorker) -> Done:
        self.index.drop(operation.worker)
        return Done()

    def do_find_blocks(self, step: int, operation: ops.FindBlocks) -> Leading:
        found = self.index.find(operation.tokens, operation.early)
        return Leading(tuple(sorted(found.items())))

    def do_inspect(self, step: int, operation: ops.Inspect) -> Indexed:
        return Indexed(
            tuple(IndexedBlock(worker, hash, place[1], place[0]) for worker, hash, place in self.index.dump())
        )

    def do_rebuild(self, step: int, operation: ops.Rebuild) -> Done:
        self.index = DictIndex.load(self.index.dump())
        return Done()

    def do_reset(self, step: int, operation: ops.Reset) -> Done:
        self.index = DictIndex()
        return Done()

    def do_malformed(self, step: int, operation: ops.Malformed) -> Done:
        return call_malformed(self.MALFORMED, operation, self.index)


class IndexEvents(BaseAdapter):
    """The adapter of `EventIndex`, whose removals take one copy if ``counted``, else all copies."""

    KIND = "index"
    CONFIGURATIONS = (
        {"own_hashes": False, "counted": True},
        {"own_hashes": False},
        {"own_hashes": True},
    )
    MALFORMED = IndexDict.MALFORMED

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.index = EventIndex(self._is_counted)

    @property
    def _is_counted(self) -> bool:
        return self.config.get("counted") is True

    def claim(self) -> frozenset[str]:
        told = {"layer_groups", "media", "extra_key", "lora", "event_numbers"}
        counted = {"counts_copies"} if self._is_counted else set()
        return frozenset({"early_exit", "exact_removals", "inspect", "refusals", *told, *counted})

    def do_store_blocks(self, step: int, operation: ops.StoreBlocks) -> Result:
        it = operation
        return self.index.store(
            *(it.worker, it.blocks, it.parent, it.group, it.medium, it.extra_key, it.number)
        )

    def do_remove_blocks(self, step: int, operation: ops.RemoveBlocks) -> Result:
        it = operation
        return self.index.remove(it.worker, it.hashes, it.group, it.medium, it.number)

    def do_clear_worker(self, step: int, operation: ops.ClearWorker) -> Result:
        return self.index.clear(operation.worker, operation.number)

    def do_drop_worker(self, step: int, operation: ops.DropWorker) -> Done:
        self.index.drop(operation.worker)
        return Done()

    def do_find_blocks(self, step: int, operation: ops.FindBlocks) -> Leading:
        found = self.index.find(operation.tokens, operation.early, operation.extra_key, operation.group)
        return Leading(tuple(sorted(found.items())))

    def do_inspect(self, step: int, operation: ops.Inspect) -> Indexed:
        blocks, numbers = self.index.dump()
        return Indexed(tuple(blocks), tuple(sorted(numbers.items())))

    def do_rebuild(self, step: int, operation: ops.Rebuild) -> Done:
        self.index = self.index.load()
        return Done()

    def do_reset(self, step: int, operation: ops.Reset) -> Done:
        self.index = EventIndex(self._is_counted)
        return Done()

    def do_malformed(self, step: int, operation: ops.Malformed) -> Done:
        return call_malformed(self.MALFORMED, operation, self.index)
