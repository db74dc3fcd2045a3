"""Faults of the radix tree: its structure, its locks, its keys."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_CACHE = "pymllm.mem_cache.radix_cache:RadixCache"
_TREE = "pymllm.mem_cache.radix_tree:RadixTree"
_WINDOW = "pymllm.mem_cache.sliding_window:SlidingWindow"
_WINDOW_INSERT = "pymllm.mem_cache.window_insert:WindowInsert"
_PAGED_KEY = "pymllm.mem_cache.radix_tree:PagedKey.of"
_KEYS = "pymllm.mem_cache.base_prefix_cache"

_STRUCTURE = (
    Fault(
        "B01",
        "match_prefix hands back the root as the matched node",
        ("R2", "R6"),
        ("radix",),
        (
            Edit(
                f"{_CACHE}.match_prefix", "path), last, last._depth)", "path), self._tree.root, last._depth)"
            ),
        ),
    ),
    Fault(
        "B02",
        "Exact match returns the parent of the matching node",
        ("R2",),
        ("radix",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "path), last, last._depth)",
                "path), last if into_partial else last.parent or last, last._depth)",
            ),
        ),
    ),
    Fault(
        "B04",
        "Split node filed under an empty child key",
        ("R1", "R3", "R9"),
        ("radix",),
        (Edit(f"{_TREE}.walk", "// page_bytes * self.page_size", "// (key.width * BYTES_PER_ID)"),),
    ),
    Fault(
        "B05",
        "SWA insert continues from the suffix after a split",
        ("R9", "S7", "R3"),
        ("radix-window",),
        (
            Edit(
                f"{_WINDOW_INSERT}._end_of_prefix",
                "return cut.upper",
                "return cut.node",
            ),
        ),
    ),
    Fault(
        "B07",
        "Split pieces are views that pin the whole value",
        ("X5",),
        ("radix",),
        (
            Edit(
                f"{_TREE}._divide_slots",
                "[:tokens].clone(), node._value[tokens:].clone()",
                "[:tokens], node._value[tokens:]",
            ),
        ),
    ),
    Fault(
        "B08",
        "Tree stores a view of the request's page table row",
        ("X5", "R3"),
        ("radix",),
        (
            Edit(
                "pymllm.mem_cache.incoming_slots:copy_for_keeps",
                "part.clone() if part.dtype is torch.int64 else part.long()",
                "part.long()",
            ),
            Edit(
                "pymllm.mem_cache.incoming_slots:copy_for_tree",
                ".astype(np.int64)",
                ".astype(np.int64, copy=False)",
            ),
        ),
    ),
)

_LOCKS = (
    Fault(
        "B13",
        "Lock walk skips the node it was asked to lock",
        ("R6",),
        ("radix",),
        (
            Edit(f"{_TREE}.hold", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
            Edit(f"{_TREE}.release", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
        ),
    ),
    Fault(
        "B14",
        "Releasing the last lock is treated as underflow",
        ("R6",),
        ("radix",),
        (Edit(f"{_TREE}.check_held", "if not node._holds:", "if node._holds <= 1:"),),
    ),
    Fault(
        "B16",
        "evictable_size goes negative after a leaf gains a child",
        ("R7",),
        ("radix",),
        (
            Edit(
                f"{_TREE}.append",
                "self.evictable_tokens += length",
                "self.evictable_tokens += length - (len(parent.children) == 1) * parent._length",
            ),
        ),
    ),
    Fault(
        "B19",
        "Same race in upstream's SWA tree: count reaches -1",
        ("S5", "S6"),
        ("radix-window",),
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
    ),
    Fault(
        "B20",
        "Early release takes a lock another request acquired",
        ("S5", "S6"),
        ("radix-window",),
        (
            Edit(
                f"{_WINDOW}.release",
                "for covered in self._window_of(node):",
                "for covered in [at for at in self.tree.path_to(node) if at.swa_lock_ref]:",
            ),
        ),
        note="no early release of a window here: the release of a hold goes past its own window",
    ),
    Fault(
        "B23",
        "Window boundary id moved twice on split",
        ("S5",),
        ("radix-window",),
        (
            Edit(
                f"{_WINDOW}.split",
                "upper.swa_boundary_id, node.swa_boundary_id = node.swa_boundary_id, None",
                "pass  # the id stays with the lower half",
            ),
        ),
    ),
    Fault(
        "B25",
        "Window lock assertion after hours of long-context traffic",
        ("S5", "R6"),
        ("radix-window",),
        (
            Edit(
                f"{_WINDOW}.split",
                "node.swa_boundary_id = node.swa_boundary_id, None",
                "node.swa_boundary_id = None, None",
            ),
        ),
    ),
    Fault(
        "B26",
        "Second release after an early window release",
        ("R6",),
        ("radix",),
        (
            Edit(f"{_TREE}.check_held", "if not node._holds:", "if not node.lock_ref:"),
            Edit(f"{_TREE}.release", "node._holds -= 1", "node._holds = max(0, node._holds - 1)"),
        ),
        note="no early release of a window here: the second release is of the whole hold",
    ),
)

_ISOLATION = (
    Fault(
        "B136",
        "Weak process hash: collisions between prompts",
        ("H1",),
        ("hashes",),
        (Edit(f"{_KEYS}:hash_token_ids", "+ raw).hexdigest()", "+ raw).hexdigest()[:4].ljust(64, '0')"),),
    ),
    Fault(
        "B139",
        "User-supplied extra key can equal an adapter's",
        ("K1", "R3"),
        ("radix",),
        (
            Edit(
                _PAGED_KEY,
                "return cls(raw, namespace,",
                "return cls(raw, namespace and str(namespace),",
            ),
        ),
        note="no adapter field here: a number and its digits become one namespace",
    ),
    Fault(
        "B140",
        "Adapter not part of the hash",
        ("K1", "R3"),
        ("radix",),
        (Edit(_PAGED_KEY, "return cls(raw, namespace,", "return cls(raw, None,"),),
    ),
    Fault(
        "B142",
        "Different images, same placeholder tokens",
        ("H1",),
        ("hashes",),
        (Edit(f"{_KEYS}:hash_bytes", "hashlib.sha256(data)", "hashlib.sha256(bytes(len(data)))"),),
        note="the content hash is there, but only the length of the content is in it",
    ),
    Fault(
        "B143",
        "Content-only hashes make a block its own parent",
        ("H2", "H3"),  # what comes before a first page is its namespace
        ("radix",),
        (Edit("pymllm.mem_cache.radix_tree:_chain", "hashlib.sha256(digest + raw", "hashlib.sha256(raw"),),
    ),
    Fault(
        "B145",
        "Node hash ignores the namespace",
        ("H3",),
        ("radix",),
        (Edit(f"{_TREE}.page_hashes", "else namespace_prior(at._namespace)", "else None"),),
    ),
    Fault(
        "B146",
        "Hash granularity lost when a pool is replaced",
        ("H2",),
        ("radix",),
        (Edit(f"{_TREE}.prepare_split", "pages = tokens // self.page_size", "pages = tokens"),),
        settings={"page_size": 4},  # of one token, they are the same
    ),
    Fault(
        "B155",
        "Two sides disagree about an index type",
        ("R2",),
        ("radix",),
        (
            Edit(
                f"{_TREE}.gather",
                "torch.empty(0, dtype=torch.int64, device",
                "torch.empty(0, dtype=torch.int32, device",
            ),
        ),
    ),
)

FAULTS = (*_STRUCTURE, *_LOCKS, *_ISOLATION)
