"""The adapter of `KVPool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_pool import OwnPool, as_elements, as_numbers
from pymllm.history.files import Config
from pymllm.history.operations import MoveKV, ReadKV, WriteKV
from pymllm.history.outcomes import Buffers, Done
from pymllm.invariants.pools import check_kv_pool
from pymllm.mem_cache.kv_pool import KVPool

__all__ = ["KVBuffers"]

_UNEVEN: Config = {"k_heads": 1, "k_dim": 2, "v_heads": 3, "v_dim": 1}
_EVEN: Config = {"k_heads": 2, "k_dim": 2, "v_heads": 2, "v_dim": 2}
_SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda rows: rows.flatten(start_dim=1),
    "heads": lambda rows: rows,
    "strided": lambda rows: rows.repeat_interleave(2, dim=0)[::2],
    "batch": lambda rows: rows.unsqueeze(0),
}


class KVBuffers(OwnPool):
    """A `KVPool`; an element is the bit pattern of its dtype, so that none is equal to another."""

    KIND = "buffers"
    POOL = KVPool
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"size": 8, "page_size": 1, "layers": 2, **_UNEVEN, "dtype": "int64"},
        {"size": 8, "page_size": 4, "layers": 2, **_UNEVEN, "dtype": "bfloat16"},
        {"size": 3, "page_size": 3, "layers": 1, **_EVEN, "dtype": "float16"},
        {"size": 6, "page_size": 2, "layers": 3, **_UNEVEN, "dtype": "float8_e4m3fn"},
    )

    MALFORMED: ClassVar[Mapping[tuple[str, str], Callable[[Any], object]]] = {
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
        """Build a pool that looks at the values of indices on any device."""
        return self.POOL(
            self.number("size"),
            self.number("layers"),
            self.number("k_heads"),
            self.number("k_dim"),
            self.device,
            self.dtype(),
            self.number("v_heads"),
            self.number("v_dim"),
            page_size=self.number("page_size"),
            check_bounds=True,
        )

    def claim(self) -> frozenset[str]:
        """Return ``refusals``."""
        return frozenset({"refusals"})

    def audit(self) -> Sequence[str]:
        """Look at the form of the buffers."""
        check_kv_pool(self.pool)
        return ("P3",)

    def do_write_kv(self, step: int, operation: WriteKV) -> Done:
        """Write rows, in one of the documented shapes."""
        slots = self.index(operation.slots, operation.form)
        slots = slots.unsqueeze(0) if operation.shape == "batch" else slots
        keys = self._rows(operation.keys, self.pool.k_head_num, self.pool.k_head_dim, operation.shape)
        values = self._rows(operation.values, self.pool.v_head_num, self.pool.v_head_dim, operation.shape)
        self.pool.set_kv_buffer(operation.layer, slots, keys, values)
        return Done()

    def _rows(self, rows: Sequence[Sequence[int]], heads: int, dim: int, shape: str) -> torch.Tensor:
        """Return rows as a caller has them; those of another width than ``heads * dim`` have one head."""
        width = len(rows[0]) if rows else heads * dim
        heads, dim = (heads, dim) if width == heads * dim else (1, width)
        elements = as_elements([number for row in rows for number in row], self.pool.dtype)
        return _SHAPES[shape](elements.view(len(rows), heads, dim).to(self.device))

    def do_move_kv(self, step: int, operation: MoveKV) -> Done:
        """Write views of the buffers themselves."""
        keys, values = self.pool.get_kv_buffer(operation.layer)
        rows = slice(operation.source, operation.source + operation.count)
        targets = range(operation.target, operation.target + operation.count)
        self.pool.set_kv_buffer(operation.layer, self.index(targets, "int64"), keys[rows], values[rows])
        return Done()

    def do_read_kv(self, step: int, operation: ReadKV) -> Buffers:
        """Read both buffers, each by its own call."""
        keys = self.pool.get_key_buffer(operation.layer)
        values = self.pool.get_value_buffer(operation.layer)
        return Buffers(as_numbers(keys), as_numbers(values))


def _write(pool: KVPool, **wrong: Any) -> None:
    """Write slots 1 and 2 of the first layer, with something wrong."""
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
    """Return keys of several elements: one element has the same form as a flat row of it."""
    if pool.k_head_num * pool.k_head_dim == 1:
        raise UnsupportedError("a key has one element")
    return _keys(pool)


def _other_dtype(pool: KVPool) -> torch.dtype:
    return torch.float32 if pool.dtype is torch.float64 else torch.float64


def _values(pool: KVPool) -> torch.Tensor:
    return torch.ones(2, pool.v_head_num, pool.v_head_dim, device=pool.device).to(pool.dtype)
