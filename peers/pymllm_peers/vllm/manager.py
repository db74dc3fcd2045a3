"""vLLM's `KVCacheManager`, one group of full attention, as a prefix cache that takes its memory by itself.

vLLM has no insert and no lock: its scheduler looks a request's prompt up (``get_computed_blocks``), gives it
blocks for the rest (``allocate_slots``), which registers those that are full, and lets them go in the end
(``free``). So here

- an insert is a request that comes, is computed, and goes; a hold is one that stays. The slots of an insert
  are what is computed: they are written to the blocks that vLLM chose, and a match reads them there, so that
  a block in two hands is seen;
- each request has one token more than the key. vLLM computes a prompt's last token again, for its logits,
  and with it the last block of a prompt that ends with one; our caller asks for what may be computed already
  (R2). For the same reason requests one after the other never register a block twice under one hash;
- an eviction is a request whose blocks are registered nowhere: vLLM evicts when it allocates, and only then;
- a reset ends all requests first, as the scheduler does that is told to: vLLM resets no cache that is in use.

Further groups are in `pymllm_peers.vllm.hybrid`, the pool under all of them in
`pymllm_peers.vllm.blocks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from pymllm.adapters.key_forms import spell_namespace
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm.history.operations import values_of
from pymllm_peers.by_request import ByRequest
from pymllm_peers.vllm.package import load_vllm, require_version

_MORE = 3
"""The token behind every key."""


def _configuration(page_size: int, pages: int) -> Config:
    return {
        "page_size": page_size,
        "window": None,
        "pool": "none",
        "capacity": page_size * pages,
        "splits": False,
        "policy": "release",
    }


class VllmFull(ByRequest):
    """The adapter of the manager, with ``page_size`` and ``capacity`` in tokens; the null block is extra.

    Three more keys hold vLLM to what it does not promise, to show where it differs; nobody searches with one:
    ``also`` names further claims, between blanks; with ``bare_keys`` requests have no token behind the key,
    and with ``bare_reset`` a reset ends none of them.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _configuration(1, 6),
        _configuration(1, 14),
        _configuration(4, 5),
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version()
        self.cache = self.make_cache()
        self.blocks = self.cache.block_pool
        self._hasher = _make_hasher(self.page_size)
        self._contents: dict[int, tuple[int, ...]] = {}  # by block: what the request that had it wrote
        self._numbers: dict[int, int] = {}  # by block: the number of what it holds (X3)
        self._counter = itertools.count()
        self._keys: dict[bytes, ops.Key] = {}  # by the hash of a block, all that it ends

    def make_cache(self) -> Any:
        """Build the manager."""
        return make_manager(self.page_size, self.number("capacity") // self.page_size + 1)

    def claim(self) -> frozenset[str]:
        """Claim the order of evictions; misuse is undefined, and blocks have no hashes of ours.

        Of the dimensions, `weights` is none: who loads other weights resets the cache.
        """
        order = {"exact_policy"} if self.config["policy"] == "release" else set()
        also = str(self.config.get("also", "")).split()
        return frozenset({*DIMENSIONS, "inspect", "lean_matches", "node_ids", *order, *also})

    def _cached(self) -> list[Any]:
        return [block for block in self.blocks.blocks if block.block_hash is not None]

    def sizes(self) -> dict[str, int]:
        """Return the sizes in registered blocks; the free ones among them are unreferenced."""
        total, evictable = len(self._cached()), self.blocks.get_num_free_blocks() - self._count_blank()
        pages = {"total_size": total, "evictable_size": evictable, "protected_size": total - evictable}
        return {name: count * self.page_size for name, count in pages.items()}

    def _count_blank(self) -> int:
        """Count the blocks without a reference and without a hash."""
        idle = [block for block in self.blocks.blocks if not block.ref_cnt and not block.is_null]
        return sum(block.block_hash is None for block in idle)

    # -- requests ------------------------------------------------------------------------------------------

    def _request(self, name: object, key: ops.Key) -> Any:
        """Return a request for a key and one more token, like the scheduler's."""
        tokens = [token for token in key.tokens if isinstance(token, int)]
        request = load_vllm("v1.request").Request(
            f"{name}",
            tokens if self.config.get("bare_keys") else [*tokens, _MORE],
            SimpleNamespace(
                max_tokens=1, extra_args=None, skip_reading_prefix_cache=None, structured_outputs=None
            ),
            None,
            block_hasher=self._hasher,
            **_told(key),
        )
        # Not of a block that ends with the token more, of which another key may have as many.
        for count, digest in enumerate(request.block_hashes[: len(tokens) // self.page_size], 1):
            self._keys.setdefault(digest, ops.Key(tuple(tokens[: count * self.page_size]), key.extra_key))
        return request

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a prompt; the content of found blocks is read where it was written."""
        blocks, length, _ = self.cache.get_computed_blocks(self._request(step, operation.key))
        self._nodes[step] = self.whole(operation.key, length)
        slots = [slot for block in blocks.blocks[0] for slot in self._contents[block.block_id]]
        return out.Matched(tuple(slots), length, length)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Play a request from its arrival to its end; a key without a whole page makes none."""
        key = self.whole(operation.key)
        slots = key.tokens if operation.slots is None else self.numbers(operation.slots)
        if not key.tokens:
            self._nodes[step] = key
            return out.Inserted(0, (), 0)
        request = self._request(step, key)
        blocks, found, _ = self.cache.get_computed_blocks(request)
        length = len(key.tokens)
        if self.cache.allocate_slots(request, length - found, found, blocks) is None:
            return out.NoRoom()
        (table,) = self.cache.get_block_ids(request.request_id)
        for place in range(found // self.page_size, len(table)):
            first = place * self.page_size
            self._contents[table[place]] = tuple(slots[first : first + self.page_size])  # type: ignore[arg-type]
            self._numbers[table[place]] = next(self._counter)
        self.cache.free(request)
        self._nodes[step] = key
        return out.Inserted(found, ((found, length),) if found < length else (), length)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Play a request that finds nothing and takes all blank blocks and some more."""
        before, pages = len(self._cached()), -(-operation.tokens // self.page_size)
        wanted = min(self._count_blank() + pages, self.blocks.get_num_free_blocks())
        if pages > 0 and wanted:
            request = self._request(step, ops.Key((_MORE,) * (wanted * self.page_size - 1)))
            self.cache.allocate_slots(request, wanted * self.page_size, delay_cache_blocks=True)
            self.cache.free(request)
        return out.Evicted((before - len(self._cached())) * self.page_size)

    def stay(self, step: int, key: ops.Key) -> Any:
        """Let a request arrive that stays."""
        request = self._request(step, key)
        self.cache.new_step_starts()
        blocks, found, _ = self.cache.get_computed_blocks(request)
        self.refuse_partial(found, key)
        if self.cache.allocate_slots(request, 0, found, blocks) is None:
            raise RuntimeError(f"no room for the {found} tokens that are there")
        return request

    def leave(self, request: Any) -> None:
        """End a request."""
        self.cache.free(request)

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """End every request, and forget everything."""
        self.forget_requests(leave=not self.config.get("bare_reset"))
        if not self.cache.reset_prefix_cache():
            raise RuntimeError("vLLM refuses to reset a cache that is in use")
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each registered block as a node of one page."""
        digest_of = load_vllm("v1.core.kv_cache_utils").get_block_hash
        pages = [(self._keys[digest_of(block.block_hash)], block) for block in self._cached()]
        pages.sort(key=lambda page: (len(page[0].tokens), self._numbers[page[1].block_id]))
        numbers = {key: self._numbers[block.block_id] for key, block in pages}
        return out.Inspected(tuple(self._view(key, block, numbers) for key, block in pages))

    def _view(self, key: ops.Key, block: Any, numbers: Mapping[ops.Key, int]) -> out.NodeView:
        above = self.whole(key, len(key.tokens) - self.page_size)
        return out.NodeView(
            id=self._numbers[block.block_id],
            parent=numbers.get(above),
            tokens=key.tokens[len(above.tokens) :],
            extra_key=key.extra_key,
            slots=self._contents[block.block_id],
            lock_ref=block.ref_cnt,
        )


DIMENSIONS = ("extra_key", "lora", "lora_version", "embeddings")
"""The dimensions of a key that are in the hash of a block."""


def _told(key: ops.Key) -> dict[str, Any]:
    """Return the inputs besides the tokens on which a request's KV depends.

    The path of an adapter is its version: one name may be pointed at another path.
    """
    salt, lora, version, image, _ = map(spell_namespace, values_of(key.extra_key))
    told: dict[str, Any] = {"cache_salt": salt}
    if lora is not None or version is not None:
        made = load_vllm("lora.request").LoRARequest
        told["lora_request"] = made(lora_name=lora or "none", lora_int_id=1, lora_path=version or "none")
    if image is not None:
        place = SimpleNamespace(offset=0, length=1)
        told["mm_features"] = [SimpleNamespace(identifier=image, mm_position=place)]
    return told


def make_manager(page_size: int, blocks: int, *more: tuple[Any, str]) -> Any:
    """Build a manager of a group of full attention and perhaps more, without a limit on prompts.

    Of each further group the specification is given, and the name of the class that manages it.
    """
    managers = load_vllm("v1.core.single_type_kv_cache_manager")
    interface = load_vllm("v1.kv_cache_interface")
    registry = load_vllm("v1.kv_cache_spec_registry").KVCacheSpecRegistry
    full = interface.FullAttentionSpec(block_size=page_size, num_kv_heads=1, head_size=1, dtype=torch.float16)
    groups: list[Any] = []
    for spec, manager in ((full, "FullAttentionManager"), *more):
        registry.register(type(spec), getattr(managers, manager), uniform_type_base_spec=type(spec))
        groups.append(interface.KVCacheGroupSpec([f"{len(groups)}"], spec))
    return load_vllm("v1.core.kv_cache_manager").KVCacheManager(
        interface.KVCacheConfig(blocks, [], groups),
        2**30,
        page_size,
        page_size,
        enable_kv_cache_events=bool(more),
    )


def _make_hasher(page_size: int) -> Any:
    """Return the function that hashes a request's blocks, with vLLM's default hash function."""
    utils, sha256 = load_vllm("v1.core.kv_cache_utils"), load_vllm("utils.hashing").sha256
    utils.init_none_hash(sha256)
    return utils.get_request_block_hasher(page_size, sha256)
