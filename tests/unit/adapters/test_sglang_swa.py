"""The adapter of sglang's ``SWARadixCache``, which only older versions have."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.adapters.sglang.caches import SglangSWA
from pymllm.adapters.sglang.package import OLDER, require_version
from pymllm.errors import AdapterError
from pymllm.history.operations import Alloc, Evict, FreeSWA, Insert, Inspect, Key, Match, Reset, Span
from pymllm.history.outcomes import Done, Effect, Evicted, Inserted, Matched, Unsupported

CONFIG = SglangSWA.CONFIGURATIONS[0]


def why_missing() -> str:
    """Say why there is no such cache here; nothing where there is one."""
    try:
        require_version(OLDER)
    except ImportError as error:
        return str(error)
    return ""


def test_pages_are_single_tokens() -> None:
    """Larger ones need a kernel in these versions."""
    assert [(it["page_size"], it["sliding_window"]) for it in SglangSWA.CONFIGURATIONS] == [(1, 4), (1, 6)]


def test_it_runs_where_its_version_is_and_says_so_elsewhere() -> None:
    """R2, R5, X7: a small life; or the one line of somebody who has no such version."""
    missing = why_missing()
    if missing:
        with pytest.raises(AdapterError, match=missing.partition(";")[0]):
            make_adapter("sglang-swa")
        return
    adapter = make_adapter("sglang-swa", dict(CONFIG))
    adapter.apply(1, Alloc(3))
    assert adapter.apply(2, Insert(Key((1, 2, 3)), (Span(1, 0, 3),))).result == Inserted(0, ((0, 3),), 3)
    assert adapter.apply(3, Match(Key((1, 2)))).result == Matched((1, 2), 2, 2)
    evicted = adapter.apply(4, Evict(1))
    assert (evicted.result, evicted.effects) == (Evicted(1), (Effect("free", (3,)),))
    for step, operation in enumerate((FreeSWA(()), Inspect()), 5):
        assert isinstance(adapter.apply(step, operation).result, Unsupported)
    assert adapter.apply(7, Reset()).result == Done()
    assert adapter.apply(8, Reset()).sizes["available_size"] == 18
