"""The model of an index of each worker's blocks: its state after events, and the permitted search results.

What a worker has is what its events have stored and not removed. A block below one that was removed is of
no use for the time being, and an index may forget it: it is *unsure* until it is stored again, or found. So
of each block there are two counts of copies: those that an index must know of, and those that there may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from pymllm.errors import ProgramError
from pymllm.history.asked import needs_of
from pymllm.history.files import Header
from pymllm.history.operations import (
    ClearWorker,
    DropWorker,
    FindBlocks,
    Namespace,
    Operation,
    Rebuild,
    RemoveBlocks,
    Reset,
    StoreBlocks,
)
from pymllm.history.outcomes import IndexedBlock, Leading, NotThere, Outcome
from pymllm.oracle.models.kind_model import DONE, KindModel, Misuse, Seen

ORPHANED, MISSING = "orphaned", "missing"
"""Results of events about unknown blocks: a store below an unknown parent, a removal of unknown blocks."""

REPEATED, EARLY = "repeated", "early"
"""Results of events with wrong numbers: one that was reported before, and one after a gap."""

_LIMIT = 2**63
_NAMED_TWICE = Misuse("a hash that is stored twice in one event is refused", "X1", ("ValueError",))
_OWN_PARENT = Misuse("a block that is its own parent is refused", "X1", ("ValueError",))

Event = StoreBlocks | RemoveBlocks | ClearWorker
"""An event from a worker, which may carry a sequence number."""

_FORM_CLAIMS = ("layer_groups", "media", "event_numbers", "extra_key", "lora")

_LASTING = frozenset({"I14", "I15", "I16", "X1"})
"""Laws of events that leave nothing of a worker's blocks, and so of any wrong result about them later."""


class Place(NamedTuple):
    """The block behind a hash: its own tokens below the hash of its parent, in a namespace."""

    parent: int | None
    tokens: int
    namespace: Namespace = None


class Room(NamedTuple):
    """The location of blocks in an index: a worker, a group and a medium."""

    group: int
    medium: str


class Bounds(NamedTuple):
    """The least and greatest permitted number of leading blocks in a search result, or of copies."""

    least: int
    most: int


_NONE = Bounds(0, 0)


class Scope(NamedTuple):
    """The sequences that an event was about; searches of other sequences cannot show its effect."""

    group: int
    namespace: Namespace | None
    has_namespace: bool  # a removal names none


@dataclass(slots=True)
class Worker:
    """The blocks of a worker according to its events, and the law that a wrong result about them breaks."""

    rooms: dict[Room, dict[int, Bounds]] = field(default_factory=dict)  # copies by hash, none without any
    named: dict[int, set[int]] = field(default_factory=dict)  # by group: whatever it was told to have
    number: int | None = None  # of its last event
    law: str = "I1"  # whose law it is if something is wrong with it now
    touched: frozenset[int] | None = frozenset()  # the hashes that this is about; ``None``: all of them
    scope: Scope | None = None  # the sequences that this is about; ``None``: all of them

    def of_group(self, group: int) -> Iterator[dict[int, Bounds]]:
        """Yield the blocks of a group in each medium."""
        return (blocks for room, blocks in self.rooms.items() if room.group == group)

    def has(self, hash: int, group: int = 0) -> bool:
        """Tell whether the worker has a block of a group in any medium."""
        return any(hash in blocks for blocks in self.of_group(group))

    def is_sure(self, hash: int, group: int = 0) -> bool:
        """Tell whether an index must know that the worker has a block of a group, rather than may know."""
        return any(blocks.get(hash, _NONE).least > 0 for blocks in self.of_group(group))

    @property
    def has_blocks(self) -> bool:
        """Whether the worker has any block."""
        return any(self.rooms.values())


@dataclass(slots=True, kw_only=True)
class SeenEvent(Seen):
    """An event by its number: the number that its worker must send next, and whether numbering restarts."""

    next: int = 0
    is_anew: bool = False


@dataclass(slots=True, kw_only=True)
class SeenStore(SeenEvent):
    """A store event: its new hashes, and whether any of them has a cut-off ancestor."""

    fresh: Sequence[int] = ()
    is_joined: bool = False


@dataclass(slots=True, kw_only=True)
class SeenRemoval(SeenEvent):
    """A removal event: the hashes with a copy there, the remaining copies, and whether blocks stand below.

    ``left`` are hashes of which a copy is left in this medium, ``elsewhere`` those that lie in another one.
    """

    there: Sequence[int] = ()
    left: Sequence[int] = ()
    elsewhere: Sequence[int] = ()
    is_inner: bool = False


@dataclass(slots=True, kw_only=True)
class SeenSearch(Seen):
    """A search result: the permitted bounds for each worker, and the hashes along the sequence."""

    told: Mapping[int, int]
    bounds: Mapping[int, Bounds]
    paths: Mapping[int, Sequence[int]]
    strange: frozenset[int]  # workers that have the first block in another namespace


class IndexModel(KindModel):
    """The model of an index of blocks, updated by the events that the index receives.

    The configuration may have ``own_hashes``: whether workers have hashes of their own for equal sequences.
    """

    KIND: ClassVar[str] = "index"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.has_own_hashes = header.config.get("own_hashes") is True
        self.is_exact = "exact_removals" in self.claims
        self.is_counted = "counts_copies" in self.claims
        self.places: dict[tuple[int, int], Place] = {}
        self._children: dict[tuple[int, int | None, Namespace], dict[int, int]] = {}
        self._namespaces: dict[Namespace, None] = {}  # in which something was named, in order
        self.workers: dict[int, Worker] = {}
        self._law_of_strangers = "I1"
        self.answers: dict[FindBlocks, object] = {}  # of searches since the last event

    # -- what is known -------------------------------------------------------------------------------------

    def space(self, worker: int) -> int:
        """Return the namespace of a worker's hashes: its own, or the one that all workers share."""
        return worker if self.has_own_hashes else -1

    def child(self, worker: int, parent: int | None, tokens: int, namespace: Namespace) -> int | None:
        """Return the hash of the block with these tokens below a parent, if an event has named that block."""
        below = self._children.get(self._key(worker, parent, namespace), {})
        return below.get(tokens)

    def _key(
        self, worker: int, parent: int | None, namespace: Namespace
    ) -> tuple[int, int | None, Namespace]:
        return self.space(worker), parent, namespace if parent is None else None

    def place(self, worker: int, hash: int) -> Place:
        """Return the block that a named hash stands for."""
        return self.places[self.space(worker), hash]

    def law_of(self, worker: int, search: FindBlocks | None = None) -> str:
        """Return the law that a wrong search result about a worker breaks."""
        known = self.workers.get(worker)
        if known is None:
            return self._law_of_strangers
        scope = known.scope
        if search is None or scope is None:
            return known.law
        if scope.group != search.group:
            return "I11"
        return "I13" if scope.has_namespace and scope.namespace != search.extra_key else known.law

    def law_of_shown(self, block: IndexedBlock) -> str:
        """Return the law that a block wrongly shown or missing breaks, unless a search would find that."""
        law, known = self.law_of(block.worker), self.workers.get(block.worker)
        if law in _LASTING or known is None:
            return law if law in _LASTING else ""
        if known.scope is not None and known.scope.group != block.group:
            return "I11"
        blocks = known.rooms.get(Room(block.group, block.medium), {})
        if law in ("I10", "I12"):
            return law
        if known.has(block.hash, block.group) and block.hash not in blocks:
            return "I12"
        if not self.is_cut_off(block.worker, block.hash, block.group):
            return ""
        return "I6" if law == "I5" and known.has(block.hash, block.group) else law

    def law_of_copies(self, block: IndexedBlock) -> str:
        """Return the law that a wrong number of copies breaks."""
        law = self.law_of(block.worker)
        return law if law in _LASTING or law in ("I9", "I2") else "I10"

    def tested_by_look(self, shown: Iterable[IndexedBlock]) -> tuple[str, ...]:
        """Return the laws that an inspection has tested, with I6 for blocks which another index may forget.

        What an event did that must leave nothing behind, or nothing of before, a look shows as a search does.
        """
        is_kept = self.is_exact and any(self.is_cut_off(it.worker, it.hash, it.group) for it in shown)
        by_events = _LASTING.intersection(it.law for it in self.workers.values()) - {"X1"}
        return (*(["I6"] if is_kept else []), "I9", *sorted(by_events))

    def has(self, worker: int, hash: int, group: int = 0) -> bool:
        """Tell whether a worker has a block of a group, according to its events."""
        return worker in self.workers and self.workers[worker].has(hash, group)

    def is_sure(self, worker: int, hash: int, group: int = 0) -> bool:
        """Tell whether an index must know that a worker has a block of a group."""
        return worker in self.workers and self.workers[worker].is_sure(hash, group)

    def copies(self, worker: int, hash: int, room: Room) -> Bounds:
        """Return the bounds on the number of copies that a worker has of a block in one place."""
        known = self.workers.get(worker)
        return _NONE if known is None else known.rooms.get(room, {}).get(hash, _NONE)

    def is_cut_off(self, worker: int, hash: int, group: int = 0) -> bool:
        """Tell whether a worker lacks an ancestor of a block."""
        place = self.places.get((self.space(worker), hash))
        while place is not None and place.parent is not None:
            if not self.has(worker, place.parent, group):
                return True
            place = self.place(worker, place.parent)
        return False

    def below(self, worker: int, hash: int, group: int = 0) -> Iterator[int]:
        """Yield the blocks of a worker that descend from a block, even across missing blocks."""
        waiting = [hash]
        while waiting:
            each = waiting.pop()
            if each != hash and self.has(worker, each, group):
                yield each
            children = self._children.get(self._key(worker, each, None), {})
            waiting.extend(reversed(children.values()))

    def namespaces_with(self, worker: int, blocks: Sequence[tuple[int, int]]) -> Iterator[Namespace]:
        """Yield each namespace in which a worker has the first block of a sequence, found by its tokens."""
        for namespace in self._namespaces if blocks else ():
            hash = self.child(worker, None, blocks[0][1], namespace)
            if hash is not None and any(hash in held for held in self._rooms_of(worker)):
                yield namespace

    def _rooms_of(self, worker: int) -> Iterable[dict[int, Bounds]]:
        return self.workers[worker].rooms.values() if worker in self.workers else ()

    # -- numbers -------------------------------------------------------------------------------------------

    def next_number(self, worker: int) -> int:
        """Return the number that a worker's next event must have, if its events are numbered."""
        known = self.workers.get(worker)
        return 0 if known is None or known.number is None else known.number + 1

    def _turn(self, operation: Event) -> tuple[str, SeenEvent]:
        """Return how an index must treat an event with this number, and the result that it must report."""
        number, last = operation.number, None
        if operation.worker in self.workers:
            last = self.workers[operation.worker].number
        if number is None or last is None:
            return DONE, SeenEvent(None)
        seen = SeenEvent(None, next=last + 1, is_anew=number == 0)
        if seen.is_anew or number == last + 1:
            return DONE, seen
        return (REPEATED if number <= last else EARLY), seen

    def _begin(self, operation: Event, seen: SeenEvent) -> Worker | None:
        """Start an event by its number; return its worker, or ``None`` where the event changes nothing."""
        known = self.workers.setdefault(operation.worker, Worker())
        if seen.fate in (REPEATED, EARLY):
            self._tell(operation.worker, "I14" if seen.fate == REPEATED else "I15", None)
            return None
        if seen.is_anew:
            known.rooms = {}
        if operation.number is not None:
            known.number = operation.number
        return known

    def _check_form(self, operation: Operation) -> None:
        """Raise `ProgramError` where the adapter does not claim this form of an operation."""
        for claim in needs_of(self.KIND, operation, self.claims):
            if claim in _FORM_CLAIMS and claim not in self.claims:
                raise ProgramError(
                    f"{operation} needs the claim {claim}, which this index does not make; "
                    "write the program without it"
                )

    # -- events --------------------------------------------------------------------------------------------

    def read_store_blocks(self, operation: StoreBlocks, outcome: Outcome) -> Seen:
        """Work out the blocks that a store adds; it adds none below a parent that the worker lacks."""
        self._check_form(operation)
        worker, parent, group = operation.worker, operation.parent, operation.group
        hashes = [hash for hash, _ in operation.blocks]
        _demand_numbers(worker, group, *hashes, *(tokens for _, tokens in operation.blocks))
        _demand_numbers(*(each for each in (parent, operation.number) if each is not None))
        if parent in hashes:
            return self.refused(outcome, _OWN_PARENT)
        if len(hashes) != len({*hashes}):
            return self.refused(outcome, _NAMED_TWICE)
        self._name(operation)
        fate, turn = self._turn(operation)
        fresh = [hash for hash in hashes if turn.is_anew or not self.has(worker, hash, group)]
        is_joined = not turn.is_anew and any(True for hash in fresh for _ in self.below(worker, hash, group))
        if fate == DONE and parent is not None and (turn.is_anew or not self.is_sure(worker, parent, group)):
            fate = ORPHANED
        return SeenStore(
            outcome.result, fate, fresh=fresh, is_joined=is_joined, next=turn.next, is_anew=turn.is_anew
        )

    def _name(self, operation: StoreBlocks) -> None:
        """Record the block of each hash; raise `ProgramError` if the hash or the block has another one."""
        space, parent, namespace = self.space(operation.worker), operation.parent, operation.extra_key
        above = None if parent is None else self.places.get((space, parent))
        if above is not None and above.namespace != namespace:
            raise ProgramError(
                f"hash {parent} is of the namespace {above.namespace!r}, and what is below it of "
                f"{namespace!r}; a sequence has one namespace"
            )
        named = {}
        for hash, tokens in operation.blocks:
            place = named[hash] = Place(parent, tokens, namespace)
            known = self.places.get((space, hash), place)
            other = self.child(operation.worker, parent, tokens, namespace)
            if known != place or other not in (None, hash):
                raise ProgramError(
                    f"hash {hash} is {place}, and {known if known != place else f'{other} is, too'}; "
                    "a hash names one sequence, and a sequence has one hash"
                )
            parent = hash
        self._demand_no_circle(operation, named)
        self._namespaces[namespace] = None
        for hash, place in named.items():
            self.places[space, hash] = place
            key = self._key(operation.worker, place.parent, place.namespace)
            self._children.setdefault(key, {})[place.tokens] = hash

    def _demand_no_circle(self, operation: StoreBlocks, named: Mapping[int, Place]) -> None:
        """Raise `ProgramError` if a newly named block would be its own ancestor."""
        space, each = self.space(operation.worker), operation.parent
        fresh = {hash for hash in named if (space, hash, None) in self._children}
        while fresh and each is not None:
            if each in fresh:
                raise ProgramError(f"hash {each} would be below itself; a hash names one sequence")
            known = self.places.get((space, each))
            each = None if known is None else known.parent

    def follow_store_blocks(self, step: int, operation: StoreBlocks, seen: SeenStore) -> None:
        """Add the stored blocks to the worker, unless the store changed nothing."""
        worker, parent, hashes = operation.worker, operation.parent, [hash for hash, _ in operation.blocks]
        known = self._begin(operation, seen)
        if known is None:
            return
        known.named.setdefault(operation.group, set()).update(hashes)
        is_known = parent is None or known.has(parent, operation.group)
        law = "I1" if seen.fresh else "I4"
        if not is_known or seen.result == NotThere():
            law = "I3"
        else:
            blocks = known.rooms.setdefault(Room(operation.group, operation.medium), {})
            sure = seen.fate != ORPHANED  # or it is seen later whether it was taken, or ignored
            for hash in hashes:
                blocks[hash] = self._more(blocks.get(hash, _NONE), sure)
            if seen.is_joined and self.is_exact and sure:
                law = "I6"
        if seen.is_anew:
            self._tell(worker, "I16", None)
        else:
            self._tell(worker, law, hashes, Scope(operation.group, operation.extra_key, True))

    def _more(self, copies: Bounds, sure: bool) -> Bounds:
        if self.is_counted:
            return Bounds(copies.least + sure, copies.most + 1)
        return Bounds(max(copies.least, int(sure)), 1)

    def read_remove_blocks(self, operation: RemoveBlocks, outcome: Outcome) -> Seen:
        """Work out the blocks that a removal takes from a worker, which may lack some of them."""
        self._check_form(operation)
        worker, hashes, group = operation.worker, operation.hashes, operation.group
        _demand_numbers(worker, group, *hashes)
        _demand_numbers(*(() if operation.number is None else (operation.number,)))
        fate, turn = self._turn(operation)
        room = Room(group, operation.medium)
        named = {hash: hashes.count(hash) for hash in hashes}
        before = {hash: _NONE if turn.is_anew else self.copies(worker, hash, room) for hash in named}
        there = [hash for hash in named if before[hash].most]
        is_whole = all(before[hash].least >= count for hash, count in named.items())
        left = [hash for hash in there if self.is_counted and before[hash].least > named[hash]]
        elsewhere = (
            [] if turn.is_anew else [hash for hash in named if self._lies_elsewhere(worker, hash, room)]
        )
        gone = {*there} - {*left} - {*elsewhere}
        is_inner = any(below not in there for hash in gone for below in self.below(worker, hash, group))
        if fate == DONE and not is_whole:
            fate = MISSING
        return SeenRemoval(
            outcome.result,
            fate,
            there=there,
            left=left,
            elsewhere=elsewhere,
            is_inner=is_inner,
            next=turn.next,
            is_anew=turn.is_anew,
        )

    def _lies_elsewhere(self, worker: int, hash: int, room: Room) -> bool:
        known = self.workers.get(worker)
        return known is not None and any(
            hash in blocks
            for other, blocks in known.rooms.items()
            if other.group == room.group and other != room
        )

    def follow_remove_blocks(self, step: int, operation: RemoveBlocks, seen: SeenRemoval) -> None:
        """Remove the blocks, or a copy of each, from the worker; their descendants are cut off."""
        number, group = operation.worker, operation.group
        known = self._begin(operation, seen)
        if known is None:
            return
        blocks = known.rooms.get(Room(group, operation.medium), {})
        for hash in operation.hashes if self.is_counted else dict.fromkeys(operation.hashes):
            least, most = blocks.pop(hash, _NONE)
            if most > 1:
                blocks[hash] = Bounds(max(least - 1, 0), most - 1)
            if most and not self.is_exact and not known.is_sure(hash, group):
                self._cut_off(number, hash, group)
        law = "I5" if seen.there else "I4"
        if seen.left or seen.elsewhere:
            law = "I10" if seen.left else "I12"
        below = (it for hash in seen.there for it in self.below(number, hash, group))
        if seen.is_anew:
            self._tell(number, "I16", None)
        else:
            touched = {*operation.hashes, *seen.there, *below}
            self._tell(number, law, touched, Scope(group, None, False))

    def _cut_off(self, number: int, hash: int, group: int) -> None:
        """Record that an index may forget the blocks of a worker below a block."""
        for each in [*self.below(number, hash, group)]:
            for blocks in self.workers[number].of_group(group):
                if each in blocks:
                    blocks[each] = Bounds(0, blocks[each].most)

    def read_clear_worker(self, operation: ClearWorker, outcome: Outcome) -> Seen:
        """Find the worker that a clear event empties."""
        self._check_form(operation)
        _demand_numbers(operation.worker, *(() if operation.number is None else (operation.number,)))
        fate, turn = self._turn(operation)
        return SeenEvent(outcome.result, fate, next=turn.next, is_anew=turn.is_anew)

    def follow_clear_worker(self, step: int, operation: ClearWorker, seen: SeenEvent) -> None:
        """Remove all blocks of the worker."""
        known = self._begin(operation, seen)
        if known is not None:
            known.rooms = {}
            self._tell(operation.worker, "I7", None)

    def read_drop_worker(self, operation: DropWorker, outcome: Outcome) -> Seen:
        """Find the worker that has left the index."""
        _demand_numbers(operation.worker)
        return Seen(outcome.result)

    def follow_drop_worker(self, step: int, operation: DropWorker, seen: Seen) -> None:
        """Remove all blocks of the worker, and the numbers of its events."""
        known = self.workers.setdefault(operation.worker, Worker())
        known.rooms, known.number = {}, None
        self._tell(operation.worker, "I7", None)

    def _tell(self, number: int, law: str, hashes: Iterable[int] | None, scope: Scope | None = None) -> None:
        """Record the laws that later wrong results about the worker, and about all others, break."""
        self.answers, self._law_of_strangers = {}, "I1"
        for other in self.workers.values():
            other.law, other.touched, other.scope = "I2", None, None
        worker = self.workers[number]
        worker.law, worker.touched = law, None if hashes is None else frozenset(hashes)
        worker.scope = scope

    def suspect(self, law: str) -> None:
        """Record that a later wrong result about any worker may be the fault of this operation."""
        self.answers, self._law_of_strangers = {}, law
        for worker in self.workers.values():
            worker.law, worker.touched, worker.scope = law, None, None

    def follow_rebuild(self, step: int, operation: Rebuild, seen: Seen) -> None:
        """Keep all blocks, which the rebuilt index must have, too."""
        self.suspect("I9")

    def follow_reset(self, step: int, operation: Reset, seen: Seen) -> None:
        """Remove all blocks of all workers."""
        for worker in self.workers.values():
            worker.rooms, worker.number = {}, None
        self.suspect("X7")

    # -- looks ---------------------------------------------------------------------------------------------

    def read_find_blocks(self, operation: FindBlocks, outcome: Outcome) -> Seen:
        """Read the workers that a search found, with the bounds on each worker's number of blocks."""
        self._check_form(operation)
        _demand_numbers(*operation.tokens, operation.group)
        told = outcome.result.workers if isinstance(outcome.result, Leading) else ()
        spaces = {self.space(worker): worker for worker in self.workers}
        known = {space: self._path(worker, operation) for space, worker in spaces.items()}
        paths = {worker: known[self.space(worker)] for worker in self.workers}
        bounds = {worker: self._bounds(worker, path, operation.group) for worker, path in paths.items()}
        found = {worker: each for worker, each in bounds.items() if each.most}
        strange = frozenset(worker for worker in self.workers if self._is_strange(worker, operation))
        return SeenSearch(outcome.result, told=dict(told), bounds=found, paths=paths, strange=strange)

    def _path(self, worker: int, search: FindBlocks) -> list[int]:
        """Return the hashes along a sequence, up to the first block that no event has named."""
        path: list[int] = []
        for each in search.tokens:
            hash = self.child(worker, path[-1] if path else None, each, search.extra_key)
            if hash is None:
                break
            path.append(hash)
        return path

    def _is_strange(self, worker: int, search: FindBlocks) -> bool:
        """Tell whether a worker has the first block of a search only in another namespace."""
        firsts = (
            self.child(worker, None, search.tokens[0], namespace)
            for namespace in self._namespaces
            if search.tokens and namespace != search.extra_key
        )
        return any(hash is not None and self.has(worker, hash, search.group) for hash in firsts)

    def _bounds(self, worker: int, path: Sequence[int], group: int) -> Bounds:
        media, least, most = [*self.workers[worker].of_group(group)], 0, 0
        for hash in path:
            copies = [blocks[hash] for blocks in media if hash in blocks]
            if not copies:
                break
            if least == most and any(it.least > 0 for it in copies):
                least += 1
            most += 1
        return Bounds(least, most)

    def follow_find_blocks(self, step: int, operation: FindBlocks, seen: SeenSearch) -> None:
        """Record the blocks found and the first missing block as certain: no index forgets by itself."""
        self.answers[operation] = seen.result
        for worker, (least, most) in seen.bounds.items():
            known, path, found = self.workers[worker], seen.paths[worker], seen.told.get(worker, 0)
            for hash in path[least:found]:
                self._be_sure(known, hash, operation.group)
            if found < most and not operation.early:
                for blocks in known.of_group(operation.group):
                    blocks.pop(path[found], None)

    def _be_sure(self, known: Worker, hash: int, group: int) -> None:
        """Record as certain the copy of a block that a search found, if only one medium can have it."""
        having = [blocks for blocks in known.of_group(group) if hash in blocks]
        if len(having) == 1:
            least, most = having[0][hash]
            having[0][hash] = Bounds(max(least, 1), most)

    def expected(self) -> Iterator[tuple[IndexedBlock, Bounds]]:
        """Yield every block of every worker that an inspection must show, with the bounds of its copies."""
        for number, worker in self.workers.items():
            for (group, medium), blocks in worker.rooms.items():
                for hash, copies in blocks.items():
                    parent, tokens, namespace = self.place(number, hash)
                    own = namespace if parent is None else None
                    yield IndexedBlock(number, hash, tokens, parent, group, medium, own), copies

    def numbers(self) -> tuple[tuple[int, int], ...]:
        """Return each worker whose events are numbered, with its last number, in ascending order."""
        known = sorted(self.workers.items())
        return tuple((worker, it.number) for worker, it in known if it.number is not None)


def _demand_numbers(*numbers: Any) -> None:
    """Raise `ProgramError` for a program with workers or hashes that do not fit into 63 bits."""
    for number in numbers:
        if not 0 <= number < _LIMIT:
            raise ProgramError(f"{number} is neither a worker nor a hash; both are 0 to 2**63 - 1")
