"""Keys, headers and pools of prefix caches, as the judge reads them."""

from __future__ import annotations

from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import (
    Alloc,
    Evict,
    Free,
    FreeSWA,
    Key,
    Match,
    MoveSWA,
    Operation,
    ReadHalves,
    Span,
)
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Slots
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import path_of_key

# -- The caller's own calls to the pool under a prefix cache -------------------------------------------------


def windowed(**config: Any) -> ToldProgram:
    return ToldProgram("radix-window", **{"window": 2, **config})


@pytest.mark.parametrize(
    ("slots", "swa_slots", "law"),
    [
        ((0, 1), (3, 4), "A1"),
        ((12, 13), (3, 4), "A1"),
        ((1, 3), (3, 4), "A2"),
        ((3, 3), (3, 4), "A3"),
        ((3,), (3,), "A3"),
        ((3, 4), (1, 4), "A7"),
        ((3, 4), (4, 4), "A7"),
        ((3, 4), (), "A7"),
    ],
)
def test_a_wrong_allocation_is_refused(slots: tuple[int, ...], swa_slots: tuple[int, ...], law: str) -> None:
    """A1, A2, A3, A7: distinct free slots, none of page 0, each with an SWA slot of its own."""
    told = windowed()
    told.put(7, 7)
    given = told(Alloc(2))
    assert told.law(given) is None
    assert told.law(given, result=Slots(slots, swa_slots)) == law


def test_halves_that_nobody_claims_must_be_told_all_the_same() -> None:
    """A2: where not, the pool cannot be followed, and nobody is accused of anything."""
    told = ToldProgram()
    given = told(Alloc(2))
    with pytest.raises(ProgramError, match="1 SWA slots for 2 slots: without them"):
        told.law(given, swa_slots=(1,))
    assert told.law(given, swa_slots=(1, 99)) == "A2"


def test_an_allocation_is_whole_pages_in_order() -> None:
    """A3: the rest of the last page is the caller's, too."""
    told = windowed(page_size=2)
    given = told(Alloc(3))
    told(Free((Span(given, 0, 3),)))
    told.sound()
    assert told.law(given, result=Slots((3, 4, 5), (2, 3, 4))) == "A3"


def test_an_allocation_succeeds_where_there_is_room_and_only_there() -> None:
    """A3, X4: and one that fails changes nothing."""
    told = windowed()
    given, failed = told(Alloc(12)), told(Alloc(1))
    assert told.sound().reached["memory runs out"] == 1
    assert told.law(given, result=NoRoom()) == "A3"
    assert told.law(failed, result=Slots((1,), (1,))) == "X4"
    assert told.law(failed, sizes={"available_size": 1}) == "X4"


def test_what_the_caller_gives_back_is_free() -> None:
    """A2, A7: the pool takes it."""
    told = windowed()
    given = told(Alloc(4))
    spans = (Span(given, 0, 2),)
    halves = told(FreeSWA(spans))
    moved = told(MoveSWA((Span(given, 2, 4),), spans))
    freed = told(Free((Span(given, 0, 4),)))
    told.sound()
    laws = [told.law(number, result=Failed("KeyError")) for number in (halves, moved, freed)]
    assert laws == ["A7", "A7", "A2"]
    assert told.law(halves, sizes={"swa_available_size": 8}) == "A7"
    assert told.law(freed, sizes={"full_available_size": 8}) == "A2"


def test_halves_are_followed_where_they_are_not_claimed() -> None:
    """A2: a cache without a window may be over a pool with SWA halves."""
    told = ToldProgram()
    given = told(Alloc(2))
    halves = told(FreeSWA((Span(given, 0, 1),)))
    told(Free((Span(given, 0, 2),)))
    told.sound()
    assert told.law(halves, result=Failed("KeyError")) == "A2"


def test_halves_can_be_read() -> None:
    """S2, A7: those of the tree's slots are there exactly where it is alive."""
    told = windowed(page_size=2, slots=16, swa_slots=16)
    told.put(7, 7, 7, 7)
    given = told(Alloc(2))
    for tokens in ((7, 7), (7, 7, 7, 7)):
        told(Match(Key(tokens)))
    told(Evict(0, 2))
    read = told(ReadHalves((Span(1, 0, 4), Span(given, 0, 2))))
    assert told.sound().exercised["S2"] == 2
    seen = told.outcome(read).result.swa_slots  # type: ignore[union-attr]
    assert [bool(half) for half in seen] == [False, False, True, True, True, True]
    assert told.law(read, swa_slots=(9, *seen[1:])) == "S2"
    assert told.law(read, swa_slots=(*seen[:5], 9)) == "A7"
    assert told.law(read, swa_slots=seen[:5]) == "A7"
    assert told.law(read, result=Done()) == "A7"


@pytest.mark.parametrize(
    "operation",
    [
        Free((Span(1, 0, 1),)),
        Free((Span(0, 0, 1),)),
        Free((Span(0, 9, 10),)),
        Free((Span(3, 0, 1), Span(3, 0, 1))),
        FreeSWA((Span(3, 0, 1),)),
        MoveSWA((Span(3, 1, 2),), (Span(3, 2, 3),)),
        MoveSWA((Span(3, 1, 3),), (Span(3, 0, 1),)),
        Alloc(-1),
    ],
)
def test_misuse_of_the_pool_has_no_meaning_here(operation: Operation) -> None:
    """A5, A7: it is judged in slot allocators."""
    told = windowed()
    told.put(7)
    given = told(Alloc(3))
    told(FreeSWA((Span(given, 0, 1),)))
    told.steps.append(Step(9, operation, Outcome(Done())))
    with pytest.raises(ProgramError, match=r"slot|sources"):
        told.judged()


@pytest.mark.parametrize("operation", [Alloc(1), Free((Span(0, 1, 2),)), ReadHalves((Span(0, 1, 2),))])
def test_there_may_be_no_pool(operation: Operation) -> None:
    """A2: or one without halves."""
    told = ToldProgram(pool="none")
    told.steps.append(Step(1, operation, Outcome(Done())))
    with pytest.raises(ProgramError, match="pool"):
        told.judged()


def test_a_refusal_names_the_call() -> None:
    """A2, A7: with its slots, or what there should be as many of."""
    told = windowed(pool="swa")
    given = told(Alloc(2))
    read = told(ReadHalves((Span(given, 0, 2),)))
    halves = told.outcome(read).result
    assert isinstance(halves, Slots)
    more = Slots((), (*halves.swa_slots, 0))
    assert told.words(read, result=more).startswith("A7: halves of [1, 2]: ")
    freed = told(Free((Span(given, 0, 2),)))
    assert told.words(freed, result=Failed("ValueError")).startswith("A2: free: expected done, ")


# -- What a configuration must say, and what may be tested of whom -------------------------------------------


def model(*claims: str, **config: Any) -> CacheModel:
    return CacheModel(Header("x", "prefix", {"page_size": 1, **config}, claims))


@pytest.mark.parametrize(
    ("claims", "config", "message"),
    [
        ((), {"page_size": 0}, "page_size is 0"),
        ((), {"page_size": "1"}, "page_size is '1'"),
        (("swa",), {"window": 0}, "window is 0"),
        ((), {"window": 4}, "claims swa"),
        ((), {"pool": "host"}, "pool is 'host'"),
        (("pool",), {}, "pool is none"),
        ((), {"pool": "token", "slots": 4}, "pool is token"),
        (("pool",), {"pool": "token"}, "has no slots"),
        (("pool",), {"pool": "swa", "slots": 4}, "has no swa_slots"),
        (("pool",), {"page_size": 2, "pool": "token", "slots": 3}, "slots is 3; it must"),
        (("pool",), {"page_size": 2, "pool": "swa", "slots": 2, "swa_slots": 1}, "swa_slots is 1; it"),
        (("mamba",), {"track_slots": 0}, "track_slots is 0"),
        (("mamba", "swa"), {"track_slots": 3, "window": 4}, "no window"),
        (("mamba", "pool"), {"track_slots": 3, "pool": "swa", "slots": 4, "swa_slots": 4}, "no slots with"),
    ],
)
def test_a_configuration_that_cannot_be_judged_is_refused(
    claims: tuple[str, ...], config: dict[str, Any], message: str
) -> None:
    """A history must say what it is of."""
    with pytest.raises(ProgramError, match=message):
        model(*claims, **config)


def test_keys_are_those_that_are_claimed() -> None:
    """K1: namespaces and tuples only where the adapter knows them."""
    with pytest.raises(ProgramError, match=r"^namespaces are not claimed$"):
        model().path_of(Key((1,), "a"))
    with pytest.raises(ProgramError, match=r"^tuples as tokens are not claimed$"):
        model().path_of(Key(((1, 2),)))
    with pytest.raises(ProgramError, match=r"^namespaces with a value for weights are not claimed$"):
        model("extra_key", "lora").path_of(Key((1,), ("a", "b", None, None, "c")))
    assert model("lora").path_of(Key((1,), (None, "b"))).space == ((None, "b"), 1)
    assert model("extra_key", "bigrams").path_of(Key(((1, 2),), "a")).space == ("a", 2)


@pytest.mark.parametrize(
    ("claims", "config", "follows"),
    [
        ((), {}, False),
        (("exact_lru",), {}, True),
        ((), {"retains": False}, True),
        (("pool",), {"pool": "token", "slots": 4}, True),
        (("pool", "swa"), {"pool": "token", "slots": 4, "window": 2}, False),
        (("pool", "swa"), {"pool": "swa", "slots": 4, "swa_slots": 4, "window": 2}, True),
    ],
)
def test_victims_are_told_by_their_order_or_by_the_pool(
    claims: tuple[str, ...], config: dict[str, Any], follows: bool
) -> None:
    """R5, S3: what nobody can tell cannot be followed."""
    assert model(*claims, **config).can_follow_evictions is follows


# -- Keys as the judge tells them apart ----------------------------------------------------------------------


def test_keys_of_other_namespaces_or_widths_are_other_paths() -> None:
    """K1: the string "1", the int 1 and none at all are three namespaces, pairs are no plain tokens."""
    keys = [Key((7,)), Key((7,), 1), Key((7,), "1"), Key(((7, 7),))]
    assert len({path_of_key(key) for key in keys}) == 4


def test_a_key_of_mixed_tokens_means_nothing() -> None:
    """K1: all tokens of a key are equally wide."""
    with pytest.raises(ProgramError, match=r"widths \[1, 2\]"):
        path_of_key(Key((1, (2, 3))))


def test_a_tuple_of_one_number_is_no_token() -> None:
    """K1: it would be another token than the number, of the same width."""
    with pytest.raises(ProgramError, match=r"\(5,\) is a tuple of one number"):
        path_of_key(Key(((5,), (6,))))


@pytest.mark.parametrize("space", [(), ("a",), ("a", None), (None, None), ("a", "b", "c", "d", "e", "f")])
def test_a_namespace_has_one_spelling(space: tuple[str | None, ...]) -> None:
    """K2: what is missing at the end is left out, and the first value alone is no list."""
    with pytest.raises(ProgramError, match=rf"has {len(space)} values; give 2 to 5, the last not null, or"):
        path_of_key(Key((7,), space))


def test_each_value_of_a_namespace_is_text_that_utf_8_can_spell() -> None:
    """K1, K2: as a namespace of one value."""
    with pytest.raises(ProgramError, match="has half of a surrogate pair at 0: UTF-8 cannot"):
        path_of_key(Key((7,), (None, "\ud800")))
    assert path_of_key(Key((7,), ("\u00e9", 1))).space == (("\u00e9", 1), 1)


@pytest.mark.parametrize("space", ["\ud800", "a\udfff", "\u00e9\ud83d"])
def test_a_namespace_that_utf_8_cannot_spell_means_nothing(space: str) -> None:
    """K1, H3: no hash can read it; a whole pair, a letter with an accent and a zero byte can be read."""
    with pytest.raises(ProgramError, match=f"has half of a surrogate pair at {len(space) - 1}: UTF-8 cannot"):
        path_of_key(Key((7,), space))
    for spelled in ("\U0001f600", "\u00e9", "\0", ""):
        assert path_of_key(Key((7,), spelled)).space.extra_key == spelled


def test_the_container_of_a_key_does_not_matter() -> None:
    """K1: a form is how a key is handed over, not what it is."""
    assert path_of_key(Key((1, 2), form="tensor32")) == path_of_key(Key((1, 2)))
