"""What a process holds."""

from __future__ import annotations

import ctypes
import gc

import pytest

from pymllm.conformance.soak import memory
from pymllm.conformance.soak.drift import look_at_memory


def test_what_is_held_shows_and_what_went_does_not() -> None:
    """A list of a million new numbers is so many blocks of Python."""
    before = look_at_memory(0)
    held = [[number] for number in range(100_000)]
    during = look_at_memory(5, is_first=True)
    del held
    after = look_at_memory(6)
    assert during.blocks - before.blocks > 100_000 > after.blocks - before.blocks
    assert during.rss >= during.uss > 0
    assert (during.operations, during.is_first, after.is_first) == (5, True, False)
    assert before.process == during.process != ""


def test_what_the_library_handed_out_shows() -> None:
    """Objects without blocks of Python: tensors, arrays, long lists."""
    before = look_at_memory(0)
    assert before.malloc > 0
    held = [bytearray(200_000) for _ in range(50)]
    during = look_at_memory(1)
    assert sum(map(len, held)) <= during.malloc - before.malloc < 2 * sum(map(len, held))
    del held
    assert look_at_memory(2).malloc - before.malloc < 1_000_000


def test_a_library_without_trimming_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is only that of one system."""
    monkeypatch.setattr(memory, "_C", ctypes.CDLL(None)._handle)
    assert not hasattr(memory._C, "malloc_trim")
    assert look_at_memory(1).blocks > 0
    assert look_at_memory(1).malloc == 0
    assert gc.isenabled()
