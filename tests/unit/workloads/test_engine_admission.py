"""A request is admitted exactly when free and evictable slots suffice, and rejected when they never can."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.workloads.engine import AdmissionRule, Engine
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request


def rule_of(engine: Engine) -> AdmissionRule:
    """Take an engine's own sizes."""
    return AdmissionRule(engine.config, engine.memory)


@pytest.mark.parametrize(
    ("prompt", "output", "fits"),
    [(32, 1, True), (30, 3, True), (30, 4, False), (33, 1, False), (1, 32, True), (1, 33, False)],
)
def test_request_fits_if_its_kv_does(
    engine_of: Callable[..., Engine], ask: Callable[..., Request], prompt: int, output: int, fits: bool
) -> None:
    """The last output token needs no slot."""
    engine = engine_of([], capacity=32, page_size=4)
    assert rule_of(engine).can_ever_fit(LiveRequest(ask(0, prompt, output), place=1)) is fits


def test_request_longer_than_a_row_never_fits(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
    """P2: a row cannot name more tokens than it has positions."""
    rule = rule_of(engine_of([], max_context=10))
    assert rule.can_ever_fit(LiveRequest(ask(0, 10, 1), place=1))
    assert not rule.can_ever_fit(LiveRequest(ask(0, 10, 2), place=1))


@pytest.mark.parametrize(("swa_capacity", "fits"), [(20, True), (16, False)])
def test_window_must_fit_twice_with_a_page(
    engine_of: Callable[..., Engine], ask: Callable[..., Request], swa_capacity: int, fits: bool
) -> None:
    """S5: the window held in the tree and the one grown in decode live side by side."""
    engine = engine_of([], page_size=4, sliding_window_size=6, swa_capacity=swa_capacity)
    rule = rule_of(engine)
    assert rule.can_ever_fit(LiveRequest(ask(0, 20, 20), place=1)) is fits
    assert rule.can_ever_fit(LiveRequest(ask(0, 10, 3), place=1))


def test_admission_succeeds_at_the_last_free_page(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
    """E4: exactly enough suffices, one page less does not, promises and headroom included."""
    engine = engine_of([], capacity=32, page_size=4)
    rule, live = rule_of(engine), LiveRequest(ask(0, 17), place=1)
    other = LiveRequest(ask(1, 10), place=2)
    other.length = 5
    assert rule.suffices(live, [other], headroom=8)
    assert not rule.suffices(live, [other], headroom=12)
    assert engine.memory.pools.allocator.alloc(12) is not None
    assert rule.suffices(live, [], headroom=0)
    assert engine.memory.pools.allocator.alloc(1) is not None
    assert not rule.suffices(live, [], headroom=0)


def test_window_half_needs_room_for_one_window_and_a_page(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
    """E4: a long prompt passes through a small SWA half, a window at a time."""
    engine = engine_of([], page_size=4, sliding_window_size=6, swa_capacity=24)
    rule, live = rule_of(engine), LiveRequest(ask(0, 50), place=1)
    assert rule.suffices(live, [], headroom=12)
    assert not rule.suffices(live, [], headroom=14)
    assert engine.memory.pools.allocator.alloc(16) is not None
    assert not rule.suffices(live, [], headroom=0)
    assert rule.suffices(LiveRequest(ask(1, 8), place=2), [], headroom=0)
