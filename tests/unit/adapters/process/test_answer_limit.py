"""How long a program may take for one answer."""

from __future__ import annotations

import pytest

from pymllm.adapters.process.answer_limit import SHARE, answer_limit, seconds_per_answer


def test_an_answer_has_less_time_than_the_call_that_waits_for_it() -> None:
    """What a program said can be kept before an alarm rings."""
    with answer_limit(10.0):
        assert seconds_per_answer() == 10.0 * SHARE < 10.0


def test_no_limit_is_none() -> None:
    """Of a call, 0 means for ever."""
    with answer_limit(0.0):
        assert seconds_per_answer() is None


def leave_inside() -> None:
    with answer_limit(1.0), answer_limit(2.0):
        raise KeyboardInterrupt


def test_a_limit_ends_with_its_block() -> None:
    """However that ends."""
    before = seconds_per_answer()
    with pytest.raises(KeyboardInterrupt):
        leave_inside()
    assert seconds_per_answer() == before
