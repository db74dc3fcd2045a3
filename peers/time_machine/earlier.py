"""Adapters of sglang's caches in releases before 0.5.22: one contract, four ways to call it.

Use one as ``--adapter peers.time_machine.earlier:EarlierRadix`` from the repository's root, with
``PYMLLM_ANY_VERSION=1``. What a release lacks is told by what is there, not by its number: records of
parameters (from 0.5.8 and 0.5.9 on), keys with a namespace (0.5.3), results of evictions (0.5.9) and of
holds (0.5.10).
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar
from unittest import mock

import msgspec
import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.key_forms import read_namespace, spell_namespace
from pymllm.adapters.simple import SlotAdapter
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.sglang import mamba, pools
from pymllm_peers.sglang import slots as sglang_slots
from pymllm_peers.sglang import tree as sglang_tree
from pymllm_peers.sglang.caches import SglangRadix, SglangSWA
from pymllm_peers.sglang.mamba import SglangMamba
from pymllm_peers.sglang.package import STAND_INS, load_sglang
from pymllm_peers.sglang.slots import SglangRows, SglangSWASlots
from pymllm_peers.sglang.tree import SglangTree


def _first(name: str, *modules: str) -> Any:
    """Return the attribute of this name from the first of sglang's modules that has it."""
    for module in modules:
        try:
            return getattr(load_sglang(f"mem_cache.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"sglang has no {name}")


def _parameters_of(name: str) -> Any:
    """Return a class of parameters, or ``None`` where calls take them one by one."""
    return getattr(load_sglang("mem_cache.base_prefix_cache"), name, None)


def _named(call: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for which a call has a parameter."""
    known = inspect.signature(call).parameters
    return {name: value for name, value in values.items() if name in known}


def _raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except NotImplementedError:
        return True
    return False


def make_allocator(page_size: int, slots: int, swa_slots: int | None = None, need_sort: bool = False) -> Any:
    """Build the allocator of slots that this release would choose on the CPU."""
    name = "TokenToKVPoolAllocator" if page_size == 1 else "PagedTokenToKVPoolAllocator"
    modules = ("allocator.token", "allocator.paged", "allocator", "paged_allocator", "memory_pool")
    values = {"size": slots, "page_size": page_size, "dtype": torch.float16, "device": "cpu", "kvcache": None}
    if swa_slots is not None:
        name, modules = "SWATokenToKVPoolAllocator", ("allocator.swa", "swa_memory_pool", "allocator")
        values |= {"size_swa": swa_slots, "kvcache": _kv_of_halves()}
    made = _first(name, *modules)
    allocator = made(**_named(made, values | {"need_sort": need_sort}))
    if swa_slots is not None and _raises(allocator.available_size):
        sizes = (allocator.full_available_size, allocator.swa_available_size)
        allocator.available_size = lambda: min(size() for size in sizes)  # nobody asked for it
    if swa_slots is not None:
        pools.extend_on_host(allocator.full_attn_allocator)
    return allocator


def _kv_of_halves() -> Any:
    try:
        return pools._make_kv_of_halves()
    except (ImportError, AttributeError):
        base = _first("SWAKVPool", "swa_memory_pool", "memory_pool")

    def register_mapping(self: Any, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    names: dict[str, Any] = dict.fromkeys(base.__abstractmethods__, lambda self: None)
    names |= {"__init__": lambda self: None, "register_mapping": register_mapping}
    kv: Any = type("KVOfHalves", (base,), names)()
    kv.full_kv_pool = kv.swa_kv_pool = None
    return kv


class _States(pools.SglangStates):
    """The slots of states in ``MambaPool``, before there was an allocator for them."""

    def __init__(self, slots: int, record: Callable[[out.Effect], None]) -> None:
        pools.CallRecorder.__init__(self, record)
        memory = load_sglang("mem_cache.memory_pool")
        self.allocator: Any = type("Slots", (memory.MambaPool,), {"__init__": lambda self: None})()
        self.allocator.size, self.allocator.device, self.allocator.is_kda_cache = slots, "cpu", False
        # Nothing is stored: one layer, one number each.
        stored = torch.zeros(1, slots + 1)
        source = inspect.getsource(memory.MambaPool)
        conv = [stored] if "conv[i][" in source and "is_kda_cache" not in source else stored
        self.allocator.mamba_cache = types.SimpleNamespace(conv=conv, temporal=stored.clone())
        self.allocator.clear()
        pool = type("RequestsWithStates", (memory.HybridReqToTokenPool,), {"__init__": lambda self: None})
        self.request_pool: Any = pool()
        self.request_pool.mamba_pool = self.allocator
        self.watch(self.allocator, "free", "free_state")


def make_states(slots: int, record: Callable[[out.Effect], None]) -> pools.SglangStates:
    """Build the allocator of states of this release."""
    try:
        load_sglang("mem_cache.allocator.mamba")
    except ImportError:
        return _States(slots, record)
    return pools.SglangStates(slots, record)


# Releases before 0.4.8 import a reader of videos, and compile some of what no cache calls.
STAND_INS.setdefault("decord", "reads videos")
with mock.patch.object(torch, "compile", lambda *function, **how: function[0] if function else lambda it: it):
    load_sglang("mem_cache.radix_cache")
sglang_tree.make_allocator = make_allocator  # type: ignore[attr-defined]
sglang_slots.make_allocator = make_allocator  # type: ignore[attr-defined]
mamba.SglangStates = make_states  # type: ignore[attr-defined]


class EarlierTree(SglangTree):
    """The calls of a cache of an earlier release, in place of those of `SglangTree`."""

    MODULE: ClassVar[str]
    NAME: ClassVar[str]

    def make_cache(self, page_size: int) -> Any:
        """Build the examined cache over the pool, with the parameter names of its constructor."""
        made = getattr(load_sglang(f"mem_cache.{self.MODULE}"), self.NAME)
        values = {"disable": False, "req_to_token_pool": None, "page_size": page_size}
        values |= {"token_to_kv_pool_allocator": self.pool.allocator} | self.more_parameters(page_size)
        try:
            params = load_sglang("mem_cache.cache_init_params").CacheInitParams
        except ImportError:
            return made(**_named(made, values))
        rest = _named(made, values) if len(inspect.signature(made).parameters) > 1 else {}
        return made(params(**_named(params, values)), **rest)

    def more_parameters(self, page_size: int) -> dict[str, Any]:
        """Return the parameters of this cache alone."""
        return {}

    @property
    def has_namespaces(self) -> bool:
        """Whether keys have namespaces in this release."""
        return hasattr(load_sglang("mem_cache.radix_cache"), "RadixKey")

    def claim(self) -> frozenset[str]:
        """Claim namespaces only where the release has them."""
        return super().claim() - (set() if self.has_namespaces else {"extra_key"})

    def key_of(self, key: ops.Key) -> Any:
        """Return a key of whole pages: callers cut it off until insertions did."""
        whole = ops.Key(key.tokens[: self.whole(len(key.tokens))], key.extra_key)
        if not self.has_namespaces:
            return [token for token in whole.tokens if isinstance(token, int)]
        made = super().key_of(whole)
        if not hasattr(made, "page_aligned"):  # and tokens came as a list
            made.token_ids = list(made.token_ids)
        return made

    def call_match(self, key: Any) -> Any:
        """Match a key, which was answered by a pair before 0.4.8."""
        params = _parameters_of("MatchPrefixParams")
        found = self.cache.match_prefix(key if params is None else params(key=key))
        if hasattr(found, "device_indices"):
            return found
        return types.SimpleNamespace(device_indices=found[0], last_device_node=found[1])

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        result = self.call_match(self.key_of(operation.key))
        node = self._nodes[step] = result.last_device_node
        return self.matched(operation, node, result)

    def matched(self, operation: ops.Match, node: Any, result: Any) -> out.Matched:
        """Make the result of a match."""
        slots = tuple(result.device_indices.tolist())
        dtype = str(result.device_indices.dtype).removeprefix("torch.")
        return out.Matched(slots, len(slots), self.node_length(node, operation.key), dtype)

    def call_insert(self, operation: ops.Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert, and find the node."""
        value = value[: self.whole(len(value))].clone()  # callers made a copy of whole pages
        params, more = _parameters_of("InsertParams"), self.more_of_insert(operation)
        if params is None:
            found = self.cache.insert(key, value, **_named(self.cache.insert, more))
            prefix, exists = found if isinstance(found, tuple) else (found, False)
        else:
            told = self.cache.insert(params(key=key, value=value, **_named(params, more)))
            prefix, exists = told.prefix_len, getattr(told, "mamba_exist", False)
        node = self.call_match(self.key_of(operation.key)).last_device_node
        return types.SimpleNamespace(prefix_len=prefix, mamba_exist=exists, last_device_node=node)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Evict; before evictions returned counts, count the slots that went back to the pools."""
        if _parameters_of("EvictParams") is not None:
            return super().do_evict(step, operation)
        self.cache.evict(max(0, operation.tokens))
        gone = [slot for effect in self.effects if effect.call == "free" for slot in effect.slots]
        return out.Evicted(len(gone))

    def unlock(self, node: Any, token: Any) -> None:
        """Release a hold with the answer of its lock, where this release of sglang takes the answer."""
        if hasattr(token, "to_dec_params"):
            self.cache.dec_lock_ref(node, token.to_dec_params())
        elif dataclasses.is_dataclass(token):
            params = _parameters_of("DecLockRefParams")
            self.cache.dec_lock_ref(node, params(swa_uuid_for_lock=token.swa_uuid_for_lock))
        elif self.NAME == "SWARadixCache":
            self.cache.dec_lock_ref(node, token)
        else:
            self.cache.dec_lock_ref(node)

    def shown_token(self, token: Any) -> int | str | None:
        """Return no token: all caches of a process number the edges of windows together."""
        return None

    def node_length(self, node: Any, key: ops.Key) -> int | None:
        return sum(len(part.key) for part in self._climb(node))


def _radix_knows(policy: str) -> bool:
    """Tell whether a radix tree of this release can be built with a policy."""
    try:
        load_sglang("mem_cache.cache_init_params")
        strategies = vars(load_sglang("mem_cache.evict_policy"))
    except ImportError:
        return False
    return {"inserts": "LFUStrategy", "priority": "PriorityStrategy"}[policy] in strategies


class EarlierRadix(EarlierTree, SglangRadix):
    """``RadixCache`` of releases from 0.4.8 on.

    With the key ``events`` in its configuration the hashes of pages are those of the events that it sent when
    it stored them, as a router keeps them.
    """

    MODULE, NAME = "radix_cache", "RadixCache"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, **more}
        for config in SglangRadix.CONFIGURATIONS
        for more in ({}, {"events": True})
        if ("policy" not in config or (_radix_knows(str(config["policy"])) and not more))
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        self._told: dict[tuple[Any, ...], str] = {}
        super().__init__(name, config)

    def claim(self) -> frozenset[str]:
        """Claim hashes, where events contain them; nodes are shown without hashes."""
        claimed = super().claim()
        return (claimed - {"inspect"}) | {"hashes"} if "events" in self.config else claimed

    def more_parameters(self, page_size: int) -> dict[str, Any]:
        return {"eviction_policy": self.policy, "enable_kv_cache_events": "events" in self.config}

    def insert_and_look(self, operation: ops.Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert, and note the hashes of the new blocks, which were stored last."""
        result = super().insert_and_look(operation, key, value)
        size, tokens = self.page_size, operation.key.tokens
        ends = range(result.prefix_len + size, self.whole(len(tokens)) + 1, size)
        stored = [event for event in self.cache.take_events() if hasattr(event, "parent_block_hash")]
        hashes = [digest for event in stored for digest in event.block_hashes]
        for end, digest in zip(reversed(ends), reversed(hashes), strict=False):
            self._told[operation.key.extra_key, *tokens[:end]] = str(digest)
        return result

    def do_hash(self, step: int, operation: ops.Hash) -> out.Result:
        """Return the hashes that events had for the pages of a path."""
        if "events" not in self.config:
            raise UnsupportedError("no events are sent")
        node = self.node_of(operation.of)  # none in a tree that was reset, which left the root alone
        path = [] if node is None else [*self._climb(node)][::-1]
        tokens = [token for node in path for token in getattr(node.key, "token_ids", node.key)]
        name = read_namespace(getattr(path[0].key, "extra_key", None)) if path else None
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return out.Hashes(tuple(self._told[name, *tokens[:end]] for end in ends))

    def view(self, node: Any, parent: int | None) -> out.NodeView:
        """Describe a node, whose key was a list before there were namespaces."""
        if self.has_namespaces:
            return super().view(node, parent)
        parts = {"id": node.id, "value": node.value, "lock_ref": node.lock_ref}
        key = types.SimpleNamespace(token_ids=node.key, extra_key=None)
        return super().view(types.SimpleNamespace(key=key, **parts), parent)


class FirstRadix(EarlierRadix):
    """``RadixCache`` with pages of one token, as before 0.4.8 a kernel allocates larger ones."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config for config in EarlierRadix.CONFIGURATIONS if config["page_size"] == 1
    )


class _OneRow:
    """The row of the only request, in a table without others."""

    def __init__(self, slots: torch.Tensor) -> None:
        self.req_to_token = slots.to(torch.int32)[None].clone()

    def write(self, where: Any, slots: torch.Tensor) -> None:
        """Write a part of the row."""
        self.req_to_token[where] = slots.to(torch.int32)

    def free(self, row: Any) -> None:
        """Give the row back."""


class _WholeRequest(types.SimpleNamespace):
    """The attributes that caches read from a request, which later releases keep in a separate object."""

    req_pool_idx, priority, cache_salt = 0, 0, None
    swa_prefix_lock_released = False

    @property
    def kv(self) -> _WholeRequest:
        """The request itself."""
        return self

    @property
    def origin_input_ids(self) -> Any:
        """All tokens of the request, since all are of its prompt."""
        return self.fill_ids

    @property
    def output_ids(self) -> Any:
        """No tokens, since the request has no output."""
        return self.fill_ids[:0]

    def get_fill_ids(self) -> Any:
        """Return the tokens of the request."""
        return self.fill_ids

    def pop_committed_kv_cache(self) -> int:
        """Return the number of tokens that have KV."""
        return len(self.fill_ids)


def _halves_have_pages() -> bool:
    """Tell whether slots with halves come in pages of several tokens, as from 0.5.8 on."""
    made = _first("SWATokenToKVPoolAllocator", "allocator.swa", "swa_memory_pool", "allocator")
    return "page_size" in inspect.signature(made).parameters


class EarlierSWA(EarlierTree, SglangSWA):
    """``SWARadixCache`` of releases from 0.4.10 on.

    A key of its configuration, ``handed_over``, lets an insert be that of a request which is ``unfinished``
    or ``finished``: the cache gets the request, takes and releases holds, and inserts what it finds right.
    """

    MODULE, NAME = "swa_radix_cache", "SWARadixCache"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, **more}
        for config in SglangSWA.CONFIGURATIONS
        for more in ({}, {"handed_over": "unfinished"}, {"handed_over": "finished"})
        if (config["page_size"] == 1 or _halves_have_pages()) and (not more or config["window"] == 4)
    )
    LIMITS: ClassVar[Mapping[str, str]] = {
        **SglangSWA.LIMITS,
        "insert": "a release takes what a request matched, with the halves of its window",
    }

    def more_parameters(self, page_size: int) -> dict[str, Any]:
        return {"sliding_window_size": self.window}

    @property
    def shows_nodes(self) -> bool:
        """Whether a new leaf is one node, as before it was split where its window begins."""
        cache = load_sglang("mem_cache.swa_radix_cache").SWARadixCache
        return not (hasattr(cache, "_maybe_split_leaf_for_swa_lock") or self.is_followed)

    def claim(self) -> frozenset[str]:
        """Claim nodes, if they stay as they were inserted."""
        return super().claim() | ({"inspect"} if self.shows_nodes else set())

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Insert a key; refuse given-back halves where this release's insert takes no such argument."""
        call = _parameters_of("InsertParams") or self.cache.insert
        if operation.swa_evicted_seqlen and "swa_evicted_seqlen" not in inspect.signature(call).parameters:
            raise UnsupportedError("halves are given back with their slots only, or by the cache")
        return super().do_insert(step, operation)

    def call_insert(self, operation: ops.Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert, or let the cache insert for a request."""
        if "handed_over" not in self.config or not self.whole(len(operation.key.tokens)):
            return super().call_insert(operation, key, value)
        return self.hand_over(operation, value[: self.whole(len(value))].clone())

    def hand_over(self, operation: ops.Insert, slots: torch.Tensor) -> Any:
        """Play a request that takes over its match's hold; return the answer of its insert."""
        known, gone, length = operation.prev_prefix_len, operation.swa_evicted_seqlen, len(slots)
        if gone > known and length - gone < self.window:
            raise UnsupportedError("a request keeps the halves of its window")
        key, name = operation.key, operation.key.extra_key
        found = self.call_match(self.key_of(ops.Key(key.tokens[:known], name)))
        if len(found.device_indices) < known:
            raise UnsupportedError("a request has matched what it says")
        edge, told, spelled = self.lock(found.last_device_node), [], self.key_of(key)
        request = _WholeRequest(
            fill_ids=getattr(spelled, "token_ids", spelled),
            extra_key=spell_namespace(name),
            prefix_indices=slots[:known],
            cache_protected_len=known,
            swa_evicted_seqlen=gone,
            last_node=found.last_device_node,
            swa_uuid_for_lock=getattr(edge, "swa_uuid_for_lock", edge),
        )
        self.cache.req_to_token_pool = _OneRow(slots)
        insert = self.cache.insert
        self.cache.insert = lambda *given, **named: told.append(insert(*given, **named)) or told[-1]
        try:
            if self.config["handed_over"] == "finished":
                end = self.cache.cache_finished_req
                end(request, **_named(end, {"kv_len_to_handle": length}))
            else:
                self.cache.cache_unfinished_req(request)
                edge, params = request.swa_uuid_for_lock, _parameters_of("DecLockRefParams")
                given = edge if params is None else params(swa_uuid_for_lock=edge)
                self.cache.dec_lock_ref(request.last_node, given)
        finally:
            self.cache.insert = insert
        return types.SimpleNamespace(prefix_len=getattr(told[0], "prefix_len", told[0]), mamba_exist=False)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Evict; before evictions returned counts, count the slots and halves that went back."""
        if _parameters_of("EvictParams") is not None:
            return super().do_evict(step, operation)
        before = self.pool.table()
        window = max(0, operation.secondary) if self.is_followed else 0
        self.cache.evict(max(0, operation.tokens), window)
        halves = sum(old > 0 >= new for old, new in zip(before, self.pool.table(), strict=True))
        return out.Evicted(self.gone("free"), halves if self.is_followed else 0)

    def nodes(self) -> Iterable[tuple[Any, Any]]:
        """Return every node but the root with its parent, parents before their children."""
        return SglangTree.nodes(self)

    def spelled(self, node: Any) -> tuple[tuple[int, ...], str | None]:
        """Return the tokens of a node, whose key was a list before there were namespaces."""
        return super().spelled(node) if self.has_namespaces else (tuple(node.key), None)

    def view(self, node: Any, parent: int | None) -> out.NodeView:
        """Describe a node, whose key was a list before there were namespaces."""
        locks, value = node.full_lock_ref, node.value
        if not self.has_namespaces:
            key = types.SimpleNamespace(token_ids=node.key, extra_key=None)
            node = types.SimpleNamespace(id=node.id, key=key)
        return self.view_of(node, parent, value, lock_ref=locks)


class EarlierMamba(EarlierTree, SglangMamba):
    """``MambaRadixCache`` of releases from 0.5.7 on."""

    MODULE, NAME = "mamba_radix_cache", "MambaRadixCache"

    def claim(self) -> frozenset[str]:
        """Claim branching only where matches report it."""
        result = load_sglang("mem_cache.base_prefix_cache").MatchResult
        tells = "mamba_branching_seqlen" in inspect.signature(result).parameters
        return super().claim() - (set() if tells else {"branching"})

    def more_parameters(self, page_size: int) -> dict[str, Any]:
        return {"req_to_token_pool": self.states.request_pool, "enable_mamba_extra_buffer": page_size > 1}

    def make_cache(self, page_size: int) -> Any:
        """Build a cache; the chunk of kernels comes from arguments, as on a server."""
        module = load_sglang("mem_cache.mamba_radix_cache")
        told = types.SimpleNamespace(mamba_cache_chunk_size=page_size)
        for name in ("get_server_args", "get_global_server_args"):
            if hasattr(module, name):
                setattr(module, name, lambda: told)
        if hasattr(module, "FLA_CHUNK_SIZE"):
            module.FLA_CHUNK_SIZE = page_size
        return super().make_cache(page_size)

    def matched(self, operation: ops.Match, node: Any, result: Any) -> out.Matched:
        """Make the result of a match, including the state at its end."""
        state = None if node.mamba_value is None else int(node.mamba_value[0])
        found = EarlierTree.matched(self, operation, node, result)
        branching = getattr(result, "mamba_branching_seqlen", None)
        return msgspec.structs.replace(found, state=state, branching=branching)

    def call_insert(self, operation: ops.Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert; a key without a page is not inserted."""
        if operation.state is None:
            raise UnsupportedError("a key without a page comes without a state")
        return super().call_insert(operation, key, value)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Evict KV, then the states still missing, and count both."""
        if _parameters_of("EvictParams") is not None:
            return SglangMamba.do_evict(self, step, operation)
        self.cache.evict(max(0, operation.tokens))
        self.cache.evict_mamba(max(0, operation.secondary - self.gone("free_state")))
        return out.Evicted(self.gone("free"), 0, self.gone("free_state"))

    def reset(self) -> None:
        """Empty the cache, and free its states, as a server does."""
        if not hasattr(self.cache, "all_mamba_values_flatten"):
            self.cache.all_mamba_values_flatten = lambda: [
                view.state for view in self.views() if view.state is not None
            ]
        super().reset()

    def cached_slots(self) -> list[int]:
        """Return every slot in the tree."""
        return [slot for view in self.views() for slot in view.slots]


class FirstMamba(EarlierMamba):
    """``MambaRadixCache`` with pages of one token, as in releases 0.5.4 to 0.5.6."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config for config in EarlierMamba.CONFIGURATIONS if config["page_size"] == 1
    )


class EarlierSWASlots(SglangSWASlots):
    """``SWATokenToKVPoolAllocator`` without sorting, which came later, and with pages, where they exist."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config
        for config in SglangSWASlots.CONFIGURATIONS
        if not config["need_sort"] and (config["page_size"] == 1 or _halves_have_pages())
    )


class EarlierRows(SglangRows):
    """``ReqToTokenPool``, whose rows are taken and freed by other calls."""

    def do_alloc_rows(self, step: int, operation: ops.AllocRows) -> out.Slots | out.NoRoom:
        if hasattr(self.pool, "alloc_rows"):
            return super().do_alloc_rows(step, operation)
        asked: Any = operation.count
        if "reqs" in inspect.signature(self.pool.alloc).parameters:
            asked = [_request(None) for _ in range(operation.count)]
        rows = self.pool.alloc(asked)
        return out.NoRoom() if rows is None else out.Slots(tuple(map(int, rows)))

    def do_free_row(self, step: int, operation: ops.FreeRow) -> out.Done:
        if hasattr(self.pool, "free_rows"):
            return super().do_free_row(step, operation)
        row = self.one(operation.row)
        takes_request = "req" in inspect.signature(self.pool.free).parameters
        self.pool.free(_request(row) if takes_request else row)
        return out.Done()


def _request(row: int | None) -> Any:
    """Return the request that a pool of rows expects: that it is new, and has this row."""
    return types.SimpleNamespace(
        req_pool_idx=row, is_chunked=0, inflight_middle_chunks=0, kv_committed_len=0, kv=None
    )


class EarlierStateSlots(SlotAdapter):
    """Slots of states without a cache: the slot that padded rows write to is never handed out (A1)."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 1, "pages": 6}, {"page_size": 1, "pages": 2})

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.pool = make_states(self.number("pages"), lambda effect: None).allocator

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        return {"available_size": int(self.pool.available_size())}

    def alloc(self, tokens: int) -> Sequence[int] | None:
        found = self.pool.alloc(tokens)
        return None if found is None else [int(slot) for slot in found]

    def free(self, slots: Sequence[int]) -> None:
        self.pool.free(torch.tensor(slots, dtype=torch.int64))

    def clear(self) -> None:
        self.pool.clear()
