"""A caller of a prefix cache in machines: its keys, slots, holds, and the results of its steps.

What a caller may know, it asks the judge's model and its ownership; what to do when is the business of
`pymllm.machines.prefix`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from pymllm.history import operations as ops
from pymllm.history.operations import DIMENSIONS, KEY_FORMS, Key, Operation, Span, Token
from pymllm.history.outcomes import Inserted, Locked, Matched, NoRoom, Result, Slots
from pymllm.machines.acting import ActingMachine, act
from pymllm.oracle.judge import Judge
from pymllm.oracle.laws import laws_of
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Path, PrefixModel, Space, path_of_key
from pymllm.oracle.models.slot_ownership import Owner, SlotOwnership

SPACES = (
    *[Space()] * 12,
    Space("1"),
    Space(1),
    Space("lora"),
    Space(None, 2),
)
"""Namespaces and widths of keys, mostly the plain one; "1" and 1 must stay different (H3)."""

TRUNK, TURN, TAIL = 7, 7 + 2**24, 5
"""Tokens of shared beginnings, of branches (equal to the first in their lower bits), and of tails."""

OTHER_SPACES = (*[Space()] * 6, Space(""), Space(0), Space("0"), Space(None, 2))
"""Namespaces of keys with other tokens; some values are false in Python."""

ALPHABETS: tuple[tuple[int, ...], ...] = (
    (),
    (7, 0, 1),
    (0, 1, 2, 3),
    (7, 0, 7 + 2**16, 7 + 2**31, 2**32 - 1),
    (1, 2, 3, 4, 5, 6, 7, 0),
)
"""Alphabets of key tokens: the empty one stands for trunk and turn, the others branch alike."""

STYLES = len(SPACES) * len(KEY_FORMS) * 4
"""The number of styles: each space, container and tail length of a page of four tokens."""


def spaces_of(capabilities: Collection[str], spaces: Sequence[Space] = SPACES) -> tuple[Space, ...]:
    """Return the namespaces and widths that an adapter with these capabilities supports."""
    return tuple(
        space
        for space in spaces
        if ("extra_key" in capabilities or space.extra_key is None)
        and ("bigrams" in capabilities or space.width == 1)
    )


def make_key(
    page_size: int, pages: int, turns: Sequence[int], style: int, spaces: Sequence[Space] = SPACES
) -> Key:
    """Derive a key of ``pages`` whole pages and a tail from small numbers.

    Odd turns are none, so that half of all keys stay on the trunk. A page off the trunk differs in its first
    token or, at the other turn, in its last token only: siblings must be told apart by whole pages (R9).
    """
    rest, form = divmod(style, len(KEY_FORMS))
    tail, space = divmod(rest, len(spaces))
    tokens: list[int] = []
    for page in range(pages):
        fill = [TRUNK] * page_size
        if page in turns and page % 2 == 0:
            fill[-1 if turns.index(page) else 0] = TURN
        tokens += fill
    tokens += [TAIL] * (tail % page_size)
    return Key(_widened(tokens, spaces[space].width), spaces[space].extra_key, KEY_FORMS[form])


def make_wide_key(
    page_size: int,
    pages: int,
    turns: tuple[int, int],
    style: int,
    tokens: Sequence[int],
    spaces: Sequence[Space] = OTHER_SPACES,
) -> Key:
    """Derive a short key that branches off at the first or second page into any of several tokens.

    So few pages are before them, and behind, that many keys branch at one node and all fit a small pool.
    """
    rest, form = divmod(style, len(KEY_FORMS))
    tail, space = divmod(rest, len(spaces))
    turn, other = turns
    drawn = {turn % 2: tokens[other % len(tokens)], turn % 2 + 1: tokens[turn // 2 % len(tokens)]}
    made: list[int] = []
    for page in range(pages % 4):
        fill = [tokens[0]] * page_size
        fill[-(turn // 2 % 2)] = drawn.get(page, tokens[0])
        made += fill
    made += [tokens[-1]] * (tail % page_size)
    return fitting(Key(_widened(made, spaces[space].width), spaces[space].extra_key, KEY_FORMS[form]))


def fitting(key: Key) -> Key:
    """Return a key in a form that can hold its tokens, in 64 bits if any exceeds an int32."""
    tokens = (token if isinstance(token, tuple) else (token,) for token in key.tokens)
    numbers = (number for token in tokens for number in token)
    if max(numbers, default=0) < 2**31:
        return key
    return Key(key.tokens, key.extra_key, key.form.replace("32", "64"))


def _widened(tokens: Sequence[int], width: int) -> tuple[Token, ...]:
    if width == 1:
        return tuple(tokens)
    return tuple((token, *[1] * (width - 1)) for token in tokens)


Values = list[str | int | None]
"""A value for each dimension of a namespace, `None` for a missing one."""

_NAMES = ("ab", "cd", "ef", "gh", "ij")
"""A different value for each dimension."""

WAYS = 7
"""The number of ways in which `alike_values` makes two namespaces similar."""


def alike_values(dimensions: Sequence[int], filled: int, place: int, way: int) -> tuple[Values, Values]:
    """Return the values of two namespaces that a faulty hash confuses by joining, swapping or dropping (K2).

    Bits of ``filled`` say which ``dimensions`` have a value. Of those that follow one another, ``place`` says
    which two differ; the last of seven ways is to agree in all.
    """
    first: Values = [
        _NAMES[at] if at in dimensions and filled >> at & 1 else None for at in range(len(_NAMES))
    ]
    number = place % max(1, len(dimensions) - 1)
    at, beside = dimensions[number], dimensions[(number + 1) % len(dimensions)]
    if way < 3:  # both have a value; or else only one of them has
        first[at], first[beside] = _NAMES[at], None if way == 2 else _NAMES[beside]
    if way in (3, 4):
        at = dimensions[place % len(dimensions)]
        first[at] = (_NAMES[at], "")[way - 3]
    elif way == 5:
        first[at] = 1
    second = [*first]
    if way in (0, 2):
        second[at], second[beside] = first[beside], first[at]
    elif way == 1:
        second[at], second[beside] = _NAMES[at] + _NAMES[beside][:1], _NAMES[beside][1:]
    elif way < WAYS - 1:
        second[at] = {3: "other", 4: None, 5: "1"}[way]
    return first, second


KEPT = 12
"""The number of handles and of released holds that are kept for later use."""

INSERT_FORMS = ("int64", "int32", "int64 strided", "int32 strided")
FREE_FORMS = (*INSERT_FORMS, "int64 2d")
FIRST_NUMBER = 1000
"""The first slot number in a cache without a pool; numbers are used once, and no token id is as large."""


_OF_EVICTIONS = {law.id for law in laws_of("prefix") if any(check[0] is ops.Evict for check in law.checks)}
"""Laws that cannot be tested, except by `inspect`, where the model cannot follow evictions."""


class Handle(NamedTuple):
    """A node that a step returned: its path, and the birth of its last page then."""

    step: int
    path: Path
    birth: int


class PrefixCaller(ActingMachine):
    """A caller of a prefix cache: its handles and holds, and the operations that it can make."""

    INSPECT_EVERY: ClassVar[int] = 1  # acts between two looks at the nodes, where the adapter shows them

    judge: Judge[CacheModel]

    def begin(self) -> None:
        """Read the models, the configuration and the capabilities."""
        self.model: PrefixModel = self.judge.model.cache
        self.ownership: SlotOwnership = self.judge.model.ownership
        self.spaces = spaces_of(self.capabilities)
        self.other_spaces = spaces_of(self.capabilities, OTHER_SPACES)
        claimed = [at for at, name in enumerate(DIMENSIONS) if name in self.capabilities]
        self.dimensions = claimed if claimed != [0] else []  # a salt alone is the business of `spaces`
        self.alphabet = ALPHABETS[0]
        if self.capabilities.isdisjoint({"extra_key", "bigrams", "forms"}):
            self.judge.evidence.left_out.add("K1")  # all keys are of one namespace, width and container
        config = self.examiner.history.header.config
        self.page_size, self.window = self.model.page_size, self.model.window
        self.pool = str(config.get("pool", "none"))
        self.pool_slots = int(config.get("slots") or 0)
        self.has_pool, self.has_halves = self.pool != "none", self.pool == "swa"
        self.has_states, self.is_windowed = self.model.states is not None, self.window is not None
        self.follows_windows = self.judge.model.follows_windows
        self.needs_state = self.has_states and "bare_inserts" not in self.capabilities  # with every key
        self.can_evict = self.judge.model.can_follow_evictions  # or else nothing is
        if not self.can_evict:
            self.judge.evidence.left_out |= _OF_EVICTIONS
        self.can_evict_windows = self.can_evict and self.is_windowed
        self.can_evict_secondary = self.can_evict and (self.is_windowed or self.has_states)
        self.can_fail_callback = self.can_fail and self.can_evict
        self.can_fail_pool = self.can_fail and self.has_pool
        self.can_fail_states = self.can_fail and self.has_states
        self.can_fail_eviction = self.can_fail_callback and self.has_pool
        self.handles: list[Handle] = []  # the last that matches and inserts returned, stale ones included
        self.released: list[int] = []  # the last holds that were released, by the step of their `Lock`
        self._next_number = FIRST_NUMBER
        self._acts_until_look = self.INSPECT_EVERY

    # -- what there is -------------------------------------------------------------------------------------
    @property
    def holds(self) -> list[int]:
        """Outstanding holds, by the step of their `Lock`."""
        return list(self.model.holds)

    @property
    def live(self) -> list[Handle]:
        """Handles of nodes that are still cached, roots included."""
        return [handle for handle in self.handles if not self._is_stale(handle)]

    @property
    def stale(self) -> list[Handle]:
        """Handles of nodes that have left the cache, if the adapter refuses their use."""
        return [handle for handle in self.handles if self._is_stale(handle)] if self.can_refuse else []

    def _is_stale(self, handle: Handle) -> bool:
        return self._birth(handle.path) != handle.birth

    def _birth(self, path: Path) -> int:
        page = self.model.pages.get(path)
        return page.birth if page is not None else 0

    # -- steps ---------------------------------------------------------------------------------------------
    def take(self, operation: Operation) -> tuple[int, Result]:
        """Carry out and judge an operation; return its number and its result."""
        number = self.examiner.next_step
        return number, self.do(operation).result

    def look(self) -> None:
        """Inspect all nodes and take the events, if claimed, on one of `INSPECT_EVERY` calls."""
        self._acts_until_look -= 1
        if self._acts_until_look > 0:
            return
        for claim, look in (("inspect", ops.Inspect), ("events", ops.TakeEvents)):
            if claim in self.capabilities:
                self._acts_until_look = self.INSPECT_EVERY
                self.do(look())

    def match(self, key: Key) -> tuple[int, tuple[int, ...]]:
        """Match a key; return the step and the slots."""
        step, result = self.take(ops.Match(key))
        assert isinstance(result, Matched)
        self._keep_handle(step, path_of_key(key).upto(result.prefix_len))
        return step, result.slots

    def insert(
        self,
        key: Key,
        slots: Sequence[int] | None,
        style: int,
        protected: int = 0,
        evicted: int = 0,
        state: Span | None = None,
    ) -> int | None:
        """Insert slots (or token ids for ``None``) and perhaps a state; return the step whose node is usable.

        Where every key needs a state and comes without, it gets one, and is cut to whole pages.
        """
        if state is None and self.needs_state:
            if len(key.tokens) >= self.page_size:
                return self._insert_with_a_state(key, slots, style)
            protected = evicted = 0  # nothing that a state could belong to
        spans = None if slots is None else self.spans(slots)
        form = INSERT_FORMS[style % len(INSERT_FORMS)]
        # Of other policies a priority changes nothing, and programs are read by people.
        priority = style % 3 if self.judge.model.config.get("policy") == "priority" else 0
        step, result = self.take(ops.Insert(key, spans, protected, evicted, form, state, priority))
        if isinstance(result, Inserted) and result.node_len is not None:
            self._keep_handle(step, path_of_key(key).upto(result.node_len))
        return step if isinstance(result, Inserted) else None

    def _insert_with_a_state(self, key: Key, slots: Sequence[int] | None, style: int) -> int | None:
        length = len(key.tokens) // self.page_size * self.page_size
        key = Key(key.tokens[:length], key.extra_key, key.form)
        state, slots = self.snapshot(), None if slots is None else slots[:length]
        if state is None:
            return None
        # The snapshot may have evicted what a match had found.
        is_whole = not self.has_pool or all(
            self.ownership.owner(slot) is not Owner.POOL for slot in slots or ()
        )
        step = self.insert(key, slots, style, state=state) if is_whole else None
        self._give_track_back(state)
        return step

    def _give_track_back(self, state: Span) -> None:
        """Free the track slot of a state that no insert has adopted."""
        tracks = self.judge.model.tracks
        if tracks is not None and tracks.given.resolve((state,))[0] in tracks.callers:
            self.do(ops.FreeTrack(state))

    def _keep_handle(self, step: int, path: Path) -> None:
        self.handles = [*self.handles[1 - KEPT :], Handle(step, path, self._birth(path))]

    def lock(self, step: int) -> int | None:
        """Hold the node of a step; return the number of the hold, or ``None`` if refused.

        Where a node without a state, or with a dead window, is not to be held, nobody tries.
        """
        handle = next((each for each in self.handles if each.step == step), None)
        if handle is not None and not self._may_hold(handle.path):
            return None
        number, result = self.take(ops.Lock(step))
        return number if isinstance(result, Locked) else None

    def _may_hold(self, path: Path) -> bool:
        """Tell whether a node can be held: with any needed state, and a live window or a sure refusal."""
        if self.follows_windows and not self.model.is_usable(path):
            return False
        states = self.model.states
        return states is None or "bare_holds" in self.capabilities or not path.tokens or path in states

    def unlock(self, lock: int) -> None:
        """Release a hold with its own token."""
        self.do(ops.Unlock(lock))
        self.released = [*self.released[1 - KEPT :], lock]

    def arm(self, call: str, nth: int = 1) -> None:
        """Arm a fault, so that a call in the next operation fails."""
        self.do(ops.Fault(call, nth))

    def draw_key(self, pages: int, turn: int, other: int, style: int) -> Key:
        """Derive a key from small numbers."""
        if self.alphabet:
            turns = (turn, other)
            return make_wide_key(self.page_size, pages, turns, style, self.alphabet, self.other_spaces)
        if self.page_size > 1:
            pages, turn, other = pages // 2, turn // 2, other // 2
        return make_key(self.page_size, pages, (turn, other), style, self.spaces)

    # -- slots ---------------------------------------------------------------------------------------------
    def spans(self, slots: Sequence[int]) -> tuple[Span, ...]:
        """Return spans for slots: by the steps that gave them, or by the numbers themselves."""
        return self.ownership.name(slots)

    def allocate(self, tokens: int, *, whole: bool = True) -> list[int] | None:
        """Allocate whole pages for ``tokens`` tokens, after an eviction if needed; ``None`` if that fails.

        ``whole``: whether to ask for all slots of these pages, or for so many tokens alone.
        """
        need = -(-tokens // self.page_size) * self.page_size
        if not self.has_pool:
            self._next_number += need
            return list(range(self._next_number - need, self._next_number))
        asked = need if whole else tokens
        slots = self._alloc(asked)
        if slots is None and self.can_evict:
            self.do(ops.Evict(*self._shortage(need)))
            slots = self._alloc(asked)
        return slots

    def _alloc(self, tokens: int) -> list[int] | None:
        _, result = self.take(ops.Alloc(tokens))
        return list(result.slots) if isinstance(result, Slots) else None

    def _shortage(self, need: int) -> tuple[int, int]:
        """Return how many full and window slots are missing."""
        sizes = self.ownership.sizes()
        if self.has_halves:
            return need - sizes["full_available_size"], need - sizes["swa_available_size"]
        missing = need - sizes["available_size"]
        return missing, 0 if self.has_states else missing

    def free_halves(self, slots: Sequence[int], style: int = 0) -> None:
        """Free SWA halves, as an engine does once they are outside every window."""
        if self.has_halves and slots:
            self.do(ops.FreeSWA(self.spans(slots), FREE_FORMS[style % len(FREE_FORMS)]))

    def give_back(self, slots: Iterable[int], style: int = 0) -> None:
        """Free the slots among these that are still the caller's."""
        if not self.has_pool:
            return
        mine = [slot for slot in slots if self.ownership.owner(slot) is Owner.CALLER]
        if mine:
            self.do(ops.Free(self.spans(mine), FREE_FORMS[style % len(FREE_FORMS)]))

    # -- states --------------------------------------------------------------------------------------------
    def snapshot(self, *, is_evicting: bool = True) -> Span | None:
        """Allocate a track slot and copy the working state, after an eviction of states if needed."""
        step, result = self.take(ops.AllocTrack())
        if isinstance(result, NoRoom) and is_evicting and self.can_evict:
            self.do(ops.Evict(0, 1))
            step, result = self.take(ops.AllocTrack())
        return Span(step, 0, 1) if isinstance(result, Slots) else None

    def give_tracks_back(self) -> None:
        """Free every track slot of the caller."""
        tracks = self.judge.model.tracks
        if tracks is not None:
            for span in [tracks.given.name((slot,))[0] for slot in sorted(tracks.callers)]:
                self.do(ops.FreeTrack(span))

    # -- the end -------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Release and evict everything, after which the pools must be whole (R5, A2, M7)."""
        for lock in self.holds:
            self.unlock(lock)
        self.give_back(self.ownership.callers_slots())
        self.give_tracks_back()
        if self.can_evict:
            self.do(ops.Evict(self.model.sizes()["total_size"], 0))
        self.look()


T = TypeVar("T")

PAGES = (0, 12)  # pages of a key where a page is one token; paged machines take half
STYLE = (0, STYLES - 1)
PICK = (0, 30)
TOKENS = (-1, 12)  # to evict; the largest means everything
RARE = (0, 3)  # only 0 acts
NTH = (1, 2)
FILLED = (0, 2 ** len(DIMENSIONS) - 1)  # which dimensions have a value, a bit for each
WAY = (0, WAYS - 1)

EVERYTHING = 1000


def looked_at(
    needs: str | None = None, weight: int = 1, **ranges: tuple[int, int]
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that makes a method an act followed by an inspection; arguments as of `act`."""
    mark = act(needs, weight, **ranges)

    def wrap(method: Callable[..., None]) -> Any:
        @functools.wraps(method)
        def with_a_look(machine: PrefixCaller, **drawn: int) -> None:
            method(machine, **drawn)
            machine.look()

        return mark(with_a_look)

    return wrap


def amount(drawn: int) -> int:
    """Return the amount to evict; the largest draw means everything."""
    return drawn if drawn < TOKENS[1] else EVERYTHING


def picked(choices: list[T], pick: int) -> T:
    """Return one of several choices by a drawn number."""
    return choices[pick % len(choices)]
