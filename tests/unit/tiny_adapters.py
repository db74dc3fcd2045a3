"""Adapters small enough to look through: request rows in plain Python, and ways to get them wrong."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.own_caches import Mamba
from pymllm.adapters.simple import SlotAdapter
from pymllm.errors import AdapterError, InvariantViolation
from pymllm.history.files import Config
from pymllm.history.operations import (
    AllocRows,
    Clear,
    FreeRow,
    Insert,
    Lock,
    Operation,
    ReadRows,
    WriteEntries,
    WriteRow,
)
from pymllm.history.outcomes import Done, Matched, NoRoom, Outcome, Result, Slots, Table
from pymllm.machines.acting import ActingMachine, act


class TinyRows(BaseAdapter):
    """Request rows as lists; right in everything, and claims to refuse nothing."""

    KIND = "rows"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"max_reqs": 3, "max_context_len": 4},
        {"max_reqs": 2, "max_context_len": 3},
    )

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.context = int(config["max_context_len"] or 0)
        self.clear()

    def clear(self) -> None:
        rows = int(self.config["max_reqs"] or 0)
        self.free = list(range(1, rows + 1))
        self.rows = [[0] * self.context for _ in range(rows + 1)]

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "zeroed_rows"})

    def sizes(self) -> dict[str, int]:
        return {"size": len(self.rows) - 1, "available_size": len(self.free)}

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        if operation.count > len(self.free):
            return NoRoom()
        return Slots(tuple(self.free.pop(0) for _ in range(operation.count)))

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        (row,) = self.numbers((operation.row,))
        self.rows[row] = [0] * self.context
        self.free.append(row)
        return Done()

    def do_write_row(self, step: int, operation: WriteRow) -> Done:
        (row,) = self.numbers((operation.row,))
        self.rows[row][operation.start : operation.stop] = operation.values
        return Done()

    def do_write_entries(self, step: int, operation: WriteEntries) -> Done:
        rows = self.numbers(operation.rows)
        for row, at, value in zip(rows, operation.positions, operation.values, strict=True):
            self.rows[row][at] = value
        return Done()

    def do_read_rows(self, step: int, operation: ReadRows) -> Table:
        return Table(tuple(map(tuple, self.rows)))

    def do_clear(self, step: int, operation: Clear) -> Done:
        self.clear()
        return Done()


class KeepsEntries(TinyRows):
    """Frees a row and leaves what was written in it (P2)."""

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        (row,) = self.numbers((operation.row,))
        self.free.append(row)
        return Done()


class KeepsEntriesAndBreaks(KeepsEntries):
    """Cannot free anything unless some call has asked for nothing."""

    is_warm = False

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        self.is_warm = self.is_warm or not operation.count
        return super().do_alloc_rows(step, operation)

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        if not self.is_warm:
            raise AdapterError(self.name, "not warm yet")
        return super().do_free_row(step, operation)


class KeepsEntriesAndHangs(KeepsEntriesAndBreaks):
    """The same, and it never says so."""

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        while not self.is_warm:
            time.sleep(0.01)
        return super().do_free_row(step, operation)


class KeepsEntriesAndLeaves(KeepsEntriesAndBreaks):
    """The same, and it ends its process instead of saying so."""

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        if not self.is_warm:
            os._exit(0)
        return super().do_free_row(step, operation)


class FailsLate(TinyRows):
    """Writes another value where three certain entries are written at once (P3)."""

    def do_write_entries(self, step: int, operation: WriteEntries) -> Done:
        done = super().do_write_entries(step, operation)
        if sorted(operation.values) == [2, 3, 5]:
            (row, *_) = self.numbers(operation.rows)
            self.rows[row][operation.positions[0]] = 8
        return done


class Moody(TinyRows):
    """Hands out any free row (X3)."""

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        random.SystemRandom().shuffle(self.free)
        return super().do_alloc_rows(step, operation)


class WrongInside(TinyRows):
    """Looks inside and finds what no outcome shows."""

    def audit(self) -> Sequence[str]:
        if len(self.free) < len(self.rows) - 2:
            raise InvariantViolation("P1", "free rows", expected="in order", observed="in disorder")
        return ("P1",)


class GivesUp(TinyRows):
    """Cannot examine a third row."""

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        if len(self.free) == 1 and operation.count:
            raise AdapterError(self.name, "lost the connection")
        return super().do_alloc_rows(step, operation)


class Breaks(TinyRows):
    """Is broken itself, once it has two rows to count."""

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return {**sizes, "size": sizes["size"] // (len(self.free) != 1)}


class Dies(TinyRows):
    """Takes its process along."""

    def do_clear(self, step: int, operation: Clear) -> Done:
        os._exit(7)


class Bare(BaseAdapter):
    """Has neither settings nor claims, and does nothing."""

    KIND = "hashes"


class DiesLate(TinyRows):
    """Takes its process along where more than one row is asked for, which no smoke test does."""

    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots | NoRoom:
        if operation.count > 1:
            os._exit(7)
        return super().do_alloc_rows(step, operation)


class WearsOut(TinyRows):
    """Rows that keep the content of a freed row, from the fourth one on (P2)."""

    freed = 0

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        (row,) = self.numbers((operation.row,))
        kept = list(self.rows[row])
        done = super().do_free_row(step, operation)
        self.freed += 1
        if self.freed > 3:
            self.rows[row] = kept
        return done


class OnlySmall(TinyRows):
    """Cannot be any larger."""

    def __init__(self, name: str, config: Config) -> None:
        if int(config["max_reqs"] or 0) > 4:
            raise ValueError("too large")
        super().__init__(name, config)


class Leaks(TinyRows):
    """Keeps every outcome that it ever gave, beyond its own end."""

    KEPT: ClassVar[list[object]] = []

    def apply(self, step: int, operation: Operation) -> Outcome:
        outcome = super().apply(step, operation)
        self.KEPT.append((step, dict(outcome.sizes)))
        return outcome


class Hangs(TinyRows):
    """Never comes back from freeing a row of a full table."""

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        while not self.free:
            time.sleep(0.01)
        return super().do_free_row(step, operation)


class CannotClose(TinyRows):
    """Cannot be let go."""

    def close(self) -> None:
        raise ValueError("stuck")


class CannotCloseLate(TinyRows):
    """Cannot be let go once two rows are held."""

    def close(self) -> None:
        if len(self.free) < 2:
            raise ValueError("stuck")


# -- not fit to examine anything ---------------------------------------------------------------------------


class NoConfigurations(TinyRows):
    CONFIGURATIONS = ()


class OddConfiguration(TinyRows):
    CONFIGURATIONS = ({"max_reqs": 3.0},)


class LacksSetting(TinyRows):
    CONFIGURATIONS = ({"max_reqs": 3},)


class JudgeLacksSetting(TinyRows):
    CONFIGURATIONS = ({"max_reqs": 0, "max_context_len": 4},)


class ClaimsMagic(TinyRows):
    def claim(self) -> frozenset[str]:
        return frozenset({"magic"})


class ClaimsList(TinyRows):
    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.capabilities = ["pool"]  # type: ignore[assignment]


class ClaimsByChance(TinyRows):
    count = 0

    def claim(self) -> frozenset[str]:
        type(self).count += 1
        return frozenset({"pool"} if self.count % 2 else ())


class Raises(TinyRows):
    def apply(self, step: int, operation: object) -> Outcome:
        raise ZeroDivisionError("no way")


class AnswersNone(TinyRows):
    def apply(self, step: int, operation: object) -> Outcome:
        return None  # type: ignore[return-value]


class AnswersMatched(TinyRows):
    def do_read_rows(self, step: int, operation: ReadRows) -> Matched:
        return Matched((), 0)


class Forgets(TinyRows):
    do_read_rows = None


class Refuses(TinyRows):
    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots:
        raise TypeError("takes a list")


class SizesAreFloats(TinyRows):
    def sizes(self) -> dict[str, int]:
        return {"size": 3.0}  # type: ignore[dict-item]


class EffectsAreList(TinyRows):
    def apply(self, step: int, operation: object) -> Outcome:
        return Outcome(Slots((1,)), [])  # type: ignore[arg-type]


class NotJSON(TinyRows):
    def do_alloc_rows(self, step: int, operation: AllocRows) -> Slots:
        return Slots((complex(1),))  # type: ignore[arg-type]


class ListsInJSON(TinyRows):
    def do_read_rows(self, step: int, operation: ReadRows) -> Table:
        return Table([])  # type: ignore[arg-type]


class KnowsTooMuch(TinyRows):
    """Of kind slots, and answers what it does not claim."""

    KIND = "slots"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 1, "pages": 3, "swa_pages": None},)

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, {**config, "max_reqs": 3, "max_context_len": 1})
        self.config = dict(config)

    def apply(self, step: int, operation: object) -> Outcome:
        return Outcome(Slots((1,)))


# -- a machine ---------------------------------------------------------------------------------------------


class IdleMachine(ActingMachine):
    """Reads the table, and never does anything to it."""

    @act()
    def look(self) -> None:
        self.do(ReadRows())


class NeedsStates(Mamba):
    """A hybrid cache that takes no key without a state, and no hold of a node without one."""

    def claim(self) -> frozenset[str]:
        return super().claim() - {"bare_inserts", "bare_holds", "refusals", "faults", "callbacks", "engine"}

    def do_insert(self, step: int, operation: Insert) -> Result:
        if operation.state is None and len(operation.key.tokens) >= self.number("page_size"):
            raise AssertionError("every key has a state")
        return super().do_insert(step, operation)

    def do_lock(self, step: int, operation: Lock) -> Result:
        node = self.node_of(operation.of)
        if node.parent is not None and node.mamba_value is None:
            raise AssertionError("every held node has a state")
        return super().do_lock(step, operation)


class PagesOfFour(SlotAdapter):
    """An allocator with pages of four slots, for any page size; a failed allocation loses a page."""

    CONFIGURATIONS = ({"page_size": 4, "pages": 6},)

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.pages = list(range(1, self.number("pages") + 1))

    def claim(self) -> set[str]:
        return {"pool"}

    def sizes(self) -> dict[str, int]:
        return {"available_size": 4 * len(self.pages)}

    def alloc(self, tokens: int) -> list[int] | None:
        count = -(-tokens // 4)
        taken, self.pages = self.pages[:count], self.pages[count:]
        return [4 * page + at for page in taken for at in range(4)] if len(taken) == count else None

    def free(self, slots: Sequence[int]) -> None:
        self.pages += sorted({slot // 4 for slot in slots})
