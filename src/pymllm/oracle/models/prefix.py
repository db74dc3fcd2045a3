"""The model of prefix caches: the expected outcomes, and the state of pages, holds and pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pymllm.errors import ProgramError
from pymllm.history.operations import Hash, Insert, Inspect, Lock, Match, Reset, Unlock
from pymllm.history.outcomes import Hashes, Inserted, Inspected, Matched, Outcome
from pymllm.oracle.models.followed_windows import follow_insert, require_duties
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, STRUCK, Misuse, Seen
from pymllm.oracle.models.prefix_evictions import EvictionModel
from pymllm.oracle.models.prefix_model import InsertPlan, NotUsableError, Path
from pymllm.oracle.models.prefix_pools import CallersPools
from pymllm.oracle.models.prefix_seen import (
    FORGOTTEN,
    HIDDEN,
    NO_CALLS,
    Handle,
    HoldToken,
    SeenEvict,
    SeenInsert,
    SeenMatch,
    SeenNode,
    SeenReset,
    sort_effects,
)
from pymllm.oracle.models.prefix_victims import plan_room
from pymllm.oracle.models.shown_nodes import SeenLook
from pymllm.oracle.models.slot_ownership import Owner

_STALE = Misuse("a stale node is used", errors=("StaleNodeError",), needs="refuses_stale")
_DEAD_WINDOW = Misuse("a hold is refused on a dead window", "S5", ("ValueError",))
_NO_HOLD = Misuse("", "R6", ("LockError",), name="an unlock without that hold", needs="refuses_unheld")
_WRONG_TOKEN = Misuse("a wrong token is refused", "S5", ("LockError",), needs="refuses_unheld")
_WRONG_HALVES = Misuse("halves that were not returned are refused", "S7", ("OwnershipError",))


class CacheModel(CallersPools, EvictionModel):
    """The model of a prefix cache, by page, and of the pools below it, by slot."""

    def can_follow(self, seen: Seen) -> bool:
        """Tell whether the model still knows the state after a match, eviction or inspection broke a law."""
        if isinstance(seen, SeenMatch):
            return (*seen.result.slots,) == (*seen.found.slots,)
        if isinstance(seen, SeenLook):
            return seen.fate == DONE and not (seen.lost or seen.strangers)
        return isinstance(seen, SeenEvict) and seen.taken is not None

    # -- match and hash ------------------------------------------------------------------------------------

    def read_match(self, operation: Match, outcome: Outcome) -> SeenMatch:
        """Work out the result that a match must return."""
        key = self.path_of(operation.key)
        found = self.cache.find(key)
        elsewhere = [] if found.stored else self.other_spaces(key, self.page_size)
        return SeenMatch(outcome.result, key=key, found=found, elsewhere=elsewhere)

    def follow_match(self, step: int, operation: Match, seen: SeenMatch) -> None:
        """Record the hit of a match, with the slots and the node that it returned."""
        found, result = seen.found, seen.result
        assert isinstance(result, Matched)
        self.cache.commit_match(found.path)
        # Others look for what they cannot return, and split a node where that ends.
        is_lean = "lean_matches" in self.claims
        self.nodes.may_split([found.path] if is_lean else [found.path, seen.key.upto(found.stored)])
        self.ownership.record(step, result.slots)
        self._give(step, found.path)
        self.has_matched = bool(found.slots)

    def read_hash(self, operation: Hash, outcome: Outcome) -> Seen:
        """Read the hashes of a node, which must still exist."""
        handle = self._handle(operation.of)
        if "hashes" not in self.claims:
            raise ProgramError("hashes are not claimed")
        return self._read_node(handle, outcome)

    def follow_hash(self, step: int, operation: Hash, seen: SeenNode) -> None:
        """Remember the digests that the implementation chose itself."""
        assert isinstance(seen.result, Hashes)
        self._remember_hashes(seen.handle.path, seen.result.digests)

    def _remember_hashes(self, path: Path, digests: Sequence[str]) -> None:
        """Remember the reported hashes of the last pages of a path, where no claim determines them."""
        if "digests" not in self.claims and digests:
            self.hashes.update(zip(self.cache.page_ends(path)[-len(digests) :], digests, strict=True))

    # -- nodes and holds -----------------------------------------------------------------------------------

    def _give(self, step: int, path: Path) -> None:
        """Record the node at the end of a path as the result of a step."""
        page = self.cache.pages.get(path)
        self._handles[step] = Handle(path, page.birth if page else 0)

    def _handle(self, step: int) -> Handle:
        """Return the node that a step returned or locked; raise `ProgramError` if it did neither."""
        if step not in self._handles:
            raise ProgramError(f"step {step} gave no node")
        return self._handles[step]

    def _read_node(self, handle: Handle, outcome: Outcome) -> SeenNode:
        """Read the use of a node, which must be refused if the node has left the cache."""
        seen = SeenNode(outcome.result, handle=handle)
        page = self.cache.pages.get(handle.path)
        if handle.path.tokens and (page is None or page.birth != handle.birth):
            seen.fate, seen.wrong = REFUSED, (_STALE,)
        return seen

    def read_lock(self, operation: Lock, outcome: Outcome) -> SeenNode:
        """Work out the window and the token of a new hold."""
        seen = self._read_node(self._handle(operation.of), outcome)
        path = seen.handle.path
        is_bare = self.tracks is not None and path.tokens and path not in self.tracks.ends
        if is_bare and seen.fate == DONE and "bare_holds" not in self.claims:
            raise ProgramError("a hold without a state, and bare_holds is not claimed")
        if seen.fate == DONE:
            try:
                seen.hold = self.cache.plan_lock(seen.handle.path)
            except NotUsableError:
                if self.follows_windows:
                    raise ProgramError("a hold on a dead window, and windows are followed") from None
                seen.fate, seen.wrong = REFUSED, (_DEAD_WINDOW,)
            seen.token = getattr(outcome.result, "token", None)
        return seen

    def follow_lock(self, step: int, operation: Lock, seen: SeenNode) -> None:
        """Add a hold; a hold of the root protects nothing."""
        self._handles[step], self._given[step] = seen.handle, seen.token
        path, hold = seen.handle.path, seen.hold
        if path.tokens and hold is not None:
            self.tokens[step] = seen.token
            self.cache.commit_lock(step, hold)
            ends = self.cache.page_ends(path) if self.follows_windows else [path.upto(hold.edge)]
            self.nodes.may_split(ends)

    def read_unlock(self, operation: Unlock, outcome: Outcome) -> SeenNode:
        """Find the hold to release, by its token."""
        token = self._token(operation)
        seen = self._read_node(
            self._handle(operation.lock if operation.at is None else operation.at), outcome
        )
        path, seen.token = seen.handle.path, token
        if seen.fate == REFUSED or not path.tokens:
            return seen
        here = [number for number, hold in self.cache.holds.items() if hold.path == path]
        if not here:
            seen.fate, seen.wrong = REFUSED, (_NO_HOLD,)
            return seen
        seen.number, seen.here = operation.lock if operation.lock in here else here[0], len(here)
        has_tokens = self.cache.window is not None and "hold_tokens" in self.claims
        if has_tokens and token != self.tokens[seen.number]:
            seen.fate, seen.wrong = REFUSED, (_WRONG_TOKEN,)
        return seen

    def follow_unlock(self, step: int, operation: Unlock, seen: SeenNode) -> None:
        """Remove a hold."""
        if seen.here:
            self.cache.commit_unlock(seen.number)
            del self.tokens[seen.number]
            self.nodes.split_below.discard(seen.number)
            self.revived.discard(seen.number)

    def _token(self, operation: Unlock) -> HoldToken:
        if operation.token == 0:
            return None
        number = operation.lock if operation.token is None else operation.token
        for step in (number, operation.lock):
            if step not in self._given:
                raise ProgramError(f"step {step} took no hold")
        return self._given[number]

    # -- insert --------------------------------------------------------------------------------------------

    def read_insert(self, operation: Insert, outcome: Outcome) -> Seen:
        """Plan the effects that an insert must have, or find the mistake in its arguments."""
        key, result = self.path_of(operation.key), outcome.result
        slots = None if operation.slots is None else self.ownership.resolve(operation.slots)
        if not self.retains:
            plan = InsertPlan(key.upto(0), 0)
            return SeenInsert(result, FORGOTTEN, key=key, plan=plan, calls=NO_CALLS)
        state = self._state_of(operation)
        wrong = self._wrong_insert(key, slots, state)
        if wrong is not None:
            return Seen(result, REFUSED, (wrong,))
        if slots is None:
            slots = [token for token in key.tokens if isinstance(token, int)]
        self._require_ownership(self.cache.whole(key), slots)
        # To a cache with states they are options of another one, which it ignores.
        bounds = (operation.prev_prefix_len, operation.swa_evicted_seqlen) if self.tracks is None else (0, 0)
        try:
            plan = self.cache.plan_insert(key, slots, *bounds)
        except NotUsableError as error:
            if self.follows_windows:
                raise ProgramError(f"{error}: that is undefined where windows are followed") from None
            law = "X1" if self.cache.window is None else "S7"
            wrong = Misuse("a bad insert is refused", law, ("ValueError",), name=str(error))
            return Seen(result, REFUSED, (wrong,))
        self._make_room(plan)
        calls = sort_effects(outcome.effects)
        if self.follows_windows:
            require_duties(self.cache, self.ownership, plan.path, slots, bounds)
            adopted = getattr(result, "adopted", ())
            if not plan.refused or adopted or calls.names:
                place = (plan.path, slots, bounds[0], adopted)
                plan = follow_insert(self.cache, self.ownership, *place, calls)
        elif self._lacks_halves(plan):
            return Seen(result, REFUSED, (_WRONG_HALVES,))
        seen = SeenInsert(
            result,
            key=key,
            slots=slots,
            plan=plan,
            bounds=bounds,
            calls=calls,
            is_followed=self.follows_windows,
            state=state,
            finds_state=state is not None and self.tracks is not None and key in self.tracks.ends,
        )
        if not plan.has_room:
            seen.fate = NO_ROOM
        elif self.is_struck(outcome, "free", "move_swa"):
            seen.fate = STRUCK
        elif self.fault is not None and isinstance(result, Inserted) and self._hides_refusal(seen):
            seen.fate = HIDDEN
        return seen

    def _make_room(self, plan: InsertPlan) -> None:
        """Find the pages that a cache with its own memory evicts for new ones, and whether they suffice."""
        cache = self.cache
        missing = 0 if cache.room is None else len(cache.pages) + len(plan.new) - cache.room
        if missing > 0 and plan.new:
            plan.evicted = plan_room(cache, plan.path, plan.prefix_len, missing)
            plan.has_room = len(plan.evicted) == missing

    def _state_of(self, operation: Insert) -> int | None:
        """Return the track slot that an insert hands over, which must be the caller's."""
        if operation.state is None:
            return None
        if self.tracks is None:
            raise ProgramError("states are not claimed")
        return self.tracks.callers_slot(operation.state)

    def _wrong_insert(self, key: Path, slots: Sequence[int] | None, state: int | None) -> Misuse | None:
        """Return the mistake in the slots, regardless of their owners (R1), or in the key of a state (M1)."""
        what = self._wrong_slots(key, slots)
        if what:
            return Misuse("a bad insert is refused", "R1", ("ValueError",), name=what)
        if state is None or (key.tokens and self.cache.whole(key) == key):
            return None
        what = f"a state at the end of {len(key.tokens)} tokens"
        return Misuse("a state without a whole key is refused", "M1", ("ValueError",), name=what)

    def _wrong_slots(self, key: Path, slots: Sequence[int] | None) -> str:
        size = self.page_size
        if slots is None:
            return "an insert without slots" if self.has_pool or key.space.width > 1 else ""
        if len(slots) != len(key.tokens):
            return f"{len(slots)} slots for {len(key.tokens)} tokens"
        for start in range(0, len(key.tokens) // size * size, size) if self.has_pool else ():
            page = slots[start : start + size]
            first = page[0] // size * size
            if [*page] != [*range(first, first + size)]:
                return f"slots {page} of a page that are no page of the pool"
        return ""

    def _require_ownership(self, whole: Path, slots: Sequence[int]) -> None:
        """Raise `ProgramError` unless each page is the caller's, or the cache's own page at this place."""
        if not self.has_pool:
            return
        firsts = slots[: len(whole.tokens) : self.page_size]
        if len(set(firsts)) != len(firsts):
            raise ProgramError("the key has a slot twice")
        owners = self.ownership.owners(firsts)
        for end, slot in zip(self.cache.page_ends(whole), firsts, strict=True):
            if owners[slot] is not Owner.CALLER and self.ownership.place(slot) != end:
                whose = owners[slot].value
                raise ProgramError(f"slot {slot} is in the hands of {whose}, and not at this place")

    def _lacks_halves(self, plan: InsertPlan) -> bool:
        """Tell whether halves that an insert returned are still there, or needed halves are missing (S7)."""
        if self.cache.window is None or not self.has_halves:
            return False
        needed = {page.slots: page.alive for page in plan.new.values()}
        needed |= dict.fromkeys((*plan.replaced.values(), *map(tuple, plan.moved.values())), True)
        return any(self.ownership.has_half(slots[0]) != half for slots, half in needed.items())

    def _hides_refusal(self, seen: SeenInsert) -> bool:
        """Tell whether only the effects of a call that was made to fail are missing (X2)."""
        plan, calls = seen.plan, seen.calls
        is_part = set(calls.freed) <= set(plan.displaced) and calls.moves.items() <= plan.moves.items()
        lacks = {"move_swa": calls.moves != plan.moves, "free": len(calls.freed) < len(plan.displaced)}
        return is_part and any(lacks[call] and self.may_hide(call, calls.names) for call in lacks)

    def follow_insert(self, step: int, operation: Insert, seen: SeenInsert) -> None:
        """Record the slots adopted, revived and freed by an insert; halves moved before a failure stay."""
        ownership, plan = self.ownership, seen.plan
        if seen.fate == NO_ROOM:
            return
        if seen.fate == FORGOTTEN:
            self._give(step, plan.path)
            return
        ownership.write(seen.key, seen.slots)
        if seen.fate == STRUCK:
            self._revive(whole_moves(seen))
            self.nodes.may_split(plan.splits)
            return
        self.has_matched = False
        if self.tracks is not None and seen.state is not None:
            self.tracks.write(seen.state, seen.key)
            if not seen.finds_state:
                self.tracks.adopt(seen.key, seen.state)
        self._revive(plan.moved)
        ownership.give_back(plan.displaced)
        self.cache.commit_evict(plan.evicted, ())
        self.cache.commit_insert(plan, operation.priority)
        self.nodes.may_split(plan.splits)
        if not plan.refused:
            for end in (*plan.new, *plan.replaced):
                ownership.adopt(end, self.cache.pages[end].slots)
            self.cache.commit_evict((), plan.fallen)
            ownership.give_back_halves([slot for slots in plan.fallen.values() for slot in slots])
            self._give(step, plan.path)
        elif seen.result.node_len is not None:
            self._give(step, plan.path.upto(seen.result.node_len))

    def _revive(self, moved: dict[Path, dict[int, int]]) -> None:
        """Give the incoming SWA halves to locked pages."""
        moves = {source: target for halves in moved.values() for source, target in halves.items()}
        self.ownership.move_halves(moves)
        for end in moved:
            holds = self.cache.holds.items()
            self.revived.update(number for number, hold in holds if end.covers(hold.path))
        self.cache.commit_moves(moved)

    # -- reset and looks -----------------------------------------------------------------------------------

    def read_reset(self, operation: Reset, outcome: Outcome) -> SeenReset:
        """Read the pool calls of a reset, next to all slots and states of the cache."""
        states, calls = self.cache.states, ("free", "free_state")
        return SeenReset(
            outcome.result,
            calls=sort_effects(outcome.effects),
            slots=[slot for page in self.cache.pages.values() for slot in page.slots]
            if self.has_pool
            else [],
            states=[] if states is None else list(states.slots.values()),
            struck=next((call for call in calls if self.is_struck(outcome, call)), ""),
        )

    def follow_reset(self, step: int, operation: Reset, seen: SeenReset) -> None:
        """Empty the cache; slots that a failing call did not take become the caller's."""
        self.cache.reset()
        if self.tracks is not None:
            self.tracks.disown(set(seen.states) - set(seen.calls.states))
        self.ownership.give_back(seen.calls.freed)
        self.ownership.disown((Counter(seen.slots) - Counter(seen.calls.freed)).elements())
        self.tokens.clear()
        self.revived.clear()
        self.nodes.split_below.clear()

    def read_inspect(self, operation: Inspect, outcome: Outcome) -> Seen:
        """Read the nodes that an inspection shows, page by page."""
        if "inspect" not in self.claims:
            raise ProgramError("nodes to look at are not claimed")
        shown = outcome.result
        if not isinstance(shown, Inspected):
            return Seen(shown)
        long = [] if self.splits else [it.id for it in shown.nodes if len(it.tokens) > self.page_size]
        if long:
            raise ProgramError(f"nodes {long} have several pages, and the configuration's splits is false")
        return self.nodes.read(shown)

    def follow_inspect(self, step: int, operation: Inspect, seen: SeenLook) -> None:
        """Remember the nodes that an inspection showed."""
        for path, node in seen.ends.values():
            self._remember_hashes(path, node.page_hashes or ())
        self.nodes.follow(seen)


def whole_moves(seen: SeenInsert) -> dict[Path, dict[int, int]]:
    """Return the pages all of whose halves had moved when the pool refused a call, with the moves."""
    moved = seen.calls.moves.keys()
    return {end: moves for end, moves in seen.plan.moved.items() if moves.keys() <= moved}
