"""Judging a caller's own calls to the pools under a prefix cache, and what states add to other operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pymllm.errors import ProgramError
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Free,
    FreeSWA,
    FreeTrack,
    Insert,
    MoveSWA,
    ReadHalves,
    ReadStates,
    Span,
    WriteState,
)
from pymllm.history.outcomes import (
    Done,
    Inserted,
    Inspected,
    Matched,
    NodeView,
    NoRoom,
    Outcome,
    Slots,
    States,
)
from pymllm.oracle.coverage.noticed import note_state_insert, note_state_match
from pymllm.oracle.models.prefix_model import Found, Path, StateEnds
from pymllm.oracle.models.slot_ledger import Owner, TrackLedger
from pymllm.oracle.models.slot_model import WindowModel
from pymllm.oracle.pool_judge import check_halves, check_pages
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.seen_effects import SeenEffects


class PoolPart:
    """Follows what the caller takes from the pool and gives back itself.

    Misuse of the pool has no meaning here: it is judged in slot allocators.
    """

    def __init__(self, books: PrefixBooks) -> None:
        self.books = books
        self._halves_law = "A7" if "A7" in books.laws else "A2"

    def judge_alloc(self, step: int, operation: Alloc, outcome: Outcome) -> str:
        """Judge an `Alloc`; return the law that is broken where a size is wrong afterwards."""
        books, ledger, result = self.books, self.books.ledger, outcome.result
        if ledger.pool is None or operation.tokens < 0:
            raise ProgramError(f"{operation.tokens} slots of pool {books.pool!r}")
        pages = -(-operation.tokens // books.page_size)
        if pages > ledger.room():
            books.expect("X4", f"alloc({operation.tokens})", NoRoom(), result)
            books.evidence.meet("memory runs out")
            return "X4"
        given = books.answer(Slots, "A3", f"alloc({operation.tokens})", outcome)
        taken = check_pages(books.evidence, ledger.full, books.page_size, operation.tokens, given.slots)
        halves: list[int] = []
        if isinstance(ledger.pool, WindowModel):
            halves = self._check_halves(ledger.pool, given)
        ledger.hand_out(taken, halves)
        ledger.record(step, given.slots)
        return "A2"

    def _check_halves(self, pool: WindowModel, given: Slots) -> list[int]:
        books = self.books
        if "A7" in books.laws:
            return check_halves(books.evidence, pool.swa, books.page_size, given.slots, given.swa_slots)
        if len(given.swa_slots) != len(given.slots):
            told = f"{len(given.swa_slots)} SWA slots for {len(given.slots)} slots"
            raise ProgramError(f"{told}: without them a pool with SWA halves cannot be followed")
        pages = [slot // books.page_size for slot in given.swa_slots[:: books.page_size]]
        if any(not pool.swa.has(page) for page in pages):
            books.evidence.refuse(
                "A2", "SWA halves of an alloc", f"pages 1..{pool.swa.pages}", f"pages {pages}"
            )
        return pages

    def judge_free(self, step: int, operation: Free, outcome: Outcome) -> str:
        """Judge a `Free` of what is the caller's."""
        slots = self._callers(operation.slots)
        self.books.expect("A2", f"free({slots})", Done(), outcome.result)
        self.books.ledger.give_back(slots)
        return "A2"

    def judge_free_swa(self, step: int, operation: FreeSWA, outcome: Outcome) -> str:
        """Judge a `FreeSWA` of what is the caller's."""
        slots = self._callers(operation.slots)
        self._require_halves(slots, True)
        self.books.expect(self._halves_law, f"free_swa({slots})", Done(), outcome.result)
        self.books.ledger.give_back_halves(slots)
        return self._halves_law

    def judge_move_swa(self, step: int, operation: MoveSWA, outcome: Outcome) -> str:
        """Judge a `MoveSWA` between slots of the caller's, whole pages in order."""
        source, target = self._callers(operation.source), self._callers(operation.target)
        self._require_halves(source, True)
        self._require_halves(target, False)
        if len(source) != len(target):
            raise ProgramError(f"{len(source)} sources of a move, {len(target)} targets")
        self.books.expect(self._halves_law, f"move_swa({source}, {target})", Done(), outcome.result)
        self.books.ledger.move_halves(dict(zip(source, target, strict=True)))
        return self._halves_law

    def judge_read_halves(self, step: int, operation: ReadHalves, outcome: Outcome) -> str:
        """Judge a `ReadHalves` of any slots of the pool: in the tree, alive is to have one (S2)."""
        books, ledger, size = self.books, self.books.ledger, self.books.page_size
        slots = ledger.resolve(operation.slots)
        if not isinstance(ledger.pool, WindowModel):
            raise ProgramError("the pool has no SWA halves")
        found = books.answer(Slots, self._halves_law, "halves", outcome).swa_slots
        pages = [ledger.pool.half.get(slot // size) for slot in slots]
        halves = [
            0 if page is None else page * size + slot % size for slot, page in zip(slots, pages, strict=True)
        ]
        for slot, half, seen in zip(slots, halves, found, strict=False):
            law = "S2" if ledger.owner(slot) is Owner.CACHE and bool(half) != bool(seen) else "A7"
            books.expect(law, f"SWA half of slot {slot}", half, seen)
        books.expect("A7", "number of halves", len(slots), len(found))
        books.count("S2", any(ledger.place(slot) for slot in slots))
        return self._halves_law

    # -- the caller's duty ---------------------------------------------------------------------------------

    def _callers(self, spans: Sequence[Span]) -> list[int]:
        books, ledger = self.books, self.books.ledger
        slots = ledger.resolve(spans)
        if ledger.pool is None:
            raise ProgramError("there is no pool")
        if len(set(slots)) != len(slots):
            raise ProgramError("a slot is named twice")
        for slot in slots:
            owner = ledger.owner(slot)
            if owner is not Owner.CALLER:
                raise ProgramError(f"slot {slot} is in the hands of {owner.value}, pool {books.pool!r}")
        return slots

    def _require_halves(self, slots: Sequence[int], there: bool) -> None:
        for slot in slots:
            if self.books.ledger.has_half(slot) != there:
                raise ProgramError(f"slot {slot} {'lacks' if there else 'has'} its SWA half")


def look_at_states(books: PrefixBooks, ends: StateEnds, shown: Inspected, known: Collection[Path]) -> None:
    """Compare each node's state and its locks, and each list of nodes, with the model (M1, M3, M4, M8).

    The nodes of the books have been compared already; ``known`` is where nodes ended at the look before.
    """
    nodes, held = books.nodes.ends, [hold.path for hold in books.model.holds.values()]
    for path, node in nodes.items():
        _compare_state(books, ends, path, node, held)
    missing = [path.tokens for path in ends.slots if path not in nodes]
    books.forbid("M1", "states at whose place no node ends", missing)
    with_state = {path: nodes[path] for path in ends.slots if path in nodes}
    _note_splits(books, with_state, known, held)
    _compare_list(books, "full_lru", shown.full_lru, nodes)
    _compare_list(books, "mamba_lru", shown.mamba_lru, with_state)


def _compare_state(
    books: PrefixBooks, ends: StateEnds, path: Path, node: NodeView, held: Sequence[Path]
) -> None:
    expected = ends.slots.get(path)
    locks = 0 if expected is None else held.count(path)
    if node.state != expected:
        law = "M3" if node.state in ends.slots.values() and "M3" in books.laws else "M1"
        books.evidence.refuse(law, f"state at the end of {path.tokens}", expected, node.state)
    if node.state_lock_ref is None:
        return
    if node.state_lock_ref != locks:
        books.evidence.refuse("M4", f"mamba_lock_ref at {path.tokens}", locks, node.state_lock_ref)
    books.count("M4", locks)


def _note_splits(
    books: PrefixBooks, nodes: Mapping[Path, NodeView], known: Collection[Path], held: Sequence[Path]
) -> None:
    """Count the splits since the last look that left a state with the lower half (M3)."""
    for path, node in nodes.items():
        upper = path.upto(len(path.tokens) - len(node.tokens))
        if path in known and upper.tokens and upper not in known:
            books.count("M3")
            books.evidence.meet("a split of a held node leaves its state", held.count(path))


def _compare_list(
    books: PrefixBooks, name: str, ids: Sequence[int] | None, members: Mapping[Path, NodeView]
) -> None:
    """Test that a list has exactly its members, the most recent first (M8)."""
    if ids is None:
        return
    pages = books.model.pages
    # No two nodes are in one place of the order, so ids never decide.
    order = sorted([(pages[path].access, len(path.tokens), node.id) for path, node in members.items()])
    expected = tuple(node for _, _, node in reversed(order))
    if ids != expected and "M8" in books.laws:
        books.evidence.refuse("M8", f"ids in {name}", expected, ids)
    books.count("M8", len(expected) > 1)


class StatePart:
    """Follows the states of a cache and the track slots of its caller (M1, M2, M7, E1)."""

    def __init__(self, books: PrefixBooks, tracks: TrackLedger) -> None:
        self.books, self.tracks, self.ends = books, tracks, tracks.ends
        self._has_matched = False

    # -- the caller's track slots --------------------------------------------------------------------------

    def judge_alloc(self, step: int, operation: AllocTrack, outcome: Outcome) -> str:
        """Judge an `AllocTrack`; return the law that is broken where a size is wrong afterwards."""
        books, tracks, result = self.books, self.tracks, outcome.result
        if not tracks.room():
            law = "X4" if "X4" in books.laws else "M7"
            books.expect(law, "a track slot", NoRoom(), result)
            books.evidence.meet("track slots run out")
            books.evidence.meet("track slots run out between match and insert", self._has_matched)
            return law
        given = books.answer(Slots, "M7", "a track slot", outcome).slots
        owners = [tracks.owner(slot) for slot in given]
        books.expect("M7", f"owner of {given}, handed out", [Owner.POOL], owners)
        tracks.hand_out(step, given[0])
        return "M7"

    def judge_free(self, step: int, operation: FreeTrack, outcome: Outcome) -> str:
        """Judge a `FreeTrack` of what is the caller's; misuse is judged in state pools."""
        slot = self.tracks.callers_slot(operation.slot)
        self.books.expect("M7", f"free_track_slot({slot})", Done(), outcome.result)
        self.tracks.take_back(slot)
        return "M7"

    def judge_write(self, step: int, operation: WriteState, outcome: Outcome) -> str:
        """Judge a `WriteState` to what is the caller's: nobody writes to what he has handed over."""
        slot = self.tracks.callers_slot(operation.slot)
        self.books.answer(Done, "E1", f"a write to track slot {slot}", outcome)
        self.tracks.fill(slot, operation)
        return "M7"

    def judge_read(self, step: int, operation: ReadStates, outcome: Outcome) -> str:
        """Judge a `ReadStates`: what was written to a track slot stays until that is free (E1)."""
        layer = operation.layer
        found = self.books.answer(States, "E1", f"the states of layer {layer}", outcome)
        for slot, written in self.tracks.filled(layer):
            for part, first in (("recurrent", written.recurrent), ("conv", written.conv)):
                rows: tuple[tuple[int, ...], ...] = getattr(found, part)
                row = rows[slot] if slot < len(rows) else None
                width = 1 if row is None else len(row)
                expected = tuple(first + at * written.ramp for at in range(width))
                self.books.expect("E1", f"{part} state in track slot {slot}", expected, row)
        return "M7"

    # -- match ---------------------------------------------------------------------------------------------

    def judge_match(self, found: Found, result: Matched) -> None:
        """Test what a match returned beside KV: the state of exactly its prefix (M1, M2, E1)."""
        books, path, state = self.books, found.path, result.state
        if state is not None:
            content = self.tracks.content(state)
            what, expected = "state of a match", "what a cold run would have computed"
            books.demand("E1", content == path, what, expected, lambda: f"the state after {content}")
        books.expect("M1", "state of a match", self.ends.slots.get(path), state)
        branching = found.stored if found.stored > len(found.slots) else None
        books.expect("M2", "mamba_branching_seqlen", branching, result.branching)
        note_state_match(books, self.ends, found)
        self._has_matched = bool(found.slots)

    # -- insert --------------------------------------------------------------------------------------------

    def misuse(self, operation: Insert, key: Path) -> str | None:
        """Say what is wrong with the key of a state (M1), which must be in one track slot of the caller's."""
        if operation.state is None:
            return None
        self.tracks.callers_slot(operation.state)
        if key.tokens and self.books.model.whole(key) == key:
            return None
        return f"a state at the end of {len(key.tokens)} tokens"

    def judge_insert(self, operation: Insert, key: Path, result: Inserted, seen: SeenEffects) -> None:
        """Judge what became of a state that was handed over, the state after exactly the key (M1, E1)."""
        books = self.books
        books.forbid("M7", "track slots that an insert frees", seen.states)
        exists = operation.state is not None and key in self.ends
        books.expect("M1", "mamba_exist", exists, result.state_exists)
        self._has_matched = False
        if operation.state is None:
            return
        slot = self.tracks.callers_slot(operation.state)
        note_state_insert(books, self.ends, key)
        self.tracks.write(slot, key)
        if not exists:
            self.tracks.adopt(key, slot)

    # -- reset ---------------------------------------------------------------------------------------------

    def judge_reset(self, cached: list[int], seen: SeenEffects, is_struck: bool) -> None:
        """Judge that each state went back, once; what a failing call did not take is the caller's (X7)."""
        books, evidence = self.books, self.books.evidence
        counted = Counter(seen.states)
        books.forbid("M7", "track slots that a reset frees twice, or not its own", counted - Counter(cached))
        due = len(cached) - is_struck
        books.expect("X7", "states that a reset frees", due, len(seen.states))
        books.count("M7", cached)
        evidence.meet("the state pool refuses a reset", is_struck)
        self.tracks.disown(set(cached) - set(seen.states))
