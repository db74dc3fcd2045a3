"""vLLM's `KVCacheManager` with two groups, full attention and another kind, as a prefix cache over pools.

Requests come and go as in `pymllm.adapters.vllm.manager`. What differs comes from the second group:

- One pool of blocks has the memory of both groups, and evicts each block by itself.
- A hit ends where both groups have what it takes. KV behind it that is cached is computed again, into blocks
  that are registered beside those that were there: several blocks under one hash. A page or a state is there
  as long as one of them is, and what is computed twice is the same, so that a copy has the numbers that were
  there.
- Slots, halves and track slots are ours: numbers that an insert writes to the blocks that vLLM chose, and a
  match reads there. What goes back to our pools when a block goes is known from the events that a router is
  sent (``BlockRemoved``).

Blocks beyond those that are cached are lent to a request and taken back, so that only an eviction evicts: a
request that takes one block after the other until enough has gone.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_prefix import CallersPool, pool_configurations
from pymllm.adapters.vllm.manager import VllmFull, make_manager
from pymllm.adapters.vllm.package import load_vllm
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config

_BLOCKS = 2048
"""So many that copies of what is cached leave blocks for a request."""


class _Hybrid(CallersPool, VllmFull):
    """What both second groups have in common; `SECOND` begins the names of its sizes.

    ``slots``, and ``swa_slots`` or ``track_slots``, say what the pools have that inserts bring their memory
    from.
    """

    SECOND: ClassVar[str]

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.pool = self.make_pool()
        self._births: dict[bytes, int] = {}  # by hash, the number of what is there now
        # By group, what stands in the blocks of a hash: slots of a page, and its halves or a track slot.
        self.known: tuple[dict[bytes, tuple[int, ...]], dict[bytes, tuple[int, ...]]] = ({}, {})
        self._lent = self.blocks.get_new_blocks(self.blocks.get_num_free_blocks())

    def claim(self) -> frozenset[str]:
        """Claim no order: blocks of both groups go as they were let go of, each by itself."""
        return frozenset({"pool", "extra_key", "inspect", "lean_matches", "node_ids"})

    # -- what is cached ------------------------------------------------------------------------------------

    def _by_hash(self) -> tuple[dict[bytes, list[Any]], dict[bytes, list[Any]]]:
        """Return the blocks of each hash that the groups have."""
        utils = load_vllm("v1.core.kv_cache_utils")
        found: tuple[dict[bytes, list[Any]], dict[bytes, list[Any]]] = ({}, {})
        for block in self._cached():
            known = block.block_hash
            found[utils.get_group_id(known)].setdefault(utils.get_block_hash(known), []).append(block)
        return found

    def sizes(self) -> dict[str, int]:
        """Return the sizes in what is there at least once, and what the pools have left."""
        sizes: dict[str, int] = {}
        for prefix, found in zip(("", self.SECOND), self._by_hash(), strict=True):
            unit = 1 if prefix == "mamba_" else self.page_size
            held = [any(block.ref_cnt for block in blocks) for blocks in found.values()]
            sizes[f"{prefix}protected_size"] = sum(held) * unit
            sizes[f"{prefix}evictable_size"] = (len(held) - sum(held)) * unit
        inner = self._pool_of_caller()
        names = ("available_size", "full_available_size", "swa_available_size")
        of_pool = {name: getattr(inner, name)() for name in names if hasattr(inner, name)}
        return {**sizes, "total_size": sizes["protected_size"] + sizes["evictable_size"], **of_pool}

    def at(self, digest: bytes, group: int) -> tuple[int, ...] | None:
        """Return what stands in the block that vLLM finds under a hash."""
        found = self.blocks.get_cached_block(digest, [group])
        return None if found is None else self._contents[found[0].block_id]

    # -- requests ------------------------------------------------------------------------------------------

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Look a prompt up; what is found is read where it was written."""
        request = self._request(step, operation.key)
        blocks, length, junction = self.cache.get_computed_blocks(request)
        self._nodes[step] = self._whole(operation.key, length)
        kv, second = (
            [self._contents[it.block_id] for it in found if not it.is_null] for found in blocks.blocks
        )
        slots = tuple(itertools.chain.from_iterable(kv))
        return out.Matched(slots, length, length, **self.more_of_match(second, junction))

    def more_of_match(self, second: Sequence[tuple[int, ...]], junction: int) -> dict[str, Any]:
        """Return what else a match tells, of what stands in the blocks of the second group."""
        return {}

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Let a request come, be computed in one step and go; one of no whole page never comes."""
        key = self._nodes[step] = self._whole(operation.key)
        length, slots = len(key.tokens), self.numbers(operation.slots or ())
        request = self._request(step, key)
        digests = request.block_hashes[: length // self.page_size]
        kv, second = self._by_hash()
        stored = len([*itertools.takewhile(kv.__contains__, digests)]) * self.page_size
        pages = [tuple(slots[at : at + self.page_size]) for at in range(0, length, self.page_size)]
        for digest, page in [*zip(digests, pages, strict=True)][stored // self.page_size :]:
            self.known[0][digest] = page
            self._births[digest] = next(self._counter)
        if operation.prev_prefix_len < length:  # or nothing came that was computed
            found = self._compute(request, length)
            tables = self.cache.get_block_ids(request.request_id)
            self.write_second(operation, [*zip(digests, pages, tables[1], strict=True)], found, second)
            for digest, block in [*zip(digests, tables[0], strict=True)][found // self.page_size :]:
                self._contents[block] = self.known[0][digest]
            self.cache.free(request)
            self.take_back()
        adopted = ((stored, length),) if stored < length else ()
        return out.Inserted(stored, adopted, length, bool(digests) and self.finds_state(digests[-1], second))

    def finds_state(self, digest: bytes, second: Mapping[bytes, object]) -> bool:
        """Tell whether the state at the end of a key was there."""
        return False

    def _compute(self, request: Any, length: int) -> int:
        """Give a request blocks for what it does not find, and return how much it finds."""
        self.cache.new_step_starts()
        blocks, found, _ = self.cache.get_computed_blocks(request)
        wanted = 2 * (length // self.page_size + 1)
        lent, self._lent = self._lent[:wanted], self._lent[wanted:]
        self.blocks.free_blocks(lent)
        if self.cache.allocate_slots(request, length - found, found, blocks) is None:
            raise RuntimeError(f"no room for {length - found} tokens")
        return int(found)

    @abstractmethod
    def write_second(
        self,
        operation: ops.Insert,
        pages: Sequence[tuple[bytes, tuple[int, ...], int]],
        found: int,
        before: Mapping[bytes, object],
    ) -> None:
        """Write to the blocks of the second group; ``pages`` have hash, incoming slots and block."""

    def take_back(self) -> None:
        """Take back what was lent to a request, and is blank now, wherever it stands in the queue."""
        idle = [block for block in self.blocks.blocks if not block.ref_cnt and not block.is_null]
        blank = [block for block in idle if block.block_hash is None]
        self.blocks.touch(blank)
        self._lent += blank
        self.blocks.take_events()

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Let a request take block after block until enough has gone, and go."""
        taken: list[Any] = []
        gone = [0, 0]
        while self._is_wanted(operation, gone):
            taken += self.blocks.get_new_blocks(1)
            for event in self.blocks.take_events():
                self._lose(event.group_idx, event.block_hashes[0], gone)
        self.blocks.free_blocks(taken)
        self.take_back()
        return self.evicted(*gone)

    def _is_wanted(self, operation: ops.Evict, gone: Sequence[int]) -> bool:
        sizes = self.sizes()
        names = ("evictable_size", f"{self.SECOND}evictable_size")
        asked = zip(names, (operation.tokens, operation.secondary), gone, strict=True)
        return any(done < wanted and sizes[name] for name, wanted, done in asked)

    def _lose(self, group: int, external: object, gone: list[int]) -> None:
        """Give back what stood in a block that went, if it was the last one of its hash."""
        convert = load_vllm("v1.core.kv_cache_utils").maybe_convert_block_hash
        (digest,) = [it for it in self.known[group] if convert(it) == external]
        if self.at(digest, group) is None:
            (self.lose_page, self.lose_second)[group](digest, gone)

    def lose_page(self, digest: bytes, gone: list[int]) -> None:
        """Give the slots of a page back, and count them."""
        assert self.pool is not None
        self.pool.free(torch.tensor(self.known[0].pop(digest)))
        gone[0] += self.page_size

    @abstractmethod
    def lose_second(self, digest: bytes, gone: list[int]) -> None:
        """Give back what the second group has for a page, and count it."""

    @abstractmethod
    def evicted(self, full: int, second: int) -> out.Evicted:
        """Tell what went of both groups."""

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """Let every request go, and forget everything."""
        self.blocks.free_blocks(self._lent)
        result = super().do_reset(step, operation)
        self._lent = self.blocks.get_new_blocks(self.blocks.get_num_free_blocks())
        self.blocks.take_events()
        for digest in [*self.known[1]]:
            self.lose_second(digest, [0, 0])
        for digest in [*self.known[0]]:
            self.lose_page(digest, [0, 0])
        return result

    # -- looking -------------------------------------------------------------------------------------------

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each page that is there as a node, with what the second group has for it."""
        kv, second = self._by_hash()
        pages = sorted(kv, key=lambda digest: (len(self._keys[digest].tokens), self._births[digest]))
        numbers = {self._keys[digest]: self._births[digest] for digest in pages}
        return out.Inspected(
            tuple(self._shown(digest, numbers, kv[digest], second.get(digest, ())) for digest in pages)
        )

    def _shown(
        self, digest: bytes, numbers: Mapping[ops.Key, int], kv: Sequence[Any], second: Sequence[Any]
    ) -> out.NodeView:
        key = self._keys[digest]
        above = self._whole(key, len(key.tokens) - self.page_size)
        return out.NodeView(
            id=self._births[digest],
            parent=numbers.get(above),
            tokens=key.tokens[len(above.tokens) :],
            extra_key=key.extra_key,
            slots=self.at(digest, 0) or (),
            lock_ref=sum(block.ref_cnt for block in kv),
            **self.more_of_node(self.at(digest, 1), sum(block.ref_cnt for block in second)),
        )

    @abstractmethod
    def more_of_node(self, held: tuple[int, ...] | None, locks: int) -> dict[str, Any]:
        """Return what a node shows of what the second group has."""


class VllmMamba(_Hybrid):
    """Full attention and Mamba layers, whose states are kept where a step ends (``mamba_cache_mode`` align).

    A state may outlive the KV of its page, and stands there again when that is computed once more.
    """

    SECOND: ClassVar[str] = "mamba_"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, "track_slots": tracks, "splits": False}
        for config in pool_configurations([None], ["token"])
        for tracks in (3, 1, 32)
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._tracks = [*range(1, self.number("track_slots") + 1)]

    def make_cache(self) -> Any:
        """Build a manager of both groups."""
        spec = load_vllm("v1.kv_cache_interface").MambaSpec(
            block_size=self.page_size, shapes=((1,),), dtypes=(torch.float16,), mamba_cache_mode="align"
        )
        return make_manager(self.page_size, _BLOCKS, (spec, "MambaManager"))

    def claim(self) -> frozenset[str]:
        return super().claim() | {"mamba", "branching", "lone_states"}

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"available_track_slots": len(self._tracks)}

    def do_alloc_track(self, step: int, operation: ops.AllocTrack) -> out.Result:
        """Take a track slot."""
        return out.Slots((self._tracks.pop(0),)) if self._tracks else out.NoRoom()

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> out.Result:
        """Take one back."""
        self._tracks.append(self.one(operation.slot))
        return out.Done()

    def more_of_match(self, second: Sequence[tuple[int, ...]], junction: int) -> dict[str, Any]:
        """Return the state at the end, and how far KV goes on."""
        return {"state": next((state for (state,) in second), None), "branching": junction or None}

    def finds_state(self, digest: bytes, second: Mapping[bytes, object]) -> bool:
        return digest in second

    def write_second(
        self,
        operation: ops.Insert,
        pages: Sequence[tuple[bytes, tuple[int, ...], int]],
        found: int,
        before: Mapping[bytes, object],
    ) -> None:
        """Write the state at the end of a key, if a step has computed it."""
        digest, _, block = pages[-1]
        if digest not in before:
            if operation.state is None:
                raise UnsupportedError("every key comes with a state")
            self.known[1][digest] = (self.one(operation.state),)
        if found < len(pages) * self.page_size:
            self._contents[block] = self.known[1][digest]

    def lose_second(self, digest: bytes, gone: list[int]) -> None:
        """Give a track slot back."""
        state = self.known[1].pop(digest)
        self._tracks += state
        self.effects.append(out.Effect("free_state", state))
        gone[1] += 1

    def evicted(self, full: int, second: int) -> out.Evicted:
        return out.Evicted(full, 0, second)

    def more_of_node(self, held: tuple[int, ...] | None, locks: int) -> dict[str, Any]:
        """Return the state at its end."""
        return {"state": None if held is None else held[0], "state_lock_ref": locks}


class VllmWindow(_Hybrid):
    """Full attention and layers with a sliding window, whose blocks die by themselves and are followed.

    vLLM's window counts the token that is computed next, and ours does not: it is one larger. A block of the
    window whose KV has gone is forgotten at once (``evict_blocks``), as our pool's halves go with their slots;
    so are those that a request says are gone (``swa_evicted_seqlen``), as what a connector could not load.
    """

    SECOND: ClassVar[str] = "swa_"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, "splits": False} for config in pool_configurations([4, 6, 1], ["swa"])
    )

    def make_cache(self) -> Any:
        """Build a manager of both groups."""
        spec = load_vllm("v1.kv_cache_interface").SlidingWindowSpec(
            block_size=self.page_size,
            num_kv_heads=1,
            head_size=1,
            dtype=torch.float16,
            sliding_window=self.number("window") + 1,
        )
        return make_manager(self.page_size, _BLOCKS, (spec, "SlidingWindowManager"))

    def claim(self) -> frozenset[str]:
        return super().claim() | {"swa"}

    def write_second(
        self,
        operation: ops.Insert,
        pages: Sequence[tuple[bytes, tuple[int, ...], int]],
        found: int,
        before: Mapping[bytes, object],
    ) -> None:
        """Write halves to what was computed and not lost; a dead page takes those that came."""
        assert self.pool is not None
        lost = set[int]()
        for place, (digest, incoming, block) in enumerate(pages):
            start = place * self.page_size
            if start < found:
                continue
            if start < operation.swa_evicted_seqlen:
                lost.add(block)
                continue
            slots = self.known[0][digest]
            if digest not in before:
                if slots != incoming:
                    self.pool.move_swa(torch.tensor(incoming), torch.tensor(slots))
                self.known[1][digest] = self._halves(slots)
            self._contents[block] = self.known[1][digest]
        self.cache.evict_blocks(lost)

    def _halves(self, slots: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._pool_of_caller().translate_to_swa(torch.tensor(slots)).tolist())

    def lose_page(self, digest: bytes, gone: list[int]) -> None:
        """Give slots back, with their halves where they have any, and forget these."""
        if self.known[1].pop(digest, None) is not None:
            gone[1] += self.page_size
        self.cache.evict_blocks({block.block_id for block in self._by_hash()[1].get(digest, ())})
        self.blocks.take_events()
        super().lose_page(digest, gone)

    def lose_second(self, digest: bytes, gone: list[int]) -> None:
        """Give halves back."""
        assert self.pool is not None
        del self.known[1][digest]
        self.pool.free_swa(torch.tensor(self.known[0][digest]))
        gone[1] += self.page_size

    def evicted(self, full: int, second: int) -> out.Evicted:
        return out.Evicted(full, second)

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> out.Result:
        """Tell halves: of cached pages those that vLLM finds."""
        numbers = self.numbers(operation.slots)
        told = dict(zip(numbers, self._halves(numbers), strict=True))
        for digest, slots in self.known[0].items():
            told |= dict(zip(slots, self.at(digest, 1) or (0,) * len(slots), strict=True))
        return out.Slots((), tuple(told[number] for number in numbers))

    def more_of_node(self, held: tuple[int, ...] | None, locks: int) -> dict[str, Any]:
        """Return whether its window lives."""
        return {"is_alive": held is not None}
