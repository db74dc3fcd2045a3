"""Who looks for a fault: each plays programs on its adapters until one breaks a law, and can go on later.

What is found follows from the seed alone, and never from how fast a machine is.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.faulty import configured
from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.conformance.acting import ActingMachine, FoundViolation, drive, make_machine
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.machines import MachineEntry, load_machine, machines_for
from pymllm.conformance.sweep import CORPUS_ACTS, sweep_runs
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config

_ACTS = (40, 80, 160, 320)
"""Lengths of programs, in turn: what shows at once is found in a short one, other things need a long life."""


def _seed_of(seed: int, number: int, place: int) -> int:
    """Return a seed that no other program of any search has.

    With one for all machines, each chooses nearly the same acts: what the first does not do, none does.
    """
    return (seed << 32) + (number << 8) + place


@dataclass(frozen=True, slots=True)
class Caught:
    """A program that breaks a law, and where."""

    found: FoundViolation  # the program as it was played, and the violation
    adapter: str  # adapter, config: on whom
    config: Config
    machine: type[ActingMachine]  # that played it
    is_inside: bool  # whether a walk from inside saw it, and not the outcome of an operation


class Searcher(ABC):
    """One way to look for a fault: plays on machines, each program from a seed of its own."""

    def __init__(self, name: str, machines: list[type[ActingMachine]], seed: int) -> None:
        self.name = name  # one of `pymllm.adapters.cabinet.fault.SEARCHERS`
        self.crash: str | None = None  # the first error that was no violation
        self._seed = seed
        self._machines = machines

    @property
    def operations(self) -> int:
        """Operations carried out so far."""
        return sum(machine.steps_run for machine in self._machines)

    def go_on(self, operations: int) -> Caught | None:
        """Play on until so many operations were carried out in all, or something is caught.

        A program that ends with any other error than a violation says nothing; the next one is played, and
        one operation is counted at least, so that there is an end to it.
        """
        spent = self.operations
        while spent < operations:
            before = self.operations
            caught = self._play()
            if caught is not None:
                return caught
            spent += max(1, self.operations - before)
        return None

    @abstractmethod
    def _play(self) -> Caught | None:
        """Play the next program; what it has caught."""

    def _places(self) -> Iterator[tuple[int, type[ActingMachine], int]]:
        """Yield the number of each turn, and the machines in turn, each with a seed of its own."""
        for number in itertools.count():
            for place, machine in enumerate(self._machines):
                yield number, machine, _seed_of(self._seed, number, place)

    def _note_crash(self, error: Exception) -> None:
        """Keep an error that is no violation: whatever the fault has made of the code."""
        self.crash = self.crash or f"{type(error).__name__}: {error}"

    def _caught(self, machine: type[ActingMachine], *, is_inside: bool) -> Caught:
        assert machine.found is not None  # every violation passes through the machine
        return Caught(machine.found, machine.ADAPTER, machine.CONFIG, machine, is_inside)


class MachineSearcher(Searcher):
    """Drives machines in turn."""

    def __init__(self, name: str, machines: list[type[ActingMachine]], seed: int) -> None:
        super().__init__(name, machines, seed)
        self._is_inside = False
        self._turns = self._places()
        for machine in machines:
            machine.on_end = self._note

    def _note(self, examiner: Examiner) -> None:
        self._is_inside = examiner.is_found_inside

    def _play(self) -> Caught | None:
        number, machine, seed = next(self._turns)
        try:
            drive(machine, seed, _ACTS[number % len(_ACTS)])
        except InvariantViolation:
            return self._caught(machine, is_inside=self._is_inside)
        except Exception as error:
            self._note_crash(error)
        return None


class SweepSearcher(Searcher):
    """Sweeps over one machine after the other."""

    def __init__(self, name: str, machines: list[type[ActingMachine]], seed: int) -> None:
        super().__init__(name, machines, seed)
        self._runs = self._sweep()

    def _play(self) -> Caught | None:
        return next(self._runs)

    def _sweep(self) -> Iterator[Caught | None]:
        """Play failing program after failing program; what each has caught."""
        for _, machine, seed in self._places():
            try:
                for _ in sweep_runs(machine, (seed,), CORPUS_ACTS):
                    yield None
            except InvariantViolation:
                yield self._caught(machine, is_inside=False)
            except Exception as error:
                self._note_crash(error)
                yield None


def make_searchers(fault: Fault, seed: int) -> list[Searcher]:
    """Make those that are to look for a fault, and that can: without an engine to drive, no life cycles."""
    places = [
        (name, dict(config), entry)
        for name in fault.adapters
        for config in configured(load_adapter(find_adapter(name)).CONFIGURATIONS, **fault.settings)
        for entry in _machines_of(name, config)
    ]
    machines = {
        "machine": [place for place in places if not place[2].needs],
        "life-cycle machine": [place for place in places if place[2].needs],
        "invariants": places,
        "sweep": places,
    }
    searchers: list[Searcher] = []
    for name in fault.searchers:
        if not machines[name]:
            continue
        made = [_make(place, seed, name in ("invariants", "sweep")) for place in machines[name]]
        searchers.append((SweepSearcher if name == "sweep" else MachineSearcher)(name, made, seed))
    return searchers


def _machines_of(name: str, config: Config) -> tuple[MachineEntry, ...]:
    adapter = make_adapter(name, dict(config))
    adapter.close()
    return machines_for(adapter.kind, adapter.capabilities)


def _make(place: tuple[str, Config, MachineEntry], seed: int, audit: bool) -> type[ActingMachine]:
    name, config, entry = place
    return make_machine(load_machine(entry), name, config, seed=seed, audit=audit)
