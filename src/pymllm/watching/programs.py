"""Programs for indexes made from servers' event messages, with searches after the events.

A program names hashes and tokens by small numbers, in the order in which they come. Behind each event stand
searches for the sequences that it was about, so that an index tells after every event what it makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pymllm.history import operations as ops
from pymllm.history.files import Header, Step, dump_header, dump_step
from pymllm.watching.events import Cleared, Event, Hash, Message, Removed, Stored

_Numbered = ops.StoreBlocks | ops.RemoveBlocks | ops.ClearWorker

RECENT = 4096
"""The number of messages of each producer that may be repeated."""

ADAPTER = "index-events"
"""The adapter of the index that a program is for, unless it is plain."""

PLAIN = "index-dict"
"""The adapter of the index that a plain program is for."""

_MOST_SEARCHES = 4
"""The greatest number of searches after one event."""

_LONGEST = 4096
"""The greatest number of blocks in a sequence to search for."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block in a program: the numbers of its parent and of its tokens, and its namespace."""

    parent: int | None
    tokens: int
    namespace: str | None


@dataclass(slots=True)
class _Worker:
    """A producer, with its number in the program and the numbers of its messages and events."""

    number: int
    last_message: int | None = None
    next_event: int = 0
    told: dict[int, int] = field(default_factory=dict)  # by message: the number of its first event
    media: dict[tuple[int, int], dict[str, None]] = field(default_factory=dict)  # by group and hash


class ProgramWriter:
    """A writer that makes a program from messages.

    Parameters
    ----------
    plain : bool
        Whether to leave out what not every index claims: the numbers of events and all groups but one of full
        attention; blocks of all media count as one, and namespaces are a part of the tokens.

    Attributes
    ----------
    left_out : int
        Events that a program cannot tell: of other groups, of blocks that no event has placed.
    """

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self.left_out = 0
        self._steps = 0
        self._workers: dict[str, _Worker] = {}
        self._hashes: dict[Hash, int] = {}
        self._contents: dict[Any, int] = {}
        self._blocks: dict[int, _Block] = {}
        self._taken: set[_Block] = set()
        self._last_child: dict[int, int] = {}
        self._group: int | None = None

    @property
    def steps(self) -> int:
        """The number of steps made so far."""
        return self._steps

    def header(self, source: str) -> str:
        """Return the first line of the program's file."""
        counted = {} if self.plain else {"counted": True}
        adapter = PLAIN if self.plain else ADAPTER
        header = Header(adapter, "index", {"own_hashes": False, **counted}, note=f"the events of {source}")
        return dump_header(header)

    def lines(self, message: Message) -> Iterator[str]:
        """Yield a line for each operation that a message leads to."""
        for operation in self.operations(message):
            self._steps += 1
            yield dump_step(Step(self._steps, operation))

    def operations(self, message: Message) -> Iterator[ops.Operation]:
        """Yield the operations that a message leads to: its events, and searches."""
        worker = self._workers.setdefault(message.producer, _Worker(len(self._workers)))
        last = worker.last_message
        is_repeated = last is not None and 0 < message.number <= last
        if is_repeated and (self.plain or message.number not in worker.told):
            self.left_out += len(message.events)
            return
        if is_repeated:
            number: int | None = worker.told[message.number]
        else:
            yield from self._begin(worker, message.number)
            number = None if self.plain else worker.next_event
        for event in message.events:
            if isinstance(event, Stored) and self._is_wanted(event.place.group, event.has_window):
                self._place(event)
        for event in message.events:
            made = [*self._of_event(worker, event)]
            self.left_out += not made
            for operation in made:
                yield replace(operation, number=number)
                number = None if number is None else number + 1
                yield from [*dict.fromkeys(self._searches(operation))][-_MOST_SEARCHES:]
        if number is not None and not is_repeated:
            worker.next_event = number

    def _begin(self, worker: _Worker, number: int) -> Iterator[ops.Operation]:
        """Start on a message that arrives for the first time.

        Behind a gap nothing of before is certain, and the worker is a new one; with number 0 it is one, too.
        """
        last, worker.last_message = worker.last_message, number
        if last is not None and number != last + 1:
            worker.media.clear()
            worker.told.clear()
            if number or self.plain:
                yield ops.DropWorker(worker.number)
            worker.next_event = 0
        worker.told[number] = worker.next_event
        if len(worker.told) > RECENT:
            del worker.told[next(iter(worker.told))]

    # -- events --------------------------------------------------------------------------------------------

    def _is_wanted(self, group: int, has_window: bool) -> bool:
        """Tell whether a program includes events of a group; a plain one has one group without a window."""
        if not self.plain:
            return True
        if self._group is None and not has_window:
            self._group = group
        return group == self._group

    def _of_event(self, worker: _Worker, event: Event) -> Iterator[_Numbered]:
        if isinstance(event, Cleared):
            worker.media.clear()
            yield ops.ClearWorker(worker.number)
        elif not self._is_wanted(event.place.group, True):
            return
        elif isinstance(event, Stored):
            yield from self._stores(worker, event)
        else:
            yield from self._removals(worker, event)

    def _stores(self, worker: _Worker, event: Stored) -> Iterator[_Numbered]:
        """Yield stores of consecutive blocks, below the parents that were first reported for them."""
        group, medium = self._room(event.place.group, event.place.medium)
        chain: list[int] = []
        for hash in map(self._number, event.hashes):
            block = self._blocks.get(hash)
            if block is None:
                self.left_out += 1  # its place was never told
                continue
            if chain and block.parent != chain[-1]:
                yield self._store(worker, chain, group, medium)
                chain = []
            chain.append(hash)
            worker.media.setdefault((group, hash), {})[medium] = None
        if chain:
            yield self._store(worker, chain, group, medium)

    def _store(self, worker: _Worker, chain: Sequence[int], group: int, medium: str) -> _Numbered:
        first = self._blocks[chain[0]]
        blocks = tuple((hash, self._blocks[hash].tokens) for hash in chain)
        return ops.StoreBlocks(worker.number, blocks, first.parent, group, medium, first.namespace)

    def _removals(self, worker: _Worker, event: Removed) -> Iterator[_Numbered]:
        """Yield a removal for each medium: the one that the event names, or those where a block is stored."""
        by_medium: dict[str, list[int]] = {}
        group, named = self._room(event.place.group, event.place.medium)
        for hash in map(self._number, event.hashes):
            media = worker.media.get((group, hash), {})
            medium = named if named or self.plain else next(iter(media), "")
            media.pop(medium, None)
            by_medium.setdefault(medium, []).append(hash)
        for medium, hashes in by_medium.items():
            yield ops.RemoveBlocks(worker.number, tuple(hashes), group, medium)

    def _room(self, group: int, medium: str) -> tuple[int, str]:
        return (0, "") if self.plain else (group, medium)

    # -- names ---------------------------------------------------------------------------------------------

    def _number(self, hash: Hash) -> int:
        return self._hashes.setdefault(hash, len(self._hashes) + 1)

    def _place(self, event: Stored) -> None:
        """Work out the parents of unknown blocks, if tokens or keys show them."""
        parent = None if event.parent is None else self._number(event.parent)
        above = None if parent is None else self._blocks.get(parent)
        namespace = None if above is None else above.namespace
        size, tokens = event.block_size, event.tokens
        if tokens is None and not any(event.keys):
            return
        if tokens is not None and len(tokens) != size * len(event.hashes):
            return
        for at, hash in enumerate(map(self._number, event.hashes)):
            key = event.keys[at].strip() if at < len(event.keys) else ""
            own = None if tokens is None else tokens[at * size : (at + 1) * size]
            if parent is None and own is not None and not self.plain:
                namespace, key = key or None, ""
            if hash not in self._blocks and not self._is_above(hash, parent):
                content = self._contents.setdefault((own, key), len(self._contents) + 1)
                block = _Block(parent, content, namespace)
                if block in self._taken:  # another hash of equal tokens (W6)
                    content = self._contents.setdefault(hash, len(self._contents) + 1)
                    block = _Block(parent, content, namespace)
                self._blocks[hash] = block
                self._taken.add(block)
                if parent is not None:
                    self._last_child[parent] = hash
            parent = hash

    def _is_above(self, hash: int, below: int | None) -> bool:
        """Tell whether a block would be its own ancestor."""
        each = below
        while each is not None and each != hash:
            if hash not in self._last_child:  # nothing stands below it
                return False
            block = self._blocks.get(each)
            each = None if block is None else block.parent
        return each == hash

    # -- searches ------------------------------------------------------------------------------------------

    def _searches(self, operation: _Numbered) -> Iterator[ops.FindBlocks]:
        """Yield searches for the sequences of an event, each to its end."""
        if isinstance(operation, ops.ClearWorker):
            return
        if isinstance(operation, ops.StoreBlocks):
            hashes: Sequence[int] = (operation.blocks[-1][0],)
        else:
            hashes = operation.hashes
        for hash in hashes:
            path = self._path_through(hash)
            if path:
                tokens = tuple(self._blocks[each].tokens for each in path)
                yield ops.FindBlocks(tokens, False, self._blocks[hash].namespace, operation.group)

    def _path_through(self, hash: int) -> list[int]:
        """Return a sequence through a block, from beginning to end; empty if a part is unknown."""
        path: list[int] = []
        each: int | None = hash
        while each is not None:
            block = self._blocks.get(each)
            if block is None or len(path) == _LONGEST:
                return []
            path.append(each)
            each = block.parent
        path.reverse()
        while path[-1] in self._last_child and len(path) < _LONGEST:
            path.append(self._last_child[path[-1]])
        return path
