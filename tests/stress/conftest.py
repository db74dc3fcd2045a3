"""The shared fixtures of stress tests: the device, the time for more rounds, and a watch on used memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from pymllm.instrument.gpu_memory import GpuMemory, parse_bytes
from tests.stress.card import Card, Rounds


@pytest.fixture(autouse=True)
def watched(gpu_memory: GpuMemory) -> GpuMemory:
    """Every test here runs under NVML and torch's counters; ``--gpu-memory-log`` keeps what they saw."""
    return gpu_memory


@pytest.fixture
def card(kv_device: torch.device, pytestconfig: pytest.Config) -> Iterator[Card]:
    """Each device in turn, and what of its memory ``--stress-memory`` leaves to a test.

    What the test took is free for the next one, which asks the driver how much there is.
    """
    limit = pytestconfig.getoption("--stress-memory")
    card = Card(kv_device, None if limit is None else parse_bytes(limit))
    yield card
    card.settle()


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """Where a test's choices come from: ``--stress-seed``."""
    number: int = pytestconfig.getoption("--stress-seed")
    return number


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> Rounds:
    """Count as many rounds as asked for, and on until ``--stress-seconds`` are over, or a share of them."""
    seconds: float = pytestconfig.getoption("--stress-seconds")

    def count(at_least: int, share: float = 1.0) -> Iterator[int]:
        end = time.monotonic() + seconds * share
        number = 0
        while number < at_least or time.monotonic() < end:
            yield number
            number += 1

    return count
