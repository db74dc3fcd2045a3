"""The adapter of sglang's ``ReqToTokenPool``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.sglang_package import NEWER, also_claimed, load_sglang, require_version
from pymllm.errors import ProgramError
from pymllm.history.files import Config
from pymllm.history.operations import AllocRows, Clear, FreeRow, ReadRows, Span, WriteEntries, WriteRow
from pymllm.history.outcomes import Done, NoRoom, Slots, Table

__all__ = ["SglangRows"]


class SglangRows(BaseAdapter):
    """``sglang.srt.mem_cache.memory_pool.ReqToTokenPool``, called as for rows without a request.

    Parameters
    ----------
    name, config
        As of `BaseAdapter`. Keys: ``max_reqs``, ``max_context_len``, and ``also`` (`also_claimed`).

    Notes
    -----
    A row that is freed keeps its entries, so ``zeroed_rows`` is not claimed; misuse is undefined.
    """

    KIND: ClassVar[str] = "rows"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"max_reqs": 3, "max_context_len": 5},
        {"max_reqs": 5, "max_context_len": 2},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version(NEWER)
        pool = load_sglang("mem_cache.memory_pool").ReqToTokenPool
        self.pool: Any = pool(config["max_reqs"], config["max_context_len"], "cpu", False)

    def claim(self) -> frozenset[str]:
        """Claim that rows run out."""
        return frozenset({"pool"}) | also_claimed(self.config)

    def sizes(self) -> dict[str, int]:
        """Return ``size`` and ``available_size``, in rows."""
        return {"size": int(self.pool.size), "available_size": int(self.pool.available_size())}

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        """Take rows."""
        rows = self.pool.alloc_rows(operation.count)
        return NoRoom() if rows is None else Slots(tuple(map(int, rows)))

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        """Give a row back."""
        self.pool.free_rows([self._one(operation.row)])
        return Done()

    def do_write_row(self, step: int, operation: WriteRow) -> Done:
        """Write a stretch of one row."""
        where = (self._one(operation.row), slice(operation.start, operation.stop))
        self.pool.write(where, torch.tensor(operation.values, dtype=torch.int32))
        return Done()

    def do_write_entries(self, step: int, operation: WriteEntries) -> Done:
        """Write one entry of each row."""
        rows, positions = self.numbers(operation.rows), operation.positions
        where = tuple(torch.tensor(index, dtype=torch.int64) for index in (rows, positions))
        self.pool.write(where, torch.tensor(operation.values, dtype=torch.int32))
        return Done()

    def do_read_rows(self, step: int, operation: ReadRows) -> Table:
        """Read the table."""
        return Table(tuple(map(tuple, self.pool.req_to_token.tolist())))

    def do_clear(self, step: int, operation: Clear) -> Done:
        """Take every row back."""
        self.pool.clear()
        return Done()

    def _one(self, span: Span) -> int:
        numbers = self.numbers((span,))
        if len(numbers) != 1:
            raise ProgramError(f"{span} names {len(numbers)} rows; it must name one")
        return numbers[0]
