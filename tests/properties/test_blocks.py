"""Block allocators and cached states against their judge, by Hypothesis and from fixed seeds."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test
from pairwise import missing_pairs

from pymllm.adapters.own_blocks import Blocks
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.block_machine import BlockMachine
from pymllm.history.files import Config
from pymllm.oracle.situations import expected_situations

MACHINES = [make_machine(BlockMachine, "blocks", dict(config)) for config in Blocks.CONFIGURATIONS]
each_machine = pytest.mark.parametrize("machine_class", MACHINES, ids=lambda machine: machine.__name__)

SEEDS = (3, 2, 6, 1, 2, 1, 1, 1)
"""For each configuration one from which a short run reaches everything."""


@each_machine
def test_nothing_is_found_by_hypothesis(machine_class: type[BlockMachine]) -> None:
    """C1 to C7, C9, X1 to X4, X6, X7: as long as the profile says."""
    run_state_machine_as_test(machine_class)
    assert machine_class.steps_run > 0


@pytest.mark.parametrize(("machine_class", "seed"), list(zip(MACHINES, SEEDS, strict=True)))
def test_a_seeded_run_finds_nothing_and_reaches_every_situation(
    machine_class: type[BlockMachine], seed: int
) -> None:
    """C1 to C7, C9, X1 to X4, X6, X7: silence about a situation that never arose means nothing."""
    machine = drive(machine_class, seed, steps=1_000)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) == expected_situations(header)


def test_any_two_settings_meet_in_a_long_run() -> None:
    """C1 to C7: sizes of blocks, slots and policies; hashes are drawn, few enough to collide."""
    settings = {"block_size": (4, 256), "slots": (1, 3, 64), "policy": ("lru", "ref_zero")}
    assert missing_pairs(Blocks.CONFIGURATIONS, settings) == set()


@pytest.mark.slow
@each_machine
def test_twenty_thousand_steps_find_nothing(machine_class: type[BlockMachine]) -> None:
    """C1 to C7, C9, X1 to X4, X6, X7: the long run, the same everywhere."""
    machine = drive(machine_class, seed=20_000, steps=20_000)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) == expected_situations(header)


@pytest.mark.gpu
@pytest.mark.gpu_memory_limit("64 MiB")
@pytest.mark.parametrize("config", Blocks.CONFIGURATIONS)
def test_a_seeded_run_on_cuda_finds_nothing(config: Config) -> None:
    """C1 to C7, C9: states on the device, books on the host."""
    machine = drive(make_machine(BlockMachine, "blocks", {**config, "device": "cuda"}), seed=2, steps=500)
    assert len(machine.examiner.history) > 500
