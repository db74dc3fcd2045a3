"""`pymllm.check`: a verdict on objects that name methods as documented, before any adapter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pymllm
from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.errors import AdapterError, InvariantViolation, UsageError
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.memory_pool import (
    GDNPool,
    KVPool,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from pymllm.mem_cache.radix_cache import RadixCache
from tests.unit import documented_objects as objects
from tests.unit.cli.typed import typed

QUIET: dict[str, Any] = {"progress": "off", "examples": 60}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def slots(page: int = 1) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(24 * page, "cpu", page)


def states() -> GDNPool:
    return GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=3)


OURS: dict[str, tuple[Callable[[], object], dict[str, Any]]] = {
    "TokenToKVPoolAllocator": (slots, {}),
    "pages": (lambda: slots(4), {}),
    "refusals": (slots, {"claims": {"refusals", "forms"}}),
    "SWATokenToKVPoolAllocator": (lambda: SWATokenToKVPoolAllocator(12, 8, "cpu"), {}),
    "ReqToTokenPool": (lambda: ReqToTokenPool(3, 5, "cpu"), {"claims": {"zeroed_rows"}}),
    "KVPool": (lambda: KVPool(8, 2, 1, 2, "cpu", torch.float32), {}),
    "GDNPool": (lambda: GDNPool(3, 2, 1, 2, 1, 2, 3, "cpu", torch.float32, 2), {}),
    "RadixCache": (lambda: RadixCache(1, None, slots()), {"claims": {"callbacks", "exact_lru"}}),
    "RadixCache over nothing": (lambda: RadixCache(4), {}),
    "RadixCache with a window": (
        lambda: RadixCache(1, 4, SWATokenToKVPoolAllocator(24, 18, "cpu")),
        {},
    ),
    "MambaRadixCache": (lambda: MambaRadixCache(1, slots(), states()), {}),
    "ChunkCache": (lambda: ChunkCache(slots()), {"config": {"retains": False}, "claims": {"engine"}}),
}


@pytest.mark.parametrize("name", OURS)
def test_our_own_documented_classes_hold(name: str) -> None:
    """Nobody wrote an adapter for these objects."""
    make, options = OURS[name]
    result = pymllm.check(make, raises=False, **{**QUIET, "examples": 20, **options})
    assert not result.document.adapters[0].violations, result
    assert not result.document.adapters[0].problems, result
    assert {law.verdict.value for law in result.laws} >= {"holds"}


RIGHT: dict[str, Callable[[], object]] = {
    "slots": lambda: objects.Slots(12),
    "rows": lambda: objects.Rows(3, 5),
    "rows in lists": lambda: objects.ListedRows(3, 5),
    "no clear": lambda: objects.ListedSlots(12),
    "cache": lambda: objects.Cache(objects.Slots(12)),
    "cache over nothing": lambda: objects.Cache(None),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_class_holds(name: str) -> None:
    """Each law that its methods claim was tested; nothing is written."""
    result = pymllm.check(RIGHT[name], **QUIET)
    assert (result.verdict.value, result.programs) == ("holds", ())
    assert not Path("runs").exists()


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "slots that are lost": (lambda: objects.LosingSlots(12), "X4"),
    "a row that two have": (lambda: objects.RowsTwice(3, 5), "P1"),
    "a held page that goes": (lambda: objects.CarelessCache(objects.Slots(12)), "R6"),
    "slots that a reset leaks": (lambda: objects.LeakingCache(objects.Slots(12)), "X7"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_bug_raises_with_the_smallest_program(name: str) -> None:
    """The error is the law's; its note is the text of the command, and the file can be judged."""
    make, law = WRONG[name]
    with pytest.raises(InvariantViolation) as found:
        pymllm.check(make, **QUIET)
    (text,) = found.value.__notes__
    assert found.value.law == law
    assert "run_program(" in text
    (file,) = Path("runs").glob(f"*-{law}-0.jsonl")
    name = f"tests.unit.documented_objects:{type(make()).__name__}"
    assert typed("judge", file).exit_code == 1
    assert typed("rerun", file, "--adapter", name).exit_code == 1


FORMS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a number of evicted tokens": (
        "evict",
        lambda it: it.full_evicted,
        "evict returned 2, which has no full_evicted; return an object with full_evicted, such as",
    ),
    "a count that is none": (
        "evict",
        lambda it: SimpleNamespace(full_evicted=None),
        "whose full_evicted is None and no integer",
    ),
    "an insert without its node": (
        "insert",
        lambda it: SimpleNamespace(prefix_len=it.prefix_len),
        "which has no last_node; return an object with prefix_len and last_node, such as InsertResult",
    ),
    "an insert that gives no node": (
        "insert",
        lambda it: SimpleNamespace(prefix_len=it.prefix_len, last_node=None),
        "whose last_node is None, though there is a key to hold",
    ),
    "a number of known tokens": (
        "insert",
        lambda it: it.prefix_len,
        "insert returned 0, which has no prefix_len",
    ),
    "a pair": (
        "match_prefix",
        lambda it: (it.indices, it.last_node),
        "match_prefix returned ([1, 2], (1, 2)), which has no indices; return an object with indices, ",
    ),
    "a match without its node": (
        "match_prefix",
        lambda it: SimpleNamespace(indices=it.indices, prefix_len=it.prefix_len),
        "which has no last_node",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_of_another_form_accuses_no_class(name: str) -> None:
    """No law is broken: the method, the field and the way out are named."""
    method, form, words = FORMS[name]
    with pytest.raises(AdapterError) as refused:
        pymllm.check(lambda: objects.CacheOfAnswers(objects.Slots(12), **{method: form}), **QUIET)
    assert words in str(refused.value)
    assert "or write an adapter (docs/verify.md)" in str(refused.value)
    assert "VIOLATED" not in refused.value.__notes__[0]


INSIDES: dict[str, tuple[Callable[[], object], str]] = {
    "all": (
        lambda: objects.CacheOfInsides(objects.Slots(12)),
        "evict: available_size rose by 2, and no call of the pool's free was seen; let evict give slots back",
    ),
    "a part": (
        lambda: objects.CacheOfInsides(objects.Slots(12), 1),
        "evict: returned 2 and available_size rose by 2, but pool.free was given only slots (2,);",
    ),
    "no root": (
        lambda: objects.CacheWithoutRoot(objects.Slots(12)),
        "let match_prefix return what your cache holds as its root, or let inc_lock_ref",
    ),
}


@pytest.mark.parametrize("name", INSIDES)
def test_what_cannot_be_seen_is_told_in_words_of_the_object(name: str) -> None:
    """Nobody wrote an adapter that could be changed."""
    make, words = INSIDES[name]
    with pytest.raises(AdapterError) as refused:
        pymllm.check(make, **QUIET)
    assert words in str(refused.value)
    assert not [it for it in ("self.", "your adapter", "line ") if it in str(refused.value)]


def test_a_broken_law_blames_no_adapter() -> None:
    """There is none whose mistake could look the same."""
    result = pymllm.check(lambda: objects.CarelessCache(objects.Slots(12)), raises=False, **QUIET)
    assert "VIOLATED" in result.text
    assert "verbose=True explains the words of these tables" in result.text
    assert "--verbose" not in result.text
    assert "the adapter passes" not in result.text
    assert {it.doubt for it in result.document.adapters[0].violations} == {""}


def test_a_law_that_needs_a_missing_method_is_not_claimed() -> None:
    """Nothing says that it is unknown; lists are answers, too."""
    result = pymllm.check(lambda: objects.ListedSlots(12), **QUIET)
    assert next(law.verdict.value for law in result.laws if law.id == "X7") == "not claimed"
    assert "not done" not in result.text


def test_an_answer_that_changes_is_told_with_the_call_that_gave_it() -> None:
    """X5 names the container and the step."""
    with pytest.raises(InvariantViolation) as found:
        pymllm.check(lambda: objects.ReusingSlots(12), **QUIET)
    assert found.value.law == "X5"
    assert "the list that alloc of step 1 returned, which changed in a later step" in str(found.value)


UNFIT: dict[str, tuple[Callable[[], object], str]] = {
    "blocks": (
        lambda: objects.BlockSlots(64, 4),
        "alloc(8) returned 1, inside page 0: slots count tokens; if",
    ),
    "few blocks": (
        lambda: objects.BlockSlots(8, 4),
        "alloc(4) returned 1, inside page 0: slots count tokens",
    ),
    "a block for several tokens": (
        lambda: objects.SlotsOfAnswers(64, lambda it: it[: -(-len(it) // 4)]),
        "alloc: returned (1, 2) for 8 tokens; it must return a slot for each, not a page, or write an",
    ),
    "floats": (
        lambda: objects.SlotsOfAnswers(12, lambda it: it.float()),
        "alloc returned tensor([1., 2.]); slots are integers, in a list, an array or a tensor",
    ),
    "words": (
        lambda: objects.SlotsOfAnswers(12, lambda it: [f"s{slot}" for slot in it.tolist()]),
        "alloc returned ['s1', 's2']; slots are integers",
    ),
    "a pool's words": (
        lambda: objects.Cache(objects.SlotsOfAnswers(12, lambda it: [f"s{slot}" for slot in it.tolist()])),
        "alloc returned ['s1', 's2']; slots are integers",
    ),
    "one list for all": (
        objects.SlotsOverOneList,
        "they share something, such as a pool; make all of it anew",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_object_of_another_form_is_told_so_before_any_law(name: str) -> None:
    """No line of this package is named, nor a method that nobody wrote."""
    make, words = UNFIT[name]
    options = {"config": {"page_size": 4}} if name == "a block for several tokens" else {}
    with pytest.raises(AdapterError) as refused:
        pymllm.check(make, **QUIET, **options)
    assert words in str(refused.value)
    assert not [it for it in ("self.", "your adapter", ".py", "sizes()") if it in str(refused.value)]


def test_a_size_that_disagrees_names_no_method_of_an_adapter() -> None:
    """Nobody wrote ``sizes()``."""
    with pytest.raises(AdapterError) as refused:
        pymllm.check(lambda: objects.Rows(3, 5), config={"max_reqs": 4}, **QUIET)
    assert "size is 3 before the first step; this configuration has 4 rows" in str(refused.value)
    assert "let its methods, its attributes and config agree" in str(refused.value)


def test_blocks_can_be_told_to_be_pages_of_one() -> None:
    """The advice of the message works."""
    made = pymllm.check(lambda: objects.BlockSlots(12, 16), config={"page_size": 1}, **QUIET)
    assert made.verdict.value == "holds"


def test_a_fault_of_new_objects_is_found_where_each_is_new() -> None:
    """It is not hidden by a function that always returns one object, which is refused."""
    with pytest.raises(InvariantViolation):
        pymllm.check(lambda: objects.BadFirstSlots(12), **QUIET)


def test_a_verdict_can_be_looked_at_instead_of_raised() -> None:
    """As in a notebook, which shows the text."""
    result = pymllm.check(lambda: objects.LosingSlots(12), raises=False, **QUIET)
    assert (result.verdict.value, len(result.programs)) == ("violated", 1)
    assert "X4  VIOLATED by tests.unit.documented_objects:LosingSlots" in repr(result)


def test_equal_seeds_give_equal_results() -> None:
    """Times aside."""
    first, second = (pymllm.check(objects.Slots(12), seed=7, **QUIET) for _ in range(2))
    assert first.laws == second.laws


def test_each_program_gets_a_copy_of_an_object_as_it_was() -> None:
    """The object itself is not touched."""
    given = objects.Slots(12)
    assert pymllm.check(given, **QUIET).verdict.value == "holds"
    assert given.open == [*range(1, 13)]


def test_a_class_and_a_function_make_objects_too() -> None:
    """A class is given small sizes; both can be named to any command."""
    for made in (objects.Slots, objects.make_slots):
        result = pymllm.check(made, **QUIET)
        assert result.document.adapters[0].name == f"tests.unit.documented_objects:{made.__name__}"
    assert load_adapter(find_adapter("tests.unit.documented_objects:make_slots")).CONFIGURATIONS == (
        {"page_size": 1, "pages": 12},
    )


def test_a_claim_is_tested() -> None:
    """These slots refuse no double free."""
    with pytest.raises(InvariantViolation) as found:
        pymllm.check(lambda: objects.Slots(12), claims={"refuses_double_free"}, **QUIET)
    assert found.value.law == "A5"


def test_too_few_examples_are_no_verdict() -> None:
    """What no program tested is unknown, and says so."""
    with pytest.raises(AdapterError, match=r"no program tested .*; give more examples"):
        pymllm.check(lambda: RadixCache(4, None, slots(4)), examples=1, progress="off")


ONE = objects.BadFirstSlots(12)
POOL = objects.Slots(12)
REFUSED: dict[str, tuple[object, dict[str, Any], str]] = {
    "the same object": (
        lambda: ONE,
        {},
        "the function made the same object twice, a BadFirstSlots; return a new one each time",
    ),
    "the same pool": (
        lambda: objects.Cache(POOL),
        {},
        "the function made two Cache over the same pool, a Slots; make a new pool each time",
    ),
    "less than a page": (
        lambda: objects.BlockSlots(8, 16),
        {},
        "BlockSlots has 8 slots, less than a page of 16: sizes count tokens; if yours count blocks, give",
    ),
    "a property": (
        lambda: objects.SlotsWithACount(12),
        {},
        "SlotsWithACount.available_size is 12, of type int, and no method; it is called as available_size()",
    ),
    "a pool's property": (
        lambda: objects.Cache(objects.SlotsWithACount(12)),
        {},
        "SlotsWithACount.available_size is 12, of type int, and no method",
    ),
    "no count": (
        lambda: objects.SingleSlots(12),
        {},
        "SingleSlots.alloc cannot be called as alloc(need_size): too many positional arguments; let it take",
    ),
    "a slip": (objects.MisnamedSlots(), {}, "MisnamedSlots has no alloc (is aloc meant?); a slot allocator"),
    "another name": (
        objects.MisnamedCache(None),
        {},
        "no evict (is evict_tokens meant?); a prefix cache",
    ),
    "no method": (object(), {}, "object has no method of the documented interface; these are looked for: a "),
    "no size": (objects.BareRows(), {}, "BareRows has no max_context_len; a pool of request rows is asked"),
    "another name for a pool": (
        objects.CacheOverAllocator(objects.Slots(12)),
        {},
        "CacheOverAllocator has no pool (is allocator meant?); a prefix cache is asked for the allocator",
    ),
    "no pool at all": (
        objects.CacheOverAllocator(None),
        {},
        "CacheOverAllocator has no pool; a prefix cache is",
    ),
    "no copy": (objects.LockedSlots(3), {}, "LockedSlots cannot be copied (TypeError: cannot pickle"),
    "a class in it": (lambda: objects.Slots, {}, "Slots is a class; an object is asked for, so call it"),
    "an argument": (lambda beginning: 3, {}, "<lambda> takes beginning; pass, or name as module:FUNCTION"),
    "a context": (objects.Blocks(), {}, "Blocks has allocate_memory_blocks, so it lives in an inference"),
    "no claim": (
        objects.Slots(3),
        {"claims": {"refusal"}},
        "claims has 'refusal', which is no claim (did you",
    ),
    "no word": (objects.Slots(3), {"claims": [3]}, "claims has 3, which is no claim; the table of claims"),
    "no set": (objects.Slots(3), {"claims": 3}, "claims is 3; it must be a set, such as {'refusals'}"),
    "no key": (
        objects.Slots(3),
        {"config": {"page": 1}},
        "config has 'page', which is no key of the kind slots (did you mean 'pages'?); there are page_size,",
    ),
    "a far key": (
        objects.Slots(3),
        {"config": {"retains": False}},
        "config has 'retains', which is no key of the",
    ),
    "no dict": (
        objects.Slots(3),
        {"config": 3},
        "config is 3; it must be a dict, such as {'retains': False}",
    ),
    "a letter": (objects.Slots(3), {"seed": "a"}, "seed is 'a'; it must be an integer, such as 0"),
    "a half": (
        objects.Slots(3),
        {"examples": 0.5},
        "examples is 0.5; it must be an integer from 1 on, or None",
    ),
    "none": (objects.Slots(3), {"examples": 0}, "examples is 0; it must be an integer from 1 on, or None"),
    "a word": (objects.Slots(3), {"claims": "pool"}, "claims is 'pool'; it must be a set, such as {'pool'}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_is_named_before_any_program(name: str) -> None:
    """One line, with the way out."""
    given, options, words = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        pymllm.check(given, raises=False, **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_size_that_an_object_does_not_tell_can_be_told() -> None:
    """It is asked for by its key of the configuration."""
    result = pymllm.check(objects.BareRows, config={"max_context_len": 5}, **QUIET)
    assert result.verdict.value == "holds"


def test_a_cache_without_a_pool_can_be_told_to_have_none() -> None:
    """Its tokens are the slots."""
    made = pymllm.check(lambda: objects.CacheOverAllocator(None), config={"pool": "none"}, **QUIET)
    assert made.verdict.value == "holds"


def test_a_command_says_in_a_line_that_a_function_makes_nothing_of_the_sort() -> None:
    """As for any adapter that cannot be loaded."""
    with pytest.raises(AdapterError, match="int has no method of the documented interface"):
        make_adapter("tests.unit.documented_objects:make_number")


def test_an_object_of_another_size_than_asked_for_is_refused() -> None:
    """This function takes no size: a program for another one would be judged wrongly."""
    with pytest.raises(UsageError, match="Slots is made with pages 12; 3 is asked for"):
        make_adapter("tests.unit.documented_objects:make_slots", {"page_size": 1, "pages": 3})


def test_the_package_loads_nothing_until_check_is_asked_for() -> None:
    """`import pymllm` stays light, and another name is no attribute."""
    code = "import sys, pymllm; assert not {'torch', 'hypothesis', 'pymllm.checking'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        pymllm.chek  # noqa: B018
