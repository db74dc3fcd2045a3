"""The adapters of this package's request rows, buffers, states, keys and hashes, with a common base."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.far import why_not_far
from pymllm.adapters.key_forms import make_indices, make_tokens
from pymllm.adapters.malformed import Calls, call_malformed
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import DIMENSIONS
from pymllm.history.outcomes import Buffers, Done, Hashes, NoRoom, Number, Slots, States, Table, Tokens
from pymllm.invariants.pools import check_gdn_pool, check_kv_pool, check_req_to_token_pool
from pymllm.mem_cache.base_prefix_cache import RadixKey, hash_bytes, hash_to_int64, hash_token_ids
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.pools.rows import bit_view

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_elements(numbers: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return elements of a dtype whose bits are these numbers.

    So -1 is a NaN in any floating point type, and 1 and 0 are different numbers of which a careless kernel
    makes the same: what is compared is what was stored, bit for bit (P5).
    """
    return make_indices(numbers, f"int{8 * dtype.itemsize}").view(dtype)  # 1.9 us; torch itself makes it 3.6


def as_numbers(elements: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    """Return the bits of each row's elements as numbers."""
    rows = elements.view(_INTEGERS[elements.dtype.itemsize]).flatten(start_dim=1)
    return tuple(map(tuple, rows.tolist()))


def sparse_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros on the host whose memory pages exist only once written (`pymllm.adapters.far`).

    `MemoryError` where the machine cannot have them.
    """
    size = math.prod(shape) * dtype.itemsize
    if reason := why_not_far(size):
        raise MemoryError(reason)
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(*shape)


class OwnPool(BaseAdapter, ABC):
    """An adapter of one object, the `pool`; ``device`` in the configuration replaces the CPU.

    ``apart`` there says that a program's rows are so many rows of the pool apart (`pymllm.adapters.far`).
    """

    POOL: ClassVar[type[Any]]
    """The adapted class, which a variant replaces."""
    MALFORMED: ClassVar[Calls] = {}
    """Calls that no caller may make, by operation and mistake."""

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.device = torch.device(str(config.get("device", "cpu")))
        self._is_on_host = self.device.type == "cpu"
        self.apart = self.number("apart") if "apart" in config else 1
        self.pool: Any = self.make_pool()

    @abstractmethod
    def make_pool(self) -> object:
        """Build the adapted object."""

    def dtype(self) -> torch.dtype:
        """Return the configuration's ``dtype``; raise `ValueError` if torch has none of this name."""
        found = getattr(torch, str(self.config.get("dtype")), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(
                f"the configuration's dtype is {self.config.get('dtype')!r}; torch has none such"
            )
        return found

    def index(self, numbers: Sequence[int], form: str) -> torch.Tensor:
        """Return numbers as an index tensor on the device."""
        made = make_indices(numbers, form)
        return made if self._is_on_host else made.to(self.device)

    def row(self, number: int) -> int:
        """Return the pool's row for a row that a program names."""
        return number * self.apart

    def rows(self, numbers: Sequence[int], form: str) -> torch.Tensor:
        """Return rows that a program names as an index tensor, wide enough for far rows."""
        if self.apart == 1:
            return self.index(numbers, form)
        return self.index([*map(self.row, numbers)], form if form.startswith("int64") else "int32")

    def do_malformed(self, step: int, operation: ops.Malformed) -> Done:
        return call_malformed(self.MALFORMED, operation, self.pool)


_ONE = torch.tensor([1])


class Rows(OwnPool):
    """The adapter of `ReqToTokenPool`."""

    KIND = "rows"
    POOL = ReqToTokenPool
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"max_reqs": 3, "max_context_len": 5},
        {"max_reqs": 5, "max_context_len": 2},
    )
    MALFORMED: ClassVar[Calls] = {
        ("alloc_rows", "a float count"): lambda pool: pool.alloc(1.0),
        ("alloc_rows", "a bool count"): lambda pool: pool.alloc(True),
        ("alloc_rows", "no count"): lambda pool: pool.alloc(None),
        ("free_row", "a float row"): lambda pool: pool.free(1.0),
        ("free_row", "a bool row"): lambda pool: pool.free(True),
        ("free_row", "a list of rows"): lambda pool: pool.free([1]),
        ("write_row", "a float row"): lambda pool: pool.write((1.0, slice(0, 1)), _ONE),
        ("write_row", "a bool row"): lambda pool: pool.write((True, slice(0, 1)), _ONE),
        ("write_row", "a float end"): lambda pool: pool.write((1, slice(0, 1.0)), _ONE),
        ("write_row", "no index"): lambda pool: pool.write(1, _ONE),
        ("write_row", "float values"): lambda pool: pool.write((1, slice(0, 1)), _ONE / 1),
        ("write_row", "bool values"): lambda pool: pool.write((1, slice(0, 1)), _ONE > 0),
        ("write_row", "values of two dimensions"): lambda pool: pool.write((1, slice(0, 1)), _ONE.view(1, 1)),
        ("write_row", "a stepped slice"): lambda pool: pool.write((1, slice(0, 1, 2)), _ONE),
        ("write_entries", "float rows"): lambda pool: pool.write((_ONE / 1, _ONE), _ONE),
        ("write_entries", "bool rows"): lambda pool: pool.write((_ONE > 0, _ONE), _ONE),
        ("write_entries", "float positions"): lambda pool: pool.write((_ONE, _ONE / 1), _ONE),
        ("write_entries", "float values"): lambda pool: pool.write((_ONE, _ONE), _ONE / 1),
        ("write_entries", "three indices"): lambda pool: pool.write((_ONE, _ONE, _ONE), _ONE),
    }

    def make_pool(self) -> object:
        """Build a pool that checks the values of indices on any device."""
        return self.POOL(
            self.number("max_reqs"), self.number("max_context_len"), self.device, check_bounds=True
        )

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "forms", "refusals", "zeroed_rows"})

    def sizes(self) -> dict[str, int]:
        """Return ``size`` and ``available_size``, in rows."""
        return {"size": self.pool.size, "available_size": self.pool.available_size()}

    def audit(self) -> Sequence[str]:
        """Check the pool's internal state and its table."""
        check_req_to_token_pool(self.pool)
        return ("P1", "P2", "X3")

    def do_alloc_rows(self, step: int, operation: ops.AllocRows) -> Slots | NoRoom:
        rows = self.pool.alloc(operation.count)
        return NoRoom() if rows is None else Slots(tuple(rows))

    def do_free_row(self, step: int, operation: ops.FreeRow) -> Done:
        self.pool.free(self.one(operation.row))
        return Done()

    def do_write_row(self, step: int, operation: ops.WriteRow) -> Done:
        where = (self.one(operation.row), slice(operation.start, operation.stop))
        self.pool.write(where, self.index(operation.values, operation.form))
        return Done()

    def do_write_entries(self, step: int, operation: ops.WriteEntries) -> Done:
        rows = self.index(self.numbers(operation.rows), operation.form)
        positions = self.index(operation.positions, operation.form)
        self.pool.write((rows, positions), self.index(operation.values, operation.form))
        return Done()

    def do_read_rows(self, step: int, operation: ops.ReadRows) -> Table:
        return Table(tuple(map(tuple, self.pool.req_to_token.tolist())))

    def do_clear(self, step: int, operation: ops.Clear) -> Done:
        self.pool.clear()
        return Done()


_UNEVEN: Config = {"k_heads": 1, "k_dim": 2, "v_heads": 3, "v_dim": 1}
_EVEN: Config = {"k_heads": 2, "k_dim": 2, "v_heads": 2, "v_dim": 2}
_SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda rows: rows.flatten(start_dim=1),
    "heads": lambda rows: rows,
    "strided": lambda rows: rows.repeat_interleave(2, dim=0)[::2],
    "batch": lambda rows: rows.unsqueeze(0),
}


class KVBuffers(OwnPool):
    """The adapter of `KVPool`, with elements as bit patterns of the dtype, so that no two are equal."""

    KIND = "buffers"
    POOL: ClassVar[type[Any]] = KVPool
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"size": 8, "page_size": 1, "layers": 2, **_UNEVEN, "dtype": "int64"},
        {"size": 8, "page_size": 4, "layers": 2, **_UNEVEN, "dtype": "bfloat16"},
        {"size": 3, "page_size": 3, "layers": 1, **_EVEN, "dtype": "float16"},
        {"size": 6, "page_size": 2, "layers": 3, **_UNEVEN, "dtype": "float8_e4m3fn"},
    )

    MALFORMED: ClassVar[Calls] = {
        ("write_kv", "keys of another dtype"): lambda pool: _write(
            pool, k=_keys(pool).to(_other_dtype(pool))
        ),
        ("write_kv", "values of another dtype"): lambda pool: _write(
            pool, v=_values(pool).to(_other_dtype(pool))
        ),
        ("write_kv", "keys on another device"): lambda pool: _write(pool, k=_keys(pool).to("meta")),
        ("write_kv", "a list of keys"): lambda pool: _write(pool, k=_keys(pool).tolist()),
        ("write_kv", "keys of one dimension"): lambda pool: _write(pool, k=_long_keys(pool).flatten()),
        ("write_kv", "one element for a key"): lambda pool: _write(pool, k=_long_keys(pool)[..., :1, :1]),
        ("write_kv", "one value for all slots"): lambda pool: _write(pool, v=_values(pool)[0]),
        ("write_kv", "float indices"): lambda pool: _write(pool, indices=torch.tensor([1.0, 2.0])),
        ("write_kv", "bool indices"): lambda pool: _write(pool, indices=torch.tensor([True, True])),
        ("write_kv", "a list of indices"): lambda pool: _write(pool, indices=[1, 2]),
        ("write_kv", "a float layer"): lambda pool: _write(pool, layer_id=0.0),
        ("write_kv", "a bool layer"): lambda pool: _write(pool, layer_id=False),
        ("read_kv", "a float layer"): lambda pool: pool.get_kv_buffer(0.0),
        ("read_kv", "no layer"): lambda pool: pool.get_key_buffer(None),
    }

    def make_pool(self) -> object:
        """Build a pool that checks the values of indices on any device."""
        size, *of_keys = map(self.number, ("size", "layers", "k_heads", "k_dim"))
        of_values, page_size = map(self.number, ("v_heads", "v_dim")), self.number("page_size")
        form = self.device, self.dtype()
        pool = self.POOL if self.apart == 1 else _far_buffers(self.POOL)
        return pool(size * self.apart, *of_keys, *form, *of_values, page_size=page_size, check_bounds=True)

    def claim(self) -> frozenset[str]:
        return frozenset({"forms", "refusals", "tight_buffers"})

    def audit(self) -> Sequence[str]:
        """Check the form of the buffers."""
        check_kv_pool(self.pool)
        return ("P3",)

    def do_write_kv(self, step: int, operation: ops.WriteKV) -> Done:
        slots = self.rows(operation.slots, operation.form)
        slots = slots.unsqueeze(0) if operation.shape == "batch" else slots
        keys = self._rows(operation.keys, self.pool.k_head_num, self.pool.k_head_dim, operation.shape)
        values = self._rows(operation.values, self.pool.v_head_num, self.pool.v_head_dim, operation.shape)
        self.pool.set_kv_buffer(operation.layer, slots, keys, values)
        return Done()

    def _rows(self, rows: Sequence[Sequence[int]], heads: int, dim: int, shape: str) -> torch.Tensor:
        """Return rows in a caller's form; those not of ``heads * dim`` elements get one head."""
        width = len(rows[0]) if rows else heads * dim
        heads, dim = (heads, dim) if width == heads * dim else (1, width)
        elements = as_elements([number for row in rows for number in row], self.pool.dtype)
        return _SHAPES[shape](elements.view(len(rows), heads, dim).to(self.device))

    def do_move_kv(self, step: int, operation: ops.MoveKV) -> Done:
        keys, values = self.pool.get_kv_buffer(operation.layer)
        first, apart = operation.source * self.apart, self.apart
        rows = slice(first, first + operation.count * apart, apart)
        targets = range(operation.target, operation.target + operation.count)
        self.pool.set_kv_buffer(operation.layer, self.rows(targets, "int64"), keys[rows], values[rows])
        return Done()

    def do_read_kv(self, step: int, operation: ops.ReadKV) -> Buffers:
        keys = self.pool.get_key_buffer(operation.layer)
        values = self.pool.get_value_buffer(operation.layer)
        return Buffers(as_numbers(keys[:: self.apart]), as_numbers(values[:: self.apart]))


def _far_buffers(pool: type[Any]) -> type[Any]:
    """Return a class of KV pools whose buffers use few memory pages."""

    def make_buffers(self: Any, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        made = [sparse_zeros(shape, self.dtype) for shape in shapes]
        self._bytes = sum(buffer.nbytes for buffer in made)
        return made

    return type(pool.__name__, (pool,), {"_make_buffers": make_buffers})


def _write(pool: KVPool, **wrong: Any) -> None:
    """Write slots 1 and 2 of the first layer, with a mistake."""
    call: dict[str, Any] = {
        "layer_id": 0,
        "indices": torch.tensor([1, 2]),
        "k": _keys(pool),
        "v": _values(pool),
    }
    pool.set_kv_buffer(**(call | wrong))


def _keys(pool: KVPool) -> torch.Tensor:
    return torch.ones(2, pool.k_head_num, pool.k_head_dim, device=pool.device).to(pool.dtype)


def _long_keys(pool: KVPool) -> torch.Tensor:
    """Return keys of several elements, since for one element a flat row has the same form."""
    if pool.k_head_num * pool.k_head_dim == 1:
        raise UnsupportedError("a key has one element")
    return _keys(pool)


def _other_dtype(pool: KVPool) -> torch.dtype:
    return torch.float32 if pool.dtype is torch.float64 else torch.float64


def _values(pool: KVPool) -> torch.Tensor:
    return torch.ones(2, pool.v_head_num, pool.v_head_dim, device=pool.device).to(pool.dtype)


_DEEP: Config = {"max_reqs": 3, "layers": 2, "v_heads": 1, "k_dim": 2, "v_dim": 1, "conv_dim": 2, "kernel": 3}
_FLAT: Config = {"max_reqs": 1, "layers": 3, "v_heads": 2, "k_dim": 1, "v_dim": 3, "conv_dim": 1, "kernel": 1}


def view_states(recurrent: torch.Tensor, conv: torch.Tensor) -> States:
    """Return both kinds of states of a layer with their forms, in all rows."""
    shapes = tuple(recurrent.shape), tuple(conv.shape)
    dtypes = (str(states.dtype).removeprefix("torch.") for states in (recurrent, conv))
    return States(as_numbers(recurrent), as_numbers(conv), *shapes, *dtypes)


def write_state(pool: GDNPool, row: int, operation: ops.WriteState) -> None:
    """Write a row of a pool through the views of a layer, as a kernel does."""
    firsts = (operation.recurrent, operation.conv)
    for view, first in zip(pool.get_layer_state(operation.layer), firsts, strict=True):
        state = view[row]
        state.copy_(make_ramp(state, first, operation.ramp))


def make_ramp(like: torch.Tensor, first: int, ramp: int) -> torch.Tensor:
    """Return a state of the same form whose bits grow by ``ramp``."""
    numbers = [first + at * ramp for at in range(like.numel())]
    return as_elements(numbers, like.dtype).view_as(like).to(like.device)


class GDNStates(OwnPool):
    """The adapter of `GDNPool`, with elements as bit patterns of the dtype, as in `KVBuffers`."""

    KIND = "states"
    POOL: ClassVar[type[Any]] = GDNPool
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {**_DEEP, "dtype": "bfloat16", "track_slots": 2},
        {**_FLAT, "dtype": "float16", "track_slots": 3},
        {**_DEEP, "dtype": "float32", "track_slots": 0},
    )
    MALFORMED: ClassVar[Calls] = {
        ("free_track", "a float slot"): lambda pool: pool.free_track_slot(float(pool.max_reqs + 1)),
        ("free_track", "a bool slot"): lambda pool: pool.free_track_slot(True),
        ("free_track", "no slot"): lambda pool: pool.free_track_slot(None),
        ("copy_states", "float rows"): lambda pool: pool.copy_states(_ONE / 1, _ONE - 1),
        ("copy_states", "bool rows"): lambda pool: pool.copy_states(_ONE > 0, _ONE - 1),
        ("copy_states", "float targets"): lambda pool: pool.copy_states(_ONE - 1, _ONE / 1),
        ("copy_states", "no target"): lambda pool: pool.copy_states(_ONE, None),
        ("reset_states", "float rows"): lambda pool: pool.reset_states(_ONE / 1),
        ("reset_states", "bool rows"): lambda pool: pool.reset_states(_ONE > 0),
        ("reset_states", "a string"): lambda pool: pool.reset_states("1"),
        ("read_states", "a float layer"): lambda pool: pool.get_layer_state(0.0),
        ("read_states", "no layer"): lambda pool: pool.get_layer_state(None),
    }

    def make_pool(self) -> object:
        """Build a pool that checks the values of indices on any device."""
        requests, tracks = self.number("max_reqs"), self.number("track_slots")
        sizes = map(self.number, ("layers", "v_heads", "k_dim", "v_dim", "conv_dim", "kernel"))
        form = self.device, self.dtype()
        pool = self.POOL
        if self.apart > 1:
            self.limits = {**self.limits, "clear": "all states would be written, most of which do not exist"}
            pool = type(pool.__name__, (pool,), {"_make_states": lambda _, *form: sparse_zeros(*form)})
        return pool(self.row(requests), *sizes, *form, tracks, check_bounds=True)

    def row(self, number: int) -> int:
        """Return the pool's row for a row that a program names; track slots follow the working rows."""
        return number * self.apart - max(0, number - self.number("max_reqs")) * (self.apart - 1)

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "forms", "refusals"})

    def sizes(self) -> dict[str, int]:
        """Return ``max_track_slots`` and ``available_track_slots``."""
        return {
            "max_track_slots": self.pool.max_track_slots,
            "available_track_slots": self.pool.available_track_slots(),
        }

    def audit(self) -> Sequence[str]:
        """Check the form of the states, and the record of free track slots."""
        check_gdn_pool(self.pool)
        return ("P4", "P5", "X3")

    def do_alloc_track(self, step: int, operation: ops.AllocTrack) -> Slots | NoRoom:
        slot = self.pool.alloc_track_slot()
        return NoRoom() if slot is None else Slots((slot - (self.apart - 1) * self.number("max_reqs"),))

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> Done:
        self.pool.free_track_slot(self.row(self.one(operation.slot)))
        return Done()

    def do_write_state(self, step: int, operation: ops.WriteState) -> Done:
        write_state(self.pool, self.row(self.one(operation.slot)), operation)
        return Done()

    def do_copy_states(self, step: int, operation: ops.CopyStates) -> Done:
        source, target = (self.numbers(spans) for spans in (operation.source, operation.target))
        self.pool.copy_states(self.rows(source, operation.form), self.rows(target, operation.form))
        return Done()

    def do_reset_states(self, step: int, operation: ops.ResetStates) -> Done:
        self.pool.reset_states(self.rows(self.numbers(operation.rows), operation.form))
        return Done()

    def do_read_states(self, step: int, operation: ops.ReadStates) -> States:
        recurrent, conv = self.pool.get_layer_state(operation.layer)
        if self.apart > 1:
            named = torch.tensor(
                [*map(self.row, range(1 + self.number("max_reqs") + self.number("track_slots")))]
            )
            recurrent, conv = recurrent[named], bit_view(conv)[named].view(conv.dtype)
        return view_states(recurrent, conv)

    def do_clear(self, step: int, operation: ops.Clear) -> Done:
        """Free every track slot and set all states to zero, unless these are far apart."""
        if self.apart > 1:
            raise UnsupportedError(self.limits["clear"])
        self.pool.clear()
        return Done()


class KeysAndHashes(OwnPool):
    """The adapter of `RadixKey`, `hash_token_ids`, `hash_to_int64` and `hash_bytes`, which builds no pool."""

    KIND = "hashes"
    MALFORMED: ClassVar[Calls] = {
        ("slice_key", "a float start"): lambda _: RadixKey([1, 2])[0.5:],
        ("slice_key", "a float namespace"): lambda _: RadixKey([1, 2], 1.5),  # type: ignore[arg-type]
        ("slice_key", "a bool namespace"): lambda _: RadixKey([1, 2], True),
        ("slice_key", "a float in a namespace"): lambda _: RadixKey([1, 2], ("a", 1.5)),  # type: ignore[arg-type]
        ("pick_token", "a float index"): lambda _: RadixKey([1, 2])[1.0],  # type: ignore[index]
        ("pick_token", "no index"): lambda _: RadixKey([1, 2])[None],  # type: ignore[index]
        ("hash_page", "float tokens"): lambda _: hash_token_ids([1, 1.0]),
        ("hash_page", "a float array"): lambda _: hash_token_ids(np.array([1.0])),
        ("hash_page", "a bool array"): lambda _: hash_token_ids(np.array([True])),
        ("hash_page", "a string of tokens"): lambda _: hash_token_ids("12"),
        ("hash_page", "a number of tokens"): lambda _: hash_token_ids(2),
        ("hash_page", "two dimensions"): lambda _: hash_token_ids(np.zeros((2, 2), dtype=np.uint32)),
        ("hash_page", "three dimensions"): lambda _: hash_token_ids(np.zeros((1, 1, 1), dtype=np.int64)),
        ("hash_page", "a list of lists"): lambda _: hash_token_ids([[1, 2]]),
        ("hash_page", "tuples of one number"): lambda _: hash_token_ids([(1,), (2,)]),
        ("hash_page", "empty tuples"): lambda _: hash_token_ids([()]),
        ("hash_page", "a number as prior"): lambda _: hash_token_ids([1], 2),  # type: ignore[arg-type]
        ("hash_int64", "a number"): lambda _: hash_to_int64(2),  # type: ignore[arg-type]
        ("hash_int64", "bytes"): lambda _: hash_to_int64(b"0" * 64),  # type: ignore[arg-type]
        ("hash_bytes", "a string"): lambda _: hash_bytes("12"),  # type: ignore[arg-type]
        ("hash_bytes", "a number"): lambda _: hash_bytes(2),  # type: ignore[arg-type]
    }

    def make_pool(self) -> None:
        """Build nothing, since keys last for one operation and functions need no object."""

    def claim(self) -> frozenset[str]:
        return frozenset({"bigrams", *DIMENSIONS, "forms", "hashes", "digests", "refusals"})

    def do_slice_key(self, step: int, operation: ops.SliceKey) -> Tokens:
        return _read(_make_key(operation.key)[operation.start : operation.stop])

    def do_pick_token(self, step: int, operation: ops.PickToken) -> Tokens:
        return _read(_make_key(operation.key)[operation.at])

    def do_hash_page(self, step: int, operation: ops.HashPage) -> Hashes:
        return Hashes((hash_token_ids(_make_key(operation.key).token_ids, operation.prior),))

    def do_hash_int64(self, step: int, operation: ops.HashInt64) -> Number:
        return Number(hash_to_int64(operation.digest))

    def do_hash_bytes(self, step: int, operation: ops.HashBytes) -> Number:
        return Number(hash_bytes(bytes.fromhex(operation.data)))


def _make_key(key: ops.Key) -> RadixKey:
    try:
        tokens = make_tokens(key)
    except (OverflowError, RuntimeError) as error:
        raise UnsupportedError(f"{key.form} cannot hold these tokens: {error}") from error
    return RadixKey(tokens, key.extra_key)


def _read(key: RadixKey) -> Tokens:
    """Return the tokens of a key by iteration, up to its length."""
    return Tokens(tuple(key)[: len(key)], key.extra_key)
