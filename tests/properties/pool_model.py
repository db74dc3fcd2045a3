"""What the data pools should hold, as dictionaries of Python ints: obvious rather than fast, and no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Bits = tuple[int, ...]


class RowModel:
    """Rows 1 to ``max_reqs`` and a table whose missing entries are 0."""

    def __init__(self, max_reqs: int) -> None:
        self.free = set(range(1, max_reqs + 1))
        self.held: set[int] = set()
        self.table: dict[tuple[int, int], int] = {}

    def alloc(self, n: int) -> list[int] | None:
        if n > len(self.free):
            return None
        rows = sorted(self.free)[:n]
        self.free.difference_update(rows)
        self.held.update(rows)
        return rows

    def release(self, row: int) -> None:
        self.held.remove(row)
        self.free.add(row)
        self.table = {(r, position): slot for (r, position), slot in self.table.items() if r != row}

    def write(self, entries: Iterable[tuple[int, int]], slots: Iterable[int]) -> None:
        self.table.update(zip(entries, slots, strict=True))

    def is_dirty(self, row: int) -> bool:
        return any(r == row and slot for (r, _), slot in self.table.items())

    def expected(self, rows: int, columns: int) -> list[list[int]]:
        return [[self.table.get((row, column), 0) for column in range(columns)] for row in range(rows)]


class RowStore:
    """Rows of bits, by (kind, layer, row); a missing one is zero."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, int], Bits] = {}

    def write(self, kind: str, layer: int, rows: Sequence[int], contents: Iterable[Bits]) -> None:
        self.rows.update(zip(((kind, layer, row) for row in rows), contents, strict=True))

    def read(self, kind: str, layer: int, row: int, width: int) -> Bits:
        return self.rows.get((kind, layer, row), (0,) * width)

    def copy(self, kind: str, layer: int, src: Sequence[int], dst: Sequence[int], width: int) -> None:
        self.write(kind, layer, dst, [self.read(kind, layer, row, width) for row in src])

    def reset(self, rows: Sequence[int]) -> None:
        self.rows = {name: bits for name, bits in self.rows.items() if name[2] not in rows}

    def expected(self, kind: str, layer: int, rows: int, width: int) -> list[list[int]]:
        return [list(self.read(kind, layer, row, width)) for row in range(rows)]


class TrackModel:
    """Track slots, the lowest free one first."""

    def __init__(self, slots: range) -> None:
        self.free = set(slots)
        self.held: set[int] = set()

    def alloc(self) -> int | None:
        if not self.free:
            return None
        slot = min(self.free)
        self.free.remove(slot)
        self.held.add(slot)
        return slot

    def release(self, slot: int) -> None:
        self.held.remove(slot)
        self.free.add(slot)
