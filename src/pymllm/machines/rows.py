"""The machines that drive request rows and state pools: allocations, writes, copies and misuse."""

from __future__ import annotations

import random
from collections.abc import Iterable

from pymllm.history import operations as ops
from pymllm.history.operations import Span
from pymllm.machines.acting import act
from pymllm.machines.pools import SEED, PoolMachine, index_form, malformed_calls, name_numbers
from pymllm.oracle.models.rows import RowModel
from pymllm.oracle.models.state_pools import StatePoolModel

_LARGEST = 2**31 - 1


class _LendingMachine(PoolMachine):
    """The base class of machines whose pools hand out numbered rows, which the model keeps as `held`."""

    model: RowModel | StatePoolModel

    def begin(self) -> None:
        """Read the claims and sizes."""
        self.model = self.judge.model

    @property
    def has_held(self) -> bool:
        """Whether a row, or a track slot, is handed out."""
        return bool(self.model.held)

    @act(chance=(0, 2))
    def clear(self, chance: int) -> None:
        """Clear the pool, in some draws."""
        if not chance:
            self.ask(ops.Clear())

    def _held_one(self, pick: int) -> Span:
        held = sorted(self.model.held)
        (span,) = self._names([held[pick % len(held)]])
        return span

    def _names(self, rows: Iterable[int]) -> tuple[Span, ...]:
        return name_numbers(rows, self.model.given, self.model.held.__contains__)


class RowMachine(_LendingMachine):
    """The machine that drives a table of request rows (P1, P2, P3, X1, X4, X7, E5)."""

    MALFORMED = malformed_calls(
        alloc_rows=("a float count", "a bool count", "no count"),
        free_row=("a float row", "a bool row", "a list of rows"),
        write_row=(
            *("a float row", "a bool row", "a float end", "no index"),
            *("float values", "bool values", "values of two dimensions", "a stepped slice"),
        ),
        write_entries=("float rows", "bool rows", "float positions", "float values", "three indices"),
    )

    model: RowModel

    def observe(self) -> None:
        """Read the table."""
        self.do(ops.ReadRows())

    # -- requests come and go ------------------------------------------------------------------------------
    @act(count=(0, 4), weight=2)
    def admit(self, count: int) -> None:
        """Allocate rows."""
        self.ask(ops.AllocRows(count))

    @act(needs="has_held", pick=(0, 7))
    def finish(self, pick: int) -> None:
        """Free a row."""
        self.ask(ops.FreeRow(self._held_one(pick)))

    @act(needs="can_refuse", row=(-1, 7))
    def free_badly(self, row: int) -> None:
        """Free a row that is not handed out."""
        bound = self.model.max_reqs + 2
        row = row if row < bound else row % bound
        if row not in self.model.held:
            self.ask(ops.FreeRow(_literal(row)))

    @act(needs="can_refuse")
    def admit_fewer_than_none(self) -> None:
        """Allocate a negative number of rows."""
        self.ask(ops.AllocRows(-1))

    # -- the table -----------------------------------------------------------------------------------------
    @act(needs="has_held", weight=3, pick=(0, 7), start=(0, 7), length=(0, 7), seed=SEED)
    def write_stretch(self, pick: int, start: int, length: int, seed: int) -> None:
        """Write the slots of a request's tokens into a stretch of its row."""
        start %= self.model.context + 1
        stop = min(start + length, self.model.context)
        self._write_row(self._held_one(pick), start, stop, _values(stop - start, seed), seed)

    @act(needs="can_refuse", weight=2, pick=(0, 7), twist=(0, 8), seed=SEED)
    def write_stretch_badly(self, pick: int, twist: int, seed: int) -> None:
        """Write a stretch of cells with one mistake, close to a legal write."""
        context = self.model.context
        row = self._held_one(pick) if self.has_held else _literal(1)
        start, stop = sorted(random.Random(seed).choices(range(context + 1), k=2))
        surplus = 0
        if twist < 4:
            row = _literal((0, -1, self.model.max_reqs + 1, min(self.model.free, default=0))[twist])
        elif twist == 4:
            stop = context + 1
        elif twist == 5:
            start = -1
        elif twist == 6:
            start, stop = 1, 0
        else:
            surplus = 1
        values = _values(max(stop - start, 0) + surplus, seed)
        if twist == 8:
            stop, values = min(start + 1, context), (-1,)
            start = stop - 1
        self._write_row(row, start, stop, values, seed)

    def _write_row(self, row: Span, start: int, stop: int, values: tuple[int, ...], seed: int) -> None:
        self.ask(ops.WriteRow(row, start, stop, values, index_form(random.Random(seed), values)))

    @act(weight=2, padding=(0, 3), seed=SEED)
    def decode(self, padding: int, seed: int) -> None:
        """Write the next token of every request, in a batch padded with row 0."""
        self._write_entries(*self._batch(padding, seed), seed)

    @act(needs="can_refuse", padding=(0, 1), twist=(0, 6), seed=SEED)
    def decode_badly(self, padding: int, twist: int, seed: int) -> None:
        """Write a batch whose last entry is wrong, to find implementations that write before they check."""
        rows, positions, values = self._batch(padding, seed)
        wrong_rows = (-1, self.model.max_reqs + 1, min(self.model.free, default=-1))
        if twist < 3:
            rows.append(wrong_rows[twist])
        else:
            rows.append(0)
        positions.append({3: self.model.context, 4: -1}.get(twist, 0))
        values.append(-1 if twist == 5 else 1)
        if twist == 6:
            values.append(1)
        self._write_entries(rows, positions, values, seed)

    def _batch(self, padding: int, seed: int) -> tuple[list[int], list[int], list[int]]:
        source = random.Random(seed)
        rows = [*sorted(self.model.held), *[0] * padding]
        source.shuffle(rows)
        positions = [source.randrange(self.model.context) if row else 0 for row in rows]
        return rows, positions, list(_values(len(rows), seed))

    def _write_entries(self, rows: list[int], positions: list[int], values: list[int], seed: int) -> None:
        form = index_form(random.Random(seed), [*rows, *positions, *values])
        self.ask(ops.WriteEntries(self._names(rows), tuple(positions), tuple(values), form))


def _literal(row: int) -> Span:
    return Span(0, row, row + 1)


def _values(count: int, seed: int) -> tuple[int, ...]:
    """Return slots as an allocator gives them: small ones, and sometimes the largest."""
    source = random.Random(seed)
    return tuple(_LARGEST if source.random() < 0.05 else source.randrange(9) for _ in range(count))


class StateMachine(_LendingMachine):
    """The machine that drives the states of every layer (P4, P5, X1, X4, X7)."""

    MALFORMED = malformed_calls(
        free_track=("a float slot", "a bool slot", "no slot"),
        copy_states=("float rows", "bool rows", "float targets", "no target"),
        reset_states=("float rows", "bool rows", "a string"),
        read_states=("a float layer", "no layer"),
    )

    model: StatePoolModel

    def observe(self) -> None:
        """Read every layer."""
        for layer in range(self.model.layers):
            self.do(ops.ReadStates(layer))

    # -- track slots ---------------------------------------------------------------------------------------
    @act()
    def alloc_track_slot(self) -> None:
        """Allocate a track slot."""
        self.ask(ops.AllocTrack())

    @act(needs="has_held", pick=(0, 3))
    def free_track_slot(self, pick: int) -> None:
        """Free a track slot."""
        self.ask(ops.FreeTrack(self._held_one(pick)))

    @act(needs="can_refuse", slot=(-1, 6))
    def free_badly(self, slot: int) -> None:
        """Free a track slot that is not held, or a row that is not a track slot."""
        slot = min(slot, self.model.rows)
        if slot not in self.model.held:
            self.ask(ops.FreeTrack(Span(0, slot, slot + 1)))

    # -- states --------------------------------------------------------------------------------------------
    @act(weight=3, row=(0, 6), seed=SEED)
    def advance(self, row: int, seed: int) -> None:
        """Write a row in every layer, as a forward pass does."""
        source = random.Random(seed)
        (span,) = self._names([row % self.model.rows])
        largest_ramp = 24 // max(self.model.widths.values())  # the last element is still below 128
        for layer in range(self.model.layers):
            recurrent, conv = source.randrange(-128, 104), source.randrange(-128, 104)
            self.do(ops.WriteState(layer, span, recurrent, conv, source.randint(0, largest_ramp)))
        self.observe()

    @act(weight=3, count=(1, 4), padding=(0, 2), seed=SEED)
    def copy(self, count: int, padding: int, seed: int) -> None:
        """Copy some rows to some others, padded with copies to row 0."""
        source = random.Random(seed)
        rows = range(self.model.rows)
        targets = [*source.sample(rows[1:], min(count, len(rows) - 1)), *[0] * padding]
        source.shuffle(targets)
        self._copy(source.choices(rows, k=len(targets)), targets, source)

    @act(needs="can_refuse", count=(0, 2), twist=(0, 4), seed=SEED)
    def copy_badly(self, count: int, twist: int, seed: int) -> None:
        """Copy rows with the last one out of range, or with an unequal number of rows."""
        source = random.Random(seed)
        rows, targets = [0] * count, source.sample(range(self.model.rows), count)
        outside = -1 if seed % 2 else self.model.rows
        if twist < 2:
            rows.append(outside if twist else 0)
            targets.append(0 if twist else outside)
        else:
            (rows if twist == 2 else targets).append(0)
        self._copy(rows, targets, source)

    def _copy(self, rows: list[int], targets: list[int], source: random.Random) -> None:
        form = index_form(source, [*rows, *targets])
        self.ask(ops.CopyStates(self._names(rows), self._names(targets), form))

    @act(count=(0, 4), seed=SEED)
    def reset(self, count: int, seed: int) -> None:
        """Reset some rows to zeros."""
        source = random.Random(seed)
        self._reset(source.choices(range(self.model.rows), k=count), source)

    @act(needs="can_refuse", count=(0, 2), seed=SEED)
    def reset_badly(self, count: int, seed: int) -> None:
        """Reset some rows, the last of which does not exist."""
        source = random.Random(seed)
        outside = source.choice((-1, self.model.rows))
        self._reset([*source.choices(range(self.model.rows), k=count), outside], source)

    def _reset(self, rows: list[int], source: random.Random) -> None:
        self.ask(ops.ResetStates(self._names(rows), index_form(source, rows)))

    @act(needs="can_refuse", beyond=(0, 1))
    def read_badly(self, beyond: int) -> None:
        """Read a layer that does not exist."""
        self.do(ops.ReadStates(self.model.layers if beyond else -1))
