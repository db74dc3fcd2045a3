"""Adapters of mllm's slots, rows, buffers, states, keys and hashes: the well-behaved calls, and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed import Calls
from pymllm.adapters.own_pools import GDNStates, KeysAndHashes, KVBuffers, OwnPool, Rows
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.mllm.package import also_claimed, load_mllm
from pymllm_peers.projects import MLLM


class MllmPool(OwnPool):
    """The base of adapters of mllm's pools, which refuse nothing, and cannot be walked from inside."""

    MALFORMED: ClassVar[Calls] = {}
    CLAIMED: ClassVar[Collection[str]] = ("pool",)

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        MLLM.require_version()
        super().__init__(name, config)

    def claim(self) -> frozenset[str]:
        return frozenset(self.CLAIMED) | also_claimed(self.config)

    def audit(self) -> Sequence[str]:
        return ()


class MllmSlots(MllmPool):
    """``TokenToKVPoolAllocator``: ``page_size``, ``pages``, ``need_sort``. Misuse is undefined.

    An allocation that runs short merges, also one that fails then, so only ``also`` claims ``merges``.
    """

    KIND = "slots"
    CLAIMED = ("pool", "groups")
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page_size, "pages": 12, "need_sort": need_sort}
        for page_size in (1, 4)
        for need_sort in (True, False)
    )

    def make_pool(self) -> object:
        page_size = self.number("page_size")
        allocator = load_mllm("memory_pool").TokenToKVPoolAllocator
        return allocator(self.number("pages") * page_size, "cpu", page_size, bool(self.config["need_sort"]))

    def sizes(self) -> dict[str, int]:
        return {"available_size": self.pool.available_size()}

    def do_alloc(self, step: int, operation: ops.Alloc) -> out.Slots | out.NoRoom:
        slots = self.pool.alloc(operation.tokens)
        return out.NoRoom() if slots is None else out.Slots(tuple(slots.tolist()))

    def do_free(self, step: int, operation: ops.Free) -> out.Done:
        self.pool.free(self.index(self.numbers(operation.slots), operation.form))
        return out.Done()

    def do_merge(self, step: int, operation: ops.Merge) -> out.Done:
        if "merges" not in self.capabilities:
            raise UnsupportedError("nothing waits for a merge")
        self.pool.merge_and_sort_free()
        return out.Done()

    def do_begin_group(self, step: int, operation: ops.BeginGroup) -> out.Done:
        self.pool.free_group_begin()
        return out.Done()

    def do_end_group(self, step: int, operation: ops.EndGroup) -> out.Done:
        self.pool.free_group_end()
        return out.Done()

    def do_clear(self, step: int, operation: ops.Clear) -> out.Done:
        self.pool.clear()
        return out.Done()


class MllmRows(MllmPool, Rows):
    """``ReqToTokenPool``. A row that is freed keeps its entries, so ``zeroed_rows`` is not claimed.

    It has no row for padding. With ``padded`` in its configuration a caller takes row 0 for that, so that a
    search goes on behind what it finds at once (peers/findings).
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *Rows.CONFIGURATIONS,
        *({**config, "padded": True} for config in Rows.CONFIGURATIONS),
    )

    def make_pool(self) -> Any:
        rows, columns = self.number("max_reqs") + self._padding, self.number("max_context_len")
        pool = load_mllm("memory_pool").ReqToTokenPool(rows, columns, "cpu")
        pool.alloc(self._padding)
        return pool

    @property
    def _padding(self) -> int:
        """The number of the caller's rows for padding: one or none."""
        return int(bool(self.config.get("padded")))

    def sizes(self) -> dict[str, int]:
        return {"size": self.pool.size - self._padding, "available_size": self.pool.available_size()}

    def do_clear(self, step: int, operation: ops.Clear) -> out.Done:
        self.pool.clear()
        self.pool.alloc(self._padding)
        return out.Done()


class MllmBuffers(MllmPool, KVBuffers):
    """``KVPool``, as its factory builds it beside an allocator; one page is larger than its rounding."""

    CLAIMED = ()
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *KVBuffers.CONFIGURATIONS,
        {**KVBuffers.CONFIGURATIONS[0], "size": 16, "page_size": 16},
    )

    def make_pool(self) -> object:
        sizes = [self.number(key) for key in ("size", "layers", "k_heads", "k_dim", "v_heads", "v_dim")]
        make = load_mllm("memory_pool").make_full_attention_net_mem_pool
        pool, _ = make(*sizes, "cpu", self.dtype(), self.number("page_size"), pin_memory=False)
        made: object = pool
        return made

    def do_move_kv(self, step: int, operation: ops.MoveKV) -> out.Done:
        """Copy rows through a temporary copy: its caller never hands rows of the very buffer over."""
        keys, values = (buffer.clone() for buffer in self.pool.get_kv_buffer(operation.layer))
        rows = slice(operation.source, operation.source + operation.count)
        targets = range(operation.target, operation.target + operation.count)
        self.pool.set_kv_buffer(operation.layer, self.index(targets, "int64"), keys[rows], values[rows])
        return out.Done()


class MllmStates(MllmPool, GDNStates):
    """``GDNPool``. It has no ``clear``, and tells of its track slots only how many there are."""

    def make_pool(self) -> object:
        keys = ("max_reqs", "layers", "v_heads", "k_dim", "v_dim", "conv_dim", "kernel")
        sizes = [self.number(key) for key in keys]
        return load_mllm("memory_pool").GDNPool(*sizes, "cpu", self.dtype(), self.number("track_slots"))

    def sizes(self) -> dict[str, int]:
        return {"max_track_slots": self.pool.max_track_slots}

    def do_clear(self, step: int, operation: ops.Clear) -> out.Done:
        raise UnsupportedError("a pool of states lives as long as its server")


class MllmHashes(MllmPool, KeysAndHashes):
    """``RadixKey``, ``hash_token_ids``, ``hash_to_int64`` and ``hash_bytes``, with lists of tokens."""

    CLAIMED = ("bigrams", "extra_key", "hashes")

    def make_pool(self) -> Any:
        """Return the module with the hash functions."""
        return load_mllm("base_prefix_cache")

    def _key(self, key: ops.Key) -> Any:
        return self.pool.RadixKey([*key.tokens], key.extra_key)

    def do_slice_key(self, step: int, operation: ops.SliceKey) -> out.Tokens:
        return _read(self._key(operation.key)[operation.start : operation.stop])

    def do_pick_token(self, step: int, operation: ops.PickToken) -> out.Tokens:
        return _read(self._key(operation.key)[operation.at])

    def do_hash_page(self, step: int, operation: ops.HashPage) -> out.Hashes:
        return out.Hashes((self.pool.hash_token_ids([*operation.key.tokens], operation.prior),))

    def do_hash_int64(self, step: int, operation: ops.HashInt64) -> out.Number:
        return out.Number(self.pool.hash_to_int64(operation.digest))

    def do_hash_bytes(self, step: int, operation: ops.HashBytes) -> out.Number:
        return out.Number(self.pool.hash_bytes(bytes.fromhex(operation.data)))


def _read(key: Any) -> out.Tokens:
    return out.Tokens(tuple(key)[: len(key)], key.extra_key)
