"""Faults of what leaves a radix tree: windows that die and come back, victims and their order."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant

_CACHE = "pymllm.mem_cache.radix_cache:RadixCache"
_TREE = "pymllm.mem_cache.radix_tree:RadixTree"
_WINDOW = "pymllm.mem_cache.sliding_window:SlidingWindow"
_WINDOW_PLAN = "pymllm.mem_cache.sliding_window:WindowPlan"
_WINDOW_INSERT = "pymllm.mem_cache.window_insert:WindowInsert"
_LEAF_PLAN = "pymllm.mem_cache.eviction:LeafPlan"
_VICTIMS = "pymllm.mem_cache.victims:InnerVictims"
_LATECOMERS = "pymllm.mem_cache.victim_order:_Latecomers"

FAULTS = (
    # -- windows ---------------------------------------------------------------------------------------------
    # S7: an insert answers with the node that a match would end at
    # Runs that are shorter than a window need room for several nodes in it
    plant("B31", "S1 S7", "radix-window", settings={"page_size": 1}).edit(
        f"{_WINDOW}.usable_part",
        "run, from_root = 0, False",
        "run, from_root = run if run < self.size else 0, False",
    ),
    plant("B34", "S7 X2", "radix-window").edit(
        f"{_WINDOW_INSERT}._plan_revivals", "moves=bool(node.lock_ref)", "moves=False"
    ),
    plant("B35", "S7 X2", "radix-window").edit(
        f"{_WINDOW_INSERT}._plan_revivals",
        "moves=bool(node.lock_ref)",
        "moves=bool(node.lock_ref) and floor > start",
    ),
    plant(
        "B40",
        "S3",
        "radix-window",
        note="a hold covers its own node's window (S5), so the skipped node is an inner one",
    ).edit(f"{_WINDOW_PLAN}.take_windows", "if node is None:", "if node is None or node.lock_ref:"),
    plant(
        "B41",
        "S3 R5 R8",
        "radix-window",
        note="what the specification decides of it: of one access, the end of the path goes last",
    ).edit(
        f"{_VICTIMS}.oldest_of_all",
        "return leaf if inner is None else older_of(leaf, inner)",
        "oldest = older_of(leaf, inner)\n"
        "then = [] if oldest is None else [*self.leaves, *self.inner]\n"
        "then = [node for node in then if node.last_access_time == oldest.last_access_time]\n"
        "return max(then, key=lambda node: node._depth, default=None)",
    ),
    plant("B43", "R8", "radix-window").edit(
        f"{_CACHE}.match_prefix", "self._stamp(path)", "self._stamp(path if self._window is None else [])"
    ),
    plant("B44", "S4 R5", "radix-window").edit(
        f"{_LEAF_PLAN}.take_leaves",
        "self.take(leaf)",
        "must_go, type(self)._must_go = type(self)._must_go, lambda plan, node: False\n"
        "self.take(leaf)\n"
        "type(self)._must_go = must_go",
    ),
    # S6: what is reported is taken off the evictable size, too
    plant("B46", "S3 S6", "radix-window").edit(
        f"{_WINDOW_PLAN}._note",
        "if node.swa_tombstone or",
        "if node.swa_tombstone:\n    self.alive_tokens += node._length\nif node.swa_tombstone or",
    ),
    plant(
        "B47",
        "S7 S6",
        "radix-window",
        note="it is the insert that takes every token but the last window's for dead",
    ).edit(
        f"{_WINDOW_INSERT}.__init__",
        "self._dead_until = min(max(evicted, walk.length), key.length)",
        "size = self._tree.page_size\n"
        "floor = (key.length - window.size) // size * size\n"
        "self._dead_until = min(max(evicted, walk.length, floor), key.length)",
    ),
    plant(
        "B193",
        "S1 R2 S7",
        "radix-window",
        note="no draft model: a lookup asks for one page more than a window",
    )
    .edit(
        f"{_WINDOW}.usable_part",
        "if from_root or run >= self.size:",
        "if from_root or run >= self.size + self.tree.page_size:",
    )
    .edit(
        f"{_WINDOW}.usable_part",
        "run + walk.shared >= self.size):",
        "run + walk.shared >= self.size + self.tree.page_size):",
    ),
    # -- victims ---------------------------------------------------------------------------------------------
    plant("B49", "R8", "radix").edit(
        f"{_CACHE}.match_prefix", "self._stamp(path)", "self._stamp(path[:-1] if into_partial else path)"
    ),
    plant("B50", "R8", "radix").edit(
        f"{_CACHE}.match_prefix",
        "self._stamp(path)",
        "self._stamp([*path, walk.partial] if into_partial else path)",
    ),
    plant(
        "B53",
        "R8 S3 R5",
        "radix-window",
        note="the node's number stands in for its address, so that the plant is reproducible",
    ).edit(
        f"{_VICTIMS}.oldest_of_all",
        "return leaf if inner is None else older_of(leaf, inner)",
        "oldest = older_of(leaf, inner)\n"
        "then = [] if oldest is None else [*self.leaves, *self.inner]\n"
        "then = [node for node in then if node.last_access_time == oldest.last_access_time]\n"
        "return min(then, key=lambda node: node.id, default=None)",
    ),
    plant("B55", "R8 X3", "radix").edit(
        f"{_TREE}.tick",
        "self.clock += 1.0",
        "self.exact = getattr(self, 'exact', 1.0) + 0.25\nself.clock = float(int(self.exact))",
    ),
    plant("B56", "R5 R8 X2", "radix")
    .edit(f"{_CACHE}._stamp", "tree.victims.touch(path)", "pass")
    .edit(
        f"{_LATECOMERS}.discard",
        "number = node.last_access_time",
        "number = next((n for n, held in self.at.items() if held is node), node.last_access_time)",
    ),
    plant("B58", "S3 R5 R6 X2", "radix-window").edit(f"{_VICTIMS}.touch", "inner.move(path)", "pass"),
    # What hangs below goes too, out of turn or held, or stays; or what walks the broken tree next fails.
    plant("B61", "R9 R6 S4 R5 R2 X2", "radix-window", settings={"pool": "swa"}).edit(
        f"{_WINDOW_PLAN}.take_windows",
        "if node in victims.leaves:",
        "below = node.children.values()\n"
        "if below and all(child.swa_tombstone for child in below):\n"
        "    node._order.discard(node)\n"
        "    self._choose(node)\n"
        "    continue\n"
        "if node in victims.leaves:",
    ),
    # S3: whoever asks for as much as the counter says does not get it
    plant("B62", "S6 S3", "radix-window").edit(
        f"{_WINDOW_PLAN}.commit_tombstones",
        "self._window.evictable_tokens -= node._length",
        "self._window.evictable_tokens -= 0 if node.swa_tombstone else node._length",
    ),
    plant("B65", "R5 R2", "radix").edit(f"{_LEAF_PLAN}.take", "tree.victims.promote(parent)", "pass"),
    plant("B124", "X2 X6", "radix", searchers=("sweep", "machine")).edit(
        f"{_CACHE}.evict",
        "self._tree.remove(plan.removed)\nself._notify(plan.removed)",
        "self._notify(plan.removed)\nself._tree.remove(plan.removed)",
    ),
    plant("B163", "X2 R5", "radix").edit(
        f"{_CACHE}._give_back",
        "return_slots(self.pool, self._tree, plan.removed)",
        "return_slots(self.pool, self._tree, plan.removed)\n"
        "return_slots(self.pool, self._tree, plan.removed)",
    ),
)
