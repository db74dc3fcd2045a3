"""The machine that drives slot allocators, with correct and incorrect calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from pymllm.history import operations as ops
from pymllm.history.operations import Operation, Span
from pymllm.machines.acting import act
from pymllm.machines.pools import PoolMachine, malformed_calls, pick
from pymllm.oracle.models.slots import SlotModel

PICK = (0, 20)
FORMS = (
    "int32",
    "int64",
    "int16",
    "int32 2d",
    "int64 strided",
    "int16 2d",
    "uint8",
    "uint8 strided",
)
"""Forms of index tensors, the last two of which can hold only slots below 256."""


class SlotMachine(PoolMachine):
    """The machine that drives any slot allocator, with pages and slots read from the model."""

    MALFORMED = malformed_calls(
        alloc=("negative size", "float size", "bool size"),
        **dict.fromkeys(
            ("free", "free_swa", "move_swa", "read_halves", "begin_transfer"),
            ("float indices", "bool indices", "bfloat16 indices", "a list", "None"),
        ),
    )

    model: SlotModel

    def begin(self) -> None:
        """Read the claims; misuse is left out unless the adapter claims to refuse it."""
        model = self.model = self.judge.model
        self.page_size = model.page_size
        self.grouped = "groups" in model.claims
        self.is_group_strict = "group_errors" in model.claims
        self.windowed = model.window_pool is not None
        self.checked_window = self.can_refuse and self.windowed
        self.transferring = "transfers" in model.claims
        self.checked_transfers = self.can_refuse and self.transferring
        fits_byte = (model.full.pages + 1) * self.page_size <= 256
        self._forms = FORMS if fits_byte else FORMS[:-2]

    def end(self) -> None:
        """Allocate and free the whole pool, which shows whether all pages are free."""
        if self.model.full.group_open:
            self.do(ops.EndGroup())
        for transfer in [*self.model.transfers]:
            self.do(ops.EndTransfer(transfer))
        for _ in range(2):
            while self.model.pool.free_count:
                self.alloc_all(but=0)
                if self.model.window_pool is not None:
                    self.do(ops.FreeSWA(self._spans(self.model.window_pool.alive)))
            self.do(ops.Free(self._spans(self.held)))
        super().end()

    @property
    def can_begin_group(self) -> bool:
        """Whether a group may be opened, or its refusal tested."""
        return self.grouped and (self.is_group_strict or not self.model.full.group_open)

    @property
    def can_end_group(self) -> bool:
        """Whether a group may be closed, or its refusal tested."""
        return self.grouped and (self.is_group_strict or self.model.full.group_open)

    @property
    def can_transfer(self) -> bool:
        """Whether a transfer can begin."""
        return self.transferring and self.has_held

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self.model.transfers)

    @property
    def held(self) -> list[int]:
        """Pages held by the caller, in order."""
        return sorted(self.model.full.held)

    @property
    def has_held(self) -> bool:
        """Whether the caller holds any page."""
        return bool(self.model.full.held)

    @property
    def has_alive(self) -> bool:
        """Whether any held page has an SWA half."""
        return self.model.window_pool is not None and bool(self.model.window_pool.half)

    @property
    def alive(self) -> list[int]:
        """Full pages with an SWA half, in order."""
        return self.model.window_pool.alive if self.model.window_pool is not None else []

    # -- well-behaved acts ---------------------------------------------------------------------------------
    @act(pages=(0, 3), short=(0, 3), weight=3)
    def alloc(self, pages: int, short: int) -> None:
        """Allocate whole pages, or slightly less."""
        self.do(ops.Alloc(max(0, pages * self.page_size - short % self.page_size)))

    @act(but=(0, 3))
    def alloc_all(self, but: int) -> None:
        """Allocate all free pages, or all except a few."""
        self.do(ops.Alloc(max(0, self.model.pool.free_count - but) * self.page_size))

    @act(extra=(1, 3), then=(0, 2))
    def alloc_too_much(self, extra: int, then: int) -> None:
        """Allocate more than is free, then perhaps less; the order of free pages must not change (X4)."""
        self.do(ops.Alloc(self.model.pool.free_count * self.page_size + extra))
        self._show_order(then)

    @act("has_held", start=PICK, count=(1, 5), naming=(0, 4), form=(0, 7), weight=3)
    def free(self, start: int, count: int, naming: int, form: int) -> None:
        """Free some held pages, named by one or several of their slots."""
        pages = pick(self.held, start, count)
        self.do(ops.Free(self._spans(pages, naming), self._forms[form % len(self._forms)]))

    @act(form=(0, 8))
    def free_nothing(self, form: int) -> None:
        """Free an empty tensor, of an integer dtype or of the default float dtype."""
        self.do(ops.Free((), "float32" if form == 8 else self._forms[form % len(self._forms)]))

    @act()
    def merge(self) -> None:
        """Merge the freed slots."""
        self.do(ops.Merge())

    @act("can_begin_group")
    def begin_group(self) -> None:
        """Open a group, or try to open a second one."""
        self.do(ops.BeginGroup())

    @act("can_end_group")
    def end_group(self) -> None:
        """Close the group, or try to close one that is not open."""
        self.do(ops.EndGroup())

    @act(often=(0, 3))
    def clear(self, often: int) -> None:
        """Clear the allocator in one draw of four, after which it must behave like a new one (X7)."""
        if not often:
            under_way = [*self.model.transfers]
            self.do(ops.Clear())
            if under_way and self.can_refuse:
                self.do(ops.EndTransfer(under_way[0]))

    @act("has_alive", start=PICK, count=(1, 5), naming=(0, 4), form=(0, 7), weight=2)
    def free_swa(self, start: int, count: int, naming: int, form: int) -> None:
        """Free the SWA halves of some pages."""
        pages = pick(self.alive, start, count)
        self.do(ops.FreeSWA(self._spans(pages, naming), self._forms[form % len(self._forms)]))

    @act("has_alive", start=PICK, count=(1, 4), other=PICK, backwards=(0, 1), weight=2)
    def move_swa(self, start: int, count: int, other: int, backwards: int) -> None:
        """Move SWA halves to pages without one, page by page."""
        pairs = list(zip(pick(self.alive, start, count), self._gone(other, count), strict=False))
        source, target = ([self._slots(pair[side]) for pair in pairs] for side in (0, 1))
        shared = [min(len(a), len(b)) for a, b in zip(source, target, strict=True)]
        sides = [
            [slot for slots, count in zip(side, shared, strict=True) for slot in slots[:count]]
            for side in (source, target)
        ]
        self.do(ops.MoveSWA(*(self._name(side[::-1] if backwards else side) for side in sides)))

    @act("windowed", start=PICK, count=(0, 12))
    def read_halves(self, start: int, count: int) -> None:
        """Read the SWA halves of held slots, and perhaps of padding and free slots."""
        held = pick(self.held, start, count)
        everything = Span(0, 0, (self.model.full.pages + 1) * self.page_size)
        self.do(ops.ReadHalves(self._spans(held) if count else (everything,)))

    # -- transfers -----------------------------------------------------------------------------------------
    @act("can_transfer", start=PICK, count=(1, 5), naming=(0, 4), weight=2)
    def begin_transfer(self, start: int, count: int, naming: int) -> None:
        """Begin a transfer of some held pages."""
        self.do(ops.BeginTransfer(self._spans(pick(self.held, start, count), naming)))

    @act("has_transfers", which=PICK, weight=2)
    def end_transfer(self, which: int) -> None:
        """End a transfer, whether or not its pages are still held."""
        self.do(ops.EndTransfer(self._transfer(which)))

    @act("has_transfers", which=PICK, then=(0, 3), weight=2)
    def abort(self, which: int, then: int) -> None:
        """Free all pages of a transfer, and end it at once or after all other pages are allocated."""
        transfer = self._transfer(which)
        pages = self.model.transfers[transfer].pages
        self.do(ops.Free(self._spans([page for page in pages if page in self.model.full.held])))
        if then == 1:
            self.alloc_all(but=0)
            self.do(ops.Alloc(1))
        if then:
            self.do(ops.EndTransfer(transfer))
        if then == 2:
            self.alloc_all(but=0)

    @act("can_transfer", often=(0, 2))
    def transfer_all(self, often: int) -> None:
        """Put all pages in a transfer, in some draws, and free them; none must be left to hand out."""
        if not often:
            self.alloc_all(but=0)
            self.do(ops.BeginTransfer(self._spans(self.held)))
            self.do(ops.Free(self._spans(self.held)))
            self.do(ops.Alloc(1))

    def _transfer(self, which: int) -> int:
        """Return the step that began a transfer under way."""
        return [*self.model.transfers][which % len(self.model.transfers)]

    # -- misuse, where it is refused -----------------------------------------------------------------------
    @act("checked_transfers", start=PICK, count=(0, 3), place=PICK, fault=(0, 6))
    def begin_transfer_wrong(self, start: int, count: int, place: int, fault: int) -> None:
        """Begin a transfer with one incorrect slot among held ones, or end one that has ended."""
        if fault < 6:
            self._spoil(ops.BeginTransfer, self._slots_of(pick(self.held, start, count)), place, fault)
        elif ended := [*self.model.ended]:
            self.do(ops.EndTransfer(ended[place % len(ended)]))

    @act("can_refuse", start=PICK, count=(0, 3), place=PICK, fault=(0, 6), then=(0, 2))
    def free_wrong(self, start: int, count: int, place: int, fault: int, then: int) -> None:
        """Free one incorrect slot among held ones; the whole call must be refused (X1, A5)."""
        good = self._slots_of(pick(self.held, start, count))
        self._spoil(ops.Free, good, place, fault)
        self._show_order(then)

    @act("checked_window", start=PICK, count=(0, 3), place=PICK, fault=(0, 6))
    def free_swa_wrong(self, start: int, count: int, place: int, fault: int) -> None:
        """Free the SWA half of a slot without one, among others; the whole call must be refused."""
        good = self._slots_of(pick(self.alive, start, count))
        if fault < 6:
            self._spoil(ops.FreeSWA, good, place, fault)
        elif gone := self._gone(place, 1):
            self.do(ops.FreeSWA(self._name(good + self._slots_of(gone))))

    @act("checked_window", start=PICK, other=PICK, fault=(0, 5))
    def move_wrong(self, start: int, other: int, fault: int) -> None:
        """Move SWA halves from a slot without a half, to a slot with a half, or in unequal numbers."""
        source = self._slots_of(pick(self.alive, start, 1))
        target = self._slots_of(self._gone(other, 1))
        free = [min(self.model.full.old) * self.page_size] if self.model.full.old else []
        source, target = (
            (source, []),
            (target, target),
            (source, source),
            (free, target[:1]),
            (source[:1], free),
            (source[: self.page_size], target[: self.page_size][::-1]),
        )[fault]
        if not source or (not target and fault):
            return
        if fault == 5 and (self.page_size == 1 or len(source) != len(target)):
            return
        self.do(ops.MoveSWA(self._name(source), self._name(target)))

    @act("checked_window", start=PICK, fault=(0, 2))
    def read_wrong(self, start: int, fault: int) -> None:
        """Read the SWA half of a slot outside the pool, among valid ones."""
        past = (self.model.full.pages + 1) * self.page_size
        outside = (-1, past, past + self.page_size)[fault]
        self.do(ops.ReadHalves((*self._spans(pick(self.held, start, 1)), Span(0, outside, outside + 1))))

    def _show_order(self, pages: int) -> None:
        """Allocate a little, in some draws, to show that a refused or failed call kept the order."""
        if pages:
            self.do(ops.Alloc(min(pages, self.model.pool.free_count) * self.page_size))

    def _spoil(
        self,
        operation: type[ops.Free | ops.FreeSWA | ops.BeginTransfer],
        good: list[int],
        place: int,
        fault: int,
    ) -> None:
        bad = self._bad_slot(fault, good)
        if bad is not None:
            at = place % (len(good) + 1)
            spoiled: Operation = operation(self._name([*good[:at], bad, *good[at:]]))
            self.do(spoiled)

    def _bad_slot(self, fault: int, good: list[int]) -> int | None:
        """Return a slot that must be refused beside ``good`` slots, or ``None`` if all are valid now."""
        size, full = self.page_size, self.model.full
        candidates: Sequence[int] = (
            [page * size for page in sorted([*islice(reversed(full.old), 1), *full.young])[-1:]],
            [page * size + size - 1 for page in sorted(full.pending)[:1]],
            [size - 1],
            [(full.pages + 1) * size],
            [-1],
            good[:1] if size == 1 else [],
            [page * size for page in sorted(full.parked)[:1]],
        )[fault]
        return candidates[0] if candidates else None

    # -- naming --------------------------------------------------------------------------------------------
    def _gone(self, start: int, count: int) -> list[int]:
        """Return some held pages without an SWA half."""
        window = self.model.window_pool
        return pick(window.gone, start, count) if window is not None else []

    def _spans(self, pages: Sequence[int], naming: int = 1) -> tuple[Span, ...]:
        """Return spans for pages, by one slot each, by all slots, backwards, repeated, or in runs."""
        if naming == 0:
            return self._name([slots[page % len(slots)] for page in pages if (slots := self._slots(page))])
        slots = self._slots_of(pages)
        if naming == 2:
            return self._name(slots[::-1])
        if self.page_size == 1 or naming == 1:
            return self._name(slots)
        if naming == 3:
            return self._name(slots + slots[::2])
        ends = [(page + 1) * self.page_size for page in pages]
        return tuple(Span(0, end - 1, end) for end in ends)

    def _slots_of(self, pages: Sequence[int]) -> list[int]:
        if self.page_size == 1:  # an allocation answers all its slots
            return list(pages)
        return [slot for page in pages for slot in self._slots(page)]

    def _slots(self, page: int) -> list[int]:
        """Return the slots of a held page in the order in which its allocation returned them."""
        return self.model.given.given_with_first(range(page * self.page_size, (page + 1) * self.page_size))

    def _name(self, slots: Sequence[int]) -> tuple[Span, ...]:
        return self.model.given.name(slots)
