"""Slots, rows, buffers, states, hashes and blocks against their judges: by Hypothesis, and from seeds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from pairwise import missing_pairs

from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.history.files import Config
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.mem_cache.slots import host_store
from pymllm.oracle.coverage import expected_goals

SLOTS = ("token-slots", "swa-slots")
ON_DEVICES = ("rows", "kv-buffers", "gdn-states", "blocks")
SEEDS = {"token-slots": (1,), "swa-slots": (8,), "blocks": (2, 2, 15, 2, 2, 1, 1, 1)}
"""By adapter, for all configurations or each, a seed whose short run reaches everything; 2 for others."""


def machine_of(name: str, config: Config) -> type[ActingMachine]:
    entry = MACHINES[load_adapter(find_adapter(name)).KIND][0]
    return make_machine(load_machine(entry), name, dict(config))


def seed_of(name: str, at: int) -> int:
    seeds = SEEDS.get(name, (2,))
    return seeds[at % len(seeds)]


RUNS = [
    (machine_of(name, config), seed_of(name, at))
    for name in (*SLOTS, *ON_DEVICES, "hashes")
    for at, config in enumerate(load_adapter(find_adapter(name)).CONFIGURATIONS)
]
each_machine = pytest.mark.parametrize(
    "machine", [machine for machine, _ in RUNS], ids=lambda machine: machine.__name__
)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host store search 4 pages at a time, at most 8, so that tiny pools have several chunks."""
    monkeypatch.setattr(host_store, "_CHUNK_BITS", 2)
    monkeypatch.setattr(host_store, "_WINDOW", 2)


def assert_everything_met(machine: ActingMachine) -> None:
    """Every coverage goal that the configuration can reach was reached, and no other."""
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) == expected_goals(header)


@each_machine
def test_nothing_is_found_by_hypothesis(machine: type[ActingMachine]) -> None:
    """A, P, K, H, C, E5 and X: there are fifty of them, so each gets a quarter of a profile's programs."""
    programs = settings.default.max_examples // 4
    run_state_machine_as_test(machine, settings=settings(machine.TestCase.settings, max_examples=programs))
    assert machine.steps_run > 0


@pytest.mark.parametrize(("machine", "seed"), RUNS, ids=[machine.__name__ for machine, _ in RUNS])
def test_a_seeded_run_finds_nothing_and_reaches_every_goal(machine: type[ActingMachine], seed: int) -> None:
    """A, P, K, H, C, E5 and X: silence about a coverage goal that never arose means nothing."""
    assert_everything_met(drive(machine, seed, steps=900 if machine.ADAPTER in SLOTS else 1_300))


@pytest.mark.slow
@each_machine
def test_twenty_thousand_steps_find_nothing(machine: type[ActingMachine]) -> None:
    """A, P, K, H, C, E5 and X: the long run, the same everywhere."""
    assert_everything_met(drive(machine, seed=20_000, steps=20_000))


@pytest.mark.gpu
@pytest.mark.gpu_memory_limit("64 MiB")
@pytest.mark.parametrize(
    ("name", "config"),
    [(name, config) for name in ON_DEVICES for config in load_adapter(find_adapter(name)).CONFIGURATIONS],
)
def test_a_seeded_run_on_cuda_finds_nothing(name: str, config: Config) -> None:
    """P, C, E5 and X: indices, rows and states on the device, looked at there; trackers on the host."""
    machine = drive(machine_of(name, {**config, "device": "cuda"}), seed=2, steps=500)
    assert len(machine.examiner.history) > 500


def test_any_two_settings_of_blocks_meet_in_a_long_run() -> None:
    """C1 to C7: sizes of blocks, slots and policies; hashes are drawn, few enough to collide."""
    settings = {"block_size": (4, 256), "slots": (1, 3, 64), "policy": ("lru", "ref_zero")}
    assert missing_pairs(Blocks.CONFIGURATIONS, settings) == set()
