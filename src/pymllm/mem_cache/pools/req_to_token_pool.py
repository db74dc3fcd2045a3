"""The table from (request row, position) to KV slot, and the allocation of its rows."""

from __future__ import annotations

import heapq
from typing import SupportsIndex, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import LAST_INT32, as_device, as_int, as_size, as_switch, make_zeros
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.pools.rows import (
    IndexLike,
    as_index,
    as_integers,
    check_range,
    is_readable,
    is_single,
)
from pymllm.mem_cache.uploads import bring

TableIndex: TypeAlias = "tuple[SupportsIndex, slice | SupportsIndex] | tuple[IndexLike, IndexLike]"

_SLOT_STOP = torch.iinfo(torch.int32).max + 1
_ROW_ADVICE = "padded entries name row 0"
_POSITION_ADVICE = "max_context_len is the bound"


class ReqToTokenPool(OneOwner):
    """A table with one row for each live request, which holds the slots of its tokens.

    Parameters
    ----------
    max_reqs : int
        Rows that can be handed out at a time, numbered 1 to ``max_reqs``. Row 0 is padding: padded entries
        of a batch name it, in this table as in `GDNPool`, and no request ever lives in it.
    max_context_len : int
        Positions per row, in tokens.
    device : str or torch.device
        Where the table is. The trackers of who holds which row are on the host.
    check_bounds : bool, optional
        Look at the values of index and value tensors before writing: always, never, or (None) those of
        tensors on the host, where looking does not synchronise. Rows and positions named by an int are always
        looked at.

    Attributes
    ----------
    size : int
        ``max_reqs``.
    req_to_token : torch.Tensor
        ``[max_reqs + 1, max_context_len]`` int32, zero at first. Read it directly; it is never replaced.

    Raises
    ------
    TypeError
        A size is not an int.
    ValueError
        A size is not in ``1 .. 2**31 - 1``, or torch has no such device.
    MemoryError
        The host has no memory for the table.

    Notes
    -----
    A pure table: it knows no sequence lengths. Not thread-safe: one scheduler thread owns a pool.
    A call that finds no memory has changed nothing; after an interrupt in the middle of one, `clear` is the
    only call that is promised to work, and makes the pool new.
    Laws: P1, P2, X1, X3, X4, X7.

    Examples
    --------
    >>> pool = ReqToTokenPool(max_reqs=4, max_context_len=16, device="cpu")
    >>> [row] = pool.alloc()
    >>> pool.write((row, slice(0, 3)), torch.tensor([7, 8, 9]))
    >>> pool.req_to_token[row, :3].tolist()
    [7, 8, 9]
    >>> pool.free(row)
    """

    def __init__(
        self,
        max_reqs: int,
        max_context_len: int,
        device: str | torch.device = "cuda",
        *,
        check_bounds: bool | None = None,
    ) -> None:
        self.size = as_size("max_reqs", max_reqs, maximum=LAST_INT32)
        self.max_context_len = as_size("max_context_len", max_context_len, maximum=LAST_INT32)
        self.device = as_device(device)
        self.check_bounds = as_switch("check_bounds", check_bounds)
        shape = (self.size + 1, self.max_context_len)
        self.req_to_token = make_zeros("a table", shape, torch.int32, self.device)
        self._free_rows, self._is_open = self._new_trackers()

    def __repr__(self) -> str:
        """Return the shape of the pool and the number of free rows."""
        return (
            f"ReqToTokenPool(max_reqs={self.size}, max_context_len={self.max_context_len}, "
            f"device='{self.device}', available={self.available_size()})"
        )

    def available_size(self) -> int:
        """Return the number of rows that can still be handed out.

        Returns
        -------
        int
            Rows, ``0 .. size``.
        """
        return len(self._free_rows)

    def alloc(self, n: int = 1) -> list[int] | None:
        """Allocate ``n`` free rows, the lowest first.

        Parameters
        ----------
        n : int
            Rows wanted; 0 is allowed.

        Returns
        -------
        list of int or None
            Distinct rows, ascending, each in ``1 .. size`` and full of zeros. None when fewer are free; the
            pool is then exactly as before.

        Raises
        ------
        TypeError
            ``n`` is not an int.
        ValueError
            ``n`` is negative.

        Notes
        -----
        Cost: O(n log size) on the host; no device call.
        Laws: P1, X3, X4. Source: lowest first makes two runs of one seed agree.
        """
        count = as_size("n", n, minimum=0)
        if count > len(self._free_rows):
            return None
        rows: list[int] = []
        try:
            while len(rows) < count:
                rows.append(heapq.heappop(self._free_rows))
            self._is_open[rows] = True
        except BaseException:
            self._is_open[rows] = False
            self._free_rows = sorted([*rows, *self._free_rows])  # a sorted list is a heap
            raise
        return rows

    def free(self, slot: int) -> None:
        """Free one row and set it to zeros.

        Parameters
        ----------
        slot : int
            A row that is handed out.

        Raises
        ------
        OwnershipError
            The row is not handed out, is row 0, or is outside the table; always checked.
        TypeError
            ``slot`` is not an int.

        Notes
        -----
        Cost: one fill of ``max_context_len`` int32; no synchronisation.
        Laws: P2, X1.
        """
        row = self._check_held(as_int("slot", slot))
        try:
            self._is_open[row] = False
            heapq.heappush(self._free_rows, row)
            self.req_to_token[row].zero_()
        except BaseException:
            self._is_open[row] = True
            self._free_rows = np.flatnonzero(~self._is_open).tolist()
            raise

    def write(self, index: TableIndex, values: IndexLike | SupportsIndex) -> None:
        """Write slots into the table.

        Parameters
        ----------
        index : tuple
            ``(row, slice(start, stop))`` writes a stretch of one request's row; an end that is left out is
            the row's own. ``(rows, positions)``, two index tensors, arrays or lists of equal length, writes
            one entry each, such as the next token of every running request; padded entries name row 0.
            ``(row, position)`` writes one entry.
        values : torch.Tensor, numpy.ndarray, sequence of int, or int
            As many slots as entries are named: at most one dimension, any integer dtype, any device, each in
            ``0 .. 2**31 - 1``. They are stored as int32.

        Raises
        ------
        IndexError
            A row or position is outside the table, or a value is no int32 slot.
        OwnershipError
            A row is not handed out.
        TypeError
            ``index`` has another form, or something is not an integer.
        ValueError
            The lengths differ, or the slice has a step or runs backwards.

        Notes
        -----
        Cost: O(entries) and one table write, and a copy of each array, list or tensor that is on the host. No
        synchronisation, unless ``check_bounds`` asks for it of tensors on the table's device; a row that
        comes as such a tensor beside a slice is read. Naming an entry twice is the caller's error, row 0
        aside. On an error nothing has been written.
        Laws: P2, E2, E5, X1.
        """
        if not (isinstance(index, tuple) and len(index) == 2):
            raise TypeError("index must be (row, slice), (rows, positions) or (row, position)")
        where, what = index
        if isinstance(what, slice):
            row = self._check_held(as_int("row", where))  # type: ignore[arg-type]
            start, stop = self._check_stretch(what)
            self._put(row, start, stop, self._as_slots(values, stop - start))
        elif _is_plain(where) and _is_plain(what):
            slots = self._as_slots(values, 1)
            row, position = as_int("row", where), as_int("position", what)
            _check_one("row", row, self.size + 1, _ROW_ADVICE)
            if row:
                self._check_held(row)
            _check_one("position", position, self.max_context_len, _POSITION_ADVICE)
            self._put(row, position, position + 1, slots)
        else:
            rows = [where] if _is_plain(where) else where
            positions = [what] if _is_plain(what) else what
            self._write_entries(rows, positions, values)  # type: ignore[arg-type]

    def _put(self, row: int, start: int, stop: int, slots: torch.Tensor) -> None:
        """Write checked slots to entries of one row."""
        if stop - start == 1 and slots.is_cpu and not self.req_to_token.is_cpu:
            # A number that is an argument of the launch is sent with it, and part of a graph.
            self.req_to_token[row, start:stop].fill_(slots.to(torch.int32).item())
        else:
            self.req_to_token[row, start:stop] = bring(slots, self.device, torch.int32)

    def _write_entries(
        self, rows: IndexLike, positions: IndexLike, values: IndexLike | SupportsIndex
    ) -> None:
        row_index = as_index("rows", rows)
        position_index = as_index("positions", positions)
        if row_index.numel() != position_index.numel():
            raise ValueError(
                f"{row_index.numel()} rows with {position_index.numel()} positions; each entry needs both"
            )
        slots = self._as_slots(values, row_index.numel())
        if is_readable(row_index, self.check_bounds):
            check_range("row", row_index, self.size + 1, _ROW_ADVICE)
            self._check_all_open(row_index)
        if is_readable(position_index, self.check_bounds):
            check_range("position", position_index, self.max_context_len, _POSITION_ADVICE)
        index = bring(row_index, self.device), bring(position_index, self.device)
        self.req_to_token.index_put_(index, bring(slots, self.device, torch.int32))

    def clear(self) -> None:
        """Free every row and set the whole table to zero, including row 0.

        Notes
        -----
        Cost: one fill of the whole table; no synchronisation.
        Laws: X7 (the pool then behaves like a new one).
        """
        tracker = self._new_trackers()
        self.req_to_token.zero_()
        self._free_rows, self._is_open = tracker

    def _new_trackers(self) -> tuple[list[int], NDArray[np.bool_]]:
        """Return the free rows, and a record of rows that may be written: handed-out ones and padding."""
        is_open = np.zeros(self.size + 1, dtype=np.bool_)
        is_open[0] = True
        # An ascending list already is a heap.
        return list(range(1, self.size + 1)), is_open

    def _check_held(self, row: int) -> int:
        if not 1 <= row <= self.size:
            raise OwnershipError(f"row {row} is outside 1..{self.size}, the rows that alloc hands out")
        if not self._is_open[row]:
            raise OwnershipError(
                f"row {row} is not handed out: it was never allocated, or is free again; "
                "name rows that alloc returned, and free each once"
            )
        return row

    def _check_all_open(self, row_index: torch.Tensor) -> None:
        rows = row_index.cpu().numpy()
        is_open = self._is_open[rows]
        if not is_open.all():
            self._check_held(int(rows[is_open.argmin()]))

    def _check_stretch(self, stretch: slice) -> tuple[int, int]:
        if stretch.step is not None and as_int("step", stretch.step) != 1:
            raise ValueError(f"the slice has step {stretch.step}; only whole stretches can be written")
        start = 0 if stretch.start is None else as_int("start", stretch.start)
        stop = self.max_context_len if stretch.stop is None else as_int("stop", stretch.stop)
        if start < 0 or stop > self.max_context_len or stop < 0:
            raise IndexError(
                f"positions {start}..{stop} are outside a row of {self.max_context_len}; "
                "negative ends do not count from the end"
            )
        if stop < start:
            raise ValueError(f"the slice runs backwards, from {start} to {stop}")
        return start, stop

    def _as_slots(self, values: IndexLike | SupportsIndex, count: int) -> torch.Tensor:
        """Return the checked values to write as a flat tensor on their own device."""
        if isinstance(values, (torch.Tensor, np.ndarray)):
            if values.ndim > 1:
                raise ValueError(f"values must have at most one dimension, got shape {list(values.shape)}")
        elif is_single(values):
            values = [values]  # type: ignore[list-item]
        slots = as_integers("values", values)  # type: ignore[arg-type]
        if slots.numel() != count:
            raise ValueError(f"{slots.numel()} values for {count} entries of the table; give one for each")
        if is_readable(slots, self.check_bounds):
            check_range("value", slots, _SLOT_STOP, "the table holds int32 slots; 0 is the padding slot")
        return slots


def _is_plain(value: object) -> TypeGuard[SupportsIndex]:
    """Tell whether a value is one Python or NumPy number, which the host can read without waiting."""
    return not isinstance(value, (torch.Tensor, np.ndarray)) and is_single(value)


def _check_one(name: str, number: int, stop: int, advice: str) -> None:
    """Raise an error for an integer outside ``0 .. stop - 1``, worded as in `check_range`."""
    if not 0 <= number < stop:
        raise IndexError(f"{name} {number} is outside 0..{stop - 1} (1 of 1 are); {advice}")
