"""Adapter of vLLM's `KVCacheManager` in releases from 0.6.4 to 0.24, over full attention.

Use it as ``--adapter peers.time_machine.earlier_vllm:EarlierFull`` from the repository's root, with
``PYMLLM_ANY_VERSION=1``. What `pymllm_peers.vllm.manager` says of requests holds here, too. What differs
is told by what is there, not by a release's number:

- blocks are a manager's own, and from 0.8 on a pool's; a manager is built from numbers, and from 0.8.3 on
  from groups, of whose blocks the first is nobody's;
- a request that computes nothing gets no blocks: a hold, and an insert of what is there, takes what it has
  found as a hit does, and is freed like any other;
- prompts are told apart by an image at their start from 0.6.5 on, by a LoRA adapter from 0.7.3 on, by a salt
  from 0.9 on. The configuration's ``apart`` says by which, or by what came before it where it had not come.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from pymllm.adapters.key_forms import spell_namespace
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.by_request import ByRequest
from pymllm_peers.stand_ins import standing_in
from pymllm_peers.vllm.manager import VllmFull, make_manager
from pymllm_peers.vllm.package import BARE_PACKAGES, STAND_INS, require_version

_MORE = 3
"""The token behind every key."""

_STAND_INS = STAND_INS | {
    "PIL": "images",
    "cbor2": "another way to spell what is hashed",
    "cloudpickle": "functions on their way to other processes",
    "transformers": "names of models",
    "vllm.platforms": "which GPU there is",
    "vllm.sequence": "requests of the first engine",
    "vllm.triton_utils": "kernels",
    "vllm.v1.request": "requests, of which managers ask no more than ours have",
    "vllm.v1.spec_decode": "tokens that are guessed",
    "zmq": "messages between processes",
}


def load(module: str) -> Any:
    """Import a module of the installed vLLM, whose packages are those of its time."""
    name = f"vllm.{module}"
    if name in sys.modules:
        return sys.modules[name]
    require_version()
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    root = next(folder for folder in map(Path, sys.path) if (folder / "vllm").is_dir())
    packages = [package for package in BARE_PACKAGES if (root / package.replace(".", "/")).is_dir()]
    with standing_in(_STAND_INS, packages, "vllm"):
        return importlib.import_module(name)


class _Place(dict[str, int]):
    """The place of an image in a prompt, by key as before 0.8.3, and by attribute."""

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _named(call: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for which a call has a parameter."""
    known = inspect.signature(call).parameters
    return {name: value for name, value in values.items() if name in known}


class Request:
    """The attributes that managers of all these releases read from a request, without behaviour."""

    def __init__(self, name: str, tokens: Sequence[int]) -> None:
        self.request_id = name
        self.all_token_ids = self.prompt_token_ids = [*tokens]
        self.num_tokens = self.num_prompt_tokens = len(tokens)
        self.num_computed_tokens = 0
        self.num_preemptions, self.status = 0, None
        self.spec_token_ids: list[int] = []
        self.block_hashes: list[Any] = []  # from 0.10.1 on
        self.kv_block_hashes: list[Any] = []  # until 0.7.2
        self.append_kv_block_hashes = self.kv_block_hashes.append
        self.sampling_params = SimpleNamespace(prompt_logprobs=None)
        self.pooling_params = self.prompt_embeds = self.skip_reading_prefix_cache = None
        self.mm_positions: list[_Place] = []
        self.mm_hashes: list[str] = []
        self.mm_features: list[Any] = []  # from 0.11 on
        self.lora_request: Any = None
        self.cache_salt: str | None = None

    def set_kv_block_hashes(self, hashes: Iterable[Any]) -> None:
        """Store the hashes that a manager has computed."""
        self.kv_block_hashes[:] = hashes

    def tell_apart(self, by: str, name: str, number: int) -> None:
        """Make the prompt differ from another with the same tokens.

        An image stands in place of its first token; of an adapter vLLM has a name and a number.
        """
        if by == "image":
            place = _Place(offset=0, length=1)
            self.mm_positions, self.mm_hashes = [place], [name]
            self.mm_features = [SimpleNamespace(mm_position=place, identifier=name)]
        elif by == "adapter":
            made = load("lora.request").LoRARequest
            self.lora_request = made(lora_name=name, lora_int_id=number, lora_path=name)
        else:
            self.cache_salt = name


def tells_apart() -> tuple[str, ...]:
    """Return the ways in which this release distinguishes prompts with the same tokens."""
    utils = load("v1.core.kv_cache_utils")
    if not hasattr(utils, "generate_block_hash_extra_keys"):
        return ()
    source = inspect.getsource(utils.generate_block_hash_extra_keys)
    found = {"image": True, "adapter": "lora" in source, "salt": "cache_salt" in source}
    return tuple(by for by, is_there in found.items() if is_there)


def make_cache(page_size: int, blocks: int, events: bool) -> Any:
    """Build a manager, with one block more where one is reserved, and ``events`` if the release has any."""
    manager = load("v1.core.kv_cache_manager").KVCacheManager
    # Blocks ahead of what a request has computed would evict more than it asks for.
    values = {"num_preallocate_tokens": 0, "max_model_len": 2**20, "enable_caching": True}
    values |= {"enable_kv_cache_events": events}
    known = inspect.signature(manager).parameters
    if "scheduler_block_size" in known:
        load("v1.core.single_type_kv_cache_manager")
        cache = make_manager(page_size, blocks + 1)
    elif "kv_cache_config" not in known:
        cache = manager(page_size, blocks, **_named(manager, values))
    else:
        interface = load("v1.kv_cache_interface")
        full = interface.FullAttentionSpec
        sizes = {"block_size": page_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
        group = interface.KVCacheGroupSpec(["0"], full(**sizes, **_named(full, {"use_mla": False})))
        config = interface.KVCacheConfig
        tensors: dict[str, object] = {"tensors": {}, "kv_cache_tensors": []}
        made = config(num_blocks=blocks + 1, kv_cache_groups=[group], **_named(config, tensors))
        cache = manager(made, **_named(manager, values))
    if getattr(cache, "prefix_cache_stats", None) is not None:
        cache.prefix_cache_stats = SimpleNamespace(requests=0, queries=0, hits=0, reset=False)
    return cache


def make_hasher(page_size: int) -> Any:
    """Return the function that hashes a request's blocks, or ``None`` where managers hash by themselves."""
    utils = load("v1.core.kv_cache_utils")
    if not hasattr(utils, "get_request_block_hasher"):
        return None
    sha256 = next(
        module.sha256 for module in map(load, ("utils", "utils.hashing")) if hasattr(module, "sha256")
    )
    utils.init_none_hash(sha256)
    return utils.get_request_block_hasher(page_size, sha256)


class _OwnBlocks:
    """The blocks of a manager without a pool, with a pool's interface."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.blocks = cache, cache.block_pool
        self.touch, self.free_block_queue = cache._touch, cache.free_block_queue

    def get_num_free_blocks(self) -> int:
        return int(self.cache.free_block_queue.num_free_blocks)

    def get_new_blocks(self, count: int) -> list[Any]:
        values = _named(self.cache._get_new_blocks, {"token_ids": []})
        return list(self.cache._get_new_blocks(count, **values))

    def free_blocks(self, blocks: Iterable[Any]) -> None:
        self.cache.req_to_blocks[""] = [*blocks][::-1]  # the last one of a request goes first
        self.cache.free(SimpleNamespace(request_id=""))


def _configuration(page_size: int, pages: int, apart: str) -> Config:
    return {
        "page_size": page_size,
        "window": None,
        "pool": "none",
        "capacity": page_size * pages,
        "splits": False,
        "policy": "release",
        "apart": apart,
        "events": True,
    }


class EarlierFull(VllmFull):
    """``KVCacheManager``; ``events`` says whether it sends events to a router, from 0.9 on."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _configuration(1, 6, "salt"),
        _configuration(1, 14, "adapter"),
        _configuration(4, 5, "image"),
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        require_version()
        ByRequest.__init__(self, name, config)
        self._start()
        self._hasher = make_hasher(self.page_size)
        self._contents = {}
        self._numbers = {}
        self._counter = itertools.count()
        self._paths: dict[int, ops.Key] = {}  # by block, all that it ends
        self._names: dict[str, int] = {}

    def _start(self) -> None:
        self._tail = int(bool(self.config.get("tail")))
        if self._tail and self.page_size < 2:
            raise ValueError(f"page_size is {self.page_size}; it must be at least 2 with a tail")
        blocks = self.number("capacity") // self.page_size + self._tail
        self.cache = make_cache(self.page_size, blocks, bool(self.config.get("events")))
        pool = self.cache.block_pool
        self.blocks: Any = _OwnBlocks(self.cache) if isinstance(pool, list) else pool
        self.null_block = getattr(pool, "null_block", None)

    def claim(self) -> frozenset[str]:
        """Claim the order of evictions, and namespaces where the release has them."""
        apart = {"extra_key"} if tells_apart() else set()
        return frozenset({"inspect", "lean_matches", "node_ids", "exact_policy", *apart})

    @property
    def _apart(self) -> str:
        """The way in which prompts with the same tokens are distinguished here."""
        kinds = ("image", "adapter", "salt")
        wanted = kinds.index(str(self.config.get("apart", "salt")))
        return [by for by in kinds[: wanted + 1] if by in tells_apart()][-1]

    def _count_blank(self) -> int:
        idle = [block for block in self.blocks.blocks if not block.ref_cnt and block is not self.null_block]
        return sum(block.block_hash is None for block in idle)

    # -- requests ------------------------------------------------------------------------------------------

    def _request(self, name: object, key: ops.Key) -> Request:
        """Return a request for a key and one more token."""
        request = Request(f"{name}", [*(token for token in key.tokens if isinstance(token, int)), _MORE])
        space = spell_namespace(key.extra_key)
        if space is not None:
            number = self._names.setdefault(space, len(self._names) + 1)
            request.tell_apart(self._apart, space, number)
        if self._hasher is not None:
            request.block_hashes = self._hasher(request)
        return request

    def _find(self, request: Request) -> list[Any]:
        """Return the blocks that a request finds."""
        found = self.cache.get_computed_blocks(request)
        found = found[0] if isinstance(found, tuple) else found
        found = getattr(found, "blocks", found)
        return list(found[0] if isinstance(found, tuple) else found)

    def _allocate(self, request: Request, tokens: int, found: list[Any]) -> Any:
        """Give a request blocks for tokens behind its found blocks; return ``None`` if there are too few."""
        call = self.cache.allocate_slots
        if "num_new_computed_tokens" not in inspect.signature(call).parameters:
            return call(request, tokens, found)
        blocks = self.cache.get_computed_blocks(request)[0]
        return call(request, tokens, len(found) * self.page_size, blocks)

    def _take(self, request: Request, found: list[Any]) -> None:
        """Give a request its found blocks, as a hit does."""
        one = getattr(self.cache, "single_type_manager", None)
        several = getattr(self.cache, "coordinator", None)
        if several is not None and not hasattr(several, "save_new_computed_blocks"):
            length = len(found) * self.page_size
            several.allocate_new_computed_blocks(request.request_id, (found,), length, 0)  # touches them
            return
        self._touch(found)
        if several is not None:
            several.save_new_computed_blocks(request.request_id, (found,))
        elif one is not None:
            one.save_new_computed_blocks(request.request_id, found)
        else:
            self.cache.req_to_blocks[request.request_id] = found

    def _touch(self, blocks: list[Any]) -> None:
        by_group = "tuple" in str(inspect.signature(self.blocks.touch).parameters["blocks"].annotation)
        self.blocks.touch((blocks,) if by_group else blocks)

    def _free_blocks(self) -> list[Any]:
        """Return the free blocks, in the order in which they will be taken."""
        return list(self.blocks.free_block_queue.get_all_free_blocks())

    def leave(self, request: Request) -> None:
        """End a request, and free the blocks kept for it."""
        self.cache.free(request)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        if hasattr(self.cache, "free_block_hashes"):
            self.cache.free_block_hashes(request)

    def _table(self, request: Request) -> list[int]:
        if not hasattr(self.cache, "get_block_ids"):
            return [block.block_id for block in self.cache.req_to_blocks[request.request_id]]
        (table,) = self.cache.get_block_ids(request.request_id)
        return list(table)

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a prompt; the content of found blocks is read where it was written."""
        request = self._request(step, operation.key)
        found = self._find(request)
        self._forget(request)
        length = len(found) * self.page_size
        self._nodes[step] = self.whole(operation.key, length)
        slots = [slot for block in found for slot in self._contents[block.block_id]]
        return out.Matched(tuple(slots), length, length)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Play a request from its arrival to its end; a key without a whole page makes none."""
        key = self._nodes[step] = self.whole(operation.key)
        slots = key.tokens if operation.slots is None else self.numbers(operation.slots)
        length = len(key.tokens)
        if not length:
            return out.Inserted(0, (), 0)
        request = self._request(step, key)
        blocks = self._find(request)
        found = len(blocks) * self.page_size
        if found == length and not self._tail:
            self._take(request, blocks)
        elif self._allocate(request, length - found + self._tail, blocks) is None:
            self._forget(request)
            return out.NoRoom()
        table = self._table(request)
        for place in range(len(blocks), length // self.page_size):
            first, block = place * self.page_size, table[place]
            self._contents[block] = tuple(slots[first : first + self.page_size])  # type: ignore[arg-type]
            self._numbers[block] = next(self._counter)
            self._paths[block] = self.whole(key, first + self.page_size)
        self.leave(request)
        return out.Inserted(found, ((found, length),) if found < length else (), length)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Play a request that takes all blank blocks and some more, and computes nothing.

        These come to stand first: who comes next is to take them before what is cached.
        """
        before, pages = len(self._cached()), -(-operation.tokens // self.page_size)
        wanted = min(self._count_blank() + pages, self.blocks.get_num_free_blocks())
        if pages > 0 and wanted:
            taken = self.blocks.get_new_blocks(wanted)
            rest = self._free_blocks()
            self._touch(rest)
            self.blocks.free_blocks([*taken, *rest])
        return out.Evicted((before - len(self._cached())) * self.page_size)

    def stay(self, step: int, key: ops.Key) -> Any:
        """Let a request arrive that stays."""
        request = self._request(step, key)
        found = self._find(request)
        self.refuse_partial(len(found) * self.page_size, key)
        self._take(request, found)
        return request

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """End every request, and forget all blocks; before 0.7 that takes a new server."""
        self.forget_requests()
        if not hasattr(self.cache, "reset_prefix_cache"):
            self._start()
        elif not self.cache.reset_prefix_cache():
            raise RuntimeError("vLLM refuses to reset a cache that is in use")
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each registered block as a node of one page."""
        blocks = self._cached()
        blocks.sort(key=lambda it: (len(self._paths[it.block_id].tokens), self._numbers[it.block_id]))
        numbers = {self._paths[it.block_id]: self._numbers[it.block_id] for it in blocks}
        return out.Inspected(tuple(self._view(self._paths[it.block_id], it, numbers) for it in blocks))


class Tails(EarlierFull):
    """``KVCacheManager`` with inserts one token longer than their key, whose last block is never full.

    There is one block more than the capacity. Pages have two tokens or more: of one, that token would be a
    page of its own.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {**_configuration(2, 6, "salt"), "tail": True},
        {**_configuration(2, 14, "adapter"), "tail": True},
        {**_configuration(4, 5, "image"), "tail": True},
    )
