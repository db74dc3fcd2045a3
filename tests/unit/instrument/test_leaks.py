"""A leak that is planted in a layer is found there; what an allocator keeps for later is none."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator

import pytest

from pymllm.instrument.leaks import Layer, LeakCheck, LeakVerdict, Outcome
from pymllm.instrument.nvml_counters import DeviceUse
from pymllm.instrument.reading import BYTES, Reading
from tests.fake_nvml.machine import GIB, MIB, on_machine, say, users
from tests.unit.instrument.fake_allocator import SEGMENT, FakeAllocator

CONTEXT = 300 * MIB  # what a process has on a device beside its allocator


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """Each checkpoint collects garbage: leave out what was there before, which takes long to walk."""
    gc.freeze()
    yield
    gc.unfreeze()


class Server:
    """A program with slots, an allocator and a device: each epoch takes memory and lets go of it."""

    def __init__(self) -> None:
        self.lost_slots = 0
        self.allocator = FakeAllocator()
        self.beside = CONTEXT

    def epoch(self) -> None:
        self.allocator.allocate(40 * MIB)
        self.allocator.free(40 * MIB)

    def device(self) -> DeviceUse:
        own = Reading(self.allocator.reserved + self.beside, BYTES)
        return DeviceUse(own, own, Reading(0, "processes"))

    def verdict(self, epochs: int = 12, plant: Callable[[], None] = lambda: None) -> LeakVerdict:
        with LeakCheck(
            slots=lambda: self.lost_slots, source=self.allocator, device_memory=self.device
        ) as check:
            for _ in range(epochs):
                self.epoch()
                plant()
                check.checkpoint()
        return check.verdict()

    # -- leaks ---------------------------------------------------------------------------------------------

    def lose_a_slot(self) -> None:
        self.lost_slots += 1

    def keep_a_tensor(self) -> None:
        self.allocator.allocate(1000)

    def pin_a_segment(self) -> None:
        self.allocator.allocate(SEGMENT)
        self.allocator.free(SEGMENT)
        self.allocator.pinned += 1
        self.allocator.reserved += SEGMENT

    def take_beside_the_allocator(self) -> None:
        self.beside += 3 * MIB


PLANTS = {
    Layer.SLOTS: Server.lose_a_slot,
    Layer.LIVE: Server.keep_a_tensor,
    Layer.CACHE: Server.pin_a_segment,
    Layer.DEVICE: Server.take_beside_the_allocator,
}


@pytest.mark.parametrize("layer", Layer)
def test_a_planted_leak_is_caught_and_named(layer: Layer) -> None:
    """One leak, one layer accused, the other three acquitted."""
    server = Server()
    verdict = server.verdict(plant=lambda: PLANTS[layer](server))
    assert [it.layer for it in verdict.leaking] == [layer], str(verdict)
    others = {it.outcome for it in verdict.layers if it.layer is not layer}
    assert others == {Outcome.NO_LEAK}, str(verdict)


def test_leaks_in_all_layers_are_told_apart() -> None:
    """Each has its own slope."""
    server = Server()
    verdict = server.verdict(plant=lambda: [plant(server) for plant in PLANTS.values()] and None)
    assert [it.layer for it in verdict.leaking] == list(Layer), str(verdict)
    slopes = [it.slope.value for it in verdict.leaking if it.slope is not None]
    assert slopes[0] == 1
    assert slopes[1] == 1024
    assert slopes[3] == 3 * MIB


def test_a_program_that_lets_go_does_not_leak() -> None:
    """What comes and goes is not there at rest."""
    verdict = Server().verdict()
    assert {it.outcome for it in verdict.layers} == {Outcome.NO_LEAK}, str(verdict)


def test_what_an_allocator_keeps_for_later_is_no_leak() -> None:
    """A reserve that grows with every epoch goes back when it is asked for: recorded, not accused."""
    server = Server()
    sizes = iter(range(10, 1000, 10))

    def want_more() -> None:
        size = next(sizes) * MIB
        server.allocator.allocate(size)
        server.allocator.free(size)

    with LeakCheck(source=server.allocator, device_memory=server.device) as check:
        for _ in range(14):
            want_more()
            check.checkpoint()
    returned = [it.returned.value for it in check.checkpoints]
    assert returned == [size * MIB for size in range(10, 150, 10)]
    assert check.verdict().leaking == ()
    assert check.verdict().of(Layer.CACHE).outcome is Outcome.NO_LEAK
    assert check.verdict().of(Layer.DEVICE).outcome is Outcome.NO_LEAK


def test_garbage_is_collected_before_a_checkpoint() -> None:
    """A cycle that nobody holds is no memory of the program's; the device is waited for, too."""
    allocator = FakeAllocator()

    class Tensor:
        def __init__(self) -> None:
            self.me = self
            allocator.allocate(512)

        def __del__(self) -> None:
            allocator.free(512)

    gc.disable()
    try:
        with LeakCheck(source=allocator, device_memory=Server().device) as check:
            for _ in range(10):
                Tensor()
                assert check.checkpoint().live.value == 0
    finally:
        gc.enable()
    assert allocator.settled == 10


def test_without_cuda_three_layers_are_unknown() -> None:
    """Slots can be counted anywhere; the rest has its reason."""
    unread = Reading.unknown(BYTES, "no driver")
    nothing = DeviceUse(unread, unread, Reading.unknown("processes", "no driver"))
    allocator = FakeAllocator(missing="built without CUDA")
    with LeakCheck(slots=lambda: 0, source=allocator, device_memory=lambda: nothing) as check:
        for _ in range(10):
            check.checkpoint()
    assert str(check.verdict()).splitlines() == [
        "slots: no leak",
        "live bytes: unknown (built without CUDA)",
        "allocator cache: unknown (built without CUDA)",
        "device: unknown (no driver)",
    ]
    assert allocator.settled == 0


def test_this_process_is_watched_where_nothing_is_given() -> None:
    """Torch and NVML are asked, and have at least a reason."""
    with LeakCheck() as check:
        checkpoint = check.checkpoint()
    assert checkpoint.slots.reason == "nobody said how to count slots; give slots=..."
    for reading in (checkpoint.live, checkpoint.own):
        assert reading.is_known or reading.reason


def test_checkpoints_may_be_epochs_apart() -> None:
    """Growth is per epoch, however many lie between two checkpoints."""
    server = Server()
    with LeakCheck(slots=lambda: server.lost_slots, device_memory=server.device) as check:
        for epoch in range(0, 120, 10):
            server.lost_slots = epoch
            check.checkpoint(at=epoch)
    (leak,) = check.verdict().leaking
    assert leak.slope is not None
    assert leak.slope.value == 1.0
    assert [it.at for it in check.checkpoints[:2]] == [0, 10]


def test_checkpoints_go_forward() -> None:
    """X1: an epoch that is not above the last is refused, and nothing is read for it."""
    read = []
    with LeakCheck(slots=lambda: read.append(1) or 0, device_memory=Server().device) as check:
        assert check.checkpoint().at == 1
        assert check.checkpoint(at=4).at == 4
        assert check.checkpoint().at == 5
        for at in (5, 0.5):
            with pytest.raises(ValueError, match=r"above that of the last checkpoint \(5\)"):
                check.checkpoint(at)
    assert len(read) == len(check.checkpoints) == 3


def test_a_bound_of_no_layer_is_refused() -> None:
    """X1: a bound that was mistyped would silently not count; a layer's own words are its name, too."""
    with pytest.raises(
        ValueError, match=r"bounds has 'tensors', which is no layer; there are 'slots', 'live"
    ):
        LeakCheck(bounds={"tensors": 3})
    lost: list[int] = []
    with LeakCheck(slots=lambda: len(lost), device_memory=Server().device, bounds={"slots": 2}) as check:
        for _ in range(12):
            lost.append(1)
            check.checkpoint()
    assert check.verdict().of(Layer.SLOTS).outcome is Outcome.NO_LEAK


def test_a_bound_may_be_the_callers() -> None:
    """Whoever expects a slot an epoch says so; the other layers keep their bounds."""
    server = Server()
    with LeakCheck(
        slots=lambda: server.lost_slots,
        source=server.allocator,
        device_memory=server.device,
        bounds={Layer.SLOTS: 1.0},
    ) as check:
        for _ in range(10):
            server.lose_a_slot()
            check.checkpoint()
    assert check.verdict().leaking == ()


# -- slots of a real cache -----------------------------------------------------------------------------


def serve(epochs: int, frees_duplicates: bool) -> tuple[LeakVerdict, int]:
    """Prompts with shared beginnings through a `RadixCache` that fills up, and what it holds in the end."""
    # Imported here: the processes that other tests start from this file need no torch.
    from pymllm.mem_cache.base_prefix_cache import RadixKey
    from pymllm.mem_cache.memory_pool import TokenToKVPoolAllocator
    from pymllm.mem_cache.radix_cache import RadixCache

    allocator = TokenToKVPoolAllocator(512, "cpu")
    cache = RadixCache(token_to_kv_pool_allocator=allocator)
    draw = random.Random(2)

    def unowned() -> int:
        return allocator.size - allocator.available_size() - cache.total_size()

    with LeakCheck(slots=unowned, device_memory=Server().device) as check:
        for _ in range(epochs):
            for _ in range(4):
                tokens = [draw.randrange(3) for _ in range(24)]
                if allocator.available_size() < len(tokens):
                    cache.evict(len(tokens))
                slots = allocator.alloc(len(tokens))
                assert slots is not None
                known = cache.insert(RadixKey(tokens), slots).prefix_len
                if frees_duplicates:
                    allocator.free(slots[:known])
            check.checkpoint()
    return check.verdict(), cache.total_size()


def test_a_cache_that_fills_up_is_no_leak_of_slots() -> None:
    """What the cache owns is accounted for, from the first prompt to the last eviction."""
    verdict, held = serve(16, frees_duplicates=True)
    assert verdict.of(Layer.SLOTS).outcome is Outcome.NO_LEAK, str(verdict)
    assert held > 256


def test_duplicates_that_nobody_frees_are_a_leak_of_slots() -> None:
    """The mistake that engines make: what the cache had already is given back to nobody."""
    verdict, _ = serve(16, frees_duplicates=False)
    assert [it.layer for it in verdict.leaking] == [Layer.SLOTS], str(verdict)


# -- through the driver --------------------------------------------------------------------------------


def through_the_driver(beside: Callable[[int], int], mine: bool = True, others: int = 0) -> LeakVerdict:
    """Twelve epochs of a process without torch, on the fake device, where it or a neighbour grows."""
    with LeakCheck() as check:
        for epoch in range(12):
            size = beside(epoch)
            listed = [f"{os.getpid()}:{size}"] if mine else []
            listed += [f"{pid}:{GIB}" for pid in range(1, others + 1)]
            say(used=GIB + size, processes=" ".join(listed))
            check.checkpoint()
        assert users() == 1
    assert users() == 0
    return check.verdict()


@on_machine()
def test_growth_on_the_device_is_seen_through_the_driver() -> None:
    """Memory that is taken beside torch shows only in the driver's list."""
    verdict = through_the_driver(lambda epoch: epoch * 2 * MIB, others=2)
    assert [it.layer for it in verdict.leaking] == [Layer.DEVICE], str(verdict)
    assert "leak of 2.09715e+06 bytes per epoch" in str(verdict)


@on_machine()
def test_a_process_that_cannot_see_itself_is_not_accused() -> None:
    """Inside a container, growth may be anybody's."""
    verdict = through_the_driver(lambda epoch: epoch * 2 * MIB, mine=False, others=1).of(Layer.DEVICE)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "whose is unknown" in str(verdict)


@on_machine()
def test_a_still_device_is_seen_through_the_driver() -> None:
    """Nothing grows, nothing is accused."""
    assert through_the_driver(lambda epoch: MIB).of(Layer.DEVICE).outcome is Outcome.NO_LEAK


# -- on a device ---------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_tensor_kept_on_a_device_is_a_leak_of_live_bytes() -> None:
    """A megabyte kept in each epoch is named; a reserve that grows with every epoch is not."""
    import torch

    kept = []
    torch.zeros(1, device="cuda")
    with LeakCheck(device="cuda") as sound, LeakCheck(device="cuda") as leaking:
        for epoch in range(12):
            torch.empty((epoch + 1) * 16 * MIB, dtype=torch.uint8, device="cuda")
            sound.checkpoint()
        for _ in range(12):
            kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
            leaking.checkpoint()
    assert sound.verdict().leaking == (), str(sound.verdict())
    assert sound.verdict().of(Layer.LIVE).outcome is Outcome.NO_LEAK
    assert Layer.LIVE in [it.layer for it in leaking.verdict().leaking], str(leaking.verdict())
    assert Layer.DEVICE not in [it.layer for it in leaking.verdict().leaking], str(leaking.verdict())
