"""Which nodes an eviction takes, according to the model: whole nodes, least recent first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from radix_model import Path, RadixModel


@dataclass
class EvictPlan:
    """What an eviction takes, nodes named by their ends, in order of removal."""

    removed: list[Path] = field(default_factory=list)
    removed_pages: list[Path] = field(default_factory=list)
    tombstoned: list[Path] = field(default_factory=list)
    tombstoned_pages: list[Path] = field(default_factory=list)
    cascaded: list[Path] = field(default_factory=list)
    full_evicted: int = 0
    swa_evicted: int = 0


def nodes_of(model: RadixModel, ends: Iterable[Path]) -> dict[Path, list[Path]]:
    """Return the pages of each node, by the node's end."""
    ends = set(ends)
    nodes = {}
    for end in ends:
        run = [end]
        while len(run[0].tokens) > model.page_size and model.parent(run[0]) not in ends:
            run.insert(0, model.parent(run[0]))
        nodes[end] = run
    return nodes


def plan_evict(model: RadixModel, tokens: int, alive_tokens: int, ends: Iterable[Path]) -> EvictPlan:
    """Choose the victims (R5, S3, S4); nothing of it has happened yet.

    Parameters
    ----------
    model : RadixModel
        What is cached.
    tokens, alive_tokens : int
        ``num_tokens`` and ``swa_num_tokens``.
    ends : iterable of Path
        Where nodes end.
    """
    eviction = _Eviction(model, ends)
    while eviction.plan.full_evicted < tokens and eviction.remove_oldest_leaf():
        pass
    if model.window is not None:
        while eviction.plan.swa_evicted < alive_tokens and eviction.drop_oldest_window():
            pass
    return eviction.finish()


class _Eviction:
    """One eviction on a sketch of the nodes; the model itself stays as it is."""

    def __init__(self, model: RadixModel, ends: Iterable[Path]) -> None:
        self.model = model
        self.plan = EvictPlan()
        self.nodes = nodes_of(model, ends)
        self.dead = {end for end in self.nodes if not model.pages[end].alive}

    def _recency(self, end: Path) -> tuple[int, int]:
        return self.model.pages[end].access, len(end.tokens)

    def _above(self, end: Path) -> Path:
        return self.model.parent(self.nodes[end][0])

    def _is_leaf(self, end: Path) -> bool:
        return not any(self._above(other) == end for other in self.nodes)

    def _tokens(self, end: Path) -> int:
        return len(self.nodes[end]) * self.model.page_size

    def remove_oldest_leaf(self) -> bool:
        leaves = [end for end in self.nodes if self._is_leaf(end) and not self.model.locks(end)]
        if not leaves:
            return False
        self._remove(min(leaves, key=self._recency))
        return True

    def drop_oldest_window(self) -> bool:
        alive = [end for end in self.nodes if end not in self.dead and not self.model.swa_locks(end)]
        if not alive:
            return False
        victim = min(alive, key=self._recency)
        if self._is_leaf(victim):
            self._remove(victim)
        else:
            self.dead.add(victim)
            self.plan.tombstoned.append(victim)
            self.plan.swa_evicted += self._tokens(victim)
        return True

    def _remove(self, end: Path) -> None:
        assert not self.model.locks(end), "a leaf that may go has no hold"
        above = self._above(end)
        self.plan.full_evicted += self._tokens(end)
        if end not in self.dead and self.model.window is not None:
            self.plan.swa_evicted += self._tokens(end)
        self.plan.removed.append(end)
        self.plan.removed_pages.extend(self.nodes.pop(end))
        if above in self.dead and above in self.nodes and self._is_leaf(above):
            self.plan.cascaded.append(above)
            self._remove(above)

    def finish(self) -> EvictPlan:
        """Sort out nodes that were tombstoned first and removed by a cascade after."""
        plan = self.plan
        plan.tombstoned = [end for end in plan.tombstoned if end in self.nodes]
        plan.tombstoned_pages = [page for end in plan.tombstoned for page in self.nodes[end]]
        return plan
