"""Which machine searches what, and the three profiles."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pymllm.conformance.acting import ActingMachine
from pymllm.conformance.machines import (
    CI,
    DEEP,
    DEV,
    MACHINES,
    MachineEntry,
    load_machine,
    machines_for,
    missing_machines,
    why_untested,
)
from pymllm.history.operations import KINDS
from pymllm.oracle.laws import find_law


def test_every_kind_has_a_machine() -> None:
    """What can be adapted can be examined."""
    assert set(MACHINES) == set(KINDS)
    assert all(MACHINES.values())


@pytest.mark.parametrize(
    "entry", [entry for entries in MACHINES.values() for entry in entries], ids=lambda entry: entry.name
)
def test_every_machine_is_there(entry: MachineEntry) -> None:
    """The registry names classes that exist, with a share of the time each."""
    machine = load_machine(entry)
    assert issubclass(machine, ActingMachine)
    assert machine.__name__ == entry.name
    assert entry.weight > 0
    assert entry.pace >= entry.driven_pace > 0


def test_the_engine_drives_only_what_can_be_driven() -> None:
    """A cache without a pool has no life cycle."""
    names = [entry.name for entry in machines_for("prefix", {"pool"})]
    assert names == ["PrefixMachine"]
    names = [entry.name for entry in machines_for("prefix", {"pool", "engine"})]
    assert names == ["PrefixMachine", "LifecycleMachine"]


def test_only_machines_that_can_test_a_law_are_chosen() -> None:
    """E3 needs the engine; R6 is tested by both."""
    claims = {"pool", "engine"}
    assert [it.name for it in machines_for("prefix", claims, [find_law("E3")])] == ["LifecycleMachine"]
    assert len(machines_for("prefix", claims, [find_law("R6")])) == 2
    assert len(machines_for("prefix", claims, [find_law("E3"), find_law("R6")])) == 2


def test_without_torch_no_engine_is_driven_and_what_only_it_tests_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others search what they can; a law that they test, too, has lost nothing."""
    claims = {"pool", "engine"}
    laws = [find_law("E3"), find_law("R6")]
    assert why_untested("prefix", claims, laws) == ()
    assert missing_machines("prefix", claims) == ()
    monkeypatch.setattr("pymllm.conformance.machines.why_no_torch", lambda: "needs what is not there")
    assert [it.name for it in machines_for("prefix", claims)] == ["PrefixMachine"]
    assert machines_for("prefix", claims, laws[:1]) == ()
    assert why_untested("prefix", claims, laws) == ("LifecycleMachine needs what is not there",)
    assert why_untested("prefix", claims, laws[1:]) == ()
    assert why_untested("prefix", {"pool"}, laws[1:]) == ()
    assert [it.name for it in missing_machines("prefix", claims)] == ["LifecycleMachine"]
    assert missing_machines("prefix", {"pool"}) == ()


def test_each_profile_looks_further_than_the_one_before() -> None:
    """Whoever asks for more gets more of everything, and a new place each night."""
    for less, more in ((DEV, CI), (CI, DEEP)):
        assert less.steps < more.steps
        assert less.examples < more.examples
        assert less.seconds < more.seconds
        assert less.shrinks < more.shrinks
    assert (DEV.seed, CI.seed, DEEP.seed) == (0, 0, None)


def test_the_numbers_can_be_read_before_anything_else() -> None:
    """A test session reads them first; nothing heavy comes along."""
    code = (
        "import sys, pymllm.conformance.machines; print('hypothesis' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
