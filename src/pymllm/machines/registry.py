"""The machines for each kind of implementation, loaded on demand, and the profiles of searches."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymllm.errors import ProgramError
from pymllm.oracle.laws import Law
from pymllm.torch_extra import why_no_torch

if TYPE_CHECKING:
    from pymllm.history.files import Header
    from pymllm.machines.acting import ActingMachine, Scenario


_DRIVEN = frozenset({"engine"})


@dataclass(frozen=True, slots=True)
class MachineEntry:
    """A machine, with the kind and the claims of the adapters that it drives."""

    place: str  # ``"module:Class"``, the module one of `pymllm.machines`
    weight: float  # share of the time for one configuration, beside the other machines
    needs: frozenset[str] = frozenset()  # capabilities without which it cannot run
    # pace, driven_pace: programs of Hypothesis, and driven ones, in a second of a quiet core, on our own
    # classes: so many are promised for a second of a profile
    pace: float = 23.0
    driven_pace: float = 7.0

    @property
    def name(self) -> str:
        """The name of the machine's class."""
        return self.place.partition(":")[2]

    @property
    def kind(self) -> str | None:
        """The kind of adapters that the machine drives; ``None`` for an unlisted machine."""
        return next((kind for kind, entries in MACHINES.items() if self in entries), None)

    @property
    def has_engine(self) -> bool:
        """Whether the machine runs an engine, and so can reach the coverage goals of engines."""
        return self.needs >= _DRIVEN

    @property
    def why_missing(self) -> str | None:
        """Why the machine cannot run here (its engine needs torch), or ``None``."""
        reason = why_no_torch() if self.has_engine else None
        return None if reason is None else f"{self.name} {reason}"

    def exercises(self, law: Law) -> bool:
        """Tell whether the machine can test a law; some laws need a machine with an engine."""
        return law.needs_of(self.kind) & _DRIVEN <= self.needs


MACHINES: dict[str, tuple[MachineEntry, ...]] = {
    "slots": (MachineEntry("pymllm.machines.slots:SlotMachine", 0.25, pace=70, driven_pace=40),),
    "rows": (MachineEntry("pymllm.machines.rows:RowMachine", 1.0, pace=65, driven_pace=33),),
    "buffers": (MachineEntry("pymllm.machines.pools:BufferMachine", 0.5, pace=35, driven_pace=21),),
    "states": (MachineEntry("pymllm.machines.rows:StateMachine", 0.6, pace=55, driven_pace=18),),
    "hashes": (MachineEntry("pymllm.machines.pools:HashMachine", 1.0, pace=120, driven_pace=120),),
    "prefix": (
        MachineEntry("pymllm.machines.prefix:PrefixMachine", 0.75, pace=23, driven_pace=7),
        MachineEntry("pymllm.machines.lifecycle:LifecycleMachine", 0.75, _DRIVEN, pace=11, driven_pace=2),
    ),
    "blocks": (MachineEntry("pymllm.machines.blocks:BlockMachine", 0.4, pace=24, driven_pace=8),),
    "requests": (
        MachineEntry("pymllm.machines.requests:RequestMachine", 0.6, pace=12, driven_pace=1.5),
        MachineEntry(
            "pymllm.machines.block_lifecycle:BlockLifecycleMachine",
            0.25,
            _DRIVEN | {"reserve"},
            pace=7,
            driven_pace=0.6,
        ),
    ),
    "index": (MachineEntry("pymllm.machines.block_index:IndexMachine", 0.5, pace=20, driven_pace=20),),
}
"""The machines of each kind."""


def machines_for(
    kind: str, capabilities: Collection[str], laws: Collection[Law] = ()
) -> tuple[MachineEntry, ...]:
    """Return the machines that can run here on an adapter with these claims.

    With laws, only machines that can test one of them.
    """
    able = _able(kind, capabilities, laws)
    return tuple(entry for entry in able if entry.why_missing is None)


def missing_machines(kind: str, capabilities: Collection[str]) -> tuple[MachineEntry, ...]:
    """Return the machines that fit an adapter but cannot run here (see `MachineEntry.why_missing`)."""
    return tuple(entry for entry in _able(kind, capabilities, ()) if entry.why_missing is not None)


def why_untested(kind: str, capabilities: Collection[str], laws: Collection[Law]) -> tuple[str, ...]:
    """Return the reasons why some laws cannot be tested here, one for each missing machine."""
    able = machines_for(kind, capabilities)
    lost = [law for law in laws if not any(entry.exercises(law) for entry in able)]
    reasons = [entry.why_missing for entry in _able(kind, capabilities, lost)] if lost else []
    return tuple(reason for reason in reasons if reason is not None)


def _able(kind: str, capabilities: Collection[str], laws: Collection[Law]) -> list[MachineEntry]:
    able = [entry for entry in MACHINES[kind] if entry.needs <= set(capabilities)]
    return [entry for entry in able if not laws or any(entry.exercises(law) for law in laws)]


def load_machine(entry: MachineEntry) -> type[ActingMachine]:
    """Import a machine's class."""
    module, _, name = entry.place.partition(":")
    machine: type[ActingMachine] = getattr(importlib.import_module(module), name)
    return machine


def find_scenario(header: Header) -> Scenario | None:
    """Return the acts in a header; raise `ProgramError` if no machine here has such acts."""
    played = header.scenario
    if played is None:
        return None
    from pymllm.machines.acting import Scenario, acts_of

    entries = {entry.name: entry for entry in MACHINES[header.kind]}
    if played.machine not in entries:
        known = ", ".join(entries)
        raise ProgramError(
            f"its acts are of {played.machine}; the state machines of {header.kind} are {known}"
        )
    machine = load_machine(entries[played.machine])
    known_acts = acts_of(machine)
    for act in played.acts:
        names = known_acts[act.name].act_ranges.keys() if act.name in known_acts else None
        if names is None or names != dict(act.arguments).keys():
            raise ProgramError(f"{act} is not an act of {played.machine}")
    return Scenario(machine, played.audit, played.acts)


@dataclass(frozen=True, slots=True)
class Profile:
    """The thoroughness of a search: the numbers and lengths of its programs."""

    name: str  # what people type
    summary: str  # what it is for
    steps: int  # most acts of one program
    examples: int  # programs per machine and configuration: in tests
    # processor time for which `pymllm verify` promises programs, as our own classes take it on a quiet
    # machine: it is shared out by the weights of machines (`pymllm.machines.registry`) over their
    # configurations, and each plays as many programs as its machine's pace makes of that. No clock is looked
    # at, so that equal options play the same programs however busy a machine is
    seconds: float
    # most of it for a weight of 1: a single small adapter is not searched for as long as all
    seconds_max: float
    shrinks: int  # most programs to play while a found one is made smaller
    seed: int | None  # seed where none is given; ``None`` draws one, so that every night looks elsewhere


DEV = Profile("dev", "a few seconds", 30, 30, 10.0, 0.5, 100, 0)
CI = Profile("ci", "half a minute on two cores, from a fixed seed", 40, 60, 45.0, 4.0, 300, 0)
DEEP = Profile("deep", "hours, another seed each time", 100, 1000, 14_400.0, 1800.0, 10_000, None)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (DEV, CI, DEEP)}
"""The profiles by name."""
