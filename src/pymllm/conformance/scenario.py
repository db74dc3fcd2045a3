"""What a machine was told to do: its acts with their arguments, from which the same program comes again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pymllm.conformance.machines import MACHINES, load_machine
from pymllm.errors import ProgramError
from pymllm.history.files import Header, History, PlayedAct, PlayedActs

if TYPE_CHECKING:
    from pymllm.conformance.acting import ActingMachine

__all__ = ["PlayedAct", "Scenario", "find_scenario", "with_scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The acts of one run, without what they led to.

    Parameters
    ----------
    machine : type of ActingMachine
        Who played; without adapter and configuration, which are the history's.
    audit : bool
        Whether it walked the implementation from inside.
    acts : tuple of PlayedAct
        In order.
    """

    machine: type[ActingMachine]
    audit: bool
    acts: tuple[PlayedAct, ...]


def with_scenario(history: History, scenario: Scenario | None) -> History:
    """Return a history whose header has the acts, or none; its steps are the same."""
    acts = None if scenario is None else PlayedActs(scenario.machine.__name__, scenario.audit, scenario.acts)
    return History(replace(history.header, scenario=acts), history.steps)


def find_scenario(header: Header) -> Scenario | None:
    """Return the acts that a header has.

    Raises
    ------
    ProgramError
        They are of a machine that is not there, or are none of its acts.
    """
    from pymllm.conformance.acting import acts_of  # which has scenarios itself

    played = header.scenario
    if played is None:
        return None
    entries = {entry.name: entry for entry in MACHINES[header.kind]}
    if played.machine not in entries:
        known = ", ".join(entries)
        raise ProgramError(f"its acts are of {played.machine}; the machines of {header.kind} are {known}")
    machine = load_machine(entries[played.machine])
    known_acts = acts_of(machine)
    for act in played.acts:
        names = known_acts[act.name].act_ranges.keys() if act.name in known_acts else None
        if names is None or names != dict(act.arguments).keys():
            raise ProgramError(f"{act} is no act of {played.machine}")
    return Scenario(machine, played.audit, played.acts)
