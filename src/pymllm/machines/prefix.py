"""The machine that drives a prefix cache, with correct and incorrect calls."""

from __future__ import annotations

from typing import NamedTuple

from pymllm.adapters.malformed import MALFORMED_CALLS
from pymllm.history.operations import (
    Evict,
    Hash,
    Key,
    Lock,
    Malformed,
    ReadHalves,
    Reset,
    Span,
    Token,
    Unlock,
    namespace_of,
)
from pymllm.machines.acting import act
from pymllm.machines.prefix_caller import (
    ALPHABETS,
    FILLED,
    NTH,
    PAGES,
    PICK,
    RARE,
    STYLE,
    TOKENS,
    WAY,
    PrefixCaller,
    alike_values,
    amount,
    fitting,
    looked_at,
    picked,
)
from pymllm.oracle.models.prefix_model import Path, path_of_key
from pymllm.oracle.models.slot_ownership import Owner

KEEP = (0, 3)


class StateActs(PrefixCaller):
    """The acts of the cache machine for caches that keep recurrent states."""

    # -- states in -----------------------------------------------------------------------------------------
    @looked_at(needs="has_states", weight=6, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, keep=KEEP)
    def serve(self, pages: int, turn: int, other: int, style: int, keep: int) -> None:
        """Serve a request of a hybrid model: resume, compute, copy the state, insert both, and hold that."""
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
        """Insert new slots and a state, without matching the key first."""
        key = self._whole(self.draw_key(pages, turn, other, style))
        slots = self.allocate(len(key.tokens))
        if slots is not None:
            self.insert(key, slots, style, state=self.snapshot() if key.tokens else None)
            self.give_back(slots, style)
        self.give_tracks_back()

    @looked_at(needs="has_states", weight=4, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def add_state_to_stored(self, pages: int, turn: int, other: int, style: int) -> None:
        """Add a state at the end of a key's cached part, as an engine does where prompts branch."""
        stored = self.model.stored(path_of_key(self.draw_key(pages, turn, other, style)))
        if stored:
            self._add_state(stored[-1], style)

    @looked_at(needs="has_states", weight=2, pick=PICK, style=STYLE)
    def add_state_under_hold(self, pick: int, style: int) -> None:
        """Add a state at a node that is held."""
        held = [hold.path for hold in self.model.holds.values()]
        if held:
            self._add_state(picked(held, pick), style)

    @looked_at(needs="has_states", weight=2, pages=PAGES, turn=PAGES, style=STYLE, keep=KEEP)
    def add_state_under_holds(self, pages: int, turn: int, style: int, keep: int) -> None:
        """Hold a new node several times, add its state, and release it; the last hold protects it (M4)."""
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
        """Insert a state with a key that is empty or not whole pages, which must raise an error (M1, X1)."""
        key = self.draw_key(pages, turn, turn, style)
        if not self.can_refuse:
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
        """Take all or some free track slots, so that the pool runs short."""
        tracks = self.judge.model.tracks
        for _ in range(-(-tracks.room() * quarters // 4) if tracks is not None else 0):
            self.snapshot(is_evicting=False)

    @looked_at(needs="has_states", weight=2)
    def give_hoarded_tracks_back(self) -> None:
        """Free every track slot of the caller."""
        self.give_tracks_back()

    # -- what fails ----------------------------------------------------------------------------------------
    @looked_at(needs="can_fail_states", weight=3, tokens=TOKENS, states=TOKENS, nth=NTH)
    def evict_refused_by_state_pool(self, tokens: int, states: int, nth: int) -> None:
        """Evict while the pool of states refuses one of the eviction's calls (X2)."""
        if self.can_evict:
            self.arm("free_state", nth)
            self.do(Evict(amount(tokens), amount(states)))

    @looked_at(needs="can_fail_states", rare=RARE, nth=NTH)
    def reset_refused_by_state_pool(self, rare: int, nth: int) -> None:
        """Reset while the pool of states refuses one of the calls; all other memory must go back (X7)."""
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


MALFORMED = tuple(MALFORMED_CALLS)


class _BadInsert(NamedTuple):
    """The arguments of an incorrect insert, and whether it applies to this cache."""

    applies: object
    slots: list[int] | None
    protected: int = 0
    evicted: int = 0


class PrefixMachine(StateActs):
    """The machine that drives a prefix cache; acts that the adapter does not support are skipped."""

    # -- keys in and out -----------------------------------------------------------------------------------
    @act(which=(0, 2 * len(ALPHABETS) - 1))
    def use_tokens(self, which: int) -> None:
        """Switch to keys of other tokens and namespaces, or back to the usual ones, with equal chance."""
        self.alphabet = ALPHABETS[which] if which < len(ALPHABETS) else ALPHABETS[0]

    @looked_at(weight=4, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def match_key(self, pages: int, turn: int, other: int, style: int) -> None:
        """Match a key in the cache."""
        self.match(self.draw_key(pages, turn, other, style))

    @looked_at(weight=3, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def insert_fresh(self, pages: int, turn: int, other: int, style: int) -> None:
        """Insert new slots for a key, without matching it first."""
        self._insert_fresh(self.draw_key(pages, turn, other, style), style)

    @looked_at(
        needs="is_windowed",
        weight=4,
        pages=PAGES,
        turn=PAGES,
        other=PAGES,
        style=STYLE,
        protected=PICK,
        evicted=PAGES,
    )
    def insert_windowed(
        self, pages: int, turn: int, other: int, style: int, protected: int, evicted: int
    ) -> None:
        """Insert new slots with any valid ``prev_prefix_len`` and ``swa_evicted_seqlen``."""
        key = self.draw_key(pages, turn, other, style)
        self._insert_fresh(key, style, protected, self._frontier(key, evicted))

    @looked_at(
        needs="can_evict_windows", weight=2, pages=PAGES, turn=PAGES, style=STYLE, at=PAGES, hole=(1, 3)
    )
    def punch_hole(self, pages: int, turn: int, style: int, at: int, hole: int) -> None:
        """Make pages in the middle of a key dead, between live ones, and match the key."""
        size = self.page_size
        key = self.draw_key(pages, turn, turn, style)
        parts = [Key(key.tokens[: end * size], key.extra_key, key.form) for end in (at + hole, at)]
        self._insert_fresh(key, style)
        self.match(parts[0])
        self.match(parts[1])  # both split first: some trees count the lower half as used then
        self.match(key)
        self.match(parts[1])  # used later than what lies behind it
        self.look()
        self._evict(0, hole * size)
        self.look()
        for end in range(at + hole, len(key.tokens) // size + 1):
            self.match(Key(key.tokens[: end * size], key.extra_key, key.form))

    @looked_at(needs="can_evict_windows", weight=3, pages=PAGES, turn=PAGES, style=STYLE, at=PAGES, pick=PICK)
    def insert_up_to_a_hole(self, pages: int, turn: int, style: int, at: int, pick: int) -> None:
        """Insert a key up to a dead page, which must be refused; the caller keeps all slots (S7)."""
        if not self._dead_ends():
            self.punch_hole(pages=pages, turn=turn, style=style, at=at, hole=2)
        dead = self._dead_ends()
        # Of two that lie side by side the second could be revived, were the first one not in its window.
        pairs = [end for end in dead if self.model.parent(end) in dead]
        size = self.page_size
        is_pair = bool(pairs) and self.window is not None and self.window > size
        if dead:
            path = picked(pairs if is_pair else dead, pick)
            bound = len(path.tokens) - size * is_pair
            protected, evicted = (bound, 0) if is_pair and style % 2 else (0, bound)
            self._insert_fresh(Key(path.tokens, path.space.extra_key), style, protected, evicted)

    @looked_at(needs="can_evict_windows", weight=2, pages=PAGES, turn=PAGES, style=STYLE, at=PAGES, pick=PICK)
    def punch_another_hole(self, pages: int, turn: int, style: int, at: int, pick: int) -> None:
        """Make the beginning of such a path dead, so that its live part is shorter than a window (S1)."""
        size, ends, cached = self.page_size, self.model.page_ends, self.model.pages
        paths = self._paths_with_a_hole()
        if not paths:
            longest = max(pages, 4 * (1 + (size > 1)))
            first = 2 + at % max(1, longest // (1 + (size > 1)) - 3)
            self.punch_hole(pages=longest, turn=turn, style=style, at=first, hole=1)
            paths = self._paths_with_a_hole()
        assert self.window is not None
        if not paths:
            return
        whole = picked(paths, pick)
        live = next(number for number, end in enumerate(ends(whole)) if not cached[end].alive)
        between = 1 + at % max(1, -(-self.window // size) - 1)
        begins = max(1, live - between)
        self.match(Key(whole.tokens[: begins * size], whole.space.extra_key))
        key, slots = Key(whole.tokens, whole.space.extra_key), self.model.slots(whole)
        self.insert(key, slots, style, len(key.tokens) if self.follows_windows else 0)  # used later
        self._evict(0, begins * size)
        self.look()
        for end in ends(whole)[begins:]:
            self.match(Key(end.tokens, end.space.extra_key))

    def _paths_with_a_hole(self) -> list[Path]:
        """Return the paths to leaves with live first two and last pages and dead pages in between."""
        pages, ends = self.model.pages, self.model.page_ends
        leaves = [end for end in pages if end not in self.model.children]
        alive = {leaf: [pages[end].alive for end in ends(leaf)] for leaf in leaves}
        return [leaf for leaf, flags in alive.items() if all(flags[:2]) and flags[-1] and not all(flags)]

    def _dead_ends(self) -> list[Path]:
        return [end for end, page in self.model.pages.items() if not page.alive]

    @looked_at(weight=5, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, evicted=PAGES, keep=(0, 2))
    def request(self, pages: int, turn: int, other: int, style: int, evicted: int, keep: int) -> None:
        """Serve a request as an engine does: match, hold, make room, compute, insert, and hold the result."""
        key = self.draw_key(pages, turn, other, style)
        step, matched = self.match(key)
        held = self.lock(step) if matched else None
        fresh = self.allocate(len(key.tokens) - len(matched))
        if fresh is not None:
            slots, hit = [*matched, *fresh], len(matched)
            frontier = self._frontier(key, evicted)
            self.free_halves(slots[hit:frontier], style)
            inserted = self.insert(key, slots[: len(key.tokens)], style, hit, frontier)
            hold = self.lock(inserted) if inserted is not None and keep < 2 else None
            if hold is not None and keep:
                self.unlock(hold)
            self.give_back(fresh, style)
        if held is not None:
            self.unlock(held)

    @looked_at(weight=3, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, drafts=PAGES)
    def reject_drafts(self, pages: int, turn: int, other: int, style: int, drafts: int) -> None:
        """Insert the accepted part of drafted tokens, then reuse or free the slots of rejected drafts.

        What was rejected must not be found, whatever comes into its slots.
        """
        key, tail = self.draw_key(pages, turn, other, style), self.draw_key(pages, other, turn, style)
        step, matched = self.match(key)
        held = self.lock(step) if matched else None
        fresh = self.allocate(len(key.tokens) - len(matched))
        if fresh is not None:
            slots = [*matched, *fresh]
            verified = max(len(matched), len(key.tokens) - drafts)
            self._hand_over(key.tokens[:verified], key, slots, style)
            if drafts % 2:
                self._hand_over(key.tokens[:verified] + tail.tokens[verified:], key, slots, style)
            self.match(key)
            self.give_back(fresh, style)
        if held is not None:
            self.unlock(held)

    def _hand_over(self, tokens: tuple[Token, ...], like: Key, slots: list[int], style: int) -> None:
        """Insert tokens with their cached slots, followed by slots of the caller."""
        key = fitting(Key(tokens, like.extra_key, like.form))
        _, matched = self.match(key)
        rest = slots[len(matched) : len(tokens)]
        if not self.has_pool or all(self.ownership.owner(slot) is Owner.CALLER for slot in rest):
            self.insert(key, [*matched, *rest], style, len(matched))

    @looked_at(
        needs="dimensions", weight=2, pages=PAGES, turn=PAGES, style=STYLE, filled=FILLED, place=PICK, way=WAY
    )
    def ask_under_other_values(
        self, pages: int, turn: int, style: int, filled: int, place: int, way: int
    ) -> None:
        """Insert a key under values of all namespace dimensions, and match it under similar values (K2).

        Such as those with the first two exchanged, where there are several dimensions.
        """
        key = self.draw_key(pages, turn, turn, style)
        values, alike = alike_values(self.dimensions, filled, place, way)
        exchanged = [*values]
        if len(self.dimensions) > 1:
            one, two = self.dimensions[:2]
            exchanged[one], exchanged[two] = values[two], values[one]
        for at, asked in enumerate((values, exchanged, alike)):
            again = Key(key.tokens, namespace_of(asked), key.form)
            if not at or (at == 2 and place % 2):
                self._insert_fresh(again, style)
                stored = self.model.stored(path_of_key(again))
                if stored and self.has_states:  # without a state, no match would find the key
                    self._add_state(stored[-1], style)
            self.match(again)

    @looked_at(weight=2, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, evicted=PAGES)
    def reinsert_stored(self, pages: int, turn: int, other: int, style: int, evicted: int) -> None:
        """Insert the slots of the whole cached prefix again, dead pages included."""
        key = self.draw_key(pages, turn, other, style)
        stored = self.model.stored(path_of_key(key))
        if stored:
            length = len(stored[-1].tokens)
            again = Key(key.tokens[:length], key.extra_key, key.form)
            slots = self.model.slots(stored[-1])
            protected = length if self.follows_windows else 0  # or the cache would free its own as duplicates
            self.insert(again, slots, style, protected, min(evicted * self.page_size, length))

    @looked_at(pages=PAGES, turn=PAGES, style=STYLE)
    def insert_token_ids(self, pages: int, turn: int, style: int) -> None:
        """Insert a key without slots, in a cache without a pool."""
        key = self.draw_key(pages, turn, turn, style)
        if not self.has_pool and path_of_key(key).space.width == 1:
            self.insert(key, None, style)

    # -- eviction ------------------------------------------------------------------------------------------
    @looked_at(needs="can_evict", weight=2, tokens=TOKENS, window_tokens=TOKENS)
    def evict(self, tokens: int, window_tokens: int) -> None:
        """Evict some tokens from the cache."""
        self._evict(tokens, window_tokens)

    @looked_at(needs="can_evict", weight=2, tokens=TOKENS)
    def evict_full(self, tokens: int) -> None:
        """Evict full tokens only, and no window memory."""
        self._evict(tokens, 0)

    @looked_at(needs="can_evict_secondary", weight=3, window_tokens=TOKENS)
    def evict_windows(self, window_tokens: int) -> None:
        """Evict only windows or states."""
        self._evict(0, window_tokens)

    @looked_at(rare=RARE)
    def reset(self, rare: int) -> None:
        """Reset the cache, even with holds outstanding."""
        if not rare:
            self.do(Reset())

    # -- what fails ----------------------------------------------------------------------------------------
    @looked_at(needs="can_fail_callback", weight=2, tokens=TOKENS, window_tokens=TOKENS, nth=NTH)
    def evict_with_failing_callback(self, tokens: int, window_tokens: int, nth: int) -> None:
        """Evict with callbacks that raise errors; the eviction must be complete nevertheless (X2)."""
        self.arm("callback", nth)
        self._evict(tokens, window_tokens)

    @looked_at(needs="can_fail_callback", tokens=TOKENS, window_tokens=TOKENS, nth=NTH)
    def evict_with_calling_callback(self, tokens: int, window_tokens: int, nth: int) -> None:
        """Evict with callbacks that call the cache; these calls must be refused without effect (X6)."""
        self.arm("reenter", nth)
        self._evict(tokens, window_tokens)

    @looked_at(needs="can_fail_eviction", weight=3, tokens=TOKENS, window_tokens=TOKENS, call=(0, 1))
    def evict_refused_by_pool(self, tokens: int, window_tokens: int, call: int) -> None:
        """Evict while the pool refuses one of the calls, then evict again; the order must stay (X2)."""
        self.arm(("free", "free_swa")[call])
        # A small first phase leaves windows to the second: the call for these comes before the other.
        self._evict(tokens if call else min(tokens, self.page_size), window_tokens)
        self._evict(tokens, window_tokens)

    @looked_at(
        needs="can_fail_pool", weight=5, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, call=(0, 1)
    )
    def insert_refused_by_pool(self, pages: int, turn: int, other: int, style: int, call: int) -> None:
        """Insert while the pool refuses one of the calls (X2); halves move if a tombstone is held."""
        ends, cached = self.model.page_ends, self.model.pages
        paths = (hold.path for hold in self.model.holds.values())
        held = [path for path in paths if not all(cached[end].alive for end in ends(path))]
        if call and held:
            path = picked(held, pages + turn)
            key = Key(path.tokens, path.space.extra_key)
        else:
            key = self.draw_key(pages, turn, other, style)
        self._insert_fresh(key, style, refused=("free", "move_swa")[call])

    @looked_at(needs="can_fail_pool", rare=RARE)
    def reset_refused_by_pool(self, rare: int) -> None:
        """Reset while the pool refuses a call; the tree must be dropped nevertheless (X7)."""
        if not rare:
            self.arm("free")
            self.do(Reset())

    # -- holds ---------------------------------------------------------------------------------------------
    @looked_at(needs="live", weight=4, pick=PICK)
    def lock_node(self, pick: int) -> None:
        """Hold a node; where that is refused, in half of the draws a node with a dead window."""
        dead = [handle for handle in self.live if not self.model.is_usable(handle.path)]
        usable = [handle for handle in self.live if handle not in dead and self._may_hold(handle.path)]
        is_refused = self.can_refuse and not self.follows_windows
        choices = dead if is_refused and dead and pick % 2 else usable
        if choices:
            self.lock(picked(choices, pick).step)

    @looked_at(needs="holds", weight=2, pick=PICK)
    def unlock_hold(self, pick: int) -> None:
        """Release a hold."""
        self.unlock(picked(self.holds, pick))

    @looked_at(needs="holds", rare=RARE)
    def unlock_all(self, rare: int) -> None:
        """Release every hold."""
        for lock in self.holds if not rare else ():
            self.unlock(lock)

    @looked_at(needs="holds", pick=PICK, other=PICK)
    def unlock_with_other_token(self, pick: int, other: int) -> None:
        """Release a hold with another hold's token, or with none."""
        if self.is_windowed and self.can_refuse and "hold_tokens" in self.capabilities:
            self.do(Unlock(picked(self.holds, pick), token=picked([0, *self.holds], other)))

    @looked_at(needs="released", weight=2, pick=PICK)
    def unlock_again(self, pick: int) -> None:
        """Release a hold that has been released already."""
        if self.can_refuse:
            self.do(Unlock(picked(self.released, pick)))

    @looked_at(needs="live", pick=PICK)
    def unlock_unheld(self, pick: int) -> None:
        """Release a node that is not held itself, although a node below it is held."""
        handle = picked(self.live, pick)
        below = [lock for lock, hold in self.model.holds.items() if handle.path.covers(hold.path)]
        is_held = any(hold.path == handle.path for hold in self.model.holds.values())
        if below and not is_held and self.can_refuse:
            self.do(Unlock(below[pick % len(below)], at=handle.step))

    @looked_at(needs="stale", pick=PICK, way=(0, 2))
    def use_stale_node(self, pick: int, way: int) -> None:
        """Use a node that has left the tree."""
        step = picked(self.stale, pick).step
        if way == 0:
            self.do(Lock(step))
        elif way == 1 and "hashes" in self.capabilities:
            self.do(Hash(step))
        elif self.released:
            self.do(Unlock(self.released[-1], at=step))

    @looked_at(needs="live", weight=5, pick=PICK)
    def hash_node(self, pick: int) -> None:
        """Hash a node and its ancestors, in half of the draws a node in a namespace (H3)."""
        named = [handle for handle in self.live if handle.path.space.extra_key is not None]
        if "hashes" in self.capabilities:
            self.do(Hash(picked(named if named and pick % 2 else self.live, pick).step))

    # -- bad arguments -------------------------------------------------------------------------------------
    @looked_at(needs="can_refuse", weight=2, which=(0, len(MALFORMED) - 1))
    def pass_nonsense(self, which: int) -> None:
        """Pass an argument that no caller may pass (X1)."""
        self.do(Malformed(*MALFORMED[which]))

    @looked_at(needs="can_refuse", weight=2, pages=PAGES, turn=PAGES, style=STYLE, fault=(0, 10))
    def insert_badly(self, pages: int, turn: int, style: int, fault: int) -> None:
        """Insert with one argument out of range, which must raise an error and change nothing (X1)."""
        key = self.draw_key(pages, turn, turn, style)
        slots = self.allocate(len(key.tokens))
        if slots is not None:
            inserts = self._bad_inserts(key, slots[: len(key.tokens)])
            # What is not wrong here leaves its turn to slots that are too few, or too many.
            bad = inserts[fault] if inserts[fault].applies else inserts[fault % 2]
            if bad.applies:
                self.insert(key, bad.slots, style, bad.protected, bad.evicted)
            self.give_back(slots, style)

    def _bad_inserts(self, key: Key, slots: list[int]) -> list[_BadInsert]:
        size, length = self.page_size, len(key.tokens)
        windowed = self.is_windowed and not self.follows_windows
        has_bounds = not (self.has_states or self.follows_windows)
        path = path_of_key(key)
        cached = len(self.model.stored(path)) * size
        needs_slots = self.has_pool or path.space.width > 1
        return [
            _BadInsert(length, slots[:-1]),
            _BadInsert(length, [*slots, *slots[:1]]),
            _BadInsert(self.has_pool and size > 1 and length >= size, slots[::-1]),
            _BadInsert(needs_slots and length, None),
            _BadInsert(has_bounds, slots, protected=length + 1),
            _BadInsert(windowed and length - cached >= size, slots, protected=cached + size),
            _BadInsert(has_bounds, slots, protected=-1),
            _BadInsert(has_bounds, slots, evicted=(length // size + 1) * size),
            _BadInsert(windowed and size > 1 and length, slots, evicted=1),
            _BadInsert(has_bounds, slots, evicted=-size),
            _BadInsert(
                windowed and self.has_halves and length >= size, slots, evicted=size
            ),  # halves are left
        ]

    @looked_at(needs="can_refuse", weight=3, pages=PAGES, turn=PAGES, style=STYLE)
    def insert_without_halves(self, pages: int, turn: int, style: int) -> None:
        """Insert, as live, slots whose SWA halves were freed, which must raise an error (X1)."""
        key = self.draw_key(pages, turn, turn, style)
        if style % 2 and self.can_evict_secondary:
            self._evict(0, turn)
        dead = [handle.path for handle in self.live if not self.model.is_usable(handle.path)]
        if dead and style % 2:  # nothing new, so that only pages which are to be revived can lack a half
            path = picked(dead, turn)
            key = Key(path.tokens, path.space.extra_key)
        is_refused = self.is_windowed and self.has_halves and not self.follows_windows
        slots = self.allocate(len(key.tokens)) if is_refused else None
        if slots is not None:
            self.free_halves(slots, style)
            self.insert(key, slots[: len(key.tokens)], style)
            self.give_back(slots, style)

    # -- the caller's memory -------------------------------------------------------------------------------
    @looked_at(needs="has_pool", pages=(1, 6))
    def hoard_slots(self, pages: int) -> None:
        """Keep slots so that the pool runs short, perhaps only some slots of the last page (A3)."""
        if len(self.ownership.callers_slots()) <= self.pool_slots // 3:
            self.allocate(pages * self.page_size - pages % self.page_size, whole=False)

    @looked_at(needs="has_pool", style=STYLE)
    def give_hoard_back(self, style: int) -> None:
        """Free all memory of the caller, including leftovers of a refused reset.

        Any slot of a page stands for all of it, and every second time it is the last one that has a name.
        """
        slots = self.ownership.callers_slots()
        last = {slot // self.page_size: slot for slot in slots}
        self.give_back(last.values() if style % 2 else slots, style)

    @act(needs="has_halves")
    def read_halves(self) -> None:
        """Read the SWA half of every slot of the pool, free or not (S2, A7)."""
        self.do(ReadHalves((Span(0, self.page_size, self.page_size + self.pool_slots),)))

    # -- drawing small, deriving big -----------------------------------------------------------------------
    def _evict(self, tokens: int, window_tokens: int) -> None:
        self.do(Evict(amount(tokens), amount(window_tokens)))

    def _frontier(self, key: Key, draw: int) -> int:
        """Return a ``swa_evicted_seqlen``: any whole pages, the most that an engine may use, or one less."""
        size: int = self.page_size
        whole = len(key.tokens) // size * size
        if draw % 2 or self.window is None:
            return min(draw * size, whole)
        allowed: int = (whole - self.window) // size - draw % 4 // 2
        return max(0, allowed) * size

    def _insert_fresh(
        self, key: Key, style: int, protected: int = 0, evicted: int = 0, refused: str = ""
    ) -> None:
        slots = self.allocate(len(key.tokens))
        if slots is None:
            return
        self.free_halves(slots[:evicted], style)
        cached = len(self.model.stored(path_of_key(key))) * self.page_size
        # Where windows are followed, what was known before is the cache's own.
        known = 0 if self.follows_windows else cached + self.page_size - 1
        protected = min(protected, len(key.tokens), known)
        if refused:
            self.arm(refused)
        self.insert(key, slots[: len(key.tokens)], style, protected, evicted)
        self.give_back(slots, style)
