"""Bugs planted in keys, hashes and `RadixCache`."""

from __future__ import annotations

from plant import Plant
from planting import Edit

from pymllm.errors import LockError, OwnershipError

__all__ = ["PLANTS"]

_CACHE = "pymllm.mem_cache.radix_cache:RadixCache"
_TREE = "pymllm.mem_cache.radix_tree:RadixTree"
_WINDOW = "pymllm.mem_cache.sliding_window:SlidingWindow"
_WINDOW_PLAN = "pymllm.mem_cache.sliding_window:WindowPlan"
_WINDOW_INSERT = "pymllm.mem_cache.window_insert:WindowInsert"
_LEAF_PLAN = "pymllm.mem_cache.eviction:LeafPlan"
_VICTIMS = "pymllm.mem_cache.victim_order:VictimOrder"
_SAME_ACCESS = "pymllm.mem_cache.victim_order:_SameAccess"
_PAGED_KEY = "pymllm.mem_cache.radix_tree:PagedKey.of"
_KEYS = "pymllm.mem_cache.base_prefix_cache"

_HERE = "tests/meta/test_noticers.py::"
_UNIT = "tests/unit/mem_cache/"
_CACHE_TESTS = _UNIT + "test_radix_cache.py::"
_TREE_TESTS = _UNIT + "test_radix_tree.py::"
_EVICTION_TESTS = _UNIT + "test_eviction.py::"
_WINDOW_TESTS = _UNIT + "test_sliding_window.py::"
_INSERT_TESTS = _UNIT + "test_window_insert.py::"

_STRUCTURE = (
    Plant(
        "B01",
        ("R2", "R6"),
        (
            Edit(
                f"{_CACHE}.match_prefix", "path), last, last._depth)", "path), self._tree.root, last._depth)"
            ),
        ),
        _CACHE_TESTS + "TestLocks::test_hold_counts_on_the_whole_path",
    ),
    Plant(
        "B02",
        ("R2",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "path), last, last._depth)",
                "path), last if into_partial else last.parent or last, last._depth)",
            ),
        ),
        _CACHE_TESTS + "TestMatch::test_last_node_spells_the_prefix",
    ),
    Plant(
        "B04",
        ("R1", "R9"),
        (Edit(f"{_TREE}.walk", "// page_bytes * self.page_size", "// (key.width * BYTES_PER_ID)"),),
        _CACHE_TESTS + "TestMatch::test_pages_that_differ_in_their_last_token_are_siblings",
    ),
    Plant(
        "B05",
        ("R9", "S7"),
        (
            Edit(
                f"{_WINDOW_INSERT}._end_of_prefix",
                "return self._window.split(walk.partial, above)",
                "self._window.split(walk.partial, above)\nreturn walk.partial",
            ),
        ),
        _HERE + "test_windowed_branch_grows_from_the_common_prefix",
    ),
    Plant(
        "B07",
        ("X5",),
        (
            Edit(
                f"{_TREE}.split",
                "[:tokens].clone(), node.value[tokens:].clone()",
                "[:tokens], node.value[tokens:]",
            ),
        ),
        _TREE_TESTS + "TestSplit::test_halves_do_not_keep_the_whole_alive",
    ),
    Plant(
        "B08",
        ("X5",),
        (
            Edit(
                "pymllm.mem_cache.incoming_slots:copy_for_keeps",
                "part.clone() if part.dtype is torch.int64 else part.long()",
                "part.long()",
            ),
        ),
        _CACHE_TESTS + "TestInsert::test_tree_keeps_no_view_of_key_or_value",
    ),
)

_LOCKS = (
    Plant(
        "B13",
        ("R6",),
        (
            Edit(f"{_TREE}.hold", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
            Edit(f"{_TREE}.release", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
        ),
        _CACHE_TESTS + "TestEvict::test_locked_nodes_are_never_taken",
    ),
    Plant(
        "B14",
        ("R6",),
        (Edit(f"{_TREE}.check_held", "if not node._holds:", "if node._holds <= 1:"),),
        _CACHE_TESTS + "TestLocks::test_hold_counts_on_the_whole_path",
        shows_as=LockError,
    ),
    Plant(
        "B16",
        ("R7",),
        (
            Edit(
                f"{_TREE}.append",
                "self.evictable_tokens += length",
                "self.evictable_tokens += length - (len(parent.children) == 1) * parent._length",
            ),
        ),
        _CACHE_TESTS + "TestLocks::test_sizes_survive_a_child_of_a_leaf",
    ),
    Plant(
        "B19",
        ("S5", "S6"),
        (
            Edit(
                f"{_WINDOW}.hold",
                "for covered in self._window_of(node):",
                "for covered in [at for at in self.tree.path_to(node) if not at.swa_tombstone]:",
            ),
            Edit(
                f"{_WINDOW}.release",
                "for covered in self._window_of(node):",
                "for covered in [at for at in self.tree.path_to(node) if not at.swa_tombstone]:",
            ),
        ),
        _WINDOW_TESTS + "TestHolds::test_release_after_a_revival_is_exact",
    ),
    Plant(
        "B20",
        ("S5", "S6"),
        (
            Edit(
                f"{_WINDOW}.release",
                "for covered in self._window_of(node):",
                "for covered in [at for at in self.tree.path_to(node) if at.swa_lock_ref]:",
            ),
        ),
        _WINDOW_TESTS + "TestHolds::test_release_takes_nobody_elses_window",
        note="no early release of a window here: the release of a hold goes past its own window",
    ),
    Plant(
        "B23",
        ("S5",),
        (
            Edit(
                f"{_WINDOW}.split",
                "upper.swa_boundary_id, node.swa_boundary_id = node.swa_boundary_id, None",
                "pass  # the id stays with the lower half",
            ),
        ),
        _WINDOW_TESTS + "TestHolds::test_split_of_the_edge_node_keeps_its_id_on_top",
    ),
    Plant(
        "B25",
        ("S5",),
        (
            Edit(
                f"{_WINDOW}.split",
                "node.swa_boundary_id = node.swa_boundary_id, None",
                "node.swa_boundary_id = None, None",
            ),
        ),
        _WINDOW_TESTS + "TestHolds::test_split_of_the_edge_node_keeps_its_id_on_top",
    ),
    Plant(
        "B26",
        ("R6",),
        (
            Edit(f"{_TREE}.check_held", "if not node._holds:", "if not node.lock_ref:"),
            Edit(f"{_TREE}.release", "node._holds -= 1", "node._holds = max(0, node._holds - 1)"),
        ),
        _CACHE_TESTS + "TestLocks::test_release_without_a_hold_is_refused",
        note="no early release of a window here: the second release is of the whole hold",
    ),
)

_WINDOWS = (
    Plant(
        "B31",
        ("S1",),
        (
            Edit(
                f"{_WINDOW}.usable_part",
                "run, from_root = 0, False",
                "run, from_root = run if run < self.size else 0, False",
            ),
        ),
        _WINDOW_TESTS + "TestUsablePrefixes::test_alive_tokens_are_counted_from_the_last_tombstone",
    ),
    Plant(
        "B34",
        ("S7", "R6"),
        (Edit(f"{_WINDOW_INSERT}._plan_revivals", "moves=bool(node.lock_ref)", "moves=False"),),
        _INSERT_TESTS + "TestRevival::test_held_tombstone_keeps_its_slots_and_takes_the_halves",
    ),
    Plant(
        "B35",
        ("S7", "R6"),
        (
            Edit(
                f"{_WINDOW_INSERT}._plan_revivals",
                "moves=bool(node.lock_ref)",
                "moves=bool(node.lock_ref) and floor > start",
            ),
        ),
        _INSERT_TESTS + "TestRevival::test_held_tombstone_keeps_its_slots_and_takes_the_halves",
    ),
    Plant(
        "B40",
        ("S3",),
        (Edit(f"{_WINDOW_PLAN}.take_windows", "if node is None:", "if node is None or node.lock_ref:"),),
        _HERE + "test_held_node_loses_the_window_that_its_hold_does_not_cover",
        note="a hold covers its own node's window (S5), so the skipped node is an inner one",
    ),
    Plant(
        "B41",
        ("S3", "R8"),
        (Edit(f"{_SAME_ACCESS}.shallowest", "return by_depth[heap[0]]", "return by_depth[max(by_depth)]"),),
        _HERE + "test_window_of_a_path_dies_from_its_beginning",
        note="what the contract decides of it: of one access, the end of the path goes last",
    ),
    Plant(
        "B43",
        ("R8",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "self._stamp(path)",
                "self._stamp(path if self._window is None else [])",
            ),
        ),
        _HERE + "test_windowed_match_refreshes_what_it_returns",
    ),
    Plant(
        "B44",
        ("S4",),
        (
            Edit(
                f"{_LEAF_PLAN}.take_leaves",
                "self.take(leaf)",
                "must_go, self._must_go = self._must_go, lambda node: False\n"
                "self.take(leaf)\n"
                "self._must_go = must_go",
            ),
        ),
        _EVICTION_TESTS + "TestWindowTokens::test_tombstones_go_with_their_last_child",
    ),
    Plant(
        "B46",
        ("S3",),
        (
            Edit(
                f"{_WINDOW_PLAN}._forget",
                "if node.swa_tombstone or",
                "if node.swa_tombstone:\n    self.alive_tokens += node._length\nif node.swa_tombstone or",
            ),
        ),
        _EVICTION_TESTS + "TestWindowTokens::test_dead_tokens_count_as_full_only",
    ),
)

_EVICTION = (
    Plant(
        "B49",
        ("R8",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "self._stamp(path)",
                "self._stamp(path[:-1] if into_partial else path)",
            ),
        ),
        _CACHE_TESTS + "TestEvict::test_matched_half_of_a_split_node_is_young",
    ),
    Plant(
        "B50",
        ("R8",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "self._stamp(path)",
                "self._stamp([*path, walk.partial] if into_partial else path)",
            ),
        ),
        _CACHE_TESTS + "TestEvict::test_unmatched_rest_of_a_split_node_stays_old",
    ),
    Plant(
        "B53",
        ("R8", "X3"),
        (
            Edit(
                f"{_SAME_ACCESS}.shallowest",
                "return by_depth[heap[0]]",
                "return min(by_depth.values(), key=lambda node: node.id)",
            ),
        ),
        _HERE + "test_window_of_a_path_dies_from_its_beginning",
        note="the node's number stands in for its address, so that the plant is reproducible",
    ),
    Plant(
        "B55",
        ("R8", "X3"),
        (
            Edit(
                f"{_TREE}.tick",
                "self.clock += 1.0",
                "self.exact = getattr(self, 'exact', 1.0) + 0.25\nself.clock = float(int(self.exact))",
            ),
        ),
        _CACHE_TESTS + "TestRecencyAndIds::test_clock_is_logical",
    ),
    Plant(
        "B56",
        ("R5", "R8"),
        (
            Edit(f"{_CACHE}._stamp", "leaf = tree.is_evictable_leaf(path[-1])", "leaf = False"),
            Edit(
                f"{_VICTIMS}.discard",
                "number = node.last_access_time",
                "number = next((n for n, held in self._at.items() if held is node), node.last_access_time)",
            ),
        ),
        _CACHE_TESTS + "TestEvict::test_match_refreshes_what_it_returns",
    ),
    Plant(
        "B58",
        ("R8", "S3"),
        (
            Edit(
                f"{_WINDOW}.stamp",
                "if self._is_unlocked(node):",
                "if node.swa_lock_ref and not node.lock_ref:",
            ),
        ),
        _EVICTION_TESTS + "TestWindowTokens::test_inner_nodes_lose_their_window_and_stay",
    ),
    Plant(
        "B61",
        ("S3", "R9"),
        (
            Edit(
                f"{_WINDOW_PLAN}.take_windows",
                "if self.leaves.is_leaf(node):",
                "if node.children and all(child.swa_tombstone for child in node.children.values()):\n"
                "    self.leaves._choose(node)\n"
                "    continue\n"
                "if self.leaves.is_leaf(node):",
            ),
        ),
        _HERE + "test_node_above_tombstones_only_is_no_leaf",
    ),
    Plant(
        "B62",
        ("S6",),
        (
            Edit(
                f"{_WINDOW_PLAN}.commit_tombstones",
                "self._window.evictable_tokens -= node._length",
                "self._window.evictable_tokens -= 0 if node.swa_tombstone else node._length",
            ),
        ),
        _EVICTION_TESTS + "TestWindowTokens::test_inner_nodes_lose_their_window_and_stay",
    ),
    Plant(
        "B65",
        ("R5",),
        (Edit(f"{_LEAF_PLAN}.take", "tree.leaves.add(parent)", "pass"),),
        _CACHE_TESTS + "TestEvict::test_parents_become_leaves",
    ),
    Plant(
        "B124",
        ("X2", "X6"),
        (
            Edit(
                f"{_CACHE}.evict",
                "self._tree.remove(plan.removed)\nself._notify(plan.removed)",
                "self._notify(plan.removed)\nself._tree.remove(plan.removed)",
            ),
        ),
        _CACHE_TESTS + "TestFaults::test_all_callbacks_run_and_the_first_error_is_raised",
    ),
    Plant(
        "B163",
        ("X2", "A5"),
        (
            Edit(
                f"{_CACHE}._give_back",
                "self.pool.free(self._tree.hand_over(plan.removed))",
                "self.pool.free(self._tree.gather(plan.removed))\nself.pool.free(self._tree.gather(plan.removed))",
            ),
        ),
        _CACHE_TESTS + "TestEvict::test_victims_go_back_to_the_pool_in_one_call",
        shows_as=OwnershipError,
    ),
)

_ISOLATION = (
    Plant(
        "B136",
        ("H1",),
        (Edit(f"{_KEYS}:hash_token_ids", "+ raw).hexdigest()", "+ raw).hexdigest()[:4].ljust(64, '0')"),),
        _UNIT
        + "test_base_prefix_cache.py::TestHashes::test_page_hash_is_sha256_of_little_endian_tokens[list]",
    ),
    Plant(
        "B139",
        ("K1",),
        (
            Edit(
                _PAGED_KEY,
                "return cls(raw, namespace,",
                "return cls(raw, namespace and str(namespace),",
            ),
        ),
        _CACHE_TESTS + "TestMatch::test_namespaces_share_nothing",
        note="no adapter field here: a number and its digits become one namespace",
    ),
    Plant(
        "B140",
        ("K1",),
        (Edit(_PAGED_KEY, "return cls(raw, namespace,", "return cls(raw, None,"),),
        _CACHE_TESTS + "TestMatch::test_namespaces_share_nothing",
    ),
    Plant(
        "B142",
        ("H1",),
        (Edit(f"{_KEYS}:hash_bytes", "hashlib.sha256(data)", "hashlib.sha256(bytes(len(data)))"),),
        _UNIT + "test_base_prefix_cache.py::TestHashes::test_content_hash_is_the_first_8_bytes_unsigned",
        note="the content hash is there, but only the length of the content is in it",
    ),
    Plant(
        "B143",
        ("H2",),
        (Edit("pymllm.mem_cache.radix_tree:_chain", "hashlib.sha256(digest + raw", "hashlib.sha256(raw"),),
        _TREE_TESTS + "TestHashes::test_equal_pages_at_different_places_hash_differently",
    ),
    Plant(
        "B145",
        ("H3",),
        (Edit(f"{_TREE}.page_hashes", "else namespace_prior(at._namespace)", "else None"),),
        _TREE_TESTS + "TestHashes::test_namespace_seeds_the_first_page",
    ),
    Plant(
        "B146",
        ("H2",),
        (Edit(f"{_TREE}.split", "pages = tokens // self.page_size", "pages = tokens"),),
        _TREE_TESTS + "TestSplit::test_split_divides_the_hashes",
    ),
    Plant(
        "B155",
        ("R2",),
        (
            Edit(
                f"{_TREE}.gather",
                "torch.empty(0, dtype=torch.int64, device",
                "torch.empty(0, dtype=torch.int32, device",
            ),
        ),
        _CACHE_TESTS + "TestMatch::test_empty_cache_matches_nothing",
    ),
)

PLANTS = (*_STRUCTURE, *_LOCKS, *_WINDOWS, *_EVICTION, *_ISOLATION)
