"""The model of a caller's own calls to the pools below a prefix cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pymllm.errors import ProgramError
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Free,
    FreeSWA,
    FreeTrack,
    MoveSWA,
    ReadHalves,
    ReadStates,
    Span,
    WriteState,
)
from pymllm.history.outcomes import Outcome, Slots, States
from pymllm.oracle.models.kind_model import DONE, NO_ROOM
from pymllm.oracle.models.prefix_seen import SeenHalves, SeenTracks
from pymllm.oracle.models.prefix_tracker import PrefixTracker
from pymllm.oracle.models.slot_model import WindowModel
from pymllm.oracle.models.slot_ownership import Owner, TrackOwnership
from pymllm.oracle.models.slots import SeenAlloc, SeenSlots


class CallersPools(PrefixTracker):
    """The part of the cache model with the slots that the caller owns; programs do not misuse them here."""

    def read_alloc(self, operation: Alloc, outcome: Outcome) -> SeenAlloc:
        """Find the pages of the slots and halves that an allocation returned."""
        ownership, size, result = self.ownership, self.page_size, outcome.result
        if ownership.pool is None or operation.tokens < 0:
            raise ProgramError(f"{operation.tokens} slots of pool {self.config.get('pool', 'none')!r}")
        wanted = -(-operation.tokens // size)
        fate = NO_ROOM if wanted > ownership.room() else DONE
        if fate == NO_ROOM or not isinstance(result, Slots):
            return SeenAlloc(result, fate, (), wanted, (), [], (), [])
        slots, halves = result.slots, result.swa_slots
        pages = [slot // size for slot in slots[::size]]
        half_pages = [half // size for half in halves[::size]] if self.has_halves else []
        return SeenAlloc(result, fate, (), wanted, slots, pages, halves, half_pages)

    def follow_alloc(self, step: int, operation: Alloc, seen: SeenAlloc) -> None:
        """Give the allocated pages to the caller."""
        if seen.fate == DONE:
            if self.has_halves and len(seen.halves) != len(seen.slots):
                told = f"{len(seen.halves)} SWA slots for {len(seen.slots)} slots"
                raise ProgramError(f"{told}: without them a pool with SWA halves cannot be followed")
            self.ownership.hand_out(seen.pages, seen.half_pages)
            self.ownership.record(step, seen.slots)

    def read_free(self, operation: Free, outcome: Outcome) -> SeenSlots:
        """Find the slots that the caller gives back."""
        return SeenSlots(outcome.result, slots=self._callers(operation.slots))

    def follow_free(self, step: int, operation: Free, seen: SeenSlots) -> None:
        """Return the freed slots to the pool."""
        self.ownership.give_back(seen.slots)

    def read_free_swa(self, operation: FreeSWA, outcome: Outcome) -> SeenSlots:
        """Find the slots whose SWA halves the caller gives back."""
        slots = self._callers(operation.slots)
        self._require_halves(slots, True)
        return SeenSlots(outcome.result, slots=slots)

    def follow_free_swa(self, step: int, operation: FreeSWA, seen: SeenSlots) -> None:
        """Return the SWA halves to the pool."""
        self.ownership.give_back_halves(seen.slots)

    def read_move_swa(self, operation: MoveSWA, outcome: Outcome) -> SeenSlots:
        """Find which SWA halves move, in whole pages and in order."""
        source, target = self._callers(operation.source), self._callers(operation.target)
        self._require_halves(source, True)
        self._require_halves(target, False)
        if len(source) != len(target):
            raise ProgramError(f"{len(source)} sources of a move, {len(target)} targets")
        return SeenSlots(outcome.result, slots=source, target=target)

    def follow_move_swa(self, step: int, operation: MoveSWA, seen: SeenSlots) -> None:
        """Move the SWA halves to their new pages."""
        self.ownership.move_halves(dict(zip(seen.slots, seen.target, strict=True)))

    def read_read_halves(self, operation: ReadHalves, outcome: Outcome) -> SeenHalves:
        """Read the SWA halves of any slots of the pool."""
        pool, size, slots = self.ownership.pool, self.page_size, self.ownership.resolve(operation.slots)
        if not isinstance(pool, WindowModel):
            raise ProgramError("the pool has no SWA halves")
        pages = [pool.half.get(slot // size) for slot in slots]
        pairs = zip(slots, pages, strict=True)
        halves = [0 if page is None else page * size + slot % size for slot, page in pairs]
        return SeenHalves(outcome.result, slots=slots, expected=halves)

    def _callers(self, spans: Iterable[Span]) -> list[int]:
        """Return the named slots, each once, which must all be the caller's."""
        ownership, slots = self.ownership, self.ownership.resolve(spans)
        if ownership.pool is None:
            raise ProgramError("there is no pool")
        if len(set(slots)) != len(slots):
            raise ProgramError("a slot is named twice")
        for slot, owner in ownership.owners(slots).items():
            if owner is not Owner.CALLER:
                raise ProgramError(f"slot {slot} is in the hands of {owner.value}")
        return slots

    def _require_halves(self, slots: Collection[int], there: bool) -> None:
        for slot in slots:
            if self.ownership.has_half(slot) != there:
                raise ProgramError(f"slot {slot} {'lacks' if there else 'has'} its SWA half")

    # -- the caller's track slots --------------------------------------------------------------------------

    def _tracks(self) -> TrackOwnership:
        if self.tracks is None:
            raise ProgramError("states are not claimed")
        return self.tracks

    def read_alloc_track(self, operation: AllocTrack, outcome: Outcome) -> SeenSlots:
        """Find the track slot that an allocation handed out."""
        fate = DONE if self._tracks().room() else NO_ROOM
        result = outcome.result
        return SeenSlots(result, fate, slots=result.slots if isinstance(result, Slots) else ())

    def follow_alloc_track(self, step: int, operation: AllocTrack, seen: SeenSlots) -> None:
        """Give the track slot to the caller."""
        if seen.fate == DONE:
            self._tracks().hand_out(step, seen.slots[0])

    def read_free_track(self, operation: FreeTrack, outcome: Outcome) -> SeenSlots:
        """Find the track slot that the caller gives back; the model of state pools judges misuse."""
        return SeenSlots(outcome.result, slots=(self._tracks().callers_slot(operation.slot),))

    def follow_free_track(self, step: int, operation: FreeTrack, seen: SeenSlots) -> None:
        """Return the track slot to the pool."""
        self._tracks().take_back(seen.slots[0])

    def read_write_state(self, operation: WriteState, outcome: Outcome) -> SeenSlots:
        """Find the track slot that the caller writes to, which must be its own."""
        return SeenSlots(outcome.result, slots=(self._tracks().callers_slot(operation.slot),))

    def follow_write_state(self, step: int, operation: WriteState, seen: SeenSlots) -> None:
        """Record the state that was written."""
        self._tracks().fill(seen.slots[0], operation)

    def read_read_states(self, operation: ReadStates, outcome: Outcome) -> SeenTracks:
        """Read the rows of all track slots that have been written."""
        result, expected = outcome.result, {}
        found: dict[tuple[str, int], tuple[int, ...] | None] = {}
        for slot, written in self._tracks().filled(operation.layer):
            for part, first in (("recurrent", written.recurrent), ("conv", written.conv)):
                rows = getattr(result, part) if isinstance(result, States) else ()
                row = found[part, slot] = rows[slot] if slot < len(rows) else None
                width = 1 if row is None else len(row)
                expected[part, slot] = tuple(first + at * written.ramp for at in range(width))
        return SeenTracks(result, expected=expected, found=found)
