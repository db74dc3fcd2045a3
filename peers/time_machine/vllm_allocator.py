"""Adapter of the first vLLM engine's prefix cache, releases 0.4.2 to 0.10: a block manager over an allocator.

Use it as ``--adapter peers.time_machine.vllm_allocator:BlockManager`` from the repository's root, with
``PYMLLM_ANY_VERSION=1``. ``BlockSpaceManager`` (until 0.6.2 ``BlockSpaceManagerV2``) is called as the
scheduler of its time calls it, over ``PrefixCachingBlockAllocator``:

- an insert is a request that comes, is computed, and goes; a hold is one that stays. The last block of a
  prompt is computed again in any case, and until 0.6.4 nothing is told of it; so it is asked for by itself;
- a request is accessed in every step that it runs in, and so when it ends: what was let go of last goes last
  (policy ``release``);
- nothing can be looked up without taking it. A match looks at the block of each hash, and whether it counts
  as computed;
- the scheduler asks for room first, as if nothing were cached; here it is asked what is missing.

Requests are told apart by their LoRA adapter from 0.6.5 on; before, the hash of a block says of itself that
it knows none. `Adapters` holds it to that all the same.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from peers.time_machine.earlier_vllm import load
from pymllm.adapters.key_forms import spell_namespace
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.by_request import ByRequest
from pymllm_peers.vllm.package import require_version

_MORE = 3
"""The token behind every key, with a tail."""


class Request:
    """A group of one sequence, with the interface that a block manager needs."""

    def __init__(self, number: int, tokens: Sequence[int], adapter: int = 0) -> None:
        self.request_id, self.seq_id, self.lora_int_id = f"{number}", number, adapter
        self.prompt_adapter_id = 0
        self.tokens = [*tokens]

    def get_seqs(self, status: object = None) -> list[Request]:
        """Return the request itself, its only sequence, for every status."""
        return [self]

    def is_encoder_decoder(self) -> bool:
        """Return false: there is no second prompt."""
        return False

    def is_prefill(self) -> bool:
        """Return true: the prompt is being computed."""
        return True

    def get_token_ids(self) -> list[int]:
        """Return the prompt."""
        return self.tokens

    def extra_hash(self) -> int | None:
        """Return the hash of the adapter, hashed with the tokens from 0.6.5 on."""
        return hash((0, self.lora_int_id)) if self.lora_int_id else None


def make_manager(page_size: int, blocks: int) -> Any:
    """Build a manager that keeps no blocks back."""
    load("core.block.cpu_gpu_block_allocator").current_platform = SimpleNamespace(is_hpu=lambda: False)
    try:
        made = load("core.block_manager_v2").BlockSpaceManagerV2
    except ImportError:
        module = load("core.block_manager")
        names = ("SelfAttnBlockSpaceManager", "BlockSpaceManagerV2")
        made = next(getattr(module, name) for name in names if hasattr(module, name))
    return made(page_size, blocks, 0, watermark=0, enable_caching=True)


def _configuration(page_size: int, pages: int) -> Config:
    sizes: Config = {"page_size": page_size, "capacity": page_size * pages}
    return {**sizes, "window": None, "pool": "none", "splits": False, "policy": "release"}


class BlockManager(ByRequest):
    """The block manager as a prefix cache; ``page_size`` and ``capacity`` are in tokens."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _configuration(1, 6),
        _configuration(1, 14),
        _configuration(4, 5),
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        require_version()
        super().__init__(name, config)
        self._tail = (_MORE,) if config.get("tail") else ()
        if self._tail and self.page_size < 2:
            raise ValueError(f"page_size is {self.page_size}; it must be at least 2 with a tail")
        self._start()
        self._contents: dict[int, tuple[int, ...]] = {}  # by block: what the request that had it wrote
        self._numbers: dict[int, int] = {}  # by block: the number of what it holds (X3)
        self._paths: dict[int, ops.Key] = {}  # by block, all that it ends
        self._counter = itertools.count(1)
        self._adapters: dict[str, int] = {}

    def _start(self) -> None:
        blocks = self.number("capacity") // self.page_size + len(self._tail)
        self.manager = make_manager(self.page_size, blocks)
        device = load("utils").Device.GPU
        self.allocator = self.manager.block_allocator._allocators[device]

    @property
    def has_adapters(self) -> bool:
        """Whether the hash of a block includes the adapter that computed it."""
        return "extra_hash" in inspect.signature(self._hasher).parameters

    @property
    def _hasher(self) -> Any:
        return load("core.block.prefix_caching_block").PrefixCachingBlock.hash_block_tokens

    def claim(self) -> frozenset[str]:
        """Claim the order of evictions, and namespaces where blocks know them."""
        apart = {"extra_key"} if self.has_adapters else set()
        return frozenset({"inspect", "lean_matches", "node_ids", "exact_policy", *apart})

    def sizes(self) -> dict[str, int]:
        """Return the number of cached tokens that are held, and the number that counts as free."""
        cached = {*self.allocator._cached_blocks.values()}
        held = sum(self.allocator._refcounter.get(block) > 0 for block in cached)
        return {
            "protected_size": held * self.page_size,
            "evictable_size": self._evictable() * self.page_size,
        }

    def _evictable(self) -> int:
        return int(self.allocator.evictor.num_blocks)

    # -- requests ------------------------------------------------------------------------------------------

    def _request(self, key: ops.Key, more: Sequence[int] = ()) -> Request:
        space = spell_namespace(key.extra_key)
        adapter = 0 if space is None else self._adapters.setdefault(space, len(self._adapters) + 1)
        tokens = [token for token in key.tokens if isinstance(token, int)]
        return Request(next(self._counter), [*tokens, *more], adapter)

    def _cached(self, request: Request) -> list[int | None]:
        """Return the cached block of each page of a request, or ``None``."""
        more = {"extra_hash": request.extra_hash()} if self.has_adapters else {}
        found: list[int | None] = []
        above = None
        for start in range(0, len(request.tokens) - self.page_size + 1, self.page_size):
            page = request.tokens[start : start + self.page_size]
            above = self._hasher(not start, above, page, **more)
            found.append(self.allocator._cached_blocks.get(above))
        return found

    def _find(self, request: Request) -> list[int]:
        """Return the blocks that a request would get, up to the first one not computed."""
        is_there = itertools.takewhile(lambda block: block is not None, self._cached(request))
        return [*itertools.takewhile(self.allocator.block_is_computed, is_there)]  # type: ignore[arg-type]

    def _run(self, request: Request) -> None:
        """Let a request take part in a step."""
        self.manager.access_all_blocks_in_seq(request, float(next(self._counter)))

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a prompt by the blocks that it would get."""
        blocks = self._find(self._request(operation.key))
        length = len(blocks) * self.page_size
        self._nodes[step] = self.whole(operation.key, length)
        slots = [slot for block in blocks for slot in self._contents[block]]
        return out.Matched(tuple(slots), length, length)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Play a request from its arrival to its end; a key without a whole page makes none."""
        key = self._nodes[step] = self.whole(operation.key)
        slots = key.tokens if operation.slots is None else self.numbers(operation.slots)
        length = len(key.tokens)
        if not length:
            return out.Inserted(0, (), 0)
        request = self._request(key, self._tail)
        if self._lacks_room(request):
            return out.NoRoom()
        self.manager.allocate(request)
        table = self.manager.get_block_table(request)
        told = len(self.manager.get_common_computed_block_ids([request]))
        is_last = told == len(table) - 1 and self.allocator.block_is_computed(table[-1])
        found = (told + is_last) * self.page_size
        for place in range(found // self.page_size, length // self.page_size):
            first, block = place * self.page_size, table[place]
            self._contents[block] = tuple(slots[first : first + self.page_size])  # type: ignore[arg-type]
            self._numbers[block] = next(self._counter)
            self._paths[block] = self.whole(key, first + self.page_size)
        self._run(request)
        call = self.manager.mark_blocks_as_computed
        call(*(request, length)[: len(inspect.signature(call).parameters)])
        self.manager.free(request)
        return out.Inserted(found, ((found, length),) if found < length else (), length)

    def _lacks_room(self, request: Request) -> bool:
        """Tell whether the free blocks are too few for the missing blocks of a request."""
        cached = self._cached(request)
        idle = [block for block in cached if block is not None and block in self.allocator.evictor]
        missing = cached.count(None) + len(self._tail)
        return missing > self.allocator.get_num_free_blocks() - len(idle)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Play a request that takes all blank blocks and some more, and gives them back."""
        before, pages = self._evictable(), -(-operation.tokens // self.page_size)
        free = self.allocator.get_num_free_blocks()
        names = ("allocate_mutable_block", "allocate_mutable")
        take = next(getattr(self.allocator, name) for name in names if hasattr(self.allocator, name))
        wanted = min(free - before + pages, free) if pages > 0 else 0
        for block in [take(None) for _ in range(wanted)]:
            self.allocator.free(block)
        return out.Evicted((before - self._evictable()) * self.page_size)

    def stay(self, step: int, key: ops.Key) -> Any:
        """Let a request arrive that stays."""
        request = self._request(key)
        self.refuse_partial(len(self._find(request)) * self.page_size, key)
        self.manager.allocate(request)
        self._run(request)
        return request

    def leave(self, request: Request) -> None:
        """End a request, after a last step."""
        self._run(request)
        self.manager.get_common_computed_block_ids([request])
        self.manager.free(request)

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """End every request, and forget all blocks; before 0.7 that takes a new server."""
        self.forget_requests()
        if not hasattr(self.allocator, "reset_prefix_cache"):
            self._start()
        elif not self.allocator.reset_prefix_cache():
            raise RuntimeError("vLLM refuses to reset a cache that is in use")
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each cached block as a node of one page."""
        blocks = [*self.allocator._cached_blocks.values()]
        blocks.sort(key=lambda block: (len(self._paths[block].tokens), self._numbers[block]))
        numbers = {self._paths[block]: self._numbers[block] for block in blocks}
        return out.Inspected(tuple(self._view(block, numbers) for block in blocks))

    def _view(self, block: int, numbers: Mapping[ops.Key, int]) -> out.NodeView:
        key = self._paths[block]
        above = self.whole(key, len(key.tokens) - self.page_size)
        return out.NodeView(
            id=self._numbers[block],
            parent=numbers.get(above),
            tokens=key.tokens[len(above.tokens) :],
            extra_key=key.extra_key,
            slots=self._contents[block],
            lock_ref=int(self.allocator._refcounter.get(block)),
        )


class Tails(BlockManager):
    """The block manager with inserts one token longer than their key, whose last block is never full.

    There is one block more than the capacity. Pages have two tokens or more: of one, that token would be a
    page of its own.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {**_configuration(2, 6), "tail": True},
        {**_configuration(2, 14), "tail": True},
        {**_configuration(4, 5), "tail": True},
    )


class Adapters(BlockManager):
    """The block manager, required to keep LoRA adapters apart for every hash; nothing refuses both."""

    def claim(self) -> frozenset[str]:
        return super().claim() | {"extra_key"}
