"""vLLM's `KVCacheManager` with two groups, full attention and another kind, as a prefix cache over pools.

Requests come and go as in `pymllm.adapters.vllm.manager`. What differs comes from the second group:

- One pool of blocks has the memory of both groups, and evicts each block by itself. A state may outlive the KV
  of its page, and stands there again when that is computed once more (`lone_states`).
- A hit ends where both groups have what it takes. KV behind it that is cached is computed again, into blocks
  that are registered beside those that were there: several blocks under one hash. A page or a state is there
  as long as one of them is, and what is computed twice is the same, so the copy has the slots that were there.
- Slots and track slots are ours: numbers that an insert writes to the blocks that vLLM chose, and a match reads
  there. What goes back to the pools when a block goes is known from the events that a router is sent
  (``BlockRemoved``).

Blocks beyond those that are cached are lent to a request and taken back, so that only an eviction evicts: a
request that takes one block after the other until enough has gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.vllm.manager import VllmFull, make_manager
from pymllm.adapters.vllm.package import load_vllm
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config

_BLOCKS = 2048
"""So many that copies of what is cached leave blocks for a request."""


def _configuration(page_size: int, pages: int, tracks: int) -> Config:
    return {
        "page_size": page_size,
        "window": None,
        "pool": "token",
        "slots": page_size * pages,
        "track_slots": tracks,
        "splits": False,
    }


class VllmMamba(VllmFull):
    """Full attention and Mamba layers, whose states are kept where a step ends (``mamba_cache_mode`` align).

    ``slots`` and ``track_slots`` are what the pools have that inserts bring their memory from.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _configuration(1, 6, 3),
        _configuration(1, 14, 6),
        _configuration(4, 5, 1),
        _configuration(4, 8, 32),
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        pages = self.number("slots") // self.page_size
        self._free_pages = [*range(1, pages + 1)]
        self._free_tracks = [*range(1, self.number("track_slots") + 1)]
        self._births: dict[bytes, int] = {}  # by hash, the number of what is there now
        self._known: tuple[dict[bytes, Any], dict[bytes, Any]] = ({}, {})  # by group, what a hash stands for
        self._lent = self.pool.get_new_blocks(self.pool.get_num_free_blocks())

    def make_cache(self) -> Any:
        """Build a manager of both groups."""
        interface = load_vllm("v1.kv_cache_interface")
        spec = interface.MambaSpec(
            block_size=self.page_size, shapes=((1,),), dtypes=(torch.float16,), mamba_cache_mode="align"
        )
        return make_manager(self.page_size, _BLOCKS, (spec, "MambaManager"))

    def claim(self) -> frozenset[str]:
        """Claim no order: blocks of both groups go as they were let go of, each by itself."""
        return frozenset(
            {"pool", "mamba", "branching", "lone_states", "extra_key", "inspect", "lean_matches", "node_ids"}
        )

    # -- what is cached ------------------------------------------------------------------------------------

    def _blocks_by_hash(self) -> tuple[dict[bytes, list[Any]], dict[bytes, list[Any]]]:
        """Return the blocks of each hash that the groups have."""
        utils, found = (
            load_vllm("v1.core.kv_cache_utils"),
            (dict[bytes, list[Any]](), dict[bytes, list[Any]]()),
        )
        for block in self._cached():
            known = block.block_hash
            found[utils.get_group_id(known)].setdefault(utils.get_block_hash(known), []).append(block)
        return found

    def sizes(self) -> dict[str, int]:
        """Return the sizes in what is there at least once."""
        sizes: dict[str, int] = {}
        units = (("", self.page_size), ("mamba_", 1))
        for (prefix, unit), found in zip(units, self._blocks_by_hash(), strict=True):
            held = [any(block.ref_cnt for block in blocks) for blocks in found.values()]
            sizes[f"{prefix}protected_size"] = sum(held) * unit
            sizes[f"{prefix}evictable_size"] = (len(held) - sum(held)) * unit
        return sizes | {
            "total_size": sizes["protected_size"] + sizes["evictable_size"],
            "available_size": len(self._free_pages) * self.page_size,
            "available_track_slots": len(self._free_tracks),
        }

    # -- the caller's pools --------------------------------------------------------------------------------

    def do_alloc(self, step: int, operation: ops.Alloc) -> out.Result:
        """Take slots of whole pages."""
        count = -(-operation.tokens // self.page_size)
        if count > len(self._free_pages):
            return out.NoRoom()
        pages, self._free_pages = self._free_pages[:count], self._free_pages[count:]
        return out.Slots(tuple(self._slots_of(pages)))

    def _slots_of(self, pages: Iterable[int]) -> Iterable[int]:
        size = self.page_size
        return itertools.chain.from_iterable(range(page * size, (page + 1) * size) for page in pages)

    def do_free(self, step: int, operation: ops.Free) -> out.Result:
        """Take slots back."""
        self._give_back(self.numbers(operation.slots))
        return out.Done()

    def _give_back(self, slots: Sequence[int]) -> None:
        self._free_pages += dict.fromkeys(slot // self.page_size for slot in slots)

    def do_alloc_track(self, step: int, operation: ops.AllocTrack) -> out.Result:
        return out.Slots((self._free_tracks.pop(0),)) if self._free_tracks else out.NoRoom()

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> out.Result:
        self._free_tracks.append(self.one(operation.slot))
        return out.Done()

    # -- requests ------------------------------------------------------------------------------------------

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Look a prompt up; what is found is read where it was written."""
        request = self._request(step, operation.key)
        blocks, length, junction = self.cache.get_computed_blocks(request)
        self._nodes[step] = self._whole(operation.key, length)
        slots = [slot for block in blocks.blocks[0] for slot in self._contents[block.block_id]]
        (state,) = [self._contents[block.block_id][0] for block in blocks.blocks[1][-1:]] or [None]
        return out.Matched(tuple(slots), length, length, state=state, branching=junction or None)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Let a request come, be computed in one step and go; one of no whole page never comes."""
        key = self._whole(operation.key)
        self._nodes[step] = key
        if not key.tokens:
            return out.Inserted(0, (), 0)
        request, length = self._request(step, key), len(key.tokens)
        digests, slots = request.block_hashes[: length // self.page_size], self.numbers(operation.slots or ())
        kv, states = self._blocks_by_hash()
        stored = len([*itertools.takewhile(kv.__contains__, digests)]) * self.page_size
        exists = digests[-1] in states
        for place in range(stored // self.page_size, len(digests)):
            first = place * self.page_size
            self._known[0][digests[place]] = tuple(slots[first : first + self.page_size])
            self._births[digests[place]] = next(self._counter)
        if not exists:
            assert operation.state is not None
            self._known[1][digests[-1]] = (self.one(operation.state),)
        self._compute(request, length, digests)
        self.cache.free(request)
        self._take_back()
        return out.Inserted(stored, ((stored, length),) if stored < length else (), length, exists)

    def _compute(self, request: Any, length: int, digests: Sequence[bytes]) -> None:
        """Give a request blocks for what it does not find, and write to them."""
        self.cache.new_step_starts()
        blocks, found, _ = self.cache.get_computed_blocks(request)
        lent, self._lent = self._lent[: len(digests) + 2], self._lent[len(digests) + 2 :]
        self.pool.free_blocks(lent)
        if self.cache.allocate_slots(request, length - found, found, blocks) is None:
            raise RuntimeError(f"no room for {length - found} tokens")
        for group, table in enumerate(self.cache.get_block_ids(request.request_id)):
            for place in range(found // self.page_size, len(table)):
                if table[place]:
                    self._contents[table[place]] = self._known[group][digests[place]]

    def _take_back(self) -> None:
        """Take back what was lent to a request, and is blank now."""
        self._lent += self.pool.get_new_blocks(self._count_blank())
        self.pool.take_events()

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Let a request take block after block until enough has gone, and go."""
        taken, gone = list[Any](), out.Evicted(0)
        while self._is_wanted(operation, gone):
            taken += self.pool.get_new_blocks(1)
            gone = self._tell_of_removals(gone)
        self.pool.free_blocks(taken)
        self._take_back()
        return gone

    def _is_wanted(self, operation: ops.Evict, gone: out.Evicted) -> bool:
        sizes = self.sizes()
        return bool(
            (gone.full < operation.tokens and sizes["evictable_size"])
            or (gone.states < operation.secondary and sizes["mamba_evictable_size"])
        )

    def _tell_of_removals(self, gone: out.Evicted) -> out.Evicted:
        """Give back what stood in the block that went, if it was the last one of its hash."""
        full, states = gone.full, gone.states
        for event in self.pool.take_events():
            (digest,) = event.block_hashes
            (digest,) = [it for it in self._known[event.group_idx] if self._external(it) == digest]
            if self.pool.get_cached_block(digest, [event.group_idx]) is not None:
                continue
            slots = self._known[event.group_idx].pop(digest)
            if event.group_idx:
                states += 1
                self._free_tracks += slots
            else:
                full += self.page_size
                self._give_back(slots)
            self.effects.append(out.Effect(("free", "free_state")[event.group_idx], slots))
        return out.Evicted(full, 0, states)

    def _external(self, digest: bytes) -> Any:
        return load_vllm("v1.core.kv_cache_utils").maybe_convert_block_hash(digest)

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """Let every request go, and forget everything."""
        self.pool.free_blocks(self._lent)
        result = super().do_reset(step, operation)
        self._lent = self.pool.get_new_blocks(self.pool.get_num_free_blocks())
        self.pool.take_events()
        for call, known in zip(("free", "free_state"), self._known, strict=True):
            self.effects += [out.Effect(call, slots) for slots in known.values()]
        for slots in self._known[0].values():
            self._give_back(slots)
        self._free_tracks += [slot for (slot,) in self._known[1].values()]
        for known in self._known:
            known.clear()
        return result

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each page that is there as a node, with the state at its end."""
        kv, states = self._blocks_by_hash()
        pages = sorted(
            ((self._keys[it], it) for it in kv), key=lambda page: (len(page[0].tokens), self._births[page[1]])
        )
        numbers = {key: self._births[digest] for key, digest in pages}
        return out.Inspected(tuple(self._view_of(key, digest, kv, states, numbers) for key, digest in pages))

    def _view_of(
        self, key: ops.Key, digest: bytes, kv: Any, states: Any, numbers: Mapping[ops.Key, int]
    ) -> out.NodeView:
        above = self._whole(key, len(key.tokens) - self.page_size)
        found = self.pool.get_cached_block(digest, [0])
        state = self.pool.get_cached_block(digest, [1])
        return out.NodeView(
            id=numbers[key],
            parent=numbers.get(above),
            tokens=key.tokens[len(above.tokens) :],
            extra_key=key.extra_key,
            slots=self._contents[found[0].block_id],
            lock_ref=sum(block.ref_cnt for block in kv[digest]),
            state=None if state is None else self._contents[state[0].block_id][0],
            state_lock_ref=sum(block.ref_cnt for block in states.get(digest, ())),
        )
