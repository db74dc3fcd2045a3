"""The adapter of `ReqToTokenPool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.own_pool import OwnPool
from pymllm.history.files import Config
from pymllm.history.operations import AllocRows, Clear, FreeRow, ReadRows, WriteEntries, WriteRow
from pymllm.history.outcomes import Done, NoRoom, Slots, Table
from pymllm.invariants.pools import check_req_to_token_pool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool

__all__ = ["Rows"]

_ONE = torch.tensor([1])


class Rows(OwnPool):
    """A `ReqToTokenPool`."""

    KIND = "rows"
    POOL = ReqToTokenPool
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"max_reqs": 3, "max_context_len": 5},
        {"max_reqs": 5, "max_context_len": 2},
    )
    MALFORMED: ClassVar[Mapping[tuple[str, str], Callable[[Any], object]]] = {
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
        """Build a pool that looks at the values of indices on any device."""
        return self.POOL(
            self.number("max_reqs"), self.number("max_context_len"), self.device, check_bounds=True
        )

    def claim(self) -> frozenset[str]:
        """Return ``pool``, ``refusals`` and ``zeroed_rows``."""
        return frozenset({"pool", "refusals", "zeroed_rows"})

    def sizes(self) -> dict[str, int]:
        """Return ``size`` and ``available_size``, in rows."""
        return {"size": self.pool.size, "available_size": self.pool.available_size()}

    def audit(self) -> Sequence[str]:
        """Walk the pool's books and its table."""
        check_req_to_token_pool(self.pool)
        return ("P1", "P2", "X3")

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        """Take rows."""
        rows = self.pool.alloc(operation.count)
        return NoRoom() if rows is None else Slots(tuple(rows))

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        """Give a row back."""
        self.pool.free(self.one(operation.row))
        return Done()

    def do_write_row(self, step: int, operation: WriteRow) -> Done:
        """Write a stretch of one row."""
        where = (self.one(operation.row), slice(operation.start, operation.stop))
        self.pool.write(where, self.index(operation.values, operation.form))
        return Done()

    def do_write_entries(self, step: int, operation: WriteEntries) -> Done:
        """Write one entry of each row."""
        rows = self.index(self.numbers(operation.rows), operation.form)
        positions = self.index(operation.positions, operation.form)
        self.pool.write((rows, positions), self.index(operation.values, operation.form))
        return Done()

    def do_read_rows(self, step: int, operation: ReadRows) -> Table:
        """Read the table, which callers read directly."""
        return Table(tuple(map(tuple, self.pool.req_to_token.tolist())))

    def do_clear(self, step: int, operation: Clear) -> Done:
        """Take every row back."""
        self.pool.clear()
        return Done()
