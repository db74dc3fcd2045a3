"""Whether an eviction in an order of its own took more than its last victim explains (R5, S3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from pymllm.oracle.prefix_model import PrefixModel
from pymllm.oracle.prefix_pages import Path

__all__ = ["is_explained", "last_runs"]


def is_explained(
    model: PrefixModel, removed: Set[Path], tombstoned: Set[Path], tokens: int, alive_tokens: int
) -> bool:
    """Tell whether some last victim was still needed.

    A victim is a run of pages without a branch, as long as one node may be, with the dead pages that had to
    follow it (S4): those that were dead before, or lost their window a moment ago. Without some one of the
    runs taken, there must have been too little of something.

    Parameters
    ----------
    model : PrefixModel
        What was cached before.
    removed, tombstoned : set of Path
        What was taken.
    tokens, alive_tokens : int
        What was asked for.
    """
    if not removed and not tombstoned:
        return True
    alive = {path for path in removed | tombstoned if model.pages[path].alive}
    may_follow = {path for path in removed if alive_tokens > 0 or path not in alive}
    size = model.page_size
    return any(
        (len(removed) - len(run & removed)) * size < tokens
        or (len(alive) - len(run & alive)) * size < alive_tokens
        for taken in (removed, tombstoned)
        for run in last_runs(model, taken, may_follow)
    )


def _children(model: PrefixModel) -> dict[Path, list[Path]]:
    below: dict[Path, list[Path]] = {}
    for path in model.pages:
        below.setdefault(model.parent(path), []).append(path)
    return below


def last_runs(model: PrefixModel, taken: Set[Path], may_follow: Set[Path]) -> Iterator[set[Path]]:
    """Yield each run of taken pages that may have gone last, from one whose parent stays down.

    Parameters
    ----------
    model : PrefixModel
        What was cached before.
    taken : set of Path
        What was taken.
    may_follow : set of Path
        Pages that may have gone because those below them went; a run ends at a branch below any other.
    """
    below = _children(model)
    for top in taken:
        if model.parent(top) not in taken:
            yield from _runs_from([top], taken, may_follow, below)


def _runs_from(
    run: list[Path], taken: Set[Path], may_follow: Set[Path], below: Mapping[Path, list[Path]]
) -> Iterator[set[Path]]:
    while len(children := below.get(run[-1], [])) == 1 and children[0] in taken:
        run.append(children[0])
    branches = [child for child in children if child in taken] if run[-1] in may_follow else []
    for branch in branches:
        yield from _runs_from([*run, branch], taken, may_follow, below)
    if not branches:
        yield set(run)
