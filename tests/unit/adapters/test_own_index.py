"""The index of plain dictionaries: by worker, from the front of a sequence on."""

from __future__ import annotations

import pytest

from pymllm.adapters.own_index import DictIndex, EventIndex, IndexDict, IndexEvents
from pymllm.history.files import Config, Header
from pymllm.history.outcomes import Done, Missed, NotThere
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.block_index import IndexMachine
from pymllm.oracle.coverage import expected_goals

CHAIN = ((101, 1), (102, 2), (103, 3))


@pytest.fixture
def index() -> DictIndex:
    """Worker 1 has three blocks of a sequence, worker 2 the first two."""
    made = DictIndex()
    assert made.store(1, CHAIN)
    assert made.store(2, CHAIN[:1])
    assert made.store(2, CHAIN[1:2], 101)
    return made


def test_leading_blocks_are_found(index: DictIndex) -> None:
    """I1, I8: early it ends with the only worker that is left."""
    assert index.find([1, 2, 3]) == {1: 3, 2: 2}
    assert index.find([1, 2, 3, 4], early=True) == {1: 3, 2: 2}
    assert index.find([1, 9]) == {1: 1, 2: 1}
    assert index.find([3]) == index.find([]) == {}
    assert index.remove(2, [101])
    assert index.find([1, 2, 3], early=True) == {1: 1}


@pytest.mark.notices("B240")
def test_the_same_tokens_stand_at_several_depths() -> None:
    """I1: a block is below its parent, whatever else begins alike."""
    index = DictIndex()
    assert index.store(1, ((101, 1), (102, 2), (104, 1)))
    assert index.find([1, 2, 1]) == {1: 3}
    assert index.find([1, 1]) == {1: 1}


@pytest.mark.notices("B203")
def test_what_is_cut_off_can_be_removed(index: DictIndex) -> None:
    """I6: it is not found when what is above it comes back."""
    assert index.remove(1, [102])
    assert index.remove(1, [103])
    assert index.store(1, CHAIN[1:2], 101)
    assert index.find([1, 2, 3]) == {1: 2, 2: 2}


@pytest.mark.notices("B242")
def test_what_is_removed_comes_back_with_all_below_it(index: DictIndex) -> None:
    """I5, I6; of the right worker, and also what is not there is told."""
    assert not index.remove(1, [102, 7])
    assert index.find([1, 2, 3]) == {1: 1, 2: 2}
    assert not index.store(1, ((104, 4),), 102)
    assert index.store(1, CHAIN[1:2], 101)
    assert index.find([1, 2, 3]) == {1: 3, 2: 2}


def test_a_dump_is_all_there_is(index: DictIndex) -> None:
    """I9: blocks that are cut off as well."""
    index.remove(1, [101])
    again = DictIndex.load(index.dump())
    again.store(1, CHAIN[:1])
    assert again.find([1, 2, 3]) == {1: 3, 2: 2}


@pytest.mark.notices("B241")
@pytest.mark.notices("B243")
def test_workers_are_cleared_and_dropped(index: DictIndex) -> None:
    """I7."""
    index.clear(1)
    index.clear(9)
    index.drop(2)
    index.drop(2)
    assert index.find([1]) == {}
    assert index.dump() == []


@pytest.mark.notices("B244")
def test_a_block_stands_in_one_place(index: DictIndex) -> None:
    """X1: before anything is stored."""
    for blocks, parent in ((((7, 7), (7, 8)), None), (((7, 7), (103, 8)), 103)):
        with pytest.raises(ValueError, match="one is there twice"):
            index.store(1, blocks, parent)
    assert index.find([7]) == {}
    assert index.find([1, 2, 3]) == {1: 3, 2: 2}


@pytest.fixture
def events() -> EventIndex:
    """Worker 1 has three blocks of a sequence, the last one twice, by events 0 and 1."""
    made = EventIndex()
    assert made.store(1, CHAIN, number=0) == Done()
    assert made.store(1, CHAIN[2:], 102, number=1) == Done()
    return made


@pytest.mark.notices("B330")
def test_a_block_is_there_until_its_last_copy_goes(events: EventIndex) -> None:
    """I10; without counting the first removal takes it, twice stored or not."""
    assert events.remove(1, [103]) == Done()
    assert events.find([1, 2, 3]) == {1: 3}
    assert events.remove(1, [103]) == Done()
    assert events.remove(1, [103]) == NotThere()
    assert events.find([1, 2, 3]) == {1: 2}
    sets = EventIndex(counted=False)
    sets.store(1, CHAIN)
    sets.store(1, CHAIN)
    assert sets.remove(1, [103]) == Done()
    assert sets.find([1, 2, 3]) == {1: 2}


@pytest.mark.notices("B333")
def test_groups_and_media_and_namespaces_are_apart(events: EventIndex) -> None:
    """I11 to I13: a removal names them, and a search its group and namespace."""
    assert events.store(1, CHAIN[:1], group=1) == Done()
    assert events.store(1, CHAIN[2:], 102, medium="CPU") == Done()
    assert events.store(1, ((501, 1),), extra_key="salt") == Done()
    assert events.remove(1, [101], group=1) == Done()
    assert events.remove(1, [103, 103]) == Done()
    assert events.find([1, 2, 3]) == {1: 3}
    assert events.find([1, 2, 3], group=1) == {}
    assert events.find([1, 2, 3], extra_key="salt") == {1: 1}
    assert events.remove(1, [103]) == NotThere()
    assert events.store(1, CHAIN[1:], 101, group=1) == NotThere()


@pytest.mark.notices("B332")
def test_events_have_their_turn(events: EventIndex) -> None:
    """I14 to I16: again, too early, and anew."""
    assert events.remove(1, [102], number=1) == Done()
    assert events.store(1, CHAIN, number=4) == Missed(2)
    assert events.clear(1, number=3) == Missed(2)
    assert events.find([1, 2, 3]) == {1: 3}
    assert events.remove(1, [102], number=2) == Done()
    assert events.find([1, 2, 3]) == {1: 1}
    assert events.store(1, CHAIN[:1], number=0) == Done()
    assert events.dump()[1] == {1: 0}
    assert events.remove(1, [103]) == NotThere()
    assert events.clear(1) == Done()
    assert events.find([1]) == {}
    events.drop(1)
    assert events.store(1, CHAIN, number=7) == Done()


@pytest.mark.notices("B331")
def test_what_is_loaded_goes_on_where_the_other_is(events: EventIndex) -> None:
    """I9: with its copies and numbers, and apart from it."""
    for number in range(2, 5):
        assert events.store(1, (), number=number) == Done()
    again = events.load()
    assert again.dump() == events.dump()
    assert again.store(1, (), number=4) == Done()
    assert again.store(1, (), number=6) == Missed(5)
    assert again.remove(1, [103, 103], number=5) == Done()
    assert again.find([1, 2, 3]) == {1: 2}
    assert events.find([1, 2, 3]) == {1: 3}


def test_what_is_refused_has_no_number(events: EventIndex) -> None:
    """X1: the event with that number may still come."""
    with pytest.raises(ValueError, match="one is there twice"):
        events.store(1, ((7, 7), (7, 7)), number=2)
    with pytest.raises(TypeError):
        events.remove(1, [1.5], number=2)  # type: ignore[list-item]
    assert events.dump()[1] == {1: 1}


CONFIGURATIONS = [
    *(("index-dict", config) for config in IndexDict.CONFIGURATIONS),
    *(("index-events", config) for config in IndexEvents.CONFIGURATIONS),
]


@pytest.mark.parametrize(("adapter", "config"), CONFIGURATIONS, ids=str)
def test_a_long_run_reaches_every_goal(adapter: str, config: Config) -> None:
    """And breaks nothing."""
    machine = make_machine(IndexMachine, adapter, dict(config))
    reached: set[str] = set()
    for seed in range(10):
        judge = drive(machine, seed, 100).judge
        reached |= judge.evidence.reached.keys()
    assert reached == expected_goals(Header("x", "index", dict(config), tuple(judge.model.claims)))
