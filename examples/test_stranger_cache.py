"""The tests that a project with a cache puts beside its own."""

from __future__ import annotations

import pytest
from stranger_adapter import StrangerCache

from pymllm.search.cache_machine import cache_machine, check_adapter

# A state machine that pytest collects: Hypothesis plays it and shows the smallest program that breaks a law.
TestStrangerCache = cache_machine(StrangerCache).TestCase


@pytest.mark.parametrize(
    "adapter",
    [
        "stranger_adapter:StrangerCache",
        "stranger_slots_adapter:StrangerSlots",
        "stranger_blocks_adapter:StrangerBlocks",
    ],
)
def test_it_keeps_every_law_that_it_claims(adapter: str) -> None:
    """On every configuration; the cache also where an engine drives it."""
    check_adapter(adapter, examples=10)
