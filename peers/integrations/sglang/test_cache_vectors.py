"""Cache vectors on sglang's slot allocators and radix trees: programs, with what each step must come to.

CPU only, no model, nothing to install. Beside this lie ``run_vectors.py``, ``known.json`` and the vectors
in the folder ``v1``; peers/integrations/README.md of pymllm says where they come from. Run it with pytest.

Copyright: the authors of pymllm. Licence: Apache-2.0.
"""

import importlib
import itertools
import json
import sys
from array import array
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache import component_type, tree_core_registry
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.test.kits.unified_radix_cache.unified_tree_core_inspector import UnifiedTreeCoreInspector

HERE = Path(__file__).resolve().parent
VECTORS, KNOWN = HERE / "v1", json.loads((HERE / "known.json").read_text(encoding="utf-8"))
sys.path.insert(0, str(HERE))
run_vectors = importlib.import_module("run_vectors")

FULL, SWA, MAMBA = (component_type.ComponentType[name] for name in ("FULL", "SWA", "MAMBA"))
DONE, NO_ROOM = {"is": "done"}, {"is": "no_room"}
CALLS = {"clear": "clear", "begin_group": "free_group_begin", "end_group": "free_group_end"}
CLAIMS_OF_CORES = {"python": set(), "rust": {"hashes"}, "python-inspector": {"inspect"}}
CLAIMS_OF_KINDS = {(): set(), (SWA,): {"swa"}, (MAMBA,): {"mamba", "branching", "bare_holds"}}


class Slots:
    """The slot allocators. What a tree over one gave back is read from what is free before and after."""

    has_pool = False  # the pool of a tree
    CLAIMS = frozenset({"pool", "groups", "swa", "merges", "sorted"})

    @staticmethod
    def fits(config):
        return set(config) <= {"page_size", "pages", "swa_pages", "need_sort", "check_ownership", "store"}

    def __init__(self, config):
        """Make the allocator that sglang takes for such a page; where there is no pool, tokens are slots."""
        size = self.page_size = config["page_size"]
        slots = config.get("slots") or config.get("pages", 1024) * size
        halves = config.get("swa_slots") or config.get("swa_pages", 0) * size
        self.states = MambaSlotAllocator(config.get("track_slots", 0), "cpu")
        kind, need_sort, self.has_halves = (torch.float16, "cpu"), config.get("need_sort", False), halves > 0
        if self.has_halves:
            pool = mock.MagicMock(spec=BaseSWAKVPool, swa_req_ring_size=None)
            self.allocator = SWATokenToKVPoolAllocator(slots, halves, size, *kind, pool, need_sort)
            table = pool.full_to_swa_index_mapping = self.allocator.full_to_swa_index_mapping
            pool.translate_loc_from_full_to_swa = table.__getitem__
        elif size > 1:
            self.allocator = PagedTokenToKVPoolAllocator(slots, size, *kind, None, need_sort)
        else:
            self.allocator = TokenToKVPoolAllocator(slots, *kind, None, need_sort)

    def apply(self, step, op):
        """Carry an operation out, by the method or the call of its name; slots in it are numbers."""
        method, call = getattr(self, f"do_{op['op']}", None), CALLS.get(op["op"])
        if method is None and call is None:
            return {"result": {"is": "unsupported", "what": op["op"]}}
        before = self.look()
        result = method(step, op) if method else getattr(self.allocator, call)()
        return {"result": result or DONE, "effects": self.effects(op, *before), "sizes": self.sizes()}

    def look(self):
        """Return the free slots, each as often as it was freed, the halves of all, and the free states."""
        full = self.allocator.full_attn_allocator if self.has_halves else self.allocator
        pages = torch.cat([it for it in (full.free_pages, full.release_pages) if it is not None]).tolist()
        slots = (page * self.page_size + at for page in pages for at in range(self.page_size))
        table = self.allocator.full_to_swa_index_mapping.tolist() if self.has_halves else []
        halves = {slot: half for slot, half in enumerate(table) if half > 0}
        return Counter(slots), halves, Counter(self.states.free_slots.tolist())

    def effects(self, op, slots, halves, states):
        """Tell what a tree gave back: slots, states, and halves of slots that stay; no caller's own calls."""
        if not self.has_pool or "free" in op["op"] or "alloc" in op["op"]:
            return []
        free, left, free_states = self.look()
        gone = {"free": [*(free - slots).elements()], "free_state": [*(free_states - states).elements()]}
        gone["free_swa"] = [slot for slot in halves if slot not in left and not free[slot]]
        return [{"call": call, "slots": them} for call, them in gone.items() if them]

    def sizes(self):
        names = ["full_available_size", "swa_available_size"] if self.has_halves else []
        return {name: getattr(self.allocator, name)() for name in ("available_size", *names)}

    def do_alloc(self, step, op):
        """Take slots as the scheduler does, which rounds up to pages."""
        whole = -(-op["tokens"] // self.page_size) * self.page_size
        if self.has_halves and self.page_size > 1:
            none, length = torch.tensor([0]), torch.tensor([whole])
            found = self.allocator.alloc_extend(none, none, length, length, torch.tensor([-1]), whole)
        else:
            found = self.allocator.alloc(whole)
        slots, halves = [] if found is None else found[: op["tokens"]].tolist(), self.look()[1]
        answer = {"is": "slots", "slots": slots, "swa_slots": [halves[slot] for slot in slots if halves]}
        return NO_ROOM if found is None else answer

    def do_free(self, step, op):
        """Give slots back; those without their half by a call of their own."""
        halves = self.look()[1]
        bare = [slot for slot in op["slots"] if self.has_halves and slot not in halves]
        rest = [slot for slot in op["slots"] if slot not in bare]
        self.allocator.free(torch.tensor(rest, dtype=torch.int64))
        if bare:
            self.allocator.free_full(torch.tensor(bare))

    def do_free_swa(self, step, op):
        self.allocator.free_swa(torch.tensor(op["slots"]))


class Unified(Slots):
    """A `UnifiedRadixCache` over an allocator; nodes and holds are known by the step that returned them."""

    CLAIMS, KINDS = frozenset({"pool", "extra_key", "node_ids"}), (FULL,)
    BACKEND, CORES, FULL_SIZES = "python", {}, "full_"

    @classmethod
    def fits(cls, config):
        known = {"page_size", "window", "pool", "slots", "swa_slots", "track_slots", "check_ownership"}
        kinds = (FULL, *[SWA] * (config["window"] is not None), *[MAMBA] * ("track_slots" in config))
        return set(config) <= known and kinds == cls.KINDS and (config["pool"] == "swa") == (SWA in kinds)

    def __init__(self, config):
        super().__init__(config)
        self.has_pool, self.nodes, self.holds = config["pool"] != "none", {}, {}
        rows = mock.MagicMock(spec=HybridReqToTokenPool, mamba_allocator=self.states)
        params = CacheInitParams(False, rows, self.allocator, self.page_size, tree_core_backend=self.BACKEND)
        params.tree_components, params.sliding_window_size = self.KINDS, config["window"]
        params.enable_mamba_extra_buffer = MAMBA in self.KINDS and self.page_size > 1
        self.tree = self.build(params)

    def build(self, params):
        """Build it with the settings of a server that keeps a state at every page."""
        server = mock.Mock(_mamba_cache_chunk_size=self.page_size)
        bags = {"exec": mock.Mock(mamba=mock.Mock(mamba_max_states_per_path=-1))}
        settings = mock.patch.multiple(get_context(), _server_args=server, _config_bags=bags)
        with settings, mock.patch.dict(tree_core_registry._TREE_CORE_REGISTRY, self.CORES):
            tree = UnifiedRadixCache(params)
        if tree._tree_core_backend != self.BACKEND:
            pytest.skip(f"sglang has no TreeCore in {self.BACKEND} here")
        return tree

    def sizes(self):
        kinds = [self.FULL_SIZES, *(f"{kind.name.lower()}_" for kind in self.KINDS[1:])]
        names = [f"{kind}{size}" for kind in kinds for size in ("evictable_size", "protected_size")]
        sizes = {name.removeprefix("full_"): getattr(self.tree, name)() for name in names}
        total = self.tree.total_size()
        sizes["total_size"] = total if isinstance(total, int) else total[0]
        sizes["available_track_slots"] = self.states.available_size()
        return sizes | (super().sizes() if self.has_pool else {})

    def do_alloc_track(self, step, op):
        found = self.states.alloc(1)
        return NO_ROOM if found is None else {"is": "slots", "slots": found.tolist()}

    def key(self, op):
        """Return a key; namespaces are texts to sglang, and a number is spelled like no text."""
        extra = op["key"].get("extra_key")
        spelled = None if extra is None else f"{type(extra).__name__}:{extra}"
        return RadixKey(array("q", op["key"]["tokens"]), spelled)

    def do_match(self, step, op):
        found = self.tree.match_prefix(MatchPrefixParams(key=self.key(op)))
        node = self.nodes[step] = found.last_device_node
        slots = self.tree.path_device_indices(node)
        dtype, length = str(slots.dtype).removeprefix("torch."), int(found.device_prefix_len)
        answer = {"slots": slots.tolist(), "prefix_len": length, "node_len": len(slots), "dtype": dtype}
        has_state = MAMBA in self.KINDS and length
        value = self.tree.tree_core.get_component_device_value(node, MAMBA) if has_state else None
        state, branching = value if value is None else int(value[0]), found.mamba_branching_seqlen
        return {"is": "matched", "state": state, "branching": branching, **answer}

    def do_insert(self, step, op):
        """Insert; told that all of it was there before, the tree leaves duplicates to its caller."""
        tokens, more = op["key"]["tokens"], {"prev_prefix_len": len(op["key"]["tokens"])}
        if "state" in op:
            more["mamba_value"] = torch.tensor([op["state"]])
        elif MAMBA in self.KINDS and len(tokens) >= self.page_size:
            return {"is": "unsupported", "what": "a key without a state"}
        if SWA in self.KINDS:
            more = {"prev_prefix_len": op.get("prev_prefix_len", 0), "track_adopted_ranges": True}
            more["component_evicted_seqlens"] = {SWA: op.get("swa_evicted_seqlen", 0)}
        value = torch.tensor(op.get("slots", tokens), dtype=torch.int64)
        result = self.tree.insert(InsertParams(key=self.key(op), value=value, **more))
        node = self.nodes[step] = result.last_device_node
        start, stop = result.prefix_len, len(tokens) // self.page_size * self.page_size
        known = (result.adopted_ranges or {}).get(FULL, ())  # of windows, where it may begin earlier
        adopted = [*map(list, known)] if SWA in self.KINDS else [[start, stop]] * (start < stop)
        answer = {"is": "inserted", "prefix_len": start, "adopted": adopted}
        answer["state_exists"] = "state" in op and result.mamba_exist
        return answer | {"node_len": len(self.tree.path_device_indices(node))}

    def do_evict(self, step, op):
        seconds = {SWA: "swa_num_tokens", MAMBA: "mamba_num"}
        more = {seconds[kind]: op.get("secondary", 0) for kind in self.KINDS[1:]}
        gone = self.tree.evict(EvictParams(num_tokens=op["tokens"], **more))
        counts = gone.num_tokens_evicted, gone.swa_num_tokens_evicted, gone.mamba_num_evicted
        return {"is": "evicted", **dict(zip(("full", "swa", "states"), counts, strict=True))}

    def do_lock(self, step, op):
        node = self.nodes[step] = self.nodes[op["of"]]
        self.holds[step] = self.tree.inc_lock_ref(node)
        return {"is": "locked"}

    def do_unlock(self, step, op):
        if op["lock"] in self.holds:  # none outlives a reset
            self.tree.dec_lock_ref(self.nodes[op["lock"]], self.holds[op["lock"]].to_dec_params())
        return DONE

    def do_hash(self, step, op):
        core, node = self.tree.tree_core, self.nodes[op["of"]]
        core.backfill_missing_hash_values()
        return {"is": "hashes", "digests": [*core.get_prefix_hash_values(node), *core.get_hash_values(node)]}

    def do_reset(self, step, op):
        """Empty the tree, and free what it held: to a server that is one act."""
        slots = self.tree.all_values_flatten().tolist() if self.sizes()["total_size"] else []
        states = self.tree.all_mamba_values_flatten() if MAMBA in self.KINDS else torch.tensor([])
        self.tree.reset()
        self.holds.clear()
        self.do_free(step, {"slots": slots})
        self.states.free(states)

    def do_inspect(self, step, op):
        core, told = self.tree.tree_core, []
        for node in core.get_all_node_ids():
            if core.get_parent_node_id(node) is not None:
                locks = core.get_component_device_lock_ref(node, FULL)
                value = core.get_component_device_value(node, FULL)
                told.append(view(core.get_node_token_ids(node), value, locks))
        return {"is": "inspected", "nodes": told}


class Radix(Unified):
    """A `RadixCache`, whose nodes can be looked at from outside."""

    CLAIMS, FULL_SIZES = Unified.CLAIMS | {"inspect"}, ""

    def build(self, params):
        return RadixCache(params)

    def do_inspect(self, step, op):
        nodes = [self.tree.root_node]
        for node in nodes:
            nodes += node.children.values()
        told = (view(node.key.token_ids, node.value, node.lock_ref) for node in nodes[1:])
        return {"is": "inspected", "nodes": [*told]}


def view(tokens, value, locks):
    kept = value.untyped_storage().nbytes()
    return {"tokens": [*tokens], "slots": value.tolist(), "lock_ref": locks, "kept_bytes": kept}


def make_caches():
    """Return the classes by name, also of a tree over the inspector of sglang's own suites."""
    cores = {"python": {}, "rust": {}, "python-inspector": {"python": UnifiedTreeCoreInspector}}
    caches = {"slots": Slots, "radix": Radix}
    for (core, made), (kinds, claims) in itertools.product(cores.items(), CLAIMS_OF_KINDS.items()):
        own = {"KINDS": (FULL, *kinds), "BACKEND": core.removesuffix("-inspector"), "CORES": made}
        own["CLAIMS"] = Unified.CLAIMS | claims | CLAIMS_OF_CORES[core]
        name = "-".join(["unified", core, *(kind.name.lower() for kind in kinds)])
        caches[name] = type(name, (Unified,), own)
    return caches


def cases():
    """Yield each vector on each cache that claims the capabilities that the vector needs."""
    for name, cache in make_caches().items():
        path = VECTORS / ("slots.jsonl" if cache is Slots else "prefix.jsonl")
        for vector in list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))[1:]:
            if set(vector["needs"]) <= cache.CLAIMS and cache.fits(vector["config"]):
                yield pytest.param(cache, vector, id=f"{name}-{vector['id']}")


@pytest.mark.parametrize(("cache", "vector"), [*cases()])
def test_vector(cache, vector):
    verdict, why = run_vectors.play(vector, cache(vector["config"]))
    if verdict == "skipped":
        pytest.skip(why)
    known = KNOWN.get(vector["id"])
    assert (verdict == "failed") == (known is not None), f"{vector['says']}; {why}; known: {known}"
