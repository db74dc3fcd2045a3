"""Faults of the radix tree: its structure, its locks, its keys."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_CACHE = "pymllm.mem_cache.radix_cache:RadixCache"
_TREE = "pymllm.mem_cache.radix_tree:RadixTree"
_WINDOW = "pymllm.mem_cache.sliding_window:SlidingWindow"
_WINDOW_INSERT = "pymllm.mem_cache.window_insert:WindowInsert"
_PAGED_KEY = "pymllm.mem_cache.radix_tree:PagedKey.of"
_KEYS = "pymllm.mem_cache.base_prefix_cache"

_STRUCTURE = (
    plant(
        "B01",
        ("R2", "R6"),
        ("radix",),
        (
            Edit(
                f"{_CACHE}.match_prefix", "path), last, last._depth)", "path), self._tree.root, last._depth)"
            ),
        ),
    ),
    plant(
        "B02",
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
    plant(
        "B04",
        # A child that stands under the wrong page is not found, and what is added in its place collides.
        ("R1", "R3", "R9", "R2", "X2"),
        ("radix",),
        (Edit(f"{_TREE}.walk", "// page_bytes * self.page_size", "// (key.width * BYTES_PER_ID)"),),
    ),
    plant(
        "B05",
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
    plant(
        "B07",
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
    plant(
        "B08",
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
    plant(
        "B13",
        ("R6",),
        ("radix",),
        (
            Edit(f"{_TREE}.hold", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
            Edit(f"{_TREE}.release", "at: NodeT | None = node", "at: NodeT | None = node.parent"),
        ),
    ),
    plant(
        "B14",
        ("R6",),
        ("radix",),
        (Edit(f"{_TREE}.check_held", "if not node._holds:", "if node._holds <= 1:"),),
    ),
    plant(
        "B16",
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
    plant(
        "B19",
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
    plant(
        "B20",
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
    plant(
        "B23",
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
    plant(
        "B25",
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
    plant(
        "B26",
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
    plant(
        "B136",
        ("H1",),
        ("hashes",),
        (Edit(f"{_KEYS}:hash_token_ids", "+ raw).hexdigest()", "+ raw).hexdigest()[:4].ljust(64, '0')"),),
    ),
    plant(
        "B139",
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
    plant(
        "B140",
        ("K1", "R3"),
        ("radix",),
        (Edit(_PAGED_KEY, "return cls(raw, namespace,", "return cls(raw, None,"),),
    ),
    plant(
        "B142",
        ("H1",),
        ("hashes",),
        (
            Edit(
                f"{_KEYS}:hash_bytes",
                "hashlib.sha256(data)",
                "hashlib.sha256(bytes(memoryview(data).nbytes))",
            ),
        ),
        note="the content hash is there, but only the length of the content is in it",
    ),
    plant(
        "B143",
        ("H2", "H3"),  # what comes before a first page is its namespace
        ("radix",),
        (Edit("pymllm.mem_cache.radix_tree:_chain", "hashlib.sha256(digest + raw", "hashlib.sha256(raw"),),
    ),
    plant(
        "B145",
        ("H3",),
        ("radix",),
        (Edit(f"{_TREE}.page_hashes", "else namespace_prior(at._namespace)", "else None"),),
    ),
    plant(
        "B146",
        ("H2",),
        ("radix",),
        (Edit(f"{_TREE}.prepare_split", "pages = tokens // self.page_size", "pages = tokens"),),
        settings={"page_size": 4},  # of one token, they are the same
    ),
    plant(
        "B155",
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
