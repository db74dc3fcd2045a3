"""The base of the adapters of sglang's prefix caches: keys, slots, nodes by step, and missing claims.

Where its contract differs from ours, the adapter does what sglang's own caller does, and claims nothing
about the rest. It numbers nodes anew, since sglang counts those of all caches of a process together; spells
namespaces as the texts that sglang takes; leaves keys alone that were passed in, since the tree keeps them;
frees on a reset what the tree held, since a server clears tree and pools together; and never touches a node
of a tree that was reset, since a server resets when idle.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.key_forms import clobber, read_namespace, spell_namespace
from pymllm.adapters.own_prefix import pool_configurations
from pymllm.adapters.simple import PrefixAdapter
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.sglang.package import NEWER, also_claimed, load_sglang, require_version
from pymllm_peers.sglang.pools import OverSglangPool, SglangPool, make_allocator

ASTRAY = -1
"""Length of a path that spells no prefix of its key."""


class SglangTree(OverSglangPool, PrefixAdapter, ABC):
    """The base of adapters of an sglang prefix cache, the `cache`, over an sglang allocator, the `pool`.

    Keys of its configuration: ``page_size``; ``window`` in tokens, or ``None``; ``pool``: ``token`` or
    ``swa``; ``slots`` and ``swa_slots``, sizes of the pools in tokens. Others hold it to what it does not
    promise, to show where it differs: ``also`` (`also_claimed`); ``own_keys``, that a caller may overwrite a
    key once a call has returned; ``whole_reset``, that a reset gives slots back.
    """

    VERSION: ClassVar[str] = NEWER
    LIMITS: ClassVar[Mapping[str, str]] = {"unlock": "a hold is released as it was taken"}
    """Of sglang, which the adapter was tried with."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = pool_configurations([None], ["token"])

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version(self.VERSION)
        page_size, halves = self.number("page_size"), self.config.get("pool") == "swa"
        allocator = make_allocator(
            page_size, self.number("slots"), self.number("swa_slots") if halves else None
        )
        self.pool = SglangPool(allocator, self.effects_of_cache)
        self._left: set[int] = set()
        self._numbers: dict[int, int] = {}
        self.cache: Any = self.make_cache(page_size)

    @abstractmethod
    def make_cache(self, page_size: int) -> Any:
        """Build the examined cache over `pool`."""

    def parameters(self, page_size: int, **more: Any) -> Any:
        """Return the parameters of a cache over the pool."""
        common = {"disable": False, "req_to_token_pool": None, "page_size": page_size}
        return load_sglang("mem_cache.cache_init_params").CacheInitParams(
            **{**common, "token_to_kv_pool_allocator": self.pool.allocator, **more}
        )

    def claim(self) -> frozenset[str]:
        claimed = {"pool", "extra_key", "inspect", "node_ids", "engine"}
        claimed |= {"swa"} if self.config.get("window") is not None else set()
        return frozenset(claimed) | also_claimed(self.config)

    def effects_of_cache(self, effect: out.Effect) -> None:
        """Record the memory that the cache gave back; the halves of freed slots are part of the slots."""
        self.effects.append(effect)
        freed = {slot for one in self.effects if one.call == "free" for slot in one.slots}
        kept = [
            replace(one, slots=tuple(slot for slot in one.slots if slot not in freed))
            if one.call == "free_swa"
            else one
            for one in self.effects
        ]
        self.effects[:] = [one for one in kept if one.slots]

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the cache and of its pool."""
        return self.sizes_of_cache() | self.pool.sizes()

    def sizes_of_cache(self) -> dict[str, int]:
        """Return the sizes of the cache by their documented names."""
        evictable, protected = int(self.cache.evictable_size()), int(self.cache.protected_size())
        total = int(self.cache.total_size())
        return {"evictable_size": evictable, "protected_size": protected, "total_size": total}

    # -- the pool, called by who owns the slots ------------------------------------------------------------

    def free(self, slots: Sequence[int]) -> None:
        """Free whole pages, as they were allocated: sglang's caller knows all slots of his pages."""
        super().free(self.slots_of(self.pages_of(slots)))

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> out.Result:
        if not self.pool.has_halves:
            raise UnsupportedError("the pool has no SWA halves")
        self.pool.free_swa(self.numbers(operation.slots))
        return out.Done()

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> out.Result:
        if not self.pool.has_halves:
            raise UnsupportedError("the pool has no SWA halves")
        return out.Slots((), self.pool.halves(self.numbers(operation.slots)))

    # -- keys in and out -----------------------------------------------------------------------------------

    def key_of(self, key: ops.Key) -> Any:
        """Return a key in sglang's form; its tokens are 64-bit integers in an array."""
        tokens = array("q", [token for token in key.tokens if isinstance(token, int)])
        return load_sglang("mem_cache.radix_cache").RadixKey(tokens, spell_namespace(key.extra_key))

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a key; the returned indices are overwritten at once (X5)."""
        key = self.key_of(operation.key)
        params = load_sglang("mem_cache.base_prefix_cache").MatchPrefixParams(key=key)
        result = self.cache.match_prefix(params)
        self._let_go(key)
        node = self._nodes[step] = result.last_device_node
        return self.matched(operation, node, result)

    def _let_go(self, key: Any) -> None:
        if self.config.get("own_keys"):
            clobber(key.token_ids)

    def matched(self, operation: ops.Match, node: Any, result: Any) -> out.Matched:
        """Make the result of a match."""
        indices, found = self.found(node, result)
        slots, dtype = tuple(indices.tolist()), str(indices.dtype).removeprefix("torch.")
        clobber(indices)
        return out.Matched(slots, found, self.node_length(node, operation.key), dtype)

    def found(self, node: Any, result: Any) -> tuple[torch.Tensor, int]:
        """Return the slots found by a match and their number: before 0.5.22 it brings the slots along."""
        if hasattr(result, "device_indices"):
            return result.device_indices, len(result.device_indices)
        return self.cache.path_device_indices(node), int(result.device_prefix_len)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Insert a key; its slots are overwritten at once (X5)."""
        if operation.slots is None:
            raise UnsupportedError("a cache over a pool takes slots")
        key = self.key_of(operation.key)
        value = torch.tensor(self.numbers(operation.slots), dtype=torch.int64)
        result = self.insert_and_look(operation, key, value)
        self._let_go(key)
        clobber(value)
        node = self._nodes[step] = result.last_device_node
        adopted = self.adopted(operation, result)
        length = self.node_length(node, operation.key)
        # Where no state was handed over, sglang's answer means nothing.
        exists = operation.state is not None and bool(result.mamba_exist)
        return out.Inserted(int(result.prefix_len), adopted, length, exists)

    def insert_and_look(self, operation: ops.Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert, and read further results from pool and tree: nothing."""
        return self.call_insert(operation, key, value)

    def call_insert(self, operation: ops.Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert."""
        params = load_sglang("mem_cache.base_prefix_cache").InsertParams
        return self.cache.insert(params(key=key, value=value, **self.more_of_insert(operation)))

    def more_of_insert(self, operation: ops.Insert) -> dict[str, Any]:
        """Return further parameters of an insert."""
        return {}

    def adopted(self, operation: ops.Insert, result: Any) -> tuple[tuple[int, int], ...]:
        """Return the adopted ranges, as the cache's caller concludes them from the prefix length."""
        start, stop = int(result.prefix_len), self.whole(len(operation.key.tokens))
        return ((start, stop),) if start < stop else ()

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Evict; sglang's caller never asks for negative numbers."""
        base = load_sglang("mem_cache.base_prefix_cache")
        tokens, secondary = max(0, operation.tokens), max(0, operation.secondary)
        result = self.cache.evict(base.EvictParams(num_tokens=tokens, **self.secondary(secondary)))
        # Where no window is claimed, halves go with their slots and are not counted beside them.
        swa = result.swa_num_tokens_evicted if self.config.get("window") is not None else 0
        return out.Evicted(int(result.num_tokens_evicted), int(swa), int(result.mamba_num_evicted))

    def secondary(self, amount: int) -> dict[str, int]:
        """Return the amount to evict of the second kind of memory, by the parameter's name."""
        return {}

    def reset(self) -> None:
        """Empty the cache, and free its slots: to sglang that is one act of the server."""
        held = sorted(self.cached_slots())  # the tree in Rust tells them in another order each time
        self._left.update(self._nodes, self._holds)
        self._nodes.update(dict.fromkeys(self._nodes))
        self.cache.reset()
        if not self.config.get("whole_reset"):
            self.pool.free(held)
            self.effects_of_cache(out.Effect("free", tuple(held)))

    def cached_slots(self) -> list[int]:
        """Return every slot in the tree."""
        return [slot for view in self.views() for slot in view.slots]

    # -- nodes by step -------------------------------------------------------------------------------------

    def do_lock(self, step: int, operation: ops.Lock) -> out.Result:
        """Take a hold; at the root of a reset tree, take none."""
        if operation.of not in self._left:
            return super().do_lock(step, operation)
        self._left.add(step)
        self.keep_hold(step, None, None)
        return out.Locked()

    def lock(self, node: Any) -> Any:
        return self.cache.inc_lock_ref(node)

    def do_unlock(self, step: int, operation: ops.Unlock) -> out.Result:
        """Release a hold; a hold of a reset tree is gone."""
        if operation.at is not None or operation.token is not None:
            raise UnsupportedError("a hold is released as it was taken")
        return out.Done() if operation.lock in self._left else super().do_unlock(step, operation)

    def unlock(self, node: Any, token: Any) -> None:
        self.cache.dec_lock_ref(node, token.to_dec_params())

    # -- looking inside ------------------------------------------------------------------------------------

    def audit(self) -> Sequence[str]:
        """Let the tree check itself, if it can and nothing is held, as a server does when idle (R9)."""
        check = getattr(self.cache, "sanity_check", None)
        if check is None or self.sizes_of_cache()["protected_size"]:
            return ()
        disabled = logging.root.manager.disable
        logging.disable(logging.ERROR)  # what it finds it also writes there
        try:
            check()
        except Exception as error:
            said = re.sub(r"\d+", "#", str(error))  # nodes are numbered for all caches of a process together
            raise InvariantViolation("R9", f"the tree's own check says: {said}") from error
        finally:
            logging.disable(disabled)
        return ("R9",)

    def nodes(self) -> Iterable[tuple[Any, Any]]:
        """Return every node but the root with its parent, parents before their children."""
        pending = [self.cache.root_node]
        for parent in pending:
            for node in parent.children.values():
                yield node, parent
                pending.append(node)

    @abstractmethod
    def view(self, node: Any, parent: int | None) -> out.NodeView:
        """Describe a node whose parent has a given number."""

    def view_of(self, node: Any, parent: int | None, value: torch.Tensor, **own: Any) -> out.NodeView:
        """Describe a node with given slots: the fields of all trees, and the fields of its own tree."""
        return out.NodeView(
            id=self.number_of(node),
            parent=parent,
            tokens=tuple(node.key.token_ids),
            extra_key=read_namespace(node.key.extra_key),
            slots=tuple(value.tolist()),
            kept_bytes=value.untyped_storage().nbytes(),
            **own,
        )

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show every node, if the cache has nodes to show."""
        if "inspect" not in self.capabilities:
            raise UnsupportedError("there are no nodes to look at")
        return out.Inspected(self.views())

    def views(self) -> tuple[out.NodeView, ...]:
        """Return a view of every node, numbered in the order in which sglang made them."""
        pairs = list(self.nodes())
        for identity in sorted(node.id for node, _ in pairs):
            self._numbers.setdefault(identity, len(self._numbers))
        return tuple(self.view(node, self._numbers.get(parent.id)) for node, parent in pairs)

    def number_of(self, node: Any) -> int:
        """Return the number of a node that was shown."""
        return self._numbers[node.id]

    def node_length(self, node: Any, key: ops.Key) -> int | None:
        """Return the length of the path that ends with a node; `ASTRAY` where it is no prefix of the key."""
        tokens: list[int] = []
        for part in reversed(list(self._climb(node))):
            tokens += part.key.token_ids
        return len(tokens) if tuple(tokens) == key.tokens[: len(tokens)] else ASTRAY

    def _climb(self, node: Any) -> Iterable[Any]:
        while node.parent is not None:
            yield node
            node = node.parent
