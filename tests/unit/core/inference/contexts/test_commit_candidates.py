"""What a step leaves for the cache, in the order in which it is kept."""

from __future__ import annotations

from pymllm.core.inference.contexts.commit_candidates import commit_candidates
from pymllm.core.inference.contexts.snapshot_offsets import Snapshots


def test_ends_come_first_then_the_deepest_then_the_lower_row() -> None:
    """C7: the order in which states are kept when slots run out."""
    left_by = {
        2: Snapshots((4, 8), (4, 8), (10, 11), 12, 12),
        3: Snapshots((4,), (8,), (20,), -1, 13),
        4: Snapshots((), (), (), 30, 16),
    }
    found = commit_candidates(left_by, 2, [2, 1, 0])
    assert [each.block for each in found] == [30, 12, 11, 20, 10]
    assert [each.source for each in found] == [-1, -1, 1, 2, 0]
    assert [each.row for each in found] == [4, 2, 2, 3, 2]


def test_a_shared_block_is_named_once() -> None:
    """C7: as the end of a prompt if it is one, else for the lower row."""
    left_by = {
        0: Snapshots((4,), (4,), (10,), -1, 9),
        1: Snapshots((4, 8), (4, 8), (10, 11), -1, 9),
        2: Snapshots((), (), (), 11, 8),
    }
    found = commit_candidates(left_by, 0, [1, 2, 0])
    assert [(each.block, each.row, each.source) for each in found] == [(11, 2, -1), (10, 0, 0)]


def test_sources_follow_what_was_extracted() -> None:
    """C7: requests outside the batch leave nothing, and requests that nobody remembers still have outputs."""
    left_by = {5: Snapshots((4, 8), (4, 8), (10, 11), -1, 9), 9: Snapshots((4,), (4,), (12,), -1, 9)}
    found = commit_candidates(left_by, 4, [3, 1])
    assert [(each.block, each.source) for each in found] == [(10, 3)]
    assert commit_candidates({}, 0, [1]) == []


def test_the_first_block_is_a_block_like_any_other() -> None:
    """C7: a prompt may end with block 0, and -1 alone stands for none."""
    left_by = {0: Snapshots((), (), (), 0, 4), 1: Snapshots((4,), (4,), (1,), -1, 9)}
    assert [each.block for each in commit_candidates(left_by, 0, [0, 1])] == [0, 1]
