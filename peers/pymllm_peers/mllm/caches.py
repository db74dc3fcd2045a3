"""Adapters of mllm's RadixCache, MambaRadixCache and ChunkCache: the acts of its engine, and the claims.

Where its contract differs from ours, the adapter does what mllm's own engine does, and claims nothing about
the rest. It hands keys over as lists of tokens, and leaves them alone, since the tree keeps them; frees on a
reset what the tree held, and never touches a node of a tree that was reset.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.failing_calls import RecordingPool, RecordingStatePool, record_around
from pymllm.adapters.key_forms import clobber, read_namespace, spell_namespace
from pymllm.adapters.own_caches import path_length
from pymllm.adapters.own_prefix import OwnPrefixCache, pool_configurations
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.mllm.package import also_claimed, load_mllm
from pymllm_peers.projects import MLLM

_BEHIND: Config = {"whole_keys": True, "untold": "evictable_size"}
"""Lets a search go on behind the two deviations that every tree has (peers/findings)."""


class MllmCache(OwnPrefixCache):
    """The base of mllm's prefix caches over their allocators, or over ours where slots have halves.

    Keys of its configuration beside those of `OwnPrefixCache`: ``whole_keys``, that the caller cuts keys to
    whole pages before an insert, ``matched_first``, that it matches them before, and ``untold``, names of
    sizes between blanks that are not told. A search with these passes over what is known to differ.
    ``also`` (`also_claimed`) and ``own_keys``, that a caller may overwrite a key once a call has returned,
    hold it to what it does not promise.
    """

    LIMITS: ClassVar[Mapping[str, str]] = {"unlock": "a hold is released as it was taken"}

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        MLLM.require_version()
        self._left: set[int] = set()
        super().__init__(name, config)

    def claim(self) -> frozenset[str]:
        """Claim the promises of mllm's docstrings; nothing is refused, and no key is copied."""
        return frozenset({"pool", "extra_key", "bigrams", "engine"}) | also_claimed(self.config)

    def make_pool(self) -> RecordingPool | None:
        if self.config["pool"] != "token":
            return super().make_pool()
        allocator = load_mllm("memory_pool").TokenToKVPoolAllocator
        inner = allocator(self.number("slots"), "cpu", self.number("page_size"))
        return record_around(inner, lambda effect: self.effects.append(effect))

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        untold = str(self.config.get("untold", "")).split()
        return [(name, ask) for name, ask in super().size_calls() if name not in untold]

    def _on_node_evict(self, node_id: int) -> None:
        """Report an evicted node; sizes are those in the middle of the eviction."""
        self.effects.append(out.Effect("callback", node=node_id))

    # -- keys in and out -----------------------------------------------------------------------------------

    def key_of(self, key: ops.Key) -> Any:
        """Return a key in mllm's form: a list of tokens, and a namespace that is a text."""
        return load_mllm("base_prefix_cache").RadixKey([*key.tokens], spell_namespace(key.extra_key))

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a key; the returned indices are overwritten at once (X5)."""
        key = self.key_of(operation.key)
        result = self.cache.match_prefix(key)
        self._let_go(key)
        slots, dtype = tuple(result.indices.tolist()), str(result.indices.dtype).removeprefix("torch.")
        clobber(result.indices)
        node = self._nodes[step] = result.last_node
        length = self.node_length(node, operation.key)
        branching = result.mamba_branching_seqlen if self.has_states else None
        return out.Matched(slots, result.prefix_len, length, dtype, self.state_of(node), branching)

    def _let_go(self, key: Any) -> None:
        if self.config.get("own_keys"):
            clobber(key.token_ids)

    @property
    def has_states(self) -> bool:
        """Tell whether states are claimed, so that results about states are read."""
        return "mamba" in self.capabilities

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Insert a key; its slots are overwritten at once (X5). The node is matched where none is told."""
        page_size, tokens = self.number("page_size"), operation.key.tokens
        whole = len(tokens) // page_size * page_size
        length = whole if self.config.get("whole_keys") else len(tokens)
        key = self.key_of(ops.Key(tokens[:length], operation.key.extra_key))
        value = None
        if operation.slots is not None:
            value = torch.tensor(self.numbers(operation.slots)[:length], dtype=torch.int64)
        states = self.states_of(operation)
        if self.config.get("matched_first"):
            self.cache.match_prefix(self.key_of(operation.key))
        result = self.cache.insert(key, value, **self.window_of(operation), **states)
        node = result.last_node
        if node is None:
            node = self.cache.match_prefix(self.key_of(operation.key)).last_node
        self._let_go(key)
        for given in (value, *states.values()):
            if given is not None:
                clobber(given)
        self._nodes[step] = node
        adopted = self.adopted(result, whole)
        exists = operation.state is not None and bool(result.mamba_exist)
        return out.Inserted(result.prefix_len, adopted, self.node_length(node, operation.key), exists)

    def window_of(self, operation: ops.Insert) -> dict[str, int]:
        """Return the arguments of an insert about windows, where there are any."""
        return {}

    def adopted(self, result: Any, whole: int) -> tuple[tuple[int, int], ...]:
        """Return the adopted ranges, as mllm's engine concludes them from the prefix length."""
        return ((result.prefix_len, whole),) if result.prefix_len < whole else ()

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Evict; windows and states are asked for and counted only where claimed."""
        has_windows = self.config["window"] is not None
        result = self.cache.evict(
            operation.tokens, operation.secondary if has_windows or self.has_states else 0
        )
        swa, states = result.swa_evicted, result.mamba_evicted
        return out.Evicted(result.full_evicted, swa if has_windows else 0, states if self.has_states else 0)

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """Empty the cache, and free its slots, since mllm's own reset forgets them."""
        held = self.cached_slots()
        self._left.update(self._nodes, self._holds)
        self.cache.reset()
        if self.pool is not None and held:
            self.pool.free(torch.tensor(held, dtype=torch.int64))
        return out.Done()

    def cached_slots(self) -> list[int]:
        """Return every slot in the cache: none, where nothing is kept."""
        return []

    # -- nodes by step -------------------------------------------------------------------------------------

    def do_lock(self, step: int, operation: ops.Lock) -> out.Result:
        """Take a hold; at the root of a reset cache, take none."""
        node = self.node_of(operation.of)
        if operation.of in self._left:
            self._left.add(step)
            self.keep_hold(step, None, None)
            return out.Locked()
        token = self.cache.inc_lock_ref(node)
        self.keep_hold(step, node, token)
        return out.Locked(token)

    def do_unlock(self, step: int, operation: ops.Unlock) -> out.Result:
        """Release a hold as it was taken; a hold of a reset cache is gone."""
        if operation.at is not None or operation.token is not None:
            raise UnsupportedError("a hold is released as it was taken")
        if operation.lock not in self._holds:
            raise ProgramError(f"step {operation.lock} took no hold")
        if operation.lock not in self._left:
            self.release(*self._holds[operation.lock])
        return out.Done()

    def release(self, node: Any, token: Any) -> None:
        """Call the cache's unlock."""
        self.cache.dec_lock_ref(node)


class MllmChunk(MllmCache):
    """The adapter of ``ChunkCache``, which retains nothing."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = pool_configurations([None], ["none", "token"], retains=False)

    def claim(self) -> frozenset[str]:
        """Claim no more than a pool: keys cannot meet where nothing is kept."""
        return frozenset({"pool", "engine"} if self.config["pool"] != "none" else ())

    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        return load_mllm("chunk_cache").ChunkCache(self.pool, torch.device("cpu"))

    def adopted(self, result: Any, whole: int) -> tuple[tuple[int, int], ...]:
        """Return nothing: what is passed stays the caller's."""
        return ()


class MllmTree(MllmCache):
    """The base of mllm's caches that are trees."""

    def claim(self) -> frozenset[str]:
        """Claim nodes and a call for each evicted node; mllm promises less recency than R8."""
        return super().claim() | {"inspect", "callbacks"}

    def node_length(self, node: Any, key: ops.Key) -> int | None:
        return path_length(self.cache.root_node, node, key)

    def nodes(self) -> Iterable[tuple[Any, Any]]:
        """Return every node but the root with its parent, parents before their children."""
        pending = [self.cache.root_node]
        for parent in pending:
            for node in parent.children.values():
                yield node, parent
                pending.append(node)

    def cached_slots(self) -> list[int]:
        return [slot for node, _ in self.nodes() for slot in node.value.tolist()]

    @abstractmethod
    def view(self, node: Any) -> dict[str, Any]:
        """Return the fields of a node that only its tree has."""

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show every node; its hits count only matches that began in it, unlike R10."""
        views = [
            out.NodeView(
                id=node.id,
                parent=None if parent is self.cache.root_node else parent.id,
                tokens=tuple(node.key.token_ids),
                extra_key=read_namespace(node.key.extra_key),
                slots=tuple(node.value.tolist()),
                kept_bytes=node.value.untyped_storage().nbytes(),
                **self.view(node),
            )
            for node, parent in self.nodes()
        ]
        return out.Inspected(tuple(views))


class MllmRadix(MllmTree):
    """``RadixCache`` without a window. Hashes are claimed by ``also`` only: they depend on who came first."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["token"]),
        *pool_configurations([None], ["token"], **_BEHIND),
    )

    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        cache = load_mllm("radix_cache").RadixCache
        return cache(self.number("page_size"), None, self.pool, on_node_evict)

    def view(self, node: Any) -> dict[str, Any]:
        hashes = None if node.hash_values is None else tuple(node.hash_values)
        last = node.last_access_time
        return {"lock_ref": node.lock_ref, "page_hashes": hashes, "last_access": last}

    def do_hash(self, step: int, operation: ops.Hash) -> out.Result:
        """Hash a node and then its ancestors, an order that must not matter (H2)."""
        if "hashes" not in self.capabilities:
            raise UnsupportedError("hashes are not asked for")
        node = self.node_of(operation.of)
        digests: list[str] = []
        while node is not None and node is not self.cache.root_node:
            digests = [*self.cache.compute_node_hash(node), *digests]
            node = node.parent
        return out.Hashes(tuple(digests))


class MllmWindowedRadix(MllmRadix):
    """The adapter of ``RadixCache`` with a window, over our slots: mllm has none with ``free_swa``.

    ``sliding_window`` is one more key of its configuration, mllm's window in tokens: nobody gives halves back
    early or asks for windows to be evicted, so no node is ever a tombstone. With ``window`` instead it is
    followed, to show what becomes of tombstones. Its insert frees duplicates itself; told that the whole key
    was there before, it frees none, as R4 has it. It tells no node: keys are matched again, as in its engine.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["swa"], sliding_window=4),
        *pool_configurations([None], ["swa"], sliding_window=4, **_BEHIND),
        *pool_configurations([None], ["swa"], sliding_window=6, **_BEHIND, matched_first=True),
    )

    @property
    def is_followed(self) -> bool:
        """Tell whether the caller tracks the window."""
        return self.config["window"] is not None

    def claim(self) -> frozenset[str]:
        return super().claim() | ({"swa"} if self.is_followed else set())

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        of_windows = () if self.is_followed else ("swa_evictable_size", "swa_protected_size")
        return [(name, ask) for name, ask in super().size_calls() if name not in of_windows]

    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        window = self.number("window" if self.is_followed else "sliding_window")
        cache = load_mllm("radix_cache").RadixCache
        return cache(self.number("page_size"), window, self.pool, on_node_evict)

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> out.Result:
        """Refuse to free halves early, which would make tombstones."""
        if self.is_followed:
            return super().do_free_swa(step, operation)
        raise UnsupportedError("halves are given back with their slots only")

    def window_of(self, operation: ops.Insert) -> dict[str, int]:
        if not self.is_followed:
            return {"prev_prefix_len": len(operation.key.tokens)}
        evicted = operation.swa_evicted_seqlen
        return {"prev_prefix_len": operation.prev_prefix_len, "swa_evicted_seqlen": evicted}

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Insert a key, and find the slots that the cache took for tombstones in its nodes."""
        before = {*self.cached_slots()}
        inserted = super().do_insert(step, operation)
        if not (self.is_followed and isinstance(inserted, out.Inserted)):
            return inserted
        taken, adopted = {*self.cached_slots()} - before, list[tuple[int, int]]()
        for at, slot in enumerate(self.numbers(operation.slots or ())):
            if slot in taken:
                start = adopted.pop()[0] if adopted and adopted[-1][1] == at else at
                adopted.append((start, at + 1))
        return dataclasses.replace(inserted, adopted=tuple(adopted))

    def do_lock(self, step: int, operation: ops.Lock) -> out.Result:
        """Take a hold, without its token if no window is claimed."""
        locked = super().do_lock(step, operation)
        return locked if self.is_followed else out.Locked()

    def release(self, node: Any, token: Any) -> None:
        self.cache.dec_lock_ref(node, token)

    def view(self, node: Any) -> dict[str, Any]:
        if not self.is_followed:
            return super().view(node)
        own = {"is_alive": not node.swa_tombstone, "swa_lock_ref": node.swa_lock_ref}
        return super().view(node) | own | {"boundary": node.swa_boundary_id}


class MllmMamba(MllmTree):
    """The adapter of ``MambaRadixCache`` over mllm's ``GDNPool`` with a number of ``track_slots``.

    States are claimed by ``also`` only: its matches do not end at states, as M2 has it, and its engine hands
    none over but keeps a table of its own by node.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["token"], track_slots=3),
        *pool_configurations([None], ["token"], track_slots=3, **_BEHIND),
    )

    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        pools = load_mllm("memory_pool")
        inner = pools.GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=self.number("track_slots"))
        self.states = RecordingStatePool(inner, lambda effect: self.effects.append(effect))
        cache = load_mllm("mamba_radix_cache").MambaRadixCache
        return cache(self.number("page_size"), self.pool, self.states, on_node_evict)

    def view(self, node: Any) -> dict[str, Any]:
        own = {"lock_ref": node.full_lock_ref}
        if not self.has_states:
            return own
        return own | {"state": self.state_of(node), "state_lock_ref": node.mamba_lock_ref}

    # -- states --------------------------------------------------------------------------------------------

    def state_of(self, node: Any) -> int | None:
        """Return the track slot of a node's state; an empty tensor means none."""
        is_without = node is None or node.mamba_value is None or not len(node.mamba_value)
        return None if is_without else int(node.mamba_value[0])

    def states_of(self, operation: ops.Insert) -> dict[str, torch.Tensor]:
        if operation.state is None:
            return {}
        self._require_states()
        return {"mamba_value": torch.tensor([self.one(operation.state)], dtype=torch.int64)}

    def do_alloc_track(self, step: int, operation: ops.AllocTrack) -> out.Result:
        self._require_states()
        slot = self.states.inner.alloc_track_slot()
        return out.NoRoom() if slot is None else out.Slots((slot,))

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> out.Result:
        self._require_states()
        self.states.inner.free_track_slot(self.one(operation.slot))
        return out.Done()

    def _require_states(self) -> None:
        if not self.has_states:
            raise UnsupportedError("states are not handed over")
