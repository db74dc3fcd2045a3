"""Checkpoints of a program at rest, and whether it leaks between them."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from pymllm.instrument.leak_layers import BOUNDS, Checkpoint, Layer, LeakVerdict, judge_leaks
from pymllm.instrument.nvml_memory import DeviceUse, NvmlMemory
from pymllm.instrument.reading import Reading
from pymllm.instrument.torch_memory import read_torch_memory
from pymllm.instrument.torch_memory_source import AllocatorSource, TorchAllocator

__all__ = ["LeakCheck"]

_NO_SLOTS = "nobody said how to count slots; give slots=..."


class LeakCheck:
    """Takes checkpoints and judges the four layers in which memory can stay.

    Parameters
    ----------
    slots : callable, optional
        Returns how many slots of the pools are neither free nor owned by anybody who may own them at rest:
        what a cache keeps on purpose must not count. Without it, that layer is unknown.
    device : int, torch.device, str or None
        As torch takes it, such as ``"cuda:1"``, but no UUID; ``None`` is CUDA's current device.
    source : AllocatorSource, optional
        Asked in the place of torch's CUDA allocator.
    device_memory : callable, optional
        Asked in the place of NVML.
    bounds : mapping, optional
        Growth per epoch up to which a layer does not leak, in slots or bytes, for the layers named, by
        `Layer` or by its value, such as ``"live bytes"``.

    Raises
    ------
    TypeError
        For slots that cannot be called.
    ValueError
        For a bound of what is no layer.

    Notes
    -----
    Run some epochs that each do the same work, let go of everything, and take a `checkpoint` after each: 10
    at least, 8 of which count. One program may take as many as it wants::

        with LeakCheck(slots=lambda: pool.size - allocator.available_size()) as check:
            for _ in range(12):
                serve_some_requests()
                cache.reset()
                check.checkpoint()
        assert not check.verdict().leaking

    Cost: a checkpoint collects garbage, waits for the device, gives the allocator's reserve back and asks the
    driver for its processes: milliseconds, and allocations after it are slower. Nothing is done between
    checkpoints.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nvml.close()

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Those taken so far."""
        return tuple(self._checkpoints)

    def checkpoint(self, at: float | None = None) -> Checkpoint:
        """Let go of what nobody needs, and read what is left.

        Parameters
        ----------
        at : float, optional
            Epochs done, above those of the last checkpoint; by default one more than then.

        Raises
        ------
        ValueError
            When ``at`` is not above the last one.
        TypeError
            When what counts the slots returns no whole number.
        """
        last = self._checkpoints[-1].at if self._checkpoints else None
        if at is None:
            at = 1.0 if last is None else last + 1
        if last is not None and at <= last:
            raise ValueError(f"at must be above that of the last checkpoint ({last:g}), got {at:g}")
        gc.collect()
        in_use = self._source.why_not() is None
        if in_use:
            self._source.settle()
        before = read_torch_memory(self._source)
        if in_use:
            self._source.release_cache()
        after = read_torch_memory(self._source)
        device = self._device_memory()
        self._checkpoints.append(
            Checkpoint(
                at=at,
                slots=self._count_slots(),
                live=after.allocated,
                cache=after.reserved.minus(after.allocated),
                returned=before.reserved.minus(after.reserved),
                own=_beside(device.own, after.reserved, in_use),
                device=_beside(device.used, after.reserved, in_use),
                others=device.others,
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


def _layer(name: Layer | str) -> Layer:
    try:
        return Layer(name)
    except ValueError:
        known = ", ".join(repr(it.value) for it in Layer)
        raise ValueError(f"bounds has {name!r}, which is no layer; there are {known}") from None


def _beside(memory: Reading, reserved: Reading, in_use: bool) -> Reading:
    """Take the allocator's share away; an allocator that is not in use has none."""
    return memory.minus(reserved) if in_use else memory
