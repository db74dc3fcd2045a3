"""Smaller pools and pages."""

from __future__ import annotations

from pymllm.conformance.record_reduction import shrink_pages, shrink_pools
from pymllm.conformance.reduction import Program
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, AllocTrack, Evict, Free, Insert, Key, Span, WriteKV
from tests.unit.tiny_player import reduction_in, reduction_of


def test_each_number_goes_down_as_far_as_it_can() -> None:
    """What is no number stays."""
    config = {"slots": 48, "window": None, "pool": "token", "caching": True, "track_slots": 3}
    reduction = reduction_in([Alloc(1)], lambda it: int(it.config["slots"] or 0) >= 5, config)
    shrink_pools(reduction)
    assert reduction.program.config == {**config, "slots": 5, "track_slots": 1}


def test_a_pool_goes_down_page_by_page() -> None:
    """A1: a size that leaves a part of a page over is nobody's."""
    tried: list[Config] = []

    def is_enough(program: Program) -> bool:
        tried.append(program.config)
        return program.config["page_size"] == 4 and int(program.config["slots"] or 0) >= 9

    config: Config = {"page_size": 4, "slots": 48, "swa_slots": 36, "window": 6}
    reduction = reduction_in([Alloc(1)], is_enough, config)
    shrink_pools(reduction)
    assert reduction.program.config == {"page_size": 4, "slots": 12, "swa_slots": 4, "window": 1}
    assert len(tried) > 5
    assert all(int(it["slots"] or 0) % int(it["page_size"] or 0) == 0 for it in tried)


def test_a_page_becomes_a_token() -> None:
    """Keys, slots and what is counted in tokens with it; a track slot is one anyhow."""
    operations = [
        Alloc(8),
        AllocTrack(),
        Insert(Key((1, 1, 1, 1, 2, 2, 2, 2)), (Span(1, 0, 8),), 4, 4, state=Span(2, 0, 1)),
        Evict(5, 8),
        Free((Span(1, 4, 8),)),
    ]
    config = {"page_size": 4, "slots": 48, "swa_slots": 36, "window": 6}
    reduction = reduction_of(operations, lambda them: len(them) == 5, config)
    shrink_pages(reduction)
    assert reduction.program.config == {"page_size": 1, "slots": 12, "swa_slots": 9, "window": 2}
    assert reduction.operations == (
        Alloc(2),
        AllocTrack(),
        Insert(Key((1, 2)), (Span(1, 0, 2),), 1, 1, state=Span(2, 0, 1)),
        Evict(2, 2),
        Free((Span(1, 1, 2),)),
    )


def test_numbers_in_a_row_stay() -> None:
    """They are no spans of slots: rows of a buffer, hashes."""
    operations = [WriteKV(0, (4, 5), ((1,), (2,)), ((3,), (4,)))]
    reduction = reduction_of(operations, lambda them: len(them) == 1, {"page_size": 4, "size": 8})
    shrink_pages(reduction)
    assert reduction.operations == tuple(operations)
    assert reduction.program.config["page_size"] == 1


def test_pages_of_one_stay() -> None:
    """And so does what has no pages."""
    for config in ({"page_size": 1}, {}):
        reduction = reduction_of([Alloc(4)], lambda them: True, config)
        shrink_pages(reduction)
        assert reduction.operations == (Alloc(4),)
