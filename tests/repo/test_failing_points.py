"""The sweep that lets one use of memory fail: it sees each, finds what is lost, and leaves no trace."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.mem_cache.tree import token_encoding
from tests import failing_points
from tests.failing_points import Sweep, points_of, watched_places
from tests.repo import failing_specimens
from tests.repo.failing_specimens import PLACES, Store, append_one


@pytest.fixture
def watched() -> Iterator[None]:
    """The specimens tell of their points."""
    with watched_places(failing_specimens):
        yield


@pytest.mark.parametrize(("act", "points"), PLACES)
def test_each_use_of_memory_is_a_point(watched: None, act: Callable[[], Any], points: list[str]) -> None:
    """In the order in which they run, each once, and a failure comes out of the call."""
    found = list(Sweep(lambda: None, lambda _: act()))
    assert [failed.where.partition(": ")[2] for failed in found] == points
    assert all(type(failed.error) is MemoryError for failed in found)
    assert all(failed.where.startswith("failing_specimens.py:") for failed in found)
    assert points_of(act) == len(points)


def test_what_is_lost_is_seen(watched: None) -> None:
    """A call that counts a slot before it has it is found out, at the two points behind that."""
    careless = [failed.subject.taken for failed in Sweep(Store, Store.take_carelessly)]
    careful = [failed.subject.taken for failed in Sweep(Store, Store.take)]
    assert (careless, careful) == ([1, 1], [0, 0])


def test_a_failure_that_is_swallowed_is_told(watched: None) -> None:
    """A swallowed failure is reported with the result of its call, so that the result can be judged."""
    found = list(Sweep(Store, Store.take_quietly))
    assert [(failed.point, failed.error, failed.result) for failed in found] == [(1, None, -1), (2, None, -1)]


@pytest.mark.parametrize("after", [False, True])
def test_a_call_of_the_outside_fails_before_or_after_it_is_made(watched: None, after: bool) -> None:
    """A named function is a point; where that is asked for, it has done its work, and its answer is lost."""
    called: list[int] = []

    def friend() -> int:
        called.append(1)
        return 5

    sweep = Sweep(Store, lambda store: store.ask(friend), named=lambda store: [friend], after=after)
    assert [len(called) for _ in sweep] == [int(after)]


def test_a_named_object_s_methods_are_points(watched: None) -> None:
    """A pool or an observer is named by its object; the error is the one that was asked for."""
    (failed,) = Sweep(list[int], append_one, named=lambda it: [it], error=KeyboardInterrupt)
    assert (type(failed.error), failed.subject) == (KeyboardInterrupt, [])
    assert list(Sweep(list[int], append_one)) == []


def test_strict_takes_the_smallest_reads_and_writes_for_points(watched: None) -> None:
    """A strict sweep also takes the smallest reads, and NumPy's writes in place, for points."""
    loose = [points_of(act) for act, points in PLACES]
    strict = [points_of(act, strict=True) for act, points in PLACES]
    assert loose == [len(points) for _, points in PLACES]
    assert sum(strict) - sum(loose) == 9  # three elements and a view read, five times written in place


def test_a_call_that_fails_without_a_point_is_no_sweep(watched: None) -> None:
    """Its own error passes on."""
    with pytest.raises(ZeroDivisionError):
        list(Sweep(Store, lambda store: 1 // store.taken))
    with pytest.raises(ZeroDivisionError):
        points_of(lambda: 1 // 0)


def test_every_function_of_the_rooms_is_watched_and_none_afterwards() -> None:
    """The very functions that callers have; when it is over, even by an error, they are as they were."""
    functions = {it: it.__code__ for it in vars(KVBlockAllocator).values() if isinstance(it, FunctionType)}
    names = set(vars(token_encoding))
    handed: Counter[str] = Counter()

    def look_and_stop() -> None:
        with watched_places() as told:
            handed.update(told)
            assert all(it.__code__ is not code for it, code in functions.items())
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        look_and_stop()
    assert handed["pymllm.core.inference.contexts.kv_block_allocator"] >= len(functions)
    assert handed["pymllm.mem_cache.tree.token_encoding"] > 3
    assert all(it.__code__ is code for it, code in functions.items())
    assert set(vars(token_encoding)) == names


def test_a_function_that_the_text_does_not_have_is_no_secret() -> None:
    """A function that its module's text does not have is an error, for its points would pass unseen."""

    def other() -> None:
        """Pretend to come from the specimens."""

    other.__code__ = other.__code__.replace(co_filename=failing_specimens.__file__)
    failing_specimens.other = other  # type: ignore[attr-defined]
    try:
        with pytest.raises(KeyError), watched_places(failing_specimens):
            raise AssertionError
    finally:
        del failing_specimens.other  # type: ignore[attr-defined]


def test_nothing_is_counted_outside_of_a_sweep(watched: None) -> None:
    """Making a subject and looking at a subject never fail, since no point is counted outside of a sweep."""
    for _ in Sweep(Store, Store.take):
        assert KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 4).pool_avail == 3
        assert Store().take() == 0
    assert not failing_points._watch.is_on


_MANY = np.arange(100_000)


def _most_memory(act: Callable[[], Any]) -> int:
    """Return the most bytes that a second call has at a time."""
    act()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("index", [5, slice(None), slice(99_990, None, -1), _MANY], ids=str)
@pytest.mark.parametrize("value", [3, np.int64(3), "other", "small"], ids=str)
def test_what_is_no_point_takes_no_memory_that_grows(index: Any, value: Any) -> None:
    """NumPy tells tracemalloc what it takes: less than a kilobyte for writes of 800."""
    target = np.zeros(100_000, np.int64)
    if isinstance(value, str):
        value = np.array(target[index], np.int32 if value == "small" else np.int64)
    certain = failing_points._is_written_in_place(target, index, value)
    assert certain == (not isinstance(index, np.ndarray) or getattr(value, "dtype", None) != np.int32)
    if certain:
        assert _most_memory(lambda: target.__setitem__(index, value)) < 1024
    if failing_points._is_at_hand(target, index):
        assert _most_memory(lambda: target[index]) < 1024


@pytest.mark.parametrize(
    "act",
    [
        lambda: _MANY.copy().__setitem__(_MANY.astype(np.int32), 3),
        lambda: _MANY[_MANY],
        lambda: _MANY[_MANY > 3],
        lambda: _MANY == 3,
    ],
)
def test_what_is_a_point_does(act: Callable[[], Any]) -> None:
    """So tracemalloc does see what NumPy takes."""
    assert _most_memory(act) > 10_000
