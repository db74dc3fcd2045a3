"""The detection of memory leaks and their layer, from readings between equal epochs of a program."""

from __future__ import annotations

import enum
import gc
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, Self

from pymllm.instrument.nvml_counters import DeviceUse, NvmlMemory
from pymllm.instrument.nvml_device import visible_devices
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.slope import Slope, estimate_slope
from pymllm.instrument.torch_memory import (
    AllocatorSource,
    TorchAllocator,
    read_private_pools,
    read_torch_memory,
)

CONFIDENCE = 0.998
FEWEST = 8  # settled checkpoints: with fewer, no growth is certain at that confidence
_DEVIATIONS = 3.0  # of the mean step above zero, which growth must have that is no wandering
_STEADY = 0.5  # of the whole slope, which the later half must have for growth to be a leak's
_WARM_UP = 4  # the first quarter: modules, kernels and workspaces come with the first epochs


class Layer(enum.Enum):
    """The layers that can hold leaked memory, from the inside out; each byte counts in one layer."""

    SLOTS = "slots"
    """Slots of a pool that are neither free nor owned."""
    LIVE = "live bytes"
    """Bytes in tensors at a time when no tensor should exist."""
    CACHE = "allocator cache"
    """Bytes that the allocator holds for no tensor and cannot release."""
    POOLS = "private pools"
    """Bytes that CUDA graphs and other private pools hold for no tensor."""
    DEVICE = "device"
    """Bytes on the device outside torch's allocator."""
    PINNED = "pinned host memory"
    """Bytes of pinned host memory that tensors hold in torch's host allocator."""


class Outcome(enum.Enum):
    """The verdict on a layer: no leak, a leak, or unknown."""

    NO_LEAK = "no leak"
    LEAK = "leak"
    UNKNOWN = "unknown"


BOUNDS: Mapping[Layer, float] = {
    Layer.SLOTS: 0.0,
    Layer.LIVE: 0.0,
    # An eighth of the smallest segment that the allocator and the driver deal in (2 MiB): they round.
    Layer.CACHE: float(256 << 10),
    Layer.POOLS: 0.0,
    Layer.DEVICE: float(256 << 10),
    Layer.PINNED: 0.0,
}
"""The growth per epoch, in slots or bytes, up to which a layer counts as not leaking."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Readings taken while nothing ran, after ``at`` epochs."""

    at: float
    slots: Reading
    live: Reading  # bytes of `Layer.LIVE`
    cache: Reading  # bytes of `Layer.CACHE`
    returned: Reading  # bytes that the allocator kept and gave back when asked: no leak, however many
    own: Reading  # bytes of `Layer.DEVICE`, by what the driver says of this process
    device: Reading  # the same by what is in use on the whole device
    others: Reading  # how many other processes use the device
    pools: Reading  # bytes of `Layer.POOLS`
    pinned: Reading  # bytes of `Layer.PINNED`


@dataclass(frozen=True, slots=True)
class LayerVerdict:
    """The verdict on one layer: its growth per epoch, and whether that exceeds ``bound``."""

    layer: Layer
    outcome: Outcome
    unit: str
    slope: Slope | None
    bound: float
    reason: str | None = None
    device: str | None = None  # CUDA's name of the device, where several were checked

    def __str__(self) -> str:
        name = self.layer.value if self.device is None else f"{self.layer.value} of {self.device}"
        if self.outcome is Outcome.UNKNOWN or self.slope is None:
            return f"{name}: unknown ({self.reason})"
        if self.outcome is Outcome.NO_LEAK:
            allowed = (
                f" (growth of up to {self.bound:,.6g} {self.unit} per epoch is allowed)" if self.bound else ""
            )
            return f"{name}: no leak{allowed}"
        low, high, sure = self.slope.low, self.slope.high, self.slope.confidence
        return (
            f"{name}: leak of {self.slope.value:,.6g} {self.unit} per epoch"
            f" ({low:,.6g} to {high:,.6g} with {sure:.1%} confidence)"
        )


@dataclass(frozen=True, slots=True)
class LeakVerdict:
    """The verdict on all layers, from the inside out."""

    layers: tuple[LayerVerdict, ...]
    checkpoints: int

    @property
    def leaking(self) -> tuple[LayerVerdict, ...]:
        """The layers that leak, from the inside out."""
        return tuple(it for it in self.layers if it.outcome is Outcome.LEAK)

    def of(self, layer: Layer) -> LayerVerdict:
        """Return the verdict on one layer."""
        return next(it for it in self.layers if it.layer is layer)

    def __str__(self) -> str:
        return "\n".join(str(it) for it in self.layers)


def judge_leaks(
    checkpoints: Sequence[Checkpoint], bounds: Mapping[Layer, float] = BOUNDS, confidence: float = CONFIDENCE
) -> LeakVerdict:
    """Judge each layer by checkpoints in order, of which the first quarter is the warm-up.

    A layer leaks when even the lower end of its slope's interval is above the bound, it grew at least half as
    fast in the later half, and its steps go up more than those of a level that wanders: what fills up and
    stays is no leak. It does not leak when the upper end is within the bound, of all checkpoints or of the
    later half; otherwise they do not tell. Without growth a layer is accused once in a thousand times at
    most.

    The device is judged by what the driver says of this process. Where that cannot be read, growth is held
    against the process only if the driver lists no other one.
    """
    settled = checkpoints[len(checkpoints) // _WARM_UP :]

    def judged(layer: Layer, read: Sequence[tuple[float, Reading]]) -> LayerVerdict:
        return _judge_layer(layer, read, bounds[layer], confidence)

    verdicts = [
        judged(Layer.SLOTS, [(it.at, it.slots) for it in settled]),
        judged(Layer.LIVE, [(it.at, it.live) for it in settled]),
        judged(Layer.CACHE, [(it.at, it.cache) for it in settled]),
        judged(Layer.POOLS, [(it.at, it.pools) for it in settled]),
    ]
    if sum(it.own.is_known for it in settled) >= FEWEST:
        verdicts.append(judged(Layer.DEVICE, [(it.at, it.own) for it in settled]))
    else:
        verdict = judged(Layer.DEVICE, [(it.at, it.device) for it in settled])
        verdicts.append(_unless_it_was_others(verdict, settled))
    verdicts.append(judged(Layer.PINNED, [(it.at, it.pinned) for it in settled]))
    return LeakVerdict(tuple(verdicts), len(checkpoints))


def _judge_layer(
    layer: Layer, read: Sequence[tuple[float, Reading]], bound: float, confidence: float
) -> LayerVerdict:
    """Judge one layer by its known readings."""
    unit = read[0][1].unit if read else BYTES
    points = [(at, float(it.value)) for at, it in read if it.value is not None]

    def verdict(outcome: Outcome, slope: Slope | None, reason: str | None = None) -> LayerVerdict:
        return LayerVerdict(layer, outcome, unit, slope, bound, reason)

    if len(points) < FEWEST:
        why = next((it.reason for _, it in read if it.reason is not None), None)
        short = (
            f"too few checkpoints: {len(points)} after the warm-up (the first quarter); take {FEWEST} or more"
        )
        return verdict(Outcome.UNKNOWN, None, why or short)
    slope = estimate_slope([points], confidence)
    late = estimate_slope([points[len(points) // 2 :]], confidence)
    if slope is None or late is None:
        return verdict(Outcome.UNKNOWN, None, "all checkpoints were taken after the same epoch")
    if slope.low > bound and late.value > max(bound, slope.value * _STEADY) and _has_direction(points):
        return verdict(Outcome.LEAK, slope)
    is_flat = slope.high <= bound and late.value <= bound
    if is_flat or late.high <= bound:
        return verdict(Outcome.NO_LEAK, slope)
    reason = (
        f"{len(points)} checkpoints are too few to be sure: growth is {slope.low:,.6g} to {slope.high:,.6g}"
        f" {unit} per epoch, and up to {bound:,.6g} is allowed; take more checkpoints"
    )
    return verdict(Outcome.UNKNOWN, slope, reason)


def _has_direction(points: Sequence[tuple[float, float]]) -> bool:
    """Tell whether a level rises more steadily than chance would explain."""
    steps = [
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for sooner, later in pairwise(points)
        if later[0] > sooner[0]
    ]
    if len(steps) < 2:
        return False
    if fmean(steps) > _DEVIATIONS * stdev(steps) / math.sqrt(len(steps)):
        return True
    ups, moves = sum(step > 0 for step in steps), sum(step != 0 for step in steps)
    as_many_by_chance = sum(math.comb(moves, more) for more in range(ups, moves + 1))
    return as_many_by_chance < (1 - CONFIDENCE) * 2.0**moves


def _unless_it_was_others(verdict: LayerVerdict, settled: Sequence[Checkpoint]) -> LayerVerdict:
    """Return unknown instead of a leak if another process may own the memory."""
    if verdict.outcome is not Outcome.LEAK or all(it.others.value == 0 for it in settled):
        return verdict
    why = next(
        (it.others.reason for it in settled if it.others.reason is not None),
        "other processes use the device, too",
    )
    reason = f"device memory grows, but it may be another process's: {why}"
    return replace(verdict, outcome=Outcome.UNKNOWN, reason=reason)


_NO_SLOTS = "no function counts the slots; pass slots=..."


class LeakCheck:
    """A leak check with a `checkpoint` after each of at least 10 equal epochs, which judges each layer.

    ``slots`` counts those neither free nor owned by anybody who may own them at rest: what a cache keeps on
    purpose must not count. ``device`` is as torch takes it, ``source`` and ``device_memory`` are asked in
    place of torch's allocator and NVML, and ``bounds`` say up to which growth per epoch a layer does not
    leak::

        with LeakCheck(slots=lambda: pool.size - allocator.available_size()) as check:
            for _ in range(12):
                serve_some_requests()
                cache.reset()
                check.checkpoint()
        assert not check.verdict().leaking

    Cost: a checkpoint collects garbage, waits for the device, gives the allocator's reserve back and asks the
    driver for its processes: milliseconds, and allocations after it are slower.
    """

    def __init__(
        self,
        *,
        slots: Callable[[], int] | None = None,
        device: Any = None,
        source: AllocatorSource | None = None,
        device_memory: Callable[[], DeviceUse] | None = None,
        bounds: Mapping[Layer, float] | Mapping[str, float] | None = None,
    ) -> None:
        if slots is not None and not callable(slots):
            raise TypeError(f"slots must be a function that counts them, such as lambda: 0, got {slots!r}")
        self._slots = slots
        self._source = TorchAllocator(device) if source is None else source
        self._nvml = NvmlMemory(device)
        self._device_memory = self._nvml.read if device_memory is None else device_memory
        self._bounds = {**BOUNDS, **{_layer(name): bound for name, bound in (bounds or {}).items()}}
        self._checkpoints: list[Checkpoint] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._nvml.close()

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The checkpoints taken so far."""
        return tuple(self._checkpoints)

    def checkpoint(self, at: float | None = None) -> Checkpoint:
        """Collect garbage, and read the memory in use after ``at`` epochs, by default one more epoch."""
        last = self._checkpoints[-1].at if self._checkpoints else None
        if at is None:
            at = 1.0 if last is None else last + 1
        if last is not None and at <= last:
            raise ValueError(f"at must be above that of the last checkpoint ({last:g}), got {at:g}")
        gc.collect()
        return self._take(at)

    def _take(self, at: float) -> Checkpoint:
        """Read the memory in use, after garbage was collected."""
        if self._source.is_in_use():
            self._source.settle()
        before = read_torch_memory(self._source)
        is_counted = self._source.why_not() is None
        if is_counted:
            self._source.release_cache()
        after = read_torch_memory(self._source)
        pools = read_private_pools(self._source)
        device = self._device_memory()
        self._checkpoints.append(
            Checkpoint(
                at=at,
                slots=self._count_slots(),
                live=after.allocated,
                cache=after.reserved.minus(after.allocated).minus(pools if pools.is_known else _NONE),
                returned=before.reserved.minus(after.reserved),
                own=_beside(device.own, after.reserved, is_counted),
                device=_beside(device.used, after.reserved, is_counted),
                others=device.others,
                pools=pools,
                pinned=self._source.pinned_host(),
            )
        )
        return self._checkpoints[-1]

    def _count_slots(self) -> Reading:
        if self._slots is None:
            return Reading.unknown("slots", _NO_SLOTS)
        count = self._slots()
        try:
            return Reading(operator.index(count), "slots")
        except TypeError:
            raise TypeError(f"slots must return how many there are, a whole number, got {count!r}") from None

    def verdict(self) -> LeakVerdict:
        """Judge the checkpoints taken so far."""
        return judge_leaks(self._checkpoints, self._bounds)


_NONE = Reading(0, BYTES)


def _layer(name: Layer | str) -> Layer:
    try:
        return Layer(name)
    except ValueError:
        known = ", ".join(repr(it.value) for it in Layer)
        raise ValueError(f"bounds names {name!r}, which is not a layer; the layers are {known}") from None


def _beside(memory: Reading, reserved: Reading, is_counted: bool) -> Reading:
    """Subtract the allocator's share from a reading, if the allocator is in use and counts it."""
    return memory.minus(reserved) if is_counted else memory


EPOCHS = 12
FEWEST_EPOCHS = 10
"""The least number of epochs, since the first quarter is the warm-up and few prove no growth."""


def run_epochs(
    work: Callable[[], object],
    *,
    epochs: int = EPOCHS,
    slots: Callable[[], int] | None = None,
    device: Any = None,
    source: AllocatorSource | None = None,
    device_memory: Callable[[], DeviceUse] | None = None,
    bounds: Mapping[Layer, float] | Mapping[str, float] | None = None,
) -> LeakVerdict:
    """Repeat work that should leave nothing at least 10 times, and judge as `LeakCheck` does.

    Without a ``device``, each is checked that this process may use: the layers are those of the current one,
    and after them those that leak of others.
    """
    __tracebackhide__ = True  # pytest shows the caller instead
    if not callable(work):
        raise TypeError(f"work must be a function that is called for each epoch, got {work!r}")
    check_epochs(epochs)
    if device is not None or source is not None or device_memory is not None:
        devices = [device]
    else:
        devices = [*visible_devices()]
    with ExitStack() as stack:
        checks = [
            stack.enter_context(
                LeakCheck(
                    slots=slots if at == 0 else None,
                    device=it,
                    source=source,
                    device_memory=device_memory,
                    bounds=bounds,
                )
            )
            for at, it in enumerate(devices)
        ]
        for epoch in range(1, epochs + 1):
            work()
            checks[0].checkpoint()
            for check in checks[1:]:
                check._take(epoch)
        verdicts = [check.verdict() for check in checks]
    if len(verdicts) == 1:
        return verdicts[0]
    layers = [
        layer if layer.layer in _OF_THE_PROCESS else replace(layer, device=f"cuda:{it}")
        for it, verdict in zip(devices, verdicts, strict=True)
        for layer in (verdict.layers if it == devices[0] else verdict.leaking)
        if it == devices[0] or layer.layer not in _OF_THE_PROCESS
    ]
    return replace(verdicts[0], layers=tuple(layers))


_OF_THE_PROCESS = (Layer.SLOTS, Layer.PINNED)
OF_TORCH = (Layer.LIVE, Layer.CACHE, Layer.POOLS)
"""The layers whose allocations torch can name."""


def check_epochs(epochs: int) -> None:
    """Raise an error for fewer than 10 epochs, which prove nothing."""
    __tracebackhide__ = True
    if isinstance(epochs, bool) or not isinstance(epochs, int):
        raise TypeError(f"epochs must be a whole number, got {epochs!r}; {EPOCHS} are usual")
    if epochs < FEWEST_EPOCHS:
        raise ValueError(f"epochs must be at least {FEWEST_EPOCHS}, got {epochs}; {EPOCHS} are usual")


def why_unknown(verdict: LeakVerdict) -> str | None:
    """Return the reason why no layer can be judged, or ``None`` if any can."""
    if any(it.outcome is not Outcome.UNKNOWN for it in verdict.layers):
        return None
    return "; ".join(dict.fromkeys(str(it.reason) for it in verdict.layers))
