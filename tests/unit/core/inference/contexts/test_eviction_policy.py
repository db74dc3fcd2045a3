"""Policies by whatever name a context gives them."""

from __future__ import annotations

import enum

import pytest

from pymllm.core.inference.contexts.eviction_policy import PrefixCachingEvictionPolicy, is_lru


class Foreign(enum.Enum):
    """Another engine's enumeration."""

    REF_ZERO = 0
    LRU = 1


@pytest.mark.parametrize("policy", [PrefixCachingEvictionPolicy.LRU, Foreign.LRU, "lru", "LRU"])
def test_lru_is_known_by_its_name(policy: object) -> None:
    """Specification, blocks: the slot allocator works with any context."""
    assert is_lru(policy)


def test_a_policy_shows_itself_as_it_is_written() -> None:
    """A signature with a default stays readable."""
    assert repr(PrefixCachingEvictionPolicy.REF_ZERO) == "PrefixCachingEvictionPolicy.REF_ZERO"
    assert PrefixCachingEvictionPolicy("lru") is PrefixCachingEvictionPolicy.LRU


@pytest.mark.parametrize("policy", [PrefixCachingEvictionPolicy.REF_ZERO, Foreign.REF_ZERO, "ref_zero", None])
def test_all_else_is_not(policy: object) -> None:
    """C6: lowest ids go first then."""
    assert not is_lru(policy)
