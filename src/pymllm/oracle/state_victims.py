"""What an eviction from a hybrid cache takes: in strict order exactly one set, otherwise no more than needed.

A node ends wherever there is a state, a branch or the end of a hold. So the run of pages that goes with a
leaf is the same however nodes are cut: up to a page with a state, with another child, or with a hold (M5).
"""

from __future__ import annotations

from collections.abc import Set

from pymllm.oracle.prefix_excess import last_runs
from pymllm.oracle.prefix_model import PrefixModel
from pymllm.oracle.prefix_pages import Path
from pymllm.oracle.prefix_victims import Taken
from pymllm.oracle.state_ends import StateEnds

__all__ = ["is_state_eviction_explained", "plan_state_eviction"]


def plan_state_eviction(model: PrefixModel, ends: StateEnds, tokens: int, states: int) -> Taken:
    """Return what an eviction in strict order of recency takes (R5, R8, M5).

    Parameters
    ----------
    model : PrefixModel
        What is cached; stays as it is.
    ends : StateEnds
        Its states; stay as they are.
    tokens, states : int
        ``num_tokens`` and ``swa_num_tokens``, which counts states here.
    """
    sketch = _Sketch(model, ends)
    sketch.take_leaves(tokens)
    sketch.take_states(states)
    removed = tuple(sketch.removed)
    return Taken(
        removed,
        frozenset(),
        len(removed) * model.page_size,
        0,
        frozenset(sketch.cascaded),
        frozenset(sketch.states),
    )


class _Sketch:
    """The cache as it will be while victims are chosen."""

    def __init__(self, model: PrefixModel, ends: StateEnds) -> None:
        self.model = model
        self.left = dict(model.pages)
        self.children = model.children.copy()
        self.ends = set(ends.slots)
        self.unlocked = self.ends.difference(hold.path for hold in model.holds.values())
        self.removed: list[Path] = []
        self.states: set[Path] = set()
        self.cascaded: set[Path] = set()

    def take_leaves(self, tokens: int) -> None:
        """Remove least recent leaves until enough is gone (R5)."""
        while len(self.removed) * self.model.page_size < tokens:
            # Locks are looked at first: they ask for no hash of a path, which is one of all its tokens.
            unlocked = [path for path, page in self.left.items() if not page.locks]
            leaves = [path for path in unlocked if not self.children.get(path)]
            if not leaves:
                return
            self._remove(min(leaves, key=self._recency))

    def take_states(self, states: int) -> None:
        """Free least recent states until enough are gone, a leaf with its KV (M5)."""
        while len(self.states) < states:
            unlocked = self.unlocked & self.ends
            if not unlocked:
                return
            victim = min(unlocked, key=self._recency)
            if self.children.get(victim):
                self._drop_state(victim)
            else:
                self._remove(victim)

    def _recency(self, path: Path) -> tuple[int, int]:
        return self.left[path].access, len(path.tokens)

    def _remove(self, leaf: Path) -> None:
        above = self._unlink(leaf)
        while above in self.left and not self.children.get(above) and above not in self.ends:
            if self.left[above].locks:
                return
            self.cascaded.add(above)
            above = self._unlink(above)

    def _unlink(self, leaf: Path) -> Path:
        above = self.model.parent(leaf)
        self.removed.append(leaf)
        del self.left[leaf]
        self.children[above] -= 1
        if leaf in self.ends:
            self._drop_state(leaf)
        return above

    def _drop_state(self, path: Path) -> None:
        self.ends.remove(path)
        self.states.add(path)


def is_state_eviction_explained(
    model: PrefixModel, removed: Set[Path], states: Set[Path], tokens: int, wanted: int
) -> bool:
    """Tell whether some last victim of an eviction in an order of its own was still needed.

    Parameters
    ----------
    model : PrefixModel
        What was cached before.
    removed, states : set of Path
        Pages, and states with their pages or without, that were taken.
    tokens, wanted : int
        How many tokens and states were asked for.

    Notes
    -----
    As `pymllm.oracle.prefix_excess.is_explained`; the last victim may also be a state alone.
    """
    if not removed and not states:
        return True
    if states - removed and len(states) <= wanted:
        return True
    return any(
        (len(removed) - len(run)) * model.page_size < tokens or len(states - run) < wanted
        for run in last_runs(model, removed, removed)
    )
