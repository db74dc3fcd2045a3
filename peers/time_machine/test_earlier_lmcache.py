"""The adapters of LMCache's earlier memory, over an allocator of our own that is called alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from peers.time_machine import earlier_lmcache
from peers.time_machine.earlier_lmcache import EarlierChunks, OnePin, Pins
from pymllm.errors import InvariantViolation
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.slots import SlotMachine


class Memory:
    """An object in memory, which its references and pins keep."""

    COUNTS_PINS: ClassVar[bool] = True
    UNPIN_FREES: ClassVar[bool] = True

    def __init__(self, address: int, parent_allocator: Any) -> None:
        self.meta = SimpleNamespace(address=address, ref_count=1, pin_count=0)
        self.parent, self.valid = parent_allocator, True

    def is_valid(self) -> bool:
        return self.valid

    def ref_count_down(self) -> None:
        self.meta.ref_count -= 1
        self.end()

    def ref_count_up(self) -> None:
        self.meta.ref_count += 1

    def pin(self) -> None:
        self.meta.pin_count = self.meta.pin_count + 1 if self.COUNTS_PINS else 1

    def unpin(self) -> None:
        self.meta.pin_count = self.meta.pin_count - 1 if self.COUNTS_PINS else 0
        if self.UNPIN_FREES:
            self.end()

    def end(self) -> None:
        if self.meta.ref_count <= 0 and self.meta.pin_count <= 0 and self.valid:
            self.parent.free(self)


class UncountedPins(Memory):
    """The first unpin lifts every pin."""

    COUNTS_PINS: ClassVar[bool] = False


class IdleUnpins(Memory):
    """The last pin frees nothing."""

    UNPIN_FREES: ClassVar[bool] = False


class Allocator:
    """A list of free chunks, whose batches lie side by side."""

    MADE: ClassVar[type[Memory]] = Memory
    FREES_NOTHING: ClassVar[bool] = True

    def __init__(self, buffer: Any, align: int) -> None:
        self.align = align
        self.free_addresses = list(range(0, len(buffer), align))

    @property
    def explicit_list(self) -> list[Any]:
        return [SimpleNamespace(start=address, size=self.align) for address in self.free_addresses]

    def allocate(self, shape: Any, dtype: Any, parent_allocator: Any = None) -> Memory | None:
        assert shape.numel() * dtype.itemsize == self.align
        if not self.free_addresses:
            return None
        return self.MADE(self.free_addresses.pop(0), parent_allocator)

    def batched_allocate(
        self, shape: Any, dtype: Any, batch_size: int, parent_allocator: Any = None
    ) -> list[Memory] | None:
        assert shape.numel() * dtype.itemsize == self.align
        for first in self.free_addresses:
            batch = [first + number * self.align for number in range(batch_size)]
            if set(batch) <= set(self.free_addresses):
                self.free_addresses = [it for it in self.free_addresses if it not in batch]
                return [self.MADE(address, parent_allocator) for address in batch]
        return None

    def free(self, memory: Memory) -> None:
        memory.valid = False
        self.free_addresses = sorted([*self.free_addresses, memory.meta.address])

    def batched_free(self, memories: list[Memory]) -> None:
        if not self.FREES_NOTHING:
            assert memories[0].valid
        for memory in memories:
            self.free(memory)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the adapters find an allocator of ours."""

    def install(**parts: Any) -> None:
        made = type("It", (Allocator,), parts)
        module = SimpleNamespace(TensorMemoryObj=made.MADE, TensorMemoryAllocator=made)
        monkeypatch.setattr(earlier_lmcache, "load", lambda: module)

    return install


def search(machine: type[Any], adapter: type[Any], runs: int, steps: int) -> None:
    """Play programs on every configuration."""
    name = f"{adapter.__module__}:{adapter.__name__}"
    for config in adapter.CONFIGURATIONS:
        made = make_machine(machine, name, dict(config))
        for seed in range(runs):
            assert drive(made, seed, steps).passed_over is None


@pytest.mark.parametrize("adapter", [OnePin, Pins])
def test_sound_pins_break_no_law(adapter: type[Pins], release: Any) -> None:
    """Whichever goes last, a pin or a reference."""
    release()
    search(BlockMachine, adapter, 3, 60)


def test_one_pin_needs_no_count(release: Any) -> None:
    """A caller that pins once sees nothing of the first bug of 0.3.2."""
    release(MADE=UncountedPins)
    search(BlockMachine, OnePin, 3, 60)


@pytest.mark.parametrize(
    ("adapter", "memory"),
    [(OnePin, IdleUnpins), (Pins, UncountedPins)],
    ids=lambda value: value.__name__,
)
def test_pins_that_do_not_keep_or_free_are_found(
    adapter: type[Pins], memory: type[Memory], release: Any
) -> None:
    """Both bugs of 0.3.2."""
    release(MADE=memory)
    with pytest.raises(InvariantViolation) as found:
        search(BlockMachine, adapter, 20, 60)
    assert found.value.law == "C1"


def test_sound_chunks_break_no_law(release: Any) -> None:
    """Though a batch may find no place where enough is free, in pieces."""
    release()
    search(SlotMachine, EarlierChunks, 5, 60)


def test_a_free_of_nothing_is_found(release: Any) -> None:
    """The bug of releases until 0.3.12 fails in the first step."""
    release(FREES_NOTHING=False)
    with pytest.raises(InvariantViolation) as found:
        search(SlotMachine, EarlierChunks, 20, 60)
    assert found.value.law == "A2"


def test_what_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without LMCache the error says so."""
    monkeypatch.setattr(earlier_lmcache.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^lmcache is not installed; tox -e peers installs it$"):
        Pins("it", Pins.CONFIGURATIONS[0])
