"""Adapter of `ChunkCache`."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_caches import Chunk
from pymllm.history.operations import (
    Alloc,
    Evict,
    Fault,
    Hash,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Evicted, Inserted, Locked, Matched, Unsupported


@pytest.mark.parametrize("config", Chunk.CONFIGURATIONS)
def test_nothing_is_kept(config: dict[str, Any]) -> None:
    """Section 6: empty matches, nothing adopted, sizes 0, locks that do nothing."""
    chunk = Chunk("chunk", config)
    slots: tuple[Span, ...] = (Span(0, 100, 108),)
    if config["pool"] != "none":
        chunk.apply(1, Alloc(8))
        slots = (Span(1, 0, 8),)
    operations = [Insert(Key((7,) * 8), slots), Match(Key((7,) * 8)), Lock(3), Evict(8, 8), Unlock(4)]
    outcomes = [chunk.apply(step, operation) for step, operation in enumerate(operations, 2)]
    expected = [Inserted(0, ()), Matched((), 0), Locked(), Evicted(0), Done()]
    assert [outcome.result for outcome in outcomes] == expected
    assert [outcome.effects for outcome in outcomes] == [()] * 5
    assert sum(size for name, size in outcomes[-1].sizes.items() if "available" not in name) == 0
    assert chunk.audit() == (() if config["pool"] == "none" else ("A1", "A2"))


def test_what_it_does_not_have_is_not_claimed() -> None:
    """It has neither nodes nor hashes, calls nobody back and refuses nothing."""
    chunk = Chunk("chunk", Chunk.CONFIGURATIONS[1])
    assert chunk.capabilities == {"pool", "engine", "extra_key", "bigrams"}
    chunk.apply(1, Match(Key((7,))))
    for step, operation in enumerate((Inspect(), Hash(1), Fault("free")), 2):
        assert isinstance(chunk.apply(step, operation).result, Unsupported)
