"""Cache vectors on vLLM's block pool and its KV cache manager: programs, with what each step must come to.

CPU only, no model, nothing to install. Beside this lie ``run_vectors.py``, ``known.json`` and the vectors in
the folder ``v1``; peers/integrations/README.md of pymllm says where they come from. Run it with pytest.

Copyright: the authors of pymllm. Licence: Apache-2.0.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

HERE = Path(__file__).resolve().parent
VECTORS, KNOWN = HERE / "v1", json.loads((HERE / "known.json").read_text(encoding="utf-8"))
sys.path.insert(0, str(HERE))
run_vectors = importlib.import_module("run_vectors")

DONE, NO_ROOM = {"is": "done"}, {"is": "no_room"}
MORE = 3
"""A token behind every prompt: vLLM computes the last one again, for its logits, and its block with it."""


class Player:
    """Carries out the operations that it has methods for; blocks in them are numbers."""

    def apply(self, step, op):
        method = getattr(self, f"do_{op['op']}", None)
        if method is None:
            return {"result": {"is": "unsupported", "what": op["op"]}}
        self.effects = []
        result = method(step, op) or DONE
        return {"result": result, "effects": self.effects, "sizes": self.sizes()}


class Blocks(Player):
    """`BlockPool`. Its callers look how much is free, register a block once, and reset what nobody uses.

    They let go of the end of a prompt first. What it evicts it tells by the events that a router is sent.
    Blocks are numbered as they stand in its queue.
    """

    CLAIMS = frozenset({"pool", "callbacks", "inspect"})

    @staticmethod
    def fits(config):
        """Return whether the policy keeps blocks; an order is left to caches that claim an order."""
        return config["policy"] in ("lru", "release")

    def __init__(self, config):
        self.size, self.is_caching = config["block_size"], config["caching"]
        self.pool = BlockPool(config["blocks"] + 1, self.is_caching, self.size, enable_kv_cache_events=True)
        self.hashes, self.holds = {}, []  # the number of each hash by its bytes; blocks as often as held
        self.number_blocks()

    def number_blocks(self):
        self.blocks = self.pool.free_block_queue.get_all_free_blocks()
        self.numbers = {block.block_id: number for number, block in enumerate(self.blocks)}

    def named(self, op):
        return [self.blocks[number] for number in op["blocks"]]

    def sizes(self):
        cached = sum(
            block.block_hash is not None for block in self.pool.free_block_queue.get_all_free_blocks()
        )
        return {"pool_avail": self.pool.get_num_free_blocks() - cached, "evictable_blocks": cached}

    def tell(self, gone):
        """Tell of blocks that are free now, and of the hashes that a router is told to forget."""
        known = {maybe_convert_block_hash(digest): number for digest, number in self.hashes.items()}
        removed = sorted(known[digest] for event in self.pool.take_events() for digest in event.block_hashes)
        if gone or removed:
            self.effects.append({"call": "callback", "slots": gone, "target": removed})

    def do_alloc_blocks(self, step, op):
        if op["count"] > self.pool.get_num_free_blocks():
            return NO_ROOM
        cached = {number for number, block in enumerate(self.blocks) if block.block_hash is not None}
        taken = [self.numbers[block.block_id] for block in self.pool.get_new_blocks(op["count"])]
        self.holds += taken
        self.tell([number for number in taken if number in cached])
        return {"is": "slots", "slots": taken}

    def do_retain_blocks(self, step, op):
        self.pool.touch(self.named(op))
        self.holds += op["blocks"]

    def do_release_blocks(self, step, op):
        self.pool.free_blocks(reversed(self.named(op)))
        for number in op["blocks"]:
            self.holds.remove(number)
        blank = [it for it in dict.fromkeys(op["blocks"]) if self.blocks[it].block_hash is None]
        self.tell([number for number in blank if number not in self.holds])

    def do_register_blocks(self, step, op):
        """Register what a request has computed that brings these hashes along."""
        digests = [number.to_bytes(8) for number in op["hashes"]]
        self.hashes.update(zip(digests, op["hashes"], strict=True))
        request = SimpleNamespace(block_hashes=digests, all_token_ids=[0] * (len(digests) * self.size))
        for name in ("lora_request", "cache_salt", "prompt_embeds", "session_id"):
            setattr(request, name, None)
        request.mm_features = []
        self.pool.cache_full_blocks(request, self.named(op), 0, len(digests), self.size, 0)
        self.pool.take_events()

    def do_stamp_blocks(self, step, op):
        """Do nothing: a block is as old as the time when it was let go of."""

    do_set_clock = do_stamp_blocks

    def do_reset(self, step, op):
        """End all requests, and reset the blocks, which are then unused."""
        for number in self.holds:
            self.pool.free_blocks([self.blocks[number]])
        self.holds = []
        assert self.pool.reset_prefix_cache()
        self.pool.take_events()
        self.number_blocks()

    def do_inspect(self, step, op):
        """Look at every block, and look every hash up; nothing is told of the null block, the last one."""
        known = [None if it.block_hash is None else get_block_hash(it.block_hash) for it in self.blocks]
        found = {number: self.pool.get_cached_block(digest, [0]) for digest, number in self.hashes.items()}
        return {
            "is": "block_books",
            "refs": [*(block.ref_cnt for block in self.blocks), 0],
            "hashes": [*(self.hashes.get(digest, -1) for digest in known), -1],
            "block_of_hash": sorted(
                [it, self.numbers[blocks[0].block_id]] for it, blocks in found.items() if blocks
            ),
        }


class Manager(Player):
    """`KVCacheManager` with one group of full attention, as a prefix cache that takes its memory by itself.

    An insert is a request that comes, is computed and goes; a hold is one that stays. What a request computes
    is written to the blocks that vLLM chose, and read there by who finds it: slots, or the tokens themselves.
    """

    CLAIMS = frozenset({"extra_key", "inspect", "lean_matches", "node_ids"})

    @staticmethod
    def fits(config):
        """Without a pool of the caller's, and without a window."""
        return set(config) <= {"page_size", "window", "pool"} and (config["pool"], config["window"]) == (
            "none",
            None,
        )

    def __init__(self, config):
        self.size, pages = config["page_size"], 64
        spec = FullAttentionSpec(block_size=self.size, num_kv_heads=1, head_size=1, dtype=torch.float16)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        self.manager = KVCacheManager(KVCacheConfig(pages + 1, [], groups), 2**30, self.size, self.size)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(self.size, sha256)
        self.written, self.nodes, self.holds = {}, {}, {}

    def request(self, name, key):
        """Return a request as the scheduler has it, for a prompt with one token more."""
        extra = key.get("extra_key")
        settings = SimpleNamespace(max_tokens=1, extra_args=None, skip_reading_prefix_cache=None)
        settings.structured_outputs = None
        salt = None if extra is None else f"{type(extra).__name__}:{extra}"
        tokens = [*key["tokens"], MORE]
        return Request(str(name), tokens, settings, None, cache_salt=salt, block_hasher=self.hasher)

    def whole(self, key, length=None):
        """Return as much of a key as fills blocks."""
        end = (len(key["tokens"]) if length is None else length) // self.size * self.size
        return {**key, "tokens": key["tokens"][:end]}

    def sizes(self):
        """Count the blocks that can be found, and the used and unused blocks among these."""
        found = [block for block in self.manager.block_pool.blocks if block.block_hash is not None]
        idle = sum(not block.ref_cnt for block in found)
        counts = {"total_size": len(found), "evictable_size": idle, "protected_size": len(found) - idle}
        return {name: count * self.size for name, count in counts.items()}

    def do_match(self, step, op):
        blocks, length, _ = self.manager.get_computed_blocks(self.request(step, op["key"]))
        self.nodes[step] = self.whole(op["key"], length)
        slots = [slot for block in blocks.blocks[0] for slot in self.written[block.block_id][1]]
        return {"is": "matched", "slots": slots, "prefix_len": length, "node_len": length}

    def do_insert(self, step, op):
        key = self.nodes[step] = self.whole(op["key"])
        length, found = len(key["tokens"]), 0
        if length:
            request = self.request(step, key)
            blocks, found, _ = self.manager.get_computed_blocks(request)
            if self.manager.allocate_slots(request, length - found, found, blocks) is None:
                return NO_ROOM
            (table,) = self.manager.get_block_ids(request.request_id)
            for place in range(found // self.size, length // self.size):
                page = slice(place * self.size, (place + 1) * self.size)
                self.written[table[place]] = key["tokens"][page], op.get("slots", key["tokens"])[page]
            self.manager.free(request)
        adopted = [[found, length]] if found < length else []
        return {"is": "inserted", "prefix_len": found, "adopted": adopted, "node_len": length}

    def do_lock(self, step, op):
        """Let a request come that stays; for a prompt without a block none comes."""
        key = self.nodes[step] = self.nodes[op["of"]]
        if key["tokens"]:
            request = self.holds[step] = self.request(step, key)
            self.manager.new_step_starts()
            blocks, found, _ = self.manager.get_computed_blocks(request)
            assert found == len(key["tokens"])
            assert self.manager.allocate_slots(request, 0, found, blocks) is not None
        return {"is": "locked"}

    def do_unlock(self, step, op):
        if op["lock"] in self.holds:
            self.manager.free(self.holds.pop(op["lock"]))

    def do_reset(self, step, op):
        """End all requests, and reset the blocks, which are then unused."""
        for request in self.holds.values():
            self.manager.free(request)
        self.holds = {}
        assert self.manager.reset_prefix_cache()

    def do_inspect(self, step, op):
        """Show each block that can be found as a node of its own."""
        found = [block for block in self.manager.block_pool.blocks if block.block_hash is not None]
        shown = [(*self.written[block.block_id], block.ref_cnt) for block in found]
        nodes = [{"tokens": tokens, "slots": slots, "lock_ref": count} for tokens, slots, count in shown]
        return {"is": "inspected", "nodes": nodes}


CACHES = {"blocks": Blocks, "prefix": Manager}


def registers_twice(vector):
    """Say whether a hash is registered twice: vLLM then has several blocks under it, and passes none over."""
    hashes = [it for step in vector["steps"] for it in step["op"].get("hashes", ())]
    return len(set(hashes)) < len(hashes)


def cases():
    """Yield each vector of a cache that claims the capabilities that the vector needs."""
    for kind, cache in CACHES.items():
        for vector in list(
            map(json.loads, (VECTORS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines())
        )[1:]:
            if (
                set(vector["needs"]) <= cache.CLAIMS
                and cache.fits(vector["config"])
                and not registers_twice(vector)
            ):
                yield pytest.param(cache, vector, id=vector["id"])


@pytest.mark.parametrize(("cache", "vector"), [*cases()])
def test_vector(cache, vector):
    verdict, why = run_vectors.play(vector, cache(vector["config"]))
    if verdict == "skipped":
        pytest.skip(why)
    known = KNOWN.get(vector["id"])
    assert (verdict == "failed") == (known is not None), f"{vector['says']}; {why}; known: {known}"
