"""The outcomes of a prefix cache as the model reads them: pool calls, callbacks, and the slots they moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pymllm.errors import ProgramError
from pymllm.history.operations import Token
from pymllm.history.outcomes import Effect
from pymllm.oracle.models.kind_model import Seen
from pymllm.oracle.models.prefix_model import Found, Hold, InsertPlan, Path, Space
from pymllm.oracle.models.prefix_victims import Taken
from pymllm.oracle.models.slot_ownership import Owner

HIDDEN, GARBLED, FORGOTTEN = "hidden", "garbled", "forgotten"
"""Further results: a failing call that was not reported explains missing effects; the report or the effects
form no tree or no whole pages; a cache that keeps nothing received slots."""

HoldToken = int | str | None
"""The token that a lock returned; it is opaque, and compared only for equality."""


@dataclass(slots=True)
class Calls:
    """The calls that one operation made to pools and callbacks, sorted by kind, in order."""

    names: list[str] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)  # slots given back whole
    halves: list[int] = field(default_factory=list)  # slots whose SWA halves were given back
    moves: dict[int, int] = field(default_factory=dict)  # source to target of each SWA half
    callbacks: list[Effect] = field(default_factory=list)
    states: list[int] = field(default_factory=list)  # track slots given back


NO_CALLS = Calls()


def sort_effects(effects: Sequence[Effect]) -> Calls:
    """Sort the calls of one operation by kind; raise `ProgramError` for an unknown call or unequal move."""
    if not effects:
        return NO_CALLS
    calls = Calls()
    for effect in effects:
        calls.names.append(effect.call)
        if effect.call == "free":
            calls.freed += effect.slots
        elif effect.call == "free_swa":
            calls.halves += effect.slots
        elif effect.call == "free_state":
            calls.states += effect.slots
        elif effect.call == "callback":
            calls.callbacks.append(effect)
        elif effect.call == "move_swa" and len(effect.slots) == len(effect.target):
            calls.moves.update(zip(effect.slots, effect.target, strict=True))
        else:
            raise ProgramError(f"no effect of a prefix cache: {effect}")
    return calls


def tokens_of(paths: Iterable[Path]) -> list[tuple[Token, ...]]:
    """Return the tokens of pages in an order that does not depend on the process."""
    return sorted((path.tokens for path in paths), key=str)


def spell(paths: Collection[Path]) -> str:
    """Return the tokens of pages as text for messages."""
    return ", ".join(sorted(str(path.tokens) for path in paths)) or "none"


@dataclass(slots=True, kw_only=True)
class SeenMatch(Seen):
    """A match: its key, the expected result, and other namespaces that alone cache the key's first page."""

    key: Path
    found: Found
    elsewhere: Sequence[Space]


@dataclass(frozen=True, slots=True)
class Handle:
    """A node that a step returned: the path at its end, and the id of its last page (0 for the root)."""

    path: Path
    birth: int


@dataclass(slots=True, kw_only=True)
class SeenNode(Seen):
    """The use of a node: the node, and the hold that is taken or released, by its `Lock`."""

    handle: Handle
    hold: Hold | None = None
    number: int = 0
    here: int = 0  # holds at that node
    token: HoldToken = None


@dataclass(slots=True, kw_only=True)
class SeenInsert(Seen):
    """An insert: its planned effects, and the calls that it made."""

    key: Path
    slots: Sequence[int] = ()
    plan: InsertPlan
    bounds: tuple[int, int] = (0, 0)  # prev_prefix_len and swa_evicted_seqlen
    calls: Calls
    state: int | None = None  # the track slot that is handed over
    finds_state: bool = False  # there is one already
    is_followed: bool = False  # the plan is read from what was told and called

    @property
    def involves_tombstones(self) -> bool:
        """Whether law S7 rather than R4 alone decides the owners of the slots."""
        return not self.is_followed and (self.plan.refused or not self.plan.is_alive)


@dataclass(slots=True, eq=False)
class Returned:
    """The cached pages that correctly went back to a pool: whole, once, and owned by the cache."""

    pages: frozenset[Path]
    twice: Sequence[int]
    foreign: Mapping[int, Owner]  # whose they are instead
    parts: Sequence[int] = ()  # what of the same pages did not go
    is_whole: bool = field(init=False)  # whether there is nothing wrong with it

    def __post_init__(self) -> None:
        self.is_whole = not (self.twice or self.foreign or self.parts)

    def of(self, *owners: Owner) -> dict[int, str]:
        """Return the returned slots of these owners, which the cache does not own, with the owners' names."""
        return {slot: owner.value for slot, owner in self.foreign.items() if owner in owners}


NOTHING = Returned(frozenset(), (), {})

Odd = tuple[str, str, object, object]
"""Why an eviction was not permitted to take its pages: a reason, and the expected and observed values."""

OLDER, TOO_MANY, DEAD_LEAVES = "older ones stay", "too many", "dead leaves"
WINDOWS, STATES = "other windows", "other states"


@dataclass(slots=True, kw_only=True)
class SeenEvict(Seen):
    """An eviction: the sizes requested, reported and taken, with ``None`` for an unknown one."""

    calls: Calls
    tokens: int
    secondary: int  # tokens of windows, or states
    sizes: Mapping[str, int]  # that were told afterwards
    is_raised: bool = False  # a callback's error hid the answer
    full: int | None = None  # tokens, as of `pymllm.history.outcomes.Evicted`
    swa: int | None = None
    told_states: int | None = None
    freed: Returned = NOTHING
    halves: Returned = NOTHING
    gone_halves: list[int] = field(default_factory=list)  # that were not there
    states: Returned = NOTHING  # pages whose states went
    removed: frozenset[Path] | None = None  # pages that went
    gone: frozenset[Path] = frozenset()  # the same, as far as that is known
    tombstoned: frozenset[Path] | None = None  # pages that lost their SWA halves only
    taken: Taken | None = None  # what that was, if it may be
    odd: Odd | None = None  # why it may not
    allowed: list[Taken] = field(default_factory=list)  # of one that failed: what it was to take
    ids: list[int] | None = None  # of the nodes that went, in order
    is_for_tokens: bool = True  # whether tokens were asked for, or nothing else can be

    @property
    def victims(self) -> Collection[Path]:
        """The evicted pages, in order if the order is known."""
        return self.gone if self.taken is None else self.taken.removed

    def fits(self, taken: Taken) -> bool:
        """Tell whether every observation agrees with an eviction of exactly these pages and states."""
        if self.removed is not None and len(self.removed) != len(taken.removed):
            return False  # most of what an engine's eviction may be, told without a look at the pages
        would_be = (frozenset(taken.removed), taken.tombstoned, taken.full, taken.swa, taken.states)
        seen = (self.removed, self.tombstoned, self.full, self.swa, self.states.pages)
        return all(one is None or one == two for one, two in zip(seen, would_be, strict=True))


@dataclass(slots=True, kw_only=True)
class SeenReset(Seen):
    """A reset: the pages that were cached, and the slots that went back to the pools."""

    calls: Calls
    slots: list[int]
    states: list[int]
    struck: str = ""  # the call that was let fail and told


@dataclass(slots=True, kw_only=True)
class SeenHalves(Seen):
    """The SWA half of each slot, 0 for none."""

    slots: Sequence[int]
    expected: Sequence[int]


@dataclass(slots=True, kw_only=True)
class SeenTracks(Seen):
    """The last content written to each track slot that is not free."""

    expected: Mapping[tuple[str, int], tuple[int, ...]]
    found: Mapping[tuple[str, int], tuple[int, ...] | None]


def tell_apart(seen: SeenEvict, allowed: Sequence[Taken], first: Collection[int] = ()) -> Odd:
    """Return words for how an eviction differs from all choices that the claimed order permits.

    ``first`` has how many tokens may go before windows are asked for, where they are.
    """
    least, removed, what = allowed[0], seen.removed, "window tokens evicted"
    if removed is None:
        fulls = sorted({taken.full for taken in allowed})
        if seen.full is not None and seen.full not in fulls:
            # Where all windows went that were to go, pages that stay have lost theirs.
            is_bare = seen.full in first and seen.swa in {taken.swa for taken in allowed}
            reason = WINDOWS if seen.full in first else TOO_MANY
            if is_bare or seen.full in {taken.full_without_cascade for taken in allowed}:
                reason = DEAD_LEAVES
            return reason, "tokens evicted", f"one of {fulls}", seen.full
        swas = sorted({taken.swa for taken in allowed if seen.full in (None, taken.full)})
        return WINDOWS, what, f"one of {swas}", seen.swa
    older = set(least.removed) - removed
    if older:
        return OLDER, "pages evicted", f"with {spell(older)}", spell(removed)
    alike = [taken for taken in allowed if set(taken.removed) == removed]
    if not alike:
        return TOO_MANY, "pages evicted", spell(least.removed), spell(removed)
    tombstoned = seen.tombstoned
    if tombstoned is not None and not any(one.tombstoned <= tombstoned for one in alike):
        return OLDER, "windows evicted", f"with {spell(alike[0].tombstoned)}", spell(tombstoned)
    return WINDOWS, what, f"one of {sorted({taken.swa for taken in alike})}", seen.swa


def tell_states_apart(seen: SeenEvict, plan: Taken) -> Odd:
    """Return words for how an eviction differs from the only pages and states that it may take."""
    due, removed, states = set(plan.removed), seen.removed, seen.states.pages
    if removed is not None and removed != due:
        reason = OLDER if due - plan.cascaded - removed else TOO_MANY
        return reason, "pages evicted", spell(due), spell(removed)
    if states != plan.states:
        return STATES, "states evicted", spell(plan.states), spell(states)
    return TOO_MANY, "tokens evicted", plan.full, seen.full
