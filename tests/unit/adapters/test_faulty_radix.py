"""Wrong prefix caches: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_radix
from pymllm.adapters.faulty import Faulty
from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import (
    Alloc,
    Evict,
    Fault,
    Hash,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Operation,
    Reset,
    Span,
    Unlock,
)
from pymllm.mem_cache.radix_cache import RadixCache

ONE, TWO, OTHER, NAMED = Key((7,)), Key((7, 8)), Key((9,)), Key((7,), "a")
PAGE = Key((7, 8, 9, 10))


def insert(key: Key, step: int = 0, start: int = 100, short: int = 0) -> Insert:
    """Caches a key with slots of a step, or with mere numbers where there is no pool."""
    return Insert(key, (Span(step, start, start + len(key.tokens) - short),))


def own(key: Key, step: int, start: int = 0) -> Insert:
    return insert(key, step, start)


PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_radix.LockedVictims, (Alloc(1), own(ONE, 1), Lock(2), Evict(1))),
    (faulty_radix.LostAncestors, (insert(TWO), Lock(1), Match(ONE), Unlock(2))),
    (faulty_radix.NamespaceFallback, (insert(ONE), Match(NAMED))),
    (faulty_radix.OrphanHashes, (insert(TWO), Match(ONE), Hash(1))),
    (faulty_radix.BareNamespaces, (insert(NAMED), Hash(1))),
    (faulty_radix.GreedyEviction, (Alloc(2), own(ONE, 1), own(OTHER, 1, 1), Evict(1))),
    (faulty_radix.OneByOne, (Alloc(2), own(ONE, 1), own(OTHER, 1, 1), Evict(2))),
    (faulty_radix.RepeatedPages, (Alloc(4), own(PAGE, 1), Evict(1))),
    (faulty_radix.OpenCallbacks, (insert(ONE), Fault("reenter"), Evict(1))),
    (faulty_radix.LeavesOnly, (insert(ONE), insert(TWO, 0, 200))),
    (faulty_radix.HeldSlotsLost, (Alloc(1), own(ONE, 1), Lock(2), Reset())),
    (faulty_radix.GlobalIds, (insert(ONE), Inspect())),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """R5 to R7, X2, X3, X6, X7, K1, H2, H3: the last step breaks the law, and the sound sibling keeps it."""
    assert_caught(faulty, *program)


def test_every_class_is_shown() -> None:
    """No fault without a program."""
    shown = [faulty.__name__ for faulty, _ in PROGRAMS]
    assert sorted([*shown, "FaultyRadix"]) == sorted(faulty_radix.__all__)


@pytest.mark.parametrize("window", [None, 4])
def test_parts_are_put_into_an_otherwise_sound_cache(window: int | None) -> None:
    """Every part is of the kind that was asked for, and they know each other."""
    config = {"page_size": 1, "window": window, "pool": "none", "slots": 24, "swa_slots": 18}
    adapter = make_adapter("faulty-lost-ancestors", config)
    cache = adapter.cache  # type: ignore[attr-defined]
    assert type(cache) is RadixCache
    assert type(cache._tree) is faulty_radix.LostAncestors.TREE
    assert (cache._window is None) == (window is None)
    assert window is None or cache._window.tree is cache._tree
