"""The machine that drives a block index: workers' events, in and out of order, and searches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from pymllm.history import operations as ops
from pymllm.history.asked import dimensions_of
from pymllm.history.operations import Namespace
from pymllm.machines.acting import act
from pymllm.machines.pools import SEED, PoolMachine, malformed_calls
from pymllm.oracle.models.block_index import Event, IndexModel, Room

_WORKERS = 3
_TOKENS = 2
_LONGEST = 5
_MOST_SEARCHES = 8

_GROUPS = (0, 1)
_MEDIA = ("", "CPU")
_NAMESPACES: tuple[Namespace, ...] = (None, "salt", (None, "adapter"))
_APART = 1000
"""A number larger than the count of sequences in a namespace, to keep their hashes apart."""

Path = tuple[int, ...]
"""A sequence of blocks, as the tokens of each block."""

Asked = tuple[Namespace, Path]
"""A sequence to search for: its namespace and its path."""


class IndexMachine(PoolMachine):
    """A machine that drives an index of a few workers, whose sequences share their beginnings."""

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
        """Read the claims, and set the first group, medium and namespace."""
        self.model = self.judge.model
        self.can_look = "inspect" in self.capabilities
        self.can_hurry = "early_exit" in self.capabilities
        self.can_number = "event_numbers" in self.capabilities
        self._groups: Sequence[int] = _GROUPS[:1]
        self._media: Sequence[str] = _MEDIA[:1]
        self._namespaces: Sequence[Namespace] = _NAMESPACES[:1]
        self._less = 0  # by how much every number is smaller than usual
        self._is_numbered = False
        self._asked: list[Asked] = []  # sequences that events were about, the last ones first
        self._events: list[Event] = []  # that had a number, the last one last

    # -- looks ---------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Search for each sequence of recent events to its end, then inspect the whole index."""
        ends = (it for it in self._asked if not any(_is_below(other, it) for other in self._asked))
        for namespace, path in islice(ends, _MOST_SEARCHES // len(self._groups)):
            for group in self._groups:
                self._search(path, namespace, group)
        if len(self._namespaces) > 1:
            for _, path in self._asked[:1]:
                for namespace in self._namespaces:
                    self._search(path, namespace, 0)
        if self.can_look:
            self.do(ops.Inspect())

    def _search(self, path: Path, namespace: Namespace, group: int) -> None:
        self.do(ops.FindBlocks(path, False, namespace, group))
        if self.can_hurry:
            self.do(ops.FindBlocks(path, True, namespace, group))

    @act(weight=2, seed=SEED)
    def find(self, seed: int) -> None:
        """Search for a sequence twice; perhaps no worker has its blocks."""
        source = random.Random(seed)
        path = self._path(source)
        search = ops.FindBlocks(path, False, self._namespace(source), self._room(source).group)
        self.do(search)
        self.do(search)

    # -- events --------------------------------------------------------------------------------------------

    @act("is_new", weight=8)
    def count_from_zero(self) -> None:
        """Let the workers, tokens and hashes of this program begin at 0."""
        self._less = 1

    @act("can_begin_numbers", weight=16)
    def number_events(self) -> None:
        """Give the events of this program sequence numbers."""
        self._is_numbered = True

    @act("can_have_rooms", weight=16)
    def have_rooms(self) -> None:
        """Place the blocks of this program in several groups, media, or both."""
        self._groups = _GROUPS if "layer_groups" in self.capabilities else _GROUPS[:1]
        self._media = _MEDIA if "media" in self.capabilities else _MEDIA[:1]

    @act("can_have_namespaces", weight=16)
    def have_namespaces(self) -> None:
        """Use several namespaces for the sequences of this program."""
        self._namespaces = self._could_have

    @act(weight=8, worker=(1, _WORKERS), count=(1, _LONGEST), seed=SEED)
    def store(self, worker: int, count: int, seed: int) -> None:
        """Store the end of a sequence, below those of its blocks that the worker has."""
        worker -= self._less
        source = random.Random(seed)
        path = self._path(source)
        namespace, room = self._namespace(source), self._room(source)
        depth = self._depth(worker, path, namespace, room.group)
        self._store(worker, path, depth, depth + count, namespace, room)

    @act(weight=4, worker=(1, _WORKERS), depth=(0, _LONGEST - 1), count=(1, 2), seed=SEED)
    def store_anywhere(self, worker: int, depth: int, count: int, seed: int) -> None:
        """Store a part of a sequence that may be stored already, below a block that may be missing."""
        worker -= self._less
        source = random.Random(seed)
        path = self._path(source)
        namespace, room = self._namespace(source), self._room(source)
        depth %= len(path)
        self._store(worker, path, depth, depth + count, namespace, room)

    @act("has_blocks", weight=4, pick=(0, 30), worker=(1, _WORKERS))
    def copy(self, pick: int, worker: int) -> None:
        """Store a whole sequence that another worker has."""
        worker -= self._less
        owner, room, hash = self._held(pick)
        path, namespace = self._path_to(owner, hash), self.model.place(owner, hash).namespace
        self._store(worker, path, 0, len(path), namespace, room)

    @act("has_many_rooms", weight=4, pick=(0, 30), other=(0, 7), is_whole=(0, 1))
    def copy_elsewhere(self, pick: int, other: int, is_whole: int) -> None:
        """Store a block of a worker, or its whole path, in a second medium or group."""
        worker, _, hash = self._held(pick)
        path, namespace = self._path_to(worker, hash), self.model.place(worker, hash).namespace
        room = self._rooms[other % len(self._rooms)]
        self._store(worker, path, 0 if is_whole else len(path) - 1, len(path), namespace, room)

    @act("has_many_namespaces", weight=4, pick=(0, 30), other=(0, 7))
    def copy_to_namespace(self, pick: int, other: int) -> None:
        """Store the tokens of a worker's sequence in a second namespace."""
        worker, room, hash = self._held(pick)
        path = self._path_to(worker, hash)
        self._store(worker, path, 0, len(path), self._namespaces[other % len(self._namespaces)], room)

    @act("has_blocks", weight=8, pick=(0, 30), count=(1, 2), is_last=(0, 2))
    def remove(self, pick: int, count: int, is_last: int) -> None:
        """Remove blocks from the middle of a worker's sequence, or its last blocks, last first."""
        worker, room, hash = self._held(pick)
        hashes = [hash, *self.model.below(worker, hash, room.group)]
        self._remove(worker, hashes[::-1] if is_last else hashes[:count], room)

    @act("has_gap", weight=4, pick=(0, 30), count=(1, 3), is_rebuilt=(0, 2))
    def close_gap(self, pick: int, count: int, is_rebuilt: int) -> None:
        """Store a missing block above others again, with some of the blocks that follow."""
        worker, group, hash = self._gaps()[pick % len(self._gaps())]
        path, namespace = self._path_to(worker, hash), self.model.place(worker, hash).namespace
        below = self.model.below(worker, hash, group)
        tail = next((self._path_to(worker, each) for each in below), path)
        room = Room(group, self._media[pick % len(self._media)])
        self._store(worker, tail, len(path) - 1, len(path) - 1 + count, namespace, room)
        if is_rebuilt == 2 and self.can_look:
            self.ask(ops.Rebuild())

    @act("has_gap", weight=5, pick=(0, 30), is_removed=(0, 1), token=(1, _TOKENS))
    def change_what_is_cut_off(self, pick: int, is_removed: int, token: int) -> None:
        """Remove a cut-off block, or store a block below it."""
        worker, group, gap = self._gaps()[pick % len(self._gaps())]
        below = list(self.model.below(worker, gap, group))
        hash = below[pick % len(below)]
        room = Room(group, self._media[pick % len(self._media)])
        if is_removed:
            self._remove(worker, [hash], room)
        else:
            path = (*self._path_to(worker, hash), token - self._less)
            namespace = self.model.place(worker, hash).namespace
            self._store(worker, path, len(path) - 1, len(path), namespace, room)

    @act(weight=2, worker=(1, _WORKERS), count=(1, 2), seed=SEED)
    def remove_anything(self, worker: int, count: int, seed: int) -> None:
        """Remove blocks, some of which the worker may lack."""
        worker -= self._less
        source = random.Random(seed)
        paths = [self._path(source) for _ in range(count)]
        namespace, (group, medium) = self._namespace(source), self._room(source)
        hashes = tuple(self._hash(worker, path, namespace) for path in paths)
        removal = ops.RemoveBlocks(worker, hashes, group, medium, self._number(worker))
        self._ask(removal, *((namespace, path) for path in paths))

    @act(worker=(1, _WORKERS))
    def clear(self, worker: int) -> None:
        """Clear a worker of all blocks."""
        worker -= self._less
        self._ask(ops.ClearWorker(worker, self._number(worker)))

    @act(worker=(1, _WORKERS))
    def drop(self, worker: int) -> None:
        """Drop a worker from the index."""
        worker -= self._less
        self.ask(ops.DropWorker(worker))

    @act(chance=(0, 2))
    def reset(self, chance: int) -> None:
        """Reset the whole index, in some draws."""
        if not chance:
            self.ask(ops.Reset())

    @act("can_look", weight=3)
    def rebuild(self) -> None:
        """Rebuild the index from the blocks that it shows."""
        self.ask(ops.Rebuild())

    # -- numbers -------------------------------------------------------------------------------------------

    @act("has_events", weight=6, pick=(0, 7), is_rebuilt=(0, 2))
    def repeat(self, pick: int, is_rebuilt: int) -> None:
        """Send a recent event a second time, perhaps to a rebuilt index."""
        if is_rebuilt == 2 and self.can_look:
            self.ask(ops.Rebuild())
        self.ask(self._events[-1 - pick % len(self._events)])

    @act("has_events", weight=4, pick=(0, 7), missing=(1, 3))
    def leave_out(self, pick: int, missing: int) -> None:
        """Send an event with a sequence number that leaves a gap."""
        event = self._events[-1 - pick % len(self._events)]
        self.ask(replace(event, number=self.model.next_number(event.worker) + missing))

    @act("has_events", weight=4, pick=(0, 7))
    def begin_anew(self, pick: int) -> None:
        """Send an event with number 0, as the first event of a restarted worker."""
        self.ask(replace(self._events[-1 - pick % len(self._events)], number=0))

    # -- misuse --------------------------------------------------------------------------------------------

    @act("can_refuse", worker=(1, _WORKERS), is_parent=(0, 1), seed=SEED)
    def store_badly(self, worker: int, is_parent: int, seed: int) -> None:
        """Store a block below itself, or the same block twice."""
        worker -= self._less
        path = self._path(random.Random(seed))
        blocks = self._blocks(worker, path, None)
        parent = blocks[-1][0] if is_parent else None
        self.ask(ops.StoreBlocks(worker, blocks if is_parent else (*blocks, blocks[0]), parent))

    # -- what there is -------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether no event has been sent yet."""
        return not self._asked

    @property
    def can_begin_numbers(self) -> bool:
        """Whether numbering of events may begin: the adapter claims numbers, and no event has been sent."""
        return self.can_number and self.is_new and not self._is_numbered

    @property
    def can_have_rooms(self) -> bool:
        """Whether several groups or media may be used: claimed by the adapter, and before the first event."""
        could = not self.capabilities.isdisjoint(("layer_groups", "media"))
        return could and self.is_new and len(self._rooms) == 1

    @property
    def can_have_namespaces(self) -> bool:
        """Whether several namespaces may be used: the adapter claims them, and no event has been sent."""
        return self.is_new and len(self._could_have) > len(self._namespaces)

    @property
    def _rooms(self) -> list[Room]:
        return [Room(group, medium) for group in self._groups for medium in self._media]

    @property
    def _could_have(self) -> tuple[Namespace, ...]:
        return tuple(it for it in _NAMESPACES if self.capabilities.issuperset(dimensions_of(it)))

    @property
    def has_events(self) -> bool:
        """Whether any event with a sequence number has been sent."""
        return bool(self._events)

    @property
    def has_blocks(self) -> bool:
        """Whether any worker has, or may have, a block."""
        return any(known.has_blocks for known in self.model.workers.values())

    @property
    def has_many_rooms(self) -> bool:
        """Whether blocks lie in several groups or media, and a worker has a block."""
        return len(self._rooms) > 1 and self.has_blocks

    @property
    def has_many_namespaces(self) -> bool:
        """Whether sequences have several namespaces, and a worker has a block."""
        return len(self._namespaces) > 1 and self.has_blocks

    @property
    def has_gap(self) -> bool:
        """Whether a worker lacks a block above other blocks."""
        return bool(self._gaps())

    def _gaps(self) -> list[tuple[int, int, int]]:
        return [
            (worker, group, hash)
            for worker, known in sorted(self.model.workers.items())
            for group, named in sorted(known.named.items())
            for hash in sorted(named)
            if not known.has(hash, group) and any(True for _ in self.model.below(worker, hash, group))
        ]

    def _held(self, pick: int) -> tuple[int, Room, int]:
        held = [
            (worker, room, hash)
            for worker, known in sorted(self.model.workers.items())
            for room, blocks in sorted(known.rooms.items())
            for hash in sorted(blocks)
        ]
        return held[pick % len(held)]

    def _depth(self, worker: int, path: Path, namespace: Namespace, group: int) -> int:
        """Return how many blocks of a sequence a worker has, from its front on."""
        hashes = [self._hash(worker, path[:depth], namespace) for depth in range(1, len(path) + 1)]
        held = [self.model.has(worker, hash, group) for hash in hashes]
        return held.index(False) if False in held else len(path) - 1

    # -- names ---------------------------------------------------------------------------------------------

    def _path(self, source: random.Random) -> Path:
        tokens = range(1 - self._less, _TOKENS + 1 - self._less)
        return tuple(source.choices(tokens, k=source.randint(1, _LONGEST)))

    def _namespace(self, source: random.Random) -> Namespace:
        return source.choice(self._namespaces)

    def _room(self, source: random.Random) -> Room:
        return source.choice(self._rooms)

    def _number(self, worker: int) -> int | None:
        return self.model.next_number(worker) if self._is_numbered else None

    def _path_to(self, worker: int, hash: int) -> Path:
        """Return the sequence that ends with the block of a hash."""
        tokens: list[int] = []
        parent: int | None = hash
        while parent is not None:
            parent, token, _ = self.model.place(worker, parent)
            tokens.append(token)
        return tuple(reversed(tokens))

    def _hash(self, worker: int, path: Sequence[int], namespace: Namespace) -> int:
        """Return a hash that is unique to a sequence, and to a worker where workers hash differently."""
        number = 0
        for token in path:
            number = number * (_TOKENS + 1) + token + self._less
        number += _APART * self._namespaces.index(namespace)
        return 10 * (number - self._less) + (worker if self.model.has_own_hashes else 0)

    def _blocks(
        self, worker: int, path: Path, namespace: Namespace, depth: int = 0
    ) -> tuple[tuple[int, int], ...]:
        ends = range(depth + 1, len(path) + 1)
        return tuple((self._hash(worker, path[:end], namespace), path[end - 1]) for end in ends)

    def _store(
        self, worker: int, path: Path, start: int, stop: int, namespace: Namespace, room: Room
    ) -> None:
        path = path[:stop]
        parent = self._hash(worker, path[:start], namespace) if start else None
        blocks = self._blocks(worker, path, namespace, start)
        number = self._number(worker)
        self._ask(ops.StoreBlocks(worker, blocks, parent, *room, namespace, number), (namespace, path))

    def _remove(self, worker: int, hashes: Iterable[int], room: Room) -> None:
        hashes = tuple(hashes)
        sequences = [
            (self.model.place(worker, hash).namespace, self._path_to(worker, hash)) for hash in hashes
        ]
        self._ask(ops.RemoveBlocks(worker, hashes, *room, self._number(worker)), *sequences)

    def _ask(self, event: Event, *sequences: Asked) -> None:
        if event.number is not None:
            self._events.append(event)
        self._asked = list(dict.fromkeys([*sequences, *self._asked]))
        self.ask(event)


def _is_below(sequence: Asked, other: Asked) -> bool:
    """Tell whether a sequence extends another one."""
    (space, path), (other_space, start) = sequence, other
    return space == other_space and len(path) > len(start) and path[: len(start)] == start
