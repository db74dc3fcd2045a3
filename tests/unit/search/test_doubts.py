"""A violation that a mistake of the adapter explains as well says so, and no other does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import Key, Span
from pymllm.history.outcomes import Outcome
from pymllm.machines.acting import make_machine
from pymllm.machines.adapter_calls import load_class
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.machines.smoke import SmokeFailure, try_adapter
from pymllm.search.cache_machine import check_adapter
from pymllm.search.doubts import find_doubt
from pymllm.search.search import SearchPlan, search
from tests.unit.cli.typed import typed

DOUBTS = {
    "Leaks": "never frees the slots that it tells of in evict: an effect only tells",
    "LeaksWatched": "counts otherwise than its class in evict",
    "FreesTwice": "makes a new pool in evict, or does not report all slots",
    "ResetKeeps": "leaves in the cache what a reset must take: everything, whatever is held",
    "ResetAnewTold": "makes a new pool in reset, which takes the callers' slots from them",
    "DuplicatesAreFreed": "frees slots in insert that stay the caller's",
    "DuplicatesAreFreedAndTold": "frees slots in insert that stay the caller's",
    "CountsTooLittle": "counts otherwise than its effects: 0 and ",
    "EvictAsksForPages": "does not ask the class in evict for so many pages as the tokens need",
    "CountsWhatIsHeld": "counts evictable_size otherwise than the class does",
    "FreesSlotsAsPages": "passes slots on where the class takes pages: self.pages_of(slots)",
    "HandsOutPadding": "must add a page to each slot of a class that counts from 0",
    "RaisesLate": "lets alloc raise, or return an empty list, where it must return None",
    "NobodyIsTold": "never tells of blocks that lose their hashes or become free: call self.lost",
    "FloorsParts": "passes on to alloc what is no whole page, or rounds it down",
    "HandsOutHalfPages": "passes on to alloc what is no whole page, or rounds it down",
    "FailsForParts": "passes on to alloc what is no whole page, or rounds it down",
    "FreesByFirstSlots": "passes parts of pages on to free, where the class takes whole ones",
    "EvictsEverything": "",
    "EvictsHeld": "holds nothing in lock, or not the node and all above it",
    "LosesSlots": "",
    "HandsOutTwice": "",
}

MISTAKEN = {
    "FreesNothing": "passes no slot on in free, or not all of them",
    "FreesTheFirst": "passes no slot on in free, or not all of them",
    "AllocEvicts": "makes room in alloc by itself, where it must return None: the caller evicts",
    "AllocGivesAPart": "hands out in alloc what there is, where it must return None",
    "MatchDropsTheLast": "cuts the tokens in match or insert",
    "SlotsAreSorted": "changes the order of slots in match or insert, or leaves some out",
    "NodesOfTwoKinds": "insert and match must return the same kind of node",
    "ClaimsNamespaces": "claims extra_key, and does not pass key.extra_key on in match and insert",
    "InsertPassesNewSlots": "passes only the new slots on in insert",
    "UnlocksNothing": "releases nothing in unlock, or another node than lock took",
    "LocksNothing": "holds nothing in lock, or not the node and all above it",
    "InsertReturnsTheParent": "or insert and match return another node than the end of what they found",
    "MatchPins": "takes a hold elsewhere than in lock",
    "AnotherPageSize": "has configurations of page_size 2, which its class knows nothing of",
    "AllocPassesParts": "passes on to alloc what is no whole page, or rounds it down",
    "AllocPassesPartsUncounted": "passes on to alloc what is no whole page, or rounds it down",
    "AllocRoundsDown": "passes on to alloc what is no whole page, or rounds it down",
    "AllocOfPartsIsNone": "passes on to alloc what is no whole page, or rounds it down",
    "FreesParts": "passes parts of pages on to free, where the class takes whole ones",
    "FreeRefusesParts": "passes parts of pages on to free, where the class takes whole ones",
    "ResetsNothing": "leaves in the cache what a reset must take: everything, whatever is held",
    "ResetEvicts": "leaves in the cache what a reset must take: everything, whatever is held",
    "EvictReturnsWhatWasAsked": "counts otherwise than its effects: ",
    "AvailableWithEvictable": "counts what is cached in available_size, which is of free slots only",
    "TellsOfWhatWentBefore": "reports in evict slots that did not go now",
    "InsertRaises": "raises this itself in insert, where the error says, or calls the class there as it must",
    "InsertLeavesAToken": "leaves the last page out of what insert returns",
    "ClearsNothing": "empties nothing in clear, or another pool than it allocates from",
}
"""Adapters of a cache that is right, and words of the mistake that each makes."""


@pytest.fixture(autouse=True)
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``first_adapters:Class`` name the classes."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])


@pytest.mark.parametrize("name", DOUBTS)
def test_a_violation_names_the_mistake_of_an_adapter_that_looks_the_same(name: str) -> None:
    """A violation tells the reader which mistake of the adapter would look the same."""
    expected = DOUBTS[name]
    # A seed may meet another mistake of the same adapter first.
    if expected:
        assert any(expected in it for seed in range(8) for it in doubts_of(f"first_adapters:{name}", seed))
    else:
        assert doubts_of(f"first_adapters:{name}") == {""}


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_mistake_that_a_bug_would_look_like_stands_beside_the_violation(name: str) -> None:
    """No rehearsal blames the adapter, and each law that is held against the cache has the right line."""
    place = f"mistaken_adapters:{name}"
    assert not isinstance(try_adapter(find_adapter(place)), SmokeFailure)
    said = set()
    for seed in range(24):  # one may meet another law first
        said |= doubts_of(place, seed)
        if any(MISTAKEN[name] in it for it in said):
            break
    else:
        raise AssertionError(f"{MISTAKEN[name]} is not said: {said}")
    assert "" not in said


HALF = [
    Step(1, ops.Alloc(1), Outcome(out.Slots((2,)), sizes={"available_size": 6})),
    Step(
        2,
        ops.Insert(Key((7,)), slots=(Span(1, 0, 1),)),
        Outcome(out.Inserted(0, (), node_len=0), sizes={"available_size": 8}),
    ),
]
HELD = [
    Step(1, ops.Match(Key((7, 7))), Outcome(out.Matched((2, 3), 2))),
    Step(2, ops.Evict(1), Outcome(out.Evicted(0))),
]
TWICE = [
    Step(1, ops.Alloc(2), Outcome(out.Slots((2, 3)), sizes={"available_size": 6})),
    Step(
        2,
        ops.Reset(),
        Outcome(out.Done(), effects=(out.Effect("free", (2, 3)),) * 2, sizes={"available_size": 8}),
    ),
]
GIVEN_UP = [Step(1, ops.Insert(Key((7,)), slots=(Span(1, 0, 1),)), Outcome(out.Inserted(0, ())))]
FIRST = [Step(1, ops.Alloc(1), Outcome(out.Slots((2,)), sizes={"available_size": 8}))]
CACHED = [Step(1, ops.Alloc(2), Outcome(out.Slots((2, 3))))]


@pytest.mark.parametrize(
    ("steps", "law", "looked", "observed", "words"),
    [
        (HALF, "A2", "available_size", "8", "frees in insert what is not cached, such as half a page"),
        (HELD, "R5", "tokens evicted", "0", "releases nothing in unlock, or another node than lock took"),
        (TWICE, "X7", "slots that a reset frees", "[2, 2, 3, 3]", "tells of the same slot twice"),
        (FIRST, "A2", "available_size", "8", "counts otherwise in sizes: available_size is of slots"),
        (GIVEN_UP, "R7", "evictable_size", "2", "gives up in insert slots that it does not take"),
        (CACHED, "A2", "pages of an allocation", "[1]", "hands out in alloc what is cached"),
        (HELD, "R9", "pages that stay below removed ones", "[1]", "Or what insert finds cached stays older"),
    ],
    ids=[
        "half a page",
        "a hold that stays",
        "told twice",
        "a size at first",
        "given up",
        "cached pages",
        "a head before its tail",
    ],
)
def test_a_cache_of_blocks_is_told_what_its_adapter_does(
    steps: list[Step], law: str, looked: str, observed: str, words: str
) -> None:
    """A typical mistake of an adapter of a block pool like vLLM's has words of its own."""
    header = Header("mine:Blocks", "prefix", {"page_size": 2, "pool": "token", "slots": 8}, ("pool",))
    expected = "0" if law == "R7" else ">= 1"
    violation = InvariantViolation(law, looked, expected=expected, observed=observed)
    assert words in find_doubt(History(header, steps), violation)


FOUND = Outcome(out.Matched((2, 3), 2))
NAMED = [Step(1, ops.Match(Key((7, 7), extra_key="a")), FOUND)]
KEPT = [Step(1, ops.Reset(), Outcome(out.Done())), Step(2, ops.Match(Key((7, 7), extra_key="a")), FOUND)]


@pytest.mark.parametrize(
    ("steps", "law", "looked", "broken", "words"),
    [
        (
            NAMED,
            "K1",
            "slots that match (7, 7)",
            "K1",
            "claims extra_key, and does not pass key.extra_key on",
        ),
        (KEPT, "K1", "slots that match (7, 7)", "K1", ""),
        (NAMED, "R7", "evictable_size", "K1 R7", "drops key.extra_key somewhere in match or insert"),
        (NAMED, "R7", "evictable_size", "R7", "takes a hold elsewhere than in lock"),
        (HELD[:1], "R7", "evictable_size", "K1 R7", "takes a hold elsewhere than in lock"),
    ],
    ids=["meet", "kept by a reset", "beside K1", "alone", "without namespaces"],
)
def test_a_dropped_namespace_is_named_where_the_program_has_one(
    steps: list[Step], law: str, looked: str, broken: str, words: str
) -> None:
    """Beside K1 other laws break by the same mistake, and behind a reset it is none."""
    header = Header(
        "mine:Cache", "prefix", {"page_size": 1, "pool": "token", "slots": 8}, ("pool", "extra_key")
    )
    violation = InvariantViolation(law, looked, expected="2", observed="0")
    doubt = find_doubt(History(header, steps), violation, broken.split())
    assert words in doubt
    assert bool(words) == bool(doubt)


@pytest.mark.parametrize(("observed", "is_said"), [("1", True), ("2", False)])
def test_another_page_size_is_named_where_a_size_is_of_no_whole_pages(observed: str, is_said: bool) -> None:
    """Slots that are missing in whole pages are no sign of another page size."""
    header = Header("mine:Cache", "prefix", {"page_size": 2, "pool": "token", "slots": 8}, ("pool",))
    violation = InvariantViolation("R7", "evictable_size", expected="0", observed=observed)
    assert ("knows nothing of" in find_doubt(History(header, HELD[:1]), violation)) is is_said


def doubts_of(place: str, seed: int = 0) -> set[str]:
    """Search from a seed, and return what is said beside each violation; there is one at least."""
    made = load_class(find_adapter(place))
    machine = make_machine(load_machine(MACHINES[made.KIND][0]), place, dict(made.CONFIGURATIONS[0]))
    found = search(machine, SearchPlan(seed=seed, steps=40, examples=30, shrinks=0, driven=10)).found
    assert found
    return {find_doubt(it.history, it.violation) for it in found}


def test_it_stands_beside_the_violation(
    work_here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the table of a search, and where somebody's own tests fail."""
    monkeypatch.chdir(tmp_path)
    result = typed("verify", "--adapter", "first_adapters:HandsOutPadding", "--examples", 5)
    assert result.exit_code == 1
    assert "    or         the adapter must add a page to each slot of a class" in result.stdout
    with pytest.raises(AssertionError, match=r"observed .*, or the adapter must add a page to each slot"):
        check_adapter("first_adapters:HandsOutPadding", examples=5)
