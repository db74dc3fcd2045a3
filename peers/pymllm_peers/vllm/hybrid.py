"""vLLM's `KVCacheManager` with two groups, full attention and another kind, as a prefix cache over pools.

Requests come and go as in `pymllm_peers.vllm.manager`. What differs comes from the second group:

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.own_prefix import CallersPool, pool_configurations
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.vllm.manager import DIMENSIONS, VllmFull, make_manager
from pymllm_peers.vllm.package import load_vllm

_BLOCKS = 2048
"""So many that copies of what is cached leave blocks for a request."""


class _Hybrid(CallersPool, VllmFull):
    """The base of both adapters with a second group; `SECOND` begins the names of its sizes.

    ``slots``, and ``swa_slots`` or ``track_slots``, say what the pools have that inserts bring their memory
    from. With ``at_once`` so many requests compute each key at the same time; with ``chunk`` a request takes
    so many tokens in a step. Two more keys are for one program each: with ``bare_hits`` an insert says that
    only what a request finds was there, and with ``bare_events`` an event counts for all blocks of a hash.
    """

    SECOND: ClassVar[str]

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.pool = self.make_pool()
        self._births: dict[bytes, int] = {}  # by hash, the number of what is there now
        # By group, what stands in the blocks of a hash: slots of a page, and its halves or a track slot.
        self.known: tuple[dict[bytes, tuple[int, ...]], dict[bytes, tuple[int, ...]]] = ({}, {})
        self._at_once = int(self.config.get("at_once") or 1)
        self._lent = self.blocks.get_new_blocks(self.blocks.get_num_free_blocks())

    def claim(self) -> frozenset[str]:
        """Claim no order: blocks of both groups go as they were let go of, each by itself."""
        return frozenset({"pool", *DIMENSIONS, "inspect", "lean_matches", "node_ids"})

    # -- what is cached ------------------------------------------------------------------------------------

    def _by_hash(self) -> tuple[dict[bytes, list[Any]], dict[bytes, list[Any]]]:
        """Return the blocks of each hash in the groups."""
        utils = load_vllm("v1.core.kv_cache_utils")
        found: tuple[dict[bytes, list[Any]], dict[bytes, list[Any]]] = ({}, {})
        for block in self._cached():
            known = block.block_hash
            found[utils.get_group_id(known)].setdefault(utils.get_block_hash(known), []).append(block)
        return found

    def sizes(self) -> dict[str, int]:
        """Return the sizes in distinct contents present, and the free sizes of the pools."""
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
        """Return the content of the block that vLLM finds under a hash."""
        found = self.blocks.get_cached_block(digest, [group])
        return None if found is None else self._contents[found[0].block_id]

    # -- requests ------------------------------------------------------------------------------------------

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a prompt; the content of found blocks is read where it was written."""
        request = self._request(step, operation.key)
        blocks, length, junction = self.cache.get_computed_blocks(request)
        self._nodes[step] = self.whole(operation.key, length)
        kv, second = (
            [self._contents[it.block_id] for it in found if not it.is_null] for found in blocks.blocks
        )
        slots = tuple(itertools.chain.from_iterable(kv))
        return out.Matched(slots, length, length, **self.more_of_match(second, junction))

    def more_of_match(self, second: Sequence[tuple[int, ...]], junction: int) -> dict[str, Any]:
        """Return the other results of a match, from the contents of the second group's blocks."""
        return {}

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Play requests from their arrival to their end; a key without a whole page makes none."""
        key = self._nodes[step] = self.whole(operation.key)
        length, slots = len(key.tokens), self.numbers(operation.slots or ())
        requests = [self._request(f"{step}.{number}", key) for number in range(self._at_once)]
        digests = requests[0].block_hashes[: length // self.page_size]
        kv, second = self._by_hash()
        stored = len([*itertools.takewhile(kv.__contains__, digests)]) * self.page_size
        incoming = [tuple(slots[at : at + self.page_size]) for at in range(0, length, self.page_size)]
        for digest, page in [*zip(digests, incoming, strict=True)][stored // self.page_size :]:
            self.known[0][digest] = page
            self._births[digest] = next(self._counter)
        is_known = self.config["window"] is not None and operation.prev_prefix_len >= length
        if digests and not is_known:
            self._lend(2 * len(requests) * (len(digests) + 1))
            for request, places in self._compute(requests, length):
                kv_table, table = self.cache.get_block_ids(request.request_id)
                for place in places:
                    self._contents[kv_table[place]] = self.known[0][digests[place]]
                    self.write_second(operation, digests[place], place, incoming[place], table[place])
            for request in requests:
                self.cache.free(request)
            self.take_back()
        if self.config.get("bare_hits"):
            stored = self._found
        adopted = ((stored, length),) if stored < length else ()
        return out.Inserted(stored, adopted, length, self.finds_state(digests[-1:], second))

    def finds_state(self, digests: Sequence[bytes], second: Mapping[bytes, object]) -> bool:
        """Tell whether the state at the end of a key was cached."""
        return False

    def _lend(self, count: int) -> None:
        lent, self._lent = self._lent[:count], self._lent[count:]
        self.blocks.free_blocks(lent)

    def _compute(self, requests: Sequence[Any], length: int) -> Iterator[tuple[Any, range]]:
        """Give requests blocks for tokens not found; yield each one's pages in each step.

        Of several at the same time none finds what another computes: vLLM registers their blocks later, as
        where KV comes from elsewhere.
        """
        self.cache.new_step_starts()
        size, is_late = self.page_size, len(requests) > 1
        found = [self.cache.get_computed_blocks(request)[:2] for request in requests]
        self._found = found[0][1]
        for request, (blocks, known) in zip(requests, found, strict=True):
            chunk = int(self.config.get("chunk") or length)
            ends = [*range(known + chunk, length, chunk), length]
            for start, end in itertools.pairwise([known, *ends]):
                new = (known, blocks) if start == known else (0, None)
                if self.cache.allocate_slots(request, end - start, *new, delay_cache_blocks=is_late) is None:
                    raise RuntimeError(f"no room for {end - start} tokens")
                request.num_computed_tokens = end
                yield request, range(start // size, end // size)
        for request in requests if is_late else ():
            self.cache.cache_blocks(request, length)

    @abstractmethod
    def write_second(
        self, operation: ops.Insert, digest: bytes, place: int, incoming: tuple[int, ...], block: int
    ) -> None:
        """Write the content of a computed page to a block of the second group."""

    def take_back(self) -> None:
        """Take back blank blocks lent to a request, anywhere in the queue."""
        idle = [block for block in self.blocks.blocks if not block.ref_cnt and not block.is_null]
        blank = [block for block in idle if block.block_hash is None]
        self.blocks.touch(blank)
        self._lent += blank
        self.blocks.take_events()

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Play a request that takes block after block until enough was evicted."""
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
        """Give back the contents of an evicted block that was the last with its hash."""
        convert = load_vllm("v1.core.kv_cache_utils").maybe_convert_block_hash
        (digest,) = [it for it in self.known[group] if convert(it) == external]
        if self.at(digest, group) is None or self.config.get("bare_events"):
            (self.lose_page, self.lose_second)[group](digest, gone)

    def lose_page(self, digest: bytes, gone: list[int]) -> None:
        """Give the slots of a page back, and count them."""
        assert self.pool is not None
        self.pool.free(torch.tensor(self.known[0].pop(digest)))
        gone[0] += self.page_size

    @abstractmethod
    def lose_second(self, digest: bytes, gone: list[int]) -> None:
        """Give back the second group's content of a page, and count it."""

    @abstractmethod
    def evicted(self, full: int, second: int) -> out.Evicted:
        """Return the result of an eviction from both groups."""

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """End every request, and forget everything."""
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
        """Show each present page as a node, with the second group's content of the page."""
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
        above = self.whole(key, len(key.tokens) - self.page_size)
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
        """Return the parts of a node that show the second group's contents."""


class VllmMamba(_Hybrid):
    """The adapter for full attention and Mamba layers, with states at step ends (``mamba_cache_mode`` align).

    A state may outlive the KV of its page, and stands there again when that is computed once more.
    """

    SECOND: ClassVar[str] = "mamba_"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, "track_slots": tracks, "splits": False, "at_once": at_once}
        for config in pool_configurations([None], ["token"])
        for tracks, at_once in ((3, 1), (1, 1), (32, 2))
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
        """Claim states that are evicted by themselves."""
        return super().claim() | {"mamba", "branching", "lone_states"}

    def sizes(self) -> dict[str, int]:
        """Return the sizes of pages and of states."""
        return super().sizes() | {"available_track_slots": len(self._tracks)}

    def do_alloc_track(self, step: int, operation: ops.AllocTrack) -> out.Result:
        """Allocate a track slot."""
        return out.Slots((self._tracks.pop(0),)) if self._tracks else out.NoRoom()

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> out.Result:
        """Free a track slot."""
        self._tracks.append(self.one(operation.slot))
        return out.Done()

    def more_of_match(self, second: Sequence[tuple[int, ...]], junction: int) -> dict[str, Any]:
        """Return the state at the end, and the length of KV beyond it."""
        return {"state": next((state for (state,) in second), None), "branching": junction or None}

    def finds_state(self, digests: Sequence[bytes], second: Mapping[bytes, object]) -> bool:
        """Tell whether a block of the second group has the hash of the key's end."""
        return any(digest in second for digest in digests)

    def write_second(
        self, operation: ops.Insert, digest: bytes, place: int, incoming: tuple[int, ...], block: int
    ) -> None:
        """Write the state at the end of a key."""
        if block:  # other places have none
            state = self.known[1].get(digest)
            if state is None:
                assert operation.state is not None
                state = self.known[1][digest] = (self.one(operation.state),)
            self._contents[block] = state

    def lose_second(self, digest: bytes, gone: list[int]) -> None:
        """Give a track slot back."""
        state = self.known[1].pop(digest)
        self._tracks += state
        self.effects.append(out.Effect("free_state", state))
        gone[1] += 1

    def evicted(self, full: int, second: int) -> out.Evicted:
        """Return the numbers of evicted tokens and states."""
        return out.Evicted(full, 0, second)

    def more_of_node(self, held: tuple[int, ...] | None, locks: int) -> dict[str, Any]:
        """Return the state at the node's end."""
        return {"state": None if held is None else held[0], "state_lock_ref": locks}


class VllmWindow(_Hybrid):
    """The adapter for full attention and a sliding window, whose blocks die by themselves and are followed.

    vLLM's window counts the token that is computed next, and ours does not: it is one larger. A block of the
    window whose KV has gone is forgotten at once (``evict_blocks``), as our pool's halves go with their
    slots; so are those that a request says are gone (``swa_evicted_seqlen``), as what a connector could not
    load. A key whose slots are all the cache's own is no request.
    """

    SECOND: ClassVar[str] = "swa_"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([4], ["swa"], splits=False),
        *pool_configurations([6], ["swa"], splits=False, chunk=4),
        *pool_configurations([4, 1], ["swa"], splits=False, at_once=2),
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
        """Claim a window, but none of our rules for its deaths (`exact_windows`)."""
        return super().claim() | {"swa"}

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Play requests from their arrival to their end, and then forget the blocks that they report gone."""
        self._lost = set[int]()
        result = super().do_insert(step, operation)
        self.cache.evict_blocks(self._lost)
        self.take_back()
        return result

    def write_second(
        self, operation: ops.Insert, digest: bytes, place: int, incoming: tuple[int, ...], block: int
    ) -> None:
        """Write halves, unless they are gone; a dead page takes the new halves."""
        assert self.pool is not None
        if place * self.page_size < operation.swa_evicted_seqlen:
            self._lost.add(block)
            return
        slots = self.known[0][digest]
        if digest not in self.known[1]:
            if slots != incoming:
                self.pool.move_swa(torch.tensor(incoming), torch.tensor(slots))
            self.known[1][digest] = self._halves(slots)
        self._contents[block] = self.known[1][digest]

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
        """Return the numbers of evicted tokens of both kinds."""
        return out.Evicted(full, second)

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> out.Result:
        """Return halves: of cached pages the halves that vLLM finds."""
        numbers = self.numbers(operation.slots)
        told = dict(zip(numbers, self._halves(numbers), strict=True))
        for digest, slots in self.known[0].items():
            told |= dict(zip(slots, self.at(digest, 1) or (0,) * len(slots), strict=True))
        return out.Slots((), tuple(told[number] for number in numbers))

    def more_of_node(self, held: tuple[int, ...] | None, locks: int) -> dict[str, Any]:
        """Return whether the node's window is alive."""
        return {"is_alive": held is not None}
