"""Smaller programs: what refers to what, what takes the place of what, and each way to make one smaller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import structs

from pymllm.errors import InvariantViolation
from pymllm.history import operations as all_operations
from pymllm.history import operations as ops
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import OPERATIONS, Key, Operation, Span
from pymllm.machines.acting import FoundViolation
from pymllm.search.reduction import (
    REFERENCES,
    Program,
    Reduction,
    count_tokens,
    only,
    references,
    renumbered,
    weigh,
    without,
)
from pymllm.search.shrink_passes import (
    drop_families,
    drop_kinds,
    drop_pairs,
    drop_runs,
    keep_end,
    lower_numbers,
    make_usual,
    merge_tokens,
    shorten_keys,
    shrink_pages,
    shrink_pools,
)
from pymllm.search.shrink_references import (
    cut_row,
    join_operations,
    lower_spans,
    match_instead,
    retarget_references,
    shrink_allocations,
    untangle_inserts,
)


class TinyPlayer:
    """Breaks a law where a predicate holds; keeps what was played."""

    def __init__(self, breaks: Callable[[Program], object]) -> None:
        self.tried: list[Program] = []
        self._breaks = breaks

    def is_worth(self, program: Program, best: Program) -> bool:
        return weigh(program) < weigh(best) and program not in self.tried

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        self.tried.append(program)
        return (program, found_in(program)) if self._breaks(program) else None


def found_in(program: Program) -> FoundViolation:
    steps = [Step(number, operation) for number, operation in enumerate(program.items, 1)]
    history = History(Header("tiny", "prefix", program.config), steps)
    return FoundViolation(history, InvariantViolation("R2", "looked"))


def reduction_of(
    operations: list[Operation],
    breaks: Callable[[tuple[Any, ...]], object],
    config: Config | None = None,
) -> Reduction:
    """Make a reduction whose programs break the law as their operations say."""
    return reduction_in(operations, lambda program: breaks(program.items), config)


def reduction_in(
    operations: list[Operation], breaks: Callable[[Program], object], config: Config | None = None
) -> Reduction:
    """Make a reduction whose programs break the law as they and their configuration say."""
    program = Program(config or {}, tuple(operations))
    assert breaks(program)
    return Reduction(TinyPlayer(breaks), program, found_in(program))


NUMBERS: dict[str, tuple[str, ...]] = {
    "AddRequest": ("tokens", "limit", "reserve"),
    "Alloc": ("tokens",),
    "AllocBlocks": ("count",),
    "AllocRows": ("count",),
    "ClearWorker": ("worker", "number"),
    "DropStates": ("hashes",),
    "DropWorker": ("worker",),
    "Evict": ("tokens", "secondary"),
    "EvictSlots": ("count",),
    "Fault": ("nth",),
    "FindBlocks": ("tokens", "extra_key", "group"),
    "Insert": ("prev_prefix_len", "swa_evicted_seqlen", "priority"),
    "MoveKV": ("layer", "source", "target", "count"),
    "NameStates": ("hashes",),
    "PickToken": ("at",),
    "ReadKV": ("layer",),
    "ReadLive": ("layer",),
    "ReadStates": ("layer",),
    "RegisterBlocks": ("hashes", "parents"),
    "RemoveBlocks": ("worker", "hashes", "group", "number"),
    "RestoreLive": ("request",),
    "RunStep": ("next_tokens",),
    "SaveLive": ("requests",),
    "ScheduleChunk": ("limit",),
    "SetClock": ("clock",),
    "SliceKey": ("start", "stop"),
    "StoreBlocks": ("worker", "blocks", "parent", "group", "number", "extra_key"),
    "StoreState": ("layer", "recurrent", "conv", "ramp"),
    "Truncate": ("tokens", "next_token"),
    "WriteEntries": ("positions", "values"),
    "WriteKV": ("layer", "slots", "keys", "values"),
    "WriteLive": ("request", "layer", "recurrent", "conv", "ramp"),
    "WriteRow": ("start", "stop", "values"),
    "WriteState": ("layer", "recurrent", "conv", "ramp"),
}
"""Fields of operations that hold numbers and name no step. A new one goes here or into `REFERENCES`."""

PROGRAM: list[Operation] = [
    ops.Alloc(4),  # 1
    ops.Insert(Key((1, 2, 3, 4)), (Span(1, 0, 4),)),  # 2
    ops.Lock(2),  # 3
    ops.Match(Key((1, 2))),  # 4
    ops.Unlock(3),  # 5
    ops.Alloc(2),  # 6
    ops.Free((Span(6, 0, 2),)),  # 7
]


def has_integers(hint: object) -> bool:
    return hint is int or any(has_integers(argument) for argument in get_args(hint))


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_every_field_with_a_number_is_known(kind: type) -> None:
    """A field that names a step and is not known as such would point elsewhere in a shorter program."""
    hints = get_type_hints(kind, vars(all_operations))
    found = {name for name, hint in hints.items() if has_integers(hint)}
    assert found == {*NUMBERS.get(kind.__name__, ()), *REFERENCES.get(kind, ())}


def test_fields_with_spans_are_seen_in_every_operation() -> None:
    """One span, a tuple of them, or none at all."""
    for kind in OPERATIONS:
        hints = {
            it.name: str(it.type) for it in structs.fields(kind) if it.required or "Span" in str(it.type)
        }
        one = Span(9, 0, 1)
        values = {
            name: 0 if "Span" not in hint else (one,) if "tuple" in hint else one
            for name, hint in hints.items()
        }
        if "key" in values:
            values["key"] = Key(())
        assert list(references(kind(**values))) == [9] * str(values).count("Span("), kind


def test_none_and_zero_name_no_step() -> None:
    """0 is a number's own name, no token at all, or nothing."""
    assert list(references(ops.Unlock(3, token=0))) == [3]
    assert list(references(ops.Unlock(3, at=1, token=2))) == [3, 1, 2]
    assert list(references(ops.Free((Span(0, 4, 8),)))) == []
    assert list(references(ops.Insert(Key((5,)), None))) == []


def test_what_is_no_reference_keeps_its_number() -> None:
    """Tokens, and rows of the caller's."""
    insert = ops.Insert(Key((2, 5)), (Span(2, 0, 1), Span(0, 2, 5)), state=Span(2, 0, 1))
    assert renumbered(insert, lambda number: number + 1) == ops.Insert(
        Key((2, 5)), (Span(3, 0, 1), Span(0, 2, 5)), state=Span(3, 0, 1)
    )
    live = ops.WriteLive(3, 0, 1, 1)
    assert renumbered(live, lambda number: number + 1) == live
    assert renumbered(ops.Pause(3), lambda number: number + 1) == ops.Pause(4)
    assert renumbered(ops.CopyStates((), (Span(1, 0, 1),)), lambda number: 7) == ops.CopyStates(
        (), (Span(7, 0, 1),)
    )


def test_what_refers_to_a_step_goes_with_it() -> None:
    """A hold needs its node, a release its hold, a free its allocation."""
    assert without(PROGRAM, {2}) == (
        ops.Alloc(4),
        ops.Match(Key((1, 2))),
        ops.Alloc(2),
        ops.Free((Span(3, 0, 2),)),
    )
    assert without(PROGRAM, {1, 6}) == (ops.Match(Key((1, 2))),)
    assert without(PROGRAM, ()) == tuple(PROGRAM)


def test_what_names_a_later_step_makes_no_sense() -> None:
    """A step that names a later step is removed, so that the rest can be run."""
    assert without([ops.Hash(2), ops.Match(Key((1,))), ops.Hash(2)], ()) == (
        ops.Match(Key((1,))),
        ops.Hash(1),
    )


def test_a_step_is_kept_with_what_it_needs() -> None:
    """And nothing else."""
    assert only(PROGRAM, {5}) == (*PROGRAM[:3], ops.Unlock(3))
    assert only([ops.AllocRows(1), ops.AllocRows(2)], {2}) == (ops.AllocRows(2),)


def program(*operations: Operation, **config: int) -> Program:
    return Program(dict(config), operations)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (program(ops.Match(Key((9,) * 9))), program(ops.Match(Key(())), ops.Match(Key(())))),
        (program(ops.Alloc(9), ops.Alloc(9)), program(ops.Alloc(1), ops.Free((Span(1, 0, 1),)))),
        (program(ops.Match(Key((7, 7)))), program(ops.Match(Key((1, 1, 1))))),
        (program(ops.AddRequest((7, 7))), program(ops.AddRequest((1, 1, 1)))),
        (program(ops.Match(Key((9,))), slots=1), program(ops.Match(Key((1,))), slots=2)),
        (program(ops.Match(Key((9,)))), program(ops.Match(Key((1,), form="array")))),
        (program(ops.Evict(3)), program(ops.Evict(4))),
    ],
)
def test_what_matters_most_decides(smaller: Program, larger: Program) -> None:
    """Operations, references, tokens, pools, what is unusual, numbers."""
    assert weigh(smaller) < weigh(larger)


def test_only_what_is_smaller_is_played() -> None:
    """And nothing twice."""
    player = TinyPlayer(lambda program: ops.Evict(2) in program.items)
    start = Program({}, (ops.Evict(2), ops.Evict(3)))
    reduction = Reduction(player, start, found_in(start))
    assert not reduction.attempt((ops.Evict(2), ops.Evict(3)))
    assert not reduction.attempt((ops.Evict(2), ops.Evict(4)))
    assert player.tried == []
    assert not reduction.attempt((ops.Evict(3),))
    assert not reduction.attempt((ops.Evict(3),))
    assert len(player.tried) == 1
    assert reduction.attempt((ops.Evict(2),))
    assert reduction.items == (ops.Evict(2),)
    assert [step.operation for step in reduction.found.history.steps] == [ops.Evict(2)]


def test_another_configuration_can_be_tried() -> None:
    """An attempt with another configuration keeps the values that it does not name."""
    reduction = reduction_in(
        [ops.Evict(1)], lambda it: it.config["slots"] in (5, 3), {"slots": 5, "pages": 2}
    )
    assert reduction.attempt(reduction.items, slots=3)
    assert reduction.program.config == {"slots": 3, "pages": 2}
    assert not reduction.attempt(reduction.items, slots=2)


def test_an_empty_program_weighs_nothing() -> None:
    """Nothing is smaller."""
    assert weigh(program()) == (0, 0, 0, 0, 0, 0)
    assert reduction_of([], lambda them: True).attempt(()) is False


def test_tokens_of_a_history_are_counted() -> None:
    """Those of keys, and of prompts."""
    history = found_in(program(ops.Match(Key((1, 2))), ops.AddRequest((1,)), ops.Evict(4))).history
    assert count_tokens(history) == 3


TANGLED = ops.Insert(Key((1, 2)), (Span(1, 0, 1), Span(2, 0, 1)))
BLOCKS = tuple(Span(1, place, place + 1) for place in range(9))
ROWS = ops.WriteKV(0, (4, 5), ((1,), (2,)), ((3,), (4,)))
PAGED: Config = {"page_size": 4, "slots": 48, "swa_slots": 36, "window": 6}


def tokens(operations: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [it.key.tokens for it in operations if hasattr(it, "key")]


def keys(*all_tokens: tuple[Any, ...]) -> list[Operation]:
    return [ops.Match(Key(each)) for each in all_tokens]


def part_at_the_end(them: Sequence[Operation]) -> bool:
    one, other = tokens(them)
    return len(one) > 1 and one[:-1] == other[:-1] and one != other


def are_all(count: int) -> Callable[[Sequence[Any]], object]:
    """Break the law as long as no operation goes."""
    return lambda them: len(them) == count


END = ops.Match(Key((9,)))
MANY = keys(*((number,) for number in range(40)))


@pytest.mark.parametrize(
    ("make_smaller", "operations", "breaks", "left"),
    [
        pytest.param(
            *(keep_end, [ops.Alloc(3), *MANY, ops.Free((Span(1, 0, 3),)), END]),
            lambda them: END in them and any(isinstance(it, ops.Free) for it in them),
            [ops.Alloc(3), *MANY[-2:], ops.Free((Span(1, 0, 3),)), END],
            id="the end alone is tried with what it needs, far away as that may be",
        ),
        pytest.param(
            *(keep_end, [ops.Evict(5), *MANY], lambda them: ops.Evict(5) in them, [ops.Evict(5), *MANY]),
            id="longer ends are tried where short ones do not do, up to the whole program",
        ),
        pytest.param(
            drop_families,
            [*keys((1, 2)), ops.Lock(1), *keys((2, 2), (1, 3)), ops.Match(Key((1, 3), "a")), ops.Unlock(2)],
            *(lambda them: (2, 2) in tokens(them), keys((2, 2))),
            id="keys that begin alike, in one namespace, go with what refers to them",
        ),
        pytest.param(
            *(drop_kinds, [*[ops.Inspect(), ops.Evict(1), ops.Match(Key((1,)))] * 5]),
            lambda them: them.count(ops.Evict(1)) == 5 and ops.Inspect() in them,
            [*[ops.Evict(1)] * 4, ops.Inspect(), ops.Evict(1)],
            id="kinds go as a whole or but for the last: a counter that fails late hangs on one kind",
        ),
        pytest.param(
            *(drop_runs, [ops.Evict(n) for n in range(30)]),
            lambda them: {ops.Evict(3), ops.Evict(11), ops.Evict(29)} <= set(them),
            [ops.Evict(3), ops.Evict(11), ops.Evict(29)],
            id="runs go down to single steps",
        ),
        pytest.param(
            drop_runs,
            [ops.Alloc(1), ops.Insert(Key((1,)), (Span(1, 0, 1),)), ops.Lock(2), ops.Unlock(3), END],
            *(lambda them: END in them, [END]),
            id="a hold goes with its insert, and that with its allocation",
        ),
        pytest.param(
            *(drop_pairs, [ops.Evict(2), ops.Evict(3), ops.Evict(2)]),
            lambda them: them.count(ops.Evict(2)) in (0, 2) and ops.Evict(3) in them,
            [ops.Evict(3)],
            id="pairs go that need each other",
        ),
        pytest.param(*(drop_pairs, MANY, lambda them: True, MANY), id="pairs of long programs are too many"),
        pytest.param(
            *(shorten_keys, keys((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 8)), part_at_the_end),
            keys((6, 7), (6, 8)),
            id="what keys share is cut from all",
        ),
        pytest.param(
            shorten_keys,
            [
                *(ops.Alloc(1), ops.Alloc(3)),
                ops.Insert(Key((1, 2, 3, 4)), (Span(1, 0, 1), Span(2, 0, 3)), 3, 2),
            ],
            lambda them: len(tokens(them)) == 1 and 4 in tokens(them)[0],
            [ops.Alloc(1), ops.Alloc(3), ops.Insert(Key((4,)), (Span(2, 2, 3),))],
            id="slots go with their tokens, and what is counted in them",
        ),
        pytest.param(
            *(shorten_keys, keys((1, 2, 3, 4), (1, 2, 3, 4)), lambda them: tokens(them)[0] == (1, 2, 3, 4)),
            keys((1, 2, 3, 4), ()),
            id="one key alone is shortened where all cannot be",
        ),
        pytest.param(
            *(merge_tokens, keys((70, 71), (80, 71), ((90, 70), (71, 71)))),
            lambda them: len(set(tokens(them))) >= 2,
            keys((1, 1), (1, 1), ((1, 1), (1, 1))),
            id="families become one",
        ),
        pytest.param(
            *(merge_tokens, keys((70,), (80,)), lambda them: len(set(tokens(them))) == 2, keys((1,), (2,))),
            id="what must differ stays different",
        ),
        pytest.param(
            *(shrink_allocations, [ops.AllocBlocks(9), ops.ReleaseBlocks((Span(1, 7, 8), Span(1, 2, 3)))]),
            *(are_all(2), [ops.AllocBlocks(2), ops.ReleaseBlocks((Span(1, 1, 2), Span(1, 0, 1)))]),
            id="blocks are allocated one by one",
        ),
        pytest.param(
            untangle_inserts,
            [
                *(ops.Alloc(2), ops.Match(Key((1, 2))), ops.Alloc(1)),
                *(
                    ops.Insert(Key((1, 2, 3)), (Span(2, 0, 2), Span(3, 0, 1))),
                    ops.Insert(Key((1, 2)), (Span(1, 0, 2),)),
                ),
            ],
            are_all(5),
            [
                *(ops.Alloc(2), ops.Match(Key((1, 2))), ops.Alloc(3)),
                *(ops.Insert(Key((1, 2, 3)), (Span(3, 0, 3),)), ops.Insert(Key((1, 2)), (Span(1, 0, 2),))),
            ],
            id="inserts take their slots from one allocation",
        ),
        pytest.param(
            *(untangle_inserts, [ops.Alloc(1), ops.Alloc(1), TANGLED, TANGLED]),
            lambda them: len(them) == 4 and them[2] == TANGLED,
            [ops.Alloc(1), ops.Alloc(2), TANGLED, ops.Insert(Key((1, 2)), (Span(2, 0, 2),))],
            id="one insert is untangled where all cannot be",
        ),
        pytest.param(
            join_operations,
            [
                *(ops.Alloc(2), ops.AllocBlocks(9), ops.Alloc(1), ops.Match(Key((1,)))),
                *(ops.Insert(Key((1, 2, 3)), (Span(1, 0, 2), Span(3, 0, 1))), ops.Free((Span(3, 0, 1),))),
            ],
            lambda them: sum(it.tokens for it in them if isinstance(it, ops.Alloc)) >= 2,
            [
                *(ops.Alloc(3), ops.AllocBlocks(9), ops.Match(Key((1,)))),
                *(ops.Insert(Key((1, 2, 3)), (Span(1, 0, 3),)), ops.Free((Span(1, 2, 3),))),
            ],
            id="one allocation gives what two gave",
        ),
        pytest.param(
            *(join_operations, [*[ops.AllocRows(1)] * 3, ops.FreeRow(Span(3, 0, 1))]),
            lambda them: them.count(ops.AllocRows(1)) > 0,
            [ops.AllocRows(2), ops.AllocRows(1), ops.FreeRow(Span(2, 0, 1))],
            id="as far as the law lets them",
        ),
        pytest.param(
            *(join_operations, [ops.Evict(2, 1), ops.Match(Key((1,))), ops.Evict(3)]),
            lambda them: sum(it.tokens for it in them if isinstance(it, ops.Evict)) >= 5,
            [ops.Match(Key((1,))), ops.Evict(5, 1)],
            id="one eviction takes what two took",
        ),
        pytest.param(
            retarget_references,
            [
                *(ops.Alloc(2), ops.Insert(Key((1, 1)), (Span(1, 0, 2),)), ops.Match(Key((1,)))),
                *(ops.Insert(Key((1,)), (Span(3, 0, 1),)), ops.Lock(4), ops.Evict(2)),
            ],
            lambda them: (
                {ops.Match(Key((1,))), ops.Evict(2)} < set(them)
                and any(isinstance(it, ops.Lock) and them[it.of - 1].key.tokens == (1,) for it in them)
            ),
            [
                *(ops.Alloc(2), ops.Insert(Key((1, 1)), (Span(1, 0, 2),)), ops.Match(Key((1,)))),
                *(ops.Lock(3), ops.Evict(2)),
            ],
            id="a hold is taken at the match that found the node first",
        ),
        pytest.param(
            retarget_references,
            [ops.Alloc(1), ops.Match(Key((1,))), ops.Insert(Key((1, 2)), (Span(2, 0, 1), Span(1, 0, 1)))],
            lambda them: any(isinstance(it, ops.Insert) for it in them),
            [ops.Alloc(1), ops.Insert(Key((1, 2)), (Span(1, 0, 1), Span(1, 0, 1)))],
            id="slots of a match are those of an allocation",
        ),
        pytest.param(
            retarget_references,
            [ops.Match(Key((1,))), ops.Lock(1), ops.Lock(1), ops.Unlock(3)],
            lambda them: any(isinstance(it, ops.Unlock) for it in them),
            [ops.Match(Key((1,))), ops.Lock(1), ops.Unlock(2)],
            id="another hold is released",
        ),
        pytest.param(
            *(match_instead, [ops.Alloc(1), ops.Insert(Key((1,)), (Span(1, 0, 1),)), ops.Lock(2)]),
            lambda them: any(isinstance(it, ops.Lock) for it in them),
            [ops.Alloc(1), ops.Match(Key((1,))), ops.Lock(2)],
            id="a match finds the node that an insert gave",
        ),
        pytest.param(
            *(
                lower_spans,
                [ops.Alloc(4), ops.Free((Span(1, 1, 3),)), ops.Free((Span(0, 7, 8), Span(1, 2, 3)))],
            ),
            are_all(3),
            [ops.Alloc(4), ops.Free((Span(1, 0, 2),)), ops.Free((Span(0, 7, 8), Span(1, 0, 1)))],
            id="spans begin with the first number",
        ),
        pytest.param(
            *(lower_spans, [ops.AllocBlocks(2), ops.ReleaseBlocks((Span(1, 1, 2), Span(1, 0, 1)))]),
            lambda them: {place for it in them[1].blocks for place in range(it.start, it.stop)} == {0, 1},
            [ops.AllocBlocks(2), ops.ReleaseBlocks((Span(1, 0, 2),))],
            id="spans stand in order, and those that continue each other are one",
        ),
        pytest.param(
            *(make_usual, [ops.Match(Key((1,), "a", "array")), ops.Match(Key((2,), "b", "array"))]),
            lambda them: {it.key.extra_key for it in them} in ({"a", "b"}, {None, "b"}),
            [ops.Match(Key((1,))), ops.Match(Key((2,), "b"))],
            id="forms and namespaces become the usual ones, all at once or where that does",
        ),
        pytest.param(
            *(make_usual, [ops.Match(Key((1,))), ops.Lock(1), ops.Unlock(2, at=1, token=0)]),
            lambda them: len(them) == 3 and them[2].token == 0,
            [ops.Match(Key((1,))), ops.Lock(1), ops.Unlock(2, token=0)],
            id="another token or node is not passed without need",
        ),
        pytest.param(
            *(lower_numbers, [ops.Evict(100, 7), ops.Fault("free", 9)], lambda them: them[0].tokens >= 37),
            [ops.Evict(37), ops.Fault("free", 0)],
            id="numbers go down as far as they can",
        ),
        pytest.param(
            *(lower_numbers, [ops.Evict(-100)], lambda them: them[0].tokens < 0, [ops.Evict(-1)]),
            id="negative numbers go up",
        ),
        pytest.param(
            *(lower_numbers, [ops.AllocBlocks(9), ops.RegisterBlocks(BLOCKS, tuple(range(101, 110)))]),
            lambda them: len(them) == 2 and any(it.start <= 4 < it.stop for it in them[1].blocks),
            [ops.AllocBlocks(0), ops.RegisterBlocks((Span(1, 4, 5),), (1,))],
            id="rows lose items together",
        ),
        pytest.param(
            *(lower_numbers, [ops.AddRequest((9, 8, 9, 7))], lambda them: len(set(them[0].tokens)) >= 2),
            [ops.AddRequest((2, 1))],
            id="prompts get short and plain",
        ),
        pytest.param(
            *(lower_numbers, [*keys((1,), (2,)), ops.Lock(2), ops.Free((Span(0, 1, 2),))], are_all(4)),
            [*keys((1,), (2,)), ops.Lock(2), ops.Free((Span(0, 1, 2),))],
            id="references are no numbers",
        ),
    ],
)
def test_a_pass_leaves_what_the_law_needs(
    make_smaller: Callable[[Any], None],
    operations: list[Operation],
    breaks: Callable[[tuple[Any, ...]], object],
    left: list[Operation],
) -> None:
    """Each way to make records smaller, on a program that breaks the law by a predicate."""
    reduction = reduction_of(operations, breaks)
    make_smaller(reduction)
    assert list(reduction.items) == left


def test_pages_stay_whole_where_that_matters() -> None:
    """First pages are cut, then what is left over."""
    reduction = reduction_of(
        keys((1, 1, 1, 1, 2, 2, 2, 2, 3)),
        lambda them: len(tokens(them)[0]) // 4 and len(tokens(them)[0]) % 4 in (0, 1),
        {"page_size": 4},
    )
    shorten_keys(reduction)
    assert len(tokens(reduction.items)[0]) == 4


@pytest.mark.parametrize(
    ("start", "stop", "left"),
    [
        (0, 0, (Span(1, 0, 4), Span(2, 1, 3))),
        (1, 3, (Span(1, 0, 1), Span(1, 3, 4), Span(2, 1, 3))),
        (3, 5, (Span(1, 0, 3), Span(2, 2, 3))),
        (0, 4, (Span(2, 1, 3),)),
        (0, 9, ()),
    ],
)
def test_a_row_of_spans_is_cut_like_its_numbers(start: int, stop: int, left: tuple[Span, ...]) -> None:
    """As from a row of the numbers themselves; what meets again is one span."""
    assert cut_row((Span(1, 0, 4), Span(2, 1, 3)), start, stop) == left
    assert cut_row((Span(1, 0, 2), Span(3, 0, 1), Span(1, 2, 4)), 2, 3) == (Span(1, 0, 4),)


def test_an_allocation_gives_what_is_named_and_no_more() -> None:
    """Whole pages; spans follow."""
    operations = [ops.Alloc(12), ops.Insert(Key((1,) * 4), (Span(1, 4, 8),)), ops.Free((Span(1, 10, 12),))]
    reduction = reduction_of(operations, are_all(3), {"page_size": 4})
    shrink_allocations(reduction)
    freed = ops.Free((Span(1, 6, 8),))
    assert reduction.items == (ops.Alloc(8), ops.Insert(Key((1,) * 4), (Span(1, 0, 4),)), freed)


@pytest.mark.parametrize(("key", "size", "page"), [("slots", 16, 2), ("pages", 8, 2), ("pages", 8, 1)])
def test_a_pool_and_what_fills_it_get_smaller_together(key: str, size: int, page: int) -> None:
    """All pages but one must be handed out: neither a smaller pool nor a smaller allocation alone will do."""

    def leaves_one(program: Program) -> bool:
        unit = page if key == "slots" else 1
        return program.items[0].tokens // page == int(program.config[key] or 0) // unit - 1

    operations = [ops.Alloc(7 * page), ops.Free((Span(1, 6 * page, 7 * page),))]
    reduction = reduction_in(operations, leaves_one, {key: size, "page_size": page, "pool": "token"})
    shrink_allocations(reduction)
    assert reduction.items == (ops.Alloc(page), ops.Free((Span(1, 0, page),)))
    assert reduction.program.config[key] == (2 * page if key == "slots" else 2)


def test_each_number_of_a_pool_goes_down_as_far_as_it_can() -> None:
    """Each number of a pool goes down as far as it can, and other values stay."""
    config = {"slots": 48, "window": None, "pool": "token", "caching": True, "track_slots": 3}
    reduction = reduction_in([ops.Alloc(1)], lambda it: int(it.config["slots"] or 0) >= 5, config)
    shrink_pools(reduction)
    assert reduction.program.config == {**config, "slots": 5, "track_slots": 1}


def test_a_pool_goes_down_page_by_page() -> None:
    """A1: a size that leaves a part of a page over is nobody's."""
    tried: list[Config] = []

    def is_enough(program: Program) -> bool:
        tried.append(program.config)
        return program.config["page_size"] == 4 and int(program.config["slots"] or 0) >= 9

    reduction = reduction_in([ops.Alloc(1)], is_enough, PAGED)
    shrink_pools(reduction)
    assert reduction.program.config == {"page_size": 4, "slots": 12, "swa_slots": 4, "window": 1}
    assert len(tried) > 5
    assert all(int(it["slots"] or 0) % int(it["page_size"] or 0) == 0 for it in tried)


def test_a_page_becomes_a_token() -> None:
    """A page becomes a token: keys, slots and counts of tokens shrink; track slots and row numbers do not."""
    state = Span(2, 0, 1)
    operations = [
        *(
            ops.Alloc(8),
            ops.AllocTrack(),
            ops.Insert(Key((1, 1, 1, 1, 2, 2, 2, 2)), (Span(1, 0, 8),), 4, 4, state=state),
        ),
        *(ops.Evict(5, 8), ops.Free((Span(1, 4, 8),)), ROWS),
    ]
    reduction = reduction_of(operations, are_all(6), PAGED)
    shrink_pages(reduction)
    assert reduction.program.config == {"page_size": 1, "slots": 12, "swa_slots": 9, "window": 2}
    assert reduction.items == (
        *(ops.Alloc(2), ops.AllocTrack(), ops.Insert(Key((1, 2)), (Span(1, 0, 2),), 1, 1, state=state)),
        *(ops.Evict(2, 2), ops.Free((Span(1, 1, 2),)), ROWS),
    )


@pytest.mark.parametrize("config", [{"page_size": 1}, {}])
def test_pages_of_one_stay(config: Config) -> None:
    """And so does what has no pages."""
    reduction = reduction_of([ops.Alloc(4)], lambda them: True, config)
    shrink_pages(reduction)
    assert reduction.items == (ops.Alloc(4),)
