"""The random choice of acts in a run: some acts are off, weights are drawn, and phases change them.

Two runs of one machine so look at different corners. Without evictions a pool stays full; without
refusals nothing hides behind them; where only windows go, tombstones pile up.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from pymllm.machines.acting import ActingMachine, acts_of


@dataclass(frozen=True, slots=True)
class Roles:
    """The acts of one machine by role."""

    # they take memory. One at least stays on in every run, and they are switched off less often
    fill: frozenset[str]
    drain: frozenset[str] = frozenset()  # they give memory back
    wipe: frozenset[str] = frozenset()  # they end everything at once: rare, because what they leave is young
    # by act, the arguments that are lengths and places: in a larger pool they reach further
    lengths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    vital: frozenset[str] = frozenset()  # without them nothing happens: they stay on


def _roles(fill: str, drain: str = "", wipe: str = "", lengths: str = "", vital: str = "") -> Roles:
    """Return the roles of acts, given as names separated by spaces; lengths are ``act:argument,argument``."""
    pairs = [entry.partition(":") for entry in lengths.split()]
    return Roles(
        frozenset(fill.split()),
        frozenset(drain.split()),
        frozenset(wipe.split()),
        {act: tuple(names.split(",")) for act, _, names in pairs},
        frozenset(vital.split()),
    )


ROLES: dict[str, Roles] = {
    "SlotMachine": _roles(
        "alloc alloc_all",
        "free free_swa",
        "clear",
        "alloc:pages alloc_all:but free:start,count free_swa:start,count move_swa:start,count,other "
        "read_halves:start,count free_wrong:start,place free_swa_wrong:start,place move_wrong:start,other",
    ),
    "RowMachine": _roles("admit", "finish", "clear"),
    "BufferMachine": _roles("write", "move"),
    "StateMachine": _roles("alloc_track_slot advance", "free_track_slot reset", "clear"),
    "HashMachine": _roles("hash_page slice_key"),
    "IndexMachine": _roles(
        "store store_anywhere copy close_gap", "remove remove_anything clear drop", "reset"
    ),
    "PrefixMachine": _roles(
        "insert_fresh insert_windowed request serve insert_with_state insert_token_ids",
        "evict evict_full evict_windows unlock_hold unlock_all give_hoard_back give_hoarded_tracks_back",
        "reset reset_refused_by_pool reset_refused_by_state_pool",
        "match_key:pages,turn,other insert_fresh:pages,turn,other insert_token_ids:pages,turn "
        "insert_windowed:pages,turn,other,protected,evicted request:pages,turn,other,evicted "
        "punch_hole:pages,turn,at punch_another_hole:pages,turn,at "
        "serve:pages,turn,other insert_with_state:pages,turn,other "
        "reinsert_stored:pages,turn,other,evicted "
        "add_state_to_stored:pages,turn,other add_state_under_holds:pages,turn hoard_slots:pages "
        "insert_refused_by_pool:pages,turn,other insert_badly:pages,turn insert_without_halves:pages,turn",
    ),
    "LifecycleMachine": _roles(
        "ask crowd ask_for_everything",
        "settle evict abort",
        "flush start_again",
        "ask:blocks,turn,output evict:tokens limit_chunks:tokens ask_for_everything:output,turn",
        vital="step",
    ),
    "BlockMachine": _roles(
        "alloc alloc_all publish serve outlive",
        "release release_all drop_states evict_slots",
        "reset",
        vital="tick",
    ),
    "RequestMachine": _roles("add add_two add_longest add_rival", "release serve decode", "reset"),
    "BlockLifecycleMachine": _roles(
        "ask crowd ask_for_everything",
        "settle abort abort_aside",
        "flush start_again",
        "ask:blocks,turn,output limit_chunks:tokens ask_for_everything:output,turn",
        vital="step",
    ),
}
"""The roles of every machine's acts, by the name of the machine."""


def roles_of(machine: str, acts: frozenset[str]) -> Roles:
    """Return the roles of a machine's acts by its name; all acts of an unlisted machine may fill the pool."""
    return ROLES.get(machine, Roles(acts))


PHASES: dict[str, dict[str, float]] = {
    "fill": {"fill": 6.0, "drain": 0.2, "use": 1.0, "wipe": 0.0},
    "age": {"fill": 1.0, "drain": 0.5, "use": 3.0, "wipe": 0.1},
    "drain": {"fill": 0.3, "drain": 6.0, "use": 1.0, "wipe": 0.4},
    "churn": {"fill": 2.0, "drain": 2.0, "use": 1.0, "wipe": 1.0},
}
"""The factor for the weights of a role in each phase, of which the first fills the pool."""

_OFF_MOST = 0.6  # An act is switched off with a chance up to this, drawn for each run,
_OFF_FILLING = 0.25  # and one that fills with this part of it.
_WEIGHT_SPREAD = 2.0  # Weights are multiplied by a power of two between minus and plus this.
_PHASE_SHORTEST, _PHASE_LONGEST = 200, 6_000  # operations
_TRIES = 64  # draws of an act that makes no sense yet, until all that do are looked for


@dataclass(frozen=True, slots=True)
class _Act:
    """An act ready to be drawn, with the lowest value of each argument and the number of values."""

    name: str
    play: Callable[..., None]
    needs: str | None
    weight: float
    role: str
    arguments: tuple[tuple[str, int, int, bool], ...]


class Swarm:
    """A player of random acts for one run on a new machine; its draws depend on the random source alone.

    What the machine can do now, such as filling its pool without windows, it always can. ``name`` is of the
    class that its class was made of, ``reach`` how many times as far as in a tiny pool lengths may reach.
    ``acts`` are those that are on, in order of names.
    """

    def __init__(self, machine: ActingMachine, name: str, source: random.Random, reach: int) -> None:
        self._machine = machine
        self._source = source
        self._random = source.random
        self._reach_most = reach
        acts = acts_of(type(machine))
        roles = roles_of(name, frozenset(acts))
        able = {name for name, act in acts.items() if _makes_sense(machine, act.act_needs)}
        chosen = _choose(list(acts), able, roles, source)
        self._acts = [_make_act(it, acts[it], roles, source) for it in chosen]
        self.acts = tuple(act.name for act in self._acts)
        self._phase_ends = 0
        self.phase = ""
        self._reach = 1
        self._bounds: list[float] = []
        self._ranges: dict[str, list[tuple[str, int, int]]] = {}

    def play(self, operations: int) -> None:
        """Play one act, if any can be played now; each phase lasts a given number of operations."""
        if operations >= self._phase_ends:
            self._change_phase(operations)
        act = self._draw()
        if act is not None:
            draw = self._random
            act.play(
                self._machine,
                **{name: low + int(draw() * count) for name, low, count in self._ranges[act.name]},
            )

    def _change_phase(self, operations: int) -> None:
        source = self._source
        others = [name for name in PHASES if name != self.phase]
        self.phase = source.choice(others) if self.phase else "fill"
        length = _PHASE_SHORTEST * (_PHASE_LONGEST / _PHASE_SHORTEST) ** source.random()
        self._phase_ends = operations + int(length)
        # Long keys are drawn in whole phases, so that short ones have their time in large pools, too.
        self._reach = int(self._reach_most ** source.random())
        factors = PHASES[self.phase]
        weights = [act.weight * factors[act.role] for act in self._acts]
        if not any(weights):  # only what wipes is on
            weights = [1.0] * len(weights)
        self._bounds = list(itertools.accumulate(weights))
        self._ranges = {act.name: _reaching(act, self._reach) for act in self._acts}

    def _draw(self) -> _Act | None:
        # Asking one act at a time is as good as choosing among those that make sense: what a need costs to
        # look at, such as sorting all held pages, is paid for few acts and not for all.
        draw, acts, bounds = self._random, self._acts, self._bounds
        total, last = bounds[-1], len(acts) - 1
        for _ in range(_TRIES):
            act = acts[bisect.bisect(bounds, draw() * total, 0, last)]
            if act.needs is None or getattr(self._machine, act.needs):
                return act
        ready = [act for act in self._acts if _makes_sense(self._machine, act.needs)]
        return ready[int(self._random() * len(ready))] if ready else None


def _reaching(act: _Act, reach: int) -> list[tuple[str, int, int]]:
    """Return each argument's lowest value and number of values, with lengths multiplied by a factor."""
    return [
        (name, low, (count - 1) * reach + 1 if is_length else count)
        for name, low, count, is_length in act.arguments
    ]


def _makes_sense(machine: ActingMachine, needs: str | None) -> bool:
    return needs is None or bool(getattr(machine, needs))


def _choose(names: list[str], able: Set[str], roles: Roles, source: random.Random) -> list[str]:
    """Return acts to use: all vital ones, a filling one that can be played at once, and some others."""
    chance = source.random() * _OFF_MOST
    kept = [name for name in names if source.random() >= chance * (_OFF_FILLING if name in roles.fill else 1)]
    filling = sorted(roles.fill & able) or sorted(able)
    return sorted({*kept, *(roles.vital & set(names)), source.choice(filling)})


def _make_act(name: str, method: Any, roles: Roles, source: random.Random) -> _Act:
    role = next((it for it in ("fill", "drain", "wipe") if name in getattr(roles, it)), "use")
    lengths = roles.lengths.get(name, ())
    return _Act(
        name,
        method.act_itself,
        method.act_needs,
        method.act_weight * 2.0 ** source.uniform(-_WEIGHT_SPREAD, _WEIGHT_SPREAD),
        role,
        tuple((it, low, high - low + 1, it in lengths) for it, (low, high) in method.act_ranges.items()),
    )
