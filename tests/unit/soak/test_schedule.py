"""Which run is which, in which configurations, and which acts it plays."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from itertools import chain

import pytest
from msgspec.structs import replace

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.history.files import Config
from pymllm.machines.acting import ActingMachine, act, acts_of, make_machine
from pymllm.machines.registry import MACHINES, MachineEntry, load_machine
from pymllm.machines.rows import RowMachine
from pymllm.machines.slots import SlotMachine
from pymllm.machines.smoke import SmokeFailure
from pymllm.soak.ledger import CampaignHeader, Place
from pymllm.soak.schedule import (
    SIZES,
    find_places,
    find_places_of,
    grow,
    is_fit_for,
    plan_runs,
    reach_of,
)
from pymllm.soak.swarm import PHASES, ROLES, Roles, Swarm, roles_of


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_every_own_adapter_can_be_built_in_every_size(entry: AdapterEntry) -> None:
    """A configuration that the table grows has the same keys and can be built."""
    adapter = load_adapter(entry)
    for config in adapter.CONFIGURATIONS:
        for size in SIZES:
            grown = grow(adapter.KIND, config, size)
            if grown is not None:
                make_adapter(entry.name, grown).close()
                assert grown.keys() == config.keys()
                assert (grown == config) == (size == "tiny")


def test_what_is_no_number_does_not_grow() -> None:
    """A window that is not there stays away, and so does a cache without a pool from large trees."""
    config = {"slots": None, "swa_slots": True, "track_slots": 3, "pool": "token"}
    assert grow("prefix", config, "medium") == {**config, "track_slots": 12}
    assert grow("prefix", {"slots": 24, "pool": "none"}, "large") is None
    assert grow("prefix", {"slots": 24, "pool": "none"}, "medium") == {"slots": 192, "pool": "none"}
    assert grow("hashes", {}, "large") is None


def test_keys_reach_as_far_as_the_pool_is_large() -> None:
    """A page of a tiny pool is one, and what has no capacity keeps its lengths."""
    assert reach_of("prefix", {"slots": 24, "page_size": 1}) == 1
    assert reach_of("prefix", {"slots": 3072, "page_size": 4}) == 32
    assert reach_of("slots", {"pages": 3072}) == 256
    assert reach_of("slots", {"pages": None}) == 1
    assert reach_of("rows", {"max_reqs": 500}) == 1


def test_machines_with_an_engine_stay_out_of_large_pools() -> None:
    """Everywhere else all machines play."""
    entries = list(chain.from_iterable(MACHINES.values()))
    names = [it.name for it in entries if not is_fit_for(it, "large")]
    assert names == ["LifecycleMachine", "BlockLifecycleMachine"]
    assert all(is_fit_for(it, "medium") for it in entries)


def test_what_would_grow_beyond_its_limit_stays() -> None:
    """A program may declare as much as is allowed, and is played with that."""
    config: Config = {"page_size": 1, "pool": "token", "slots": 2**20, "window": None}
    assert grow("prefix", config, "tiny") == config
    assert grow("prefix", config, "medium") is None


PLACES = tuple(
    Place(adapter, "rows", {"max_reqs": number}, "RowMachine", size)
    for adapter in ("a", "b")
    for number, size in ((1, "tiny"), (2, "tiny"), (4, "medium"))
)
HEADER = CampaignHeader("v", {}, 7, None, 50_000, 64, PLACES)


def test_places_are_machines_on_configurations_of_all_sizes() -> None:
    """An engine plays where it can be driven."""
    places = find_places(find_adapter("radix"))
    assert isinstance(places, tuple)
    assert {(it.machine, it.size) for it in places} == {
        ("PrefixMachine", "tiny"),
        ("PrefixMachine", "medium"),
        ("PrefixMachine", "large"),
        ("LifecycleMachine", "tiny"),
        ("LifecycleMachine", "medium"),
    }
    assert all(it.config["pool"] != "none" for it in places if it.machine == "LifecycleMachine")
    assert "exact_lru" in places[0].capabilities


def test_one_configuration_can_be_asked_for() -> None:
    """It is played as it is."""
    config = {"max_reqs": 9, "max_context_len": 3}
    places = find_places_of((find_adapter("rows"), (config,)))
    assert isinstance(places, tuple)
    assert [(it.config, it.size) for it in places] == [(config, "tiny")]
    assert find_places_of((find_adapter("rows"), ())) == find_places(find_adapter("rows"))


def test_a_configuration_of_rows_that_lie_apart_is_far() -> None:
    """It is played where it is asked for: what a campaign plays by itself is the same on every machine."""
    near = find_places(find_adapter("gdn-states"))
    assert isinstance(near, tuple)
    assert {it.size for it in near} == {"tiny", "medium"}
    config = {**near[0].config, "apart": 5}
    places = find_places_of((find_adapter("gdn-states"), (config,)))
    assert isinstance(places, tuple)
    assert [(it.config, it.size) for it in places] == [(config, "far")]


def test_what_cannot_be_played_says_why(tiny: str) -> None:
    """An adapter, a configuration of one; what only cannot be larger is played as it is."""
    refused = find_places(find_adapter(f"{tiny}:NoConfigurations"))
    assert isinstance(refused, SmokeFailure)
    refused = find_places_of((find_adapter("rows"), ({},)))
    assert isinstance(refused, SmokeFailure)
    assert "cannot be built" in refused.message
    small = find_places(find_adapter(f"{tiny}:OnlySmall"))
    assert isinstance(small, tuple)
    assert [it.size for it in small] == ["tiny", "tiny"]


def test_runs_follow_from_the_seed_and_their_number() -> None:
    """And so a campaign can go on where it was."""
    first, again = (list(itertools.islice(plan_runs(HEADER), 50)) for _ in range(2))
    assert first == again
    assert [run.number for run in first] == list(range(50))
    assert len({run.seed for run in first}) == 50
    other = list(itertools.islice(plan_runs(replace(HEADER, seed=8)), 50))
    assert not {run.seed for run in first} & {run.seed for run in other}


def test_adapters_take_turns_and_so_do_their_places() -> None:
    """A short campaign sees every adapter, and one that is not much longer every place."""
    runs = list(itertools.islice(plan_runs(HEADER), 60))
    assert [run.place.adapter for run in runs[:6]] == ["a", "b"] * 3
    counts = Counter(run.place.adapter + str(run.place.config) for run in runs)
    assert len(counts) == 6
    assert min(counts.values()) >= 4


def test_runs_are_long_and_short_and_end_with_the_operations_asked_for() -> None:
    """In larger pools they are shorter; a campaign plays as much as it was asked for."""
    runs = list(itertools.islice(plan_runs(HEADER), 200))
    tiny = [run.limit for run in runs if run.place.size == "tiny"]
    assert min(tiny) < 4_000 < 25_000 < max(tiny) <= 50_000
    assert max(run.limit for run in runs if run.place.size == "medium") <= 50_000 // 3
    planned = list(plan_runs(replace(HEADER, operations=100_000)))
    assert sum(run.limit for run in planned) >= 100_000 > sum(run.limit for run in planned[:-1])
    short = list(plan_runs(replace(HEADER, operations=300, longest=100)))
    assert all(run.limit == 100 for run in short)
    assert [run.limit for run in plan_runs(replace(HEADER, operations=30))] == [30]


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
