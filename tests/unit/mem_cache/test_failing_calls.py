"""Whatever fails inside a call of a cache or pool, nothing is lost: each failing point, one at a time.

A share of the worlds is in the default suite; the rest is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pymllm.mem_cache import MambaRadixCache
from tests.failing_points import Failed, Sweep, watched_places
from tests.unit.mem_cache.warm_worlds import (
    WORLDS,
    Act,
    World,
    acts_of,
    check,
    give_everything_back,
    view_of,
)

QUICK = (
    ", checked, pages of 1",
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
