"""Rules that drive a `RadixExaminer`, for Hypothesis and for a seeded generator.

`radix_machine` makes one Hypothesis machine class per configuration. Its rules take small integers only, so
that `drive` can run them from a seed as well, to the same depth on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from radix_caller import RadixConfig, expect
from radix_examiner import RadixExaminer
from radix_keys import STYLES, make_container, make_path
from radix_model import Path

from pymllm.errors import LockError, StaleNodeError
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.radix_cache import RadixCache

PAGES = (0, 12)  # pages of a key where a page is one token; paged machines take half
STYLE = (0, STYLES - 1)
PICK = (0, 30)
TOKENS = (-1, 12)  # to evict; the largest means everything
RARE = (0, 3)  # only 0 acts

PLAIN_POOLS = ("none", "token")
WINDOWED_POOLS = ("none", "token", "swa")
CONFIGURATIONS = tuple(
    RadixConfig(page_size, window, pool, slots=24 * scale, swa_slots=18 * scale)
    for page_size, scale in ((1, 1), (4, 2))
    for window, pools in ((None, PLAIN_POOLS), (4, WINDOWED_POOLS), (6, WINDOWED_POOLS))
    for pool in pools
)


def act(needs: str | None = None, weight: int = 1, **ranges: tuple[int, int]) -> Callable[[Any], Any]:
    """Make a method a rule whose arguments are integers in the given closed ranges.

    Parameters
    ----------
    needs : str, optional
        Attribute of the examiner that must not be empty.
    weight : int
        How often `drive` chooses it, beside others; Hypothesis makes its own choice.
    **ranges : (int, int)
        Bounds of each argument.
    """

    def mark(method: Callable[..., None]) -> Any:
        made = rule(**{name: st.integers(low, high) for name, (low, high) in ranges.items()})(method)
        if needs is not None:
            made = precondition(lambda machine: bool(getattr(machine.examiner, needs)))(made)
        made.act_needs, made.act_weight, made.act_ranges = needs, weight, ranges
        return made

    return mark


class RadixMachine(RuleBasedStateMachine):
    """What callers do with a radix cache, well-behaved and not.

    Attributes
    ----------
    CONFIG : RadixConfig
        What is examined; subclasses set it.
    """

    CONFIG: ClassVar[RadixConfig] = RadixConfig()

    def __init__(self) -> None:
        super().__init__()
        self.examiner = RadixExaminer(self.CONFIG)
        self.hoard: list[int] = []
        other = RadixCache(self.CONFIG.page_size, self.CONFIG.window)
        self.foreign = other.insert(RadixKey([1] * self.CONFIG.page_size)).last_node

    # -- keys in and out -----------------------------------------------------------------------

    @act(weight=4, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def match(self, pages: int, turn: int, other: int, style: int) -> None:
        """Look a key up."""
        self.examiner.match(self._key(pages, turn, other, style), style)

    @act(weight=3, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE)
    def insert(self, pages: int, turn: int, other: int, style: int) -> None:
        """Insert fresh slots for a key, without matching it first."""
        self._insert_fresh(self._key(pages, turn, other, style), style)

    @act(weight=4, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, protected=PICK, evicted=PAGES)
    def insert_windowed(
        self, pages: int, turn: int, other: int, style: int, protected: int, evicted: int
    ) -> None:
        """Insert fresh slots with any valid ``prev_prefix_len`` and ``swa_evicted_seqlen``."""
        key = self._key(pages, turn, other, style)
        self._insert_fresh(key, style, protected, self._frontier(key, evicted))

    @act(weight=5, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, evicted=PAGES, keep=(0, 2))
    def request(self, pages: int, turn: int, other: int, style: int, evicted: int, keep: int) -> None:
        """Serve a request as an engine does: match, hold, make room, insert what was computed, hold that."""
        key, examiner = self._key(pages, turn, other, style), self.examiner
        match = examiner.match(key, style)
        held = examiner.lock(match.path) if match.path.tokens else None
        fresh = examiner.allocate(len(key.tokens) - len(match.slots), inside_request=True)
        if fresh is not None:
            frontier = self._frontier(key, evicted)
            self._compute(key, style, [*match.slots, *fresh], len(match.slots), frontier, keep)
            examiner.caller.give_back(fresh)
            examiner.verify()
        if held is not None:
            examiner.unlock(held)

    def _compute(self, key: Path, style: int, slots: list[int], hit: int, frontier: int, keep: int) -> None:
        examiner = self.examiner
        examiner.caller.free_halves(slots[hit:frontier])
        plan = examiner.insert(key, style, slots[: len(key.tokens)], hit, frontier)
        examiner.note("an insert passes the matched prefix back", hit)
        if not plan.refused and plan.path.tokens:
            hold = examiner.lock(plan.last)
            if hold is not None and not keep:
                examiner.unlock(hold)

    @act(weight=2, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, evicted=PAGES)
    def reinsert_stored(self, pages: int, turn: int, other: int, style: int, evicted: int) -> None:
        """Pass the slots of the whole stored prefix back, dead pages included, and nothing else."""
        examiner = self.examiner
        stored = examiner.model.stored(self._key(pages, turn, other, style))
        if not stored:
            return
        evicted = min(evicted, len(stored)) * self.CONFIG.page_size
        plan = examiner.insert(stored[-1], style, examiner.model.slots(stored[-1]), 0, evicted)
        dead = any(not examiner.model.pages[page].alive for page in stored)
        examiner.note("a dead page gets its own slots back", dead and not plan.refused)

    @act(pages=PAGES, turn=PAGES, style=STYLE)
    def insert_token_ids(self, pages: int, turn: int, style: int) -> None:
        """Insert a key without slots, where there is no pool."""
        key = self._key(pages, turn, turn, style)
        if self.CONFIG.pool == "none" and key.space.width == 1:
            self.examiner.insert_token_ids(key, style)

    @act(weight=2, pages=PAGES, turn=PAGES, style=STYLE, fault=(0, 8))
    def insert_bad(self, pages: int, turn: int, style: int, fault: int) -> None:
        """Insert with one argument out of its domain: an error, and nothing has changed (X1)."""
        key, examiner = self._key(pages, turn, turn, style), self.examiner
        slots = examiner.allocate(len(key.tokens))
        if slots is None:
            return
        broken = self._break_insert(key, slots[: len(key.tokens)], fault)
        if broken is not None:
            wrapped = RadixKey(make_container(key, style), key.space.extra_key)
            expect((TypeError, ValueError), lambda: examiner.cache.insert(wrapped, broken[0], **broken[1]))
            examiner.note("a bad insert is refused")
        examiner.caller.give_back(slots)
        examiner.verify()

    @act(needs="nodes", weight=2, pick=PICK)
    def hash_node(self, pick: int) -> None:
        """Hash a node."""
        self.examiner.hash_node(self._node(pick))

    # -- eviction ------------------------------------------------------------------------------

    @act(tokens=TOKENS, window_tokens=TOKENS)
    def evict(self, tokens: int, window_tokens: int) -> None:
        """Evict."""
        self.examiner.evict(self._amount(tokens), self._amount(window_tokens))

    @act(weight=2, tokens=TOKENS)
    def evict_full(self, tokens: int) -> None:
        """Evict without asking for window memory."""
        self.examiner.evict(self._amount(tokens), 0)

    @act(weight=3, window_tokens=TOKENS)
    def evict_windows(self, window_tokens: int) -> None:
        """Evict window memory only."""
        self.examiner.evict(0, self._amount(window_tokens))

    @act(tokens=TOKENS, window_tokens=TOKENS)
    def evict_with_failing_callback(self, tokens: int, window_tokens: int) -> None:
        """Let every callback of an eviction raise: the eviction is complete all the same (X2)."""
        self.examiner.callback_raises = True
        self.examiner.evict(tokens, window_tokens)
        self.examiner.callback_raises = False

    @act(weight=2, tokens=TOKENS, window_tokens=TOKENS, step=(0, 1))
    def evict_refused_by_pool(self, tokens: int, window_tokens: int, step: int) -> None:
        """Let the pool refuse one of an eviction's calls (X2)."""
        self.examiner.evict(tokens, window_tokens, refuse=("free", "free_swa")[step])

    @act(weight=5, pages=PAGES, turn=PAGES, other=PAGES, style=STYLE, step=(0, 1))
    def insert_refused_by_pool(self, pages: int, turn: int, other: int, style: int, step: int) -> None:
        """Let the pool refuse one of an insert's calls (X2)."""
        key = self._key(pages, turn, other, style)
        self._insert_fresh(key, style, refuse=("free", "move_swa")[step])

    @act(rare=RARE, refused=(0, 2))
    def reset(self, rare: int, refused: int) -> None:
        """Start again from nothing, whatever is held."""
        if not rare:
            self.examiner.reset("free" if refused == 1 and self.CONFIG.pool != "none" else "")

    # -- holds ---------------------------------------------------------------------------------

    @act(needs="nodes", weight=2, pick=PICK)
    def lock(self, pick: int) -> None:
        """Hold a node."""
        self.examiner.lock(self._node(pick))

    @act(needs="holds", weight=2, pick=PICK)
    def unlock(self, pick: int) -> None:
        """Release a hold."""
        self.examiner.unlock(self.examiner.holds[pick % len(self.examiner.holds)])

    @act(needs="holds", rare=RARE)
    def unlock_all(self, rare: int) -> None:
        """Release every hold."""
        for hold in self.examiner.holds if not rare else ():
            self.examiner.unlock(hold)

    @act(needs="holds", pick=PICK, other=(0, 4))
    def unlock_with_wrong_token(self, pick: int, other: int) -> None:
        """Release a hold with another's token, or with one that nobody was given."""
        examiner = self.examiner
        hold = examiner.holds[pick % len(examiner.holds)]
        tokens = [None, 10**9, -1, *examiner.tokens.values()]
        token = tokens[min(other, len(tokens) - 1)]
        if self.CONFIG.window is not None and token != examiner.tokens[hold]:
            examiner.unlock_refused(examiner.nodes[examiner.model.holds[hold].path], token)
            examiner.note("a wrong token is refused")

    @act(needs="released", pick=PICK)
    def unlock_again(self, pick: int) -> None:
        """Release a hold that was released before."""
        examiner = self.examiner
        path, node, token = examiner.released[pick % len(examiner.released)]
        gone = examiner.nodes.get(path) is not node
        if gone or not self._held_at(path):
            examiner.unlock_refused(node, token, StaleNodeError if gone else LockError)
            examiner.note("a hold is released twice")

    @act(needs="nodes", pick=PICK)
    def unlock_unheld(self, pick: int) -> None:
        """Release a node that has no hold of its own, whatever is held below it."""
        examiner, path = self.examiner, self._node(pick)
        if not self._held_at(path):
            below = [hold for hold, taken in examiner.model.holds.items() if path.covers(taken.path)]
            examiner.unlock_refused(examiner.nodes[path], examiner.tokens[below[0]] if below else None)
            examiner.note("a hold is released at an ancestor", below)

    @act(needs="stale", pick=PICK, way=(0, 2))
    def use_stale_node(self, pick: int, way: int) -> None:
        """Use a node that has left the tree."""
        stale = self.examiner.stale
        self.examiner.use_refused(stale[pick % len(stale)], way)
        self.examiner.note("a stale node is used")

    @act(way=(0, 2))
    def use_foreign_node(self, way: int) -> None:
        """Use a node of another cache."""
        self.examiner.use_refused(self.foreign, way)
        self.examiner.note("a node of another cache is used")

    # -- the caller's memory -------------------------------------------------------------------

    @act(pages=(1, 6))
    def hoard_slots(self, pages: int) -> None:
        """Keep slots in the caller's hands, so that the pool is short."""
        if self.CONFIG.pool != "none" and len(self.hoard) <= self.CONFIG.slots // 3:
            self.hoard += self.examiner.allocate(pages * self.CONFIG.page_size) or ()

    @act()
    def give_hoard_back(self) -> None:
        """Return everything that the caller has, what a refused reset left behind included."""
        self.examiner.caller.give_back(list(self.examiner.caller.hands))
        self.hoard = []
        self.examiner.verify()

    def teardown(self) -> None:
        """Return everything: the pool is whole again."""
        self.examiner.finish()

    # -- drawing small, deriving big -----------------------------------------------------------

    def _key(self, pages: int, turn: int, other: int, style: int) -> Path:
        if self.CONFIG.page_size > 1:
            pages, turn, other = pages // 2, turn // 2, other // 2
        return make_path(self.CONFIG.page_size, pages, (turn, other), style)

    def _node(self, pick: int) -> Path:
        return list(self.examiner.nodes)[pick % len(self.examiner.nodes)]

    def _held_at(self, path: Path) -> bool:
        return any(hold.path == path for hold in self.examiner.model.holds.values())

    @staticmethod
    def _amount(tokens: int) -> int:
        return tokens if tokens < TOKENS[1] else 1000

    def _frontier(self, key: Path, draw: int) -> int:
        """Return a ``swa_evicted_seqlen``: any whole pages, or as far as an engine may go, or a page less."""
        size, whole = self.CONFIG.page_size, len(self.examiner.model.whole(key).tokens)
        if draw % 2 or self.CONFIG.window is None:
            return min(draw * size, whole)
        allowed = (whole - self.CONFIG.window) // size - draw % 4 // 2
        return max(0, allowed) * size

    def _insert_fresh(
        self, key: Path, style: int, protected: int = 0, evicted: int = 0, refuse: str = ""
    ) -> None:
        examiner = self.examiner
        slots = examiner.allocate(len(key.tokens))
        if slots is None:
            return
        examiner.caller.free_halves(slots[:evicted])
        cached = len(examiner.model.stored(key)) * self.CONFIG.page_size
        protected = min(protected, len(key.tokens), cached + self.CONFIG.page_size - 1)
        examiner.insert(key, style, slots[: len(key.tokens)], protected, evicted, refuse)
        examiner.caller.give_back(slots)
        examiner.verify()

    def _break_insert(
        self, key: Path, slots: list[int], fault: int
    ) -> tuple[torch.Tensor | None, dict[str, int]] | None:
        """Return a value and keywords of which one is wrong, or nothing where this fault is none."""
        size, length = self.CONFIG.page_size, len(key.tokens)
        cached = len(self.examiner.model.stored(key)) * size
        windowed, pooled = self.CONFIG.window is not None, self.CONFIG.pool != "none"
        value = torch.tensor(slots, dtype=torch.int64)
        faults: list[tuple[bool, torch.Tensor | None, dict[str, int]]] = [
            (True, torch.tensor([*slots, 1]), {}),
            (length > 0, value.to(torch.float32), {}),
            (pooled and size > 1 and length >= size, value.flip(0), {}),
            (pooled and length > 0, None, {}),
            (windowed, value, {"prev_prefix_len": length + 1}),
            (windowed and length - cached >= size, value, {"prev_prefix_len": cached + size}),
            (windowed, value, {"swa_evicted_seqlen": (length // size + 1) * size}),
            (windowed and size > 1 and length > 0, value, {"swa_evicted_seqlen": 1}),
            (self._is_born_dead(key, slots), value, {"swa_evicted_seqlen": size}),
        ]
        applies, broken, keywords = faults[fault]
        self.examiner.note("halves that were not returned are refused", applies and fault == 8)
        return (broken, keywords) if applies else None

    def _is_born_dead(self, key: Path, slots: list[int]) -> bool:
        """Return whether a first page before ``swa_evicted_seqlen`` would be new and go in."""
        model = self.examiner.model
        if self.CONFIG.pool != "swa" or model.stored(key) or not model.whole(key).tokens:
            return False
        return not model.plan_insert(key, slots, set(), 0, self.CONFIG.page_size).refused


def radix_machine(config: RadixConfig) -> type[RadixMachine]:
    """Make the machine of one configuration, under a name of its own.

    Hypothesis files failing examples under a class's name, so two configurations must not share one.
    """
    return type(f"Radix{config.name}Machine", (RadixMachine,), {"CONFIG": config})


def acts_of(machine_class: type[RadixMachine]) -> dict[str, Any]:
    """Return each rule by its name."""
    methods = {name: getattr(machine_class, name) for name in dir(machine_class)}
    return {name: method for name, method in methods.items() if hasattr(method, "act_ranges")}


def drive(machine_class: type[RadixMachine], seed: int, steps: int) -> RadixMachine:
    """Run a machine's rules from a seeded generator and tear it down; the run is the same everywhere."""
    source = random.Random(seed)
    machine = machine_class()
    acts = acts_of(machine_class)
    for _ in range(steps):
        ready = [
            act for act in acts.values() if not act.act_needs or getattr(machine.examiner, act.act_needs)
        ]
        (chosen,) = source.choices(ready, [act.act_weight for act in ready])
        chosen(machine, **{name: source.randint(*bounds) for name, bounds in chosen.act_ranges.items()})
    machine.teardown()
    return machine
