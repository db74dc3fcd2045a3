"""What states add to every operation of a prefix cache but evictions (M1, M2, M7, E1)."""

from __future__ import annotations

from collections import Counter

from pymllm.history.operations import AllocTrack, FreeTrack, Insert, ReadStates, WriteState
from pymllm.history.outcomes import Done, Inserted, Matched, NoRoom, Outcome, Slots, States
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_pages import Found, Path
from pymllm.oracle.seen_effects import SeenEffects
from pymllm.oracle.slot_ledger import Owner
from pymllm.oracle.state_situations import note_state_insert, note_state_match
from pymllm.oracle.track_ledger import TrackLedger

__all__ = ["StatePart"]


class StatePart:
    """Follows the states of a cache and the track slots of its caller.

    Parameters
    ----------
    books : PrefixBooks
        What all parts share.
    tracks : TrackLedger
        Those of the books.
    """

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
        """Say what is wrong with the key of a state (M1).

        Raises
        ------
        ProgramError
            The state is not in one track slot of the caller's.
        """
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
        """Judge that each state went back, once; one that a failing call did not take is the caller's (X7).

        Parameters
        ----------
        cached : list of int
            Track slots that the cache had.
        seen : SeenEffects
            Of the reset.
        is_struck : bool
            Whether one call of the pool of states was let fail.
        """
        books, evidence = self.books, self.books.evidence
        counted = Counter(seen.states)
        books.forbid("M7", "track slots that a reset frees twice, or not its own", counted - Counter(cached))
        due = len(cached) - is_struck
        books.expect("X7", "states that a reset frees", due, len(seen.states))
        books.count("M7", cached)
        evidence.meet("the state pool refuses a reset", is_struck)
        self.tracks.disown(set(cached) - set(seen.states))
