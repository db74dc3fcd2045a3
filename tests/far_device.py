"""A device far from the host that needs no GPU: what it computes is the CPU's, and each wait is counted.

Its tensors say that they are on ``lazy:0``, a device that torch knows by name and has no kernels for, and
keep what they have on the CPU. What CUDA waits for is written down here, by the sources of torch 2.11, the
oldest that is supported: what later ones do without waiting is a wait, too. Operations that mix tensors of
both places are refused, as there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("lazy", 0)
Apart = tuple[torch.device, Callable[[], AbstractContextManager[list[str]]]]
"""A device that the host has to wait for, and how to collect a word for each time that it does."""

_aten = torch.ops.aten

# Each of these has the host learn what is on the device, or how much of it there is.
_ASKING = {
    _aten._local_scalar_dense,
    _aten.equal,
    _aten.is_nonzero,
    _aten.masked_select,
    _aten.nonzero,
    _aten.unique_consecutive,
    _aten.unique_dim,
    _aten._unique2,
}
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_MASKS = {torch.bool, torch.uint8}
_ADDRESSES = {torch.Tensor.data_ptr, torch.Tensor.untyped_storage}

_waits: list[str] | None = None


def _wait(what: object) -> None:
    if _waits is not None:
        _waits.append(str(what))


@contextmanager
def _not_counting() -> Iterator[None]:
    """Leave out what torch does for a device of this kind alone."""
    global _waits
    waits, _waits = _waits, None
    try:
        yield
    finally:
        _waits = waits


class _Far(torch.Tensor):
    """A tensor of the far device, whose data is in ``near``."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> _Far:
        made: _Far = torch.Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=DEVICE,
        )
        made.near = near
        return made

    def __init__(self, near: torch.Tensor) -> None: ...

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _ADDRESSES:
            return func(args[0].near)
        if func is torch.Tensor.tolist:  # torch has none for a class of ours
            _wait("tolist")
            return args[0].near.tolist()
        if func is torch.Tensor.__setitem__ and isinstance(args[2], (int, float)):
            # The number becomes a tensor on the host. Only what is filled with it takes it along in a launch.
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            is_one = args[0].dim() == sum(isinstance(place, int) for place in places)
            if is_one or any(isinstance(it, torch.Tensor) and it.dtype not in _MASKS for it in places):
                _wait("one number written by index")
            with _not_counting(), torch._C.DisableTorchFunctionSubclass():
                return func(*args)
        with torch._C.DisableTorchFunctionSubclass():  # what comes back from the device is no tensor of ours
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class _Creation(TorchDispatchMode):
    """Sees what is made on the device from nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do on the CPU what is asked of the device, and give it the result."""
    given = tree_flatten((args, kwargs))[0]
    on_device = [it for it in given if isinstance(it, _Far)]
    asked = kwargs.get("device")
    near_args, near_kwargs = tree_map(_as_near, (args, kwargs))
    if func.overloadpacket in (_aten._to_copy, _aten.copy_):
        is_copy = func.overloadpacket is _aten._to_copy
        target = (asked if asked is not None else args[0].device) if is_copy else args[0].device
        source = args[0] if is_copy else args[1]
        # Back to the host is always waited for: nobody else would know when the numbers are there.
        waits = target.type == "cpu" or not (kwargs.get("non_blocking") or args[2:3] == (True,))
        if target.type != source.device.type and waits:
            _wait(func)
        result = func(*near_args, **near_kwargs)
        if not is_copy:
            return args[0]
        return _Far(result) if target.type == DEVICE.type else result
    if not on_device and (asked is None or asked.type != DEVICE.type):
        return func(*args, **kwargs)
    if on_device and func.overloadpacket in _ASKING:
        _wait(func)
    if func.overloadpacket in _INDEXED:
        _look_at_indices(func, *args[:3])
    elif func.overloadpacket is _aten.repeat_interleave and kwargs.get("output_size") is None:
        _wait(func)
    else:
        _refuse_two_devices(func, given)
    result = func(*near_args, **near_kwargs)
    return _outcome(func, args, kwargs, result)


def _look_at_indices(func: Any, target: torch.Tensor, indices: Any, values: Any = None) -> None:
    """Count the cost of an index: masks are counted on the device, and parts on the host are sent."""
    by_mask = any(it is not None and it.dtype in _MASKS for it in indices)
    if by_mask or any(it is not None and it.device.type == "cpu" for it in (*indices, values)):
        _wait(func)


def _refuse_two_devices(func: Any, given: list[Any]) -> None:
    places = {it.device.type for it in given if isinstance(it, torch.Tensor) and it.dim()}
    if len(places) > 1:
        raise RuntimeError(f"{func}: tensors are on {sorted(places)}")


def _outcome(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Give back what was written to as itself, and all else as tensors of the device."""
    written = [
        kwargs.get(argument.name, args[place] if place < len(args) else None)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written and isinstance(written[0], torch.Tensor):
        return written[0] if len(written) == 1 else tuple(written)
    return tree_map(lambda it: _Far(it) if isinstance(it, torch.Tensor) else it, result)


def _as_near(it: Any) -> Any:
    if isinstance(it, _Far):
        return it.near
    return torch.device("cpu") if isinstance(it, torch.device) else it


@contextmanager
def far_device() -> Iterator[list[str]]:
    """Let tensors be made on `DEVICE`, and collect what the host waits for."""
    global _waits
    lifted, pin_memory = torch._C._only_lift_cpu_tensors(), torch.Tensor.pin_memory
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor makes them here and sends them there
    torch.Tensor.pin_memory = torch.Tensor.clone  # type: ignore[method-assign, assignment]
    try:
        with _Creation():
            _waits = []
            yield _waits
    finally:
        _waits = None
        torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]
        torch._C._set_only_lift_cpu_tensors(lifted)


@contextmanager
def synchronisations() -> Iterator[list[str]]:
    """Collect a word for each time that the host waits for the current CUDA device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("default")  # a process is told once that this is a prototype
    waits: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
            waits += [str(warning.message) for warning in caught]
