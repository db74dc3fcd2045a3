"""Drive a slot allocator beside its model, and compare everything after every operation.

`allocator_machine` makes one Hypothesis machine class per configuration. Rules take small integers
only, so that `drive` can run them from a seeded generator as well, faster and the same everywhere.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from allocator_model import PageModel, WindowModel
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pymllm.errors import OwnershipError
from pymllm.invariants.swa_allocator import check_swa_allocator
from pymllm.invariants.token_allocator import check_token_allocator
from pymllm.mem_cache.slot_store import StoreKind
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator

PAGES = 12
SWA_PAGES = 8
PICK = (0, 20)
DTYPES = (torch.int32, torch.int64, torch.int16, torch.uint8)
BAD_INDICES = (
    lambda: torch.tensor([1.0]),
    lambda: torch.tensor([True]),
    lambda: torch.tensor([1.0], dtype=torch.bfloat16),
    lambda: [1],
    lambda: None,
)

SITUATIONS = frozenset(
    {
        "the pool is exhausted",
        "an alloc fails and the order stays",
        "an alloc fails with pages pending",
        "need merges",
        "freed pages wait while older ones suffice",
        "an explicit merge",
        "nothing is asked for",
        "nothing is freed",
        "part of an allocation is freed",
        "a bad argument is refused",
        "a group closes",
        "a group in a group is refused",
        "an end without a group is refused",
        "a clear takes everything from its holders",
        "a clear closes a group",
    }
)
CHECKED_SITUATIONS = frozenset(
    {
        "a double free is refused",
        "a double free inside a group is refused",
        "padding is refused",
        "an index past the end is refused",
        "a negative index is refused",
        "good slots stay with a bad one",
    }
)
SINGLE_SITUATIONS = frozenset({"a slot named twice is refused"})  # page size 1, checked
PAGED_SITUATIONS = frozenset({"one slot frees its page", "slots of a page are named twice"})
WINDOW_SITUATIONS = frozenset(
    {
        "the window pool runs out first",
        "the full pool runs out first",
        "halves go before their slots",
        "halves go inside a group",
        "a free returns what is left of both",
        "halves move",
        "halves move inside a group",
        "a move of unequal lengths is refused",
    }
)
CHECKED_WINDOW_SITUATIONS = frozenset(
    {
        "a half that is gone is refused",
        "a move from a slot without a half is refused",
        "a move to a slot with a half is refused",
        "a move from a free slot is refused",
    }
)
CHECKED_PAGED_WINDOW_SITUATIONS = frozenset({"a move across pages is refused"})


@dataclass(frozen=True)
class AllocatorConfig:
    """One way to build an allocator.

    Attributes
    ----------
    window : bool
        `SWATokenToKVPoolAllocator` instead of `TokenToKVPoolAllocator`.
    store, page_size, need_sort, check_ownership, device
        As the constructors take them.
    """

    window: bool = False
    store: StoreKind = "host"
    page_size: int = 1
    need_sort: bool = True
    check_ownership: bool = True
    device: str = "cpu"

    @property
    def name(self) -> str:
        parts = ["swa" if self.window else "token", self.store, f"page{self.page_size}"]
        parts += [] if self.need_sort else ["unsorted"]
        parts += [] if self.check_ownership else ["unchecked"]
        return "-".join(parts)

    def build(self) -> Any:
        sizes = [PAGES * self.page_size] + [SWA_PAGES * self.page_size] * self.window
        kind = SWATokenToKVPoolAllocator if self.window else TokenToKVPoolAllocator
        return kind(
            *sizes,
            device=self.device,
            page_size=self.page_size,
            need_sort=self.need_sort,
            check_ownership=self.check_ownership,
            store=self.store,
        )

    @property
    def situations(self) -> frozenset[str]:
        """What a long run of this configuration must reach."""
        single = self.page_size == 1
        return frozenset().union(
            SITUATIONS,
            CHECKED_SITUATIONS if self.check_ownership else (),
            SINGLE_SITUATIONS if self.check_ownership and single else (),
            () if single else PAGED_SITUATIONS,
            WINDOW_SITUATIONS if self.window else (),
            CHECKED_WINDOW_SITUATIONS if self.window and self.check_ownership else (),
            CHECKED_PAGED_WINDOW_SITUATIONS if self.window and self.check_ownership and not single else (),
        )


CONFIGURATIONS = [
    AllocatorConfig(window, store, page_size, need_sort, check)
    for window, store, page_size, (need_sort, check) in itertools.product(
        (False, True), ("host", "device"), (1, 4), ((True, True), (False, True), (True, False))
    )
]


def act(needs: str | None = None, **ranges: tuple[int, int]) -> Callable[[Callable[..., None]], Any]:
    """Make a method a rule whose arguments are integers in the given closed ranges.

    ``needs`` names an attribute of the machine that must be true for the rule to make sense.
    """

    def mark(method: Callable[..., None]) -> Any:
        made = rule(**{name: st.integers(low, high) for name, (low, high) in ranges.items()})(method)
        if needs is not None:
            made = precondition(lambda machine: bool(getattr(machine, needs)))(made)
        made.act_needs, made.act_ranges = needs, ranges
        return made

    return mark


class AllocatorMachine(RuleBasedStateMachine):
    """What callers do with a `TokenToKVPoolAllocator`, well-behaved and not."""

    CONFIG: ClassVar[AllocatorConfig] = AllocatorConfig()

    def __init__(self) -> None:
        super().__init__()
        self.reached: Counter[str] = Counter()
        self.page_size = self.CONFIG.page_size
        self.checked = self.CONFIG.check_ownership
        self.allocator = self.CONFIG.build()
        self._make_model()
        self._verify()

    def _make_model(self) -> None:
        self.full = PageModel(PAGES)

    @property
    def held(self) -> list[int]:
        """Pages in the hands of callers, in order."""
        return sorted(self.full.held)

    # -- rules -------------------------------------------------------------------------------

    @act(pages=(0, 5), short=(0, 3))
    def alloc(self, pages: int, short: int) -> None:
        """Allocate whole pages, or a little less."""
        self._alloc(max(0, pages * self.page_size - short % self.page_size))

    @act()
    def alloc_all(self) -> None:
        """Allocate all that is free."""
        self._alloc(self._available() * self.page_size)

    @act(extra=(1, 3))
    def alloc_too_much(self, extra: int) -> None:
        """Ask for more than there is: `None`, and the order of what comes next stays (X4)."""
        before = drained(self.allocator)
        assert self.allocator.alloc(self._available() * self.page_size + extra) is None
        assert drained(self.allocator) == before, "X4: a failed alloc changed what is handed out next"
        self.reached["an alloc fails and the order stays"] += 1
        if self.full.pending:
            self.reached["an alloc fails with pages pending"] += 1
        self._verify()

    @act("held", start=PICK, count=(1, 5), naming=(0, 3), style=(0, 7))
    def free(self, start: int, count: int, naming: int, style: int) -> None:
        """Free some pages that are held, named in some way."""
        pages = pick(self.held, start, count)
        self.allocator.free(self._indices(self._name(pages, naming), style))
        self._give(pages)
        self.reached["part of an allocation is freed"] += 1
        self._verify()

    @act(style=(0, 7))
    def free_nothing(self, style: int) -> None:
        """Free an empty tensor: of integers, or the float one that ``torch.tensor([])`` makes."""
        self.allocator.free(self._indices([], style) if style else torch.tensor([]))
        self.reached["nothing is freed"] += 1
        self._verify()

    @act("checked", start=PICK, count=(0, 3), place=PICK, fault=(0, 5), style=(0, 1))
    def free_wrong(self, start: int, count: int, place: int, fault: int, style: int) -> None:
        """Free one slot that is nobody's among others that are: refused, all of it (X1, A5)."""
        self._refused(self.allocator.free, self.held, start, count, place, fault, style)

    @act(fault=(0, 7))
    def bad_argument(self, fault: int) -> None:
        """Pass what is no number or no tensor of integers."""
        if fault < len(BAD_INDICES):
            with pytest.raises(TypeError, match="indices must be"):
                self.allocator.free(BAD_INDICES[fault]())
        else:
            with pytest.raises((TypeError, ValueError), match="need_size must be"):
                self.allocator.alloc((-1, 1.0, True)[fault - len(BAD_INDICES)])
        self.reached["a bad argument is refused"] += 1
        self._verify()

    @act()
    def merge(self) -> None:
        """Merge by request."""
        if self.full.young:
            self.reached["an explicit merge"] += 1
        self.allocator.merge_and_sort_free()
        self._merge()
        self._verify()

    @act()
    def begin_group(self) -> None:
        """Open a group, or try to open a second one."""
        if self.full.group_open:
            with pytest.raises(RuntimeError, match="open already"):
                self.allocator.free_group_begin()
            self.reached["a group in a group is refused"] += 1
        else:
            self.allocator.free_group_begin()
            self._open_group()
        self._verify()

    @act()
    def end_group(self) -> None:
        """Close the group, or try to close one that is not open."""
        if self.full.group_open:
            if self.full.pending:
                self.reached["a group closes"] += 1
            self.allocator.free_group_end()
            self._close_group()
        else:
            with pytest.raises(RuntimeError, match="no free group is open"):
                self.allocator.free_group_end()
            self.reached["an end without a group is refused"] += 1
        self._verify()

    @act(often=(0, 3))
    def clear(self, often: int) -> None:
        """Clear, one time in four: what is left behaves like a new allocator (X7)."""
        if often:
            return
        if self.full.held:
            self.reached["a clear takes everything from its holders"] += 1
        if self.full.group_open:
            self.reached["a clear closes a group"] += 1
        self.allocator.clear()
        self._clear()
        assert drained(self.allocator) == drained(self.CONFIG.build()), "X7: not like new"
        self._verify()

    # -- the model's side ----------------------------------------------------------------------

    def _available(self) -> int:
        return self.full.free_count

    def _give(self, pages: list[int]) -> None:
        self.full.give(pages)

    def _merge(self) -> None:
        self.full.merge()

    def _open_group(self) -> None:
        self.full.group_open = True

    def _close_group(self) -> None:
        self.full.end_group()

    def _clear(self) -> None:
        self.full.clear()

    def _take(self, pages: list[int]) -> None:
        """Compare the pages handed out with what the model expects, and take them."""
        take_checked(self.full, pages, self.CONFIG.need_sort)

    # -- helpers -------------------------------------------------------------------------------

    def _alloc(self, count: int) -> None:
        wanted = -(-count // self.page_size)
        slots = self.allocator.alloc(count)
        if wanted > self._available():
            assert slots is None, f"A3: {count} slots out of {self._available()} pages"
        else:
            assert slots.dtype == torch.int32, "allocators hand out int32"
            assert slots.shape == (count,)
            assert slots.device == self.allocator.device
            self._note_alloc(wanted)
            numbers = slots.tolist()
            pages = [slot // self.page_size for slot in numbers[:: self.page_size]]
            assert numbers == self._name(pages, 1)[:count], "A3: not whole pages, in order"
            self._take(pages)
        self._verify()

    def _note_alloc(self, wanted: int) -> None:
        if not wanted:
            self.reached["nothing is asked for"] += 1
        elif self.full.young:
            merges = self.full.needs_merge(wanted)
            self.reached["need merges" if merges else "freed pages wait while older ones suffice"] += 1
        if wanted == self._available():
            self.reached["the pool is exhausted"] += 1

    def _name(self, pages: Sequence[int], naming: int) -> list[int]:
        """Name pages by their slots: by one each, all, all backwards, or all twice where that is fine."""
        size = self.page_size
        if naming == 0:
            self.reached["one slot frees its page"] += bool(size > 1 and pages)
            return [page * size + page % size for page in pages]
        slots = [page * size + offset for page in pages for offset in range(size)]
        if naming == 2:
            return slots[::-1]
        if naming == 3 and size > 1:
            self.reached["slots of a page are named twice"] += bool(pages)
            return slots + slots[::2]
        return slots

    def _indices(self, slots: list[int], style: int) -> torch.Tensor:
        """Return slots in one of four dtypes, flat or with two dimensions."""
        indices = torch.tensor(slots, dtype=DTYPES[style % 4], device=self.CONFIG.device)
        return indices.reshape(-1, 2) if style >= 4 and len(slots) % 2 == 0 else indices

    def _bad_slot(self, fault: int, good: list[int]) -> tuple[str, int] | None:
        """Return a name for the fault and a slot that must be refused beside ``good`` slots."""
        size = self.page_size
        free, pending = sorted(self.full.old | self.full.young), sorted(self.full.pending)
        faults = (
            ("a double free is refused", [page * size for page in free[-1:]]),
            ("a double free inside a group is refused", [page * size + size - 1 for page in pending[:1]]),
            ("padding is refused", [size - 1]),
            ("an index past the end is refused", [(PAGES + 1) * size]),
            ("a negative index is refused", [-1]),
            ("a slot named twice is refused", good[:1] if size == 1 else []),
        )
        name, slots = faults[fault]
        return (name, slots[0]) if slots else None

    def _refused(
        self,
        method: Callable[[torch.Tensor], None],
        good: list[int],
        start: int,
        count: int,
        place: int,
        fault: int,
        style: int,
    ) -> None:
        """Call ``method`` with one bad slot among good ones; `_verify` sees that nothing changed."""
        slots = self._name(pick(good, start, count), 1) if count else []
        bad = self._bad_slot(fault, slots)
        if bad is None:
            return
        name, slot = bad
        slots.insert(place % (len(slots) + 1), slot)
        with pytest.raises(OwnershipError, match=rf"slot {slot}\b"):
            method(self._indices(slots, style))
        self.reached[name] += 1
        self.reached["good slots stay with a bad one"] += len(slots) > 1
        self._verify()

    def _verify(self) -> None:
        """Compare every answer of the allocator with the model, then walk what it keeps."""
        assert self.allocator.available_size() == self._available() * self.page_size, "A2"
        outside = 3
        slots = list(range(-outside, (PAGES + 1) * self.page_size + outside))
        told = self.allocator.is_handed_out(torch.tensor(slots, device=self.CONFIG.device))
        assert told.tolist() == [slot // self.page_size in self.full.held for slot in slots], "A2"
        self._check_invariants()

    def _check_invariants(self) -> None:
        check_token_allocator(self.allocator)


class WindowAllocatorMachine(AllocatorMachine):
    """What callers do with an `SWATokenToKVPoolAllocator`, well-behaved and not."""

    def _make_model(self) -> None:
        self.model = WindowModel(PAGES, SWA_PAGES)
        self.full, self.swa = self.model.full, self.model.swa

    @property
    def alive(self) -> list[int]:
        """Full pages with a half."""
        return self.model.alive

    # -- rules -------------------------------------------------------------------------------

    @act("alive", start=PICK, count=(1, 5), naming=(0, 3), style=(0, 7))
    def free_swa(self, start: int, count: int, naming: int, style: int) -> None:
        """Free the halves of some pages that have them."""
        pages = pick(self.alive, start, count)
        self.allocator.free_swa(self._indices(self._name(pages, naming), style))
        self.model.give_halves(pages)
        self.reached["halves go before their slots"] += 1
        self.reached["halves go inside a group"] += self.full.group_open
        self._verify()

    @act("checked", start=PICK, count=(0, 3), place=PICK, fault=(0, 6), style=(0, 1))
    def free_swa_wrong(self, start: int, count: int, place: int, fault: int, style: int) -> None:
        """Free the half of one slot that has none among others that have: refused, all of it."""
        if fault < 6:
            self._refused(self.allocator.free_swa, self.alive, start, count, place, fault, style)
        elif self.model.gone:
            slots = self._name([*pick(self.alive, start, count), pick(self.model.gone, place, 1)[0]], 1)
            with pytest.raises(OwnershipError, match="has no SWA half"):
                self.allocator.free_swa(self._indices(slots, style))
            self.reached["a half that is gone is refused"] += 1
            self._verify()

    @act("alive", start=PICK, count=(1, 4), other=PICK, naming=(0, 3), style=(0, 7))
    def move_swa(self, start: int, count: int, other: int, naming: int, style: int) -> None:
        """Move halves to pages that have none."""
        source, target = pick(self.alive, start, count), pick(self.model.gone, other, count)
        pairs = list(zip(source, target, strict=False))
        source, target = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if naming == 0:
            naming = 2  # one slot per page is in another place of each page
        self.allocator.move_swa(
            *(self._indices(self._name(side, naming), style) for side in (source, target))
        )
        self.model.move(source, target)
        self.reached["halves move"] += bool(pairs)
        self.reached["halves move inside a group"] += bool(pairs) and self.full.group_open
        self._verify()

    @act("alive", start=PICK, other=PICK, fault=(0, 4))
    def move_wrong(self, start: int, other: int, fault: int) -> None:
        """Move halves from where none is, to where one is, or without a partner."""
        source, target = pick(self.alive, start, 1), pick(self.model.gone, other, 1)
        if fault == 0:
            self._bad_move(source, [], ValueError, "a move of unequal lengths is refused")
        elif not self.checked or not target:
            return
        elif fault == 1:
            self._bad_move(target, target, OwnershipError, "a move from a slot without a half is refused")
        elif fault == 2:
            self._bad_move(source, source, OwnershipError, "a move to a slot with a half is refused")
        elif fault == 3 and self.full.old:
            free = [min(self.full.old)]
            self._bad_move(free, target, OwnershipError, "a move from a free slot is refused")
        elif self.page_size > 1:
            slots = self._indices(self._name(source, 1), 0)
            with pytest.raises(ValueError, match="do not pair"):
                self.allocator.move_swa(slots, self._indices(self._name(target, 2), 0))
            self.reached["a move across pages is refused"] += 1
        self._verify()

    # -- the model's side ----------------------------------------------------------------------

    def _available(self) -> int:
        return min(self.full.free_count, self.swa.free_count)

    def _give(self, pages: list[int]) -> None:
        self.reached["a free returns what is left of both"] += bool(set(pages) & set(self.model.gone))
        self.model.give(pages)

    def _merge(self) -> None:
        self.full.merge()
        self.swa.merge()

    def _open_group(self) -> None:
        self.full.group_open = self.swa.group_open = True

    def _close_group(self) -> None:
        self.full.end_group()
        self.swa.end_group()

    def _clear(self) -> None:
        self.model.clear()

    def _take(self, pages: list[int]) -> None:
        first = torch.tensor([page * self.page_size for page in pages], dtype=torch.int64)
        halves = [slot // self.page_size for slot in self.allocator.translate_to_swa(first).tolist()]
        take_checked(self.full, pages, self.CONFIG.need_sort)
        take_checked(self.swa, halves, self.CONFIG.need_sort)
        self.model.half.update(zip(pages, halves, strict=True))

    # -- helpers -------------------------------------------------------------------------------

    def _note_alloc(self, wanted: int) -> None:
        super()._note_alloc(wanted)
        if wanted == self._available() and self.full.free_count != self.swa.free_count:
            window_is_less = self.swa.free_count < self.full.free_count
            self.reached[f"the {'window' if window_is_less else 'full'} pool runs out first"] += 1

    def _bad_move(self, source: list[int], target: list[int], error: type[Exception], name: str) -> None:
        with pytest.raises(error):
            self.allocator.move_swa(*(self._indices(self._name(side, 1), 0) for side in (source, target)))
        self.reached[name] += 1

    def _verify(self) -> None:
        super()._verify()
        assert self.allocator.full_available_size() == self.full.free_count * self.page_size, "A7"
        assert self.allocator.swa_available_size() == self.swa.free_count * self.page_size, "A7"
        slots = torch.arange((PAGES + 1) * self.page_size, device=self.CONFIG.device)
        told = self.allocator.translate_to_swa(slots.reshape(PAGES + 1, -1))
        expected = [
            [half * self.page_size + offset if half else 0 for offset in range(self.page_size)]
            for half in (self.model.half.get(page, 0) for page in range(PAGES + 1))
        ]
        assert told.dtype == torch.int32
        assert told.tolist() == expected, "A7: another half than was given"

    def _check_invariants(self) -> None:
        check_swa_allocator(self.allocator)


def take_checked(model: PageModel, pages: list[int], is_sorted: bool) -> None:
    """Compare pages handed out with the exact expectation where there is one, and take them."""
    if is_sorted:
        assert pages == model.lowest(len(pages)), "A4: not the lowest of the pages whose turn it is"
    model.take(pages)


def pick(pages: list[int], start: int, count: int) -> list[int]:
    """Return up to ``count`` distinct ones, from somewhere on, round the end."""
    turned = [pages[(start + place) % len(pages)] for place in range(min(count, len(pages)))]
    return turned if start % 2 else turned[::-1]


def drained(allocator: Any) -> list[int]:
    """Return what the allocator would hand out, page by page, until it has no more."""
    copied = copy.deepcopy(allocator)
    taken = iter(lambda: copied.alloc(copied.page_size), None)
    return [slot for slots in taken for slot in slots.tolist()]


def allocator_machine(config: AllocatorConfig) -> type[AllocatorMachine]:
    """Return the machine class of a configuration, under a name of its own."""
    base = WindowAllocatorMachine if config.window else AllocatorMachine
    return type(f"{base.__name__}_{config.name.replace('-', '_')}", (base,), {"CONFIG": config})


def drive(machine_class: type[AllocatorMachine], seed: int, steps: int) -> AllocatorMachine:
    """Run a machine's rules from a seeded generator; the run is the same everywhere."""
    source = random.Random(seed)
    machine = machine_class()
    names = sorted(name for name in dir(machine_class) if hasattr(getattr(machine_class, name), "act_ranges"))
    acts = {name: getattr(machine, name) for name in names}
    for _ in range(steps):
        ready = [name for name in names if not acts[name].act_needs or getattr(machine, acts[name].act_needs)]
        chosen = acts[source.choice(ready)]
        chosen(**{name: source.randint(*bounds) for name, bounds in chosen.act_ranges.items()})
    return machine
