"""Tests of the expected answer of a step, asked of the judge: the parts that a law determines, no more."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.errors import ProgramError
from pymllm.history.claims import SPECIFICATION
from pymllm.history.files import Config, Header, Step
from pymllm.history.operations import (
    AddRequest,
    Alloc,
    AllocTrack,
    Evict,
    FindBlocks,
    Free,
    Insert,
    Key,
    Match,
    Operation,
    ReadStates,
    Span,
    StoreBlocks,
    WriteState,
)
from pymllm.history.outcomes import Outcome, Slots
from pymllm.vectors.derive import derive
from pymllm.vectors.format import Vector
from pymllm.vectors.variations import least_needs

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


def _expect(
    name: str, kind: str, law: str, needs: tuple[str, ...], config: Config, *program: Operation
) -> Vector:
    return derive(kind, law, needs, config, run(name, config, program), specification=SPECIFICATION)


def test_a_result_is_free_where_all_that_follows_stays_the_same() -> None:
    """An index may refuse blocks without a parent or swallow them; nobody finds them either way."""
    program = (StoreBlocks(0, ((40, 1),), 0), FindBlocks((1,)))
    vector = _expect("index-dict", "index", "I3", (), {"own_hashes": False}, *program)
    assert vector.steps[0].expect["result"] == {"$free": True}
    assert vector.steps[1].expect["result"] == {"is": "leading", "workers": []}
    assert vector.flag == "must"


def test_a_number_that_may_be_one_of_few_is_none_else() -> None:
    """A request has one of the blocks that are free."""
    config: Config = {
        **{"max_requests": 1, "num_blocks": 4, "max_blocks": 2, "paused_limit": 1, "block_size": 4},
        **{"chunk_size": 1, "layers": 0, "conv_width": 1, "ssm_width": 1, "mamba_slots": 0},
        **{"policy": "lru", "hash_digits": None},
    }
    vector = _expect("requests", "requests", "C1", (), config, AddRequest((1, 1)))
    (block,) = vector.steps[0].expect["result"]["blocks"]
    assert sorted([block["$may"], *block["or"]]) == [0, 1, 2]  # the last one is for padding


def test_how_often_a_pool_is_called_is_counted_where_the_law_says_so() -> None:
    """Calls of a pool are counted for a claim of their order, and otherwise slots are compared."""
    program = (Alloc(4), Insert(Key((1, 2, 3, 4)), (Span(1, 0, 4),)), Match(Key((1, 2))), Evict(4))
    claims = ("call_order", "faults", "pool")
    counted = _expect("radix", "prefix", "X2", claims, RADIX, *program).steps[-1].expect
    assert counted["effects"]["$calls"]["free"] == 1
    named = _expect("radix", "prefix", "R5", ("pool",), RADIX, *program).steps[-1].expect
    assert "$of" in named.get("$may", named)["effects"]["$calls"]["free"]


def test_states_are_compared_once_their_number_is_known() -> None:
    """At the first look who has more of them goes another way; at the second one they count."""
    config: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 2, "track_slots": 2}
    look = ReadStates(0)
    track, slots = Span(1, 0, 1), (Span(2, 0, 1),)
    given = Insert(Key((1,)), slots, state=track)
    program = (AllocTrack(), Alloc(1), WriteState(0, track, 5, 7), given, look, look)
    first, second = (
        it.expect["result"]
        for it in _expect("mamba", "prefix", "E1", ("mamba", "pool"), config, *program).steps[4:]
    )
    assert set(first) == {"is", "recurrent_shape", "conv_shape"}
    assert "$may" in first["recurrent_shape"]
    assert [5] in second["recurrent"]
    assert [7] in second["conv"]


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
