"""A leak is accused in its layer, and nothing else; what an allocator keeps for later is none."""

from __future__ import annotations

import gc
import json
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.instrument.leaks import (
    Checkpoint,
    Layer,
    LeakCheck,
    LeakVerdict,
    Outcome,
    judge_leaks,
)
from pymllm.instrument.nvml_counters import DeviceUse
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.slope import Slope, estimate_slope
from tests.fake_nvml.machine import GIB, MIB, on_machine, say, users
from tests.unit.instrument.fake_allocator import SEGMENT, FakeAllocator

FIELDS = {
    Layer.SLOTS: "slots",
    Layer.LIVE: "live",
    Layer.CACHE: "cache",
    Layer.POOLS: "pools",
    Layer.DEVICE: "own",
    Layer.PINNED: "pinned",
}
STILL = Checkpoint(
    at=0.0,
    slots=Reading(3, "slots"),
    live=Reading(5 * MIB, BYTES),
    cache=Reading(MIB, BYTES),
    returned=Reading(0, BYTES),
    own=Reading(300 * MIB, BYTES),
    device=Reading(400 * MIB, BYTES),
    others=Reading(0, "processes"),
    pools=Reading(2 * MIB, BYTES),
    pinned=Reading(4 * MIB, BYTES),
)


def course(field: str, values: Sequence[float]) -> list[Checkpoint]:
    """Checkpoints in which one field takes these values and all others stay."""
    unit = getattr(STILL, field).unit
    return [
        replace(STILL, at=float(at), **{field: Reading(round(value), unit)})
        for at, value in enumerate(values, 1)
    ]


def outcomes(verdict: LeakVerdict) -> dict[Layer, Outcome]:
    return {it.layer: it.outcome for it in verdict.layers}


def test_a_still_program_leaks_nowhere() -> None:
    """Ten checkpoints are enough to say so."""
    verdict = judge_leaks(course("slots", [3] * 10))
    assert set(outcomes(verdict).values()) == {Outcome.NO_LEAK}
    assert verdict.leaking == ()
    assert str(verdict).splitlines()[0] == "slots: no leak"
    assert (
        str(verdict).splitlines()[4] == "device: no leak (growth of up to 262,144 bytes per epoch is allowed)"
    )


@pytest.mark.parametrize("checkpoints", range(10))
def test_too_few_checkpoints_are_no_verdict(checkpoints: int) -> None:
    """Growth that nobody can be sure of is not called anything."""
    verdict = judge_leaks(course("slots", range(checkpoints)))
    assert set(outcomes(verdict).values()) == {Outcome.UNKNOWN}
    assert "too few checkpoints: " in str(verdict.layers[0])
    assert verdict.checkpoints == checkpoints


FLAT: dict[str, Callable[[int], list[float]]] = {
    "a first epoch that brings everything": lambda n: [0.0] + [9e6] * (n - 1),
    "a warming up that ends": lambda n: [min(at, n // 5) * 3e6 for at in range(n)],
    "a sawtooth": lambda n: [at % 5 * 1e6 for at in range(n)],
    "one late collection": lambda n: [5e6 if at == n // 2 else 0.0 for at in range(n)],
    "memory that is given back": lambda n: [(n - at) * 4e6 for at in range(n)],
    "a slow fill that saturates": lambda n: [2e7 * (1 - 0.6**at) for at in range(n)],
    "a step in the middle": lambda n: [0.0 if at < n // 2 else 4e6 for at in range(n)],
    "growth that ended": lambda n: [min(at, n // 2) * 4e6 for at in range(n)],
}


@pytest.mark.parametrize("checkpoints", [10, 16, 40, 100])
@pytest.mark.parametrize("shape", FLAT)
@pytest.mark.parametrize("layer", Layer)
def test_what_does_not_go_on_growing_is_not_accused(layer: Layer, shape: str, checkpoints: int) -> None:
    """A course that fills up, steps, saws or comes back is no leak; at worst the verdict is open."""
    verdict = judge_leaks(course(FIELDS[layer], FLAT[shape](checkpoints)))
    assert outcomes(verdict)[layer] is not Outcome.LEAK


def test_noise_is_accused_at_most_as_often_as_promised() -> None:
    """Of 500 layers that only flicker, one may be accused at the confidence of 99.8 %."""
    draw = random.Random(11)
    accused = 0
    for _ in range(500):
        values = [1e9 + draw.gauss(0, 1e8) for _ in range(14)]
        accused += judge_leaks(course("live", values)).of(Layer.LIVE).outcome is Outcome.LEAK
    assert accused <= 3


def test_a_level_that_wanders_is_hardly_ever_accused() -> None:
    """Each checkpoint begins where the last one ended, up or down: of 300, two may look like a leak."""
    draw = random.Random(13)
    accused = 0
    for _ in range(300):
        level = [1e9]
        for _ in range(29):
            level.append(level[-1] + draw.gauss(0, 1e7))
        accused += judge_leaks(course("live", level)).of(Layer.LIVE).outcome is Outcome.LEAK
    assert accused <= 2


def flickering(seed: int) -> list[float]:
    draw = random.Random(seed)
    return [300 * MIB + at * MIB + draw.gauss(0, MIB) for at in range(60)]


def wild(values: list[float]) -> list[float]:
    """One checkpoint met memory by chance, which drowns the mean step, but not the steps' direction."""
    return [*values[:-10], values[-10] + 1e9, *values[-9:]]


LEAK, NO_LEAK, UNKNOWN = Outcome.LEAK, Outcome.NO_LEAK, Outcome.UNKNOWN
# What a field reads at each checkpoint, and what may be said of its layer.
COURSES: dict[str, tuple[str, Sequence[float], set[Outcome]]] = {
    "what came in the first quarter": ("live", FLAT["a warming up that ends"](40), {NO_LEAK}),
    "what came with the first epoch": ("live", FLAT["a first epoch that brings everything"](40), {NO_LEAK}),
    "growth that ended long ago": ("live", [min(at, 12) * 4e6 for at in range(40)], {NO_LEAK}),
    "a wild checkpoint": ("live", wild([512.0 * at for at in range(24)]), {LEAK}),
    "a wild one where little grows": ("live", wild([512.0 * (at // 4) for at in range(72)]), {LEAK}),
    "a megabyte an epoch in such noise": ("own", flickering(5), {LEAK}),
    "a slot in three of a dozen epochs": ("slots", [at // 3 for at in range(12)], {LEAK, UNKNOWN}),
    "a slot in three of thirty epochs": ("slots", [at // 3 for at in range(30)], {LEAK}),
    **{
        f"a leak that began after {start}": (
            ("live", [512 * max(0, at - start) for at in range(40)], {LEAK, UNKNOWN})
        )
        for start in (15, 22, 30)
    },
    "what was given back at first": (
        ("live", [1e6 - 1e4 * at if at < 24 else 1e5 + 512 * at for at in range(40)], {UNKNOWN})
    ),
    "an interval around the bound": (
        ("cache", [280 * 1024 * at + 100 * 1024 * (-1) ** at for at in range(12)], {UNKNOWN})
    ),
    "neither up nor level": ("live", [0, 9, 2, 7, 4, 8, 3, 9, 5, 9, 6, 9], {UNKNOWN}),
}


@pytest.mark.parametrize("name", COURSES)
def test_a_course_has_its_verdict(name: str) -> None:
    """Growth is accused when nothing else explains it; where neither can be said, the interval is shown."""
    field, values, allowed = COURSES[name]
    layer = next(layer for layer in Layer if FIELDS[layer] == field)
    verdict = judge_leaks(course(field, values)).of(layer)
    assert verdict.outcome in allowed, str(verdict)
    assert verdict.slope is not None
    if verdict.outcome is UNKNOWN:
        assert "checkpoints are too few to be sure" in str(verdict)
        assert "take more" in str(verdict)


def test_a_slope_is_what_grows_in_an_epoch() -> None:
    """Per epoch, however many checkpoints share one; one step between two epochs is no direction."""
    leak = judge_leaks(course("slots", [at // 3 for at in range(30)])).of(Layer.SLOTS)
    assert leak.slope is not None
    assert leak.slope.value == pytest.approx(1 / 3)
    twice = [replace(it, at=float(at // 2)) for at, it in enumerate(course("live", range(24)))]
    verdict = judge_leaks(twice).of(Layer.LIVE)
    assert verdict.slope is not None
    assert verdict.slope.value == pytest.approx(2, rel=0.1)
    assert verdict.outcome is LEAK
    values = [512 * (at >= 60) for at in range(80)]
    two_epochs = [replace(it, at=1.0 + (at >= 60)) for at, it in enumerate(course("live", values))]
    assert judge_leaks(two_epochs).of(Layer.LIVE).outcome is UNKNOWN
    one_epoch = [replace(it, at=1.0) for it in course("live", range(12))]
    assert "all checkpoints were taken after the same epoch" in str(judge_leaks(one_epoch).of(Layer.LIVE))


def test_an_unknown_layer_keeps_its_reason() -> None:
    """A layer that was never read is neither leaking nor sound."""
    checkpoints = [replace(it, live=Reading.unknown(BYTES, "no CUDA")) for it in course("slots", [0] * 12)]
    assert str(judge_leaks(checkpoints).of(Layer.LIVE)) == "live bytes: unknown (no CUDA)"


def test_some_unknown_readings_are_left_out() -> None:
    """A reading that failed now and then does not hide a leak."""
    checkpoints = course("live", [512 * at for at in range(16)])
    for at in (5, 9):
        checkpoints[at] = replace(checkpoints[at], live=Reading.unknown(BYTES, "busy"))
    assert judge_leaks(checkpoints).of(Layer.LIVE).outcome is Outcome.LEAK


def test_a_verdict_is_plain_data() -> None:
    """A report can keep it; an end of an interval that is not bounded is null."""
    msgspec = pytest.importorskip("msgspec")
    verdict = json.loads(msgspec.json.encode(judge_leaks(course("slots", range(12)))))
    slots, live = verdict["layers"][:2]
    assert (slots["layer"], slots["outcome"], slots["slope"]["value"]) == ("slots", "leak", 1.0)
    assert (live["layer"], live["outcome"]) == ("live bytes", "no leak")
    assert verdict["checkpoints"] == 12


# -- whose the device's memory is ------------------------------------------------------------------


HIDDEN = Reading.unknown("processes", "in a container")


@pytest.mark.parametrize(
    ("others", "grows", "outcome", "reason"),
    [
        ([Reading(0, "processes")] * 12, True, LEAK, None),
        (
            [Reading(int(at == 7), "processes") for at in range(12)],
            True,
            UNKNOWN,
            "other processes use the device, too",
        ),
        ([HIDDEN] * 12, True, UNKNOWN, "in a container"),
        ([HIDDEN] * 12, False, NO_LEAK, None),
    ],
    ids=["alone", "a neighbour for a while", "hidden", "still, whoever is there"],
)
def test_a_process_answers_for_a_device_that_it_has_alone(
    others: list[Reading], grows: bool, outcome: Outcome, reason: str | None
) -> None:
    """Growth on a device without other processes is the process's own; an acquittal needs no such proof."""
    unknown = Reading.unknown(BYTES, "not listed")
    read = course("device", [MIB * at if grows else 400 * MIB for at in range(12)])
    checkpoints = [replace(it, own=unknown, others=other) for it, other in zip(read, others, strict=True)]
    verdict = judge_leaks(checkpoints).of(Layer.DEVICE)
    assert verdict.outcome is outcome
    assert verdict.reason == (reason and f"device memory grows, but it may be another process's: {reason}")


def test_our_own_number_comes_first() -> None:
    """A neighbour that grows changes nothing where the driver says what is ours."""
    grown = course("device", [MIB * at for at in range(12)])
    checkpoints = [replace(it, others=Reading(4, "processes")) for it in grown]
    assert judge_leaks(checkpoints).of(Layer.DEVICE).outcome is NO_LEAK


CONTEXT = 300 * MIB  # what a process has on a device beside its allocator


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

    def keep_a_graph(self) -> None:
        self.allocator.private += SEGMENT
        self.allocator.pinned += 1
        self.allocator.reserved += SEGMENT

    def take_beside_the_allocator(self) -> None:
        self.beside += 3 * MIB

    def pin_host_memory(self) -> None:
        self.allocator.host += 1 << 20


PLANTS = {
    Layer.SLOTS: Server.lose_a_slot,
    Layer.LIVE: Server.keep_a_tensor,
    Layer.CACHE: Server.pin_a_segment,
    Layer.POOLS: Server.keep_a_graph,
    Layer.DEVICE: Server.take_beside_the_allocator,
    Layer.PINNED: Server.pin_host_memory,
}


@pytest.mark.parametrize("layer", Layer)
def test_a_planted_leak_is_caught_and_named(layer: Layer) -> None:
    """One leak, one layer accused, the others acquitted."""
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
    assert slopes[3:] == [SEGMENT, 3 * MIB, 1 << 20]


def test_a_program_that_lets_go_does_not_leak() -> None:
    """Memory that comes and goes is not there at rest."""
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


def test_without_cuda_only_slots_are_known() -> None:
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
        "private pools: unknown (built without CUDA)",
        "device: unknown (no driver)",
        "pinned host memory: unknown (built without CUDA)",
    ]
    assert allocator.settled == 0


def test_this_process_is_watched_where_nothing_is_given() -> None:
    """Torch and NVML are asked, and have at least a reason."""
    with LeakCheck() as check:
        checkpoint = check.checkpoint()
    assert checkpoint.slots.reason == "no function counts the slots; pass slots=..."
    for reading in (checkpoint.live, checkpoint.own):
        assert reading.is_known or reading.reason


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
        ValueError, match=r"bounds names 'tensors', which is not a layer; the layers are 'slots', 'live"
    ):
        LeakCheck(bounds={"tensors": 3})
    lost: list[int] = []
    with LeakCheck(slots=lambda: len(lost), device_memory=Server().device, bounds={"slots": 2}) as check:
        for _ in range(12):
            lost.append(1)
            check.checkpoint()
    assert check.verdict().of(Layer.SLOTS).outcome is Outcome.NO_LEAK


# -- slots of a real cache -----------------------------------------------------------------------------


def serve(epochs: int, frees_duplicates: bool) -> tuple[LeakVerdict, int]:
    """Send prompts through a `RadixCache` that fills up; return the verdict and the number of held slots."""
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
    """Slots of the cache are accounted for, from the first prompt to the last eviction."""
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
    """Memory beside torch shows in the driver's list alone, and an unlisted process is not accused."""
    verdict = through_the_driver(lambda epoch: epoch * 2 * MIB, others=2)
    assert [it.layer for it in verdict.leaking] == [Layer.DEVICE], str(verdict)
    assert "leak of 2.09715e+06 bytes per epoch" in str(verdict)
    hidden = through_the_driver(lambda epoch: epoch * 2 * MIB, mine=False, others=1).of(Layer.DEVICE)
    assert hidden.outcome is Outcome.UNKNOWN
    assert "may be another process's" in str(hidden)
    assert through_the_driver(lambda epoch: MIB).of(Layer.DEVICE).outcome is Outcome.NO_LEAK


@on_machine()
def test_no_bytes_of_a_process_that_is_listed_are_not_believed() -> None:
    """Nor that nobody else is listed: such a driver hides other containers, so growth may be theirs."""
    for others in (0, 1):
        with LeakCheck() as check:
            for epoch in range(12):
                listed = [f"{os.getpid()}:0", *[f"1:{GIB}"] * others]
                say(used=GIB + epoch * 64 * MIB, processes=" ".join(listed))
                assert "with 0 bytes, which no context has" in str(check.checkpoint().own.reason)
        device = check.verdict().of(Layer.DEVICE)
        assert device.outcome is Outcome.UNKNOWN
        assert "may be another process's: the driver lists this process with 0 bytes" in str(device.reason)


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


Points = list[tuple[float, float]]


def line(samples: int, slope: float, start: float = 0.0) -> Points:
    return [(float(at), start + slope * at) for at in range(samples)]


def of(*series: Points, confidence: float = 0.95) -> Slope:
    slope = estimate_slope(series, confidence)
    assert slope is not None
    return slope


def test_a_line_has_its_slope() -> None:
    """Without noise the interval is a point."""
    slope = of(line(20, 3.0))
    assert (slope.value, slope.low, slope.high) == (3.0, 3.0, 3.0)
    assert (slope.samples, slope.series, slope.confidence) == (20, 1, 0.95)


def test_a_quarter_of_wild_samples_does_not_move_the_slope() -> None:
    """Large runs and late collections are no growth."""
    points = line(40, 3.0)
    for at in range(0, 40, 4):
        points[at] = (points[at][0], 1e9 * (-1) ** at)
    assert of(points).value == pytest.approx(3.0)


def test_each_series_keeps_its_own_level() -> None:
    """Two processes that differ in size share a slope."""
    assert of(line(8, 2.0), line(8, 2.0, start=1e6)).value == 2.0
    assert of(line(8, 2.0), line(8, 2.0, start=1e6)).series == 2


def test_the_interval_has_the_true_slope_as_often_as_it_says() -> None:
    """Of 400 noisy lines, nine in ten have their slope inside a 90 % interval."""
    draw = random.Random(7)
    inside = 0
    for _ in range(400):
        slope = of([(x, 2.0 * x + draw.gauss(0, 5)) for x in range(15)], confidence=0.9)
        inside += slope.low <= 2.0 <= slope.high
    assert 0.87 * 400 <= inside <= 0.97 * 400


def test_more_confidence_needs_a_wider_interval() -> None:
    """The interval grows with what it promises."""
    draw = random.Random(3)
    points = [(float(x), draw.gauss(0, 1)) for x in range(30)]
    narrow, wide = of(points, confidence=0.8), of(points, confidence=0.999)
    assert wide.low < narrow.low <= narrow.value <= narrow.high < wide.high


def test_too_few_samples_bound_nothing() -> None:
    """Seven samples can never tell with 99.8 % that something grows, eight can."""
    assert of(line(7, 1.0), confidence=0.998).low == -math.inf
    assert of(line(7, 1.0), confidence=0.998).high == math.inf
    assert of(line(8, 1.0), confidence=0.998).low == 1.0


@pytest.mark.parametrize("series", [[], [[]], [line(2, 1.0)], [[(1.0, 0.0), (1.0, 5.0), (1.0, 9.0)]]])
def test_nothing_to_see_is_no_slope(series: list[Points]) -> None:
    """Two samples always lie on a line, and samples at one place on none."""
    assert estimate_slope(series) is None


def test_a_long_series_is_thinned_but_keeps_its_ends() -> None:
    """The square of a million pairs is never built, and late growth is still seen."""
    points = [(float(x), max(0.0, x - 99_990.0)) for x in range(100_001)]
    slope = estimate_slope([points], most=3)
    assert slope is not None
    assert slope.samples == 3
    assert slope.value == pytest.approx(10 / 100_000)


@given(
    st.lists(st.integers(-1000, 1000), min_size=3, max_size=20),
    st.integers(-50, 50),
    st.integers(-1000, 1000),
    st.sampled_from([0.5, 0.95, 0.998]),
)
def test_a_slope_follows_its_samples(values: list[int], tilt: int, level: int, confidence: float) -> None:
    """Raised samples have the same slope, tilted ones a tilted one, mirrored ones its opposite."""
    points = [(float(x), float(y)) for x, y in enumerate(values)]
    plain = of(points, confidence=confidence)
    moved = of([(x, y + tilt * x + level) for x, y in points], confidence=confidence)
    mirrored = of([(x, -y) for x, y in points], confidence=confidence)
    assert plain.low <= plain.value <= plain.high
    assert [moved.low, moved.value, moved.high] == pytest.approx(
        [plain.low + tilt, plain.value + tilt, plain.high + tilt]
    )
    assert [mirrored.low, mirrored.value, mirrored.high] == pytest.approx(
        [-plain.high, -plain.value, -plain.low]
    )


@pytest.mark.parametrize(
    "more", [{"confidence": 0.0}, {"confidence": 1.0}, {"confidence": -1.0}, {"most": 2}]
)
def test_a_certain_interval_or_two_samples_are_refused(more: dict[str, float]) -> None:
    """No interval is certain, and a slope through the ends alone is what this is not."""
    with pytest.raises(ValueError, match=r"between 0 and 1|at least 3"):
        estimate_slope([line(9, 1.0)], **more)  # type: ignore[arg-type]
