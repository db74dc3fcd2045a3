"""What a machine was told to do: its acts with their arguments, from which the same program comes again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymllm.conformance.acting import ActingMachine

__all__ = ["PlayedAct", "Scenario"]


@dataclass(frozen=True, slots=True)
class PlayedAct:
    """One act of a machine.

    Parameters
    ----------
    name : str
        Of the method.
    arguments : tuple of (str, int)
        By name.
    """

    name: str
    arguments: tuple[tuple[str, int], ...] = ()


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
