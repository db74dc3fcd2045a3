"""Every documented class is driven by a machine that the oracle judges."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.registry import load_machine, machines_for

# Read off the documented interface, module by module.
DOCUMENTED: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "repo" / "documented_classes.json").read_text(encoding="utf-8")
)

CLASSES = [(module, name) for module in DOCUMENTED for name in DOCUMENTED[module]]


def codes_of(kind: type) -> Iterator[CodeType]:
    """The code of each function that the class itself defines."""
    for member in vars(kind).values():
        for function in (member, getattr(member, "fget", None), getattr(member, "__func__", None)):
            if code := getattr(function, "__code__", None):
                yield code


@contextmanager
def watching(codes: dict[CodeType, str]) -> Iterator[set[str]]:
    """Note by name which of some functions run inside the block."""
    ran: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            ran.add(codes[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(before)


def drive_everything() -> None:
    """Play a short program on each own adapter with each machine that can run on it."""
    for entry in OWN:
        for config in load_adapter(entry).CONFIGURATIONS[-2:]:
            adapter = make_adapter(entry.name, dict(config))
            for machine in machines_for(adapter.kind, adapter.capabilities):
                drive(make_machine(load_machine(machine), entry.name, dict(config)), seed=2, steps=60)


@pytest.fixture(scope="module")
def driven() -> set[str]:
    """Names of the documented classes that were driven."""
    kinds = {name: getattr(importlib.import_module(module), name) for module, name in CLASSES}
    with watching({code: name for name, kind in kinds.items() for code in codes_of(kind)}) as ran:
        drive_everything()
    return ran | {
        name for name, kind in kinds.items() if any(issubclass(kinds[other], kind) for other in ran)
    }


@pytest.mark.parametrize("name", [name for _, name in CLASSES])
def test_a_machine_drives_the_documented_class(name: str, driven: set[str]) -> None:
    """Every documented class is driven by a machine."""
    assert name in driven


def test_the_look_at_running_functions_sees_only_those_that_ran() -> None:
    """The tests above can fail."""

    class Quiet:
        def speak(self) -> None: ...

        def listen(self) -> None: ...

    names: dict[str, Callable[..., Any]] = {"speak": Quiet.speak, "listen": Quiet.listen}
    with watching({function.__code__: name for name, function in names.items()}) as ran:
        Quiet().speak()
    assert ran == {"speak"}
