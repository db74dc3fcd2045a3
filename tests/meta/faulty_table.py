"""The measured results of wrong implementations on which Hypothesis plays programs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.faults.adapters import Faulty
from pymllm.machines.acting import ActingMachine, make_machine
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.search.search import SearchPlan, SearchResult, search

_TABLE = Path(__file__).with_name("faulty_programs.json")


@dataclass(frozen=True, slots=True)
class Caught:
    """How a wrong implementation is caught: law and length of its smallest program, other laws, the seed."""

    law: str
    operations: int
    also: list[str]
    seed: int


def class_of(name: str) -> type[Faulty]:
    """Return the class of a wrong implementation."""
    found = load_adapter(find_adapter(name))
    assert issubclass(found, Faulty)
    return found


def machine_for(name: str) -> type[ActingMachine]:
    """Return the machine that is to catch a wrong implementation: with an engine where it takes one."""
    faulty, places = class_of(name), MACHINES[load_adapter(find_adapter(name)).KIND]
    return load_machine(next(place for place in places if ("engine" in place.needs) == faulty.NEEDS_ENGINE))


def look_for(name: str, seed: int, machine: type[ActingMachine] | None = None) -> SearchResult:
    """Let Hypothesis play short programs, without a look inside, and shrink the first that fails."""
    machine = machine or machine_for(name)
    config = dict(load_adapter(find_adapter(name)).CONFIGURATIONS[0])
    made = make_machine(machine, name, config, seed=seed, audit=False)
    return search(made, SearchPlan(seed=seed, steps=12, examples=300, seconds=0.0, shrinks=100))


def save(caught: dict[str, Caught]) -> None:
    """Write the table."""
    lines = (f'"{name}": {json.dumps(dataclasses.asdict(found))}' for name, found in caught.items())
    _TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


CAUGHT: dict[str, Caught] = {
    name: Caught(**found) for name, found in json.loads(_TABLE.read_text(encoding="utf-8")).items()
}
"""Each wrong implementation of the registry, by its name."""
