"""An index of who has which blocks, of plain dictionaries, to compare others with, and its adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import ClassVar

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.malformed import Calls, call_malformed
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.outcomes import Done, Indexed, IndexedBlock, Leading, NotThere, Result

Place = tuple[int | None, int]
"""Hash of the parent, ``None`` for a first block, and hash of the block's own tokens."""


class DictIndex:
    """An index of the blocks of workers: for each worker the place of each hash, and the hash at each place.

    Nothing is derived from anything else, so what stands below a removed block stays, and is found again when
    the block is back.
    """

    def __init__(self) -> None:
        self._places: dict[int, dict[int, Place]] = {}
        self._hashes: dict[int, dict[Place, int]] = {}

    def store(self, worker: int, blocks: Sequence[tuple[int, int]], parent: int | None = None) -> bool:
        """Let a worker have blocks, each below the one before it; false where it does not have the parent."""
        worker, parent = _number(worker), parent if parent is None else _number(parent)
        blocks = [(_number(hash), _number(tokens)) for hash, tokens in blocks]
        hashes = [hash for hash, _ in blocks]
        if parent in hashes or len({*hashes}) != len(hashes):
            raise ValueError(f"hashes {hashes} below {parent}: one stands there twice")
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
        """Take blocks from a worker; false where it did not have them all."""
        worker, hashes = _number(worker), [_number(hash) for hash in hashes]
        places = self._places.get(worker, {})
        found = [places.pop(hash) for hash in hashes if hash in places]
        for place in found:
            del self._hashes[worker][place]
        return len(found) == len(hashes)

    def clear(self, worker: int) -> None:
        """Take all blocks from a worker."""
        if _number(worker) in self._places:
            self._places[worker], self._hashes[worker] = {}, {}

    def drop(self, worker: int) -> None:
        """Forget a worker."""
        self._places.pop(_number(worker), None)
        self._hashes.pop(worker, None)

    def find(self, tokens: Iterable[int], early: bool = False) -> dict[int, int]:
        """Return how many blocks from the front of a sequence on each worker has, if it has any."""
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
        """Return worker, hash and place of every block."""
        return [
            (worker, hash, place) for worker, places in self._places.items() for hash, place in places.items()
        ]

    @classmethod
    def load(cls, dumped: Iterable[tuple[int, int, Place]]) -> DictIndex:
        """Make an index of what another one dumped, cut off or not."""
        made = cls()
        for worker, hash, place in dumped:
            made._put(worker, hash, place)
        return made


def _number(value: int) -> int:
    """Return a worker or a hash; `TypeError` where it is no integer."""
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return index(value)


class IndexDict(BaseAdapter):
    """`DictIndex`, of workers that hash alike, and of workers that do not."""

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
