"""Sound programs over pools that watch their caches: nothing is refused; and each wrong call is."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from pymllm.errors import OwnershipError
from pymllm.history.files import Config
from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.machines.prefix import PrefixMachine
from pymllm.mem_cache import (
    GDNPool,
    MambaRadixCache,
    RadixCache,
    RadixKey,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)

CONFIGURATIONS: list[tuple[str, Config]] = [
    (adapter, {**config, **sizes, "check_ownership": True})
    for adapter, config in (
        ("radix", {"window": None, "pool": "token"}),
        ("radix", {"window": None, "pool": "token", "policy": "lfu"}),
        ("radix-window", {"window": 6, "pool": "token"}),
        ("radix-window", {"window": 6, "pool": "swa"}),
        ("mamba", {"window": None, "pool": "token", "track_slots": 3}),
    )
    for sizes in (
        {"page_size": 1, "slots": 24, "swa_slots": 18},
        {"page_size": 4, "slots": 48, "swa_slots": 36},
    )
]

each_configuration = pytest.mark.parametrize(
    ("adapter", "config"),
    CONFIGURATIONS,
    ids=[f"{adapter}-{'-'.join(map(str, config.values()))}" for adapter, config in CONFIGURATIONS],
)


@each_configuration
def test_sound_calls_are_never_refused(adapter: str, config: Config) -> None:
    """R1, A5: cache and pool agree with the oracle, which knows of no owners, and the audit with both."""
    machine = make_machine(PrefixMachine, adapter, config)
    programs = max(1, settings.default.max_examples // 10)
    run_state_machine_as_test(machine, settings=settings(machine.TestCase.settings, max_examples=programs))
    examiner = drive(machine, 11, 150).examiner
    assert examiner.adapter.pool.owners.step > 50


@each_configuration
def test_an_engine_makes_sound_calls(adapter: str, config: Config) -> None:
    """E1: requests that are retracted, aborted and resumed give back what is theirs, and no more."""
    machine = make_machine(LifecycleMachine, adapter, config)
    examiner = drive(machine, 11, 120).examiner
    assert examiner.adapter.pool.owners.step > 20


class Sharing:
    """A program of two caches over one pool, which knows the slots of its own."""

    def __init__(self, kind: str, page_size: int, store: Any, draw: random.Random) -> None:
        self.draw, self.size = draw, page_size
        options: dict[str, Any] = {"check_ownership": True, "store": store}
        self.states: GDNPool | None = None
        self.pool: Any
        self.caches: list[Any]
        if kind == "window":
            self.pool = SWATokenToKVPoolAllocator(16 * page_size, 12 * page_size, "cpu", page_size, **options)
            self.caches = [RadixCache(page_size, 2 * page_size, self.pool) for _ in range(2)]
        else:
            self.pool = TokenToKVPoolAllocator(16 * page_size, "cpu", page_size, **options)
            self.caches = [RadixCache(page_size, None, self.pool) for _ in range(2)]
        if kind == "states":
            self.states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=5)
            self.caches = [MambaRadixCache(page_size, self.pool, self.states) for _ in range(2)]
        names = ["full_available_size", "swa_available_size"] if kind == "window" else ["available_size"]
        self.available = [getattr(self.pool, name) for name in names]
        self.sizes = [call() for call in self.available]
        self.mine: list[torch.Tensor] = []
        """Slots of the caller, a tensor for each page."""
        self.transfers: list[int] = []

    def play(self, steps: int) -> None:
        acts = [self.insert] * 4 + [self.insert_wrongly, self.free_wrongly, self.transfer, self.group]
        acts += [self.evict, self.free, self.reset]
        for _ in range(steps):
            self.draw.choice(acts)()
            for cache in self.caches:
                (check_mamba_radix_cache if self.states is not None else check_radix_cache)(cache)
        for transfer in self.transfers:
            self.pool.end_transfer(transfer)
        for cache in self.caches:
            cache.reset()
        self.free()
        assert [call() for call in self.available] == self.sizes

    def key(self) -> RadixKey:
        pages = [self.draw.randrange(2) for _ in range(self.draw.randint(1, 4))]
        return RadixKey([10 * page + at for page in pages for at in range(self.size)])

    def insert(self) -> None:
        cache, key = self.draw.choice(self.caches), self.key()
        hit = cache.match_prefix(key)
        boundary = cache.inc_lock_ref(hit.last_node)
        slots = self.pool.alloc(len(key) - hit.prefix_len)
        if slots is not None:
            options: dict[str, Any] = {}
            if self.states is not None and self.states.available_track_slots():
                options["mamba_value"] = torch.tensor([self.states.alloc_track_slot()])
            result = cache.insert(key, torch.cat([hit.indices, slots.long()]), **options)
            if result.mamba_exist:
                assert self.states is not None
                self.states.free_track_slot(int(options["mamba_value"]))
            adopted = {at for first, end in result.adopted for at in range(first, end)}
            for start in range(hit.prefix_len, len(key), self.size):
                if start not in adopted:
                    self.mine.append(slots[start - hit.prefix_len :][: self.size])
        cache.dec_lock_ref(hit.last_node, swa_boundary_id=boundary)

    def cached(self) -> torch.Tensor | None:
        """Return the slots of a page that some cache has."""
        owned = [page for cache in self.caches for page in sorted(cache._owner.pages())]
        if not owned:
            return None
        first = self.draw.choice(owned) * self.size
        return torch.arange(first, first + self.size)

    def insert_wrongly(self) -> None:
        """Insert, in a new namespace, slots that are cached or free, behind slots of the caller's."""
        wrong = self.cached()
        free = torch.arange(self.size, 17 * self.size)
        free = free[~self.pool.is_handed_out(free)][: self.size]
        if free.numel() and self.draw.random() < 0.5:
            wrong = free
        if wrong is not None:
            slots = torch.cat([*self.mine[:1], wrong])
            key = RadixKey(list(range(len(slots))), "wrong")
            with pytest.raises(OwnershipError, match=r"is cached already: node|is not handed out \("):
                self.draw.choice(self.caches).insert(key, slots)

    def free_wrongly(self) -> None:
        wrong = self.cached()
        if wrong is not None:
            calls = [self.pool.free, getattr(self.pool, "free_swa", self.pool.free)]
            with pytest.raises(OwnershipError, match="is cached: node"):
                self.draw.choice(calls)(torch.cat([*self.mine[:1], wrong]))

    def free(self) -> None:
        if self.mine:
            self.pool.free(torch.cat(self.mine))
            self.mine.clear()

    def evict(self) -> None:
        wanted = [self.draw.randrange(4) * self.size, self.draw.randrange(3) * self.size]
        self.draw.choice(self.caches).evict(*wanted)

    def reset(self) -> None:
        if self.draw.random() < 0.2:
            self.draw.choice(self.caches).reset()

    def transfer(self) -> None:
        """Begin a transfer of what a cache has, or end one."""
        slots = self.cached()
        if slots is not None and len(self.transfers) < 2:
            self.transfers.append(self.pool.begin_transfer(slots))
        elif self.transfers:
            self.pool.end_transfer(self.transfers.pop())

    def group(self) -> None:
        self.pool.free_group_begin()
        for act in (self.free, self.evict, self.insert, self.free_wrongly):
            act()
        self.pool.free_group_end()


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "window", "states"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=max(1, settings.default.max_examples // 4))
def test_wrong_calls_alone_are_refused(kind: str, page_size: int, store: str, seed: int) -> None:
    """A5, R1, R9: two caches share a pool; in groups, beside transfers, after evictions and resets."""
    Sharing(kind, page_size, store, random.Random(seed)).play(20)
