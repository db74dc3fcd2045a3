"""What the requests of a step leave for the cache, the most valuable first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pymllm.core.inference.contexts.snapshot_offsets import Snapshots

__all__ = ["CommitCandidate", "commit_candidates"]


class CommitCandidate(NamedTuple):
    """One state, in the order in which candidates are kept when slots run out."""

    is_inside: bool
    """Whether it was extracted inside a chunk; states at the end of a prompt go first."""
    negative_depth: int
    """Tokens before it, negated: the deepest goes first."""
    row: int
    """Row of the request; the lower goes first."""
    block: int
    """The block that ends where the state is."""
    source: int
    """Row of the output buffers; -1 at the end of a prompt, where the live state is it."""


def commit_candidates(
    left_by: Mapping[int, Snapshots], first_row: int, extracted: Sequence[int]
) -> list[CommitCandidate]:
    """List what a prefill batch leaves, each block once.

    Requests that share a block have the same state there, so one of them is enough. Laws: C7.
    """
    found: list[CommitCandidate] = []
    source = 0
    for row, count in enumerate(extracted, first_row):
        left = left_by.get(row)
        if left is not None:
            inside = zip(left.depths[:count], left.blocks, strict=False)
            found += [CommitCandidate(True, -d, row, b, source + at) for at, (d, b) in enumerate(inside)]
            if left.end_block >= 0:
                found.append(CommitCandidate(False, -left.end_depth, row, left.end_block, -1))
        source += count
    best: dict[int, CommitCandidate] = {}
    for candidate in sorted(found):
        best.setdefault(candidate.block, candidate)
    return list(best.values())
