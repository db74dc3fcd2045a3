"""A model of kind `blocks`, written from its pages alone: dictionaries and lists, counted anew each time.

It says of each outcome whether it is right, and follows what an implementation chose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from pymllm.history import operations as ops
from pymllm.history.codec import snake_case
from pymllm.history.files import Config
from pymllm.history.outcomes import (
    INJECTED,
    BlockBooks,
    CacheEvent,
    Done,
    Effect,
    Failed,
    FoundSlots,
    NoRoom,
    Number,
    Outcome,
    Result,
    Slots,
    States,
    ToldEvents,
    Unsupported,
)

REFUSALS = (
    *("TypeError", "ValueError", "IndexError"),
    *("UsageError", "OwnershipError", "LockError", "StaleNodeError"),
)
NO_SLOT = "MambaSlotCapacityError"


class Wrong(Exception):
    """An outcome that the specification does not allow."""


class Silent(Exception):
    """An operation that its caller may not ask for: the specification has no answer."""


def demand(is_right: bool, *words: object) -> None:
    """Accuse an outcome unless it is right."""
    if not is_right:
        raise Wrong(" ".join(map(str, words)))


def expect(found: object, *allowed: object) -> None:
    """Accuse an outcome unless the found value is among the allowed values."""
    demand(found in allowed, "expected", allowed, "found", found)


class Model(ABC):
    """The common part of the models of both kinds: one outcome after the other."""

    allowed = REFUSALS

    def __init__(self, config: Config, claims: Collection[str]) -> None:
        self.config, self.claims = config, claims
        self.given: dict[int, Sequence[int]] = {}
        self.fault: ops.Fault | None = None
        self.step = 0
        self.calls: list[Effect] = []
        self.sizes_told: set[str] = set()
        self.hash_of: dict[int, int] = {}
        self.parent_of: dict[int, int | None] = {}
        self.path_of: dict[int, Any] = {}  # of a block whose tokens are known: all up to its end
        self.heard: dict[Any, Any] = {}  # hash -> hash of its parent and tokens up to its end, by the events

    def number(self, key: str) -> int:
        """Return a number of the configuration; nothing counts as 0."""
        value = self.config.get(key)
        assert value is None or isinstance(value, int)
        return value or 0

    def take(self, step: int, operation: ops.Operation, outcome: Outcome) -> None:
        """Follow an outcome, or accuse it."""
        self.step, self.calls = step, list(outcome.effects)
        getattr(self, f"on_{snake_case(type(operation).__name__)}")(operation, outcome.result)
        expect(self.calls, [])  # who may have effects has taken them
        if not isinstance(operation, ops.Fault):
            self.fault = None
        self.check_sizes(outcome.sizes)
        missing = self.sizes_told - outcome.sizes.keys()
        demand(not missing, missing, "told before, and not any more")
        self.sizes_told |= outcome.sizes.keys()

    def check_sizes(self, told: dict[str, int]) -> None:
        """Demand that each size that is told is right."""
        sizes = self.sizes()
        for name, value in told.items():
            demand(sizes.get(name) == value, name, "is", sizes.get(name), "and not", value)

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Count everything again."""

    def armed(self, call: str) -> int:
        """Return which call is to fail, 0 for none."""
        return self.fault.nth if self.fault and self.fault.call == call else 0

    def on_fault(self, operation: ops.Fault, result: Result) -> None:
        """Arm a fault for the next operation."""
        expect(result, Done())
        self.fault = operation

    def on_malformed(self, operation: ops.Malformed, result: Result) -> None:
        """Demand any of the errors of a malformed call."""
        demand(isinstance(result, Unsupported) or is_refusal(result, self.allowed), result)

    def on_take_events(self, operation: ops.TakeEvents, result: Result) -> None:
        """Fold the events, and demand that they tell what is registered (X10)."""
        demand(isinstance(result, ToldEvents), "no events:", result)
        assert isinstance(result, ToldEvents)
        for event in result.events:
            if event.kind == "cleared":
                self.heard = {}
            elif event.kind == "removed":
                for name in event.hashes:
                    demand(name in self.heard, name, "was not there")
                    del self.heard[name]
            else:
                self.hear(event)
        due = {}
        for block, name in self.hash_of.items():
            parent = self.parent_of[block]
            due[name] = (None if parent is None else self.hash_of[parent], self.path_of.get(block))
        expect(self.heard, due)

    def hear(self, event: CacheEvent) -> None:
        """Take over blocks that an event stores, each below the one before."""
        parent: Any = event.parent
        path: tuple[Any, ...] | None = None if event.tokens is None else ()
        demand(parent is None or parent in self.heard, event, "has a parent that is not there")
        if parent is not None and path is not None:
            path = self.heard[parent][1]
        for at, name in enumerate(event.hashes):
            demand(name not in self.heard, name, "is there already")
            if path is not None:
                size = len(event.tokens or ()) // len(event.hashes)
                path = (*path, *(event.tokens or ())[at * size : (at + 1) * size])
            self.heard[name] = parent, path
            parent = name


def is_refusal(result: Result, errors: Sequence[str]) -> bool:
    """Tell whether a result is one of some errors."""
    return isinstance(result, Failed) and result.error in errors


class Cell:
    """A part of a state in one layer; open until it is written or read (C7)."""

    def __init__(self, value: tuple[int, ...] | None = None) -> None:
        self.value = value


class NaiveBlocks(Model):
    """Blocks, their hashes and the slots of their states."""

    def __init__(self, config: Config, claims: Collection[str]) -> None:
        super().__init__(config, claims)
        self.count, self.slots, self.rows = (
            self.number("blocks"),
            self.number("slots"),
            self.number("requests"),
        )
        self.layers = self.number("layers") if self.slots else 0
        self.shape = {
            "recurrent": (self.number("ssm_heads"), self.number("ssm_dim")),
            "conv": (self.number("conv_dim"), self.number("conv_width")),
        }
        self.first_books: BlockBooks | None = None
        self.was_reset = False
        self.begun: set[int] = set()  # steps that began transfers
        self.start()

    def start(self) -> None:
        """Make everything new (C9)."""
        self.refs = dict.fromkeys(range(self.count), 0)
        self.transfers: dict[int, list[int]] = {}  # the blocks of each that is under way
        self.stamp = dict.fromkeys(range(self.count), 0)
        self.hash_of: dict[int, int] = {}
        self.parent_of: dict[int, int | None] = {}
        self.slot_of: dict[int, int] = {}
        self.named: set[int] = set()  # blocks whose state is named, which is by their own hash
        self.in_hand: set[int] = set()
        self.clock = 0
        self.is_new = True
        zero = {part: (0,) * (height * width) for part, (height, width) in self.shape.items()}
        places = [("slot", at) for at in range(self.slots)] + [("live", at) for at in range(self.rows)]
        parts = [(layer, part) for layer in range(self.layers) for part in zero]
        self.cells = {place: {(at, part): Cell(zero[part]) for at, part in parts} for place in places}

    def take(self, step: int, operation: ops.Operation, outcome: Outcome) -> None:
        """Follow an outcome, and remember whether only views were asked for since the start."""
        super().take(step, operation, outcome)
        if not isinstance(operation, ops.Inspect | ops.ReadStates | ops.ReadLive | ops.Reset):
            self.is_new = False

    # -- words ---------------------------------------------------------------------------------------------
    def numbers(self, spans: Sequence[ops.Span]) -> list[int]:
        """Return the numbers that spans stand for."""
        found: list[int] = []
        for span in spans:
            if span.step and span.stop > len(self.given.get(span.step, ())):
                raise Silent("numbers that nobody was given")
            places = range(span.start, span.stop)
            found += places if span.step == 0 else [self.given[span.step][at] for at in places]
        return found

    def free(self) -> set[int]:
        """Return the blocks without references and hash."""
        return {block for block, count in self.refs.items() if not count and block not in self.hash_of}

    def is_used(self, block: int) -> bool:
        """Tell whether a block is referenced or cached."""
        return block in self.refs and block not in self.free()

    def below(self, block: int) -> list[int]:
        """Return the registered descendants of a block."""
        found = [block]
        for each in found:
            found += [child for child, parent in self.parent_of.items() if parent == each]
        return found[1:]

    def evictable(self) -> set[int]:
        """Return the cached blocks below which no block is referenced."""
        cached = [block for block in self.hash_of if not self.refs[block]]
        return {block for block in cached if not any(self.refs[each] for each in self.below(block))}

    def free_slots(self) -> set[int]:
        """Return the slots that are neither mapped nor in hand."""
        return {*range(self.slots)} - {*self.slot_of.values()} - self.in_hand

    def victims(self, spared: Collection[int] = ()) -> list[int]:
        """Return the blocks that may lose their slots, in order (C6)."""
        losers = [block for block in self.slot_of if not self.refs[block] and block not in spared]
        return sorted(losers, key=lambda block: (self.stamp[block], block))

    def sizes(self) -> dict[str, int]:
        """Count everything again."""
        sizes = {"pool_avail": len(self.free()), "evictable_blocks": len(self.evictable())}
        return sizes | ({"free_count": len(self.free_slots())} if self.slots else {})

    # -- blocks in and out ---------------------------------------------------------------------------------
    def on_alloc_blocks(self, operation: ops.AllocBlocks, result: Result) -> None:
        """Demand that right evictions make room, and that free blocks are handed out (C1)."""
        missing = operation.count - len(self.free())
        if missing > len(self.evictable()):
            expect(result, NoRoom())
            return
        hashes = dict(self.hash_of)
        gone = [block for call in self.calls for block in call.slots]
        expect(len(gone), max(0, missing))
        for block in gone:
            leaves = [each for each in self.evictable() if each not in self.parent_of.values()]
            demand(block in leaves, block, "is no leaf of", leaves)
            if "exact_lru" in self.claims:
                expect(self.stamp[block], min(self.stamp[each] for each in leaves))
            self.forget(block)
        if self.told(gone, hashes):
            expect(result, Failed(INJECTED))
            return
        demand(isinstance(result, Slots), "no blocks:", result)
        assert isinstance(result, Slots)
        demand(self.are_different(result.slots, operation.count, self.free()), "not free:", result)
        self.given[self.step] = result.slots
        for block in result.slots:
            self.refs[block], self.stamp[block] = 1, self.clock

    def are_different(self, numbers: Sequence[int], count: int, allowed: Collection[int]) -> bool:
        """Tell whether there are so many numbers, all of them different and allowed."""
        return len(numbers) == count == len({*numbers}) and {*numbers} <= {*allowed}

    def forget(self, block: int) -> None:
        """Deregister a block, and free the slot of its state (C6)."""
        self.lose_slot(block)
        self.hash_of.pop(block, None)
        self.parent_of.pop(block, None)

    def told(self, gone: Sequence[int], hashes: dict[int, int]) -> bool:
        """Demand that the observer was told of all lost blocks, and tell whether it raised (C6, X6)."""
        calls, self.calls = self.calls, []
        expect(sorted(block for call in calls for block in call.slots), sorted(gone))
        for nth, call in enumerate(calls, 1):
            demand(call.call == "callback" and len(call.slots) > 0, "no callback of something:", call)
            expect(call.target, tuple(sorted(hashes[block] for block in call.slots if block in hashes)))
            expect(call.note, "RuntimeError" if self.armed("reenter") == nth else "")
        if calls:  # of earlier calls the sizes may be on their way to these; a `node` means nothing here
            self.check_sizes(calls[-1].sizes)
        return 0 < self.armed("callback") <= len(calls)

    def on_retain_blocks(self, operation: ops.RetainBlocks, result: Result) -> None:
        """Count references in (C1)."""
        blocks = self.numbers(operation.blocks)
        if not all(map(self.is_used, blocks)):
            expect(result, Failed("OwnershipError"))
            return
        expect(result, Done())
        for block in blocks:
            self.refs[block] += 1

    def on_release_blocks(self, operation: ops.ReleaseBlocks, result: Result) -> None:
        """Count references out, and demand that the observer learns what went (C1)."""
        blocks = self.numbers(operation.blocks)
        lent = [block for held in self.transfers.values() for block in held]
        if any(
            not self.is_used(block) or blocks.count(block) > self.refs[block] - lent.count(block)
            for block in blocks
        ):
            expect(result, Failed("OwnershipError"))
            return
        self.let_go_of(blocks, result)

    def on_begin_transfer(self, operation: ops.BeginTransfer, result: Result) -> None:
        """Count a reference of the transfer in (C1)."""
        blocks = [*dict.fromkeys(self.numbers(operation.memory))]
        if not all(map(self.is_used, blocks)):
            expect(result, Failed("OwnershipError"))
            return
        expect(result, Done())
        self.begun |= {self.step}
        self.transfers[self.step] = blocks
        for block in blocks:
            self.refs[block] += 1

    def on_end_transfer(self, operation: ops.EndTransfer, result: Result) -> None:
        """Count the references of the transfer out (C1)."""
        if operation.transfer not in self.begun:
            raise Silent("a step that began no transfer")
        if operation.transfer not in self.transfers:
            expect(result, Failed("OwnershipError"))
            return
        self.let_go_of(self.transfers.pop(operation.transfer), result)

    def let_go_of(self, blocks: list[int], result: Result) -> None:
        """Count references out, and demand that the observer learns what went (C1)."""
        for block in blocks:
            self.refs[block] -= 1
        hashes, gone = dict(self.hash_of), set[int]()
        for block in {*blocks}:
            if not self.refs[block] and block not in hashes:
                gone |= {block}
            elif not self.refs[block] and self.config["policy"] == "ref_zero":
                gone |= {block, *self.below(block)}
        for block in gone:
            self.forget(block)
        expect(result, Failed(INJECTED) if self.told(sorted(gone), hashes) else Done())

    def on_register_blocks(self, operation: ops.RegisterBlocks, result: Result) -> None:
        """Follow the entries in order (C3)."""
        blocks, hashes = self.numbers(operation.blocks), operation.hashes
        parents = operation.parents
        if self.refuses(blocks, hashes, parents):
            demand(is_refusal(result, REFUSALS), "no refusal:", result)
            return
        expect(result, Done())
        for at, (block, name) in enumerate(zip(blocks, hashes, strict=True)):
            is_first = at == 0 if parents is None else parents[at] == 0
            parent = None if is_first else self.parent(at, blocks, hashes, parents)
            if block in self.hash_of or name in self.hash_of.values() or self.config.get("caching") is False:
                continue
            if is_first or parent in self.hash_of:
                self.hash_of[block], self.parent_of[block] = name, parent

    def refuses(self, blocks: list[int], hashes: Sequence[int], parents: Sequence[int] | None) -> bool:
        """Tell whether a registration must be refused (C3)."""
        if len(blocks) != len(hashes) or (parents is not None and len(parents) != len(blocks)):
            return True
        if not all(map(self.is_used, blocks)) or not all(1 <= name < 2**63 for name in hashes):
            return True
        names = {*zip(blocks, hashes, strict=True)} | {*self.hash_of.items()}
        has_two = any(len([1 for one, _ in names if one == block]) > 1 for block in blocks)
        return has_two or not all(0 <= name < 2**63 for name in parents or ())

    def parent(
        self, at: int, blocks: list[int], hashes: Sequence[int], parents: Sequence[int] | None
    ) -> int | None:
        """Return the block that an entry hangs below, or nothing where there is none."""
        if parents is None:
            return blocks[at - 1]
        earlier = [block for block, name in zip(blocks[:at], hashes, strict=False) if name == parents[at]]
        known = [block for block, name in self.hash_of.items() if name == parents[at]]
        return [*known, *earlier][-1] if known or earlier else None

    def on_stamp_blocks(self, operation: ops.StampBlocks, result: Result) -> None:
        """Set stamps to the clock."""
        blocks = self.numbers(operation.blocks)
        if not all(0 <= block <= self.count for block in blocks):
            demand(is_refusal(result, ("IndexError", "OwnershipError")), result)
            return
        if not all(map(self.is_used, blocks)):
            raise Silent("whether the dummy and free blocks have stamps is open")
        expect(result, Done())
        self.stamp.update(dict.fromkeys(blocks, self.clock))

    def on_set_clock(self, operation: ops.SetClock, result: Result) -> None:
        """Set the clock."""
        expect(result, Done())
        self.clock = operation.clock

    # -- slots ---------------------------------------------------------------------------------------------
    def lacks_slots(self, result: Result) -> bool:
        """Demand `unsupported` where there are no slots."""
        if not self.slots:
            demand(isinstance(result, Unsupported), "there are no slots:", result)
        return not self.slots

    def open_slot(self, slot: int) -> None:
        """Let what stands in a slot be open: it changed hands (C7)."""
        for layer in range(self.layers):
            for part in self.shape:
                self.cells["slot", slot][layer, part] = Cell()

    def lose_slot(self, block: int) -> None:
        """Free the slot of a block with its name."""
        self.named -= {block}
        if block in self.slot_of:
            self.open_slot(self.slot_of.pop(block))

    def on_alloc_slots(self, operation: ops.AllocSlots, result: Result) -> None:
        """Demand a slot for each block, and that no more blocks than needed lose theirs (C5, C6)."""
        blocks = self.numbers(operation.blocks)
        if self.lacks_slots(result):
            return
        if not all(map(self.is_used, blocks)):
            demand(is_refusal(result, ("OwnershipError", "UsageError", "IndexError")), result)
            return
        new = [block for block in dict.fromkeys(blocks) if block not in self.slot_of]
        missing, victims = max(0, len(new) - len(self.free_slots())), self.victims(blocks)
        if missing > len(victims):
            expect(result, Failed(NO_SLOT))
            return
        taken = {self.slot_of[block] for block in victims[:missing]}
        demand(isinstance(result, Slots) and len(result.slots) == len(blocks), "not as many slots:", result)
        assert isinstance(result, Slots)
        slots = dict(zip(blocks, result.slots, strict=True))
        expect(tuple(slots[block] for block in blocks), result.slots)
        demand(
            all(slots[block] == self.slot_of.get(block, slots[block]) for block in blocks), "moved", result
        )
        chosen = [slots[block] for block in new]
        demand(self.are_different(chosen, len(new), self.free_slots() | taken), "not to be had:", result)
        for block in victims[:missing]:
            self.lose_slot(block)
        for block in new:
            self.slot_of[block] = slots[block]
            self.open_slot(slots[block])
        self.given[self.step] = result.slots

    def on_evict_slots(self, operation: ops.EvictSlots, result: Result) -> None:
        """Demand the slots of the oldest blocks (C6)."""
        if self.lacks_slots(result):
            return
        victims = self.victims()
        if operation.count > len(victims):
            expect(result, Failed(NO_SLOT))
            return
        taken = [self.slot_of[block] for block in victims[: operation.count]]
        demand(isinstance(result, Slots) and sorted(result.slots) == sorted(taken), taken, "and not", result)
        for block in victims[: operation.count]:
            self.lose_slot(block)
        self.in_hand |= {*taken}
        assert isinstance(result, Slots)
        self.given[self.step] = result.slots

    def refused_outside(self, blocks: Sequence[int], result: Result) -> bool:
        """Demand a refusal where a block is outside."""
        is_outside = not all(0 <= block <= self.count for block in blocks)
        demand(not is_outside or is_refusal(result, REFUSALS), "a block outside:", result)
        return is_outside

    def on_find_slots(self, operation: ops.FindSlots, result: Result) -> None:
        """Demand each block's slot (C2)."""
        blocks = self.numbers(operation.blocks)
        if not self.lacks_slots(result) and not self.refused_outside(blocks, result):
            slots = tuple(self.slot_of.get(block, -1) for block in blocks)
            expect(result, FoundSlots(slots, tuple(slot >= 0 for slot in slots)))

    def on_name_states(self, operation: ops.NameStates, result: Result) -> None:
        """Demand that only a block with a slot is named, by its own hash (C4)."""
        blocks, hashes = self.numbers(operation.blocks), operation.hashes
        if self.lacks_slots(result) or self.refused_outside(blocks, result):
            return
        pairs = [(block, name) for block, name in zip(blocks, hashes, strict=False) if name > 0]
        right = all(block in self.slot_of and self.hash_of.get(block) == name for block, name in pairs)
        if len(blocks) != len(hashes) or not right:
            demand(is_refusal(result, REFUSALS), "no refusal:", result)
            return
        expect(result, Done())
        self.named |= {block for block, _ in pairs}

    def on_drop_states(self, operation: ops.DropStates, result: Result) -> None:
        """Free slots; the hashes that come along mean nothing (C4)."""
        blocks = self.numbers(operation.blocks)
        if not self.lacks_slots(result) and not self.refused_outside(blocks, result):
            expect(result, Done())
            for block in blocks:
                self.lose_slot(block)

    # -- states --------------------------------------------------------------------------------------------
    def write(self, place: tuple[str, int], operation: ops.StoreState | ops.WriteLive) -> None:
        """Write both parts of a layer."""
        for part, first in (("recurrent", operation.recurrent), ("conv", operation.conv)):
            height, width = self.shape[part]
            value = tuple(first + at * operation.ramp for at in range(height * width))
            self.cells[place][operation.layer, part] = Cell(value)

    def on_store_state(self, operation: ops.StoreState, result: Result) -> None:
        """Write into the slot of a block (C7)."""
        (block,) = self.numbers([operation.block])
        is_outside = not 0 <= operation.layer < self.layers or not 0 <= block <= self.count
        if self.lacks_slots(result):
            return
        if is_outside or block not in self.slot_of:
            errors = REFUSALS if is_outside else ("UsageError", "OwnershipError")
            demand(is_refusal(result, errors), "no refusal:", result)
            return
        expect(result, Done())
        self.write(("slot", self.slot_of[block]), operation)

    def on_write_live(self, operation: ops.WriteLive, result: Result) -> None:
        """Write a live state."""
        if self.lacks_slots(result):
            return
        if not 0 <= operation.request < self.rows - 1 or not 0 <= operation.layer < self.layers:
            raise Silent("a live state written where there is none")
        expect(result, Done())
        self.write(("live", operation.request), operation)

    def on_save_live(self, operation: ops.SaveLive, result: Result) -> None:
        """Copy live states into slots (C7)."""
        slots, requests = self.numbers(operation.slots), operation.requests
        if self.lacks_slots(result):
            return
        if len(slots) != len(requests) or not all(0 <= each < self.rows - 1 for each in requests):
            demand(is_refusal(result, REFUSALS), "no refusal:", result)
            return
        if len({*slots}) < len(slots) or {*slots} & self.free_slots():
            raise Silent("a slot that is free, a slot twice")
        expect(result, Done())
        for slot, request in zip(slots, requests, strict=True):
            self.cells["slot", slot] = dict(self.cells["live", request])

    def on_restore_live(self, operation: ops.RestoreLive, result: Result) -> None:
        """Copy a block's state back, if there is one (C7)."""
        (block,) = self.numbers([operation.block])
        if self.lacks_slots(result) or self.refused_outside([block], result):
            return
        if not 0 <= operation.request < self.rows - 1:
            demand(is_refusal(result, REFUSALS), "no refusal:", result)
            return
        expect(result, Number(int(block in self.slot_of)))
        if block in self.slot_of:
            self.cells["live", operation.request] = dict(self.cells["slot", self.slot_of[block]])

    def on_read_states(self, operation: ops.ReadStates, result: Result) -> None:
        """Demand what was written into slots."""
        self.read("slot", self.slots, operation, result)

    def on_read_live(self, operation: ops.ReadLive, result: Result) -> None:
        """Demand the values that were written into live states, and none in the row that has no owner."""
        self.read("live", self.rows, operation, result)

    def read(self, place: str, rows: int, operation: ops.ReadStates | ops.ReadLive, result: Result) -> None:
        """Demand each row bit for bit; what is open stays as it was read (C7)."""
        if not 0 <= operation.layer < max(1, self.layers):
            raise Silent("a layer outside, read")
        if isinstance(result, Unsupported):
            return
        demand(bool(self.slots) and isinstance(result, States), "no states:", result)
        assert isinstance(result, States)
        for part, told, shape, dtype in (
            ("recurrent", result.recurrent, result.recurrent_shape, (result.recurrent_dtype, "ssm_dtype")),
            ("conv", result.conv, result.conv_shape, (result.conv_dtype, "conv_dtype")),
        ):
            expect(shape, (rows, *self.shape[part]))
            expect(dtype[0], "", self.config[dtype[1]])
            expect(len(told), rows)
            for at, value in enumerate(told):
                cell = self.cells[place, at][operation.layer, part]
                height, width = self.shape[part]
                expect(len(value), height * width)
                expect(cell.value, value, None)
                cell.value = value

    # -- all of it -----------------------------------------------------------------------------------------
    def on_reset(self, operation: ops.Reset, result: Result) -> None:
        """Make everything new (C9)."""
        expect(result, Done())
        self.was_reset = True
        self.start()

    def on_inspect(self, operation: ops.Inspect, result: Result) -> None:
        """Demand each view (C1 to C4), and after a reset exactly those of the start (C9)."""
        if isinstance(result, Unsupported):
            return
        demand(isinstance(result, BlockBooks), "no books:", result)
        assert isinstance(result, BlockBooks)
        blocks = range(self.count)
        for view in (result.refs, result.hashes, result.stamps):
            expect(len(view), self.count + 1)  # the dummy's entries are open
        expect(list(result.refs[:-1]), [self.refs[block] for block in blocks])
        expect(list(result.hashes[:-1]), [self.hash_of.get(block, -1) for block in blocks])
        used = [block for block in blocks if self.is_used(block)]
        expect([result.stamps[block] for block in used], [self.stamp[block] for block in used])
        expect(list(result.block_of_hash), sorted((name, block) for block, name in self.hash_of.items()))
        if self.slots:  # C2 and C4 are claimed with `mamba`: what others tell of slots is held against nobody
            block_of = {slot: block for block, slot in self.slot_of.items()}
            by_block = [self.slot_of.get(block, -1) for block in range(self.count + 1)]
            expect(list(result.slot_of_block), by_block)
            expect(list(result.block_of_slot), [block_of.get(slot, -1) for slot in range(self.slots)])
            expect(sorted(result.free_slots), sorted(self.free_slots()))
            expect(list(result.block_of_state), sorted((self.hash_of[block], block) for block in self.named))
        if self.is_new and not self.was_reset:
            self.first_books = result
        if self.is_new and self.first_books:
            expect(result, self.first_books)
