"""Drive `ReqToTokenPool`, `KVPool` and `GDNPool` beside their model, and compare every bit after each step.

Rules take small integers only, so that `drive` can also run them from a seeded generator, many times
faster than Hypothesis and the same everywhere. A `twist` spoils a call in one way; the call must then be
refused with that error, and the comparison shows that it changed nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pymllm.errors import OwnershipError
from pymllm.invariants.gdn_pool import check_gdn_pool
from pymllm.invariants.kv_pool import check_kv_pool
from pymllm.invariants.req_to_token_pool import check_req_to_token_pool
from pymllm.mem_cache.bit_view import bit_view
from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool
from tests.properties.pool_model import Bits, RowModel, RowStore, TrackModel

SITUATIONS = frozenset(
    {
        "a batch finds too few rows",
        "a used row is handed out again",
        "a row is freed twice",
        "row 0 is freed",
        "a row outside is freed",
        "a stretch reaches the end of its row",
        "a stretch overwrites entries",
        "an empty stretch is written",
        "a bad stretch is refused",
        "padded entries share row 0",
        "a bad batch of entries is refused",
        "padded tokens share slot 0",
        "the last slot is written",
        "no token is written",
        "rows move inside a buffer",
        "a bad KV write is refused",
        "a snapshot is taken",
        "a snapshot is restored",
        "one copy reads and writes the same row",
        "a padded copy lands in row 0",
        "a bad copy is refused",
        "several rows are reset",
        "a bad reset is refused",
        "track slots run out",
        "a track slot is freed twice",
        "a working row is freed as a track slot",
        "a clear takes rows and snapshots from their holders",
    }
)
SEED = (0, 9_999)
INDEX_DTYPES = (torch.int32, torch.int64, torch.int16, torch.uint8)


def act(**ranges: tuple[int, int]) -> Callable[[Callable[..., None]], Any]:
    """Make a method a rule whose arguments are integers in the given closed ranges."""

    def mark(method: Callable[..., None]) -> Any:
        made = rule(**{name: st.integers(low, high) for name, (low, high) in ranges.items()})(method)
        made.act_ranges = ranges
        return made

    return mark


class PoolMachine(RuleBasedStateMachine):
    """One pool of each kind and their models; subclasses set the configuration.

    Attributes
    ----------
    PAGE_SIZE : int
        Of the KV pool.
    DTYPE : torch.dtype
        Of the KV buffers and the convolution states.
    DEVICE : str
        Where all pools are. Pools look at device indices too (``check_bounds=True``).
    """

    PAGE_SIZE: ClassVar[int] = 1
    DTYPE: ClassVar[torch.dtype] = torch.int64
    DEVICE: ClassVar[str] = "cpu"
    MAX_REQS: ClassVar[int] = 3
    CONTEXT: ClassVar[int] = 5
    LAYERS: ClassVar[int] = 2
    SLOTS: ClassVar[int] = 8
    TRACK_SLOTS: ClassVar[int] = 2
    K: ClassVar[tuple[int, int]] = (1, 2)
    V: ClassVar[tuple[int, int]] = (3, 1)

    def __init__(self) -> None:
        super().__init__()
        self.reached: Counter[str] = Counter()
        self.rows = ReqToTokenPool(self.MAX_REQS, self.CONTEXT, self.DEVICE, check_bounds=True)
        self.kv = KVPool(
            self.SLOTS,
            self.LAYERS,
            *self.K,
            self.DEVICE,
            self.DTYPE,
            *self.V,
            page_size=self.PAGE_SIZE,
            check_bounds=True,
        )
        self.gdn = GDNPool(
            self.MAX_REQS,
            self.LAYERS,
            1,
            2,
            1,
            2,
            2,
            self.DEVICE,
            self.DTYPE,
            self.TRACK_SLOTS,
            check_bounds=True,
        )
        self.used_rows: set[int] = set()
        self._forget()
        self.kv_model = RowStore()

    def _forget(self) -> None:
        self.row_model = RowModel(self.MAX_REQS)
        self.track_model = TrackModel(range(self.MAX_REQS + 1, self.gdn.pool_size))
        self.state_model = RowStore()

    # Rows of requests

    @act(n=(0, 4))
    def alloc_rows(self, n: int) -> None:
        expected = self.row_model.alloc(n)
        assert self.rows.alloc(n) == expected
        if expected is None:
            self.reached["a batch finds too few rows"] += 1
        elif self.used_rows.intersection(expected):
            self.reached["a used row is handed out again"] += 1

    @act(row=(-1, 4))
    def free_row(self, row: int) -> None:
        if row in self.row_model.held:
            self.used_rows.discard(row)
            if self.row_model.is_dirty(row):
                self.used_rows.add(row)
            self.row_model.release(row)
            self.rows.free(row)
            return
        with pytest.raises(OwnershipError):
            self.rows.free(row)
        where = "a row is freed twice" if row in self.row_model.free else "a row outside is freed"
        self.reached["row 0 is freed" if row == 0 else where] += 1

    @act(pick=(0, 2), start=(0, 5), length=(0, 5), twist=(0, 14), seed=SEED)
    def write_stretch(self, pick: int, start: int, length: int, twist: int, seed: int) -> None:
        source = random.Random(seed)
        held = sorted(self.row_model.held)
        row = held[pick % len(held)] if held else 0
        stop = min(start + length, self.CONTEXT)
        slots = [source.randrange(self.SLOTS) for _ in range(stop - start)]
        (row, start, stop), error = self._spoil_stretch(twist, row, start, stop, slots)
        values = self._index(source, slots)
        if error is not None:
            with pytest.raises(error):
                self.rows.write((row, slice(start, stop)), values)
            self.reached["a bad stretch is refused"] += 1
            return
        entries = [(row, position) for position in range(start, stop)]
        self._note_stretch(entries, stop)
        self.rows.write((row, slice(start, stop)), values)
        self.row_model.write(entries, slots)

    def _spoil_stretch(
        self, twist: int, row: int, start: int, stop: int, slots: list[int]
    ) -> tuple[tuple[int, int, int], type[Exception] | None]:
        loose = min(self.row_model.free, default=0)
        if row == 0 or twist in (1, 2, 3):
            return ({2: -1, 3: self.MAX_REQS + 1}.get(twist, loose), start, stop), OwnershipError
        if twist == 4:
            return (row, start, self.CONTEXT + 1), IndexError
        if twist == 5:
            return (row, -1, stop), IndexError
        if twist == 6:
            return (row, stop, start), ValueError if stop > start else None
        if twist == 7:
            slots.append(1)
            return (row, start, stop), ValueError
        if twist == 8 and slots:
            slots[0] = -1
            return (row, start, stop), IndexError
        return (row, start, stop), None

    def _note_stretch(self, entries: list[tuple[int, int]], stop: int) -> None:
        if not entries:
            self.reached["an empty stretch is written"] += 1
        elif stop == self.CONTEXT:
            self.reached["a stretch reaches the end of its row"] += 1
        if any(self.row_model.table.get(entry) for entry in entries):
            self.reached["a stretch overwrites entries"] += 1

    @act(padding=(0, 3), twist=(0, 9), seed=SEED)
    def write_entries(self, padding: int, twist: int, seed: int) -> None:
        source = random.Random(seed)
        rows = [*sorted(self.row_model.held), *[0] * padding]
        source.shuffle(rows)
        positions = [source.randrange(self.CONTEXT) if row else 0 for row in rows]
        slots = [source.randrange(self.SLOTS) for _ in rows]
        error = self._spoil_entries(twist, rows, positions, slots)
        call = (self._index(source, rows), self._index(source, positions)), self._index(source, slots)
        if error is not None:
            with pytest.raises(error):
                self.rows.write(*call)
            self.reached["a bad batch of entries is refused"] += 1
            return
        self.rows.write(*call)
        self.row_model.write(zip(rows, positions, strict=True), slots)
        if padding:
            written = [slot for row, slot in zip(rows, slots, strict=True) if row == 0]
            self.row_model.table[0, 0] = self._one_of(int(self.rows.req_to_token[0, 0]), written)
            self.reached["padded entries share row 0"] += padding > 1

    def _spoil_entries(
        self, twist: int, rows: list[int], positions: list[int], slots: list[int]
    ) -> type[Exception] | None:
        loose = sorted(self.row_model.free)
        if twist == 1 and loose:
            rows.append(loose[0])
            positions.append(0)
            slots.append(1)
            return OwnershipError
        wrong = {
            2: (rows, self.MAX_REQS + 1),
            3: (rows, -1),
            4: (positions, self.CONTEXT),
            5: (positions, -1),
        }
        wrong[6] = (slots, -1)
        if twist in wrong and rows:
            numbers, value = wrong[twist]
            numbers[-1] = value
            return IndexError
        if twist == 7:
            slots.append(1)
            return ValueError
        return None

    # Keys and values

    @act(layer=(0, 1), tokens=(0, 4), padding=(0, 3), form=(0, 2), twist=(0, 24), seed=SEED)
    def write_kv(self, layer: int, tokens: int, padding: int, form: int, twist: int, seed: int) -> None:
        source = random.Random(seed)
        slots = source.sample(range(1, self.SLOTS + self.PAGE_SIZE), tokens) + [0] * padding
        source.shuffle(slots)
        k, v = ([self._bits(source, heads * dim) for _ in slots] for heads, dim in (self.K, self.V))
        call: dict[str, Any] = {
            "layer_id": layer,
            "indices": self._index(source, slots),
            "k": self._rows_of(k, self.K, form),
            "v": self._rows_of(v, self.V, form),
        }
        if form == 2:
            call["indices"] = call["indices"].view(1, -1)
        change, error = self._spoil_kv(twist, call)
        if error is not None:
            with pytest.raises(error):
                self.kv.set_kv_buffer(**(call | change))
            self.reached["a bad KV write is refused"] += 1
            return
        self.kv.set_kv_buffer(**call)
        self._expect_kv(layer, slots, k, v)
        self.reached["padded tokens share slot 0"] += padding > 1
        self.reached["no token is written"] += not slots
        self.reached["the last slot is written"] += self.SLOTS + self.PAGE_SIZE - 1 in slots

    def _expect_kv(self, layer: int, slots: list[int], k: list[Bits], v: list[Bits]) -> None:
        self.kv_model.write("k", layer, slots, k)
        self.kv_model.write("v", layer, slots, v)
        if 0 in slots:  # any of the padded rows may have come last, in each buffer
            for kind, rows in (("k", k), ("v", v)):
                written = [bits for slot, bits in zip(slots, rows, strict=True) if slot == 0]
                found = tuple(bit_view(self._kv_buffer(kind, layer)[0]).flatten().tolist())
                self.kv_model.write(kind, layer, [0], [self._one_of(found, written)])

    def _spoil_kv(self, twist: int, call: dict[str, Any]) -> tuple[dict[str, Any], type[Exception] | None]:
        k, v, indices = call["k"], call["v"], call["indices"]
        spoiled: dict[int, tuple[dict[str, Any], type[Exception]]] = {
            1: ({"layer_id": self.LAYERS}, IndexError),
            2: ({"layer_id": -1}, IndexError),
            3: ({"k": torch.cat([k.reshape(-1), k.new_ones(1)])}, ValueError),
            4: ({"v": v.reshape(-1, *self.V)[:-1] if v.numel() else v.new_ones(2, *self.V)}, ValueError),
            5: ({"k": k.to(torch.float64)}, TypeError),
            6: ({"v": v.to(torch.float64)}, TypeError),
            7: ({"indices": indices.to(torch.float32)}, TypeError),
            11: ({"indices": indices > 0}, TypeError),
        }
        if indices.numel():
            spoiled[8] = ({"indices": _with_last(indices, self.SLOTS + self.PAGE_SIZE)}, IndexError)
            spoiled[9] = ({"indices": _with_last(indices, -1)}, IndexError)
            spoiled[10] = ({"v": v.new_ones(indices.numel(), *reversed(self.K))[..., :1]}, ValueError)
        if indices.numel() > 1:
            spoiled[12] = ({"k": k.reshape(-1)}, ValueError)
        return spoiled.get(twist, ({}, None))

    @act(layer=(0, 1), src=(0, 8), dst=(1, 8), tokens=(1, 4))
    def move_kv(self, layer: int, src: int, dst: int, tokens: int) -> None:
        rows = self.SLOTS + self.PAGE_SIZE
        tokens = min(tokens, rows - src, rows - dst)
        k, v = self.kv.get_kv_buffer(layer)
        indices = torch.arange(dst, dst + tokens, device=self.DEVICE)
        self.kv.set_kv_buffer(layer, indices, k[src : src + tokens], v[src : src + tokens])
        for kind, (heads, dim) in (("k", self.K), ("v", self.V)):
            self.kv_model.copy(kind, layer, range(src, src + tokens), range(dst, dst + tokens), heads * dim)
        self.reached["rows move inside a buffer"] += abs(src - dst) < tokens

    # States

    @act(row=(0, 5), seed=SEED)
    def advance_state(self, row: int, seed: int) -> None:
        """A forward pass writes through the layer views."""
        source = random.Random(seed)
        for layer in range(self.LAYERS):
            for kind, state in zip(("recurrent", "conv"), self.gdn.get_layer_state(layer), strict=True):
                width = state[row].numel()
                bits = self._bits(source, width, state.dtype)
                carrier = bit_view(state)[row]
                carrier.copy_(torch.tensor(bits, dtype=carrier.dtype).view(carrier.shape))
                self.state_model.write(kind, layer, [row], [bits])

    @act(twist=(0, 9), seed=SEED)
    def copy_states(self, twist: int, seed: int) -> None:
        source = random.Random(seed)
        count = source.randrange(1, 4)
        src = [source.randrange(self.gdn.pool_size) for _ in range(count)]
        dst = source.sample(range(self.gdn.pool_size), count)
        error: type[Exception] | None = None
        if twist in (1, 2):
            (src if twist == 1 else dst)[-1] = source.choice((-1, self.gdn.pool_size))
            error = IndexError
        elif twist == 3:
            src.append(1)
            error = ValueError
        call = self._index(source, src), self._index(source, dst)
        if error is not None:
            with pytest.raises(error):
                self.gdn.copy_states(*call)
            self.reached["a bad copy is refused"] += 1
            return
        self.gdn.copy_states(*call)
        self._expect_copy(src, dst)
        self._note_copy(src, dst)

    def _expect_copy(self, src: list[int], dst: list[int]) -> None:
        for kind, state in (("recurrent", self.gdn.recurrent_state), ("conv", self.gdn.conv_state)):
            for layer in range(self.LAYERS):
                self.state_model.copy(kind, layer, src, dst, state[0, 0].numel())

    def _note_copy(self, src: list[int], dst: list[int]) -> None:
        pairs = list(zip(src, dst, strict=True))
        held_rows, snapshots = self.row_model.held, self.track_model.held
        self.reached["a snapshot is taken"] += any(s in held_rows and d in snapshots for s, d in pairs)
        self.reached["a snapshot is restored"] += any(s in snapshots and d in held_rows for s, d in pairs)
        self.reached["one copy reads and writes the same row"] += bool({*src} & {*dst})
        self.reached["a padded copy lands in row 0"] += 0 in dst

    @act(twist=(0, 4), seed=SEED)
    def reset_states(self, twist: int, seed: int) -> None:
        source = random.Random(seed)
        rows = [source.randrange(self.gdn.pool_size) for _ in range(source.randrange(4))]
        if twist == 1:
            rows.append(source.choice((-1, self.gdn.pool_size)))
            with pytest.raises(IndexError):
                self.gdn.reset_states(self._index(source, rows))
            self.reached["a bad reset is refused"] += 1
            return
        self.gdn.reset_states(self._index(source, rows))
        self.state_model.reset(rows)
        self.reached["several rows are reset"] += len({*rows}) > 1

    @act()
    def alloc_track_slot(self) -> None:
        expected = self.track_model.alloc()
        assert self.gdn.alloc_track_slot() == expected
        self.reached["track slots run out"] += expected is None

    @act(slot=(-1, 6))
    def free_track_slot(self, slot: int) -> None:
        if slot in self.track_model.held:
            self.track_model.release(slot)
            self.gdn.free_track_slot(slot)
            return
        with pytest.raises(OwnershipError):
            self.gdn.free_track_slot(slot)
        self.reached["a track slot is freed twice"] += slot in self.track_model.free
        self.reached["a working row is freed as a track slot"] += 1 <= slot <= self.MAX_REQS

    @act(chance=(0, 20))
    def clear(self, chance: int) -> None:
        if chance:
            return
        if self.row_model.held and self.track_model.held:
            self.reached["a clear takes rows and snapshots from their holders"] += 1
        self.rows.clear()
        self.gdn.clear()
        self.used_rows.clear()
        self._forget()

    # Comparison

    @invariant()
    def compare(self) -> None:
        check_req_to_token_pool(self.rows, kv_rows=self.SLOTS + self.PAGE_SIZE)
        check_kv_pool(self.kv)
        check_gdn_pool(self.gdn)
        assert self.rows.available_size() == len(self.row_model.free)
        assert self.gdn.available_track_slots() == len(self.track_model.free)
        table = self.row_model.expected(self.MAX_REQS + 1, self.CONTEXT)
        assert self.rows.req_to_token.tolist() == table
        for layer in range(self.LAYERS):
            for kind in ("k", "v"):
                self._compare_rows(self.kv_model, kind, layer, self._kv_buffer(kind, layer))
            recurrent, conv = self.gdn.get_layer_state(layer)
            self._compare_rows(self.state_model, "recurrent", layer, recurrent)
            self._compare_rows(self.state_model, "conv", layer, conv)

    def _compare_rows(self, model: RowStore, kind: str, layer: int, buffer: torch.Tensor) -> None:
        found = bit_view(buffer).flatten(start_dim=1)
        assert found.tolist() == model.expected(kind, layer, *found.shape), f"{kind} of layer {layer}"

    # Making arguments

    def _kv_buffer(self, kind: str, layer: int) -> torch.Tensor:
        return self.kv.get_key_buffer(layer) if kind == "k" else self.kv.get_value_buffer(layer)

    def _bits(self, source: random.Random, width: int, dtype: torch.dtype | None = None) -> Bits:
        half = 1 << ((dtype or self.DTYPE).itemsize * 8 - 1)
        return tuple(source.randrange(-half, half) for _ in range(width))

    def _rows_of(self, rows: list[Bits], row: tuple[int, int], form: int) -> torch.Tensor:
        carrier = bit_view(torch.empty(0, dtype=self.DTYPE)).dtype
        flat = torch.tensor(rows, dtype=carrier).view(self.DTYPE).to(self.DEVICE)
        shapes = ((len(rows), *row), (len(rows), row[0] * row[1]), (1, len(rows), *row))
        return flat.reshape(shapes[form])

    def _index(self, source: random.Random, numbers: Sequence[int]) -> torch.Tensor:
        dtypes = [dtype for dtype in INDEX_DTYPES if dtype.is_signed or min(numbers, default=0) >= 0]
        device = source.choice(("cpu", self.DEVICE))
        return torch.tensor(numbers, dtype=torch.int64).to(source.choice(dtypes)).to(device)

    @staticmethod
    def _one_of(found: Any, written: list[Any]) -> Any:
        assert found in written, f"padding holds {found}, nobody wrote that: {written}"
        return found


class PagedPoolMachine(PoolMachine):
    """Pages of four tokens, and a dtype in which most bit patterns are not equal to themselves or rounded."""

    PAGE_SIZE = 4
    DTYPE = torch.bfloat16


def _with_last(indices: torch.Tensor, number: int) -> torch.Tensor:
    """Only the last index is wrong, so that a write which starts before it has checked shows."""
    spoiled = indices.to(torch.int64).clone()
    spoiled.view(-1)[-1] = number
    return spoiled


def drive(machine_class: type[PoolMachine], seed: int, steps: int) -> PoolMachine:
    """Run a machine's rules from a seeded generator; the run is the same everywhere."""
    source = random.Random(seed)
    machine = machine_class()
    names = sorted(name for name in dir(machine_class) if hasattr(getattr(machine_class, name), "act_ranges"))
    machine.compare()
    for _ in range(steps):
        act_of_step = getattr(machine, source.choice(names))
        act_of_step(**{name: source.randint(*bounds) for name, bounds in act_of_step.act_ranges.items()})
        machine.compare()
    return machine
