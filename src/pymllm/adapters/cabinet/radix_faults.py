"""Faults of the prefix trees: structure, locks, keys and hashes, and states beside the KV."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant

_CACHE = "pymllm.mem_cache.radix_cache:RadixCache"
_TREE = "pymllm.mem_cache.radix_tree:RadixTree"
_WINDOW = "pymllm.mem_cache.sliding_window:SlidingWindow"
_WINDOW_INSERT = "pymllm.mem_cache.window_insert:WindowInsert"
_PAGED_KEY = "pymllm.mem_cache.radix_tree:PagedKey.of"
_KEYS = "pymllm.mem_cache.base_prefix_cache"
_HYBRID = "pymllm.mem_cache.mamba_radix_cache:MambaRadixCache"
_CACHED = "pymllm.mem_cache.cached_states:CachedStates"

FAULTS = (
    # -- structure -------------------------------------------------------------------------------------------
    plant("B01", "R2 R6", "radix").edit(
        f"{_CACHE}.match_prefix", "path), last, last._depth)", "path), self._tree.root, last._depth)"
    ),
    plant("B02", "R2", "radix").edit(
        f"{_CACHE}.match_prefix",
        "path), last, last._depth)",
        "path), last if into_partial else last.parent or last, last._depth)",
    ),
    # A child that stands under the wrong page is not found, and what is added in its place collides.
    plant("B04", "R1 R3 R9 R2 X2", "radix").edit(
        f"{_TREE}.walk", "// page_bytes * self.page_size", "// (key.width * BYTES_PER_ID)"
    ),
    plant("B05", "R9 S7 R3", "radix-window").edit(
        f"{_WINDOW_INSERT}._end_of_prefix", "return cut.upper", "return cut.node"
    ),
    plant("B07", "X5", "radix").edit(
        f"{_TREE}._divide_slots",
        "[:tokens].clone(), node._value[tokens:].clone()",
        "[:tokens], node._value[tokens:]",
    ),
    plant("B08", "X5 R3", "radix")
    .edit(
        "pymllm.mem_cache.incoming_slots:copy_for_keeps",
        "part.clone() if part.dtype is torch.int64 else part.long()",
        "part.long()",
    )
    .edit(
        "pymllm.mem_cache.incoming_slots:copy_for_tree", ".astype(np.int64)", ".astype(np.int64, copy=False)"
    ),
    plant(
        "B176", "R10", "radix", note="eviction goes by recency alone here; R10 counts the hits of each page"
    ).edit(f"{_CACHE}.match_prefix", "node.hit_count += 1", "pass"),
    plant(
        "B194",
        "R2",
        "radix",
        settings={"page_size": 4},
        note="one token is dropped before the key is cut down to whole pages",
    ).edit(
        f"{_CACHE}.match_prefix",
        "walk = tree.walk(PagedKey.of(key, self.page_size))",
        "PagedKey.of(key, self.page_size)\n"
        "shorter = type(key)(key.token_ids[:-1], key.extra_key)\n"
        "walk = tree.walk(PagedKey.of(shorter, self.page_size))",
    ),
    plant(
        "B205",
        "R10 X2",
        "radix-window",
        note="what counts hits before it knows whether it is refused is an insert with a window",
    ).edit(
        f"{_CACHE}._insert_windowed",
        "walk = self._tree.walk(paged)",
        "walk = self._tree.walk(paged)\nfor node in walk.path:\n    node.hit_count += 1",
    ),
    # -- locks -----------------------------------------------------------------------------------------------
    plant("B13", "R6", "radix")
    .edit(f"{_TREE}.hold", "at: NodeT | None = node", "at: NodeT | None = node.parent")
    .edit(f"{_TREE}.release", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
    plant("B14", "R6", "radix").edit(f"{_TREE}.check_held", "if not node._holds:", "if node._holds <= 1:"),
    plant("B16", "R7", "radix").edit(
        f"{_TREE}.append",
        "self.evictable_tokens += length",
        "self.evictable_tokens += length - (len(parent.children) == 1) * parent._length",
    ),
    plant("B19", "S5 S6", "radix-window")
    .edit(
        f"{_WINDOW}.hold",
        "for covered in self._window_of(node):",
        "for covered in [at for at in self.tree.path_to(node) if not at.swa_tombstone]:",
    )
    .edit(
        f"{_WINDOW}.release",
        "for covered in self._window_of(node):",
        "for covered in [at for at in self.tree.path_to(node) if not at.swa_tombstone]:",
    ),
    plant(
        "B20",
        "S5 S6",
        "radix-window",
        note="no early release of a window here: the release of a hold goes past its own window",
    ).edit(
        f"{_WINDOW}.release",
        "for covered in self._window_of(node):",
        "for covered in [at for at in self.tree.path_to(node) if at.swa_lock_ref]:",
    ),
    plant("B23", "S5", "radix-window").edit(
        f"{_WINDOW}.split",
        "upper.swa_boundary_id, node.swa_boundary_id = node.swa_boundary_id, None",
        "pass  # the id stays with the lower half",
    ),
    plant("B25", "S5 R6", "radix-window").edit(
        f"{_WINDOW}.split",
        "node.swa_boundary_id = node.swa_boundary_id, None",
        "node.swa_boundary_id = None, None",
    ),
    plant(
        "B26",
        "R6",
        "radix",
        note="no early release of a window here: the second release is of the whole hold",
    )
    .edit(f"{_TREE}.check_held", "if not node._holds:", "if not node.lock_ref:")
    .edit(f"{_TREE}.release", "node._holds -= 1", "node._holds = max(0, node._holds - 1)"),
    plant("B179", "R6 R7", "radix", note="the hold that is never taken is the second one at a node").edit(
        f"{_TREE}.hold", "node._holds += 1", "node._holds += 1\nif node._holds > 1:\n    return"
    ),
    plant(
        "B200",
        "S5 S6",
        "radix-window",
        note="what stays is the window lock of the node at the window's far end",
    ).edit(
        f"{_WINDOW}.release",
        "for covered in self._window_of(node):",
        "covered_nodes = self._window_of(node)\n"
        "if node._depth > self.span and len(covered_nodes) > 1:\n"
        "    del covered_nodes[-1]\n"
        "for covered in covered_nodes:",
    ),
    # -- keys and hashes -------------------------------------------------------------------------------------
    plant("B136", "H1", "hashes").edit(
        f"{_KEYS}:hash_token_ids", "+ raw).hexdigest()", "+ raw).hexdigest()[:4].ljust(64, '0')"
    ),
    plant(
        "B139", "K1 R3", "radix", note="no adapter field here: a number and its digits become one namespace"
    ).edit(_PAGED_KEY, "return cls(raw, namespace,", "return cls(raw, namespace and str(namespace),"),
    plant("B140", "K1 R3", "radix").edit(_PAGED_KEY, "return cls(raw, namespace,", "return cls(raw, None,"),
    plant(
        "B142", "H1", "hashes", note="the content hash is there, but only the length of the content is in it"
    ).edit(f"{_KEYS}:hash_bytes", "hashlib.sha256(data)", "hashlib.sha256(bytes(memoryview(data).nbytes))"),
    # H3: what comes before a first page is its namespace
    plant("B143", "H2 H3", "radix").edit(
        "pymllm.mem_cache.radix_tree:_chain", "hashlib.sha256(digest + raw", "hashlib.sha256(raw"
    ),
    plant("B145", "H3", "radix").edit(
        f"{_TREE}.page_hashes", "else namespace_prior(at._namespace)", "else None"
    ),
    # Of pages of one token, they are the same
    plant("B146", "H2", "radix", settings={"page_size": 4}).edit(
        f"{_TREE}.prepare_split", "pages = tokens // self.page_size", "pages = tokens"
    ),
    plant("B155", "R2", "radix").edit(
        f"{_TREE}.gather",
        "torch.empty(0, dtype=torch.int64, device",
        "torch.empty(0, dtype=torch.int32, device",
    ),
    plant(
        "B175", "H2", "radix", note="the caller that extends the list is the tree, when it hashes a child"
    ).edit(
        f"{_TREE}.page_hashes",
        "at.hash_values = _chain(at._raw, len(at._raw) * self.page_size // at._length, prior)",
        "at.hash_values = _chain(at._raw, len(at._raw) * self.page_size // at._length, prior)\n"
        "if above:\n"
        "    above += at.hash_values",
    ),
    # -- recurrent states ------------------------------------------------------------------------------------
    plant("B11", "M2 R2", "mamba").edit(
        f"{_HYBRID}.match_prefix",
        "path = walk.path",
        "path = walk.path\n"
        "del path[next((at for at, node in enumerate(path) if node.mamba_value is None), None) :]",
    ),
    plant("B22", "M4", "mamba").edit(
        f"{_HYBRID}._split",
        "self.full_lru.insert_behind(upper, node)",
        "self.full_lru.insert_behind(upper, node)\nupper.mamba_lock_ref = node.mamba_lock_ref",
    ),
    plant("B59", "M8", "mamba").edit(
        f"{_CACHED}.adopt",
        "self.lru.insert_mru(node)",
        "others = list(self.lru)\n"
        "self.lru.insert_mru(node)\n"
        "for other in reversed(others):\n"
        "    self.lru.touch_mru(other)",
    ),
    plant("B73", "M6", "mamba").edit(
        f"{_CACHED}.adopt", "self.evictable += 1", "self.evictable += node._length"
    ),
    plant("B74", "M1", "mamba").edit(
        f"{_HYBRID}.insert",
        "result = InsertResult(walk.length, last, exists, adopted)",
        "others = [node for node in walk.path if node is not last]\n"
        "above = any(node.mamba_value is not None for node in others)\n"
        "result = InsertResult(walk.length, last, exists or above, adopted)",
    ),
    plant("B185", "M2", "mamba", note="the field is the length at which prompts part").edit(
        "pymllm.mem_cache.mamba_radix_cache:MambaRadixCache.match_prefix",
        "last, last._depth, branching)",
        "last, last._depth)",
    ),
)
