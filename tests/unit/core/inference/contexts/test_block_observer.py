"""The observer of blocks runs on committed books and changes none."""

from __future__ import annotations

import pytest

from pymllm.core.inference.contexts.block_observer import BlockObserver


def test_nobody_is_told_where_nobody_asked() -> None:
    """X2, X6: calls stay welcome, and the next observer hears of its own blocks only."""
    observer = BlockObserver()
    observer.run(None, [1], {2})
    observer.refuse("reset")
    heard: list[tuple[list[int], set[int]]] = []
    observer.run(lambda blocks, hashes: heard.append((blocks, hashes)), [3], {4})
    assert heard == [([3], {4})]


def test_calls_are_refused_only_while_it_runs() -> None:
    """X6: also after it raised, they are welcome again."""
    observer = BlockObserver()
    seen: list[tuple[list[int], set[int]]] = []

    def watch(blocks: list[int], hashes: set[int]) -> None:
        seen.append((blocks, hashes))
        observer.refuse("reset")

    with pytest.raises(RuntimeError, match="reset was called from inside"):
        observer.run(watch, [1], {2})
    assert seen == [([1], {2})]
    observer.refuse("reset")
