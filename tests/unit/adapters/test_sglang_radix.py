"""The adapter of sglang's ``RadixCache``."""

from __future__ import annotations

import importlib.util

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.adapters.sglang.caches import SglangRadix
from pymllm.errors import AdapterError
from pymllm.history.operations import Alloc, Insert, Inspect, Key, Lock, Span
from pymllm.history.outcomes import Inspected
from tests.unit.adapters.sglang_versions import needs_sglang_newer

CONFIG = SglangRadix.CONFIGURATIONS[0]
is_missing = importlib.util.find_spec("sglang") is None


@pytest.mark.skipif(not is_missing, reason="sglang is installed")
def test_without_sglang_it_cannot_be_built_and_says_why() -> None:
    """The one line that ``pymllm verify --adapter sglang-radix`` prints then."""
    with pytest.raises(AdapterError, match="ImportError: sglang is not installed; tox -e peers installs it"):
        make_adapter("sglang-radix")


@needs_sglang_newer
def test_a_node_shows_what_it_holds() -> None:
    """Tokens, slots, holds, and no more memory than its slots take (X5)."""
    adapter = make_adapter("sglang-radix", CONFIG)
    adapter.apply(1, Alloc(2))
    adapter.apply(2, Insert(Key((1, 2)), (Span(1, 0, 2),)))
    adapter.apply(3, Lock(2))
    shown = adapter.apply(4, Inspect()).result
    assert isinstance(shown, Inspected)
    (node,) = shown.nodes
    assert (node.tokens, node.slots, node.lock_ref, node.kept_bytes) == ((1, 2), (1, 2), 1, 16)
    assert adapter.capabilities == {"pool", "extra_key", "inspect", "engine"}
