"""One radix cache beside its model: every operation is predicted, run, and compared.

`RadixExaminer` offers the operations, each of which ends with a comparison of everything that can be
seen. What to do when is the business of `radix_machine`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from radix_caller import Caller, RadixConfig, expect
from radix_comparison import compare_edges, compare_nodes, compare_pages, compare_recency
from radix_keys import clobber, hash_pages, make_container
from radix_model import InsertPlan, Match, NotUsableError, Path, RadixModel
from radix_situations import met_by_evict, met_by_insert, met_by_match, met_by_split
from radix_victims import EvictPlan, plan_evict
from radix_view import observe, path_of

from pymllm.errors import LockError, StaleNodeError
from pymllm.invariants.radix_cache import check_radix_cache
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.radix_cache import RadixCache

PoolCalls = list[tuple[str, list[int]]]


class CallbackError(Exception):
    """What an eviction callback raises here."""


class RadixExaminer:
    """A cache, its model and its caller.

    Attributes
    ----------
    nodes : dict of Path to node
        Every node of the tree, by its end, as of the last comparison.
    stale : list of node
        Some that left the tree.
    tokens : dict of int to int or None
        What `inc_lock_ref` returned, by number of the hold.
    reached : Counter of str
        How often each situation of `radix_situations` was met.
    """

    def __init__(self, config: RadixConfig) -> None:
        self.config = config
        self.caller = Caller(config)
        pool = self.caller.pool
        self.model = RadixModel(
            config.page_size, config.window, has_pool=pool is not None, can_move=config.pool == "swa"
        )
        self.cache = RadixCache(config.page_size, config.window, pool, self._on_node_evict)
        self.reached: Counter[str] = Counter()
        self.nodes: dict[Path, Any] = {}
        self.stale: list[Any] = []
        self.tokens: dict[int, Any] = {}
        self.released: list[tuple[Path, Any, Any]] = []
        self.callback_raises = False
        self._removed_ids: list[int] = []
        self._sizes_in_callback: list[dict[str, int]] = []
        self._hold_count = 0
        self._last_id = self.cache.root_node.id
        self._may_split: set[Path] = set()
        self.verify()

    @property
    def holds(self) -> list[int]:
        """The outstanding holds, by number."""
        return list(self.model.holds)

    def note(self, situation: str, met: object = True) -> None:
        """Count a situation as met."""
        if met:
            self.reached[situation] += 1

    def _note_all(self, met: Mapping[str, object]) -> None:
        for situation, truth in met.items():
            self.note(situation, truth)

    def _on_node_evict(self, node_id: int) -> None:
        self._removed_ids.append(node_id)
        self._sizes_in_callback.append(self._sizes())
        if self.callback_raises:
            raise CallbackError(node_id)

    # -- match ---------------------------------------------------------------------------------

    def match(self, key: Path, style: int) -> Match:
        """Match a key given in one of the documented containers."""
        expected = self.model.match(key)
        container = make_container(key, style)
        result = self.cache.match_prefix(RadixKey(container, key.space.extra_key))
        clobber(container)
        assert result.indices.dtype == torch.int64
        assert result.indices.tolist() == list(expected.slots), "R2: other indices"
        assert result.prefix_len == len(expected.slots), "R2: another length"
        self._check_last_node(result.last_node, expected.path)
        clobber(result.indices)
        self._may_split = {expected.path}
        self._note_all(met_by_match(self.model, self.nodes, key, expected))
        self.verify()
        return expected

    def _check_last_node(self, node: Any, path: Path) -> None:
        expected = path if path.tokens else None
        assert path_of(self.cache, node) == expected, "R2, R3: last_node spells another prefix"

    # -- insert --------------------------------------------------------------------------------

    def allocate(self, tokens: int, *, inside_request: bool = False) -> list[int] | None:
        """Take whole pages for so many tokens, evicting what is missing; nothing if that is not enough."""
        slots = self.caller.allocate(tokens)
        if slots is None:
            self.note("an eviction runs inside a request", inside_request)
            self.evict(*self.caller.shortage(tokens))
            slots = self.caller.allocate(tokens)
        self.note("memory runs out inside a request", inside_request and slots is None)
        return slots

    def insert(
        self,
        key: Path,
        style: int,
        slots: Sequence[int],
        protected: int = 0,
        evicted: int = 0,
        refuse: str = "",
    ) -> InsertPlan:
        """Insert slots; with ``refuse``, the pool refuses the call of that name if it is made."""
        plan = self.model.plan_insert(key, slots, set(self.nodes), protected, evicted)
        expected = self._pool_calls_of_insert(plan)
        container, value = make_container(key, style), self._make_value(slots, style)
        wrapped = RadixKey(container, key.space.extra_key)
        kwargs = {"prev_prefix_len": protected, "swa_evicted_seqlen": evicted}
        self._may_split = plan.splits
        if refuse in [name for name, _ in expected]:
            self.caller.refuse(refuse, lambda: self.cache.insert(wrapped, value, **kwargs))
            self._settle_refused_insert(plan, refuse)
            return plan
        result = self.cache.insert(wrapped, value, **kwargs)
        clobber(container)
        clobber(value)
        assert result.prefix_len == plan.prefix_len, "R3: another prefix_len"
        assert result.adopted == plan.adopted, "R4: other ranges adopted"
        assert result.mamba_exist is False
        self._check_last_node(result.last_node, plan.last)
        assert self.caller.take_calls() == expected, "X2: other calls to the pool"
        self._note_all(met_by_insert(self.model, self.caller, key, slots, plan))
        self.model.commit_insert(plan)
        for start, end in plan.adopted:
            self.caller.lose(slots[start:end])
        self.caller.hands.update(dict.fromkeys(plan.moves, False))
        self.verify()
        return plan

    def insert_token_ids(self, key: Path, style: int) -> None:
        """Insert without slots: the token ids serve (R1)."""
        plan = self.model.plan_insert(key, [int(str(t)) for t in key.tokens], set(self.nodes))
        self._may_split = plan.splits
        result = self.cache.insert(RadixKey(make_container(key, style), key.space.extra_key))
        assert (result.prefix_len, result.adopted) == (plan.prefix_len, plan.adopted)
        self._check_last_node(result.last_node, plan.last)
        self.model.commit_insert(plan)
        self.verify()

    def _make_value(self, slots: Sequence[int], style: int) -> torch.Tensor:
        value = torch.tensor(slots, dtype=torch.int32 if style % 2 else torch.int64)
        return value.repeat_interleave(2)[::2] if style % 3 else value  # callers pass views of rows, too

    def _pool_calls_of_insert(self, plan: InsertPlan) -> PoolCalls:
        calls = []
        if plan.moved:
            calls.append(("move_swa", sorted([*plan.moves.keys(), *plan.moves.values()])))
        if plan.displaced:
            calls.append(("free", sorted(plan.displaced)))
        return calls

    def _settle_refused_insert(self, plan: InsertPlan, refused: str) -> None:
        """Follow X2: halves that were moved stay moved, and nothing else happened."""
        moves = [call for call in self._pool_calls_of_insert(plan) if call[0] == "move_swa" != refused]
        assert self.caller.take_calls() == moves, "X2: move_swa comes first"
        if moves:
            self.model.commit_moves(plan)
            self.caller.hands.update(dict.fromkeys(plan.moves, False))
        under_hold = refused == "move_swa"
        self.note(f"the pool refuses {'a revival under a hold' if under_hold else 'displaced slots'}")
        self.verify()

    # -- evict ---------------------------------------------------------------------------------

    def evict(self, tokens: int, window_tokens: int, refuse: str = "") -> None:
        """Evict; with ``refuse``, the pool refuses the call of that name if it is made."""
        locked_out = tokens > 0 and self.model.pages and not self.model.sizes()["evictable_size"]
        self.note("everything is locked and an eviction is asked for", locked_out)
        plan = plan_evict(self.model, tokens, window_tokens, self.nodes)
        expected = self._pool_calls_of_evict(plan)
        self._removed_ids, self._sizes_in_callback = [], []
        if refuse in [name for name, _ in expected]:
            self.caller.refuse(refuse, lambda: self.cache.evict(tokens, window_tokens))
            self._settle_refused_evict(plan, expected)
            return
        self._run_eviction(plan, tokens, window_tokens)
        assert self.caller.take_calls() == expected, "R5, S3, X2: other slots, or other calls to the pool"
        removed = [self.nodes[end].id for end in plan.removed]
        assert self._removed_ids == removed, "R5: other nodes, or another order"
        self._note_all(met_by_evict(self.model, plan, tokens))
        self._drop(plan.removed)
        self.model.commit_evict(plan.removed_pages, plan.tombstoned_pages)
        in_books = all(sizes == self._sizes() for sizes in self._sizes_in_callback)
        assert in_books, "X6: a callback ran before the books were written"
        self.verify()

    def _run_eviction(self, plan: EvictPlan, tokens: int, window_tokens: int) -> None:
        if self.callback_raises and plan.removed:
            error = expect(CallbackError, lambda: self.cache.evict(tokens, window_tokens))
            assert error.args == (self.nodes[plan.removed[0]].id,), "X2: not the first callback's error"
            self.note("a callback raises")
            return
        result = self.cache.evict(tokens, window_tokens)
        assert result.full_evicted == plan.full_evicted, "R5: another number of tokens"
        assert result.swa_evicted == plan.swa_evicted, "S3: another number of window tokens"
        assert result.mamba_evicted == 0

    def _pool_calls_of_evict(self, plan: EvictPlan) -> PoolCalls:
        calls = []
        if plan.tombstoned and self.config.pool == "swa":
            calls.append(("free_swa", self._slots_of(plan.tombstoned_pages)))
        if plan.removed and self.caller.pool is not None:
            calls.append(("free", self._slots_of(plan.removed_pages)))
        return calls

    def _slots_of(self, pages: Iterable[Path]) -> list[int]:
        return sorted(slot for page in pages for slot in self.model.pages[page].slots)

    def _settle_refused_evict(self, plan: EvictPlan, expected: PoolCalls) -> None:
        """Follow X2: what the pool took is gone, and what it has not taken is still in the tree."""
        taken = self.caller.take_calls()
        assert all(call in expected for call in taken), "X2: calls that were not planned"
        names = [name for name, _ in taken]
        removed = "free" in names
        dead = plan.tombstoned_pages if "free_swa" in names else []
        if self.config.pool != "swa" and not removed:
            # No pool call says whether tombstoning came before the refusal: both are allowed.
            seen = observe(self.cache)
            dead = [page for page in plan.tombstoned_pages if not seen[page].alive]
        ids = [self.nodes[end].id for end in plan.removed] if removed else []
        assert self._removed_ids == ids, "X2: callbacks for what was not removed"
        self._drop(plan.removed if removed else [])
        self.model.commit_evict(plan.removed_pages if removed else [], dead)
        self.note("the pool refuses an eviction")
        self.verify()

    def _drop(self, ends: Iterable[Path]) -> None:
        self.stale = [*self.stale, *(self.nodes.pop(end) for end in ends)][-8:]

    # -- holds ---------------------------------------------------------------------------------

    def lock(self, path: Path) -> int | None:
        """Hold the node that ends a path; return the hold's number, or nothing where it must be refused."""
        node = self.nodes[path]
        try:
            hold = self.model.plan_lock(path)
        except NotUsableError:
            expect(ValueError, lambda: self.cache.inc_lock_ref(node))
            self.note("a hold is refused on a dead window")
            self.verify()
            return None
        token = self.cache.inc_lock_ref(node)
        edge = path.upto(hold.edge)
        self._may_split = {edge}
        self.note("a hold splits at the edge of its window", hold.edge and edge not in self.nodes)
        assert (token is None) == (hold.edge == 0), "S5: a token where the window ends inside the path"
        self.note("a hold's window covers the whole path", self.config.window is not None and not hold.edge)
        for other, taken in self.model.holds.items():
            if hold.edge and taken.edge:
                shared = self._edge_page(hold.path, hold.edge) == self._edge_page(taken.path, taken.edge)
                assert (self.tokens[other] == token) == shared, "S5: the token is the edge node's"
                self.note("two holds share an edge", shared)
        self._hold_count += 1
        self.model.holds[self._hold_count] = hold
        self.tokens[self._hold_count] = token
        self.verify()
        return self._hold_count

    def _edge_page(self, path: Path, edge: int) -> Path:
        return path.upto(edge + self.config.page_size)

    def unlock(self, number: int) -> None:
        """Release a hold with its own token."""
        taken, token = self.model.holds.pop(number), self.tokens.pop(number)
        node = self.nodes[taken.path]
        if token is None and number % 2:
            self.cache.dec_lock_ref(node)
        else:
            self.cache.dec_lock_ref(node, swa_boundary_id=token)
        self.released = [*self.released[-7:], (taken.path, node, token)]
        self.verify()

    def unlock_refused(self, node: Any, token: Any, error: type[Exception] = LockError) -> None:
        """Release what cannot be released: an error, and nothing has changed."""
        expect(error, lambda: self.cache.dec_lock_ref(node, token))
        self.verify()

    def use_refused(self, node: Any, way: int) -> None:
        """Use a node that is not in the tree: an error, and nothing has changed."""
        call = (self.cache.inc_lock_ref, self.cache.dec_lock_ref, self.cache.compute_node_hash)[way]
        expect(StaleNodeError, lambda: call(node))
        self.verify()

    # -- the rest ------------------------------------------------------------------------------

    def hash_node(self, path: Path) -> None:
        """Hash a node and compare with the chain computed from its path alone (H2, H3)."""
        hashes = self.cache.compute_node_hash(self.nodes[path])
        own = len(self.nodes[path].value) // self.config.page_size
        assert hashes == hash_pages(path, self.config.page_size)[-own:], "H2: not the chain of the path"
        self.verify()

    def reset(self, refuse: str = "") -> None:
        """Start again from nothing, whatever is held (X7)."""
        self.note("a reset with holds outstanding", self.model.holds)
        old_root = self.cache.root_node
        everything = self.model.reset()
        self._removed_ids = []
        if refuse and everything:
            self.caller.refuse(refuse, self.cache.reset)
            self.caller.find(everything)
            self.note("the pool refuses a reset")
        else:
            self.cache.reset()
        freed = [slot for name, slots in self.caller.take_calls() if name == "free" for slot in slots]
        wanted = [] if refuse or self.caller.pool is None else everything
        assert sorted(freed) == sorted(wanted), "X7: every slot goes back, once"
        assert self._removed_ids == [], "X7: a reset calls no callback"
        self.cache.dec_lock_ref(old_root)
        self._drop(list(self.nodes))
        self.tokens.clear()
        self.verify()

    def finish(self) -> None:
        """Release and evict everything: the pool is whole again (E3)."""
        for hold in self.holds:
            self.unlock(hold)
        self.caller.give_back(list(self.caller.hands))
        self.evict(self.cache.total_size(), 0)
        assert not self.model.pages, "R5: not everything could be evicted"
        self.reset()

    # -- comparing -----------------------------------------------------------------------------

    def _sizes(self) -> dict[str, int]:
        return {name: getattr(self.cache, name)() for name in self.model.sizes()}

    def verify(self) -> None:
        """Compare everything that can be seen with the model, and walk the cache's inside."""
        seen = observe(self.cache)
        ends = {path: page.node for path, page in seen.items() if page.ends_node}
        compare_pages(self.model, seen)
        compare_recency(self.model, seen)
        for path in compare_nodes(self.nodes, ends, self._may_split):
            assert ends[path].id > self._last_id, f"X3: id {ends[path].id} was used before"
            self._note_all(met_by_split(self.model, self.nodes, path, seen))
        compare_edges(self.model, seen, ends, self.tokens)
        self._last_id = max([self._last_id, *(node.id for node in ends.values())])
        self.nodes, self._may_split = ends, set()
        assert self._sizes() == self.model.sizes(), "R7, S6: a size is not the recount"
        assert self.caller.take_calls() == [], "R6, S2: a call to the pool that nobody expected"
        self.caller.compare_owners(self.model.pages)
        check_radix_cache(self.cache)
