"""A violation that a mistake of the adapter explains as well says so, and no other does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.conformance.acting import make_machine
from pymllm.conformance.adapter_calls import load_class
from pymllm.conformance.cache_machine import check_adapter
from pymllm.conformance.doubts import find_doubt
from pymllm.conformance.machines import MACHINES, load_machine
from pymllm.conformance.search import SearchPlan, search
from tests.unit.cli.typed import typed

DOUBTS = {
    "Leaks": "never frees the slots that it tells of in evict: gave_back only tells",
    "LeaksWatched": "tells of no slot that evict gives back: call self.gave_back(slots) there",
    "FreesTwice": "makes the pool anew in evict, or does not tell of all slots",
    "ResetKeeps": "tells of no slot that reset gives back: call self.gave_back(slots) there",
    "ResetAnewTold": "makes the pool anew in reset, or does not tell of all slots",
    "DuplicatesAreFreedAndTold": "insert frees slots that stay the caller's",
    "CountsTooLittle": "counts otherwise than its effects: 0 and ",
    "EvictAsksForPages": "asks the class for so many pages as it is asked for tokens",
    "CountsWhatIsHeld": "counts evictable_size otherwise than the class does; leave out of sizes",
    "FreesSlotsAsPages": "passes slots on where the class takes pages: self.pages_of(slots)",
    "HandsOutPadding": "must add a page to each slot of a class that counts from 0",
    "SizesWithPadding": "counts otherwise in sizes: available_size is of slots, not pages, without padding",
    "SlotsWithPadding": "counts otherwise in sizes: available_size is of slots, not pages, without padding",
    "RaisesLate": "lets alloc raise, or return an empty list, where it must return None",
    "NobodyIsTold": "never tells of blocks that lose their hashes or become free: call self.lost",
    "EvictsEverything": "",
    "EvictsHeld": "",
    "LosesSlots": "",
    "HandsOutTwice": "",
}


@pytest.fixture(autouse=True)
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``first_adapters:Class`` name the classes."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])


@pytest.mark.parametrize("name", DOUBTS)
def test_a_violation_names_the_mistake_of_an_adapter_that_looks_the_same(name: str) -> None:
    """Whose fault it is, the one who reads it can see."""
    expected = DOUBTS[name]
    # A seed may meet another mistake of the same adapter first.
    if expected:
        assert any(it.startswith(expected) for seed in range(8) for it in doubts_of(name, seed))
    else:
        assert doubts_of(name, 0) == {""}


def doubts_of(name: str, seed: int) -> set[str]:
    """Search from a seed, and return what is said beside each violation; there is one at least."""
    place = f"first_adapters:{name}"
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
