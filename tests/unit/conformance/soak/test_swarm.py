"""What acts are good for, and which of them a run plays."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import pytest

from pymllm.conformance.acting import ActingMachine, act, acts_of, make_machine
from pymllm.conformance.machines import MACHINES, MachineEntry, load_machine
from pymllm.conformance.row_machine import RowMachine
from pymllm.conformance.slot_machine import SlotMachine
from pymllm.conformance.soak.swarm import PHASES, ROLES, Roles, Swarm, roles_of

ENTRIES = list(chain.from_iterable(MACHINES.values()))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_role_names_acts_of_its_machine(entry: MachineEntry) -> None:
    """An act that was renamed would lose its role without a word."""
    acts = acts_of(load_machine(entry))
    roles = ROLES[entry.name]
    assert roles.fill
    assert roles.fill | roles.drain | roles.wipe | roles.vital | roles.lengths.keys() <= acts.keys()
    for name, names in roles.lengths.items():
        assert set(names) <= acts[name].act_ranges.keys()
    assert not roles.fill & roles.drain
    assert not (roles.fill | roles.drain) & roles.wipe


def test_every_machine_has_roles_and_no_other() -> None:
    """A new machine gets its line."""
    assert set(ROLES) == {entry.name for entry in ENTRIES}


def test_a_machine_that_is_not_listed_fills_with_everything() -> None:
    """Somebody else's machine can be played, too."""
    assert roles_of("Mine", frozenset({"a", "b"})) == Roles(frozenset({"a", "b"}))


CONFIG = {"max_reqs": 3, "max_context_len": 5}


def row_machine() -> ActingMachine:
    return make_machine(RowMachine, "rows", CONFIG)()


def test_the_same_source_plays_the_same_acts() -> None:
    """A seed is all that it takes to play a run again."""
    histories = []
    for _ in range(2):
        machine = row_machine()
        swarm = Swarm(machine, "RowMachine", random.Random(4), 1)
        for _ in range(60):
            swarm.play(len(machine.examiner.history))
        histories.append(machine.examiner.history)
    assert histories[0] == histories[1]


def test_runs_differ_in_what_is_off_and_always_fill() -> None:
    """With nothing in a pool there is nothing to see."""
    chosen = [Swarm(row_machine(), "RowMachine", random.Random(seed), 1).acts for seed in range(40)]
    assert len(set(chosen)) > 20
    assert all("admit" in acts for acts in chosen)
    off = Counter(act for acts in chosen for act in set(max(chosen, key=len)) - set(acts))
    assert min(off[act] for act in ("finish", "clear", "decode", "write_stretch")) > 3


def test_the_first_phase_fills_and_the_next_is_another() -> None:
    """Phases are as long as operations last, and end everywhere at the same one."""
    machine = row_machine()
    swarm = Swarm(machine, "RowMachine", random.Random(0), 1)
    phases = []
    for operations in range(0, 40_000, 100):
        swarm.play(operations)
        phases.append(swarm.phase)
    assert phases[0] == "fill"
    assert set(phases) == set(PHASES)


def test_lengths_reach_further_in_a_larger_pool() -> None:
    """And everything else keeps its bounds."""
    seen: dict[str, list[int]] = {"pages": [], "short": []}

    class Watched(SlotMachine):
        @act(pages=(0, 3), short=(0, 3), weight=50)
        def alloc(self, pages: int, short: int) -> None:
            """Note the arguments."""
            seen["pages"].append(pages)
            seen["short"].append(short)

    machine = make_machine(Watched, "token-slots", {"page_size": 1, "pages": 12})()
    for reach in (1, 30):
        swarm = Swarm(machine, "SlotMachine", random.Random(1), reach)
        for operations in range(0, 60_000, 200):
            swarm.play(operations)
        assert max(seen["short"]) == 3
        assert (max(seen["pages"]) > 3) == (reach > 1)
    assert max(seen["pages"]) <= 3 * 30


class Once(ActingMachine):
    """Can do something once only."""

    is_new = True
    played = 0

    @act("is_new")
    def start(self) -> None:
        """Play, and never again."""
        self.is_new = False
        self.played += 1


def test_where_no_act_makes_sense_nothing_is_played() -> None:
    """The run goes on, and comes to its end."""
    machine = make_machine(Once, "rows", CONFIG)()
    assert isinstance(machine, Once)
    swarm = Swarm(machine, "Once", random.Random(0), 1)
    for _ in range(20):
        swarm.play(0)
    assert machine.played == 1


def test_where_only_what_wipes_is_on_it_is_played() -> None:
    """Weights of nothing would choose nothing."""
    roles = Roles(frozenset(), wipe=frozenset({"start"}))
    machine = make_machine(Once, "rows", CONFIG)()
    assert isinstance(machine, Once)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROLES, "Once", roles)
        Swarm(machine, "Once", random.Random(0), 1).play(0)
    assert machine.played == 1
