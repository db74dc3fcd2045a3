"""What the acts on prefix caches share."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.conformance.acting import make_machine
from pymllm.conformance.prefix_caller import TOKENS, PrefixCaller, amount, looked_at, picked
from pymllm.history.operations import Inspect, Reset

CONFIG = {"page_size": 1, "window": None, "pool": "none", "slots": 8, "swa_slots": 8}


class _Resetting(PrefixCaller):
    @looked_at(needs="holds", weight=3, times=(1, 2))
    def reset(self, times: int) -> None:
        """Reset once or twice."""
        for _ in range(times):
            self.do(Reset())


def test_nodes_are_looked_at_after_an_act() -> None:
    """R9: whatever the act did, once."""
    machine: Any = make_machine(_Resetting, "radix", CONFIG)()
    _Resetting.reset(machine, times=2)
    done = [type(step.operation) for step in machine.examiner.history.steps]
    machine.teardown()
    assert done == [Reset, Reset, Inspect]


def test_what_is_drawn_and_needed_is_kept() -> None:
    """X3: `drive` and Hypothesis read it off the method."""
    method: Any = _Resetting.reset
    assert (method.act_needs, method.act_ranges, method.act_weight) == ("holds", {"times": (1, 2)}, 3)


@pytest.mark.parametrize(("drawn", "evicted"), [(-1, -1), (0, 0), (11, 11)])
def test_an_amount_is_what_was_drawn(drawn: int, evicted: int) -> None:
    """R5: nothing and less included."""
    assert amount(drawn) == evicted


def test_the_largest_amount_means_everything() -> None:
    """R5: more than any pool of these machines has."""
    assert amount(TOKENS[1]) > 32 * TOKENS[1]


def test_any_draw_picks_something() -> None:
    """X3: round and round."""
    assert [picked(["a", "b"], pick) for pick in range(4)] == ["a", "b", "a", "b"]
