"""Calls inside a context that can be told to fail, so that a failure half way can be looked at (X2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from pymllm.adapters.recording_pool import InjectedFault
from pymllm.history.operations import Fault

__all__ = ["FAILING_CALLS", "FailingCalls"]

_BLOCKS: Final = ("kv_block_allocator", ("allocate_memory_blocks",))
FAILING_CALLS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "allocate_blocks": _BLOCKS,
    "no_blocks": _BLOCKS,
    "allocate_slots": ("mamba_slot_allocator", ("allocate_slots_batch",)),
    "store_states": ("mamba_slot_allocator", ("_copy_intermediate_to_cache", "store_from_live_batch")),
    "restore_state": ("mamba_slot_allocator", ("restore_to_live",)),
}
"""What a `Fault` may name, and which part of a context makes the call, by which methods."""


class FailingCalls:
    """Stand before some methods of a context's allocators and let the one that is told fail.

    Parameters
    ----------
    context : DynamicInferenceContext
        Its allocators get attributes of their own in place of these methods.

    Attributes
    ----------
    made : Counter of str
        How often each call of `FAILING_CALLS` was made, failing ones included.

    Notes
    -----
    A call that asks for nothing, such as an allocation of no blocks, cannot fail and is not counted.
    """

    def __init__(self, context: Any) -> None:
        self._fault: Fault | None = None
        self._calls_until = 0
        self.made: Counter[str] = Counter()
        for owner, names in set(FAILING_CALLS.values()):
            part = getattr(context, owner)
            for name in names if part is not None else ():
                setattr(part, name, self._before(getattr(part, name), name))

    def arm(self, fault: Fault) -> None:
        """Let the nth of the calls fail that a fault names; counting starts now."""
        self._fault, self._calls_until = fault, fault.nth

    def disarm(self) -> None:
        """Let nothing fail."""
        self._fault = None

    def _before(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def checked(asked: Any, *more: Any) -> Any:
            if self._is_struck(name, asked):
                assert self._fault is not None
                if self._fault.call == "no_blocks":
                    return None
                raise InjectedFault(f"{name} was told to fail")
            return call(asked, *more)

        return checked

    def _is_struck(self, name: str, asked: Any) -> bool:
        if name != "restore_to_live" and not asked:
            return False
        calls = [call for call, (_, names) in FAILING_CALLS.items() if name in names]
        self.made.update(calls)
        if self._fault is None or self._fault.call not in calls:
            return False
        self._calls_until -= 1
        return self._calls_until == 0
