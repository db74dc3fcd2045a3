"""What acts are good for."""

from __future__ import annotations

from itertools import chain

import pytest

from pymllm.conformance.acting import acts_of
from pymllm.conformance.machines import MACHINES, MachineEntry, load_machine
from pymllm.conformance.soak.swarm import ROLES, Roles, roles_of

ENTRIES = list(chain.from_iterable(MACHINES.values()))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_role_names_acts_of_its_machine(entry: MachineEntry) -> None:
    """An act that was renamed would lose its role without a word."""
    acts = acts_of(load_machine(entry))
    roles = ROLES[entry.name]
    assert roles.fill
    assert roles.fill | roles.drain | roles.wipe | roles.vital | roles.lengths.keys() <= acts.keys()
    for act, names in roles.lengths.items():
        assert set(names) <= acts[act].act_ranges.keys()
    assert not roles.fill & roles.drain
    assert not (roles.fill | roles.drain) & roles.wipe


def test_every_machine_has_roles_and_no_other() -> None:
    """A new machine gets its line."""
    assert set(ROLES) == {entry.name for entry in ENTRIES}


def test_a_machine_that_is_not_listed_fills_with_everything() -> None:
    """Somebody else's machine can be played, too."""
    assert roles_of("Mine", frozenset({"a", "b"})) == Roles(frozenset({"a", "b"}))
