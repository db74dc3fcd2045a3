"""What the pools and callbacks of a prefix cache saw during one operation, sorted by what was called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pymllm.errors import ProgramError
from pymllm.history.outcomes import Effect

__all__ = ["SeenEffects", "sort_effects"]


@dataclass(slots=True)
class SeenEffects:
    """The effects of one operation.

    Attributes
    ----------
    calls : list of str
        What was called, in order.
    freed, halves : list of int
        Slots given back whole, and slots whose SWA halves were given back.
    moves : dict of int to int
        Source to target of each SWA half that was moved.
    callbacks : list of Effect
        What was called back, in order.
    states : list of int
        Track slots given back, in order.
    """

    calls: list[str] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    halves: list[int] = field(default_factory=list)
    moves: dict[int, int] = field(default_factory=dict)
    callbacks: list[Effect] = field(default_factory=list)
    states: list[int] = field(default_factory=list)


def sort_effects(effects: Iterable[Effect]) -> SeenEffects:
    """Sort the effects of one operation.

    Raises
    ------
    ProgramError
        There is no such call, or a move has not as many sources as targets.
    """
    seen = SeenEffects()
    for effect in effects:
        seen.calls.append(effect.call)
        if effect.call == "free":
            seen.freed += effect.slots
        elif effect.call == "free_swa":
            seen.halves += effect.slots
        elif effect.call == "free_state":
            seen.states += effect.slots
        elif effect.call == "callback":
            seen.callbacks.append(effect)
        elif effect.call == "move_swa" and len(effect.slots) == len(effect.target):
            seen.moves.update(zip(effect.slots, effect.target, strict=True))
        else:
            raise ProgramError(f"no effect of a prefix cache: {effect}")
    return seen
