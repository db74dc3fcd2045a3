"""The radix tree below the prefix caches: keys, walks, splits, holds, sizes, and leaves by age.

What is the same for every prefix cache lives here, and nothing that differs: windows are in
`pymllm.mem_cache.tree.sliding_window` and the public calls in `pymllm.mem_cache.radix_cache`.

A node's children are filed under the bytes of their first page. Those of the root that have a namespace, or
tokens of several integers, are filed under (namespace, token width, first page), so that both are looked at
once per walk; most have neither, and one of 10,000 is found 0.3 us sooner by its bytes alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import numpy as np
import torch

from pymllm.errors import LockError, StaleNodeError
from pymllm.mem_cache.base_prefix_cache import Namespace, RadixKey, as_namespace
from pymllm.mem_cache.cache_events import EventLog, Part
from pymllm.mem_cache.tree.node import BaseTreeNode, PageStarts, expand_pages
from pymllm.mem_cache.tree.token_encoding import BYTES_PER_ID, encode_tokens
from pymllm.mem_cache.tree.victims import Victims

NodeT = TypeVar("NodeT", bound=BaseTreeNode)
_MOST_INDENTED: Final = 32  # levels
_get_value = attrgetter("_value")
_get_starts = attrgetter("_starts")


@dataclass(slots=True, eq=False)
class PagedKey:
    """A key in the tree's form, with its whole pages encoded."""

    raw: bytes
    namespace: Namespace
    width: int
    length: int  # tokens in raw

    @classmethod
    def of(cls, key: RadixKey, page_size: int) -> PagedKey:
        """Return a caller's key in the tree's form; errors arise before anything changes."""
        if not isinstance(key, RadixKey):
            raise TypeError(
                f"key is a {type(key).__name__}: wrap the tokens in RadixKey(token_ids, extra_key)"
            )
        raw, width = encode_tokens(key.token_ids, page_size)
        # Read again, since the attribute may have been set after the key was made.
        namespace = None if key.extra_key is None else as_namespace(key.extra_key)
        return cls(raw, namespace, width, len(raw) // (BYTES_PER_ID * width))


@dataclass(slots=True, eq=False)
class Walk(Generic[NodeT]):
    """The extent to which a key is cached in the tree."""

    path: list[NodeT]  # nodes whose whole edge matches, from below the root
    partial: NodeT | None  # the next node, where only a part of its edge matches
    shared: int  # tokens of that part, whole pages
    length: int  # tokens matched in all


@dataclass(slots=True, eq=False)
class Split(Generic[NodeT]):
    """A node to be split, with all parts for its halves prepared."""

    node: NodeT
    upper: NodeT  # the new upper half, which nobody knows yet
    raw: bytes  # of the lower half, as what follows
    filed_under: bytes
    starts: PageStarts | None
    value: torch.Tensor | None
    hash_values: list[str] | None


def namespace_prior(namespace: Namespace) -> str | None:
    """Return the digest to which the first page of a namespace is chained (law H3)."""
    if namespace is None:
        return None
    tagged = _tagged(namespace)
    return hashlib.sha256(b"\x00" + hashlib.sha256(tagged).digest()).hexdigest()


def _tagged(namespace: Namespace) -> bytes:
    """Return the text of a namespace for hashing; values in a tuple are hashed to keep them separate."""
    if namespace is None:
        return b""
    if isinstance(namespace, tuple):
        return b"t:" + b"".join([hashlib.sha256(_tagged(value)).digest() for value in namespace])
    return (f"s:{namespace}" if isinstance(namespace, str) else f"i:{namespace}").encode()


class RadixTree(Generic[NodeT]):
    """The nodes of a radix tree, with the operations that all prefix caches share.

    ``make_node``: makes an empty node. ``page_size``: tokens per page. ``device``: where the nodes' slots
    live. ``keeps_pages``: whether a node keeps the first slot of each page instead of all slots. ``victims``:
    the orders in which its nodes wait; without them, the unlocked leaves by age. ``log``: notes the blocks
    that come and go, or ``None``; each node has its hashes then.
    """

    root: NodeT
    log: EventLog | None = None

    def __init__(
        self,
        make_node: Callable[[], NodeT],
        page_size: int,
        device: torch.device,
        keeps_pages: bool = False,
        victims: Victims[NodeT] | None = None,
    ) -> None:
        self.page_size = page_size
        self.device = device
        self.keeps_pages = keeps_pages
        self._make_node = make_node
        self._ids = count(1)
        self._of_roots = object()
        self.victims: Victims[NodeT] = Victims() if victims is None else victims
        self.start_with(self.prepare_start())

    def prepare_start(self) -> tuple[NodeT, Victims[NodeT], object]:
        """Return the parts of an empty tree for `start_with`: a root, orders of victims, and an epoch."""
        root = self._make_node()
        root.id = next(self._ids)
        root._key = RadixKey([])
        root.value = torch.empty(0, dtype=torch.int64, device=self.device)
        root.lock_ref = 1
        root._owner = self._of_roots  # not the tree itself, which an old root must not keep alive
        return root, type(self.victims)(self.victims.policy), object()

    def start_with(self, start: tuple[NodeT, Victims[NodeT], object], nodes: Sequence[NodeT] = ()) -> None:
        """Start empty with prepared parts; old ``nodes`` become stale, and ids continue (X3, X7).

        Looks at nothing of what it replaces, so that it works after an interrupt anywhere.
        """
        root, victims, epoch = start
        roots = [self.root] if hasattr(self, "root") else []
        self.epoch = epoch  # first: with it every node of before is stale
        self.root = root
        self.victims.become(victims)
        self.clock = 0.0
        self.evictable_tokens = 0
        self.protected_tokens = 0
        if self.log is not None:
            self.log.clear()
        for node in nodes:
            # Relatives and neighbours name each other: cut them apart, or the slots wait for the collector.
            node._value = node._starts = node.parent = node._owner = node._only_child = None
            node._order = node._older = node._younger = None
            node.children = {}
        for before in roots:  # whoever kept it, as the match of nothing, keeps none of the nodes below it
            before.children, before._only_child = {}, None

    # -- walking and growing -------------------------------------------------------------------------

    def walk(self, key: PagedKey) -> Walk[NodeT]:
        """Follow ``key`` down the tree as far as it is cached.

        ``bytes.startswith`` with an offset is a ``memcmp`` that copies and converts nothing: 12 us for
        131,072 tokens. The position of the first difference is looked for once, where the walk ends. An only
        child is compared at once: 0.12 us a node of a chain of 1,000, where looking it up as well takes 0.21.
        """
        raw, size = key.raw, len(key.raw)
        page_bytes = self.page_size * key.width * BYTES_PER_ID
        path: list[NodeT] = []
        offset = 0
        filed_under: Any = raw[:page_bytes]
        if key.namespace is not None or key.width > 1:
            filed_under = key.namespace, key.width, filed_under
        node = self.root.children.get(filed_under)
        while node is not None:
            edge = node._raw
            if not raw.startswith(edge, offset):
                if not raw.startswith(edge[:page_bytes], offset):
                    break  # only the one child that there is
                shared = _shared_bytes(raw, offset, edge) // page_bytes * self.page_size
                return Walk(path, node, shared, (path[-1]._depth if path else 0) + shared)
            path.append(node)
            offset += len(edge)
            if node._only_child is not None:
                node = node._only_child
            elif offset < size:
                node = node.children.get(raw[offset : offset + page_bytes])
            else:
                break
        return Walk(path, None, 0, path[-1]._depth if path else 0)

    def make_leaf(self, parent: NodeT, key: PagedKey, value: torch.Tensor | PageStarts) -> NodeT:
        """Return an unlocked leaf for `append`, not yet linked from ``parent``.

        Its edge is what ``key`` has beyond ``parent``, as far as ``value`` reaches, which becomes the tree's
        own.
        """
        namespace, width = key.namespace, key.width
        node = self._make_node()
        if isinstance(value, torch.Tensor):
            node._value, length = value, value.numel()  # 0.05 us, where len() of a tensor takes 0.4
        else:
            node._starts, length = value, value.size * self.page_size
        start = parent._depth
        end, token_bytes = start + length, width * BYTES_PER_ID
        node.id = next(self._ids)
        node.parent = parent
        node._depth = end
        node._length = length
        node._owner = self.epoch
        node._namespace = namespace
        node._raw = edge = key.raw[start * token_bytes : end * token_bytes]
        node._filed_under = edge[: self.page_size * token_bytes]
        if parent is self.root and (namespace is not None or width > 1):
            node._filed_under = namespace, width, node._filed_under
        if self.log is not None:
            self.page_hashes(node)
        return node

    def append(self, node: NodeT) -> None:
        """Add a leaf of the current access to its parent; nothing here can fail.

        The caller places it among the `victims` once all is known of it.
        """
        parent, length = node.parent, node._length
        assert parent is not None
        node.last_access_time = self.clock
        parent._only_child = None if parent.children else node
        parent.children[node._filed_under] = node
        self.evictable_tokens += length
        if parent._order is not None:  # it is no leaf any more
            self.victims.place(parent)
        if self.log is not None:
            self.note_stored(node, Part.KV)

    def prepare_split(self, node: NodeT, tokens: int) -> Split[NodeT]:
        """Prepare the parts for `split` of ``node`` after its first ``tokens`` tokens; nothing changes.

        The lower half will keep object, id and holds; both halves own copies, so neither keeps the whole
        alive (R10, X5). The upper half may be cut in turn before anything is done.
        """
        width = len(node._raw) // (node._length * BYTES_PER_ID)
        cut = tokens * width * BYTES_PER_ID
        raw = node._raw
        upper = self._make_node()
        upper.id = next(self._ids)
        starts, value = self._divide_slots(node, upper, tokens)
        upper.parent = node.parent
        upper._length, upper._depth = tokens, node._depth - node._length + tokens
        upper._owner = self.epoch
        upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count
        upper.last_access_time = node.last_access_time
        upper._filed_under = node._filed_under
        upper._raw, upper._namespace = raw[:cut], node._namespace
        lower_raw, hash_values = raw[cut:], node.hash_values
        filed_under = lower_raw[: self.page_size * width * BYTES_PER_ID]
        upper.children[filed_under] = upper._only_child = node
        if hash_values is not None:
            pages = tokens // self.page_size
            upper.hash_values, hash_values = hash_values[:pages], hash_values[pages:]
        return Split(node, upper, lower_raw, filed_under, starts, value, hash_values)

    def split(self, split: Split[NodeT]) -> None:
        """Insert the upper half above the lower one; nothing here can fail."""
        node, upper = split.node, split.upper
        parent = upper.parent
        assert parent is not None
        # The lower half first lets go of what the upper one has: no slot is ever in two nodes of the tree.
        node._starts, node._value = split.starts, split.value
        node._length -= upper._length
        node._raw, node._key, node._filed_under = split.raw, None, split.filed_under
        node.hash_values = split.hash_values
        node.parent = upper
        if parent._only_child is node:
            parent._only_child = upper
        parent.children[upper._filed_under] = upper

    def _divide_slots(
        self, node: NodeT, upper: NodeT, tokens: int
    ) -> tuple[PageStarts | None, torch.Tensor | None]:
        """Give ``upper`` the first slots of ``node`` and return the others, as copies (X5)."""
        if node._starts is not None:
            pages = tokens // self.page_size
            upper._starts, starts = node._starts[:pages].copy(), node._starts[pages:].copy()
            return starts, None
        assert node._value is not None
        upper._value, value = node._value[:tokens].clone(), node._value[tokens:].clone()
        return None, value

    def remove(self, nodes: Iterable[NodeT]) -> None:
        """Unlink evicted nodes, children first, which the caller has removed from `victims`."""
        freed = 0
        for node in nodes:
            assert node.parent is not None
            del node.parent.children[node._filed_under]
            node.parent._only_child = None
            freed += node._length
            node._value = node._starts = node.parent = node._owner = None
            if self.log is not None:
                self.log.remove(Part.KV, node.hash_values or ())
        self.evictable_tokens -= freed

    def nodes(self) -> Iterator[NodeT]:
        """Yield every node except the root, parents before children."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def outline(self) -> Iterator[str]:
        """Yield a line of text for every node except the root, children indented below their parent.

        From level 33 on the level is written as a number, ``[33]``, and the indentation stays what it is at
        32: a chain of 20,000 nodes is 2.8 MB of text, where indentation alone would be 400.
        """
        pending = [(child, 1) for child in reversed(self.root.children.values())]
        while pending:
            node, level = pending.pop()
            deeper = f"[{level}] " if level > _MOST_INDENTED else ""
            yield "  " * min(level, _MOST_INDENTED) + deeper + node.describe()
            pending.extend((child, level + 1) for child in reversed(node.children.values()))

    def path_to(self, node: NodeT) -> list[NodeT]:
        """Return the nodes from below the root down to ``node``."""
        path = []
        at: NodeT | None = node
        while at is not None and at is not self.root:
            path.append(at)
            at = at.parent
        path.reverse()
        return path

    def hand_over(self, nodes: list[NodeT]) -> torch.Tensor:
        """Return the slots of nodes about to leave, for a single node its own tensor.

        A pool reads them and no more. A copy would cost 1.2 us of an eviction's 8.
        """
        if len(nodes) == 1 and self.page_size == 1:
            assert nodes[0].value is not None
            return nodes[0].value
        return self.gather(nodes)

    def page_starts(self, nodes: list[NodeT]) -> PageStarts | None:
        """Return the first slot of each page of ``nodes``, at least one; ``None`` if a node stores no pages.

        A single node's own are returned. Of 1,000 nodes of 8 slots, joining bytes takes 24 us, where
        `numpy.concatenate` and `torch.cat` take 120.
        """
        if len(nodes) == 1:
            return nodes[0]._starts
        try:
            return np.frombuffer(bytearray().join(map(_get_starts, nodes)), np.int64)
        except TypeError:  # somebody has set a node's value
            return None

    def gather(self, nodes: list[NodeT]) -> torch.Tensor:
        """Return a new tensor with the slots of ``nodes``, in order."""
        if self.keeps_pages and nodes:
            starts = nodes[0]._starts if len(nodes) == 1 else self.page_starts(nodes)
            if starts is None:
                return torch.cat([node.value for node in nodes if node.value is not None])
            if self.page_size > 1:
                return expand_pages(starts, self.page_size)
            return torch.from_numpy(starts.copy() if len(nodes) == 1 else starts)
        if len(nodes) == 1:
            assert nodes[0]._value is not None
            return nodes[0]._value.clone()
        values: list[torch.Tensor] = list(map(_get_value, nodes))
        return torch.cat(values) if values else torch.empty(0, dtype=torch.int64, device=self.device)

    def slots_left(self, node: NodeT) -> torch.Tensor:
        """Return the slots that a node still has, perhaps none after an interrupted call."""
        if node._starts is not None:
            return expand_pages(node._starts, self.page_size)
        return torch.empty(0, dtype=torch.int64, device=self.device) if node._value is None else node._value

    # -- recency -------------------------------------------------------------------------------------

    def stamp(self, path: Sequence[NodeT]) -> None:
        """Begin an access, and make exactly the nodes of a path the most recent (R8)."""
        self.clock = now = self.clock + 1.0
        self.root.last_access_time = now
        if path:
            self.victims.touch(path)
            for node in path:
                node.last_access_time = now

    # -- holds ---------------------------------------------------------------------------------------

    def check_node(self, node: Any, node_type: type[NodeT]) -> bool:
        """Raise an error for a node outside this tree; return ``False`` for ``None`` and for roots."""
        if node is None:
            return False
        if not isinstance(node, node_type):
            raise TypeError(f"node is a {type(node).__name__}: give a {node_type.__name__} of this cache")
        if node._owner is self._of_roots:
            return False
        if node._owner is not self.epoch:
            raise StaleNodeError(
                f"node {node.id} is not in this cache: it was evicted, the cache was reset, "
                "or it is another's; match again"
            )
        return True

    def check_held(self, node: NodeT) -> None:
        """Raise an error for the release of a hold that was never taken."""
        if not node._holds:
            raise LockError(
                f"node {node.id} has no hold of its own: release a hold at the node it was taken on, once"
            )

    def hold(self, node: NodeT) -> None:
        """Add a hold at ``node``, which protects the node and its ancestors (R6)."""
        node._holds += 1
        at: NodeT | None = node
        while at is not None and at is not self.root:
            if not at.lock_ref:
                self.evictable_tokens -= at._length
                self.protected_tokens += at._length
            at.lock_ref += 1
            at = at.parent
        self.victims.place(node)  # of the others, each has a child, so that its hold changes nothing

    def release(self, node: NodeT) -> None:
        """Remove one hold at ``node``."""
        node._holds -= 1
        at: NodeT | None = node
        while at is not None and at is not self.root:
            at.lock_ref -= 1
            if not at.lock_ref:
                self.evictable_tokens += at._length
                self.protected_tokens -= at._length
            at = at.parent
        self.victims.place(node)

    # -- events --------------------------------------------------------------------------------------

    def note_stored(self, node: NodeT, part: Part) -> None:
        """Record in any event log that a part of a node was stored; nothing here can fail."""
        assert self.log is not None
        assert node.hash_values
        above = node.parent.hash_values
        self.log.store(part, node.hash_values, above[-1] if above else None, node._raw, node._namespace)

    # -- hashes --------------------------------------------------------------------------------------

    def page_hashes(self, node: NodeT) -> list[str]:
        """Return the hashes of the pages of ``node``, each chained to the page before (H2)."""
        missing = []
        at = node
        while at is not self.root and at.hash_values is None:
            missing.append(at)
            assert at.parent is not None
            at = at.parent
        for at in reversed(missing):
            assert at.parent is not None
            above = at.parent.hash_values
            prior = above[-1] if above else namespace_prior(at._namespace)
            at.hash_values = _chain(at._raw, len(at._raw) * self.page_size // at._length, prior)
        return list(node.hash_values or ())


class RankedTree(RadixTree[Any]):
    """A tree whose nodes have a creation time and a priority, for policies that rank by them.

    Its nodes are `RankedTreeNode` or `RankedMambaTreeNode`: where recency alone decides, nodes neither have
    nor fill these fields.
    """

    def append(self, node: Any) -> None:
        """Add a leaf of the current access to its parent; nothing here can fail."""
        super().append(node)
        node.creation_time = self.clock

    def prepare_split(self, node: Any, tokens: int) -> Split[Any]:
        """Prepare the parts for `split`; the upper half inherits creation time and priority (R10)."""
        split = super().prepare_split(node, tokens)
        split.upper.creation_time, split.upper.priority = node.creation_time, node.priority
        return split

    def split(self, split: Split[Any]) -> None:
        """Insert the upper half above the lower one, which is now shorter; nothing here can fail."""
        super().split(split)
        if split.node._order is not None:
            split.node._order.changed(split.node)

    def matter(self, last: Any, priority: int) -> None:
        """Raise the priority of the current insert's path, which ends with ``last``, to at least a value."""
        node: Any = last
        while node is not None and node is not self.root:
            is_new = node.creation_time == self.clock
            node.priority = priority if is_new else max(node.priority, priority)
            node = node.parent


def _chain(raw: bytes, page_bytes: int, prior: str | None) -> list[str]:
    digest = bytes.fromhex(prior) if prior else b""
    hashes = []
    for start in range(0, len(raw), page_bytes):
        digest = hashlib.sha256(digest + raw[start : start + page_bytes]).digest()
        hashes.append(digest.hex())
    return hashes


def _shared_bytes(raw: bytes, offset: int, edge: bytes) -> int:
    """Return the number of bytes, in whole ids, in which ``raw`` from ``offset`` on equals ``edge``."""
    ids = min(len(raw) - offset, len(edge)) // BYTES_PER_ID
    theirs = np.frombuffer(edge, dtype=np.uint32, count=ids)
    differs = np.frombuffer(raw, dtype=np.uint32, count=ids, offset=offset) != theirs
    first = int(differs.argmax())
    return (first if differs[first] else ids) * BYTES_PER_ID
