"""Who owns each track slot under a hybrid cache (M7), and the state of which prefix is in it (E1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pymllm.errors import ProgramError
from pymllm.history.operations import Span, WriteState
from pymllm.oracle.given_numbers import GivenNumbers
from pymllm.oracle.prefix_pages import Path
from pymllm.oracle.slot_ledger import Owner
from pymllm.oracle.state_ends import StateEnds

__all__ = ["TrackLedger"]


class TrackLedger:
    """Every track slot with its one owner.

    Parameters
    ----------
    size : int
        Track slots of the pool, whatever their numbers.
    ends : StateEnds
        Those that the cache owns.

    Attributes
    ----------
    callers : set of int
        Those in the caller's hands.
    given : GivenNumbers
        The track slots that steps gave.
    """

    def __init__(self, size: int, ends: StateEnds) -> None:
        self.size, self.ends = size, ends
        self.callers: set[int] = set()
        self.given = GivenNumbers()
        self._written: dict[int, Path] = {}
        self._filled: dict[tuple[int, int], WriteState] = {}

    # -- questions -----------------------------------------------------------------------------------------

    def room(self) -> int:
        """Count the track slots that can be handed out."""
        return self.size - len(self.callers) - len(self.ends.slots)

    def sizes(self) -> dict[str, int]:
        """Return the pool's size by the documented name of its counter."""
        return {"available_track_slots": self.room()}

    def place(self, slot: int) -> Path | None:
        """Return the prefix at whose end the cache has a track slot; ``None`` where it has it nowhere."""
        return next((path for path, here in self.ends.slots.items() if here == slot), None)

    def owner(self, slot: int) -> Owner:
        """Tell in whose hands a track slot is."""
        if slot in self.callers:
            return Owner.CALLER
        return Owner.POOL if self.place(slot) is None else Owner.CACHE

    def content(self, slot: int) -> Path | None:
        """Return the prefix after which the state in a track slot was taken; ``None`` for none."""
        return self._written.get(slot)

    def filled(self, layer: int) -> Iterator[tuple[int, WriteState]]:
        """Yield the track slots that are not free and were written to, and what was last."""
        owned = self.callers.union(self.ends.slots.values())
        return ((slot, last) for (slot, at), last in self._filled.items() if at == layer and slot in owned)

    def callers_slot(self, span: Span) -> int:
        """Return the one track slot that a span names; `ProgramError` where it is not the caller's."""
        numbers = self.given.resolve((span,))
        if len(numbers) != 1 or numbers[0] not in self.callers:
            raise ProgramError(f"{span} names {numbers}; it must name one track slot of the caller's")
        return numbers[0]

    # -- what happens --------------------------------------------------------------------------------------

    def hand_out(self, step: int, slot: int) -> None:
        """Give a free track slot to the caller."""
        self.given.record(step, (slot,))
        self.callers.add(slot)
        self._filled = {place: last for place, last in self._filled.items() if place[0] != slot}

    def take_back(self, slot: int) -> None:
        """Return one of the caller's to the pool."""
        self.callers.remove(slot)

    def write(self, slot: int, path: Path) -> None:
        """Let the caller copy the state after a prefix into a track slot."""
        self._written[slot] = path

    def fill(self, slot: int, operation: WriteState) -> None:
        """Let the caller write numbers into a layer of one of his own."""
        self._filled[slot, operation.layer] = operation

    def adopt(self, path: Path, slot: int) -> None:
        """Let the cache own one of the caller's, at the end of a prefix."""
        self.callers.remove(slot)
        self.ends.add(path, slot)

    def disown(self, slots: Iterable[int]) -> None:
        """Let the caller own what the cache dropped and the pool did not take."""
        self.callers.update(slots)
