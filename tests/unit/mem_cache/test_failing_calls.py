"""Whatever fails or interrupts a call of a cache or pool, nothing is lost; some of it is slow."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from pymllm.mem_cache import MambaRadixCache, RadixKey
from tests.failing_points import Failed, Sweep, watched_places
from tests.unit.mem_cache.warm_worlds import (
    WORLDS,
    Act,
    World,
    acts_of,
    check,
    empty_world,
    give_everything_back,
    pages,
    view_of,
)

# -- failures ------------------------------------------------------------------------------------------------


QUICK = (
    ", checked, pages of 1",
    ", watched, pages of 4",
    ", queue, pages of 4",
    ", device, pages of 4",
    ", none, pages of 1",
    "halves in a group, device, pages of 1",
    "halves in a group, device checked, pages of 1",
)
"""Stores and page sizes that are tried each time; worlds without them always are."""


def _shares() -> list[object]:
    slow = [pytest.mark.slow]
    return [
        pytest.param(name, marks=slow if "," in name and not name.endswith(QUICK) else []) for name in WORLDS
    ]


def may_go_halfway(world: World, act: str, after: bool) -> bool:
    """Tell of the calls that a pool may stop halfway, of which X2 says what is left.

    What is written into somebody's own row is written, whatever comes afterwards.
    """
    if world.rows is not None:
        return after and act.startswith("write")
    if isinstance(world.cache, MambaRadixCache):
        return act.startswith("evict") or act == "reset"
    return world.cache is not None and act.startswith(("evict", "insert over"))


def failures(name: str, act: Act, **options: bool) -> Iterator[Failed[World]]:
    """Make a call fail at each of its points, and at each call of a pool."""
    pools = lambda world: [it for it in (world.pool, world.states) if it is not None]  # noqa: E731
    named = pools if WORLDS[name]().cache is not None and not options else lambda world: ()
    for failed in Sweep(WORLDS[name], act, named=named, **options):
        # What Python has appended is there, and so are zeros: neither fails afterwards.
        if "after" not in options or not failed.where.endswith(("list.append()", "Tensor.zero_()")):
            yield failed


@pytest.mark.parametrize("options", [{}, {"after": True, "strict": True}], ids=["instead", "afterwards"])
@pytest.mark.parametrize("name", _shares())
def test_whichever_use_of_memory_fails_the_call_has_happened_or_not(
    name: str, options: dict[str, bool]
) -> None:
    """X2, X4, X7: an error means that nothing has changed, and a reset gives everything back."""
    points: Counter[str] = Counter()
    with watched_places():
        for label, act in acts_of(WORLDS[name]()).items():
            untouched = WORLDS[name]()
            before = view_of(untouched)
            act(untouched)
            done = view_of(untouched)
            for failed in failures(name, act, **options):
                points[label] += 1
                where = f"{label}: {failed.where}"
                world = failed.subject
                if failed.error is None:
                    assert view_of(world) == done, where
                else:
                    assert isinstance(failed.error, MemoryError), where
                    if not may_go_halfway(world, label, "after" in options):
                        assert view_of(world) == before, where
                try:
                    check(world)
                    give_everything_back(world)
                except Exception as error:
                    error.add_note(where)
                    raise
    assert sum(points.values()) > 0


# -- interrupts ----------------------------------------------------------------------------------------------


QUICK_INTERRUPTS = (
    "radix, checked, pages of 1",
    "windowed, queue, pages of 4",
    "mamba, checked, pages of 4",
    "radix, watched, pages of 1",
    "windowed, watched, pages of 4",
    "halves in a group, checked, pages of 1",
    "halves in a group, device, pages of 4",
    "rows",
    "track slots",
)


class Interruption:
    """Raises at the n-th line or instruction of a call inside `pymllm.mem_cache`."""

    def __init__(self, nth: int, at_instructions: bool) -> None:
        self.nth, self.passed = nth, 0
        self._kind = "opcode" if at_instructions else "line"

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow a frame of ours."""
        if not str(frame.f_globals.get("__name__")).startswith("pymllm.mem_cache"):
            return None
        frame.f_trace_opcodes = self._kind == "opcode"
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == self._kind:
            self.passed += 1
            if self.passed == self.nth:
                raise KeyboardInterrupt
        return self._step

    def during(self, call: Callable[[], Any]) -> bool:
        """Make a call; tell whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def heal(world: World) -> None:
    """Do what the documentation says, in its order."""
    if world.cache is not None:
        world.cache.reset()
    for pool in (world.pool, world.states, world.rows):
        if pool is not None:
            pool.clear()
    for owned in (world.mine, world.my_states, world.my_rows, world.nodes):
        owned.clear()


def story_of(world: World) -> list[Any]:
    """Use everything a little, and write down what it says."""
    cache, size = world.cache, world.page_size
    story: list[Any] = [view_of(world)]
    if world.pool is not None:
        world.take(3 * size)
        first = world.take(5 * size)
        world.pool.free_group_begin()
        world.pool.free(world.mine.pop(0))
        if hasattr(world.pool, "free_swa"):
            world.pool.free_swa(first[:size])
        world.pool.free_group_end()
        story.append(view_of(world))
        world.pool.free(world.mine.pop())
        world.pool.merge_and_sort_free()
    if world.states is not None and cache is None:
        world.my_states += [world.states.alloc_track_slot() for _ in range(3)]
        world.states.free_track_slot(world.my_states.pop(1))
    if world.rows is not None:
        world.my_rows += world.rows.alloc(3)
        world.rows.free(world.my_rows.pop(1))
    if cache is not None:
        for tail in ((2, 3), (4,), (5, 6)):
            options = {}
            if isinstance(cache, MambaRadixCache):
                options["mamba_value"] = torch.tensor([world.states.alloc_track_slot()])
            story.append(world.put(pages(size, 1, *tail), **options).prefix_len)
        story.append(cache.match_prefix(RadixKey(pages(size, 1, 5, 9))).indices.tolist())
        held = cache.inc_lock_ref(world.nodes[0])
        story.append(repr(cache.evict(3 * size, 1)))
        story.append(view_of(world))
        cache.dec_lock_ref(world.nodes[0], swa_boundary_id=held)
        story.append(repr(cache.evict(1)))
    check(world)
    return [*story, view_of(world)]


def interrupt_at_each(name: str, act: Act, at_instructions: bool, stride: int) -> Counter[str]:
    """Interrupt a call at each of its places, or at some, heal, and compare with new objects."""
    seen: Counter[str] = Counter()
    expected = story_of(empty_world(WORLDS[name]()))
    for nth in range(1, 10**6, stride):
        world = WORLDS[name]()
        interruption = Interruption(nth, at_instructions)
        if not interruption.during(lambda world=world: act(world)):  # type: ignore[misc]
            assert interruption.passed < nth
            return seen
        seen["interrupts"] += 1
        try:
            heal(world)
            assert story_of(world) == expected
        except Exception as error:
            error.add_note(f"interrupted at place {nth}")
            raise
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "at_instructions", "stride"),
    [
        *(pytest.param(name, False, 5, id=f"{name}, each fifth line") for name in QUICK_INTERRUPTS),
        *(
            pytest.param(name, at_instructions, 1, id=f"{name}, {places}", marks=pytest.mark.slow)
            for name in WORLDS
            if name != "others"
            for at_instructions, places in ((False, "lines"), (True, "instructions"))
        ),
    ],
)
def test_reset_and_clear_heal_whatever_an_interrupt_left(
    name: str, at_instructions: bool, stride: int
) -> None:
    """X7: neither raises, and both behave as new objects do."""
    seen: Counter[str] = Counter()
    for label, act in acts_of(WORLDS[name]()).items():
        try:
            seen += interrupt_at_each(name, act, at_instructions, stride)
        except Exception as error:
            error.add_note(label)
            raise
    assert seen["interrupts"] > 0
