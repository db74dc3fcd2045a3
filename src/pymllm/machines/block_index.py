"""The acts on a block index: events of workers, in and out of order, and queries."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import islice

from pymllm.history import operations as ops
from pymllm.machines.acting import act
from pymllm.machines.pools import SEED, PoolMachine, malformed_calls
from pymllm.oracle.models.block_index import IndexModel

_WORKERS = 3
_TOKENS = 2
_LONGEST = 5
_MOST_SEARCHES = 8

Path = tuple[int, ...]
"""The hashes of the tokens of a sequence's blocks."""


class IndexMachine(PoolMachine):
    """Drives an index: few workers with sequences that share their beginnings."""

    MALFORMED = malformed_calls(
        store_blocks=(
            *("a float worker", "a float hash", "a bool for tokens", "a text as parent"),
            "three numbers for a block",
        ),
        remove_blocks=("a float hash", "one hash for a list"),
        clear_worker=("a bool worker",),
        drop_worker=("a text as worker",),
        find_blocks=("a float for tokens", "no tokens"),
    )

    model: IndexModel

    def begin(self) -> None:
        """Look up what is known."""
        self.model = self.judge.model
        self.can_look = "inspect" in self.capabilities
        self.can_hurry = "early_exit" in self.capabilities
        self._less = 0  # by how much every number is smaller than usual
        self._asked: list[Path] = []  # sequences that events were about, the last ones first

    # -- looks ---------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Search for what events were about lately, each sequence to its end, and look at everything."""
        ends = (path for path in self._asked if not any(_is_below(other, path) for other in self._asked))
        for path in islice(ends, _MOST_SEARCHES):
            self.do(ops.FindBlocks(path))
            if self.can_hurry:
                self.do(ops.FindBlocks(path, early=True))
        if self.can_look:
            self.do(ops.Inspect())

    @act(weight=2, seed=SEED)
    def find(self, seed: int) -> None:
        """Search for some sequence twice, of blocks that nobody has perhaps."""
        path = self._path(random.Random(seed))
        self.do(ops.FindBlocks(path))
        self.do(ops.FindBlocks(path))

    # -- events --------------------------------------------------------------------------------------------

    @act("is_new", weight=8)
    def count_from_zero(self) -> None:
        """Let workers, tokens and hashes of this program begin with 0."""
        self._less = 1

    @act(weight=8, worker=(1, _WORKERS), count=(1, _LONGEST), seed=SEED)
    def store(self, worker: int, count: int, seed: int) -> None:
        """Store the end of some sequence, below the blocks of it that the worker has."""
        worker -= self._less
        path = self._path(random.Random(seed))
        depth = self._depth(worker, path)
        self._store(worker, path, depth, depth + count)

    @act(weight=4, worker=(1, _WORKERS), depth=(0, _LONGEST - 1), count=(1, 2), seed=SEED)
    def store_anywhere(self, worker: int, depth: int, count: int, seed: int) -> None:
        """Store a part of a sequence, below a block that may be missing, or a part that is stored already."""
        worker -= self._less
        path = self._path(random.Random(seed))
        depth %= len(path)
        self._store(worker, path, depth, depth + count)

    @act("has_blocks", weight=4, pick=(0, 30), worker=(1, _WORKERS))
    def copy(self, pick: int, worker: int) -> None:
        """Store a whole sequence that somebody has."""
        worker -= self._less
        path = self._held_path(pick)
        self._store(worker, path, 0, len(path))

    @act("has_blocks", weight=8, pick=(0, 30), count=(1, 2), is_last=(0, 2))
    def remove(self, pick: int, count: int, is_last: int) -> None:
        """Remove blocks of a worker from inside of a sequence, or its last ones, the last first."""
        worker, hash = self._held(pick)
        hashes = [hash, *self.model.below(worker, hash)]
        self._remove(worker, hashes[::-1] if is_last else hashes[:count])

    @act("has_gap", weight=4, pick=(0, 30), count=(1, 3), is_rebuilt=(0, 2))
    def close_gap(self, pick: int, count: int, is_rebuilt: int) -> None:
        """Store a block again that is missing above others, with some that come after it."""
        worker, hash = self._gaps()[pick % len(self._gaps())]
        path = self._path_to(worker, hash)
        tail = next((self._path_to(worker, below) for below in self.model.below(worker, hash)), path)
        self._store(worker, tail, len(path) - 1, len(path) - 1 + count)
        if is_rebuilt == 2 and self.can_look:
            self.ask(ops.Rebuild())

    @act("has_gap", weight=5, pick=(0, 30), is_removed=(0, 1), token=(1, _TOKENS))
    def change_what_is_cut_off(self, pick: int, is_removed: int, token: int) -> None:
        """Remove a block that is cut off, or store one below it."""
        worker, gap = self._gaps()[pick % len(self._gaps())]
        below = list(self.model.below(worker, gap))
        hash = below[pick % len(below)]
        if is_removed:
            self._remove(worker, [hash])
        else:
            path = self._path_to(worker, hash)
            self._store(worker, (*path, token - self._less), len(path), len(path) + 1)

    @act(weight=2, worker=(1, _WORKERS), count=(1, 2), seed=SEED)
    def remove_anything(self, worker: int, count: int, seed: int) -> None:
        """Remove some blocks that the worker may not have."""
        worker -= self._less
        source = random.Random(seed)
        paths = [self._path(source) for _ in range(count)]
        self._ask(ops.RemoveBlocks(worker, tuple(self._hash(worker, path) for path in paths)), *paths)

    @act(worker=(1, _WORKERS))
    def clear(self, worker: int) -> None:
        """Take all blocks from a worker."""
        worker -= self._less
        self.ask(ops.ClearWorker(worker))

    @act(worker=(1, _WORKERS))
    def drop(self, worker: int) -> None:
        """Let a worker leave."""
        worker -= self._less
        self.ask(ops.DropWorker(worker))

    @act(chance=(0, 2))
    def reset(self, chance: int) -> None:
        """Take everything from everybody, now and then."""
        if not chance:
            self.ask(ops.Reset())

    @act("can_look", weight=3)
    def rebuild(self) -> None:
        """Build the index anew from what it shows."""
        self.ask(ops.Rebuild())

    # -- misuse --------------------------------------------------------------------------------------------

    @act("can_refuse", worker=(1, _WORKERS), is_parent=(0, 1), seed=SEED)
    def store_badly(self, worker: int, is_parent: int, seed: int) -> None:
        """Store a block below itself, or twice."""
        worker -= self._less
        path = self._path(random.Random(seed))
        blocks = self._blocks(worker, path)
        parent = blocks[-1][0] if is_parent else None
        self.ask(ops.StoreBlocks(worker, blocks if is_parent else (*blocks, blocks[0]), parent))

    # -- what there is -------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether nothing has a number yet."""
        return not self._asked

    @property
    def has_blocks(self) -> bool:
        """Whether a worker has, or may have, a block."""
        return any(known.sure or known.unsure for known in self.model.workers.values())

    @property
    def has_gap(self) -> bool:
        """Whether a worker lacks a block above other blocks."""
        return bool(self._gaps())

    def _gaps(self) -> list[tuple[int, int]]:
        return [
            (worker, hash)
            for worker, known in sorted(self.model.workers.items())
            for hash in sorted(known.named)
            if not self.model.has(worker, hash) and any(True for _ in self.model.below(worker, hash))
        ]

    def _held(self, pick: int) -> tuple[int, int]:
        held = [
            (worker, hash)
            for worker, known in sorted(self.model.workers.items())
            for hash in sorted(known.sure | known.unsure)
        ]
        return held[pick % len(held)]

    def _held_path(self, pick: int) -> Path:
        return self._path_to(*self._held(pick))

    def _depth(self, worker: int, path: Path) -> int:
        """Return how many blocks of a sequence a worker has, from its front on."""
        hashes = [self._hash(worker, path[:depth]) for depth in range(1, len(path) + 1)]
        held = [self.model.has(worker, hash) for hash in hashes]
        return held.index(False) if False in held else len(path) - 1

    # -- names ---------------------------------------------------------------------------------------------

    def _path(self, source: random.Random) -> Path:
        tokens = range(1 - self._less, _TOKENS + 1 - self._less)
        return tuple(source.choices(tokens, k=source.randint(1, _LONGEST)))

    def _path_to(self, worker: int, hash: int) -> Path:
        """Return the sequence that a hash stands for."""
        tokens: list[int] = []
        parent: int | None = hash
        while parent is not None:
            parent, token = self.model.place(worker, parent)
            tokens.append(token)
        return tuple(reversed(tokens))

    def _hash(self, worker: int, path: Sequence[int]) -> int:
        """Return a number of its own for each sequence, and for each worker where they hash by themselves."""
        number = 0
        for token in path:
            number = number * (_TOKENS + 1) + token + self._less
        return 10 * (number - self._less) + (worker if self.model.has_own_hashes else 0)

    def _blocks(self, worker: int, path: Path, depth: int = 0) -> tuple[tuple[int, int], ...]:
        ends = range(depth + 1, len(path) + 1)
        return tuple((self._hash(worker, path[:end]), path[end - 1]) for end in ends)

    def _store(self, worker: int, path: Path, start: int, stop: int) -> None:
        path = path[:stop]
        parent = self._hash(worker, path[:start]) if start else None
        self._ask(ops.StoreBlocks(worker, self._blocks(worker, path, start), parent), path)

    def _remove(self, worker: int, hashes: Iterable[int]) -> None:
        hashes = tuple(hashes)
        paths = [self._path_to(worker, hash) for hash in hashes]
        self._ask(ops.RemoveBlocks(worker, hashes), *paths)

    def _ask(self, operation: ops.Operation, *paths: Path) -> None:
        self._asked = list(dict.fromkeys([*paths, *self._asked]))
        self.ask(operation)


def _is_below(path: Path, other: Path) -> bool:
    """Tell whether a sequence goes on where another one ends."""
    return len(path) > len(other) and path[: len(other)] == other
