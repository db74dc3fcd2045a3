"""An adapter that contradicts itself is named as the one at fault, before a law is held against its cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.faults.plant import planted
from pymllm.faults.table import PLANTED, WRONG
from pymllm.machines.acting import make_machine
from pymllm.machines.adapter_calls import build_adapter, closing, load_class
from pymllm.machines.registry import DEV, MACHINES, load_machine
from pymllm.machines.rehearsal import rehearse
from pymllm.machines.smoke import SmokeFailure, SmokeReport, try_adapter
from pymllm.oracle.verdicts import Verdict
from pymllm.search.runner import verify
from pymllm.search.search import SearchPlan, search
from pymllm.search.tasks import VerifyPlan

FILE = Path(__file__).parents[1] / "first_adapters.py"

MISTAKES: dict[str, tuple[str, ...]] = {
    "EvictTellsNothing": (
        "evict",
        "available_size rose by 2, and your adapter told of no slot given back; call self.gave_back(slots)",
    ),
    "EvictTellsNothingAndCountsNothing": (
        "evict",
        "returned 2, and your adapter told of no slot given back, nor ever could; call self.gave_back",
    ),
    "ResetTellsNothing": (
        "reset",
        "available_size rose by 2, and your adapter told of no slot given back; call self.gave_back",
    ),
    "ResetTellsNothingAndCountsNothing": (
        "reset",
        "emptied a cache of 2 slots, and your adapter told of no slot given back",
    ),
    "ResetAnew": ("reset", "available_size rose by 3", "A new pool reports nothing"),
    "ResetAnewWatched": ("reset", "available_size rose by 3", "a watch of the old one sees nothing"),
    "ResetAnewWatchedAgain": ("reset", "leave to the caller what is the caller's"),
    "WatchesAnother": ("evict", "available_size rose by 2", 'self.calls.watch(pool, "free")'),
    "TellsTheFirst": (
        "evict",
        "returned 2 and available_size rose by 2, but your adapter told only of slots (2,)",
    ),
    "TellsItsCount": (
        "evict",
        "gave_back(2): slots are asked for, in a list or a tensor; their count is what it returns",
    ),
    "UnlockTakesNoToken": ("unlock", "takes 2 positional arguments but 3 were given"),
    "KeyIsNoTokens": ("match", "a plain legal call failed with TypeError", ", from there line "),
    "UnlocksItsToken": ("unlock", "a plain legal call failed with TypeError", ", from there line "),
    "TellsTwice": ("evict", "gave_back([2, 1]) says what calls.watch has seen already; leave one"),
    "TellsInACallback": ("evict", "told of the same slot twice", "leave one of the two away"),
    "ResetTellsTwice": ("reset", "told of the same slot twice", "an effect is told once"),
    "TellsPages": (
        "evict",
        "told of (2, 1) given back, which are pages",
        "self.gave_back(self.slots_of(pages))",
    ),
    "TellsWhatTheCallerFrees": ("free", "what the caller frees is no effect"),
    "EvictReturnsNothing": ("evict", "evict returned None; it must return how many tokens went"),
    "EvictReturnsSlots": ("evict", "evict returned [2, 1]; it must return how many tokens went"),
    "EvictReturnsPagesWatched": ("evict", "returned 2, and 4 slots were given back; the count is of tokens"),
    "MatchReturnsPages": ("match", "for 4 tokens, which are pages", "self.slots_of(pages)"),
    "InsertReturnsPages": ("insert", "returned 1 for a key of 2 tokens", "multiply by page_size"),
    "InsertReturnsPagesOfFour": (
        "insert",
        "returned 2 for a key of 8 tokens",
        "multiply by page_size",
    ),
    "EvictReturnsPages": (
        "evict",
        "returned 2, and 4 slots were given back",
        "return self.gave_back(slots)",
    ),
    "EvictReturnsWhetherItDid": ("evict", "evict returned True; it must return how many tokens went"),
    "InsertReturnsALength": (
        "insert",
        "insert returned 0; it must return how many tokens it had, and a node",
    ),
    "InsertReturnsNothing": ("insert", "insert returned None; it must return how many tokens it had"),
    "InsertReturnsWhatIsThereNow": (
        "insert",
        "returned 2 for the first key of an empty cache",
        "were cached before: 0",
    ),
    "MatchReturnsALength": (
        "match",
        "match returned 2; it must return integers in a list, array or tensor, one for",
    ),
    "MatchReturnsSlots": ("match", "match returned 1; it must return integers in a list"),
    "MatchReturnsNothing": ("match", "match returned None; it must return slots and a node", "([], root)"),
    "AllocReturnsPages": ("alloc", "returned (1, 2) for 4 tokens", "self.slots_of(pages)"),
    "AllocReturnsWholePages": ("alloc", "for 1 tokens", "slots[:tokens]"),
    "AllocRefusesParts": (
        "alloc",
        "raised ValueError: 1 is no multiple of 2 (line ",
        "for 1 tokens, and gave the whole page when asked for 2",
        "slots[:tokens]",
    ),
    "AllocReturnsAnEmptyList": ("alloc", "returned no slots for 13 tokens; it must return None"),
    "AllocRaises": (
        "alloc",
        "raised MemoryError: pool is full (line ",
        "for 13 tokens",
        "it must return None",
    ),
    "AllocOfNothingReturnsNone": ("alloc", "returned None for 0 tokens", "it must return no slots: []"),
    "SlotsOfNothingRaise": (
        "alloc",
        "raised ValueError: nothing asked for (line ",
        "for 0 tokens",
        "no slots: []",
    ),
    "RootIsNone": ("lock", "raised TypeError", "of a match that found nothing, which is None", "as its root"),
    "MatchUsesItsNodeAgain": ("match", "returned the same list as the node of two keys", "return a new one"),
    "InsertUsesItsNodeAgain": ("insert", "returned the same Handle as the node of two keys"),
    "Bare": ("do_evict", "available_size rose by 2", 'add Effect("free", slots) to the effects of evict'),
    "LockTakesAnother": ("lock", "'int' object has no attribute 'add'"),
    "SizesNeverChange": (
        "sizes",
        "returned {'available_size': 12} after each step",
        "count anew in each call",
    ),
    "SizesInPages": (
        "sizes",
        "available_size fell by 2 as 4 slots were handed out",
        "multiply by page_size",
    ),
    "CountsInPages": ("sizes", "total_size is 2 once 4 tokens are cached", "multiply by page_size"),
    "SizesOfAnotherName": ("sizes", "sizes have the unknown name 'free'; known are available_size"),
    "SizesAreNone": ("sizes", "sizes() returned None; it must return a dict of integers by name"),
    "SizesAreNoneLater": ("sizes", "sizes() returned None; it must return a dict of integers by name"),
    "SizesAreANumber": ("sizes", "sizes() returned 10; it must return a dict of integers by name"),
    "SizesAreTensors": ("sizes", "the size 'available_size' is tensor([1.5000, 2.5000]); sizes are integers"),
    "SlotsAsPages": ("alloc", "returned (1, 2) for 4 tokens", "self.slots_of(pages)"),
    "SlotsInWholePages": ("alloc", "for 1 tokens", "slots[:tokens]"),
    "SlotsRefuseParts": (
        "alloc",
        "raised ValueError: 1 is no multiple of 2 (line ",
        "for 1 tokens",
        "round up",
    ),
    "SlotsRaise": (
        "alloc",
        "raised RuntimeError: out of memory (line ",
        "for 7 tokens",
        "it must return None",
    ),
    "SlotsNeverChange": (
        "sizes",
        "returned {'available_size': 6} after each step",
        "count anew in each call",
    ),
    "SlotsInPages": (
        "sizes",
        "available_size fell by 2 as 4 slots were handed out",
        "multiply by page_size",
    ),
    "TooManySlots": (
        "alloc",
        "handed out 7 slots of a pool that has 6 by the configuration",
        "page 0, on top",
    ),
    "TooFewSlots": (
        "sizes",
        "available_size is 5 before the first step; this configuration has 6 pages of 1, 6 slots, and page 0",
        "build it so, or correct sizes()",
    ),
    "SizesOfWhatIsUsed": ("sizes", "available_size is 0 before the first step", "6 pages of 1, 6 slots"),
    "CacheOfTooFewSlots": ("sizes", "available_size is 11 before the first step", "12 pages of 1, 12 slots"),
    "TwoRows": (
        "sizes",
        "available_size is 2 before the first step",
        "has 3 rows, and row 0 (padding) on top",
    ),
    "RowsWithPadding": (
        "sizes",
        "size is 4 before the first step",
        "has 3 rows, and row 0 (padding) on top: ",
    ),
    "SizesWithPadding": (
        "sizes",
        "available_size is 13 before the first step; this configuration has 12 pages of 1, 12 slots",
        "is page 0 (padding) counted?",
    ),
    "SlotsWithPadding": (
        "sizes",
        "available_size is 7 before the first step",
        "is page 0 (padding) counted?",
    ),
    "CachedWithPadding": (
        "sizes",
        "total_size is 1 before the first step; nothing is cached then",
        "so it must be 0: correct sizes(); is page 0 (padding) counted?",
    ),
    "BlocksWithDummy": (
        "sizes",
        "pool_avail is 9 before the first step; this configuration has 8 blocks, and the dummy (null) block",
        "or correct sizes(); is the dummy (null) block counted?",
    ),
}
"""By adapter, the method to change and what the message says."""


@pytest.fixture(autouse=True)
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``first_adapters:Class`` name the classes."""
    monkeypatch.syspath_prepend(FILE.parent)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_a_first_adapter_is_named_with_its_method_and_its_line(name: str) -> None:
    """Nothing is searched, and no law is broken."""
    failure = try_adapter(find_adapter(f"first_adapters:{name}"))
    assert isinstance(failure, SmokeFailure)
    method, *words = MISTAKES[name]
    assert [part for part in words if part not in failure.message] == [], failure.message
    named = re.search(rf"\(line (\d+) of {re.escape(str(FILE))}", failure.message)
    assert named is not None, failure.message
    before = FILE.read_text(encoding="utf-8").splitlines()[: int(named[1])]
    assert re.findall(r"def (\w+)", "\n".join(before))[-1] == method


WATCHES = {
    "WatchesAList": "calls.watch cannot replace extend of a deque; watch a method of a Python class, or"
    " compare the free list before and after, and call self.gave_back(slots)",
    "WatchesNothing": "'Pool' object has no attribute 'give_back'",
}


@pytest.mark.parametrize("name", WATCHES)
def test_a_watch_that_cannot_be_says_where_it_stands_and_what_to_do_instead(name: str) -> None:
    """The list of free slots of a class is often a type that is not Python's own."""
    failure = try_adapter(find_adapter(f"first_adapters:{name}"))
    assert isinstance(failure, SmokeFailure)
    assert WATCHES[name] in failure.message
    assert "first_adapters.py, line " in failure.message


@pytest.mark.parametrize(
    "name", ["Right", "NodesOfLists", "Watches", "OverWholePages", "Tensors", "Slots", "TellsItsSizeOnly"]
)
def test_a_right_first_adapter_holds(name: str) -> None:
    """A right first adapter holds: in lists, tensors, NumPy numbers, with and without tokens of holds."""
    plan = VerifyPlan((find_adapter(f"first_adapters:{name}"),), (), DEV, 0, 8, 0)
    (result,) = verify(plan).adapters
    assert (result.problems, result.verdict) == ((), Verdict.HOLDS)


WRONG_CLASSES = {
    "Leaks": "A2",
    "LeaksWatched": "R5 X7",
    "EvictsEverything": "R5",
    "EvictsMutely": "R5",
    "EvictsHeld": "R6",
    "FreesTwice": "A2",
    "ResetKeeps": "X7",
    "FloorsParts": "A3",
    "HandsOutHalfPages": "A2 A3",
    "FreesByFirstSlots": "A2",
    "FailsForParts": "A3",
    "StopsAllocating": "A3",
    "FreesPagesTooOften": "A2",
    "DuplicatesAreFreed": "A2 R4",
    "LosesSlots": "X4",
    "HandsOutWhatThereIs": "A3",
    "HandsOutTwice": "A2 A3",
    "HandsOutPadding": "A1",
    "DuplicatesAreFreedAndTold": "R4",
    "ReusesItsAnswer": "X5",
    "ReusesItsList": "X5",
    "SpoilsItsArgument": "X5",
    "SpoilsATensor": "X5",
    "MatchOfItsOwn": "X5",
}
"""Right adapters of wrong classes, with the laws that they may be blamed by."""


@pytest.mark.parametrize("name", WRONG_CLASSES)
def test_a_bug_of_the_cache_stays_a_violation(name: str) -> None:
    """A violation that only a bug of the cache explains is not held against the adapter."""
    smoke = try_adapter(find_adapter(f"first_adapters:{name}"))
    assert isinstance(smoke, SmokeReport)
    config, _ = smoke.configurations[0]
    machine = make_machine(load_machine(MACHINES[smoke.kind][0]), smoke.name, config)
    laws = {*WRONG_CLASSES[name].split()}
    plans = (SearchPlan(seed=seed, steps=40, examples=20, shrinks=0) for seed in range(4))
    # A seed may meet another law first.
    assert any(it.violation.law in laws for plan in plans for it in search(machine, plan).found)


def test_no_planted_fault_is_taken_for_an_adapters() -> None:
    """Each of ours, in each configuration of the adapters that show it."""
    rehearsed = 0
    for fault in {it.id: it for it in (*PLANTED, *WRONG)}.values():
        with planted(fault.edits):
            rehearsed += sum(map(rehearse_all, fault.adapters))
    assert rehearsed > 1000


def rehearse_all(name: str) -> int:
    """Rehearse an adapter in each of its configurations, and count them."""
    configurations = load_class(find_adapter(name)).CONFIGURATIONS
    for config in configurations:
        adapter = build_adapter(name, dict(config))
        with closing(adapter):
            rehearse(adapter)
    return len(configurations)
