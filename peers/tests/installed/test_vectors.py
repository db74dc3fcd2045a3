"""Vectors on other people's implementations: each that fails there shows a deviation that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import load_adapter
from pymllm.errors import AdapterError
from pymllm.vectors.play import play_on
from pymllm.vectors.run import load_all
from pymllm_peers import ADAPTERS

ROOT = Path(__file__).parents[3]
FILES = load_all(ROOT / "vectors" / "v1")
KNOWN = {
    "sglang-token": {"X4": "sglang/failed-alloc-merges"},
    "mllm-radix": {"R4": "mllm/evictable-size-drifts"},
    "mllm-rows": {"P1": "mllm/no-row-for-padding"},
    "minisgl-radix": {"R3": "minisgl/halves-share-their-slots"},
}
"""Laws of vectors that fail, and the finding that says why, by adapter."""


@pytest.mark.parametrize("entry", ADAPTERS, ids=lambda entry: entry.name)
def test_only_known_deviations_fail(entry: AdapterEntry) -> None:
    """By the laws of the vectors; each deviation has a page."""
    missing = entry.find_missing()
    if missing is not None:
        pytest.skip(missing)
    try:
        made = load_adapter(entry)
    except AdapterError as error:
        pytest.skip(str(error))
    failed = {}
    for vector in FILES[made.KIND][1]:
        played = play_on(vector, entry.name, made)
        if played.verdict == "failed":
            failed[vector.id] = (vector.law, played.why)
    known = KNOWN.get(entry.name, {})
    assert {law for law, _ in failed.values()} == set(known), failed
    assert all((ROOT / "peers" / "findings" / f"{finding}.md").is_file() for finding in known.values())
