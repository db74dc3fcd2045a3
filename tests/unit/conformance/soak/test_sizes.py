"""Larger configurations, by one table."""

from __future__ import annotations

from itertools import chain

import pytest

from pymllm.adapters.registry import OWN, AdapterEntry, load_adapter, make_adapter
from pymllm.conformance.machines import MACHINES
from pymllm.conformance.soak.sizes import SIZES, grow, is_fit_for, reach_of
from pymllm.history.files import Config


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_every_own_adapter_can_be_built_in_every_size(entry: AdapterEntry) -> None:
    """What the table grows is a configuration, and a larger one."""
    adapter = load_adapter(entry)
    for config in adapter.CONFIGURATIONS:
        for size in SIZES:
            grown = grow(adapter.KIND, config, size)
            if grown is not None:
                make_adapter(entry.name, grown).close()
                assert grown.keys() == config.keys()
                assert (grown == config) == (size == "tiny")


def test_what_is_no_number_does_not_grow() -> None:
    """A window that is not there stays away, and so does a cache without a pool from large trees."""
    config = {"slots": None, "swa_slots": True, "track_slots": 3, "pool": "token"}
    assert grow("prefix", config, "medium") == {**config, "track_slots": 12}
    assert grow("prefix", {"slots": 24, "pool": "none"}, "large") is None
    assert grow("prefix", {"slots": 24, "pool": "none"}, "medium") == {"slots": 192, "pool": "none"}
    assert grow("hashes", {}, "large") is None


def test_keys_reach_as_far_as_the_pool_is_large() -> None:
    """A page of a tiny pool is one, and what has no capacity keeps its lengths."""
    assert reach_of("prefix", {"slots": 24, "page_size": 1}) == 1
    assert reach_of("prefix", {"slots": 3072, "page_size": 4}) == 32
    assert reach_of("slots", {"pages": 3072}) == 256
    assert reach_of("slots", {"pages": None}) == 1
    assert reach_of("rows", {"max_reqs": 500}) == 1


def test_machines_with_an_engine_stay_out_of_large_pools() -> None:
    """Everywhere else all machines play."""
    entries = list(chain.from_iterable(MACHINES.values()))
    assert [it.name for it in entries if not is_fit_for(it, "large")] == ["LifecycleMachine"]
    assert all(is_fit_for(it, "medium") for it in entries)


def test_what_would_grow_beyond_its_limit_stays() -> None:
    """A program may declare as much as is allowed, and is played with that."""
    config: Config = {"page_size": 1, "pool": "token", "slots": 2**20, "window": None}
    assert grow("prefix", config, "tiny") == config
    assert grow("prefix", config, "medium") is None
