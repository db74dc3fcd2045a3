"""Prefix caches and whole engines over pools of each device: judged, content checked, walked from inside."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.machines.acting import drive, make_machine
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.machines.prefix import PrefixMachine
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.source import TraceSource
from pymllm.workloads.synthetic import make_requests
from tests.stress.card import Card, Rounds

_POOL = {"pool": "token", "slots": 24, "swa_slots": 18}
CACHES: dict[str, tuple[str, dict[str, Any]]] = {
    "radix": ("radix", {"page_size": 1, "window": None, **_POOL}),
    "radix of pages": ("radix", {"page_size": 4, "window": None, **_POOL, "slots": 48, "swa_slots": 36}),
    "window": ("radix-window", {"page_size": 1, "window": 4, **_POOL, "pool": "swa"}),
    "hybrid": ("mamba", {"page_size": 1, "window": None, **_POOL, "track_slots": 3}),
}
of_each_cache = pytest.mark.parametrize("name", CACHES)


@pytest.mark.gpu_memory_limit("64 MiB")
@of_each_cache
@pytest.mark.parametrize("machine", [PrefixMachine, LifecycleMachine])
def test_a_prefix_cache_over_its_pools_breaks_no_law(
    card: Card, rounds: Rounds, seed: int, name: str, machine: type[PrefixMachine] | type[LifecycleMachine]
) -> None:
    """All of R, S, M, X, A and E1, where slots are tensors of the device."""
    adapter, config = CACHES[name]
    steps = 300 if machine is PrefixMachine or card.is_cuda else 80
    for number in rounds(1):
        made = make_machine(machine, adapter, {**config, "device": card.device.type})
        examiner = drive(made, seed + number, steps=steps).examiner
        assert examiner.judge.evidence.exercised["E1"] > 0


ENGINES: dict[str, dict[str, Any]] = {
    "radix": {"page_size": 1},
    "radix of pages": {"page_size": 16},
    "window": {"page_size": 16, "sliding_window_size": 256},
    "hybrid": {"cache": "mamba", "page_size": 1, "track_slots": 6},
    "chunk": {"cache": "chunk"},
    "blocks": {"cache": "blocks", "page_size": 64, "mamba_chunk_size": 64, "track_slots": 8},
}


@pytest.mark.gpu_memory_limit("512 MiB")
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("workload", ["chat", "adversarial"])
def test_an_engine_reads_what_it_wrote(
    card: Card, rounds: Rounds, seed: int, name: str, workload: str
) -> None:
    """E1-E5: a serving engine with memory that is short, contents compared, invariants walked."""
    # As many on a GPU: each step waits for it some ten times, and rounds go on where there is time.
    capacity, count = 20_480, 12
    for number in rounds(1):
        config = EngineConfig(
            capacity=capacity,
            max_context=16_384,
            content_check=True,
            check_every=50,
            device=card.device.type,
            **ENGINES[name],
        )
        source = TraceSource(make_requests(workload, count, seed=seed + number, capacity=capacity))
        report = (BlockEngine if config.cache == "blocks" else Engine)(config, source).run()
        assert report.requests == count
        assert report.finished > 0
        assert report.content_tokens > 0
        assert report.invariant_checks > 0
