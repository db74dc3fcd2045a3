"""The specified index of each worker's blocks: the state after its events, and what a search may find.

What a worker has is what its events have stored and not removed. A block below one that was removed is of
no use for the time being, and an index may forget it: it is *unsure* until it is stored again, or found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    ClearWorker,
    DropWorker,
    FindBlocks,
    Rebuild,
    RemoveBlocks,
    Reset,
    StoreBlocks,
)
from pymllm.history.outcomes import IndexedBlock, Leading, NotThere, Outcome
from pymllm.oracle.models.kind_model import DONE, KindModel, Misuse, Seen

ORPHANED, MISSING = "orphaned", "missing"
"""What a store came to whose parent the index need not know; a removal that names what it need not know."""

_LIMIT = 2**63
_NAMED_TWICE = Misuse("a hash that is stored twice in one event is refused", "X1", ("ValueError",))
_OWN_PARENT = Misuse("a block that is its own parent is refused", "X1", ("ValueError",))


class Place(NamedTuple):
    """The block that a hash stands for: its own tokens below the hash of its parent."""

    parent: int | None
    tokens: int


@dataclass(slots=True)
class Worker:
    """One worker's blocks according to its events, and the law that a wrong answer about them breaks."""

    sure: set[int] = field(default_factory=set)  # it has them, and an index must know
    unsure: set[int] = field(default_factory=set)  # it has them, and an index may have forgotten
    named: set[int] = field(default_factory=set)  # whatever it was told to have at any time
    law: str = "I1"  # whose law it is if something is wrong with it now
    touched: frozenset[int] | None = frozenset()  # the hashes that this is about; ``None``: all of them


class Bounds(NamedTuple):
    """The bounds on the number of leading blocks in an answer."""

    least: int
    most: int


@dataclass(slots=True, kw_only=True)
class SeenStore(Seen):
    """A store: hashes that are new, and whether one of them stands above something that was cut off."""

    fresh: Sequence[int]
    is_joined: bool


@dataclass(slots=True, kw_only=True)
class SeenRemoval(Seen):
    """A removal: the hashes that the worker has, each once, and whether something stands below one."""

    there: Sequence[int]
    is_inner: bool


@dataclass(slots=True, kw_only=True)
class SeenSearch(Seen):
    """A search: for each worker that has leading blocks the bounds, and the hashes of the way."""

    told: Mapping[int, int]
    bounds: Mapping[int, Bounds]
    paths: Mapping[int, Sequence[int]]


class IndexModel(KindModel):
    """Follows an index by the events that it is told.

    The configuration may have ``own_hashes``: whether workers have hashes of their own for equal sequences.
    """

    KIND: ClassVar[str] = "index"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.has_own_hashes = header.config.get("own_hashes") is True
        self.is_exact = "exact_removals" in self.claims
        self.places: dict[tuple[int, int], Place] = {}
        self._children: dict[tuple[int, int | None], dict[int, int]] = {}
        self.workers: dict[int, Worker] = {}
        self._law_of_strangers = "I1"
        self.answers: dict[FindBlocks, object] = {}  # of searches since the last event

    # -- what is known -------------------------------------------------------------------------------------

    def space(self, worker: int) -> int:
        """Return the space of a worker's hashes: its own, or the space that all workers share."""
        return worker if self.has_own_hashes else -1

    def child(self, worker: int, parent: int | None, tokens: int) -> int | None:
        """Return the hash of the block at a place, if an event has ever named the block."""
        return self._children.get((self.space(worker), parent), {}).get(tokens)

    def place(self, worker: int, hash: int) -> Place:
        """Return the place of a hash that was named."""
        return self.places[self.space(worker), hash]

    def law_of(self, worker: int) -> str:
        """Return the law that is broken where a search gives a wrong answer about a worker."""
        return self.workers[worker].law if worker in self.workers else self._law_of_strangers

    def law_of_shown(self, block: IndexedBlock) -> str:
        """Return the law that a block wrongly shown or missing breaks; nothing where a search would tell."""
        law = self.law_of(block.worker)
        if not self.is_cut_off(block.worker, block.hash):
            return law if law == "X1" else ""
        is_forgotten = law == "I5" and self.has(block.worker, block.hash)
        return "I6" if is_forgotten else law

    def tested_by_look(self, shown: Iterable[IndexedBlock]) -> tuple[str, ...]:
        """Return the laws that a look has tested, with I6 for blocks which another index may forget."""
        is_kept = self.is_exact and any(self.is_cut_off(block.worker, block.hash) for block in shown)
        return ("I6", "I9") if is_kept else ("I9",)

    def has(self, worker: int, hash: int) -> bool:
        """Tell whether a worker has a block, by its events."""
        known = self.workers.get(worker)
        return known is not None and (hash in known.sure or hash in known.unsure)

    def is_sure(self, worker: int, hash: int) -> bool:
        """Tell whether an index must know that a worker has a block."""
        return worker in self.workers and hash in self.workers[worker].sure

    def is_cut_off(self, worker: int, hash: int) -> bool:
        """Tell whether a worker lacks something that stands above a block."""
        place = self.places.get((self.space(worker), hash))
        while place is not None and place.parent is not None:
            if not self.has(worker, place.parent):
                return True
            place = self.place(worker, place.parent)
        return False

    def below(self, worker: int, hash: int) -> Iterator[int]:
        """Yield the blocks that a worker has below a block, at any depth, with or without gaps."""
        for child in self._children.get((self.space(worker), hash), {}).values():
            if self.has(worker, child):
                yield child
            yield from self.below(worker, child)

    # -- events --------------------------------------------------------------------------------------------

    def read_store_blocks(self, operation: StoreBlocks, outcome: Outcome) -> Seen:
        """Read the blocks that a worker stores; none are stored below a parent that the worker lacks."""
        worker, parent = operation.worker, operation.parent
        hashes = [hash for hash, _ in operation.blocks]
        _demand_numbers(worker, *hashes, *(tokens for _, tokens in operation.blocks))
        _demand_numbers(*(() if parent is None else (parent,)))
        if parent in hashes:
            return self.refused(outcome, _OWN_PARENT)
        if len(hashes) != len({*hashes}):
            return self.refused(outcome, _NAMED_TWICE)
        self._name(operation)
        fresh = [hash for hash in hashes if not self.has(worker, hash)]
        is_joined = any(True for hash in fresh for _ in self.below(worker, hash))
        fate = DONE if parent is None or self.is_sure(worker, parent) else ORPHANED
        return SeenStore(outcome.result, fate, fresh=fresh, is_joined=is_joined)

    def _name(self, operation: StoreBlocks) -> None:
        """Let each hash stand for its place; raise `ProgramError` if the hash or the place is taken."""
        space, parent = self.space(operation.worker), operation.parent
        named = {}
        for hash, tokens in operation.blocks:
            place = named[hash] = Place(parent, tokens)
            known = self.places.get((space, hash), place)
            other = self._children.get((space, parent), {}).get(tokens, hash)
            if known != place or other != hash:
                raise ProgramError(
                    f"hash {hash} is {place}, and {known if known != place else f'{other} is, too'}; "
                    "a hash stands for one sequence, and a sequence has one hash"
                )
            parent = hash
        for hash, place in named.items():
            self.places[space, hash] = place
            self._children.setdefault((space, place.parent), {})[place.tokens] = hash

    def follow_store_blocks(self, step: int, operation: StoreBlocks, seen: SeenStore) -> None:
        """Let the worker have the blocks, unless nothing was stored."""
        worker = self.workers.setdefault(operation.worker, Worker())
        parent, hashes = operation.parent, [hash for hash, _ in operation.blocks]
        worker.named.update(hashes)
        is_known = parent is None or self.has(operation.worker, parent)
        law = "I1" if seen.fresh else "I4"
        if not is_known or seen.result == NotThere():
            law = "I3"
        elif seen.fate == ORPHANED:  # whether it was taken, or ignored, is seen later
            worker.unsure.update(hash for hash in hashes if hash not in worker.sure)
        else:
            worker.sure.update(hashes)
            worker.unsure.difference_update(hashes)
            if seen.is_joined and self.is_exact:
                law = "I6"
        self._tell(operation.worker, law, hashes)

    def read_remove_blocks(self, operation: RemoveBlocks, outcome: Outcome) -> Seen:
        """Read the blocks that a worker removes, including blocks that the worker may not have."""
        worker, hashes = operation.worker, operation.hashes
        _demand_numbers(worker, *hashes)
        there = [hash for hash in dict.fromkeys(hashes) if self.has(worker, hash)]
        is_whole = len(there) == len(hashes) and all(self.is_sure(worker, hash) for hash in hashes)
        is_inner = any(below not in there for hash in there for below in self.below(worker, hash))
        return SeenRemoval(outcome.result, DONE if is_whole else MISSING, there=there, is_inner=is_inner)

    def follow_remove_blocks(self, step: int, operation: RemoveBlocks, seen: SeenRemoval) -> None:
        """Take the blocks from the worker; the blocks below them are cut off."""
        worker = self.workers.setdefault(operation.worker, Worker())
        for hash in seen.there:
            worker.sure.discard(hash)
            worker.unsure.discard(hash)
            if not self.is_exact:
                cut_off = worker.sure.intersection(self.below(operation.worker, hash))
                worker.sure -= cut_off
                worker.unsure |= cut_off
        hashes = (below for hash in seen.there for below in self.below(operation.worker, hash))
        self._tell(operation.worker, "I5" if seen.there else "I4", {*operation.hashes, *seen.there, *hashes})

    def read_clear_worker(self, operation: ClearWorker, outcome: Outcome) -> Seen:
        """Read which worker is empty now."""
        _demand_numbers(operation.worker)
        return Seen(outcome.result)

    def follow_clear_worker(self, step: int, operation: ClearWorker | DropWorker, seen: Seen) -> None:
        """Take everything from the worker."""
        worker = self.workers.setdefault(operation.worker, Worker())
        worker.sure, worker.unsure = set(), set()
        self._tell(operation.worker, "I7", None)

    read_drop_worker, follow_drop_worker = read_clear_worker, follow_clear_worker

    def _tell(self, number: int, law: str, hashes: Iterable[int] | None) -> None:
        """Note the laws that wrong answers about the worker, and about all others, break from now on."""
        self.answers, self._law_of_strangers = {}, "I1"
        for other in self.workers.values():
            other.law, other.touched = "I2", None
        worker = self.workers[number]
        worker.law, worker.touched = law, None if hashes is None else frozenset(hashes)

    def suspect(self, law: str) -> None:
        """Suspect an operation in any wrong answer about any worker."""
        self.answers, self._law_of_strangers = {}, law
        for worker in self.workers.values():
            worker.law, worker.touched = law, None

    def follow_rebuild(self, step: int, operation: Rebuild, seen: Seen) -> None:
        """Have the same in another index."""
        self.suspect("I9")

    def follow_reset(self, step: int, operation: Reset, seen: Seen) -> None:
        """Take everything from every worker."""
        for worker in self.workers.values():
            worker.sure, worker.unsure = set(), set()
        self.suspect("X7")

    # -- looks ---------------------------------------------------------------------------------------------

    def read_find_blocks(self, operation: FindBlocks, outcome: Outcome) -> Seen:
        """Read the workers that were found with their numbers of blocks, and the bounds of these numbers."""
        _demand_numbers(*operation.tokens)
        told = outcome.result.workers if isinstance(outcome.result, Leading) else ()
        paths = {worker: self._path(worker, operation.tokens) for worker in self.workers}
        bounds = {worker: self._bounds(worker, path) for worker, path in paths.items()}
        found = {worker: each for worker, each in bounds.items() if each.most}
        return SeenSearch(outcome.result, told=dict(told), bounds=found, paths=paths)

    def _path(self, worker: int, tokens: Iterable[int]) -> list[int]:
        """Return the hashes along a sequence, as far as they were ever named."""
        path: list[int] = []
        for each in tokens:
            hash = self.child(worker, path[-1] if path else None, each)
            if hash is None:
                break
            path.append(hash)
        return path

    def _bounds(self, worker: int, path: Sequence[int]) -> Bounds:
        known = self.workers[worker]
        least = next((at for at, hash in enumerate(path) if hash not in known.sure), len(path))
        most = next((at for at, hash in enumerate(path) if not self.has(worker, hash)), len(path))
        return Bounds(least, most)

    def follow_find_blocks(self, step: int, operation: FindBlocks, seen: SeenSearch) -> None:
        """Be sure of the blocks found and the first block missing: no index changes its mind by itself."""
        self.answers[operation] = seen.result
        for worker, (_, most) in seen.bounds.items():
            known, path, found = self.workers[worker], seen.paths[worker], seen.told.get(worker, 0)
            known.sure.update(path[:found])
            known.unsure.difference_update(path[:found])
            if found < most and not operation.early:
                known.unsure.discard(path[found])

    def expected(self) -> Iterator[tuple[IndexedBlock, bool]]:
        """Yield every block of every worker as it is to be shown, and whether it must be."""
        for number, worker in self.workers.items():
            for hash in worker.sure | worker.unsure:
                parent, tokens = self.place(number, hash)
                yield IndexedBlock(number, hash, tokens, parent), hash in worker.sure


def _demand_numbers(*numbers: int) -> None:
    """Refuse a program with workers or hashes that are no numbers of 63 bits."""
    for number in numbers:
        if not 0 <= number < _LIMIT:
            raise ProgramError(f"{number} is neither a worker nor a hash; both are 0 to 2**63 - 1")
