"""The pages and states that an eviction took from a prefix cache, and whether the laws permit the choice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict
from pymllm.history.outcomes import Evicted, Outcome
from pymllm.oracle.models.kind_model import DONE, STRUCK
from pymllm.oracle.models.prefix_model import Path
from pymllm.oracle.models.prefix_seen import (
    GARBLED,
    HIDDEN,
    NOTHING,
    OLDER,
    TOO_MANY,
    Odd,
    Returned,
    SeenEvict,
    sort_effects,
    spell,
    tell_apart,
    tell_states_apart,
)
from pymllm.oracle.models.prefix_tracker import PrefixTracker
from pymllm.oracle.models.prefix_victims import (
    Taken,
    is_explained,
    is_state_eviction_explained,
    plan_evictions,
    plan_state_eviction,
)
from pymllm.oracle.models.slot_ownership import Owner, TrackOwnership


class EvictionModel(PrefixTracker):
    """The part of the cache model that reads and records evictions of pages, windows and states."""

    def read_evict(self, operation: Evict, outcome: Outcome) -> SeenEvict:
        """Read which pages and states an eviction took, and whether the laws permit the choice."""
        calls, has_states = sort_effects(outcome.effects), self.tracks is not None
        if not self.can_follow_evictions:
            raise ProgramError(
                "victims that no pool sees can be followed only where exact_lru or exact_policy is claimed"
            )
        has_second = has_states or self.cache.window is not None
        secondary = operation.secondary if has_second else 0
        seen = SeenEvict(
            outcome.result,
            calls=calls,
            tokens=operation.tokens,
            secondary=secondary,
            sizes=outcome.sizes,
            is_for_tokens=operation.tokens > 0 or not has_second,
        )
        is_struck = self.is_struck(outcome, "free", "free_state" if has_states else "free_swa")
        if not is_struck:
            self._read_counts(seen, outcome)
            if not isinstance(seen.result, Evicted):
                return seen
        self._read_victims(seen)
        if seen.fate == GARBLED:
            return seen
        if is_struck:
            seen.fate, seen.allowed = STRUCK, list(self._plan(seen))
            if seen.tombstoned is None:
                seen.tombstoned = self._dead_by_sizes(seen.allowed, outcome)
            seen.taken = self._taken(seen)
        elif self.fault is not None and self._hides_eviction(seen):
            seen.fate = HIDDEN
        elif self.is_ordered:
            # An engine looks at no nodes, so that there may be dozens of sets: mostly one of the first is it.
            seen.taken = next((taken for taken in self._plan(seen) if seen.fits(taken)), None)
            if seen.taken is None:
                seen.odd = self._tell_apart(seen, list(self._plan(seen)))
        else:
            seen.taken = self._taken(seen)
            if not self._is_explained(seen):
                what = "memory evicted" if has_states else "pages evicted"
                seen.odd = TOO_MANY, what, "none but what was needed", spell(seen.gone)
            elif "ranked_policy" in self.claims:
                seen.odd = self._out_of_rank(seen)
        if seen.taken is not None and "callbacks" in self.claims:
            seen.ids = self.nodes.ids_of(seen.taken.removed)
        return seen

    def _read_counts(self, seen: SeenEvict, outcome: Outcome) -> None:
        """Read the counts of an eviction, or derive them from sizes if a callback's error hides them."""
        result, has_states = outcome.result, self.tracks is not None
        if isinstance(result, Evicted):
            seen.full, seen.swa, seen.told_states = result.full, result.swa, result.states
        elif self.is_struck(outcome, "callback"):
            seen.is_raised = True
            now = outcome.sizes
            gone = {name: size - now[name] for name, size in self.cache.sizes().items() if name in now}
            seen.full = gone.get("total_size")
            if {"swa_evictable_size", "swa_protected_size"} <= gone.keys():
                seen.swa = gone["swa_evictable_size"] + gone["swa_protected_size"]
            seen.result = Evicted(0)
        if has_states and seen.is_raised:
            seen.swa = 0

    def _read_victims(self, seen: SeenEvict) -> None:
        """Find the pages of the slots and halves that went back to the pool, and the states that went."""
        calls, has_window = seen.calls, self.cache.window is not None
        none: frozenset[Path] = frozenset()
        is_readable = True
        if not self.has_pool:
            seen.tombstoned = None if has_window else none
        else:
            seen.freed = self._pages_of(calls.freed)
            seen.removed = seen.gone = seen.freed.pages
            if has_window:
                has_half = self.ownership.has_half
                seen.gone_halves = [slot for slot in calls.halves if not has_half(slot)]
                seen.halves = self._pages_of([slot for slot in calls.halves if has_half(slot)])
                seen.tombstoned = seen.halves.pages - seen.removed if self.has_halves else None
            else:
                seen.tombstoned = none
                is_readable = not calls.halves
        if self.tracks is not None:
            seen.states = self._states_of(self.tracks, calls.states)
        is_whole = seen.freed.is_whole and seen.halves.is_whole and seen.states.is_whole
        if not (is_readable and is_whole) or seen.gone_halves:
            seen.fate = GARBLED

    def _pages_of(self, slots: Sequence[int]) -> Returned:
        """Return the cached pages that have these slots."""
        if not slots:
            return NOTHING
        owners, pages = self.ownership.owners(slots), self.ownership.places(slots)
        foreign = {slot: owner for slot, owner in owners.items() if owner is not Owner.CACHE}
        parts = [slot for path in pages for slot in self.cache.pages[path].slots if slot not in owners]
        return Returned(pages, _twice(slots, owners), foreign, sorted(parts))

    @staticmethod
    def _states_of(tracks: TrackOwnership, slots: Sequence[int]) -> Returned:
        """Return the prefixes that lost states, by the track slots that went back to their pool."""
        if not slots:
            return NOTHING
        owners = {slot: tracks.owner(slot) for slot in slots}
        foreign = {slot: owner for slot, owner in owners.items() if owner is not Owner.CACHE}
        places = frozenset([path for path, slot in tracks.ends.slots.items() if slot in owners])
        return Returned(places, _twice(slots, owners), foreign)

    def _plan(self, seen: SeenEvict) -> Iterator[Taken]:
        """Yield each permitted choice of an eviction, in the claimed order if an order is claimed."""
        if self.is_ordered and self.tracks is not None:
            ends, asked = self.tracks.ends, (seen.tokens, seen.secondary)
            if "state_leaves" not in self.claims:  # bare leaves may stay, and be victims like others
                yield plan_state_eviction(self.cache, ends, *asked, seen.gone.__contains__)
            if "state_leaves" in self.claims or seen.removed is None:
                yield plan_state_eviction(self.cache, ends, *asked)
        elif self.is_ordered:
            yield from plan_evictions(self.cache, seen.tokens, seen.secondary, self.nodes.cut)

    def _tell_apart(self, seen: SeenEvict, allowed: list[Taken]) -> Odd:
        """Return words for how an eviction differs from all choices that the claimed order permits."""
        if self.tracks is not None:
            return tell_states_apart(seen, allowed[0])
        first = plan_evictions(self.cache, seen.tokens, 0, self.nodes.cut) if seen.secondary > 0 else ()
        return tell_apart(seen, allowed, {taken.full for taken in first})

    def _is_explained(self, seen: SeenEvict) -> bool:
        """Tell whether an eviction took no more pages than needed, whatever their order.

        A cache whose windows are followed takes of them what it likes, and with them what it must. One that
        shows its nodes joins none (R10), nor does one whose nodes are pages.
        """
        may_join = self.splits and "inspect" not in self.claims
        asked, gone = (seen.tokens, seen.secondary), seen.gone
        if self.follows_windows:
            if seen.secondary > 0:
                return True
            return is_explained(self.cache, gone, frozenset(), seen.tokens, 0, may_join=may_join)
        if self.tracks is None:
            tombstoned = seen.tombstoned or frozenset()
            return is_explained(self.cache, gone, tombstoned, *asked, may_join=may_join)
        alone = seen.states.pages if "lone_states" in self.claims else seen.states.pages - gone
        return is_state_eviction_explained(self.cache, gone, seen.states.pages, alone, *asked)

    def _out_of_rank(self, seen: SeenEvict) -> Odd | None:
        """Return words for a leaf that stayed although a page of larger rank was evicted (R11)."""
        cache, gone, rank = self.cache, seen.gone, self.cache.rank
        assert rank is not None
        leaves = (path for path in cache.pages.keys() - gone if path not in cache.children)
        stays = {path: rank(cache.pages[path]) for path in leaves if not cache.pages[path].locks}
        if not (gone and stays):
            return None
        last, first = max(rank(cache.pages[path]) for path in gone), min(stays.values())
        before = spell([path for path in stays if stays[path] == first])
        return (OLDER, "pages evicted", f"with {before}", spell(gone)) if first < last else None

    def _taken(self, seen: SeenEvict) -> Taken:
        """Return the pages, windows and states that the outcome shows as evicted."""
        gone, tombstoned, size = seen.gone, seen.tombstoned or frozenset(), self.page_size
        alive = 0
        if self.cache.window is not None:
            alive = sum(self.cache.pages[path].alive for path in gone | tombstoned)
        return Taken(tuple(gone), tombstoned, len(gone) * size, alive * size, states=seen.states.pages)

    def _dead_by_sizes(self, allowed: list[Taken], outcome: Outcome) -> frozenset[Path]:
        """Work out from the sizes which windows an eviction freed without a pool call."""
        before = self.cache.sizes()
        names = ("swa_evictable_size", "swa_protected_size")
        gone = sum(before[name] - outcome.sizes.get(name, before[name]) for name in names)
        sets = (taken.tombstoned for taken in allowed if len(taken.tombstoned) * self.page_size == gone)
        return next(sets, frozenset())

    def _hides_eviction(self, seen: SeenEvict) -> bool:
        """Tell whether a call that was made to fail explains pages or states missing from the pool (X2)."""
        size, before, names, gone = self.page_size, self.cache.sizes(), seen.calls.names, seen.gone
        second = "free_swa" if self.tracks is None else "free_state"
        hides_all, hides_second = self.may_hide("free", names), self.may_hide(second, names)
        evictable = before["swa_evictable_size" if self.tracks is None else "mamba_evictable_size"]
        due, due_second = min(seen.tokens, before["evictable_size"]), min(seen.secondary, evictable)
        if due <= 0 and due_second <= 0:
            return False  # no call had to be made
        lacks_pages = seen.removed is not None and len(gone) * size < max(due, seen.full or 0)
        if self.tracks is not None:
            hides_second = hides_second and evictable > 0
            states, ends = seen.states.pages, self.tracks.ends
            lost = any(path in ends and path not in states for path in gone)
            lacks_states = lost or len(states) < max(due_second, seen.told_states or 0)
            return (hides_all or hides_second) and (lacks_pages or (hides_second and lacks_states))
        if seen.removed is None or not (hides_all or hides_second):
            return False
        alive = sum(self.cache.pages[path].alive for path in gone | (seen.tombstoned or frozenset()))
        lacks_windows = seen.tombstoned is not None and alive * size < max(due_second, seen.swa or 0)
        return (hides_all and lacks_pages) or lacks_windows

    def follow_evict(self, step: int, operation: Evict, seen: SeenEvict) -> None:
        """Remove the evicted pages and states; after a failed call the remaining ones stay."""
        cache, ownership, taken = self.cache, self.ownership, seen.taken
        assert taken is not None
        ownership.give_back_halves([slot for path in taken.tombstoned for slot in cache.pages[path].slots])
        ownership.give_back([slot for path in taken.removed for slot in cache.pages[path].slots])
        if cache.states is not None:
            cache.states.remove(taken.states)
            if seen.fate == DONE:
                alone = taken.states.intersection(cache.pages)
                cache.states.evicted = (cache.states.evicted | alone).difference(taken.removed)
        cache.commit_evict(taken.removed, taken.tombstoned)
        if seen.fate == DONE and "callbacks" in self.claims:
            nodes = (effect.node for effect in seen.calls.callbacks)
            self.nodes.called_back.update(node for node in nodes if node is not None)


def _twice(slots: Sequence[int], once: Collection[int]) -> list[int]:
    """Return the slots that are named more than once, in the order of ``once``."""
    if len(once) == len(slots):  # as nearly always, and counting each takes the square of their number
        return []
    return [slot for slot in once if slots.count(slot) > 1]
