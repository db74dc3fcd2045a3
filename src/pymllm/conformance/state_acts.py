"""What callers do with a prefix cache that keeps states: take snapshots, hand them over, run out of them."""

from __future__ import annotations

from pymllm.conformance.prefix_acts import NTH, PAGES, PICK, RARE, STYLE, TOKENS, amount, looked_at, picked
from pymllm.conformance.prefix_caller import PrefixCaller
from pymllm.history.operations import Evict, Key, Reset
from pymllm.oracle.prefix_model import Path, path_of_key

__all__ = ["StateActs"]

KEEP = (0, 3)


class StateActs(PrefixCaller):
    """Acts that make sense only where states are kept."""

    # -- states in -----------------------------------------------------------------------------------------

    @looked_at(needs="has_states", weight=6, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, keep=KEEP)
    def serve(self, pages: int, turn: int, other: int, style: int, keep: int) -> None:
        """Serve a request of a hybrid model: resume, compute, copy the state, hand both over, hold that."""
        key = self._whole(self.draw_key(pages, turn, other, style))
        step, matched = self.match(key)
        held = self.lock(step) if matched else None
        fresh = self.allocate(len(key.tokens) - len(matched))
        if fresh is not None and key.tokens:
            state = self.snapshot(is_evicting=keep > 0)
            inserted = self.insert(key, [*matched, *fresh], style, state=state)
            hold = None if inserted is None else self.lock(inserted)
            if hold is not None and keep > 1:
                self.unlock(hold)
            self.give_back(fresh, style)
        if held is not None:
            self.unlock(held)
        if keep:
            self.give_tracks_back()

    @looked_at(needs="has_states", weight=3, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def insert_with_state(self, pages: int, turn: int, other: int, style: int) -> None:
        """Insert fresh slots and a state, without matching the key first."""
        key = self._whole(self.draw_key(pages, turn, other, style))
        slots = self.allocate(len(key.tokens))
        if slots is not None:
            self.insert(key, slots, style, state=self.snapshot() if key.tokens else None)
            self.give_back(slots, style)
        self.give_tracks_back()

    @looked_at(needs="has_states", weight=4, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def add_state_to_stored(self, pages: int, turn: int, other: int, style: int) -> None:
        """Hand over a state where the stored part of a key ends, as an engine does at a branching point."""
        stored = self.model.stored(path_of_key(self.draw_key(pages, turn, other, style)))
        if stored:
            self._add_state(stored[-1], style)

    @looked_at(needs="has_states", weight=2, pick=PICK, style=STYLE)
    def add_state_under_hold(self, pick: int, style: int) -> None:
        """Hand over a state at a node that is held."""
        held = [hold.path for hold in self.model.holds.values()]
        if held:
            self._add_state(picked(held, pick), style)

    @looked_at(needs="has_states", weight=2, pages=PAGES, turn=PAGES, style=STYLE, keep=KEEP)
    def add_state_under_holds(self, pages: int, turn: int, style: int, keep: int) -> None:
        """Hold a new node several times, hand its state over, release it: the last hold protects it (M4)."""
        key = self._whole(self.draw_key(pages, turn, turn, style))
        slots = self.allocate(len(key.tokens)) if key.tokens else None
        if slots is None:
            return
        step = self.insert(key, slots, style)
        self.give_back(slots, style)
        if step is None:
            return
        holds = [self.lock(step) for _ in range(1 + keep)]
        self._add_state(path_of_key(key), style)
        for hold in holds if keep < KEEP[1] else holds[:1]:
            if hold is not None:
                self.unlock(hold)

    @looked_at(needs="has_states", pages=PAGES, turn=PAGES, style=STYLE)
    def insert_state_badly(self, pages: int, turn: int, style: int) -> None:
        """Hand over a state whose key is empty or not made of whole pages: an error (M1, X1)."""
        key = self.draw_key(pages, turn, turn, style)
        if not self.is_refusing:
            return
        if not len(key.tokens) % self.page_size:
            key = Key((), key.extra_key, key.form)
        slots, state = self.allocate(len(key.tokens)), self.snapshot(is_evicting=False)
        if slots is not None and state is not None:
            self.insert(key, slots[: len(key.tokens)], style, state=state)
        self.give_back(slots or (), style)
        self.give_tracks_back()

    # -- track slots ---------------------------------------------------------------------------------------

    @looked_at(needs="has_states", quarters=(1, 4))
    def hoard_track_slots(self, quarters: int) -> None:
        """Keep free track slots in the caller's hands, some or all, so that the pool is short."""
        tracks = self.judge.books.tracks
        for _ in range(-(-tracks.room() * quarters // 4) if tracks is not None else 0):
            self.snapshot(is_evicting=False)

    @looked_at(needs="has_states", weight=2)
    def give_hoarded_tracks_back(self) -> None:
        """Return every track slot that the caller has."""
        self.give_tracks_back()

    # -- what fails ----------------------------------------------------------------------------------------

    @looked_at(needs="can_fail_states", weight=3, tokens=TOKENS, states=TOKENS, nth=NTH)
    def evict_refused_by_state_pool(self, tokens: int, states: int, nth: int) -> None:
        """Let the pool of states refuse one of an eviction's calls (X2)."""
        if self.can_evict:
            self.arm("free_state", nth)
            self.do(Evict(amount(tokens), amount(states)))

    @looked_at(needs="can_fail_states", rare=RARE, nth=NTH)
    def reset_refused_by_state_pool(self, rare: int, nth: int) -> None:
        """Let the pool of states refuse one of a reset's calls: everything else goes back (X7)."""
        if not rare:
            self.arm("free_state", nth)
            self.do(Reset())

    # -- drawing small, deriving big -----------------------------------------------------------------------

    def _add_state(self, path: Path, style: int) -> None:
        state = self.snapshot()
        if self.model.stored(path)[-1:] == [path]:  # the snapshot may have evicted it
            key = Key(path.tokens, path.space.extra_key)
            self.insert(key, self.model.slots(path), style, state=state)
        self.give_tracks_back()

    def _whole(self, key: Key) -> Key:
        whole = len(key.tokens) // self.page_size * self.page_size
        return Key(key.tokens[:whole], key.extra_key, key.form)
