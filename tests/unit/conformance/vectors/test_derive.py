"""What is expected of a step, asked of the judge: what a law determines, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.vectors.derive import derive
from pymllm.conformance.vectors.format import Vector
from pymllm.conformance.vectors.variations import least_needs
from pymllm.errors import ProgramError
from pymllm.history.claims import SPECIFICATION
from pymllm.history.files import Config, Header, Step
from pymllm.history.operations import Alloc, Evict, Free, Insert, Key, Match, Operation, Span
from pymllm.history.outcomes import Outcome, Slots

RADIX: Config = {"page_size": 2, "window": None, "pool": "token", "slots": 8}
PROGRAM = (
    Alloc(4),
    Insert(Key((1, 2)), (Span(1, 0, 2),)),
    Insert(Key((3, 4)), (Span(1, 2, 4),)),
    Match(Key((1, 2))),
    Evict(2),
)


def run(name: str, config: Config, operations: tuple[Operation, ...]) -> list[Step]:
    adapter = make_adapter(name, {**config, "swa_slots": 0})
    return [Step(at, it, adapter.apply(at, it)) for at, it in enumerate(operations, 1)]


def make(*needs: str) -> Vector:
    steps = run("radix", RADIX, PROGRAM)
    return derive("prefix", "R8", needs, RADIX, steps, specification=SPECIFICATION)


def of(step: int, start: int, stop: int) -> dict[str, Any]:
    return {"$of": [{"step": step, "start": start, "stop": stop}]}


def test_new_slots_may_be_any_free_ones() -> None:
    """In whole pages, of the pool, and none that somebody has."""
    first = make("pool").steps[0].expect["result"]
    assert first == {
        "is": "slots",
        "slots": {"$new": 4, "page": 2, "least": 2, "most": 9, "but": {"$of": []}},
    }


def test_slots_are_named_by_the_step_that_gave_them() -> None:
    """An implementation that chose others is asked for those."""
    assert make("pool").steps[3].expect["result"]["slots"] == of(1, 0, 2)


def test_an_order_that_is_claimed_is_determined_and_another_is_not() -> None:
    """The least recent page goes; without the claim the other one may go as well, and that is all."""
    strict, free = make("pool", "exact_lru"), make("pool")
    assert (strict.flag, free.flag) == ("must", "may")
    gone = {"is": "evicted", "full": 2, "swa": 0}
    assert strict.steps[-1].expect["result"] == gone
    assert strict.steps[-1].expect["effects"]["$calls"]["free"] == of(1, 2, 4)
    may = free.steps[-1].expect
    assert may["$may"]["result"] == gone
    assert [it["effects"]["$calls"]["free"] for it in may["or"]] == [of(4, 0, 2)]


def test_sizes_are_determined_as_far_as_a_law_tells() -> None:
    """Zeros, too."""
    assert make("pool").steps[1].expect["sizes"]["total_size"] == 2
    assert make("pool").steps[1].expect["sizes"]["protected_size"] == 0


def test_a_program_that_the_judge_refuses_has_no_vector() -> None:
    """Nothing can be asked behind it."""
    steps = [Step(1, Alloc(2), Outcome(Slots((0, 1))))]
    with pytest.raises(ProgramError, match="does not let the program pass"):
        derive("prefix", "A1", ("pool",), RADIX, steps, specification=SPECIFICATION)


def test_needs_are_those_without_which_the_wrong_run_would_pass() -> None:
    """A double free is refused by who claims so; nothing else matters."""
    config: Config = {"page_size": 1, "pages": 2, "need_sort": True, "check_ownership": True, "store": "host"}
    sound = run("token-slots", config, (Alloc(1), Free((Span(1, 0, 1),)), Free((Span(1, 0, 1),))))
    wrong = [*sound[:2], Step(3, sound[2].operation, sound[1].outcome)]
    claims = tuple(sorted(make_adapter("token-slots", config).capabilities))
    header = Header("", "slots", config, claims, specification=SPECIFICATION)
    assert "refuses_double_free" in least_needs(header, sound, wrong)
    assert least_needs(header, sound, wrong) <= {"pool", "refuses_double_free"}
