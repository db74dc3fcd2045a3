"""The base of the cache model: the state of a prefix cache and of its pools, without any operation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.asked import dimensions_of
from pymllm.history.files import Header
from pymllm.history.operations import Fault, Key, Operation, TakeEvents, Token
from pymllm.history.outcomes import INJECTED, CacheEvent, Failed, Outcome
from pymllm.oracle.models.kind_model import KindModel, Seen
from pymllm.oracle.models.policy_ranks import find_rank, known_policies
from pymllm.oracle.models.prefix_model import Path, PrefixModel, Rank, Space, StateEnds, path_of_key
from pymllm.oracle.models.prefix_seen import Handle, HoldToken
from pymllm.oracle.models.prefix_victims import Taken
from pymllm.oracle.models.shown_nodes import ShownNodes
from pymllm.oracle.models.slot_model import PageModel, WindowModel
from pymllm.oracle.models.slot_ownership import SlotOwnership, TrackOwnership
from pymllm.oracle.models.told_events import EventFold, SeenEvents


def _below(above: Path | None, event: CacheEvent, hash: object, tokens: tuple[Token, ...]) -> Path:
    if above is not None:
        return above.longer_by(tokens)
    width = len(tokens[0]) if isinstance(tokens[0], tuple) else 1
    return Path(Space(event.extra_key, width), tokens)


class PrefixTracker(KindModel):
    """The owner of each page and slot, and every size; subclasses add the operations.

    Of the configuration it reads ``page_size``; ``window``; ``pool`` (``none``, ``token`` or ``swa``),
    ``slots`` and ``swa_slots``; ``retains``, false for a cache that keeps nothing; ``track_slots`` where
    states are kept; ``splits``, false for a cache whose every node is one page; ``policy``, which orders
    leaves; ``capacity``, of a cache that takes its memory by itself.
    """

    KIND: ClassVar[str] = "prefix"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.page_size = size = self.number("page_size")
        window = None if self.config.get("window") is None else self.number("window")
        pool = str(self.config.get("pool", "none"))
        self.splits = self.config.get("splits", True) is not False
        self.retains = self.config.get("retains", True) is not False
        self.tests_each_size = not self.retains
        self._check_claims(pool, window)
        self.has_pool, self.has_halves = pool != "none", pool == "swa"
        states = StateEnds() if "mamba" in self.claims else None
        self.tracks = None if states is None else TrackOwnership(self.number("track_slots"), states)
        self.cache = PrefixModel(
            size,
            window,
            has_pool=self.has_pool,
            can_move=self.has_halves,
            states=states,
            rank=self._rank_of_policy(),
            room=self._own_room(pool, window),
        )
        slots = self._whole_pages("slots") if self.has_pool else 0
        self.ownership = SlotOwnership(
            pool, size, slots, self._whole_pages("swa_slots") if self.has_halves else 0
        )
        self.follows_windows = window is not None and "exact_windows" not in self.claims
        self.nodes = ShownNodes(self.cache, "hit_counts" in self.claims, not self.follows_windows)
        self.told: Mapping[str, int] = {}  # the sizes that the last operation told
        self.fault: Fault | None = None  # what the next operation, or the one in progress, is to meet
        self.has_matched = False  # the last match of a key that was not inserted since found something
        self.tokens: dict[int, HoldToken] = {}  # what each outstanding hold was given, by its `Lock`
        self.revived: set[int] = set()  # holds with a page on their paths that was revived meanwhile
        self.events = EventFold(size, _below)
        self.hashes: dict[Path, str] = {}  # of pages, as they were told, where no digests are claimed
        self._handles: dict[int, Handle] = {}
        self._given: dict[int, HoldToken] = {}

    def _whole_pages(self, key: str) -> int:
        """Return the size of a pool, which must be a whole number of pages (A1)."""
        value = self.number(key)
        if value % self.page_size:
            raise ProgramError(
                f"the configuration's {key} is {value}; it must be a multiple of page_size, {self.page_size}"
            )
        return value

    def _own_room(self, pool: str, window: int | None) -> int | None:
        """Return the number of pages for which a cache with its own memory has room."""
        if self.config.get("capacity") is None:
            return None
        if pool != "none" or window is not None or "mamba" in self.claims or not self.has_order:
            raise ProgramError(
                "the configuration has a capacity; a cache with one has neither a pool nor a window nor "
                "states, and claims exact_lru or exact_policy: else the evictions of an insert are unknown"
            )
        return self._whole_pages("capacity") // self.page_size

    def _rank_of_policy(self) -> Rank | None:
        """Return the rank function that orders leaves, if a claim promises more than order by recency."""
        policy = self.config.get("policy", "lru")
        if "exact_lru" in self.claims and policy != "lru":
            raise ProgramError(f"the configuration's policy is {policy!r}; the claim exact_lru needs lru")
        claimed = " and ".join(sorted(self.claims & {"exact_policy", "ranked_policy"}))
        if not claimed:
            return None
        rank = find_rank(policy)
        if rank is None:
            raise ProgramError(
                f"the configuration's policy is {policy!r}; the claim {claimed} needs one of "
                f"{known_policies()}"
            )
        return rank

    def _check_claims(self, pool: str, window: int | None) -> None:
        if pool not in ("none", "token", "swa"):
            raise ProgramError(f"the configuration's pool is {pool!r}; it must be none, token or swa")
        if window is not None and "swa" not in self.claims:
            raise ProgramError("a cache with a window claims swa")
        if "ranked_policy" in self.claims and (window is not None or "mamba" in self.claims):
            raise ProgramError(
                "ranked_policy is claimed; with it there must be no window and no states, whose evictions "
                "take leaves in another order"
            )
        if window is not None and "exact_windows" not in self.claims:
            planned = ", ".join(sorted(self.claims & {"exact_lru", "exact_policy", "faults"}))
            if planned or pool != "swa":
                raise ProgramError(
                    f"a window without exact_windows, over pool {pool}, with {planned or 'no order'}: it is "
                    "followed by its halves; the pool must be swa, and neither an order nor faults be claimed"
                )
        if "mamba" in self.claims and (window is not None or pool == "swa"):
            raise ProgramError("a cache that keeps states has no window, and no slots with SWA halves")
        if ("pool" in self.claims) != (pool != "none"):
            claimed = "claimed" if "pool" in self.claims else "not claimed"
            raise ProgramError(f"the configuration's pool is {pool}, and pool is {claimed}")

    # -- what laws ask -------------------------------------------------------------------------------------

    @property
    def full(self) -> PageModel:
        """The model of the main slot pool below the cache."""
        return self.ownership.full

    @property
    def window_pool(self) -> WindowModel | None:
        """The model of the pool with SWA halves, if the cache has one."""
        return self.ownership.pool if isinstance(self.ownership.pool, WindowModel) else None

    @property
    def ends(self) -> StateEnds:
        """The states of the cache; only for a cache that keeps states."""
        states = self.cache.states
        assert states is not None
        return states

    @property
    def can_follow_evictions(self) -> bool:
        """Whether a claimed order or the pool calls show which pages an eviction took."""
        tells_victims = self.has_halves or (self.has_pool and self.cache.window is None)
        return tells_victims or self.has_order or not self.retains

    @property
    def has_order(self) -> bool:
        """Whether the adapter claims an order of evictions (R8, R11)."""
        return not self.claims.isdisjoint({"exact_lru", "exact_policy"})

    @property
    def is_ordered(self) -> bool:
        """Whether only some sets of pages may be evicted: an order is claimed, or the cache keeps nothing."""
        return self.has_order or not (self.retains or self.tracks)

    def sizes(self) -> dict[str, int]:
        """Return every size of the cache and its pools, except window sizes where windows are followed."""
        sizes = {**self.cache.sizes(), **self.ownership.sizes()}
        if self.follows_windows:
            del sizes["swa_evictable_size"], sizes["swa_protected_size"]
        return sizes if self.tracks is None else sizes | self.tracks.sizes()

    def sizes_after(self, taken: Taken) -> dict[str, int]:
        """Return every size that must be reported after an eviction took these pages and states."""
        sizes, size, pages = dict(self.sizes()), self.page_size, self.cache.pages
        full, alive, halves = len(taken.removed) * size, 0, 0
        places = [pages[path] for path in (*taken.removed, *taken.tombstoned)]
        if self.cache.window is not None:
            alive = sum(page.alive for page in places) * size
        if self.has_halves:
            halves = sum(self.ownership.has_half(page.slots[0]) for page in places) * size
        gone = {"evictable_size": full, "total_size": full, "swa_evictable_size": alive}
        gone["mamba_evictable_size"] = len(taken.states)
        for name, less in gone.items():
            if name in sizes:
                sizes[name] -= less
        free = {"full_available_size": full, "swa_available_size": halves}
        free["available_track_slots"] = len(taken.states)
        if self.has_pool and not self.has_halves:
            free["available_size"] = full
        for name, more in free.items():
            if name in sizes:
                sizes[name] += more
        if self.has_halves:
            sizes["available_size"] = min(sizes["full_available_size"], sizes["swa_available_size"])
        return sizes

    def other_spaces(self, key: Path, length: int) -> list[Space]:
        """Return the other namespaces that cache at least so many tokens of a key (K1)."""
        tokens = key.tokens[:length]
        if len(tokens) < length:
            return []
        return [one.space for one in self.cache.pages if one.tokens == tokens and one.space != key.space]

    # -- events --------------------------------------------------------------------------------------------

    def read_take_events(self, operation: TakeEvents, outcome: Outcome) -> Seen:
        """Read events, next to all cached pages that are alive or have a state."""
        if "events" not in self.claims:
            raise ProgramError("events are not claimed")
        pages, states = self.cache.pages, self.cache.states
        cached: dict[str, Collection[Path]] = {"kv": pages.keys()}
        if self.cache.window is not None:
            cached["window"] = {path for path, page in pages.items() if page.alive}
        if states is not None:
            cached["state"] = states.slots.keys()
        return self.events.read(outcome, cached)

    def follow_take_events(self, step: int, operation: TakeEvents, seen: SeenEvents) -> None:
        """Record the events that were emitted."""
        self.events.follow(seen)

    # -- faults --------------------------------------------------------------------------------------------

    def read_fault(self, operation: Fault, outcome: Outcome) -> Seen:
        """Read which call of the next operation is made to fail."""
        if "faults" not in self.claims:
            raise ProgramError("faults are not claimed")
        if operation.nth < 1:
            raise ProgramError(f"{operation}: the calls of the next operation are counted from 1")
        return Seen(outcome.result)

    def follow_fault(self, step: int, operation: Fault, seen: Seen) -> None:
        """Arm a fault for the next operation."""
        self.fault = operation

    def end_step(self, operation: Operation, told: Mapping[str, int]) -> None:
        """Forget a fault that was armed for this operation, and remember the reported sizes."""
        self.told = told
        if self.fault is not None and not isinstance(operation, Fault):
            self.fault = None

    def is_struck(self, outcome: Outcome, *calls: str) -> bool:
        """Tell whether the operation failed in one of these calls because a fault was armed for it."""
        result = outcome.result
        if not isinstance(result, Failed) or result.error != INJECTED:
            return False
        return self.fault is not None and self.fault.call in calls

    def must_strike(self, call: str, made: object) -> bool:
        """Tell whether the operation made the call that the armed fault makes fail."""
        fault = self.fault
        return bool(made) and fault is not None and (fault.call, fault.nth) == (call, 1)

    def may_hide(self, call: str, calls: Sequence[str]) -> bool:
        """Tell whether a pool call may have failed as armed without its error being reported.

        The calls are those that the pool has taken, which do not have the failing one.
        """
        fault = self.fault
        return fault is not None and fault.call == call and calls.count(call) >= fault.nth - 1

    # -- keys ----------------------------------------------------------------------------------------------

    def path_of(self, key: Key) -> Path:
        """Return the path of a key; raise `ProgramError` if the adapter does not claim such keys."""
        path = path_of_key(key)
        for claim in dimensions_of(key.extra_key):
            if claim not in self.claims:
                namespaces = "namespaces" if claim == "extra_key" else f"namespaces with a value for {claim}"
                raise ProgramError(f"{namespaces} are not claimed")
        if path.tokens and isinstance(path.tokens[0], tuple) and "bigrams" not in self.claims:
            raise ProgramError("tuples as tokens are not claimed")
        return path
