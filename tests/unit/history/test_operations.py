"""The language between the rooms: operations and outcomes can be written, read, and are somebody's."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.history import operations
from pymllm.history import outcomes as out
from pymllm.history.codec import decode, encode
from pymllm.history.operations import (
    CONV_PRIME,
    DIMENSIONS,
    KINDS,
    KV_FACTOR,
    KV_PRIME,
    OPERATIONS,
    OPERATIONS_OF,
    SSM_PRIME,
    DropStates,
    Evict,
    Free,
    HashBytes,
    HashPage,
    Insert,
    Key,
    MoveSWA,
    Operation,
    RegisterBlocks,
    ResetStates,
    RunStep,
    SliceKey,
    Span,
    Unlock,
    WriteKV,
    WriteState,
    namespace_of,
    values_of,
)
from pymllm.history.outcomes import RESULTS, Effect, Outcome, Result

any_operation = st.sampled_from(OPERATIONS).flatmap(st.from_type)


@given(any_operation)
def test_every_operation_survives_the_way_through_json(operation: Operation) -> None:
    """Every generated operation can be stored and run again."""
    assert decode(Operation, json.loads(json.dumps(encode(operation)))) == operation


@given(any_operation)
def test_an_operation_is_its_own_source_text(operation: Operation) -> None:
    """A program can be pasted as it is printed."""
    assert eval(repr(operation), vars(operations)) == operation


ONE, SLOT = Span(1, 0, 1), {"step": 1, "start": 0, "stop": 1}


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (Free((Span(1, 0, 2),)), {"op": "free", "slots": [{"step": 1, "start": 0, "stop": 2}]}),
        (Free((), "int64 2d"), {"op": "free", "slots": [], "form": "int64 2d"}),
        (MoveSWA((), (ONE,)), {"op": "move_swa", "source": [], "target": [SLOT]}),
        # What is left out is told from what is empty: no slots, no token, no parents, an open end.
        (Insert(Key((1,))), {"op": "insert", "key": {"tokens": [1]}}),
        (Insert(Key((1,)), ()), {"op": "insert", "key": {"tokens": [1]}, "slots": []}),
        (
            Insert(Key((1,)), (ONE,), 2, 3, "int32", Span(4, 0, 1)),
            {
                "op": "insert",
                "key": {"tokens": [1]},
                "slots": [SLOT],
                "prev_prefix_len": 2,
                "swa_evicted_seqlen": 3,
                "form": "int32",
                "state": {"step": 4, "start": 0, "stop": 1},
            },
        ),
        (Evict(0, 5), {"op": "evict", "tokens": 0, "secondary": 5}),
        (Unlock(3, token=0), {"op": "unlock", "lock": 3, "token": 0}),
        (SliceKey(Key(()), None, 2), {"op": "slice_key", "key": {"tokens": []}, "start": None, "stop": 2}),
        (HashPage(Key((1,)), "00ff"), {"op": "hash_page", "key": {"tokens": [1]}, "prior": "00ff"}),
        (HashBytes(""), {"op": "hash_bytes", "data": ""}),
        (
            WriteKV(0, (3,), ((1, -128),), ((127, 0),)),
            {"op": "write_kv", "layer": 0, "slots": [3], "keys": [[1, -128]], "values": [[127, 0]]},
        ),
        (
            WriteState(0, ONE, 5, 6, ramp=3),
            {"op": "write_state", "layer": 0, "slot": SLOT, "recurrent": 5, "conv": 6, "ramp": 3},
        ),
        (ResetStates((), "int32"), {"op": "reset_states", "rows": [], "form": "int32"}),
        (
            RegisterBlocks((), (), (0,), "tensor32"),
            {"op": "register_blocks", "blocks": [], "hashes": [], "parents": [0], "form": "tensor32"},
        ),
        (
            DropStates((), "deregistered", (4,)),
            {"op": "drop_states", "blocks": [], "how": "deregistered", "hashes": [4]},
        ),
        (RunStep((int("1"),)), {"op": "run_step"}),
    ],
)
def test_an_operation_is_read_as_it_was_written(operation: Operation, plain: dict[str, object]) -> None:
    """An operation is written without defaults, and read back; `written_by_1` has the operations not here."""
    assert encode(operation) == plain
    assert decode(Operation, plain) == operation


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (Key(()), {"tokens": []}),
        (Key((1, 2), "a", "tensor32"), {"tokens": [1, 2], "extra_key": "a", "form": "tensor32"}),
        (Key((1,), ("a", None, 3)), {"tokens": [1], "extra_key": ["a", None, 3]}),
        (Key(((1, 2), (3, 4)), 0), {"tokens": [[1, 2], [3, 4]], "extra_key": 0}),
    ],
)
def test_a_key_is_read_as_it_was_written(key: Key, plain: dict[str, object]) -> None:
    """K1: namespace 0 is not the lack of one, and bigrams stay tuples."""
    assert encode(key) == plain
    assert decode(Key, plain) == key


@pytest.mark.parametrize("namespace", [None, "a", 0, (None, "b"), ("a", "b", 1, "", 2)])
def test_a_namespace_is_made_of_its_values(namespace: operations.Namespace) -> None:
    """K2: one value for each dimension, and the shortest spelling again."""
    values = values_of(namespace)
    assert len(values) == len(DIMENSIONS)
    assert namespace_of(values) == namespace
    assert namespace_of([]) is None


def test_namespaces_tell_keys_apart() -> None:
    """K1: equal tokens in two namespaces are two keys, and a number is no digit."""
    assert len({Key((1,)), Key((1,), 0), Key((1,), "0"), Key((1,), "")}) == 4


@pytest.mark.parametrize("token", ["1", 1.5, 1.0, True, None, [1, "2"]])
def test_what_is_no_token_is_refused(token: object) -> None:
    """X1: a token is an integer or a tuple of them."""
    with pytest.raises(ValueError, match="tokens"):
        decode(Key, {"tokens": [token]})


def test_every_operation_belongs_to_a_kind() -> None:
    """No operation is in the language that nobody understands, and none is missing from the union."""
    assert set(typing.get_args(Operation)) == set(OPERATIONS)
    assert tuple(OPERATIONS_OF) == KINDS


@pytest.mark.parametrize(
    "plain",
    [
        {"op": "jump"},
        [],
        {"op": "alloc"},
        {"op": "alloc", "tokens": "4"},
        {"op": "add_request", "tokens": [1.5]},
    ],
)
def test_what_is_no_operation_is_refused(plain: object) -> None:
    """X1: with a message that begins with the place."""
    with pytest.raises(ValueError, match=r"^op"):
        decode(Operation, plain, "op")


@pytest.mark.parametrize(("prime", "bits"), [(CONV_PRIME, 8), (SSM_PRIME, 24), (KV_PRIME, 31)])
def test_each_prime_is_one_and_the_largest_that_fits(prime: int, bits: int) -> None:
    """E1: residues are exact in bfloat16, float32 and 32 bits."""
    small = list(range(2, int(2 ** (bits / 2)) + 1))
    sieve = [number for number in small if all(number % other for other in small[: int(number**0.5) - 1])]
    primes = [each for each in range(prime, 2**bits + 1) if all(each % other for other in sieve)]
    assert primes == [prime]
    assert KV_FACTOR % KV_PRIME > 1


sizes = st.dictionaries(st.text(), st.integers(), max_size=2)
numbers = st.lists(st.integers()).map(tuple)
effects = st.builds(Effect, st.text(), numbers, numbers, st.none() | st.integers(), st.text(), sizes)
outcomes = st.builds(
    Outcome,
    st.sampled_from(RESULTS).flatmap(st.from_type),
    st.lists(effects, max_size=2).map(tuple),
    sizes,
)
VIEW = out.RequestView(1, 0, "decode", (2, 3), 5, (11, 12), (1, 2))
RUN = out.RequestRun(1, 0, (2, 3), 4, 2, ((4, 2),), (2,), True, (11, 12))


@given(outcomes)
def test_every_outcome_survives_the_way_through_json(outcome: Outcome) -> None:
    """Every outcome can be stored and judged later."""
    again = decode(Outcome, json.loads(json.dumps(encode(outcome), allow_nan=True)))
    assert repr(again) == repr(outcome)  # by text, since a time that is no number is unequal to itself


def test_an_outcome_says_only_what_there_is() -> None:
    """No effects, no sizes and no fields that have their default take any room."""
    assert encode(Outcome(out.Slots((1,)))) == {"result": {"is": "slots", "slots": [1]}}
    assert "dropped" not in encode(Outcome(out.Ran((RUN,))))["result"]


@pytest.mark.parametrize(
    "result",
    [
        VIEW,
        out.Ran((RUN,), (2,), (out.BlockState(2, 0),), (3,), "InjectedFault"),
        out.ContextView((VIEW,), (out.ContextBlock(2, 1),)),
    ],
)
def test_an_answer_of_a_context_survives_the_way_through_json(result: Result) -> None:
    """X3: nested records come back as they were; only what can be of several kinds names its kind."""
    plain = json.loads(json.dumps(encode(Outcome(result))))
    assert decode(Outcome, plain).result == result
    assert json.dumps(plain).count('"is"') == 1


def test_every_kind_of_result_is_listed() -> None:
    """In the union and in the tuple."""
    assert typing.get_args(Result) == RESULTS


@pytest.mark.parametrize(
    "plain",
    [None, {}, {"result": {"is": "maybe"}}, {"result": {"is": "done"}, "more": 1}, {"sizes": {}}],
)
def test_what_is_no_outcome_is_refused(plain: object) -> None:
    """X1: with a message that begins with the place."""
    with pytest.raises(ValueError, match=r"^outcome"):
        decode(Outcome, plain, "outcome")


def test_the_message_of_an_error_is_for_people() -> None:
    """Two errors of one class are equal, whatever they say; it is kept all the same."""
    assert (
        out.Failed("ValueError", "no") == out.Failed("ValueError", "never") != out.Failed("TypeError", "no")
    )
    assert len({out.Failed("ValueError", "no"), out.Failed("ValueError")}) == 1
    assert Outcome(out.Failed("ValueError", "no")) == Outcome(out.Failed("ValueError"))
    assert out.Failed("ValueError") != out.Done()
    assert decode(Result, encode(out.Failed("ValueError", "no"))).message == "no"
